//! What the tests of cosky share, as a development dependency only:
//!
//! * [`conformance`]: the cases that every engine must pass, whatever stands behind it;
//! * [`faulty`]: engines that break one promise each, which those cases must reject;
//! * [`ManualClock`]: time that moves when a test says so;
//! * [`disk`]: a disk that fills up, fails and loses power;
//! * [`proxy`]: a network that delays, holds, swallows and cuts, between a client and a server;
//! * [`sim`]: a store, servers and links in virtual time, every fault of them drawn from a seed;
//! * [`process`]: the built `cosky` binary as a server that ends with the test.
//!
//! Its functions panic when something is not as it should be, since a test is what calls them.

mod clock;
#[expect(clippy::unwrap_used, reason = "a case fails by panicking, like the test that runs it")]
pub mod conformance;
pub mod disk;
pub mod faulty;
pub mod process;
pub mod proxy;
pub mod sim;

pub use clock::ManualClock;
