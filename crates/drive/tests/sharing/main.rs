//! A drive that hosts share: what each may do, how fast, how they come and go, and what becomes of
//! the others when one of them is hostile or dies.
#![allow(unreachable_pub, reason = "modules of one test")]

mod access;
#[path = "../../../rng/tests/choices/mod.rs"]
mod choices;
#[path = "../common/mod.rs"]
mod common;
mod detach;
mod garbage;
mod hostile;
mod processes;
mod rates;
mod rig;
#[path = "../../../ring/tests/common/mod.rs"]
mod socket;

/// The other process, when this binary runs itself as one.
#[test]
fn child() {
    processes::child();
}
