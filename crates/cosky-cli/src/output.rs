//! What a verb prints: a table for people or JSON for programs, and never a panic when nobody reads it.

use std::{
    fmt::{self, Write as _},
    io::{self, Write as _},
};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use cosky_core::is_invisible;
use serde::Serialize;

use crate::exit::ReaderGone;

/// The form of what a verb prints: columns for people, or JSON for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Json,
}

/// Writes `text` to standard output, as it is.
///
/// # Errors
/// [`ReaderGone`] when the other end of the pipe is closed; the error of the write otherwise.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(unwritten)
}

/// What it means that standard output did not take something.
pub(crate) fn unwritten(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => ReaderGone.into(),
        _ => anyhow::Error::new(error).context("cannot write to standard output"),
    }
}

/// Prints a line of JSON.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json<T: Serialize + ?Sized>(value: &T) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    print(&text)
}

/// Prints rows under a line of headings; the headings alone, when there is no row.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_table(
    headings: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.iter().copied());
    for row in rows {
        table.add_row(row.iter().map(|cell| visible(cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = String::new();
    for line in table.lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    print(&text)
}

/// Writes a line to standard error. There is nobody to tell when that fails.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// `text` without anything that a terminal would obey, or that nobody would see.
pub(crate) fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_invisible(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// Seconds as people say them: `29s`, `4m10s`, `2h05m`, `3d04h`.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_that_is_shown() {
        assert_eq!(visible("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\u{a}");
        assert_eq!(visible("é {x}"), "é {x}");
    }

    #[test]
    fn what_turns_or_hides_text_is_shown_as_what_it_is() {
        assert_eq!(
            visible("a\u{202e}txt\u{2028}b\u{200b}\u{feff}"),
            "a\\u{202e}txt\\u{2028}b\\u{200b}\\u{feff}"
        );
    }

    #[test]
    fn spans_are_short() {
        assert_eq!([0, 59, 60, 3661, 90_000].map(span), ["0s", "59s", "1m00s", "1h01m", "1d01h"]);
    }
}
