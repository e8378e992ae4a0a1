//! Messages of the socket, either direction: bytes to messages and back
//! (`crates/apps/user-io/tests/suite/wire/message.rs`).
#![no_main]
#![allow(dead_code, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/apps/user-io/tests/suite/wire/message.rs"]
mod message;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| message::fuzz(bytes));
