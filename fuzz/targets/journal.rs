//! Journals with changed bytes (`crates/device/ftl/tests/suite/journal/bytes.rs`).
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/device/ftl/tests/suite/journal/bytes.rs"]
mod bytes;
#[path = "../../crates/device/ftl/tests/suite/journal/damage.rs"]
mod damage;
#[path = "../../crates/device/ftl/tests/suite/journal/flash.rs"]
mod flash;
#[path = "../../crates/device/ftl/tests/suite/journal/format.rs"]
mod format;
#[path = "../../crates/device/ftl/tests/suite/journal/model.rs"]
mod model;
#[path = "../../crates/device/ftl/tests/suite/journal/script.rs"]
mod script;

libfuzzer_sys::fuzz_target!(|input: &[u8]| bytes::fuzz(input));
