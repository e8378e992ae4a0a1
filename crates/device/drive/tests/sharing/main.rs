//! A drive shared by hosts: access rights, rate limits, attach and detach, and isolation when one
//! host is hostile or dies.
#![allow(unreachable_pub, reason = "modules of one test")]

mod access;
#[path = "../common/mod.rs"]
mod common;
mod detach;
mod garbage;
mod hostile;
mod processes;
mod rates;
mod rig;

/// Runs this binary as the other process.
#[test]
fn child() {
    processes::child();
}
