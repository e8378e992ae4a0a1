//! NBD clients that say anything are dropped or answered, and others are served.
//!
//! `SLUICE_SEED=n` replays. The body is that of the fuzz target `nbd` (`fuzz/`).
#![allow(dead_code, unused_imports, unreachable_pub, reason = "modules that other tests share")]

mod body;
use crate::common;

use testkit::choices::{Choices, seed};

#[test]
fn hostile_clients_do_not_disturb_others() {
    let server = common::Served::small();
    for seed in seed()..seed() + 1_000 {
        eprintln!("SLUICE_SEED={seed}");
        body::talk(&server, &mut Choices::seeded(seed));
    }
    assert!(server.ends_well().clients_dropped > 100);
    for bytes in [&b""[..], &[0; 64], &[0xff; 64]] {
        body::fuzz(bytes);
    }
}
