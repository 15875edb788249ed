//! What each fault does to a connection to a server that sends everything back.

use tokio::time::timeout;

use super::*;

/// For what must come.
const PATIENCE: Duration = Duration::from_secs(10);
/// For what must not come.
const QUIET: Duration = Duration::from_millis(150);

/// Sends back what it gets, and ends its stream when the client does.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
    address
}

async fn connect(proxy: &FaultProxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.unwrap()
}

/// What comes next; empty at the end of the stream.
async fn hear(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 1024];
    let count = timeout(PATIENCE, stream.read(&mut bytes)).await.expect("something comes")?;
    bytes.truncate(count);
    Ok(bytes)
}

async fn hears_nothing(stream: &mut TcpStream) {
    assert!(timeout(QUIET, stream.read(&mut [0; 1])).await.is_err(), "nothing comes");
}

async fn echoes(stream: &mut TcpStream, text: &[u8]) {
    stream.write_all(text).await.unwrap();
    let mut heard = Vec::new();
    while heard.len() < text.len() {
        heard.extend(hear(stream).await.unwrap());
    }
    assert_eq!(heard, text);
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("waited for: {what}"));
}

#[tokio::test]
async fn without_faults_everything_passes_and_is_counted() {
    let proxy = FaultProxy::before(echo().await, 1).await;
    let mut stream = connect(&proxy).await;
    echoes(&mut stream, b"hello").await;
    // More than waits in the proxy, written and read at the same time.
    let (mut from, mut to) = stream.split();
    let big: Vec<u8> = (0..3_000_000_u32).map(|at| at as u8).collect();
    let mut heard = Vec::new();
    let write = async {
        to.write_all(&big).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let both = async { tokio::join!(write, from.read_to_end(&mut heard)).1 };
    timeout(PATIENCE, both).await.expect("all of it comes, and its end").unwrap();
    assert!(heard == big);
    until("it is closed", || proxy.counts().open == 0).await;
    let bytes = 5 + big.len() as u64;
    assert_eq!(proxy.counts(), Counts { accepted: 1, open: 0, up: bytes, down: bytes, swallowed: 0 });
}

#[tokio::test]
async fn a_delay_keeps_the_order_and_the_rate() {
    let proxy = FaultProxy::before(echo().await, 7).await;
    let mut stream = connect(&proxy).await;
    echoes(&mut stream, b"before").await;
    let (least, jitter) = (Duration::from_millis(300), Duration::from_millis(300));
    proxy.set(Way::Down, Flow::Delay { least, jitter });
    let start = Instant::now();
    let text: Vec<u8> = (0..30).collect();
    for piece in text.chunks(1) {
        stream.write_all(piece).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut heard = Vec::new();
    while heard.len() < text.len() {
        heard.extend(hear(&mut stream).await.unwrap());
        assert!(start.elapsed() >= least, "{:?}", start.elapsed());
    }
    assert_eq!(heard, text);
    // They waited together and not one after the other.
    assert!(start.elapsed() < 10 * least, "{:?}", start.elapsed());
    proxy.heal().await;
    echoes(&mut stream, b"after").await;
}

#[test]
fn a_seed_draws_its_delays_again() {
    let flow = Flow::Delay { least: Duration::from_millis(10), jitter: Duration::from_millis(5) };
    let draw = |seed| {
        let mut rng = StdRng::seed_from_u64(seed);
        [0; 8].map(|_| flow.draw(&mut rng))
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    let range = Duration::from_millis(10)..=Duration::from_millis(15);
    assert!(draw(3).iter().all(|delay| range.contains(delay)), "{:?}", draw(3));
}

#[tokio::test]
async fn what_is_held_comes_when_it_is_lifted() {
    let proxy = FaultProxy::before(echo().await, 1).await;
    let mut stream = connect(&proxy).await;
    for way in [Way::Up, Way::Down, Way::Both] {
        let before = proxy.counts();
        proxy.set(way, Flow::Hold);
        stream.write_all(b"held").await.unwrap();
        hears_nothing(&mut stream).await;
        let up = proxy.counts().up - before.up;
        assert_eq!(up, if way == Way::Down { 4 } else { 0 }, "{way:?}");
        let mut new = connect(&proxy).await;
        new.write_all(b"new").await.unwrap();
        hears_nothing(&mut new).await;
        proxy.heal().await;
        assert_eq!(hear(&mut stream).await.unwrap(), b"held");
        assert_eq!(hear(&mut new).await.unwrap(), b"new");
    }
    // The end of a stream is held as its bytes are.
    proxy.set(Way::Both, Flow::Hold);
    stream.shutdown().await.unwrap();
    hears_nothing(&mut stream).await;
    proxy.heal().await;
    assert_eq!(hear(&mut stream).await.unwrap(), b"");
}

#[tokio::test]
async fn what_is_swallowed_never_comes_and_its_connection_stays_lost() {
    let proxy = FaultProxy::before(echo().await, 1).await;
    for way in [Way::Up, Way::Down, Way::Both] {
        let (mut talks, mut idle) = (connect(&proxy).await, connect(&proxy).await);
        echoes(&mut talks, b"before").await;
        echoes(&mut idle, b"before").await;
        let before = proxy.counts();
        proxy.set(way, Flow::Swallow);
        talks.write_all(b"lost").await.unwrap();
        hears_nothing(&mut talks).await;
        assert_eq!(proxy.counts().swallowed - before.swallowed, 4);
        proxy.heal().await;
        talks.write_all(b"again").await.unwrap();
        hears_nothing(&mut talks).await;
        echoes(&mut idle, b"lost nothing").await;
        echoes(&mut connect(&proxy).await, b"new").await;
        proxy.cut(End::Fin);
        until("nothing is left of them", || proxy.counts().open == 0).await;
    }
}

#[tokio::test]
async fn a_forgotten_connection_is_lost_even_when_it_was_idle() {
    let proxy = FaultProxy::before(echo().await, 1).await;
    let mut idle = connect(&proxy).await;
    echoes(&mut idle, b"before").await;
    proxy.forget();
    echoes(&mut connect(&proxy).await, b"new").await;
    idle.write_all(b"lost").await.unwrap();
    hears_nothing(&mut idle).await;
    assert_eq!((proxy.counts().swallowed, proxy.counts().open), (4, 1));
    drop(idle);
    proxy.cut(End::Fin);
    until("nothing is left of it", || proxy.counts().open == 0).await;
}

#[tokio::test]
async fn what_is_delayed_is_held_and_swallowed_too() {
    let proxy = FaultProxy::before(echo().await, 1).await;
    let mut stream = connect(&proxy).await;
    let later = Flow::Delay { least: Duration::from_millis(200), jitter: Duration::ZERO };
    proxy.set(Way::Down, later);
    stream.write_all(b"held").await.unwrap();
    until("it waits", || proxy.counts().up == 4).await;
    proxy.set(Way::Down, Flow::Hold);
    assert!(timeout(2 * QUIET, stream.read(&mut [0; 1])).await.is_err());
    proxy.set(Way::Down, later);
    assert_eq!(hear(&mut stream).await.unwrap(), b"held");
    stream.write_all(b"lost").await.unwrap();
    until("it waits", || proxy.counts().up == 8).await;
    // The server answers within this, and what it answers waits in the proxy.
    tokio::time::sleep(Duration::from_millis(50)).await;
    proxy.set(Way::Down, Flow::Swallow);
    until("it is swallowed", || proxy.counts().swallowed == 4).await;
}

#[tokio::test]
async fn a_cut_ends_what_stands_in_the_way_that_was_asked_for() {
    let proxy = FaultProxy::before(echo().await, 1).await;
    for (how, held) in [(End::Fin, false), (End::Fin, true), (End::Reset, false), (End::Reset, true)] {
        let mut stream = connect(&proxy).await;
        echoes(&mut stream, b"before").await;
        if held {
            proxy.set(Way::Both, Flow::Hold);
            stream.write_all(b"unread").await.unwrap();
        }
        proxy.cut(how);
        match (how, hear(&mut stream).await) {
            (End::Fin, Ok(heard)) => assert_eq!(heard, b""),
            (End::Reset, Err(error)) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
            (how, heard) => panic!("{how:?}: {heard:?}"),
        }
        proxy.heal().await;
        echoes(&mut connect(&proxy).await, b"new ones are let through").await;
        proxy.cut(End::Fin);
    }
}

#[tokio::test]
async fn new_connections_are_turned_away_and_old_ones_stay() {
    let proxy = FaultProxy::before(echo().await, 1).await;
    let mut old = connect(&proxy).await;
    echoes(&mut old, b"before").await;
    proxy.turn_away(Some(End::Fin));
    assert_eq!(hear(&mut connect(&proxy).await).await.unwrap(), b"");
    proxy.turn_away(Some(End::Reset));
    // The reset may be there before the connection is given to the client.
    let error = match TcpStream::connect(proxy.address()).await {
        Ok(mut stream) => hear(&mut stream).await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    echoes(&mut old, b"still").await;
    proxy.heal().await;
    echoes(&mut connect(&proxy).await, b"again").await;
}

#[tokio::test]
async fn a_closed_port_refuses_and_is_the_same_when_it_opens_again() {
    let proxy = FaultProxy::before(echo().await, 1).await;
    let mut old = connect(&proxy).await;
    echoes(&mut old, b"before").await;
    for _ in 0..3 {
        proxy.refuse().await;
        let error = TcpStream::connect(proxy.address()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let taken = TcpListener::bind(proxy.address()).await.map(drop).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        echoes(&mut old, b"still").await;
        proxy.heal().await;
        echoes(&mut connect(&proxy).await, b"again").await;
    }
}

#[tokio::test]
async fn it_can_be_aimed_elsewhere() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = FaultProxy::before(nobody, 1).await;
    let error = hear(&mut connect(&proxy).await).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "nobody listens behind it");
    proxy.aim(echo().await);
    let mut old = connect(&proxy).await;
    echoes(&mut old, b"there").await;
    proxy.aim(nobody);
    echoes(&mut old, b"stays there").await;
}

#[tokio::test]
async fn its_end_closes_the_port_and_every_connection() {
    let proxy = FaultProxy::before(echo().await, 1).await;
    let address = proxy.address();
    let mut stream = connect(&proxy).await;
    echoes(&mut stream, b"before").await;
    drop(proxy);
    assert_eq!(hear(&mut stream).await.unwrap_or_default(), b"");
    until("the port is closed", || std::net::TcpStream::connect(address).is_err()).await;
}
