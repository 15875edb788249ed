//! Tests of the embedded engine as those who use it see it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod durability;
mod faulty;
mod identity;
mod model;
mod open;
mod restart;
mod stops;
mod world;
