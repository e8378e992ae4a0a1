//! `sluice kv bench`: the key-value target (thesis section 6.4.3 and Table 4).
//!
//! | file | noun |
//! |---|---|
//! | [`rig`](Rig) | a drive and a key-value target on it |
//! | [`client`](Client) | who carries YCSB's operations out, in virtual or in real time |
//! | [`ycsb`] | workloads A to F: operations per second, latencies |
//! | [`puts`] | values of a chunk through kv and through pblk: throughput and the host's CPU |

pub mod client;
pub mod harness;
pub mod puts;
pub mod ycsb;

pub use client::Client;
pub use harness::KvHarness;

/// The name of the bench in results.
pub(crate) const BENCH: &str = "kv";
