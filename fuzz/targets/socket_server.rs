//! The server of shared drives, and clients that say anything (`crates/frontends/share-server/tests/suite/rude.rs`).
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/frontends/share-server/tests/suite/harness.rs"]
mod harness;
#[path = "../../crates/frontends/share-server/tests/suite/rude.rs"]
mod rude;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rude::fuzz(bytes));
