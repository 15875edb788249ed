//! Sockets: accepting, bounding and draining connections. hyper is driven directly, since axum's own loop bounds nothing
//! and keeps the sockets of event streams.

use std::{convert::Infallible, future::poll_fn, io, pin::Pin, sync::Arc, task::Poll, time::Duration};

use axum::{Router, body::Body};
use cosky_core::Store;
use http::Request;
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{HttpService, service_fn},
};
use hyper_util::rt::TokioTimer;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;

use crate::{
    AppState, Config, Limits, Metrics, ServeError,
    app::app_with,
    handover::{Handover, Stream, Watched},
    metrics::{Counted, Cut},
    middleware, scrape,
};

/// Bytes that a connection buffers in each direction, and so the largest head that is read at all. What is between our
/// own limit of a head and this one is refused with a JSON body, what is above it with a bare 431.
const BUFFER_BYTES: usize = 64 << 10;
/// Open connections to the metrics' own address.
const METRICS_CONNECTIONS: usize = 64;
/// How long accepting rests after an error that is not the peer's (no file descriptors, for one), at first and at most.
const REST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What all connections of a server share.
struct Shared {
    builder: http1::Builder,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
    unacknowledged: Duration,
    /// Cancelled when connections shall end after the request that they are in.
    drain: CancellationToken,
    /// Cancelled when connections shall end now.
    end: CancellationToken,
}

/// Serves until `shutdown` resolves. Then no connection is accepted any more, streams say `draining` and end, requests
/// in flight finish, and what has not ended after [`Config::shutdown_grace`] is cut off; last the store is closed.
/// Dropping the future cuts all connections off at once and leaves the store open.
///
/// # Errors
/// When it cannot start; see [`ServeError`].
pub async fn serve(
    config: Config,
    store: Arc<dyn Store>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    serve_with(config, store, listener, Router::new(), shutdown).await
}

/// As [`serve`], with further routes as in [`crate::app_with`].
///
/// # Errors
/// When it cannot start; see [`ServeError`].
///
/// # Panics
/// When a further route has the path and method of one of ours.
pub async fn serve_with(
    config: Config,
    store: Arc<dyn Store>,
    listener: TcpListener,
    further: Router<AppState>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let address = listener.local_addr().map_err(ServeError::Listener)?;
    if !config.auth && !address.ip().is_loopback() {
        return Err(ServeError::OpenToAll { address });
    }
    let metrics_listener = match config.metrics_listen {
        None => None,
        Some(address) => {
            let bound = TcpListener::bind(address).await;
            Some(bound.map_err(|source| ServeError::MetricsListen { address, source })?)
        }
    };
    let (router, state) = app_with(config, store, further).await?;
    run(&state, router, listener, metrics_listener, shutdown).await;
    state.store.close().await;
    Ok(())
}

async fn run(
    state: &AppState,
    router: Router,
    listener: TcpListener,
    metrics_listener: Option<TcpListener>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let limits = &state.config.limits;
    let end = CancellationToken::new();
    let _end_when_dropped = end.clone().drop_guard();
    let shared = Arc::new(Shared {
        builder: builder(limits),
        tasks: TaskTracker::new(),
        metrics: Arc::clone(&state.metrics),
        unacknowledged: limits.unacknowledged,
        drain: state.streams.draining().clone(),
        end: end.clone(),
    });
    let metrics_router = scrape::alone(state.clone());
    let metrics = async {
        match &metrics_listener {
            None => std::future::pending().await,
            Some(listener) => accept(listener, &metrics_router, METRICS_CONNECTIONS, &shared).await,
        }
    };
    tokio::select! {
        () = shutdown => {}
        () = accept(&listener, &router, limits.connections, &shared) => {}
        () = metrics => {}
    }
    drop((listener, metrics_listener));

    tracing::info!(connections = shared.tasks.len(), "shutting down");
    shared.drain.cancel();
    shared.tasks.close();
    if tokio::time::timeout(state.config.shutdown_grace, shared.tasks.wait()).await.is_err() {
        tracing::warn!(connections = shared.tasks.len(), "cut off after {:?}", state.config.shutdown_grace);
        end.cancel();
        shared.tasks.wait().await;
    }
}

fn builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // A client may close its side as soon as it has asked (`nc -N`), and gets its answer. Who has gone while a
        // stream or a long poll lasts is noticed by `handover`.
        .half_close(true)
        .header_read_timeout(limits.idle)
        .max_buf_size(BUFFER_BYTES.max(2 * limits.header_bytes));
    builder
}

/// Accepts for ever, at most `places` connections at a time.
async fn accept(listener: &TcpListener, router: &Router, places: usize, shared: &Arc<Shared>) {
    let places = Arc::new(Semaphore::new(places));
    let mut rest = REST.0;
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                rest = REST.0;
                let counted = shared.metrics.connection();
                let connection = connection(stream, router.clone(), Arc::clone(shared), (place, counted));
                shared.tasks.spawn(connection);
            }
            Err(error) if is_of_the_peer(&error) => {}
            Err(error) => {
                tracing::warn!("cannot accept connections, trying again in {rest:?}: {error}");
                tokio::time::sleep(rest).await;
                rest = (rest * 2).min(REST.1);
            }
        }
    }
}

