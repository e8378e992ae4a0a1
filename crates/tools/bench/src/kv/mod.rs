//! `sluice kv bench`: benchmarks of the key-value target ([Thesis15 ch. 6 §4.4], table 4).

pub mod client;
pub mod harness;
pub mod puts;
pub mod ycsb;

pub use client::Client;
pub use harness::KvHarness;

/// Name of the benchmark in results.
pub(crate) const BENCH: &str = "kv";
