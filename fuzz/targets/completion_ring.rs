//! The host's side of a completion ring, and a drive that writes anything there
//! (`crates/apps/user-io/tests/suite/wire/completions.rs`).
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/apps/user-io/tests/suite/wire/completions.rs"]
mod completions;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| completions::fuzz(bytes));
