//! When a drive is in steady state: the rule of SNIA's Performance Test Specification (Solid State Storage
//! Performance Test Specification, section "Steady State"), on throughput and on write amplification.
//!
//! Over a window of five rounds a measure is steady if
//!
//! * the difference of its largest and its smallest value is at most 20 % of its average, and
//! * the line of least squares through its values rises or falls by at most 10 % of the average from the
//!   first round to the last.
//!
//! Beyond the rule, garbage collection must have reclaimed something in every round of the window, where
//! there is any: before the spare space has been used once, writes are as fast as ever, and as steady.

use clock::Nanos;
use serde_json::{Value, json};

/// Rounds of the window.
pub const WINDOW: usize = 5;
/// The largest difference of two values, over the average.
pub const RANGE_MAX: f64 = 0.2;
/// The largest rise of the line through the values, over the average.
pub const SLOPE_MAX: f64 = 0.1;

/// What one round of writes has found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// Bytes that the job moved.
    pub bytes: u64,
    /// How long it took in virtual time.
    pub elapsed: Nanos,
    /// Sectors programmed per sector that was written; `None` without a translation layer.
    pub write_amplification: Option<f64>,
    /// Lines reclaimed; `None` without a translation layer.
    pub lines_reclaimed: Option<u64>,
}

impl Round {
    /// Bytes per second; 0 for a round that took no time.
    pub fn bytes_per_sec(&self) -> f64 {
        match self.elapsed {
            Nanos::ZERO => 0.0,
            elapsed => self.bytes as f64 / elapsed.as_secs_f64(),
        }
    }
}

/// A measure over the rounds of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Mean of the values.
    pub average: f64,
    /// Largest value less the smallest, over the average.
    pub range: f64,
    /// Rise of the line of least squares over the window, over the average; negative if it falls.
    pub slope: f64,
}

impl Spread {
    /// The spread of some values, at least one.
    pub fn from_values(values: &[f64]) -> Spread {
        let n = values.len().max(1) as f64;
        let average = values.iter().sum::<f64>() / n;
        let largest = values.iter().copied().fold(f64::MIN, f64::max);
        let smallest = values.iter().copied().fold(f64::MAX, f64::min);
        let middle = (n - 1.0) / 2.0;
        let (mut products, mut squares) = (0.0, 0.0);
        for (i, value) in values.iter().enumerate() {
            let x = i as f64 - middle;
            products += x * (value - average);
            squares += x * x;
        }
        let rise = if squares > 0.0 { products / squares * (n - 1.0) } else { 0.0 };
        let over = |value: f64| if average == 0.0 { 0.0 } else { value / average };
        Spread { average, range: over(largest - smallest), slope: over(rise) }
    }

    /// Whether the rule holds.
    pub fn is_steady(&self) -> bool {
        self.range <= RANGE_MAX && self.slope.abs() <= SLOPE_MAX
    }
}

/// Whether a drive has come to steady state, and how.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SteadyResult {
    /// Whether the rule holds for the last rounds.
    pub reached: bool,
    /// Every round, in order.
    pub rounds: Vec<Round>,
    /// Throughput of the last rounds in bytes per second; `None` with fewer than a window has.
    pub throughput: Option<Spread>,
    /// Write amplification of the last rounds; `None` without a translation layer too.
    pub write_amplification: Option<Spread>,
}

impl SteadyResult {
    /// Adds a round; returns whether the rule holds now.
    pub fn push(&mut self, round: Round) -> bool {
        self.rounds.push(round);
        let Some(from) = self.rounds.len().checked_sub(WINDOW) else { return false };
        let window = &self.rounds[from..];
        let rates: Vec<f64> = window.iter().map(Round::bytes_per_sec).collect();
        let factors: Option<Vec<f64>> = window.iter().map(|r| r.write_amplification).collect();
        self.throughput = Some(Spread::from_values(&rates));
        self.write_amplification = factors.map(|f| Spread::from_values(&f));
        let collects = window.iter().all(|r| r.lines_reclaimed != Some(0));
        let mut measures = self.throughput.iter().chain(&self.write_amplification);
        self.reached = collects && measures.all(Spread::is_steady);
        self.reached
    }

    /// The result and every round, for JSON.
    pub fn to_json(&self) -> Value {
        let spread =
            |s: &Spread| json!({ "average": s.average, "range": s.range, "slope": s.slope });
        let rounds: Vec<Value> = self
            .rounds
            .iter()
            .map(|r| {
                json!({
                    "bytes": r.bytes,
                    "elapsed_ns": r.elapsed.0,
                    "bytes_per_sec": r.bytes_per_sec(),
                    "write_amplification": r.write_amplification,
                    "lines_reclaimed": r.lines_reclaimed,
                })
            })
            .collect();
        json!({
            "reached": self.reached,
            "missing": self.missing(),
            "throughput": self.throughput.as_ref().map(spread),
            "write_amplification": self.write_amplification.as_ref().map(spread),
            "rounds": rounds,
        })
    }

