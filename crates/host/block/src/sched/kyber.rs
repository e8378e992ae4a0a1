//! [`Kyber`]: limits the requests in the device per domain, according to measured latencies.
//!
//! The scheduler follows Linux's `kyber`. Requests belong to domains (reads, writes, discards,
//! other). Each domain has tokens, which limit its requests in the device. Domains take turns in
//! batches. Completed requests are counted against their domain's target, both in the device
//! (congestion) and since submission (service). Once per window, the 90th percentile of the former
//! and the 99th of the latter, in quarters of the target, move the tokens.
//!
//! **Difference from Linux, on purpose.** In Linux, a domain that misses its target always gets
//! more tokens. A deep queue of writes, whose waiting time counts against their target, then wins
//! against the reads that it delays. Here domains are ranked: reads, writes, discards, other. While
//! a domain misses its target, lower-ranked domains lose tokens in proportion to the miss. They get
//! tokens back one by one once all higher-ranked domains are within half of their targets. If none
//! of these is in use, they get all back at once. In between the tokens stay, which is where a
//! steady load settles. A domain within half of its own target also loses tokens to a lower-ranked
//! domain whose requests are late in the device. No domain loses its last token.

use std::collections::VecDeque;

use time::Nanos;

use super::Scheduler;
use super::error::{SchedError, within};
use super::fifo::FifoQueue;
use super::latency::{LatencyBuckets, TARGET_BUCKETS};
use crate::{Op, StagedRequest};

/// Minimum number of samples of a domain. With fewer, the domain is judged only after
/// [`SAMPLE_WINDOWS_MAX`].
const SAMPLES_MIN: u32 = 500;
/// Maximum number of windows in which a domain may collect its samples.
const SAMPLE_WINDOWS_MAX: u32 = 10;
/// The last latency bucket that is within half of the target.
const COMFORT_BUCKET_MAX: usize = TARGET_BUCKETS / 2 - 1;
/// Maximum target and window.
const TIME_MAX: Nanos = Nanos::from_secs(3600);
/// Maximum batch.
const BATCH_MAX: u32 = 1 << 16;

/// Number of dispatches that requeueing in reverse order undoes exactly, with the round-robin
/// state.
const HISTORY: usize = 64;

const DOMAINS: usize = 4;

/// One value per domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerDomain<T> {
    /// Reads.
    pub read: T,
    /// Writes.
    pub write: T,
    /// Discards.
    pub discard: T,
    /// Write Zeroes and extent queries.
    pub other: T,
}

impl<T: Copy> PerDomain<T> {
    /// Returns the values by rank, reads first.
    fn ranked(&self) -> [T; DOMAINS] {
        [self.read, self.write, self.discard, self.other]
    }
}

/// Parameters of [`Kyber`]. The defaults are Linux's, except that writes may use the whole depth of
/// an idle device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KyberConfig {
    /// Latency targets: Linux's `read_lat_nsec` and `write_lat_nsec`; the target of discards is
    /// fixed in Linux. `other` has a target here too, so that it can be judged.
    pub target: PerDomain<Nanos>,
    /// Number of requests that a domain dispatches in a row.
    pub batch: PerDomain<u32>,
    /// Maximum share of the queue depth per domain, in percent; at least one request.
    pub depth_percent: PerDomain<u8>,
    /// Time between two adjustments of the tokens.
    pub window: Nanos,
}

impl Default for KyberConfig {
    fn default() -> KyberConfig {
        let (ms, s) = (Nanos::from_millis, Nanos::from_secs);
        KyberConfig {
            target: PerDomain { read: ms(2), write: ms(10), discard: s(5), other: s(5) },
            batch: PerDomain { read: 16, write: 8, discard: 1, other: 1 },
            depth_percent: PerDomain { read: 100, write: 100, discard: 25, other: 6 },
            window: ms(100),
        }
    }
}

