//! Views in front of servers that misbehave in ways that a good one cannot be made to.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use cosky::{Cosky, LiveView, StoreState};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

/// Answers each watch with the next of its texts, and keeps the connection when `stay` is set.
struct Stub {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

struct Step {
    body: String,
    stay: bool,
}

impl Stub {
    async fn start(steps: Vec<Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let steps = Arc::new(Mutex::new(VecDeque::from(steps)));
        let log = requests.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, steps.clone(), log.clone()));
            }
        });
        Self { url, requests }
    }

    async fn view(&self) -> LiveView {
        let cosky = Cosky::connect(self.url.as_str()).lazy().await.unwrap();
        cosky.namespace("shop").unwrap().discover("stock").await.unwrap()
    }

    /// The `Last-Event-ID` of each watch.
    fn resumed(&self) -> Vec<Option<String>> {
        let id = |request: &String| {
            let mut lines = request.lines();
            lines.find_map(|line| line.strip_prefix("last-event-id: ").map(str::to_owned))
        };
        self.requests.lock().unwrap().iter().map(id).collect()
    }
}

async fn serve(mut stream: TcpStream, steps: Arc<Mutex<VecDeque<Step>>>, requests: Arc<Mutex<Vec<String>>>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        request.push(byte);
    }
    requests.lock().unwrap().push(String::from_utf8(request).unwrap());
    let Some(step) = steps.lock().unwrap().pop_front() else {
        return sleep(Duration::from_secs(60)).await;
    };
    let head = "HTTP/1.1 200 OK\r\nx-cosky-version: test\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(step.body.as_bytes()).await;
    if step.stay {
        sleep(Duration::from_secs(60)).await;
    }
}

fn snapshot(sequence: u64, ports: &[u16], state: &str) -> String {
    let instance = |port: &u16| {
        format!(
            r#"{{"instanceId":"stock@http#h#{port}","serviceId":"stock","schema":"http","host":"h","port":{port},
"weight":1,"isEphemeral":false,"ttlAt":-1,"metadata":{{}}}}"#
        )
        .replace('\n', "")
    };
    let list: Vec<_> = ports.iter().map(instance).collect();
    let list = list.join(",");
    format!(
        "id: 00000000000000aa:{sequence}\nevent: snapshot\ndata: {{\"services\":{{\"stock\":[{list}]}},\"state\":\"{state}\"}}\n\n"
    )
}

fn ports(view: &LiveView) -> Vec<u32> {
    view.snapshot().iter().map(|instance| instance.port().get()).collect()
}

async fn shows(view: &mut LiveView, expected: &[u32]) {
    let wait = async {
        while ports(view) != expected {
            view.changed().await;
        }
    };
    timeout(Duration::from_secs(20), wait).await.unwrap();
}

/// What a server that lost its store remembers may be older than what is shown.
#[tokio::test]
async fn the_snapshot_of_a_stale_server_replaces_nothing() {
    let steps = vec![
        Step { body: snapshot(5, &[1, 2], "live"), stay: false },
        Step { body: snapshot(3, &[], "stale"), stay: true },
        Step { body: snapshot(9, &[2], "live"), stay: true },
    ];
    let stub = Stub::start(steps).await;
    let mut view = stub.view().await;
    assert_eq!(ports(&view), [1, 2]);
    let mut seen = Vec::new();
    while ports(&view) != [2] {
        timeout(Duration::from_secs(20), view.changed()).await.unwrap();
        seen.push((ports(&view), view.state()));
    }
    assert!(seen.iter().all(|(ports, _)| !ports.is_empty()), "{seen:?}");
    assert!(seen.contains(&(vec![1, 2], StoreState::Stale)), "{seen:?}");
    assert_eq!(view.state(), StoreState::Live);
}

/// An event that cannot be read must not be met again and again by resuming before it.
#[tokio::test]
async fn after_an_unreadable_event_the_view_begins_anew() {
    let broken = "id: 00000000000000aa:6\nevent: instance\ndata: {\n\n";
    let steps = vec![
        Step { body: snapshot(5, &[1], "live") + broken, stay: true },
        Step { body: snapshot(7, &[1, 2], "live"), stay: true },
    ];
    let stub = Stub::start(steps).await;
    let mut view = stub.view().await;
    shows(&mut view, &[1, 2]).await;
    assert_eq!(stub.resumed(), [None, None]);
}

/// A large snapshot of a server that was started anew takes a while; until then what is shown is old, and says so.
#[tokio::test]
async fn while_a_snapshot_is_on_its_way_nothing_old_is_live() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (go, gone) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        let first = VecDeque::from([Step { body: snapshot(5, &[1], "live"), stay: false }]);
        let (stream, _) = listener.accept().await.unwrap();
        serve(stream, Arc::new(Mutex::new(first)), Arc::default()).await;
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = "HTTP/1.1 200 OK\r\nx-cosky-version: test\r\nx-cosky-resumed: false\r\n\
                    content-type: text/event-stream\r\nconnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let text = snapshot(7, &[1, 2], "live");
        let (begin, end) = text.split_at(40);
        stream.write_all(begin.as_bytes()).await.unwrap();
        gone.await.unwrap();
        stream.write_all(end.as_bytes()).await.unwrap();
        sleep(Duration::from_secs(60)).await;
    });
    let mut view = Stub { url, requests: Arc::default() }.view().await;
    let stale = async {
        while view.state() != StoreState::Stale {
            view.changed().await;
        }
    };
    timeout(Duration::from_secs(20), stale).await.unwrap();
    let calm = timeout(Duration::from_secs(2), view.changed()).await;
    assert!(calm.is_err() && view.state() == StoreState::Stale && ports(&view) == [1]);
    go.send(()).unwrap();
    shows(&mut view, &[1, 2]).await;
    assert_eq!(view.state(), StoreState::Live);
}

#[tokio::test]
async fn a_stream_that_ends_is_resumed_after_the_last_change() {
    let steps = vec![
        Step { body: snapshot(5, &[1], "live"), stay: false },
        Step { body: snapshot(7, &[1, 2], "live"), stay: true },
    ];
    let stub = Stub::start(steps).await;
    let mut view = stub.view().await;
    shows(&mut view, &[1, 2]).await;
    assert_eq!(stub.resumed(), [None, Some("00000000000000aa:5".to_owned())]);
}

/// A server that is newer than this client may say more.
#[tokio::test]
async fn unknown_events_and_fields_are_passed_over() {
    let unknown = "id: 00000000000000aa:6\nevent: weather\ndata: sunny\nmood: good\n\n: comment\n\n";
    let change = "id: 00000000000000aa:7\nevent: instance\ndata: {\"op\":\"deregister\",\"serviceId\":\"stock\",\
                  \"instanceId\":\"stock@http#h#1\",\"instance\":null,\"more\":1}\n\n";
    let steps = vec![Step { body: snapshot(5, &[1, 2], "live") + unknown + change, stay: true }];
    let stub = Stub::start(steps).await;
    let mut view = stub.view().await;
    shows(&mut view, &[2]).await;
    assert_eq!((view.state(), stub.resumed().len()), (StoreState::Live, 1));
}
