//! An observer outside of the program: it receives a number when the program has written it and
//! synced. The program is killed, or the device loses its power. After a recovery the file has every
//! number that the observer has received.

// guarantee: B-119

use std::path::{Path, PathBuf};
use std::time::Duration;

use rng::Rng;
use time::Nanos;

use super::harness::{Ended, Gate, Speculating, compile, new_device, recovered};

/// Bytes of a number.
const NUMBER: usize = 8;

/// Cuts since the start of a run, and what the observer has lost by them.
#[derive(Debug, Default)]
struct Observed {
    cuts: u32,
    /// Numbers that the observer received.
    received: usize,
    /// Cuts after which the file lacked a number that the observer has.
    violations: u32,
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks::<NUMBER>();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

struct Observer {
    program: PathBuf,
    at: PathBuf,
    rng: Rng,
    observed: Observed,
}

impl Observer {
    fn new(dir: &Path, seed: u64) -> Observer {
        Observer {
            program: compile("acknowledges", dir),
            at: dir.canonicalize().unwrap().join("at"),
            rng: Rng::new(seed),
            observed: Observed::default(),
        }
    }

    /// Runs the program on a new volume, cuts, and compares.
    fn cut(&mut self, gate: Gate) {
        let how = ["write", "raw", "stream", "child"][self.rng.below(4) as usize];
        let device = new_device(self.rng.below(u64::MAX));
        let latency = Nanos::from_micros(self.rng.below(400));
        let mut running =
            Speculating::start(device, gate, &self.at, &self.program, &[how], |_, control| {
                control.set_latency(latency);
            });
        running.await_output();
        std::thread::sleep(Duration::from_micros(self.rng.below(8000)));
        let (kills, loses_power) =
            [(true, false), (false, true), (true, true), (false, true)][self.rng.below(4) as usize];
        if loses_power {
            running.control.cut();
        }
        if kills {
            running.child.kill().unwrap();
        }
        let Ended { output, device, .. } = running.end();
        let received = numbers(&output);
        assert!(received.is_sorted_by(|one, next| one < next), "{how}: {received:?}");
        let (contents, _) = recovered(device, "numbers");
        let found = numbers(&contents.unwrap_or_default());
        let wanted: Vec<u64> = (1..=received.last().copied().unwrap_or(0)).collect();
        let is_kept = found.len() >= wanted.len() && found[..wanted.len()] == wanted;
        self.observed.cuts += 1;
        self.observed.received += received.len();
        self.observed.violations += u32::from(!is_kept);
    }

    fn run(mut self, cuts: u32, gate: Gate) -> Observed {
        (0..cuts).for_each(|_| self.cut(gate));
        self.observed
    }
}

/// Observers that run at a time in a long test: most of a cut is waiting.
const OBSERVERS: u32 = 8;

/// Cuts in several observers at a time, each with volumes and programs of its own. Returns the sums.
fn run_several(seed: u64, cuts: u32, gate: Gate) -> Observed {
    let observe = |number: u32| {
        let dir = tempfile::tempdir().unwrap();
        let seed = seed.wrapping_add(u64::from(number) << 32);
        Observer::new(dir.path(), seed).run(cuts / OBSERVERS, gate)
    };
    let observed = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..OBSERVERS).map(|number| scope.spawn(move || observe(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    observed.into_iter().fold(Observed::default(), |sum, observed| Observed {
        cuts: sum.cuts + observed.cuts,
        received: sum.received + observed.received,
        violations: sum.violations + observed.violations,
    })
}

/// Returns the seed of a run: `SLUICE_SEED`, or a default.
fn seed() -> u64 {
    std::env::var("SLUICE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(119)
}

#[test]
fn an_observer_has_no_answer_that_a_recovery_lacks() {
    let dir = tempfile::tempdir().unwrap();
    for gate in Gate::all_installed() {
        let observed = Observer::new(dir.path(), seed()).run(100, gate);
        assert_eq!(observed.violations, 0, "{gate:?}, {observed:?}, SLUICE_SEED={}", seed());
        // The program is cut after its first answer.
        assert!(observed.received >= observed.cuts as usize, "{gate:?}, {observed:?}");
    }
}

/// Without the filter answers come before their data is durable, and cuts lose it.
#[test]
fn without_the_gate_an_observer_has_answers_that_a_recovery_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let observed = Observer::new(dir.path(), seed()).run(20, Gate::Removed);
    assert!(observed.violations > 0, "{observed:?}");
}

#[test]
#[ignore = "10,000 cuts take minutes: `make test-long`"]
fn an_observer_has_no_answer_that_a_recovery_lacks_after_many_cuts() {
    for gate in Gate::all_installed() {
        let observed = run_several(seed() ^ 0x10_000, 10_000, gate);
        assert_eq!(observed.violations, 0, "{gate:?}, {observed:?}, SLUICE_SEED={}", seed());
        assert_eq!(observed.cuts, 10_000);
        println!("{gate:?}: {observed:?}");
    }
    let without = run_several(seed(), 200, Gate::Removed);
    assert!(without.violations > 100, "{without:?}");
}
