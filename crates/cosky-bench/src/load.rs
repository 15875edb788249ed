//! Load of a bounded time: many connections that each wait for their answer, or beats at a steady pace.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use tokio::task::JoinSet;

use crate::{client::Connection, machine};

/// What a load achieved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Answers with status 200; any other ends the bench.
    pub(crate) answers: u64,
    /// How long the server's threads were on a core for them.
    pub(crate) server_cpu: Duration,
}

impl Load {
    /// Answers per second of the server's time on a core. Other processes on the machine take time from a core, but
    /// hardly change how much of it an answer needs.
    pub(crate) fn per_core_second(&self) -> f64 {
        self.answers as f64 / self.server_cpu.as_secs_f64()
    }
}

/// `connections` connections send `requests`, each in turn from a place of its own, for `duration`.
pub(crate) async fn closed_loop(
    address: SocketAddr,
    pid: u32,
    connections: usize,
    requests: &Arc<Vec<Vec<u8>>>,
    duration: Duration,
) -> Result<Load> {
    let mut open = Vec::with_capacity(connections);
    for _ in 0..connections {
        open.push(Connection::open(address).await?);
    }
    let cpu = machine::cpu_time(pid)?;
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (number, mut connection) in open.into_iter().enumerate() {
        let requests = Arc::clone(requests);
        tasks.spawn(async move {
            let mut answers = 0;
            let mut at = number * requests.len() / connections;
            while start.elapsed() < duration {
                let status = connection.status_of(&requests[at]).await?;
                ensure!(status == 200, "request {at} is answered {status}");
                at = (at + 1) % requests.len();
                answers += 1;
            }
            Ok(answers)
        });
    }
    let mut answers = 0;
    for outcome in tasks.join_all().await {
        answers += outcome?;
    }
    Ok(Load { answers, server_cpu: machine::cpu_time(pid)? - cpu })
}

/// Sends `requests` in turn, `per_second` of them, from a thread of its own over ten connections. The result is each
/// one's time: from its turn on, when the one before it was late.
///
/// # Errors
/// When one is not answered 200 within ten seconds.
pub(crate) fn paced(
    address: SocketAddr,
    requests: Vec<Vec<u8>>,
    per_second: u32,
    duration: Duration,
) -> thread::JoinHandle<Result<Vec<Duration>>> {
    thread::spawn(move || {
        let mut connections = Vec::new();
        for _ in 0..10 {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            connections.push(stream);
        }
        let pause = Duration::from_secs(1) / per_second;
        let start = Instant::now();
        let mut times = Vec::new();
        let mut answer = [0; 4096];
        for turn in 0.. {
            let due = start + pause * turn;
            let now = Instant::now();
            if now >= start + duration {
                break;
            }
            let begin = if due > now {
                thread::sleep(due - now);
                Instant::now()
            } else {
                due
            };
            let turn = turn as usize;
            let connection = &mut connections[turn % 10];
            connection.write_all(&requests[turn % requests.len()])?;
            // An answer to a beat is far smaller than a segment of the loopback interface, so it comes in one piece.
            let read = connection.read(&mut answer)?;
            ensure!(
                answer[..read].starts_with(b"HTTP/1.1 200"),
                "a beat is answered {:?}",
                String::from_utf8_lossy(&answer[..read])
            );
            times.push(begin.elapsed());
        }
        Ok(times)
    })
}

/// The value below which `share` of `values` lie.
///
/// # Panics
/// When there are none.
pub(crate) fn percentile<T: Ord + Copy>(values: &mut [T], share: f64) -> T {
    values.sort_unstable();
    let last = values.len() - 1;
    values[((values.len() as f64 * share).ceil() as usize).saturating_sub(1).min(last)]
}

/// The middle one.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let mut values: Vec<u32> = (1..=1000).rev().collect();
        assert_eq!(percentile(&mut values, 0.99), 990);
        assert_eq!(percentile(&mut values, 0.5), 500);
        assert_eq!(percentile(&mut [7], 0.99), 7);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
    }
}
