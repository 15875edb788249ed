//! Servers in processes of their own, and what the system and their metrics say of them.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use cosky_core::ServiceInstance;
use cosky_testkit::process::{CoskyServer, ServerOptions};
use tempfile::TempDir;

/// The unit of processor time in `/proc` on every Linux: a hundredth of a second.
const TICK: Duration = Duration::from_millis(10);
/// Bytes of a page of memory.
const PAGE: u64 = 4096;

/// Asks for no credential, and instances live for 3 s when they do not say otherwise.
pub(crate) fn open() -> ServerOptions {
    ServerOptions::default().args(["--no-auth", "--instance-ttl", "3s"])
}

/// At the address of a server that has ended, with nothing of its data, which is to go to the directory given here.
pub(crate) fn without_data(options: ServerOptions, address: SocketAddr, dir: &TempDir) -> ServerOptions {
    options.listen(&address.to_string()).data_dir(dir.path().join("data"))
}

/// What the system says of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    at: Instant,
    pub(crate) files: u64,
    pub(crate) memory: u64,
    busy: Duration,
}

impl Process {
    pub(crate) fn of(pid: u32) -> Self {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
        let memory = read("statm").split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE;
        let stat = read("stat");
        // The name of the program, which may hold blanks, ends with the last parenthesis.
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let busy = [11, 12].map(|at: usize| fields[at].parse::<u32>().unwrap());
        Self { at: Instant::now(), files, memory, busy: TICK * (busy[0] + busy[1]) }
    }

    /// The share of one processor that it used since `before`.
    pub(crate) fn share_since(&self, before: &Self) -> f64 {
        (self.busy - before.busy).as_secs_f64() / (self.at - before.at).as_secs_f64()
    }
}

/// The server's metrics by name and labels; none when it does not answer.
pub(crate) async fn metrics(client: &reqwest::Client, url: &str) -> BTreeMap<String, f64> {
    let Ok(answer) = client.get(format!("{url}/metrics")).send().await else { return BTreeMap::new() };
    let text = answer.text().await.unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

/// The sum of the metrics whose name begins so.
pub(crate) fn sum(metrics: &BTreeMap<String, f64>, name: &str) -> f64 {
    metrics.iter().filter(|(key, _)| key.starts_with(name)).map(|(_, value)| value).sum()
}

/// That it went on from its start to here without a panic.
pub(crate) fn sound(server: &CoskyServer) {
    assert!(!server.log().contains("panicked"), "{}", server.log());
    Process::of(server.pid());
}

/// What a list says of each instance, its remaining life aside.
pub(crate) fn lines(list: &[ServiceInstance]) -> Vec<(String, u32, String)> {
    let line = |i: &ServiceInstance| (i.id().to_string(), i.weight().get(), format!("{:?}", i.metadata()));
    list.iter().map(line).collect()
}