    /// What the rule misses, in words; none once it holds.
    pub fn missing(&self) -> Vec<String> {
        if self.reached {
            return Vec::new();
        }
        let Some(from) = self.rounds.len().checked_sub(WINDOW) else {
            return vec![format!("{} of {WINDOW} rounds", self.rounds.len())];
        };
        let mut missing = Vec::new();
        if self.rounds[from..].iter().any(|r| r.lines_reclaimed == Some(0)) {
            missing.push("garbage collection in every round".to_owned());
        }
        let measures =
            [("throughput", &self.throughput), ("write amplification", &self.write_amplification)];
        for (name, spread) in measures {
            let Some(s) = spread else { continue };
            if s.range > RANGE_MAX {
                let (range, most) = (s.range * 100.0, RANGE_MAX * 100.0);
                missing.push(format!("{name} within {most:.0} % (range {range:.1} %)"));
            }
            if s.slope.abs() > SLOPE_MAX {
                let (slope, most) = (s.slope * 100.0, SLOPE_MAX * 100.0);
                missing.push(format!("{name} level within {most:.0} % (slope {slope:+.1} %)"));
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(rate: f64, factor: Option<f64>) -> Round {
        Round {
            bytes: (rate * 1e6) as u64,
            elapsed: Nanos::from_secs(1),
            write_amplification: factor,
            lines_reclaimed: factor.map(|_| 1),
        }
    }

    #[test]
    fn the_line_and_the_range_by_hand() {
        // Least squares through 1 … 5 is the line itself: a rise of 4 over an average of 3.
        let s = Spread::from_values(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((s.average, s.range), (3.0, 4.0 / 3.0));
        assert!((s.slope - 4.0 / 3.0).abs() < 1e-12);
        // Up and down again: no slope, and still a range.
        let s = Spread::from_values(&[100.0, 110.0, 122.0, 110.0, 100.0]);
        assert!(s.slope.abs() < 1e-12 && s.range > RANGE_MAX && !s.is_steady());
        let s = Spread::from_values(&[100.0, 110.0, 120.0, 110.0, 100.0]);
        assert!((s.average, s.range) == (108.0, 20.0 / 108.0) && s.is_steady());
        // 97 … 107.1: a rise of 10.1 on 102 is within 10 %; of 10.4 on 102, it is not.
        assert!(Spread::from_values(&[96.95, 99.475, 102.0, 104.525, 107.05]).is_steady());
        assert!(!Spread::from_values(&[96.8, 99.4, 102.0, 104.6, 107.2]).is_steady());
        assert_eq!(Spread::from_values(&[0.0; 5]), Spread { average: 0.0, range: 0.0, slope: 0.0 });
        assert_eq!(Spread::from_values(&[7.0]).slope, 0.0);
    }

    #[test]
    fn both_measures_and_five_rounds_are_needed() {
        let mut result = SteadyResult::default();
        for _ in 0..4 {
            assert!(!result.push(round(100.0, Some(3.0))));
        }
        assert_eq!(result.missing(), ["4 of 5 rounds"]);
        assert!(result.push(round(100.0, Some(3.0))) && result.missing().is_empty());
        // Throughput stays, write amplification does not.
        assert!(!result.push(round(100.0, Some(4.5))));
        let missing = result.missing();
        assert!(missing[0].starts_with("write amplification within 20 %"), "{missing:?}");
        assert!(missing[1].starts_with("write amplification level"), "{missing:?}");
        // The other way round, and of a drive without a translation layer.
        let mut result = SteadyResult::default();
        for rate in [60.0, 70.0, 80.0, 90.0] {
            result.push(round(rate, None));
        }
        assert!(!result.push(round(100.0, None)));
        assert_eq!(result.write_amplification, None);
        assert_eq!(result.missing().len(), 2, "range and slope");
    }

    #[test]
    fn a_drive_that_never_collects_is_not_steady() {
        let mut result = SteadyResult::default();
        let fresh = Round { lines_reclaimed: Some(0), ..round(100.0, Some(1.0)) };
        for _ in 0..8 {
            assert!(!result.push(fresh));
        }
        assert_eq!(result.missing(), ["garbage collection in every round"]);
    }
}
