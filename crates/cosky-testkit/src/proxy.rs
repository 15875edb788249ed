//! A TCP proxy that stands between a client and a server on this machine and spoils what passes it, as a network does.
//!
//! Each direction of its connections has a [`Flow`], which may be changed at any time and counts for live connections
//! as well. Beside that connections can be [cut](FaultProxy::cut), new ones [turned away](FaultProxy::turn_away), and
//! the port [closed](FaultProxy::refuse). Faults add up; [`FaultProxy::heal`] lifts all of them.

use std::{
    collections::VecDeque,
    future::pending,
    io::{self, Read as _},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpSocket, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until},
};

/// The most connections at one time; what comes above them is reset.
const CONNECTIONS: usize = 1024;
/// Bytes that one direction of a connection reads at once.
const CHUNK: usize = 16 * 1024;
/// Chunks of one direction of a connection that wait for their time; above them the sender has to wait.
const WAITING: usize = 64;

/// A proxy on a free port of 127.0.0.1. When it is dropped, its port and all of its connections are closed.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    faults: watch::Sender<Faults>,
    listening: watch::Receiver<bool>,
    counters: Arc<Counters>,
    task: AbortHandle,
    /// Bound to the port and never listening, so that nobody else gets the port while it is closed.
    _port: TcpSocket,
}

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
    /// Either.
    Both,
}

/// What becomes of the bytes of one direction, the end of the stream included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// They are passed on as they come.
    Pass,
    /// They are passed on later, in order: each piece after `least` and up to `jitter` more, drawn by the seed.
    Delay {
        /// The shortest delay.
        least: Duration,
        /// What may be added.
        jitter: Duration,
    },
    /// They are neither read nor passed on, and come when this is lifted: a route that is gone for a while. After
    /// some hundred kilobytes the sender has to wait.
    Hold,
    /// They are read and thrown away. A connection that lost something stays lost when this is lifted, since a stream
    /// with a hole is none: it goes on swallowing until somebody closes it, as behind a router that has forgotten it.
    Swallow,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Orderly (`FIN`): the peer reads the end of the stream.
    Fin,
    /// By force (`RST`): the peer's next operation fails.
    Reset,
}

/// What passed so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections of clients, those that were turned away included.
    pub accepted: u64,
    /// Those that are open now.
    pub open: u64,
    /// Bytes passed on to the server.
    pub up: u64,
    /// Bytes passed on to clients.
    pub down: u64,
    /// Bytes thrown away.
    pub swallowed: u64,
}

/// What is wrong now.
#[derive(Debug, Clone, Copy)]
struct Faults {
    target: SocketAddr,
    up: Flow,
    down: Flow,
    /// What new connections meet instead of the server.
    turned_away: Option<End>,
    listens: bool,
    /// How often everything was cut, and how the last time.
    cuts: (u64, End),
    /// How often everything was forgotten.
    forgotten: u64,
}

#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    open: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
    swallowed: AtomicU64,
}

/// One direction of one connection.
struct Pump<'a> {
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    faults: watch::Receiver<Faults>,
    /// [`Way::Up`] or [`Way::Down`].
    way: Way,
    counters: &'a Counters,
    rng: StdRng,
    /// What was read and waits for its time; an empty piece is the end of the stream.
    waiting: VecDeque<(Instant, Box<[u8]>)>,
    /// How often everything had been forgotten when the connection began.
    born: u64,
    /// Something was swallowed.
    lost: bool,
}

