//! Asks for a password: at the terminal without showing it, or from a file or pipe.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, IsTerminal, Read, Write},
    path::Path,
    thread,
};

use anyhow::Context as _;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

use crate::exit::usage;

/// The most bytes that are read for a password.
const BYTES: u64 = 4096;

/// Gives the terminal its echo back when dropped.
struct Quiet {
    terminal: File,
    before: Termios,
}

impl Quiet {
    fn new(terminal: File) -> io::Result<Self> {
        let before = tcgetattr(&terminal)?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&terminal, OptionalActions::Flush, &quiet)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
    }
}

/// The password of `user`: the first line of `file` (`-` is standard input), or what is typed at the terminal, or the
/// first line of standard input when that is no terminal.
///
/// # Errors
/// [`crate::exit::Usage`] when the file cannot be read or there is no password in it; an error when the terminal fails
/// or Ctrl-C is typed.
pub(crate) async fn password(user: &str, file: Option<&Path>) -> anyhow::Result<String> {
    let password = match file {
        Some(path) if path != Path::new("-") => {
            let open = File::open(path);
            let file = open.map_err(|error| usage(format!("password file {}: {error}", path.display())))?;
            first_line(file).map_err(|error| usage(format!("password file {}: {error}", path.display())))?
        }
        None if io::stdin().is_terminal() => {
            ask(user).await.context("cannot ask for the password at the terminal")?
        }
        _ => first_line(io::stdin()).context("standard input")?,
    };
    if password.is_empty() { Err(usage("the password is empty")) } else { Ok(password) }
}

fn first_line(source: impl Read) -> anyhow::Result<String> {
    let mut line = String::new();
    BufReader::new(source.take(BYTES)).read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// Reads in a thread of its own: a Ctrl-C must end the program, and not before the terminal has its echo back.
async fn ask(user: &str) -> anyhow::Result<String> {
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    let source = terminal.try_clone()?;
    // Before the terminal falls silent: from then on an interrupt has something to undo.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let _quiet = Quiet::new(terminal.try_clone()?)?;
    write!(terminal, "Password of {user}: ")?;
    let (typed, line) = oneshot::channel();
    thread::spawn(move || typed.send(first_line(source)));
    let line = tokio::select! {
        line = line => line.unwrap_or_else(|_| Err(anyhow::anyhow!("nothing was read"))),
        _ = interrupt.recv() => Err(anyhow::anyhow!("interrupted")),
    };
    writeln!(terminal)?;
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_the_first_line_as_it_is() {
        assert_eq!(first_line(&b" a b \r\nc"[..]).unwrap(), " a b ");
        assert_eq!(first_line(&b"x"[..]).unwrap(), "x");
        assert!(first_line(&b"\xff"[..]).is_err());
    }
}
