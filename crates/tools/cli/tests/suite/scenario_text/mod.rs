//! Parsing a scenario with arbitrary content returns the scenario or an error, and never panics.
//!
//! `SLUICE_SEED=n` replays. The body is that of the fuzz target `scenario` (`fuzz/`).

mod body;

use testkit::choices::{Choices, seed};

#[test]
fn scenarios_of_any_content_are_read_or_refused() {
    let (mut read, mut refused) = (0, 0);
    for seed in seed()..seed() + 4_000 {
        let changed = std::panic::catch_unwind(|| body::changed(&mut Choices::seeded(seed)));
        match changed.unwrap_or_else(|_| panic!("SLUICE_SEED={seed}")) {
            true => read += 1,
            false => refused += 1,
        }
    }
    assert!(read > 200 && refused > 200, "{read} read, {refused} refused");
    for bytes in [&b""[..], b"[", &[0; 64], &[0xff; 64]] {
        body::fuzz(bytes);
    }
}
