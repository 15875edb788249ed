//! Tests of the embedded engine as those who use it see it.

mod conformance;
mod durability;
mod faulty;
mod model;
mod open;
mod restart;
mod world;
