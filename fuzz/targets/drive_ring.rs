//! A drive against arbitrary input of a host: entries, doorbells, PRP and SGL lists, ranges, admin
//! commands. A well-behaved host beside it must keep its data
//! (`crates/device/controller/tests/alone/sharing/hostile.rs`).
#![no_main]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/device/controller/tests/suite/common/mod.rs"]
mod common;
#[path = "../../crates/device/controller/tests/alone/sharing/garbage.rs"]
mod garbage;
#[path = "../../crates/device/controller/tests/alone/sharing/hostile.rs"]
mod hostile;
#[path = "../../crates/device/controller/tests/alone/sharing/harness.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::fuzz(bytes));
