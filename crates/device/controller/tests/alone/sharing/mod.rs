//! A drive shared by hosts: access rights, rate limits, attach and detach, and isolation when one
//! host is hostile or dies.
#![allow(unreachable_pub, reason = "modules of one test")]

mod access;
mod detach;
mod doorbell_waits;
mod garbage;
mod harness;
mod hostile;
mod processes;
mod rates;
mod region;
