//! Sources of rule programs (`crates/host/rules-lang/tests/suite/rule_text/body.rs`).
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/host/rules-lang/tests/suite/rule_text/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::fuzz(bytes));
