//! End to end: the built binary as server, agent and client, over real sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod cli;
mod serve;
mod user;
