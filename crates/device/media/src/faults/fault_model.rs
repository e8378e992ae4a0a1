//! Random failures and bit errors [LightNVM17 §2.2], derived from the medium's seed.
//!
//! Every random value is a function of the seed, of the object operated on, and of the chunk's
//! wear, not of earlier values. So the order of operations does not matter, nothing must be stored
//! across a restart, and two policies on one drive meet the same weak cells. A repeated read of a
//! sector finds the same bit errors, as on a chip whose charge has leaked.

use rng::Rng;
use serde::{Deserialize, Serialize};

use crate::storage::pattern::mix;
use crate::{ChunkId, ErrorModel, NandConfig, PhysSector};

/// The kind of a random value.
#[derive(Clone, Copy)]
enum Stream {
    Factory = 1,
    Program = 2,
    Erase = 3,
    Read = 4,
    Die = 5,
}

/// A generator of random values of one kind.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct StreamRng(u64);

impl StreamRng {
    fn new(seed: u64, stream: Stream) -> StreamRng {
        StreamRng(Rng::new(seed).fork(stream as u64).next_u64())
    }

    /// Returns 64 uniform bits for an object at a wear.
    #[inline]
    fn bits(self, thing: u32, wear: u32) -> u64 {
        mix(self.0 ^ mix((u64::from(wear) << 32 | u64::from(thing)).wrapping_add(self.0)))
    }
}

/// A random event with a fixed probability.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Bernoulli {
    rng: StreamRng,
    /// Probability in units of 2⁻⁵³.
    threshold: u64,
}

impl Bernoulli {
    fn new(rng: StreamRng, p: f64) -> Bernoulli {
        Bernoulli { rng, threshold: (p * (1u64 << 53) as f64) as u64 }
    }

    #[inline]
    fn sample(self, thing: u32, wear: u32) -> bool {
        self.threshold != 0 && self.rng.bits(thing, wear) >> 11 < self.threshold
    }
}

/// An error model with an invalid value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{what} is {value}, but {allowed}")]
pub struct ErrorModelError {
    /// Name of the value.
    pub what: &'static str,
    /// The value.
    pub value: f64,
    /// The allowed values.
    pub allowed: &'static str,
}

impl ErrorModel {
    /// Checks the probabilities and factors.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), ErrorModelError> {
        for (what, value) in [
            ("factory_bad", self.factory_bad),
            ("program_fail", self.program_fail),
            ("erase_fail", self.erase_fail),
            ("die_fail", self.die_fail),
            ("rber", self.rber),
            ("retry_leaves", self.retry_error_fraction),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(ErrorModelError { what, value, allowed: "it is a share from 0 to 1" });
            }
        }
        if !(1.0..=1e12).contains(&self.rber_growth) {
            return Err(ErrorModelError {
                what: "rber_growth",
                value: self.rber_growth,
                allowed: "it is a factor from 1 to 1e12",
            });
        }
        if self.read_retries > READ_RETRIES_MAX {
            return Err(ErrorModelError {
                what: "read_retries",
                value: self.read_retries.into(),
                allowed: "a read is repeated at most 1000 times",
            });
        }
        Ok(())
    }
}

/// Maximum number of read retries.
const READ_RETRIES_MAX: u32 = 1000;

/// Random failures of whole operations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FailureModel {
    factory: Bernoulli,
    program: Bernoulli,
    erase: Bernoulli,
    /// By the first sector that an operation changes.
    die: Bernoulli,
}

impl FailureModel {
    pub(crate) fn new(config: &NandConfig, seed: u64) -> FailureModel {
        let e = &config.errors;
        let chance = |stream, p| Bernoulli::new(StreamRng::new(seed, stream), p);
        // A program succeeds if all its pages do.
        let pages = config.geometry.planes * config.pages_per_program();
        let program = 1.0 - pow_int(1.0 - e.program_fail, pages);
        FailureModel {
            factory: chance(Stream::Factory, e.factory_bad),
            program: chance(Stream::Program, program),
            erase: chance(Stream::Erase, e.erase_fail),
            die: chance(Stream::Die, e.die_fail),
        }
    }

    /// Whether a chunk is factory bad.
    pub(crate) fn is_factory_bad(&self, chunk: ChunkId) -> bool {
        self.factory.sample(chunk.0, 0)
    }

    /// Whether programs can fail at all.
    pub(crate) fn can_programs_fail(&self) -> bool {
        self.program.threshold != 0 || self.die.threshold != 0
    }

    /// Whether the die fails with a program of the unit with this first sector, or an erase of the chunk
    /// with it.
    pub(crate) fn die_fails(&self, first: PhysSector, wear: u32) -> bool {
        self.die.sample(first.0, wear)
    }

