//! Opening a volume with changed bytes returns a volume or an error, and never panics.
//!
//! `SLUICE_SEED=n` replays. The body is that of the fuzz target `volume` (`fuzz/`).
#![allow(dead_code, unused_imports, unreachable_pub, reason = "modules that other tests share")]

mod body;
use crate::common;

use testkit::choices::{Choices, seed};

#[test]
fn volumes_with_changed_bytes_are_opened_or_refused() {
    let (mut opened, mut refused) = (0, 0);
    for seed in seed()..seed() + 1_000 {
        let survived = std::panic::catch_unwind(|| body::survives(&mut Choices::seeded(seed)));
        match survived.unwrap_or_else(|_| panic!("SLUICE_SEED={seed}")) {
            true => opened += 1,
            false => refused += 1,
        }
    }
    assert!(opened > 50 && refused > 50, "{opened} opened, {refused} refused");
    for bytes in [&b""[..], &[0; 64], &[0xff; 64]] {
        body::fuzz(bytes);
    }
}
