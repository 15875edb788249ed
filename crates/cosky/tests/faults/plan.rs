//! Which faults come, in which order, and for how long.

use std::time::Duration;

use cosky_testkit::proxy::{End, Flow, Way};
use rand::{RngExt as _, rngs::StdRng, seq::SliceRandom as _};

pub(crate) const ROUNDS: usize = 20;
/// How long the instance that beats lives without a beat: one that was sent in vain just before the end of a fault (4 s),
/// the one before it (5.5 s) and the next one (at most 1.3 s later) leave 4 s for the fault.
pub(crate) const TTL: Duration = Duration::from_secs(15);

/// What happens between the clients and the server, or to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Bytes come late, and none is lost.
    Delay { least: Duration, jitter: Duration },
    /// Connections break once.
    Cut(End),
    /// Connections break, and new ones break as soon as they stand.
    CutOff(End),
    /// As [`Fault::CutOff`], for longer than a TTL.
    Outlast,
    /// Bytes are lost, and with them their connections, of which nobody is told.
    Swallow(Way),
    /// The network forgets all connections that stand, and tells nobody.
    Forget,
    /// Bytes are not passed on for a while.
    Hold(Way),
    /// Nobody can connect; what stands stays.
    Refuse,
    /// Connections break, and nobody can connect.
    Vanish,
    /// The server is killed, and another one starts with its data at another address.
    Kill,
    /// As [`Fault::Kill`], but the server ends as it should.
    Restart,
}

/// What consumers notice of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    /// All that happens: streams are not touched.
    Clear,
    /// All that happens, later.
    Late,
    /// Their streams are lost, and they know it.
    Lost,
    /// Their streams are silent, which looks like a service in which nothing happens.
    Silent,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    pub(crate) fault: Fault,
    /// How long it lasts at least.
    pub(crate) length: Duration,
}

impl Fault {
    pub(crate) fn sight(self) -> Sight {
        match self {
            Self::Swallow(Way::Up) | Self::Hold(Way::Up) | Self::Refuse => Sight::Clear,
            Self::Delay { .. } | Self::Cut(_) | Self::Forget => Sight::Late,
            Self::CutOff(_) | Self::Outlast | Self::Vanish | Self::Kill | Self::Restart => Sight::Lost,
            Self::Swallow(_) | Self::Hold(_) => Sight::Silent,
        }
    }

    /// Whether streams are lost of which a consumer hears only by their silence, also after the end of the fault.
    pub(crate) fn loses_streams(self) -> bool {
        matches!(self, Self::Forget | Self::Swallow(Way::Down | Way::Both))
    }

    /// What becomes of bytes meanwhile.
    pub(crate) fn flow(self) -> (Way, Flow) {
        match self {
            Self::Delay { least, jitter } => (Way::Both, Flow::Delay { least, jitter }),
            Self::Swallow(way) => (way, Flow::Swallow),
            Self::Hold(way) => (way, Flow::Hold),
            _ => (Way::Both, Flow::Pass),
        }
    }
}

/// Every fault at least once.
pub(crate) fn plan(rng: &mut StdRng) -> Vec<Round> {
    let ms = Duration::from_millis;
    let delay = Fault::Delay { least: ms(rng.random_range(20..200)), jitter: ms(rng.random_range(0..400)) };
    let short = [
        delay,
        Fault::Cut(End::Fin),
        Fault::Cut(End::Reset),
        Fault::CutOff(End::Fin),
        Fault::CutOff(End::Reset),
        Fault::Refuse,
        Fault::Vanish,
        Fault::Forget,
        Fault::Kill,
        Fault::Restart,
    ];
    let silent = [Way::Up, Way::Down, Way::Both].map(|way| [Fault::Swallow(way), Fault::Hold(way)]);
    let mut rounds = Vec::new();
    for fault in short {
        rounds.push(Round { fault, length: ms(rng.random_range(300..1500)) });
    }
    for fault in silent.into_iter().flatten() {
        rounds.push(Round { fault, length: ms(rng.random_range(1000..2500)) });
    }
    rounds.push(Round { fault: Fault::Outlast, length: TTL + ms(1500) });
    while rounds.len() < ROUNDS {
        let fault = short[rng.random_range(0..short.len())];
        rounds.push(Round { fault, length: ms(rng.random_range(300..1500)) });
    }
    rounds.shuffle(rng);
    rounds
}
