//! The NBD server, and clients that say anything (`crates/frontends/nbd/tests/suite/nbd_bytes/body.rs`).
#![no_main]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "modules of a test")]

#[path = "../../crates/frontends/nbd/tests/suite/nbd_bytes/body.rs"]
mod body;
#[path = "../../crates/frontends/nbd/tests/suite/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::fuzz(bytes));
