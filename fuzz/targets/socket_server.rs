//! The server of shared drives, and clients that say anything (`crates/frontends/serve/tests/suite/share/rude.rs`).
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/frontends/serve/tests/suite/share/harness.rs"]
mod harness;
#[path = "../../crates/frontends/serve/tests/suite/share/rude.rs"]
mod rude;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rude::fuzz(bytes));
