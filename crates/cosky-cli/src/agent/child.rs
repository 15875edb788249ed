//! The command that an agent runs, and the signals that it gets.

use std::{
    ffi::OsString,
    future::poll_fn,
    io::{self, IsTerminal},
    os::unix::process::{CommandExt as _, ExitStatusExt},
    process::{ExitStatus, Stdio},
    task::Poll,
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{self, SignalKind};

use super::exec;

/// A running command. It has a process group of its own: a Ctrl-C at the terminal reaches the agent alone, which
/// deregisters before it passes it on. Killed when dropped.
pub(crate) struct Child {
    process: tokio::process::Child,
    pid: Pid,
}

/// The signals that are passed on.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Child {
    /// Starts `command` with `variables` in its environment. To be called on the main thread.
    ///
    /// # Errors
    /// When the process cannot be made.
    pub(crate) fn start(command: &[OsString], variables: &[(&str, String)]) -> anyhow::Result<Self> {
        let mut start = exec::tied(command);
        start.envs(variables.iter().map(|(name, value)| (name, value)));
        start.process_group(0);
        if io::stdin().is_terminal() {
            // Outside the foreground group a read of the terminal would stop the command for ever.
            start.stdin(Stdio::null());
        }
        let mut start = tokio::process::Command::from(start);
        let process = start.kill_on_drop(true).spawn().context("cannot start the command")?;
        let pid = process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(Self { pid: pid.context("the command has no process id")?, process })
    }

    /// Waits for its end and gives the code that stands for it: its own, or 128 + the signal that ended it.
    /// Cancelling the wait changes nothing.
    ///
    /// # Errors
    /// When the system does not tell.
    pub(crate) async fn wait(&mut self) -> anyhow::Result<u8> {
        self.process.wait().await.map(code).context("cannot wait for the command")
    }

    /// Sends it a signal, unless it has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        // Once waited for, its id may be another process's.
        if self.process.id().is_some()
            && let Err(error) = kill_process(self.pid, signal)
        {
            tracing::warn!(signal = signal.as_raw(), %error, "the command did not take the signal");
        }
    }
}

impl Signals {
    /// Takes over SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1 and SIGUSR2.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn take() -> anyhow::Result<Self> {
        [Signal::TERM, Signal::INT, Signal::QUIT, Signal::HUP, Signal::USR1, Signal::USR2]
            .into_iter()
            .map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<io::Result<_>>()
            .map(Self)
            .context("cannot take over signals")
    }

    /// The next one. Cancelling the wait loses none.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let arrived = self
                .0
                .iter_mut()
                .find_map(|(signal, stream)| stream.poll_recv(context).is_ready().then_some(*signal));
            arrived.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Whether it asks a process to end.
pub(crate) fn ends(signal: Signal) -> bool {
    [Signal::TERM, Signal::INT, Signal::QUIT].contains(&signal)
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(crate::exit::ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_by_signal_is_told_as_shells_tell_it() {
        assert_eq!(code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
        assert_eq!(code(ExitStatus::from_raw(0)), 0);
    }
}
