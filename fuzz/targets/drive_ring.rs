//! What a drive reads from a host that does anything: entries, doorbells, PRP and SGL lists, ranges, admin
//! commands; beside a host that behaves, whose data stays (`crates/drive/tests/sharing/hostile.rs`).
#![no_main]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/rng/tests/choices/mod.rs"]
mod choices;
#[path = "../../crates/drive/tests/common/mod.rs"]
mod common;
#[path = "../../crates/drive/tests/sharing/garbage.rs"]
mod garbage;
#[path = "../../crates/drive/tests/sharing/hostile.rs"]
mod hostile;
#[path = "../../crates/drive/tests/sharing/rig.rs"]
mod rig;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::fuzz(bytes));
