//! [`Kyber`]: how much of each kind of request the device may have, set by the latencies it shows.
//!
//! After Linux's `kyber`: requests are sorted into domains (reads, writes, discards, other), each with
//! tokens for requests at the device. Domains take turns in batches. Completed requests are counted
//! against their domain's target, at the device (is it congested?) and since submission (does who
//! waits get what was promised?); once per window the 90th percentile of the first and the 99th of the
//! second, in quarters of the target, move the tokens.
//!
//! Where this differs from Linux, on purpose: there a domain that misses its target always gets more
//! tokens, so that a deep queue of writes, whose wait counts against their target, wins against the
//! reads that it delays. Here domains are ranked, reads before writes before discards before other:
//! while a domain misses its target, those ranked below it lose tokens in proportion to how badly; they
//! get tokens back one by one once everything above is well within its target (half of it), or at once
//! if nothing above is in use. In between nothing moves, which is where a steady load settles. A domain
//! that is well within its own target also loses tokens to one ranked below whose requests are late at
//! the device. Nobody loses the last token.

use std::collections::VecDeque;

use clock::Nanos;

use super::Scheduler;
use super::error::{SchedError, within};
use super::fifo::Fifo;
use super::latency::{LatencyBuckets, TARGET_BUCKETS};
use crate::{Op, StagedRequest};

/// A domain with fewer samples is judged only after [`SAMPLE_WINDOWS_MAX`].
const SAMPLES_MIN: u32 = 500;
/// How many windows a domain may take to collect its samples.
const SAMPLE_WINDOWS_MAX: u32 = 10;
/// The last bucket that is well within the target: half of it.
const COMFORT_BUCKET_MAX: usize = TARGET_BUCKETS / 2 - 1;
/// The longest target and window.
const TIME_MAX: Nanos = Nanos::from_secs(3600);
/// The longest batch.
const BATCH_MAX: u32 = 1 << 16;

/// How many requests that come back in reverse order undo whose turn it is exactly.
const HISTORY: usize = 64;

const DOMAINS: usize = 4;

/// A value for each domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerDomain<T> {
    /// Reads.
    pub read: T,
    /// Writes.
    pub write: T,
    /// Discards.
    pub discard: T,
    /// Zeroes, queries for extents.
    pub other: T,
}

impl<T: Copy> PerDomain<T> {
    /// By rank: reads first.
    fn ranked(&self) -> [T; DOMAINS] {
        [self.read, self.write, self.discard, self.other]
    }
}

/// What [`Kyber`] can be told. The defaults are Linux's, save that writes may use the whole depth of
/// an idle device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KyberConfig {
    /// How long a request may take: Linux's `read_lat_nsec` and `write_lat_nsec`; discards' is fixed
    /// there. `other` has one here too, so that it can be judged.
    pub target: PerDomain<Nanos>,
    /// Requests that a domain sends before the next has its turn.
    pub batch: PerDomain<u32>,
    /// How much of the depth a domain may have at most, in percent; at least one request.
    pub depth_percent: PerDomain<u8>,
    /// How often tokens are moved.
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
    /// Whether this makes sense.
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
    waiting: Fifo,
    in_flight: u32,
    /// Requests that may be at the device.
    tokens: u32,
    tokens_max: u32,
    target: Nanos,
    batch: u32,
    /// Latencies since submission.
    total: LatencyBuckets,
    /// Latencies at the device.
    device: LatencyBuckets,
    /// Windows that the samples were collected in.
    windows: u32,
}

impl Domain {
    #[inline]
    fn can_send(&self) -> bool {
        !self.waiting.is_empty() && self.in_flight < self.tokens
    }

    /// What the samples say, if there are enough; they are then forgotten.
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

/// How a domain did.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    /// Nothing completed.
    idle: bool,
    /// In quarters of its target, if known: the 99th percentile since submission.
    total: Option<usize>,
    /// The 90th at the device.
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

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
struct RoundRobin {
    rank: usize,
    /// Requests of the batch that have gone.
    sent: u32,
}

/// Tokens by latency.
#[derive(Debug)]
pub struct Kyber {
    domains: [Domain; DOMAINS],
    queued: usize,
    round_robin: RoundRobin,
    /// The tags given last, and whose turn it was before each: what is put back in reverse undoes it.
    history: VecDeque<(u64, RoundRobin)>,
    window: Nanos,
    window_ends: Nanos,
}

impl Kyber {
    /// An empty one before a device that takes `depth` requests.
    ///
    /// # Errors
    /// [`KyberConfig::validate`], and [`SchedError::Zero`] for a `depth` of 0.
    pub fn new(config: KyberConfig, depth: u16) -> Result<Kyber, SchedError> {
        config.validate()?;
        within("depth", depth.into(), u16::MAX.into())?;
        let percent = config.depth_percent.ranked();
        let (target, batch) = (config.target.ranked(), config.batch.ranked());
        let domains = std::array::from_fn(|rank| {
            let tokens = (u32::from(depth) * u32::from(percent[rank]) / 100).max(1);
            Domain {
                waiting: Fifo::new(),
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

    /// How many requests of each domain may be at the device.
    pub fn tokens(&self) -> PerDomain<u32> {
        let [read, write, discard, other] = self.domains.each_ref().map(|d| d.tokens);
        PerDomain { read, write, discard, other }
    }

    /// How many requests of each domain are at the device.
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
            // The others in turn, then the same again.
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