/// Serves one connection to its end. When that is a stream, a task of its own sends it, since this one is as large as
/// what hyper needs.
async fn connection(
    stream: TcpStream,
    router: Router,
    shared: Arc<Shared>,
    place: (OwnedSemaphorePermit, Counted),
) {
    if let Err(error) = prepare(&stream, shared.unacknowledged) {
        tracing::debug!("a connection ended before it was served: {error}");
        return;
    }
    let handover = Arc::new(Handover::default());
    let service = service(router, Arc::clone(&handover));
    let connection = shared.builder.serve_connection(Watched::new(stream, Arc::clone(&handover)), service);
    match until_ended(connection, &handover, &shared).await {
        Ok(None) => {}
        Ok(Some((stream, socket))) => {
            let sending = send(stream, socket, Arc::clone(&shared), place);
            shared.tasks.spawn(sending);
        }
        Err(error) => tracing::trace!("a connection ended: {error}"),
    }
}

/// Sends a stream to its end.
async fn send(
    stream: Stream,
    socket: TcpStream,
    shared: Arc<Shared>,
    _place: (OwnedSemaphorePermit, Counted),
) {
    let sent = tokio::select! {
        sent = stream.send(socket) => sent,
        () = shared.end.cancelled() => Ok(()),
    };
    match sent {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            shared.metrics.watcher_cut(Cut::Stuck);
            tracing::debug!("a watcher took nothing for {:?} and was cut off", shared.unacknowledged);
        }
        Err(error) => tracing::trace!("a stream ended: {error}"),
        Ok(()) => {}
    }
}

/// `router` as hyper wants it, streams excepted.
fn service(
    router: Router,
    handover: Arc<Handover>,
) -> impl HttpService<Incoming, ResBody = Body, Error = Infallible, Future: Send> {
    service_fn(move |request: Request<Incoming>| {
        let (router, handover) = (router.clone(), Arc::clone(&handover));
        async move {
            let (method, version) = (request.method().clone(), request.version());
            handover.wait_for_change(middleware::asks_to_wait(&request));
            let response = router.oneshot(request).await?;
            handover.wait_for_change(false);
            Ok(handover.pass(&method, version, response).await)
        }
    })
}

/// Runs a connection to its end, or until it is a stream's.
async fn until_ended<S>(
    mut connection: http1::Connection<Watched, S>,
    handover: &Handover,
    shared: &Shared,
) -> hyper::Result<Option<(Stream, TcpStream)>>
where
    S: HttpService<Incoming, ResBody = Body, Error = Infallible>,
{
    let mut draining = false;
    let stream = loop {
        let step = poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
            Poll::Ready(ended) => Poll::Ready(ended.map(|()| None)),
            Poll::Pending => handover.take().map_or(Poll::Pending, |stream| Poll::Ready(Ok(Some(stream)))),
        });
        tokio::select! {
            ended = step => match ended? {
                Some(stream) => break stream,
                None => return Ok(None),
            },
            () = shared.drain.cancelled(), if !draining => {
                draining = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            () = shared.end.cancelled() => return Ok(None),
        }
    };
    Ok(Some((stream, connection.into_parts().io.into_inner())))
}

/// Small answers go out at once, and a peer that takes nothing is given up by the kernel.
fn prepare(stream: &TcpStream, unacknowledged: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(unacknowledged))
}

/// Errors of `accept` that say something of one connection, not of this process.
fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests {
    use cosky_embedded::{Embedded, Options};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn metrics_are_open_at_their_own_address_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Embedded::open(Options::new(dir.path())).await.unwrap());
        let bind = || TcpListener::bind("127.0.0.1:0");
        let (main, metrics) = (bind().await.unwrap(), bind().await.unwrap());
        let (main_at, metrics_at) = (main.local_addr().unwrap(), metrics.local_addr().unwrap());
        let config = Config {
            metrics_listen: Some(metrics_at),
            root_password: Some("eight888".into()),
            ..Config::default()
        };
        let (router, state) = app_with(config, store, Router::new()).await.unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let served = async { run(&state, router, main, Some(metrics), stopped).await };
        let asked = async {
            let text = get(metrics_at, "/metrics").await;
            assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("cosky_connections"), "{text}");
            assert!(get(metrics_at, "/livez").await.starts_with("HTTP/1.1 404 "));
            assert!(get(metrics_at, "/v1/namespaces").await.starts_with("HTTP/1.1 404 "));
            assert!(get(main_at, "/metrics").await.starts_with("HTTP/1.1 401 "));
            assert!(get(main_at, "/livez").await.starts_with("HTTP/1.1 200 "));
            stop.cancel();
        };
        tokio::join!(served, asked);
    }

    #[test]
    fn an_error_of_the_peer_is_no_reason_to_rest() {
        let of_the_peer = |code| is_of_the_peer(&io::Error::from_raw_os_error(code));
        let (conn_aborted, too_many_files, too_many_files_in_all) = (103, 24, 23);
        assert!(of_the_peer(conn_aborted));
        assert!(!of_the_peer(too_many_files) && !of_the_peer(too_many_files_in_all));
    }
}
