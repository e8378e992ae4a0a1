//! [`Samples`]: repeated measurements of one value with their statistics; [`interleaved`] measures
//! several candidates in turn.

use time::Nanos;

use super::BenchError;

/// Measurements of one value, at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    sorted: Vec<f64>,
}

impl Samples {
    /// Returns the samples; `None` if there are none, or if one is not a number.
    pub fn new(mut values: Vec<f64>) -> Option<Samples> {
        if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        Some(Samples { sorted: values })
    }

    /// Returns the value that a share `q` of the samples does not exceed (nearest rank).
    pub fn quantile(&self, q: f64) -> f64 {
        self.sorted[rank(self.sorted.len(), q)]
    }

    /// How many samples there are.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// The middle one.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Returns the interquartile range as a share of the median; 0 if that is 0.
    pub fn spread(&self) -> f64 {
        let median = self.median();
        if median == 0.0 {
            return 0.0;
        }
        (self.quantile(0.75) - self.quantile(0.25)) / median
    }
}

/// Returns the index of the nearest rank of share `q` among `count` sorted values.
fn rank(count: usize, q: f64) -> usize {
    let rank = (q.clamp(0.0, 1.0) * count as f64).ceil() as usize;
    rank.clamp(1, count) - 1
}

/// Median, 99th percentile and maximum of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// Median.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// Maximum.
    pub max: Nanos,
}

impl Quantiles {
    /// Returns the quantiles of these durations; `None` if there are none.
    pub fn from_durations(mut durations: Vec<Nanos>) -> Option<Quantiles> {
        durations.sort_unstable();
        let at = |q| durations[rank(durations.len(), q)];
        let max = *durations.last()?;
        Some(Quantiles { p50: at(0.5), p99: at(0.99), max })
    }

    /// Subtracts `overhead`, the cost of the measurement, from every duration.
    #[must_use]
    pub fn minus(self, overhead: Nanos) -> Quantiles {
        Quantiles { p50: self.p50 - overhead, p99: self.p99 - overhead, max: self.max - overhead }
    }

    /// Raises every duration to at least `least`, for operations that are shorter than the clock's
    /// resolution.
    #[must_use]
    pub fn at_least(self, least: Nanos) -> Quantiles {
        Quantiles { p50: self.p50.max(least), p99: self.p99.max(least), max: self.max.max(least) }
    }
}

/// A candidate: each call returns one sample.
pub type BenchCandidate<'c> = &'c mut dyn FnMut() -> Result<f64, BenchError>;

/// Measures several candidates in turn, so that a temporary disturbance affects all of them. There
/// are `rounds` rounds after one for warm-up, and every round starts with another candidate.
///
/// # Errors
/// The first error of a candidate; [`BenchError::NoValue`] if one returns a value that is not a
/// number.
pub fn interleaved<const N: usize>(
    rounds: usize,
    candidates: [BenchCandidate<'_>; N],
) -> Result<[Samples; N], BenchError> {
    let values = interleave(rounds, N, |which| candidates[which]())?;
    let mut samples = Vec::with_capacity(N);
    for (which, values) in values.into_iter().enumerate() {
        samples.push(Samples::new(values).ok_or_else(|| BenchError::NoValue {
            case: format!("candidate {which}"),
            metric: "sample",
        })?);
    }
    // As many samples as candidates: every candidate has returned its samples, or an error above.
    samples.try_into().map_err(|_| BenchError::Thread("interleaved measuring"))
}

/// Measures `count` candidates in turn, as [`interleaved`] does, with results that are more than a
/// number.
///
/// # Errors
/// The first error of `measure`.
pub fn interleave<T>(
    rounds: usize,
    count: usize,
    mut measure: impl FnMut(usize) -> Result<T, BenchError>,
) -> Result<Vec<Vec<T>>, BenchError> {
    let mut said: Vec<Vec<T>> = (0..count).map(|_| Vec::with_capacity(rounds)).collect();
    for round in 0..=rounds.max(1) {
        for turn in 0..count {
            let which = (round + turn) % count;
            let value = measure(which)?;
            if round > 0 {
                said[which].push(value);
            }
        }
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let samples = Samples::new((1..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!(samples.median(), 50.0);
        assert_eq!(samples.quantile(0.99), 99.0);
        assert_eq!((samples.quantile(0.0), samples.quantile(1.0)), (1.0, 100.0));
        assert_eq!(samples.spread(), 1.0);
        let one = Samples::new(vec![7.0]).unwrap();
        assert_eq!((one.median(), one.spread()), (7.0, 0.0));
        assert!(Samples::new(vec![]).is_none());
        assert!(Samples::new(vec![1.0, f64::NAN]).is_none());
        assert_eq!(Samples::new(vec![0.0; 4]).unwrap().spread(), 0.0);
    }

    #[test]
    fn durations_have_quantiles_and_never_go_below_zero() {
        assert_eq!(Quantiles::from_durations(vec![]), None);
        let q = Quantiles::from_durations((1..=1000).map(Nanos).collect()).unwrap();
        assert_eq!(q, Quantiles { p50: Nanos(500), p99: Nanos(990), max: Nanos(1000) });
        assert_eq!(q.minus(Nanos(600)).p50, Nanos::ZERO);
        assert_eq!(q.minus(Nanos(600)).max, Nanos(400));
        let least = q.at_least(Nanos(600));
        assert_eq!((least.p50, least.p99), (Nanos(600), Nanos(990)));
    }

    #[test]
    fn candidates_take_turns_and_the_first_round_does_not_count() {
        let order = std::cell::RefCell::new(Vec::new());
        let mut a = || {
            order.borrow_mut().push('a');
            Ok(if order.borrow().len() <= 2 { 1e9 } else { 1.0 })
        };
        let mut b = || {
            order.borrow_mut().push('b');
            Ok(2.0)
        };
        let [first, second] = interleaved(3, [&mut a, &mut b]).unwrap();
        assert_eq!(order.into_inner().iter().collect::<String>(), "abbaabba");
        assert_eq!((first.quantile(1.0), second.median()), (1.0, 2.0));
    }

    #[test]
    fn a_candidate_without_a_number_is_an_error() {
        assert!(interleaved(1, [&mut || Ok(f64::NAN)]).is_err());
        assert!(interleaved(1, [&mut || Err(BenchError::Thread("x"))]).is_err());
    }
}
