//! Random programs in verified form never panic and never exceed their stated cost; changed bytes
//! never panic.
//!
//! `SLUICE_SEED=n` replays a seed. The fuzz target `rule_program` (`fuzz/`) runs the same body.

mod body;

use testkit::choices::{Choices, seed};

/// Runs programs from a seed on; returns how many were accepted.
fn run(programs: u64) -> u64 {
    let mut accepted = 0;
    for seed in seed()..seed() + programs {
        let survived = std::panic::catch_unwind(|| body::survives(&mut Choices::seeded(seed)));
        accepted += u64::from(survived.unwrap_or_else(|_| panic!("SLUICE_SEED={seed}")));
    }
    accepted
}

// guarantee: V-13
#[test]
fn random_programs_keep_to_their_stated_cost() {
    let accepted = run(100_000);
    assert!((50_000..99_000).contains(&accepted), "{accepted} accepted");
    for bytes in [&b""[..], &[0; 64], &[0xff; 256]] {
        body::fuzz(bytes);
    }
}

#[test]
#[ignore = "ten million programs take minutes; `make test-long` runs it"]
fn ten_million_programs_keep_to_their_stated_cost() {
    let accepted = run(10_000_000);
    assert!(accepted > 5_000_000, "{accepted} accepted");
}
