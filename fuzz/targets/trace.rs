//! Traces (`crates/apps/workload/tests/suite/trace_text/body.rs`).
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/apps/workload/tests/suite/trace_text/body.rs"]
mod body;

use ::workload;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::fuzz(bytes));
