//! The lateness of completions: [`LatenessRecord`] and its summary [`Lateness`].
//!
//! The lateness of a completion is divided by a [`GapLog`]: the part in which the machine did not
//! run the drive's thread, and the rest, which is the drive's own.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use time::Nanos;

/// A part of the lateness of completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatenessPart {
    /// Median.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// Largest.
    pub max: Nanos,
}

/// The lateness of completions in real time (ARCHITECTURE.md, R6); zero in virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Number of completions.
    pub count: u64,
    /// Median.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// Largest.
    pub max: Nanos,
    /// The part of each completion's lateness in which the machine did not run the drive's thread.
    /// It is not saved: a saved drive was never late.
    #[serde(skip)]
    pub machine: LatenessPart,
    /// The rest of each completion's lateness. It is not saved.
    #[serde(skip)]
    pub own: LatenessPart,
}

/// Returns an empty distribution of times in nanoseconds.
fn new_histogram() -> Histogram<u64> {
    // Two significant digits suffice; the bounds are valid constants.
    let histogram = Histogram::new_with_bounds(1, 1_000_000_000_000, 2);
    histogram.unwrap_or_else(|_| unreachable!("constant bounds"))
}

/// Saves a distribution as its recorded values and their counts.
mod saved_histogram {
    use hdrhistogram::Histogram;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        late: &Histogram<u64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let counts = late.iter_recorded();
        let counts = counts.map(|value| (value.value_iterated_to(), value.count_at_value()));
        counts.collect::<Vec<(u64, u64)>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Histogram<u64>, D::Error> {
        let mut late = super::new_histogram();
        for (value, count) in Vec::<(u64, u64)>::deserialize(from)? {
            late.record_n(value, count).map_err(D::Error::custom)?;
        }
        Ok(late)
    }
}

/// A distribution of lateness or other times. In virtual time all completions are on time, and
/// recording one is a single addition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LatenessRecord {
    on_time: u64,
    max: Nanos,
    #[serde(with = "saved_histogram")]
    late: Histogram<u64>,
    /// The completions with a part of the machine; `None` if there are none.
    #[serde(skip)]
    divided: Option<Box<DividedLateness>>,
}

/// The completions of a record that the machine made late, and both parts of their lateness.
#[derive(Clone, Debug)]
struct DividedLateness {
    total: LatenessRecord,
    machine: LatenessRecord,
    own: LatenessRecord,
}

impl DividedLateness {
    fn new() -> DividedLateness {
        let [total, machine, own] = std::array::from_fn(|_| LatenessRecord::new());
        DividedLateness { total, machine, own }
    }
}

impl Default for LatenessRecord {
    /// Returns a distribution of nothing.
    fn default() -> LatenessRecord {
        LatenessRecord::new()
    }
}

impl LatenessRecord {
    pub(crate) fn new() -> LatenessRecord {
        LatenessRecord { on_time: 0, max: Nanos::ZERO, late: new_histogram(), divided: None }
    }

    #[inline]
    pub(crate) fn record(&mut self, late: Nanos) {
        if late == Nanos::ZERO {
            self.on_time += 1;
        } else {
            self.max = self.max.max(late);
            self.late.saturating_record(late.0);
        }
    }

    /// Records the lateness at `now` of a completion that was due at `due`, divided by the gaps.
    #[inline]
    pub(crate) fn record_completion(&mut self, due: Nanos, now: Nanos, gaps: &GapLog) {
        self.record(now.since(due));
        if due < gaps.end {
            self.divide(due, now, gaps);
        }
    }

    /// Divides the lateness of the completion that was recorded last.
    #[cold]
    fn divide(&mut self, due: Nanos, now: Nanos, gaps: &GapLog) {
        let (total, machine) = (now.since(due), gaps.within(due, now));
        if machine > Nanos::ZERO {
            let divided = self.divided.get_or_insert_with(|| Box::new(DividedLateness::new()));
            divided.total.record(total);
            divided.machine.record(machine);
            divided.own.record(total.since(machine));
        }
    }

    fn count(&self) -> u64 {
        self.on_time + self.late.len()
    }

