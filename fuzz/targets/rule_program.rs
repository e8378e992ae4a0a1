//! Rule programs in verified form: decoded, verified and run
//! (`crates/device/rules/tests/suite/program_bytes/body.rs`).
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/device/rules/tests/suite/program_bytes/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::fuzz(bytes));
