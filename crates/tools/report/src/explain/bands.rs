//! [`Bands`]: latency breakdown of a job's requests by percentile.
//!
//! Requests are collected by latency, in buckets of a sixteenth of a power of two. At the end,
//! buckets are merged into bands of about the percentiles 50, 90, 99 and 99.9. A bucket is never
//! divided, so a band may end at another percentile if there are few different latencies;
//! [`Band::to`] has it.

use std::collections::BTreeMap;

use time::Nanos;
use tracepoint::RequestOp;

use super::{Explained, WaitKind};

/// Nominal upper ends of the bands, in percent.
const BANDS: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 100.0];

/// Requests of similar latency.
#[derive(Clone, Debug, Default)]
struct LatencyBucket {
    requests: u64,
    min: Nanos,
    max: Nanos,
    total: Nanos,
    waits: BTreeMap<WaitKind, Nanos>,
}

impl LatencyBucket {
    fn merge(&mut self, other: &LatencyBucket) {
        self.min = if self.requests == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.requests += other.requests;
        self.total += other.total;
        for (kind, time) in &other.waits {
            *self.waits.entry(*kind).or_default() += *time;
        }
    }
}

/// Collects the requests of a run.
#[derive(Debug, Default)]
pub struct Bands {
    buckets: BTreeMap<(u32, RequestOp), BTreeMap<u32, LatencyBucket>>,
}

/// Latency breakdown of one job's requests of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Breakdown {
    /// Number of the job among those of its drive, with clones counted one by one.
    pub job: u32,
    /// The operation.
    pub op: RequestOp,
    /// Bands of percentiles, the fastest first, without empty bands.
    pub bands: Vec<Band>,
}

/// Requests between two percentiles of the latency.
#[derive(Clone, Debug, PartialEq)]
pub struct Band {
    /// Percentage of all requests that are faster than the band.
    pub from: f64,
    /// Percentage of all requests that are in the band or faster.
    pub to: f64,
    /// Number of requests.
    pub requests: u64,
    /// Minimum latency.
    pub min: Nanos,
    /// Maximum latency.
    pub max: Nanos,
    /// Sum of the latencies.
    pub total: Nanos,
    /// Sums of the waits by reason, the largest first. They add up to `total`.
    pub waits: Vec<(WaitKind, Nanos)>,
}

impl Band {
    /// Returns the label of the band, such as `p90 to p99`.
    pub fn label(&self) -> String {
        // Print at most two decimals, without trailing zeros.
        let number = |percent: f64| ((percent * 100.0).round() / 100.0).to_string();
        format!("p{} to p{}", number(self.from), number(self.to))
    }

    /// Returns the time that requests of the band spent for a reason.
    pub fn time_of(&self, kind: WaitKind) -> Nanos {
        self.waits.iter().find(|(k, _)| *k == kind).map_or(Nanos::ZERO, |(_, time)| *time)
    }
}

impl Breakdown {
    /// Returns the reasons with at least `share` (0 to 1) of the time of any band, in descending
    /// order of their time over all bands.
    pub fn kinds(&self, share: f64) -> Vec<WaitKind> {
        let mut sums: BTreeMap<WaitKind, (Nanos, bool)> = BTreeMap::new();
        for band in &self.bands {
            for (kind, time) in &band.waits {
                let sum = sums.entry(*kind).or_default();
                sum.0 += *time;
                sum.1 |= time.0 as f64 >= share * band.total.0 as f64;
            }
        }
        let mut kinds: Vec<_> = sums.into_iter().filter(|(_, (_, shown))| *shown).collect();
        kinds.sort_by_key(|(kind, (time, _))| (std::cmp::Reverse(*time), *kind));
        kinds.into_iter().map(|(kind, _)| kind).collect()
    }
}

/// Returns the bucket of a latency.
fn bucket_of(latency: Nanos) -> u32 {
    let ns = latency.0.max(1);
    let power = ns.ilog2();
    let fraction = if power >= 4 { (ns >> (power - 4)) & 15 } else { (ns << (4 - power)) & 15 };
    power << 4 | fraction as u32
}

