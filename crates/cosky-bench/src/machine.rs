//! The machine: cores, open files, and what a process uses.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
};

/// Kernel ticks per second in `/proc/PID/stat`; fixed in Linux' interface to programs.
const TICKS_PER_SECOND: u32 = 100;

/// Which core serves and which one makes the load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cores {
    pub(crate) server: usize,
    pub(crate) load: usize,
}

impl Cores {
    /// The first and the last core that this process may use.
    pub(crate) fn find() -> Result<Self> {
        let allowed = sched_getaffinity(None).context("reading the allowed cores")?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let server = cores.next().context("no core is allowed")?;
        Ok(Self { server, load: cores.next_back().unwrap_or(server) })
    }
}

/// Binds this thread to `core`, and with it every thread and process that it starts from now on.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).with_context(|| format!("binding to core {core}"))
}

/// Lets this thread run on both cores again.
pub(crate) fn unpin(cores: Cores) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cores.server);
    set.set(cores.load);
    sched_setaffinity(None, &set).context("binding to both cores")
}

/// Allows `wanted` open files to this process and to what it starts.
pub(crate) fn allow_files(wanted: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
    let new = Rlimit { current: Some(wanted), maximum };
    setrlimit(Resource::Nofile, new).with_context(|| {
        format!("{wanted} open files are needed; raise the hard limit (ulimit -Hn {wanted}) and try again")
    })
}

/// Bytes of memory that `pid` has resident.
pub(crate) fn resident_bytes(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024.0)
}

/// Time that this thread has spent on a core.
pub(crate) fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Time that all threads of `pid` have spent on a core, in steps of 10 ms.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command may hold blanks and brackets, so fields are counted from the last bracket; user time is field 14.
    let (_, fields) = stat.rsplit_once(')').context("no command in stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    ensure!(fields.len() > 12, "short stat");
    let ticks: u32 = fields[11].parse::<u32>()? + fields[12].parse::<u32>()?;
    Ok(Duration::from_secs(1) * ticks / TICKS_PER_SECOND)
}
