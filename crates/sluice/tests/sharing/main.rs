//! `sluice serve --socket` and `sluice admin`: drives shared between processes. The server is the built
//! binary in a process of its own; clients are this process' threads, and this binary as a process of
//! its own, of another user where the tests may do that.

mod admin;
mod deaths;
mod hostile;
mod layers;
#[allow(unreachable_pub, reason = "every file uses its own part")]
mod rig;
mod stats;
mod stopped;
mod together;

/// The other process.
#[test]
fn child() {
    rig::child();
}