impl KyberConfig {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`SchedError::Zero`] and [`SchedError::TooLarge`]: times must be 1 ns to an hour, batches
    /// `1..=65536`, depths 1 to 100 percent.
    pub fn validate(&self) -> Result<(), SchedError> {
        for target in self.target.ranked() {
            within("target_ns", target.0, TIME_MAX.0)?;
        }
        for batch in self.batch.ranked() {
            within("batch", batch.into(), BATCH_MAX.into())?;
        }
        for percent in self.depth_percent.ranked() {
            within("depth_percent", percent.into(), 100)?;
        }
        within("window_ns", self.window.0, TIME_MAX.0)
    }
}

fn domain(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Discard => 2,
        Op::WriteZeroes | Op::Extents | Op::Flush => 3,
    }
}

#[derive(Debug)]
struct Domain {
    waiting: FifoQueue,
    in_flight: u32,
    /// Maximum number of requests in the device.
    tokens: u32,
    tokens_max: u32,
    target: Nanos,
    batch: u32,
    /// Latencies since submission.
    total: LatencyBuckets,
    /// Latencies in the device.
    device: LatencyBuckets,
    /// Number of windows in which the samples were collected.
    windows: u32,
}

impl Domain {
    #[inline]
    fn can_send(&self) -> bool {
        !self.waiting.is_empty() && self.in_flight < self.tokens
    }

    /// Evaluates and clears the samples, if there are enough.
    fn verdict(&mut self) -> Verdict {
        let samples = self.total.samples();
        if samples == 0 {
            return Verdict::IDLE;
        }
        self.windows += 1;
        if samples < SAMPLES_MIN && self.windows < SAMPLE_WINDOWS_MAX {
            return Verdict::UNDECIDED;
        }
        let verdict = Verdict {
            idle: false,
            total: self.total.percentile(99),
            device: self.device.percentile(90),
        };
        (self.total, self.device, self.windows) =
            (LatencyBuckets::default(), LatencyBuckets::default(), 0);
        verdict
    }
}

/// The evaluation of a domain.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    /// Whether no request completed.
    idle: bool,
    /// 99th percentile of the latency since submission, in quarters of the target, if known.
    total: Option<usize>,
    /// 90th percentile of the latency in the device, likewise.
    device: Option<usize>,
}

impl Verdict {
    const IDLE: Verdict = Verdict { idle: true, total: None, device: None };
    const UNDECIDED: Verdict = Verdict { idle: false, total: None, device: None };

    fn is_comfortable(&self) -> bool {
        self.total.is_some_and(|bucket| bucket <= COMFORT_BUCKET_MAX)
    }

    fn is_congested(&self) -> bool {
        self.device.is_some_and(|bucket| bucket >= TARGET_BUCKETS)
    }
}

/// Round-robin state: the current domain.
#[derive(Clone, Copy, Debug)]
struct RoundRobin {
    rank: usize,
    /// Number of requests of the current batch that were dispatched.
    sent: u32,
}

/// A scheduler that adjusts tokens to latencies.
#[derive(Debug)]
pub struct Kyber {
    domains: [Domain; DOMAINS],
    queued: usize,
    round_robin: RoundRobin,
    /// The ids of the last dispatched requests, with the round-robin state before each, so that a
    /// requeue in reverse order restores it.
    history: VecDeque<(u64, RoundRobin)>,
    window: Nanos,
    window_ends: Nanos,
}

impl Kyber {
    /// Creates an empty scheduler for a device with a queue depth of `depth`.
    ///
    /// # Errors
    /// Those of [`KyberConfig::validate`], and [`SchedError::Zero`] for a `depth` of 0.
    pub fn new(config: KyberConfig, depth: u16) -> Result<Kyber, SchedError> {
        config.validate()?;
        within("depth", depth.into(), u16::MAX.into())?;
        let percent = config.depth_percent.ranked();
        let (target, batch) = (config.target.ranked(), config.batch.ranked());
        let domains = std::array::from_fn(|rank| {
            let tokens = (u32::from(depth) * u32::from(percent[rank]) / 100).max(1);
            Domain {
                waiting: FifoQueue::new(),
                in_flight: 0,
                tokens,
                tokens_max: tokens,
                target: target[rank],
                batch: batch[rank],
                total: LatencyBuckets::default(),
                device: LatencyBuckets::default(),
                windows: 0,
            }
        });
        let window = config.window;
        Ok(Kyber {
            domains,
            queued: 0,
            round_robin: RoundRobin { rank: 0, sent: 0 },
            history: VecDeque::with_capacity(HISTORY),
            window,
            window_ends: window,
        })
    }

