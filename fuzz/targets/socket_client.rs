//! A client, and a server and drive that say anything (`crates/apps/user-io/tests/suite/wire/liar.rs`).
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/apps/user-io/tests/suite/wire/liar.rs"]
mod liar;
#[path = "../../crates/apps/user-io/tests/suite/wire/message.rs"]
mod message;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| liar::fuzz(bytes));
