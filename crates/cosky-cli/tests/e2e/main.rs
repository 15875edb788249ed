//! End to end: the built binary as server, agent and client, over real sockets.

mod agent;
mod cli;
mod serve;
mod user;
