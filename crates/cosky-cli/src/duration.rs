//! Durations as people write them: `1500ms`, `30s`, `15m`, `3h`, `90d`.

use std::time::Duration;

use cosky_core::Ttl;

/// Reads a whole number with a unit.
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let help = "must be a whole number with a unit: ms, s, m, h or d, as in 30s";
    let number: u64 = number.parse().map_err(|_| help.to_owned())?;
    let seconds = match unit {
        "ms" => return Ok(Duration::from_millis(number)),
        "s" => Some(number),
        "m" => number.checked_mul(60),
        "h" => number.checked_mul(3600),
        "d" => number.checked_mul(86_400),
        _ => return Err(help.to_owned()),
    };
    seconds.map(Duration::from_secs).ok_or_else(|| "is too long".to_owned())
}

/// Reads the life of an instance without a beat.
///
/// # Errors
/// As [`parse`], and when it is not whole seconds from 3 to 86,400: beats come every third of it, and below a second a
/// busy moment would already look like a death.
pub(crate) fn parse_ttl(text: &str) -> Result<Ttl, String> {
    let duration = parse(text)?;
    let whole = duration.subsec_nanos() == 0;
    let seconds = i64::try_from(duration.as_secs()).ok().filter(|_| whole);
    seconds
        .and_then(|seconds| Ttl::from_api(seconds).ok())
        .ok_or_else(|| "must be whole seconds from 3s to 24h (beats are sent every third of it)".to_owned())
}

/// Reads a duration of at least a second.
///
/// # Errors
/// As [`parse`], and below a second.
pub(crate) fn parse_second(text: &str) -> Result<Duration, String> {
    let duration = parse(text)?;
    if duration < Duration::from_secs(1) { Err("must be at least 1s".to_owned()) } else { Ok(duration) }
}

/// The shortest form that [`parse`] reads back.
pub(crate) fn show(duration: Duration) -> String {
    if duration.subsec_nanos() > 0 {
        return format!("{}ms", duration.as_millis());
    }
    let seconds = duration.as_secs();
    match [(86_400, 'd'), (3600, 'h'), (60, 'm')].into_iter().find(|(unit, _)| seconds.is_multiple_of(*unit))
    {
        Some((unit, letter)) if seconds > 0 => format!("{}{letter}", seconds / unit),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_reads_back() {
        for text in ["0s", "1500ms", "30s", "15m", "3h", "90d", "90s", "61m"] {
            assert_eq!(show(parse(text).unwrap()), text);
        }
        for bad in
            ["", "s", "30", "-1s", "1.5s", "30 s", "30S", "99999999999999999999s", "300000000000000000d"]
        {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn c27_a_ttl_that_would_flap_is_refused() {
        for bad in ["0s", "-1s", "0", "-1", "1500ms", "3500ms", "2s", "25h", "1d1s", "soon"] {
            assert!(parse_ttl(bad).is_err(), "{bad:?}");
        }
        assert_eq!(parse_ttl("3s").unwrap().seconds(), 3);
        assert_eq!(parse_ttl("3000ms").unwrap().seconds(), 3);
        assert_eq!(parse_ttl("1d").unwrap().seconds(), 86_400);
    }
}
