//! Versions of servers, and which of them this client can work with.

/// The oldest server that has everything this client asks for.
pub(crate) const OLDEST: Version = Version([0, 1, 0]);
/// The version of this client.
pub(crate) const CLIENT: &str = env!("CARGO_PKG_VERSION");

/// Three numbers. What may stand behind them, as in `1.2.0-rc.1`, does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version([u64; 3]);

impl Version {
    /// What a server says of itself; `None` for something else than a version.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let numbers = text.split(['-', '+']).next()?;
        let mut parts = numbers.split('.').map(|part| part.parse().ok());
        let version = Self([parts.next()??, parts.next()??, parts.next()??]);
        parts.next().is_none().then_some(version)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let version = |text| Version::parse(text).unwrap();
        assert!(version("0.9.10") > version("0.9.9") && version("1.0.0-rc.1") > version("0.10.0"));
        assert_eq!(version("1.2.3+build.5"), version("1.2.3"));
        for bad in ["", "1", "1.2", "1.2.3.4", "1.x.3", "test", "-1.2.3"] {
            assert_eq!(Version::parse(bad), None, "{bad:?}");
        }
        assert!(version(CLIENT) >= OLDEST, "a client works with servers of its own version");
    }
}
