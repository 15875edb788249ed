//! Files that hold a token or a password.

use std::{path::Path, time::SystemTime};

use cosky_core::{Error, Result};

/// The most bytes of such a file.
const BYTES: u64 = 64 * 1024;

/// Tells whether a file changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    modified: Option<SystemTime>,
    bytes: u64,
}

/// Reads a small file off the runtime's threads, without the white space around its text; `None` when it looks as
/// `known` did.
///
/// # Errors
/// [`Error::Unauthorized`] when it cannot be read or is empty.
pub(crate) async fn read(path: &Path, known: Option<Mark>) -> Result<Option<(Mark, String)>> {
    use std::io::Read as _;

    let path = path.to_owned();
    let shown = path.display().to_string();
    let read = move || -> std::io::Result<Option<(Mark, String)>> {
        let file = std::fs::File::open(&path)?;
        let about = file.metadata()?;
        let mark = Mark { modified: about.modified().ok(), bytes: about.len() };
        if known == Some(mark) {
            return Ok(None);
        }
        let mut text = String::new();
        file.take(BYTES).read_to_string(&mut text)?;
        Ok(Some((mark, text.trim().to_owned())))
    };
    let read = tokio::task::spawn_blocking(read).await;
    let read = read.map_err(|_| Error::unavailable("the runtime is shutting down"))?;
    match read {
        Ok(Some((_, text))) if text.is_empty() => {
            Err(Error::Unauthorized { reason: format!("{shown} is empty") })
        }
        Ok(read) => Ok(read),
        Err(error) => Err(Error::Unauthorized { reason: format!("{shown} cannot be read: {error}") }),
    }
}
