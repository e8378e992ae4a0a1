//! `sluice serve --socket` and `sluice admin`: drives shared between processes. The server is the
//! built binary in a process of its own. Clients are threads of this process, and child processes
//! of this test binary, as another user if the tests run as root.

mod admin;
mod client_deaths;
mod concurrent_clients;
#[allow(unreachable_pub, reason = "every file uses its own part")]
mod harness;
mod hostile_clients;
mod layers;
mod stats;
mod stopped_server;
