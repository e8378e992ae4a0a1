//! Detection of steady state by the rule of \[SNIAPTS\], section "Steady State", on throughput and on
//! write amplification.
//!
//! Over a window of five rounds a measure is steady if
//!
//! * the difference between its maximum and minimum is at most 20 % of its average, and
//! * the least-squares line through its values rises or falls by at most 10 % of the average from
//!   the first round to the last.
//!
//! In addition to the rule, garbage collection, if there is any, must have reclaimed a line in
//! every round of the window. Before the spare space has been used once, writes are fast and steady
//! without it.

use serde_json::{Value, json};
use time::Nanos;

/// Number of rounds in the window.
pub const WINDOW: usize = 5;
/// Maximum difference between two values, relative to the average.
pub const RANGE_MAX: f64 = 0.2;
/// Maximum rise of the line through the values, relative to the average.
pub const SLOPE_MAX: f64 = 0.1;

/// Measurements of one round of writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// Bytes that the job transferred.
    pub bytes: u64,
    /// Length of the round in virtual time.
    pub elapsed: Nanos,
    /// Sectors programmed per host sector written; `None` without an FTL.
    pub write_amplification: Option<f64>,
    /// Lines reclaimed; `None` without an FTL.
    pub lines_reclaimed: Option<u64>,
}

impl Round {
    /// Returns the bytes per second; 0 for a round that took no time.
    pub fn bytes_per_sec(&self) -> f64 {
        match self.elapsed {
            Nanos::ZERO => 0.0,
            elapsed => self.bytes as f64 / elapsed.as_secs_f64(),
        }
    }
}

/// Spread of a measure over the rounds of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Mean of the values.
    pub average: f64,
    /// Difference between maximum and minimum, relative to the average.
    pub range: f64,
    /// Rise of the least-squares line over the window, relative to the average; negative if it
    /// falls.
    pub slope: f64,
}

impl Spread {
    /// Returns the spread of the values; there must be at least one.
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

    /// Returns whether the spread satisfies the rule.
    pub fn is_steady(&self) -> bool {
        self.range <= RANGE_MAX && self.slope.abs() <= SLOPE_MAX
    }
}

/// Result of the steady-state detection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SteadyResult {
    /// Whether the last rounds satisfy the rule.
    pub reached: bool,
    /// All rounds, in order.
    pub rounds: Vec<Round>,
    /// Throughput of the last rounds in bytes per second; `None` if there are fewer than a
    /// window's.
    pub throughput: Option<Spread>,
    /// Write amplification of the last rounds; `None` if there are fewer than a window's, or no
    /// FTL.
    pub write_amplification: Option<Spread>,
}

impl SteadyResult {
    /// Adds a round; returns whether the rule is now satisfied.
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

    /// Returns the result and every round, for JSON.
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

    /// Returns a description of each violation of the rule; empty if it is satisfied.
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
        // The least-squares line through 1 … 5 is exact: a rise of 4 over an average of 3.
        let s = Spread::from_values(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((s.average, s.range), (3.0, 4.0 / 3.0));
        assert!((s.slope - 4.0 / 3.0).abs() < 1e-12);
        // A rise and a fall give no slope, but a range.
        let s = Spread::from_values(&[100.0, 110.0, 122.0, 110.0, 100.0]);
        assert!(s.slope.abs() < 1e-12 && s.range > RANGE_MAX && !s.is_steady());
        let s = Spread::from_values(&[100.0, 110.0, 120.0, 110.0, 100.0]);
        assert!((s.average, s.range) == (108.0, 20.0 / 108.0) && s.is_steady());
        // 97 … 107.1: a rise of 10.1 on 102 is within 10 %; a rise of 10.4 is not.
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
        // Throughput is steady, write amplification is not.
        assert!(!result.push(round(100.0, Some(4.5))));
        let missing = result.missing();
        assert!(missing[0].starts_with("write amplification within 20 %"), "{missing:?}");
        assert!(missing[1].starts_with("write amplification level"), "{missing:?}");
        // Write amplification is steady, throughput is not; and a drive without an FTL.
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
