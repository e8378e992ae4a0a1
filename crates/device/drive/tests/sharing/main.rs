//! A drive shared by hosts: access rights, rate limits, attach and detach, and isolation when one
//! host is hostile or dies.
#![allow(unreachable_pub, reason = "modules of one test")]

mod access;
#[path = "../../../../base/rng/tests/choices/mod.rs"]
mod choices;
#[path = "../common/mod.rs"]
mod common;
mod detach;
mod garbage;
mod hostile;
mod processes;
mod rates;
mod rig;
#[path = "../../../../wire/ring/tests/common/mod.rs"]
mod socket;

/// Runs this binary as the other process.
#[test]
fn child() {
    processes::child();
}