    /// Whether the program of the unit with this first sector fails.
    #[inline]
    pub(crate) fn program_fails(&self, first: PhysSector, wear: u32) -> bool {
        self.program.sample(first.0, wear)
    }

    /// Whether an erase fails.
    pub(crate) fn erase_fails(&self, chunk: ChunkId, wear: u32) -> bool {
        self.erase.sample(chunk.0, wear)
    }
}

/// Returns `base` to an integer power, by multiplication only, which is bit-exact on every machine.
fn pow_int(base: f64, power: u32) -> f64 {
    let (mut square, mut result) = (base, 1.0);
    for bit in 0..u32::BITS - power.leading_zeros() {
        if power >> bit & 1 == 1 {
            result *= square;
        }
        square *= square;
    }
    result
}

/// Returns `base` to the power `num / den`, by multiplications and square roots only.
fn pow_ratio(base: f64, num: u32, den: u32) -> f64 {
    let mut result = pow_int(base, num / den);
    // Each binary digit of the fraction selects a repeated square root as a factor.
    let (mut root, mut rest) = (base, u64::from(num % den));
    for _ in 0..40 {
        root = root.sqrt();
        rest *= 2;
        if rest >= u64::from(den) {
            rest -= u64::from(den);
            result *= root;
        }
    }
    result
}

/// Number of cached rates; most chunks have nearly equal wear.
const RATE_CACHE_ENTRIES: usize = 16;

/// Mean above which the number of errors is the mean itself: the standard deviation is 3 % there,
/// and sampling takes time proportional to the mean.
const POISSON_MEAN_MAX: f64 = 1024.0;

/// Raw bit errors of a sector: a Poisson distribution. Its rate grows exponentially with wear,
/// reaches `rber_growth` times the fresh rate at the rated cycles, and continues to grow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BitErrorModel {
    rng: StreamRng,
    fresh: f64,
    growth: f64,
    rated: u32,
    bits: u32,
    ecc_bits: u32,
    /// Wear, and the mean number of errors at that wear.
    rate_cache: [(u32, f64); RATE_CACHE_ENTRIES],
}

impl BitErrorModel {
    /// Creates the model; `None` for a medium without bit errors.
    pub(crate) fn new(config: &NandConfig, seed: u64) -> Option<BitErrorModel> {
        let e = &config.errors;
        let rated = if e.endurance == 0 { config.cell.rated_cycles() } else { e.endurance };
        (e.rber > 0.0).then(|| BitErrorModel {
            rng: StreamRng::new(seed, Stream::Read),
            fresh: e.rber,
            growth: e.rber_growth,
            rated,
            bits: config.geometry.sector_bytes * 8,
            ecc_bits: e.ecc_bits,
            rate_cache: [(u32::MAX, 0.0); RATE_CACHE_ENTRIES],
        })
    }

    /// Returns the bits that ECC corrects.
    pub(crate) fn ecc_bits(&self) -> u32 {
        self.ecc_bits
    }

    /// Returns the mean number of bit errors of a sector at a wear.
    fn mean(&self, wear: u32) -> f64 {
        let rber = self.fresh * pow_ratio(self.growth, wear, self.rated);
        rber.min(0.5) * f64::from(self.bits)
    }