    fn quantile(&self, q: f64) -> Nanos {
        let (on_time, late) = (self.on_time as f64, self.late.len() as f64);
        let rank = q * (on_time + late) - on_time;
        if rank <= 0.0 {
            return Nanos::ZERO;
        }
        Nanos(self.late.value_at_quantile(rank / late)).min(self.max)
    }

    /// Returns the completions since the record `before` of this drive, whose statistics must not
    /// have been reset in between. The largest lateness is as exact as the quantiles: to 1 %.
    #[must_use]
    pub fn since(&self, before: &LatenessRecord) -> LatenessRecord {
        let mut late = self.late.clone();
        // Both have equal bounds, and counts only grow.
        let subtracted = late.subtract(&before.late);
        debug_assert!(subtracted.is_ok(), "a later record has less: {subtracted:?}");
        let max = Nanos(late.max()).min(self.max);
        let divided = match (&self.divided, &before.divided) {
            (Some(now), Some(before)) => Some(Box::new(DividedLateness {
                total: now.total.since(&before.total),
                machine: now.machine.since(&before.machine),
                own: now.own.since(&before.own),
            })),
            (now, _) => now.clone(),
        };
        let on_time = self.on_time.saturating_sub(before.on_time);
        LatenessRecord { on_time, max, late, divided }
    }

    /// Returns the record of the completions of both.
    #[must_use]
    pub fn plus(&self, other: &LatenessRecord) -> LatenessRecord {
        let mut late = self.late.clone();
        // Both have equal bounds.
        let added = late.add(&other.late);
        debug_assert!(added.is_ok(), "records have other bounds: {added:?}");
        let (on_time, max) = (self.on_time + other.on_time, self.max.max(other.max));
        let divided = match (&self.divided, &other.divided) {
            (Some(a), Some(b)) => Some(Box::new(DividedLateness {
                total: a.total.plus(&b.total),
                machine: a.machine.plus(&b.machine),
                own: a.own.plus(&b.own),
            })),
            (one, other) => one.clone().or_else(|| other.clone()),
        };
        LatenessRecord { on_time, max, late, divided }
    }

    /// Returns the distributions of the machine's part and of the drive's own part, each of all
    /// completions.
    fn parts(&self) -> (LatenessPart, LatenessPart) {
        let Some(divided) = &self.divided else {
            return (LatenessPart::default(), self.part());
        };
        let DividedLateness { total, machine, own } = &**divided;
        let undivided = LatenessRecord { divided: None, ..self.clone() }.since(total);
        let on_time = self.count().saturating_sub(machine.count());
        let machine = LatenessRecord { on_time: machine.on_time + on_time, ..machine.clone() };
        (machine.part(), undivided.plus(own).part())
    }

    fn part(&self) -> LatenessPart {
        LatenessPart { p50: self.quantile(0.5), p99: self.quantile(0.99), max: self.max }
    }

    /// Returns the summary of the distribution.
    pub fn read(&self) -> Lateness {
        let LatenessPart { p50, p99, max } = self.part();
        let (machine, own) = self.parts();
        Lateness { count: self.count(), p50, p99, max, machine, own }
    }

    pub(crate) fn reset(&mut self) {
        (self.on_time, self.max, self.divided) = (0, Nanos::ZERO, None);
        self.late.reset();
    }
}

/// Number of gaps that a log keeps. A completion that was due before more gaps than that is
/// divided by the last ones.
const GAPS_KEPT: usize = 16;

/// The last times in which the machine did not run the drive's thread, oldest first. They do not
/// overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct GapLog {
    gaps: [(Nanos, Nanos); GAPS_KEPT],
    /// End of the last gap; zero if there was none, as in virtual time.
    end: Nanos,
}

impl GapLog {
    /// Adds a gap. The part of it before the end of the last gap is left out.
    pub(crate) fn add(&mut self, from: Nanos, to: Nanos) {
        let from = from.max(self.end);
        if from < to {
            self.gaps.rotate_left(1);
            self.gaps[GAPS_KEPT - 1] = (from, to);
            self.end = to;
        }
    }

