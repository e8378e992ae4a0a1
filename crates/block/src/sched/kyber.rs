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
use super::latency::{Buckets, GOOD};
use crate::{Op, Staged};

/// A domain with fewer samples is judged only after [`PATIENCE_WINDOWS`].
const SAMPLES: u32 = 500;
/// How many windows a domain may take to collect its samples.
const PATIENCE_WINDOWS: u32 = 10;
/// The last bucket that is well within the target: half of it.
const COMFORT: usize = GOOD / 2 - 1;
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
    total: Buckets,
    /// Latencies at the device.
    device: Buckets,
    /// Windows that the samples were collected in.
    windows: u32,
}

impl Domain {
    #[inline]
    fn may_send(&self) -> bool {
        !self.waiting.is_empty() && self.in_flight < self.tokens
    }

    /// What the samples say, if there are enough; they are then forgotten.
    fn verdict(&mut self) -> Verdict {
        let samples = self.total.samples();
        if samples == 0 {
            return Verdict::IDLE;
        }
        self.windows += 1;
        if samples < SAMPLES && self.windows < PATIENCE_WINDOWS {
            return Verdict::UNDECIDED;
        }
        let verdict = Verdict {
            idle: false,
            total: self.total.percentile(99),
            device: self.device.percentile(90),
        };
        (self.total, self.device, self.windows) = (Buckets::default(), Buckets::default(), 0);
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

    fn comfortable(&self) -> bool {
        self.total.is_some_and(|bucket| bucket <= COMFORT)
    }

    fn congested(&self) -> bool {
        self.device.is_some_and(|bucket| bucket >= GOOD)
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
struct Turn {
    rank: usize,
    /// Requests of the batch that have gone.
    sent: u32,
}

/// Tokens by latency.
#[derive(Debug)]
pub struct Kyber {
    domains: [Domain; DOMAINS],
    held: usize,
    turn: Turn,
    /// The tags given last, and whose turn it was before each: what is put back in reverse undoes it.
    history: VecDeque<(u64, Turn)>,
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
                total: Buckets::default(),
                device: Buckets::default(),
                windows: 0,
            }
        });
        let window = config.window;
        Ok(Kyber {
            domains,
            held: 0,
            turn: Turn { rank: 0, sent: 0 },
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
    fn judge(&mut self) {
        let verdicts = self.domains.each_mut().map(Domain::verdict);
        for (rank, domain) in self.domains.iter_mut().enumerate() {
            let (above, below) = (&verdicts[..rank], &verdicts[rank + 1..]);
            let worst_above = above.iter().filter_map(|v| v.total).max().unwrap_or(0);
            let tokens = domain.tokens;
            domain.tokens = if worst_above >= GOOD {
                tokens * GOOD as u32 / (worst_above as u32 + 1)
            } else if verdicts[rank].comfortable() && below.iter().any(Verdict::congested) {
                tokens * 3 / 4
            } else if above.iter().all(|v| v.idle) {
                tokens * 2
            } else if above.iter().all(|v| v.idle || v.comfortable()) {
                tokens + 1
            } else {
                tokens
            }
            .clamp(1, domain.tokens_max);
        }
    }
}

impl Scheduler for Kyber {
    fn insert(&mut self, _: Nanos, staged: Staged) {
        self.domains[domain(staged.request.op)].waiting.push_back(staged);
        self.held += 1;
    }

    fn put_back(&mut self, _: Nanos, staged: Staged) {
        let rank = domain(staged.request.op);
        let domain = &mut self.domains[rank];
        domain.in_flight = domain.in_flight.saturating_sub(1);
        domain.waiting.push_front(staged);
        self.held += 1;
        if let Some((_, turn)) = self.history.pop_back_if(|(tag, _)| *tag == staged.request.tag) {
            self.turn = turn;
        } else if self.turn.rank == rank {
            self.turn.sent = self.turn.sent.saturating_sub(1);
        }
    }

    fn next(&mut self, _: Nanos) -> Option<Staged> {
        if self.held == 0 {
            return None;
        }
        let before = self.turn;
        let current = &self.domains[before.rank];
        if before.sent >= current.batch || !current.may_send() {
            // The others in turn, then the same again.
            let rank = (1..=DOMAINS)
                .map(|step| (before.rank + step) % DOMAINS)
                .find(|rank| self.domains[*rank].may_send())?;
            self.turn = Turn { rank, sent: 0 };
        }
        let domain = &mut self.domains[self.turn.rank];
        let staged = domain.waiting.pop_front()?;
        domain.in_flight += 1;
        self.turn.sent += 1;
        self.held -= 1;
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back((staged.request.tag, before));
        Some(staged)
    }

    fn completed(&mut self, now: Nanos, staged: &Staged, device: Nanos) {
        if now >= self.window_ends {
            self.judge();
            self.window_ends = now + self.window;
        }
        let domain = &mut self.domains[domain(staged.request.op)];
        domain.in_flight = domain.in_flight.saturating_sub(1);
        domain.total.add(now.since(staged.since), domain.target);
        domain.device.add(device, domain.target);
    }

    #[inline]
    fn len(&self) -> usize {
        self.held
    }

    fn find_merge(
        &mut self,
        newcomer: &Staged,
        visit: &mut dyn FnMut(&mut Staged) -> bool,
    ) -> bool {
        self.domains[domain(newcomer.request.op)].waiting.find_merge(newcomer, visit)
    }
}
