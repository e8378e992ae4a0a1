//! Scenarios (`crates/tools/cli/tests/suite/scenario_text/body.rs`).
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/tools/cli/tests/suite/scenario_text/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::fuzz(bytes));
