//! `sluice serve --socket` and `sluice admin`: drives shared between processes. The server is the built
//! binary in a process of its own; clients are this process' threads, and this binary as a process of
//! its own, of another user where the tests may do that.

mod admin;
mod client_deaths;
mod concurrent_clients;
#[allow(unreachable_pub, reason = "every file uses its own part")]
mod harness;
mod hostile_clients;
mod layers;
mod stats;
mod stopped_server;