impl Bands {
    /// Adds a request.
    pub fn add(&mut self, request: &Explained) {
        let steps = self.buckets.entry((request.job, request.op)).or_default();
        let mut one = LatencyBucket {
            requests: 1,
            min: request.latency,
            max: request.latency,
            total: request.latency,
            waits: BTreeMap::new(),
        };
        for wait in &request.waits {
            *one.waits.entry(wait.kind.without_job()).or_default() += wait.time;
        }
        steps.entry(bucket_of(request.latency)).or_default().merge(&one);
    }

    /// Returns the bands of each job and operation.
    pub fn finish(self) -> Vec<Breakdown> {
        let finish = |((job, op), steps): ((u32, RequestOp), BTreeMap<u32, LatencyBucket>)| {
            let total: u64 = steps.values().map(|step| step.requests).sum();
            let mut bands = vec![LatencyBucket::default(); BANDS.len()];
            let mut before = 0;
            for step in steps.values() {
                let middle = (before as f64 + step.requests as f64 / 2.0) * 100.0 / total as f64;
                let band = BANDS.iter().position(|end| middle <= *end).unwrap_or(BANDS.len() - 1);
                bands[band].merge(step);
                before += step.requests;
            }
            let mut before = 0;
            let percent = |count: u64| count as f64 * 100.0 / total as f64;
            let bands = bands.into_iter().filter(|step| step.requests > 0);
            let bands = bands.map(|step| {
                let from = percent(before);
                before += step.requests;
                let mut waits: Vec<_> = step.waits.into_iter().collect();
                waits.sort_by_key(|(kind, time)| (std::cmp::Reverse(*time), *kind));
                let LatencyBucket { requests, min: least, max: most, total, .. } = step;
                Band { from, to: percent(before), requests, min: least, max: most, total, waits }
            });
            Breakdown { job, op, bands: bands.collect() }
        };
        self.buckets.into_iter().map(finish).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::Wait;

    #[test]
    fn bands_hold_every_request_once_and_their_waits_add_up() {
        let mut bands = Bands::default();
        for i in 1..=1000u64 {
            let latency = Nanos(if i > 990 { 1_000_000 + i } else { 50_000 + i });
            let wait = |kind, start, time| Wait { kind, pu: None, start, time };
            let own = Nanos(50_000);
            let waits = vec![
                wait(WaitKind::MapPage, Nanos::ZERO, latency - own),
                wait(WaitKind::Transfer, latency - own, own),
            ];
            bands.add(&Explained {
                path: 0,
                serial: i,
                job: 2,
                slot: 0,
                op: RequestOp::Read,
                lba: i,
                sectors: 1,
                start: Nanos::ZERO,
                issued: Nanos::ZERO,
                latency,
                measured: true,
                waits,
            });
        }
        let all = bands.finish();
        assert_eq!(all.len(), 1);
        let bands = &all[0].bands;
        assert_eq!(bands.iter().map(|b| b.requests).sum::<u64>(), 1000);
        for band in bands {
            let sum: u64 = band.waits.iter().map(|(_, time)| time.0).sum();
            assert_eq!(sum, band.total.0);
        }
        let slow = bands.last().unwrap();
        assert_eq!((slow.from, slow.to, slow.requests), (99.0, 100.0, 10));
        assert_eq!(slow.label(), "p99 to p100");
        assert_eq!((slow.min, slow.max), (Nanos(1_000_991), Nanos(1_001_000)));
        assert_eq!(slow.waits[0].0, WaitKind::MapPage, "the largest first");
    }

    #[test]
    fn steps_are_a_sixteenth_of_a_power_of_two() {
        assert!(bucket_of(Nanos(1_000)) < bucket_of(Nanos(1_070)));
        assert_eq!(bucket_of(Nanos(1 << 20)), bucket_of(Nanos((1 << 20) + (1 << 15))));
        assert!(bucket_of(Nanos(0)) <= bucket_of(Nanos(2)));
    }
}
