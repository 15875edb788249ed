//! Logs: lines on standard error, for people or as JSON.

use std::io;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::exit::usage;

/// The form of a log line: readable, or a JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// What is logged, and how.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// What is logged: a level or a filter such as info,cosky_server=debug [default: info]
    #[arg(long, value_name = "FILTER", env = "COSKY_LOG", hide_env_values = true)]
    pub(crate) log: Option<String>,
    /// Form of the log lines on standard error [default: text]
    #[arg(long, value_name = "FORMAT", env = "COSKY_LOG_FORMAT", hide_env_values = true)]
    pub(crate) log_format: Option<LogFormat>,
}

impl LogFormat {
    /// The word for it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }

    /// Reads the word for it.
    ///
    /// # Errors
    /// When it is another word.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, false).map_err(|_| "must be text or json".to_owned())
    }
}

impl LogArgs {
    /// Starts logging, at `level` when nobody says otherwise.
    ///
    /// # Errors
    /// As [`start`].
    pub(crate) fn start(&self, level: &str) -> anyhow::Result<()> {
        start(self.log.as_deref().unwrap_or(level), self.log_format.unwrap_or(LogFormat::Text))
    }
}

/// Reads a filter.
///
/// # Errors
/// [`crate::exit::Usage`] when it cannot be read.
pub(crate) fn filter(text: &str) -> anyhow::Result<EnvFilter> {
    EnvFilter::try_new(text).map_err(|error| usage(format!("COSKY_LOG or --log: {error}")))
}

/// Starts logging to standard error. To be called once.
///
/// # Errors
/// As [`filter`].
pub(crate) fn start(text: &str, format: LogFormat) -> anyhow::Result<()> {
    use std::io::IsTerminal;

    // A closed standard error must not end the process, so failing to log is not logged.
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter(text)?)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .log_internal_errors(false);
    match format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
    Ok(())
}
