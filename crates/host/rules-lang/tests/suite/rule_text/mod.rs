//! Sources with changed bytes are compiled or refused, without a panic.
//!
//! `SLUICE_SEED=n` replays a seed. The fuzz target `rule_source` (`fuzz/`) runs the same body.

mod body;

use testkit::choices::{Choices, mangled, seed};

use crate::programs::compiled::{DEMOS, demo};

#[test]
fn changed_programs_are_compiled_or_refused() {
    let texts = DEMOS.map(demo);
    let samples: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut accepted = 0;
    for seed in seed()..seed() + 4_000 {
        let text = mangled(&mut Choices::seeded(seed), &samples);
        let checked = std::panic::catch_unwind(|| body::compiles(text.as_bytes()));
        accepted += u64::from(checked.unwrap_or_else(|_| panic!("SLUICE_SEED={seed}")));
    }
    assert!((200..3_800).contains(&accepted), "{accepted} accepted");
    for bytes in [&b""[..], &[0; 64], &[0xff; 64]] {
        body::fuzz(bytes);
    }
}
