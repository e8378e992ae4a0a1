//! Volumes with changed bytes (`crates/apps/volume/tests/suite/volume_bytes/body.rs`).
#![no_main]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/apps/volume/tests/suite/volume_bytes/body.rs"]
mod body;
#[path = "../../crates/apps/volume/tests/suite/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::fuzz(bytes));
