//! Images with changed bytes (`crates/device/media/tests/suite/image_bytes.rs`).
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/device/media/tests/suite/fixture.rs"]
mod fixture;
#[path = "../../crates/device/media/tests/suite/image_bytes.rs"]
mod image_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| image_bytes::fuzz(bytes));