    /// Returns the bit errors of a sector, at `factor` times the rate of freshly written data.
    pub(crate) fn sample_sector(&mut self, phys: PhysSector, wear: u32, factor: f64) -> u32 {
        let slot = wear as usize % RATE_CACHE_ENTRIES;
        if self.rate_cache[slot].0 != wear {
            self.rate_cache[slot] = (wear, self.mean(wear));
        }
        let mean = (self.rate_cache[slot].1 * factor).min(0.5 * f64::from(self.bits));
        if mean > POISSON_MEAN_MAX {
            return mean as u32;
        }
        let errors = Rng::new(self.rng.bits(phys.0, wear)).poisson(mean);
        errors.min(self.bits.into()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn sample(rber: f64, wear: u32, n: u32) -> (f64, f64) {
        let mut config = testing::config();
        config.errors.rber = rber;
        let mut e = BitErrorModel::new(&config, 9).unwrap();
        let (mut sum, mut squares) = (0.0, 0.0);
        for phys in 0..n {
            let bits = f64::from(e.sample_sector(PhysSector(phys), wear, 1.0));
            sum += bits;
            squares += bits * bits;
        }
        let mean = sum / f64::from(n);
        (mean, squares / f64::from(n) - mean * mean)
    }

    #[test]
    fn bit_errors_are_poisson_at_every_mean() {
        // 4096 bits per sector of the test medium; the mean equals the variance.
        for (rber, want) in [(1e-5, 0.04096), (1e-3, 4.096), (0.01, 40.96), (0.1, 409.6)] {
            let n = if want > 100.0 { 5_000 } else { 100_000 };
            let (mean, variance) = sample(rber, 0, n);
            let error = 5.0 * (want / f64::from(n)).sqrt();
            assert!((mean - want).abs() < error, "mean {mean}, not {want}");
            assert!((variance / want - 1.0).abs() < 0.1, "variance {variance}, not {want}");
        }
    }

    #[test]
    fn bit_errors_grow_with_wear_by_the_factor_at_the_rated_cycles() {
        let mut config = testing::config();
        (config.errors.rber, config.errors.rber_growth) = (1e-6, 50.0);
        config.errors.endurance = 2000;
        let e = BitErrorModel::new(&config, 9).unwrap();
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        assert!(near(e.mean(2000) / e.mean(0), 50.0));
        assert!(near(e.mean(1000) / e.mean(0), 50f64.sqrt()));
        assert!(near(e.mean(4000) / e.mean(0), 2500.0), "and on from there");
        config.errors.endurance = 0;
        let e = BitErrorModel::new(&config, 9).unwrap();
        assert!(near(e.mean(config.cell.rated_cycles()) / e.mean(0), 50.0));
    }

    #[test]
    fn powers_are_powers() {
        for (base, num, den) in [(100.0, 0, 7), (100.0, 7, 7), (20.0, 13, 7), (1.0, 5, 3)] {
            let want = f64::powf(base, f64::from(num) / f64::from(den));
            assert!((pow_ratio(base, num, den) / want - 1.0).abs() < 1e-9);
        }
        assert_eq!(
            (pow_int(0.5, 0), pow_int(0.5, 3), pow_int(2.0, 31)),
            (1.0, 0.125, 2147483648.0)
        );
        assert_eq!(pow_int(2.0, u32::MAX), f64::INFINITY);
    }

    #[test]
    fn a_medium_worn_out_of_all_measure_has_a_bit_in_two_wrong() {
        let mut config = testing::config();
        config.errors.rber = 1e-9;
        let mut e = BitErrorModel::new(&config, 9).unwrap();
        assert_eq!(e.sample_sector(PhysSector(3), crate::chunk::WEAR_MAX, 1.0), 512 * 8 / 2);
    }

    #[test]
    fn a_sector_has_the_same_errors_until_its_chunk_is_worn_further() {
        let mut config = testing::config();
        config.errors.rber = 1e-3;
        let (mut a, mut b) =
            (BitErrorModel::new(&config, 9).unwrap(), BitErrorModel::new(&config, 9).unwrap());
        let first: Vec<u32> = (0..100).map(|p| a.sample_sector(PhysSector(p), 3, 1.0)).collect();
        let again: Vec<u32> =
            (0..100).rev().map(|p| b.sample_sector(PhysSector(p), 3, 1.0)).collect();
        assert!(first.iter().eq(again.iter().rev()), "in any order");
        let worn: Vec<u32> = (0..100).map(|p| a.sample_sector(PhysSector(p), 4, 1.0)).collect();
        assert_ne!(first, worn);
    }

    #[test]
    fn certain_and_impossible_are_exact() {
        for (p, want) in [(0.0, 0), (1.0, 1000)] {
            let c = Bernoulli::new(StreamRng::new(1, Stream::Erase), p);
            assert_eq!((0..1000).filter(|i| c.sample(*i, 7)).count(), want);
        }
    }

    #[test]
    fn streams_and_seeds_are_independent() {
        let of = |seed, stream| -> Vec<bool> {
            let c = Bernoulli::new(StreamRng::new(seed, stream), 0.5);
            (0..4000).map(|i| c.sample(i, 0)).collect()
        };
        let same = |a: &[bool], b: &[bool]| a.iter().zip(b).filter(|(a, b)| a == b).count();
        let a = of(1, Stream::Program);
        for b in [of(2, Stream::Program), of(1, Stream::Erase), of(1, Stream::Factory)] {
            assert!((1850..2150).contains(&same(&a, &b)));
        }
    }

    #[test]
    fn shares_outside_of_zero_to_one_are_refused() {
        ErrorModel::default().check().unwrap();
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let e = ErrorModel { erase_fail: bad, ..ErrorModel::default() };
            assert_eq!(e.check().unwrap_err().what, "erase_fail");
            let e = ErrorModel { rber_growth: -bad, ..ErrorModel::default() };
            assert_eq!(e.check().unwrap_err().what, "rber_growth");
        }
    }
}