    /// Returns the maximum number of requests in the device, per domain.
    pub fn tokens(&self) -> PerDomain<u32> {
        let [read, write, discard, other] = self.domains.each_ref().map(|d| d.tokens);
        PerDomain { read, write, discard, other }
    }

    /// Returns the number of requests in the device, per domain.
    pub fn in_flight(&self) -> PerDomain<u32> {
        let [read, write, discard, other] = self.domains.each_ref().map(|d| d.in_flight);
        PerDomain { read, write, discard, other }
    }

    /// Moves tokens at the end of a window.
    fn adjust_tokens(&mut self) {
        let verdicts = self.domains.each_mut().map(Domain::verdict);
        for (rank, domain) in self.domains.iter_mut().enumerate() {
            let (above, below) = (&verdicts[..rank], &verdicts[rank + 1..]);
            let worst_above = above.iter().filter_map(|v| v.total).max().unwrap_or(0);
            let tokens = domain.tokens;
            domain.tokens = if worst_above >= TARGET_BUCKETS {
                tokens * TARGET_BUCKETS as u32 / (worst_above as u32 + 1)
            } else if verdicts[rank].is_comfortable() && below.iter().any(Verdict::is_congested) {
                tokens * 3 / 4
            } else if above.iter().all(|v| v.idle) {
                tokens * 2
            } else if above.iter().all(|v| v.idle || v.is_comfortable()) {
                tokens + 1
            } else {
                tokens
            }
            .clamp(1, domain.tokens_max);
        }
    }
}

impl Scheduler for Kyber {
    fn insert(&mut self, _: Nanos, staged: StagedRequest) {
        self.domains[domain(staged.request.op)].waiting.push_back(staged);
        self.queued += 1;
    }

    fn requeue(&mut self, _: Nanos, staged: StagedRequest) {
        let rank = domain(staged.request.op);
        let domain = &mut self.domains[rank];
        domain.in_flight = domain.in_flight.saturating_sub(1);
        domain.waiting.push_front(staged);
        self.queued += 1;
        if let Some((_, turn)) = self.history.pop_back_if(|(tag, _)| *tag == staged.request.tag) {
            self.round_robin = turn;
        } else if self.round_robin.rank == rank {
            self.round_robin.sent = self.round_robin.sent.saturating_sub(1);
        }
    }

    fn dispatch(&mut self, _: Nanos) -> Option<StagedRequest> {
        if self.queued == 0 {
            return None;
        }
        let before = self.round_robin;
        let current = &self.domains[before.rank];
        if before.sent >= current.batch || !current.can_send() {
            // The other domains in turn, then the current one again.
            let rank = (1..=DOMAINS)
                .map(|step| (before.rank + step) % DOMAINS)
                .find(|rank| self.domains[*rank].can_send())?;
            self.round_robin = RoundRobin { rank, sent: 0 };
        }
        let domain = &mut self.domains[self.round_robin.rank];
        let staged = domain.waiting.pop_front()?;
        domain.in_flight += 1;
        self.round_robin.sent += 1;
        self.queued -= 1;
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back((staged.request.tag, before));
        Some(staged)
    }

    fn completed(&mut self, now: Nanos, staged: &StagedRequest, device: Nanos) {
        if now >= self.window_ends {
            self.adjust_tokens();
            self.window_ends = now + self.window;
        }
        let domain = &mut self.domains[domain(staged.request.op)];
        domain.in_flight = domain.in_flight.saturating_sub(1);
        domain.total.add(now.since(staged.since), domain.target);
        domain.device.add(device, domain.target);
    }

    #[inline]
    fn len(&self) -> usize {
        self.queued
    }

    fn find_merge(
        &mut self,
        newcomer: &StagedRequest,
        visit: &mut dyn FnMut(&mut StagedRequest) -> bool,
    ) -> bool {
        self.domains[domain(newcomer.request.op)].waiting.find_merge(newcomer, visit)
    }
}