impl FaultProxy {
    /// A proxy before `target` that does no harm yet. The same seed draws the same delays for the same connections.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn before(target: SocketAddr, seed: u64) -> Self {
        let port = bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("127.0.0.1 has a free port");
        let address = port.local_addr().expect("it is bound");
        let faults = watch::Sender::new(Faults {
            target,
            up: Flow::Pass,
            down: Flow::Pass,
            turned_away: None,
            listens: true,
            cuts: (0, End::Fin),
            forgotten: 0,
        });
        let counters = Arc::<Counters>::default();
        let (told, mut listening) = watch::channel(false);
        let task = tokio::spawn(accept(address, seed, faults.subscribe(), told, counters.clone()));
        listening.wait_for(|listens| *listens).await.expect("the port is this proxy's");
        Self { address, faults, listening, counters, task: task.abort_handle(), _port: port }
    }

    /// Where clients find it, from its start to its end.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Takes new connections to `target` from now on. Those that stand stay where they are.
    pub fn aim(&self, target: SocketAddr) {
        self.faults.send_modify(|faults| faults.target = target);
    }

    /// What becomes of bytes from now on. What waits for its time already is held and swallowed too.
    pub fn set(&self, way: Way, flow: Flow) {
        self.faults.send_modify(|faults| {
            if way != Way::Down {
                faults.up = flow;
            }
            if way != Way::Up {
                faults.down = flow;
            }
        });
    }

    /// Ends every connection that stands, on both sides. What waits in them is lost. New ones are let through.
    pub fn cut(&self, end: End) {
        self.faults.send_modify(|faults| faults.cuts = (faults.cuts.0 + 1, end));
    }

    /// Every connection that stands is lost from now on, idle or not, as if it had met [`Flow::Swallow`]: neither side is
    /// told. New ones are let through.
    pub fn forget(&self) {
        self.faults.send_modify(|faults| faults.forgotten += 1);
    }

    /// New connections end as soon as they stand; with `None` they are let through again.
    pub fn turn_away(&self, end: Option<End>) {
        self.faults.send_modify(|faults| faults.turned_away = end);
    }

    /// Closes the port: clients that connect are refused. Connections that stand stay. Returns when it is closed.
    pub async fn refuse(&self) {
        self.listen(false).await;
    }

    /// Lifts every fault and opens the port. What was cut or lost stays so. Returns when the port is open.
    pub async fn heal(&self) {
        self.set(Way::Both, Flow::Pass);
        self.turn_away(None);
        self.listen(true).await;
    }

    /// What passed so far.
    pub fn counts(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { accepted, open, up, down, swallowed } = &*self.counters;
        Counts {
            accepted: get(accepted),
            open: get(open),
            up: get(up),
            down: get(down),
            swallowed: get(swallowed),
        }
    }

    async fn listen(&self, wanted: bool) {
        self.faults.send_modify(|faults| faults.listens = wanted);
        let mut listening = self.listening.clone();
        listening.wait_for(|listens| *listens == wanted).await.expect("the port is this proxy's");
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Flow {
    /// How long the next piece waits.
    fn draw(self, rng: &mut StdRng) -> Duration {
        match self {
            Self::Delay { least, jitter } => least + jitter.mul_f64(rng.random_range(0.0..=1.0)),
            Self::Pass | Self::Hold | Self::Swallow => Duration::ZERO,
        }
    }
}

/// A socket that shares its port with the others of this proxy only. `SO_REUSEADDR` would let everybody have the port
/// while nobody listens on it.
fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Opens and closes the port as it is told, and owns the connections.
async fn accept(
    address: SocketAddr,
    seed: u64,
    mut faults: watch::Receiver<Faults>,
    listening: watch::Sender<bool>,
    counters: Arc<Counters>,
) {
    let mut listener: Option<TcpListener> = None;
    let mut connections = JoinSet::new();
    loop {
        let now = *faults.borrow_and_update();
        if now.listens != listener.is_some() {
            let open = || bind(address)?.listen(CONNECTIONS as u32);
            listener = now.listens.then(|| open().expect("the port is this proxy's"));
            listening.send_replace(now.listens);
        }
        let next = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            changed = faults.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            Some(_) = connections.join_next() => {}
            accepted = next => {
                // A client that went away before it was accepted is nothing to this proxy.
                let Ok((client, _)) = accepted else { continue };
                let number = counters.accepted.fetch_add(1, Ordering::Relaxed);
                let full = (connections.len() >= CONNECTIONS).then_some(End::Reset);
                match full.or(now.turned_away) {
                    Some(how) => end(client, how),
                    None => {
                        let rng = StdRng::seed_from_u64(seed.wrapping_add(number));
                        connections.spawn(carry(client, rng, faults.clone(), counters.clone()));
                    }
                }
            }
        }
    }
}

