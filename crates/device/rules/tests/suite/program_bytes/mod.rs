//! Random programs in verified form never panic and never exceed their stated cost; changed bytes
//! never panic.
//!
//! `SLUICE_SEED=n` replays a seed. The fuzz target `rule_program` (`fuzz/`) runs the same body.

mod body;

use body::Digest;
use testkit::choices::{Choices, seed};

/// The digest of all results of the first 100,000 programs. It changes with the programs, and with
/// the language; a faster engine has the same.
const RESULTS: u64 = 15_722_877_600_994_110_530;

/// Runs programs from a seed on. Returns how many were accepted, and the digest of their results.
fn run(programs: u64) -> (u64, Digest) {
    let (mut accepted, mut digest) = (0, Digest::EMPTY);
    for seed in seed()..seed() + programs {
        let survived = std::panic::catch_unwind(|| body::survives(&mut Choices::seeded(seed)));
        let results = survived.unwrap_or_else(|_| panic!("SLUICE_SEED={seed}"));
        accepted += u64::from(results.is_some());
        digest = results.map_or(digest, |results| digest.then(results));
    }
    (accepted, digest)
}

// guarantee: V-13
#[test]
fn random_programs_keep_to_their_stated_cost() {
    let (accepted, digest) = run(100_000);
    assert!((50_000..99_000).contains(&accepted), "{accepted} accepted");
    if seed() == 1 {
        assert_eq!(digest.get(), RESULTS, "verdicts, actions, operations, counters or tables");
    }
    for bytes in [&b""[..], &[0; 64], &[0xff; 256]] {
        body::fuzz(bytes);
    }
}

#[test]
#[ignore = "ten million programs take minutes; `make test-long` runs it"]
fn ten_million_programs_keep_to_their_stated_cost() {
    let (accepted, _) = run(10_000_000);
    assert!(accepted > 5_000_000, "{accepted} accepted");
}
