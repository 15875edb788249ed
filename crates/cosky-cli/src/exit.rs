//! Exit codes: one number per kind of end, so that scripts need not read texts.

use std::{fmt, process::ExitCode};

use cosky_core::Error;

/// Something failed, and no other code fits.
pub(crate) const ERROR: u8 = 1;
/// The command line, the environment or a config file holds something unacceptable; nothing was done.
pub(crate) const USAGE: u8 = 2;
/// What was named does not exist.
pub(crate) const NOT_FOUND: u8 = 3;
/// The present state stands against it.
pub(crate) const CONFLICT: u8 = 4;
/// No server answered, or it cannot serve this now.
pub(crate) const UNREACHABLE: u8 = 5;
/// Whoever read our output went away: what a program that does not handle SIGPIPE would end with.
const READER_GONE: u8 = 128 + 13;

/// An unacceptable argument, variable or config entry.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

/// The reader of standard output went away (`| head -1`). Ends the program without a word.
#[derive(Debug)]
pub(crate) struct ReaderGone;

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output any more")
    }
}

impl std::error::Error for ReaderGone {}

/// A [`Usage`] error.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// An error of kind *not found* about `what`.
pub(crate) fn missing(what: impl Into<String>) -> anyhow::Error {
    Error::NotFound { what: what.into() }.into()
}

/// Says what went wrong, when there is somebody to tell, and gives the code to end with.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if error.is::<ReaderGone>() {
        return ExitCode::from(READER_GONE);
    }
    crate::output::say(format_args!("cosky: {}", text(error)));
    if let Some(hint) = hint(error) {
        crate::output::say(format_args!("{hint}"));
    }
    ExitCode::from(code(error))
}

/// The error and its causes, each once: the SDK's texts tell the causes that they are made of.
fn text(error: &anyhow::Error) -> String {
    let mut causes = error.chain().map(ToString::to_string);
    let first = causes.next().unwrap_or_default();
    causes.fold(first, |told, cause| {
        let known = told.ends_with(&cause) || told.contains(&format!(": {cause}: "));
        if known { told } else { format!("{told}: {cause}") }
    })
}

fn code(error: &anyhow::Error) -> u8 {
    if error.is::<Usage>() {
        return USAGE;
    }
    match registry_error(error) {
        Some(Error::InvalidArgument { .. } | Error::TooLarge { .. }) => USAGE,
        Some(Error::NotFound { .. }) => NOT_FOUND,
        Some(Error::Conflict { .. } | Error::Gone { .. }) => CONFLICT,
        Some(Error::Unavailable { .. }) => UNREACHABLE,
        Some(_) => ERROR,
        None => match error.downcast_ref::<cosky::Error>() {
            Some(cosky::Error::Config { .. } | cosky::Error::Period { .. }) => USAGE,
            Some(cosky::Error::NotCosky(_) | cosky::Error::TooOld(_)) => UNREACHABLE,
            _ => ERROR,
        },
    }
}

/// What the registry said, whether it came through the SDK or not.
fn registry_error(error: &anyhow::Error) -> Option<&Error> {
    match error.downcast_ref::<cosky::Error>() {
        Some(cosky::Error::Registry(error)) => Some(error),
        _ => error.downcast_ref(),
    }
}

fn hint(error: &anyhow::Error) -> Option<&'static str> {
    match registry_error(error)? {
        Error::Unauthorized { .. } => {
            Some("log in with `cosky login`, or give a token: COSKY_TOKEN, COSKY_TOKEN_FILE or --token-file")
        }
        Error::Unavailable { maybe_applied: true, .. } => {
            Some("the answer was lost: look whether it was done before you do it again")
        }
        Error::Unavailable { .. } => Some("is the server running, and is COSKY_ADDR or --addr its address?"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_code_also_below_a_context() {
        let of = |error: Error| code(&anyhow::Error::from(error).context("listing"));
        assert_eq!(of(Error::invalid("host", "is bad")), USAGE);
        assert_eq!(of(Error::NotFound { what: "x".into() }), NOT_FOUND);
        assert_eq!(of(Error::Conflict { reason: "x".into() }), CONFLICT);
        assert_eq!(of(Error::Gone { what: "x".into() }), CONFLICT);
        assert_eq!(of(Error::unavailable("x")), UNREACHABLE);
        assert_eq!(of(Error::Unauthorized { reason: "x".into() }), ERROR);
        assert_eq!(of(Error::Exhausted { what: "API tokens", limit: 9 }), ERROR);
        assert_eq!(of(Error::Lagged), ERROR);
        let sdk = |error: Error| code(&anyhow::Error::from(cosky::Error::from(error)));
        assert_eq!(sdk(Error::unavailable("x")), UNREACHABLE);
        assert_eq!(code(&usage("x")), USAGE);
        assert_eq!(code(&anyhow::anyhow!("x")), ERROR);
    }

    #[test]
    fn each_cause_is_told_once() {
        let refused = || std::io::Error::from_raw_os_error(111);
        let reason = format!("http://a cannot be reached: {}", refused());
        let source: Option<std::sync::Arc<dyn std::error::Error + Send + Sync>> =
            Some(std::sync::Arc::new(refused()));
        let error = Error::Unavailable { reason: reason.clone(), maybe_applied: false, source };
        assert_eq!(text(&cosky::Error::from(error).into()), reason);
        assert_eq!(text(&anyhow::anyhow!("b").context("a")), "a: b", "what was not told yet is told");
    }

    #[test]
    fn a_lost_answer_is_not_told_as_nothing_done() {
        let of = |maybe_applied| {
            let error = Error::Unavailable { reason: "x".into(), maybe_applied, source: None };
            hint(&anyhow::Error::from(cosky::Error::from(error))).unwrap()
        };
        assert!(of(true).contains("look whether") && of(false).contains("running"));
    }
}
