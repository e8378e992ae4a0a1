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

/// Text of one of the samples with up to eight edits: parts removed, repeated, taken from another sample, and bytes that
/// mean something to parsers.
pub fn mangled(choices: &mut Choices, samples: &[&str]) -> String {
    const PIECES: [&[u8]; 16] = [
        b"[",
        b"]",
        b"=",
        b"\n",
        b"\"",
        b"0",
        b"-1",
        b"99999999999999999999",
        b"1e308",
        b"%",
        b"\0",
        b"\xff",
        b"${",
        b"\xc2\xa0",
        b"#",
        b"{",
    ];
    let any =
        |choices: &mut Choices| samples[choices.below(samples.len() as u64) as usize].as_bytes();
    let mut text = any(choices).to_vec();
    for _ in 0..choices.below(8) {
        let at = choices.below(text.len() as u64 + 1) as usize;
        let end = (at + choices.below(24) as usize).min(text.len());
        let piece = match choices.below(4) {
            0 => Vec::new(),
            1 => text[at..end].repeat(1 + choices.below(3) as usize),
            2 => {
                let other = any(choices);
                let from = choices.below(other.len() as u64 + 1) as usize;
                other[from..(from + choices.below(40) as usize).min(other.len())].to_vec()
            }
            _ => PIECES[choices.below(PIECES.len() as u64) as usize].to_vec(),
        };
        text.splice(at..end, piece);
    }
    String::from_utf8_lossy(&text).into_owned()
}
