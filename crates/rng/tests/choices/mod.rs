//! [`Choices`]: what a test that does anything decides by: a seed, or the bytes of a fuzzer.
//!
//! Guarantee: the same seed or bytes make the same choices. A test takes `Choices` where it would take a
//! generator, and is a fuzz target without another line (`fuzz/`).
#![allow(dead_code, unreachable_pub, reason = "every test uses its own part")]

use rng::Rng;

/// A source of choices.
#[derive(Clone, Debug)]
pub enum Choices {
    /// A generator; it never ends.
    Seeded(Rng),
    /// Bytes, and how many of them have been used. After the last of them every choice is 0.
    Bytes(Vec<u8>, usize),
}

impl Choices {
    /// By a seed.
    pub fn seeded(seed: u64) -> Choices {
        Choices::Seeded(Rng::new(seed))
    }

    /// By bytes: few for a choice between few, so that a fuzzer that changes one changes one choice.
    pub fn of(bytes: &[u8]) -> Choices {
        Choices::Bytes(bytes.to_vec(), 0)
    }

    /// Whether nothing is left to choose by.
    pub fn is_over(&self) -> bool {
        matches!(self, Choices::Bytes(bytes, used) if *used >= bytes.len())
    }

    fn take(&mut self, count: usize) -> u64 {
        match self {
            Choices::Seeded(rng) => rng.next_u64(),
            Choices::Bytes(bytes, used) => {
                let mut word = [0; 8];
                for byte in &mut word[..count] {
                    *byte = bytes.get(*used).copied().unwrap_or(0);
                    *used += 1;
                }
                u64::from_le_bytes(word)
            }
        }
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.take(8)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        match self {
            Choices::Seeded(rng) => rng.below(n),
            Choices::Bytes(..) => {
                let count = (64 - (n - 1).leading_zeros()).div_ceil(8) as usize;
                self.take(count) % n
            }
        }
    }

    /// True with this probability.
    pub fn chance(&mut self, p: f64) -> bool {
        match self {
            Choices::Seeded(rng) => rng.chance(p),
            Choices::Bytes(..) => (self.take(1) as f64) < p * 256.0,
        }
    }
}

/// The seed of a test: `SLUICE_SEED`, or 1.
pub fn seed() -> u64 {
    std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}