/// Carries one connection until both directions have ended or it is cut.
async fn carry(
    mut client: TcpStream,
    mut rng: StdRng,
    mut faults: watch::Receiver<Faults>,
    counters: Arc<Counters>,
) {
    let Faults { target, cuts: (cuts, _), forgotten: born, .. } = *faults.borrow();
    let Ok(mut server) = TcpStream::connect(target).await else { return end(client, End::Reset) };
    let nagle = [client.set_nodelay(true), server.set_nodelay(true)];
    if nagle.iter().any(Result::is_err) {
        return;
    }
    counters.open.fetch_add(1, Ordering::Relaxed);
    let how = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let mut pump = |from, to, way| {
            let (faults, rng) = (faults.clone(), StdRng::from_rng(&mut rng));
            let (waiting, lost) = (VecDeque::new(), false);
            Pump { from, to, faults, way, counters: &counters, rng, waiting, born, lost }.run()
        };
        let up = pump(from_client, to_server, Way::Up);
        let down = pump(from_server, to_client, Way::Down);
        tokio::select! {
            biased;
            cut = faults.wait_for(|faults| faults.cuts.0 != cuts) => cut.map_or(End::Reset, |faults| faults.cuts.1),
            ended = async { tokio::try_join!(up, down) } => if ended.is_ok() { End::Fin } else { End::Reset },
        }
    };
    end(client, how);
    end(server, how);
    counters.open.fetch_sub(1, Ordering::Relaxed);
}

/// Ends a stream. One that has broken already needs no end.
fn end(stream: TcpStream, how: End) {
    match how {
        // With bytes left unread the kernel would send a reset. They are asked of it and not of the runtime, which may
        // not know of them yet.
        End::Fin => {
            let Ok(mut stream) = stream.into_std() else { return };
            let mut chunk = [0; CHUNK];
            for _ in 0..WAITING {
                if !stream.read(&mut chunk).is_ok_and(|count| count > 0) {
                    break;
                }
            }
        }
        End::Reset => drop(stream.set_zero_linger()),
    }
}

impl Pump<'_> {
    /// Until the end of the stream was passed on or swallowed.
    ///
    /// # Errors
    /// When either side broke.
    async fn run(mut self) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        let mut ended = false;
        loop {
            let flow = self.flow();
            if flow == Flow::Swallow {
                while let Some((_, bytes)) = self.waiting.pop_front() {
                    self.swallow(bytes.len());
                }
                if ended {
                    return Ok(());
                }
            }
            let reads = !ended && flow != Flow::Hold && self.waiting.len() < WAITING;
            let due = self.waiting.front().map(|(due, _)| *due).filter(|_| flow != Flow::Hold);
            tokio::select! {
                changed = self.faults.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                read = self.from.read(&mut chunk), if reads => {
                    let count = match read {
                        Err(_) if flow == Flow::Swallow => 0,
                        read => read?,
                    };
                    ended = count == 0;
                    if flow == Flow::Swallow {
                        self.swallow(count);
                    } else {
                        let due = Instant::now() + flow.draw(&mut self.rng);
                        self.waiting.push_back((due, chunk[..count].into()));
                    }
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let Some((_, bytes)) = self.waiting.pop_front() else { continue };
                    if bytes.is_empty() {
                        return self.to.shutdown().await;
                    }
                    self.to.write_all(&bytes).await?;
                    let passed = if self.way == Way::Up { &self.counters.up } else { &self.counters.down };
                    passed.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
            }
        }
    }

    fn flow(&mut self) -> Flow {
        let faults = self.faults.borrow_and_update();
        match self.way {
            _ if self.lost || faults.forgotten != self.born => Flow::Swallow,
            Way::Up => faults.up,
            Way::Down | Way::Both => faults.down,
        }
    }

    fn swallow(&mut self, bytes: usize) {
        self.lost = true;
        self.counters.swallowed.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
