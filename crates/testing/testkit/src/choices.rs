//! [`Choices`]: the source of a random test's choices: a seed, or the bytes of a fuzzer.
//!
//! Invariant: equal seeds or bytes give equal choices. A test that takes `Choices` instead of a
//! generator is a fuzz target without further code (`fuzz/`).

use rng::Rng;

/// A source of choices.
#[derive(Clone, Debug)]
pub enum Choices {
    /// A generator; it never ends.
    Seeded(Rng),
    /// Bytes, and the number of bytes used. After the last one, every choice is 0.
    Bytes(Vec<u8>, usize),
}

impl Choices {
    /// Creates choices from a seed.
    pub fn seeded(seed: u64) -> Choices {
        Choices::Seeded(Rng::new(seed))
    }

    /// Creates choices from bytes. A choice between few values uses few bytes, so that a changed
    /// byte changes one choice.
    pub fn of(bytes: &[u8]) -> Choices {
        Choices::Bytes(bytes.to_vec(), 0)
    }

    /// Whether all bytes are used.
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

    /// Returns any number.
    pub fn next_u64(&mut self) -> u64 {
        self.take(8)
    }

    /// Returns a number below `n`, which must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        match self {
            Choices::Seeded(rng) => rng.below(n),
            Choices::Bytes(..) => {
                let count = (64 - (n - 1).leading_zeros()).div_ceil(8) as usize;
                self.take(count) % n
            }
        }
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, p: f64) -> bool {
        match self {
            Choices::Seeded(rng) => rng.chance(p),
            Choices::Bytes(..) => (self.take(1) as f64) < p * 256.0,
        }
    }
}

/// Returns the seed of a test: `SLUICE_SEED`, or 1.
pub fn seed() -> u64 {
    std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

/// Text of one of the samples with up to eight edits: parts removed, repeated, taken from another sample, and bytes that
/// mean something to parsers.
pub fn mangled(choices: &mut Choices, samples: &[&str]) -> String {
    const FRAGMENTS: [&[u8]; 16] = [
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
        let fragment = match choices.below(4) {
            0 => Vec::new(),
            1 => text[at..end].repeat(1 + choices.below(3) as usize),
            2 => {
                let other = any(choices);
                let from = choices.below(other.len() as u64 + 1) as usize;
                other[from..(from + choices.below(40) as usize).min(other.len())].to_vec()
            }
            _ => FRAGMENTS[choices.below(FRAGMENTS.len() as u64) as usize].to_vec(),
        };
        text.splice(at..end, fragment);
    }
    String::from_utf8_lossy(&text).into_owned()
}