    /// Returns the time from `due` to `now` that is in gaps.
    fn within(&self, due: Nanos, now: Nanos) -> Nanos {
        let parts = self.gaps.iter().rev().take_while(|(_, to)| *to > due);
        parts.fold(Nanos::ZERO, |sum, (from, to)| sum + (*to).min(now).since((*from).max(due)))
    }
}

// guarantee: B-51
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_of_lateness_has_only_its_own_completions() {
        let mut record = LatenessRecord::new();
        for _ in 0..99 {
            record.record(Nanos::ZERO);
        }
        record.record(Nanos::from_millis(5));
        let before = record.clone();
        assert_eq!(record.read().max, Nanos::from_millis(5));
        assert_eq!(record.since(&before).read(), Lateness::default());
        for _ in 0..3 {
            record.record(Nanos(1_000));
        }
        record.record(Nanos::ZERO);
        let last = record.since(&before).read();
        assert_eq!(last.count, 4);
        assert!((990..=1_010).contains(&last.max.0) && last.p99 <= last.max, "{last:?}");
        assert_eq!(record.read().max, Nanos::from_millis(5), "the whole is as it was");
        let both = record.plus(&before).read();
        assert_eq!((both.count, both.max), (104 + 100, Nanos::from_millis(5)));
    }

    const US: u64 = 1_000;

    fn log(gaps: &[(u64, u64)]) -> GapLog {
        let mut log = GapLog::default();
        gaps.iter().for_each(|(from, to)| log.add(Nanos(from * US), Nanos(to * US)));
        log
    }

    #[test]
    fn both_parts_of_a_lateness_add_up_to_it() {
        let gaps = log(&[(10, 20), (18, 30), (50, 55), (54, 55)]);
        // Due and now, and the machine's part, in microseconds.
        for (due, now, machine) in [
            (0, 5, 0),
            (0, 15, 5),
            (0, 60, 25),
            (10, 55, 25),
            (25, 40, 5),
            (30, 50, 0),
            (31, 52, 2),
            (54, 100, 1),
            (55, 100, 0),
        ] {
            let (due, now) = (Nanos(due * US), Nanos(now * US));
            assert_eq!(gaps.within(due, now), Nanos(machine * US), "{due:?} to {now:?}");
            let mut record = LatenessRecord::new();
            record.record_completion(due, now, &gaps);
            let late = record.read();
            let sum = late.machine.max + late.own.max;
            assert_eq!((late.max, sum), (now.since(due), now.since(due)), "{due:?} to {now:?}");
            assert_eq!(late.machine.max, Nanos(machine * US));
        }
    }

    #[test]
    fn a_log_forgets_the_oldest_gaps() {
        let gaps: Vec<(u64, u64)> = (0..20).map(|i| (10 * i, 10 * i + 1)).collect();
        assert_eq!(log(&gaps).within(Nanos(0), Nanos(1_000 * US)), Nanos(16 * US));
    }

    #[test]
    fn the_parts_are_distributions_of_all_completions() {
        let gaps = log(&[(1_000, 5_000)]);
        let mut record = LatenessRecord::new();
        for _ in 0..950 {
            record.record_completion(Nanos(9_000 * US), Nanos(9_000 * US + 300), &gaps);
        }
        let before = record.clone();
        for _ in 0..50 {
            record.record_completion(Nanos(4_000 * US), Nanos(5_001 * US), &gaps);
        }
        let is_near = |a: Nanos, b: u64| a.0.abs_diff(b) * 50 <= b;
        let late = record.read();
        assert_eq!(late.count, 1_000);
        assert!(is_near(late.p99, 1_001 * US) && is_near(late.p50, 300), "{late:?}");
        assert!(is_near(late.own.p99, US) && is_near(late.own.p50, 300), "{late:?}");
        assert!(is_near(late.own.max, US), "{late:?}");
        assert!(late.machine.p50 == Nanos::ZERO && is_near(late.machine.p99, 1_000 * US));
        let last = record.since(&before).read();
        assert!(last.count == 50 && is_near(last.own.p50, US), "{last:?}");
        let both = record.plus(&before).read();
        assert!(both.count == 1_950 && is_near(both.machine.max, 1_000 * US), "{both:?}");
        record.reset();
        assert_eq!(record.read(), Lateness::default());
    }
}
