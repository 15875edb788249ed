//! The step between the agent's fork and the command: ties the command's life to the agent's.
//!
//! A parent-death signal can only be asked for by the child itself, between fork and exec. Doing that in a callback
//! after the fork needs `unsafe`; a short life as `cosky __exec` between the two does not.
//!
//! The system forgets the wish when the command gains rights by being started (setuid, file capabilities), and it covers
//! the command itself, not what that starts.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use rustix::fs::{Access, access};

use crate::{exit::ERROR, output::say};

/// The hidden verb of this step.
pub(crate) const VERB: &str = "__exec";
/// What a shell ends with when a command is there but cannot be run.
const NOT_EXECUTABLE: u8 = 126;
/// What a shell ends with when there is no such command.
const NO_COMMAND: u8 = 127;

/// What starts `command` in such a way that it dies with this process, also when this one is killed.
///
/// To be spawned on the main thread: what counts as the parent's death is the death of the thread that forked.
pub(crate) fn tied(command: &[OsString]) -> Command {
    // The link leads to this very binary, also after another one was put in its place.
    let itself = if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { env::current_exe() };
    let mut step = Command::new(itself.unwrap_or_else(|_| "cosky".into()));
    step.arg0("cosky").arg(VERB).arg(std::process::id().to_string()).args(command);
    step
}

/// Becomes the command. Takes the agent's process id and the command; returns only when that fails.
pub(crate) fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let agent = args.next().and_then(|pid| pid.to_str()?.parse::<i32>().ok());
    let (Some(agent), Some(command)) = (agent, args.next()) else {
        say(format_args!("cosky: {VERB} belongs to cosky agent"));
        return ExitCode::from(crate::exit::USAGE);
    };
    if let Err(error) = tie_to(agent) {
        say(format_args!("cosky agent: cannot tie the command's life to the agent's: {error}"));
        return ExitCode::from(ERROR);
    }
    let error = Command::new(&command).args(args).exec();
    refusal(&command, &error)
}

#[cfg(target_os = "linux")]
fn tie_to(agent: i32) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};

    set_parent_process_death_signal(Some(Signal::KILL))?;
    // An agent that died before the line above sends nothing.
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
    if parent == Some(agent) { Ok(()) } else { Err(io::Error::other("the agent is gone")) }
}

#[cfg(not(target_os = "linux"))]
fn tie_to(_agent: i32) -> io::Result<()> {
    Ok(())
}

/// Looks for `command` as exec does, so that nothing is registered for a command that cannot even start.
///
/// # Errors
/// The code to end with, after it was said why.
pub(crate) fn find(command: &OsStr) -> Result<(), ExitCode> {
    let path = Path::new(command);
    let candidates: Vec<PathBuf> = if path.components().count() > 1 || path.is_absolute() {
        vec![path.to_owned()]
    } else {
        let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        env::split_paths(&path).map(|dir| dir.join(command)).collect()
    };
    let files: Vec<&PathBuf> = candidates.iter().filter(|candidate| candidate.is_file()).collect();
    if files.iter().any(|file| access(*file, Access::EXEC_OK).is_ok()) {
        return Ok(());
    }
    let error = if files.is_empty() {
        io::Error::new(io::ErrorKind::NotFound, "there is no such command")
    } else {
        io::Error::new(io::ErrorKind::PermissionDenied, "it is not executable")
    };
    Err(refusal(command, &error))
}

fn refusal(command: &OsStr, error: &io::Error) -> ExitCode {
    say(format_args!("cosky agent: cannot run {}: {error}", command.display()));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NO_COMMAND } else { NOT_EXECUTABLE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_as_a_shell_finds_them() {
        assert!(find(OsStr::new("sh")).is_ok());
        assert!(find(OsStr::new("/bin/sh")).is_ok());
        assert_eq!(find(OsStr::new("no-such-command")), Err(ExitCode::from(127)));
        assert_eq!(find(OsStr::new("./no-such-command")), Err(ExitCode::from(127)));
        assert_eq!(find(OsStr::new("/etc/passwd")), Err(ExitCode::from(126)));
        assert_eq!(find(OsStr::new("/etc")), Err(ExitCode::from(127)));
    }
}
