//! Tests of the embedded engine as those who use it see it.

mod conformance;
mod faulty;
mod model;
mod world;
