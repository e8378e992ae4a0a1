//! [`Throttled`]: rate limits per group, in front of any scheduler.
//!
//! The limits are operations and bytes per second, of reads and of writes, as Linux's `io.max` has
//! them (Documentation/admin-guide/cgroup-v2.rst); token buckets implement them. A group's requests
//! wait here, in arrival order and separately for reads and writes, until there are tokens for the
//! first one. They are then charged and passed to the inner scheduler. Groups and directions
//! without limits go straight to the inner scheduler.
//!
//! A request may be merged with one that waits here, and both are charged together. It is not
//! merged with a charged one, which would let a group exceed its limit.

use time::{Nanos, Rounding, TokenBucket, TokenRate};

use super::error::SchedError;
use super::fifo::FifoQueue;
use super::{GroupChange, LimitKind, Scheduler};
use crate::{Group, Op, StagedRequest};

/// Maximum rate and burst: a thousand times those of the fastest device.
const RATE_MAX: u64 = 1 << 50;
/// Maximum sector size.
const SECTOR_BYTES_MAX: u64 = 1 << 20;

/// A rate, and the burst that may be saved up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Tokens per second.
    pub per_sec: u64,
    /// Maximum number of saved tokens. A larger request passes when the bucket is full, and is paid
    /// for afterwards.
    pub burst: u64,
}

impl RateLimit {
    /// Returns a limit of `per_sec` with a burst of a tenth of a second.
    pub fn per_sec(per_sec: u64) -> RateLimit {
        RateLimit { per_sec, burst: (per_sec / 10).max(1) }
    }

    /// Returns a limit of `per_sec` with a burst that accrues in the same time as this one's.
    fn with_rate(self, per_sec: u64) -> RateLimit {
        let burst = u128::from(self.burst) * u128::from(per_sec) / u128::from(self.per_sec.max(1));
        RateLimit { per_sec, burst: u64::try_from(burst).unwrap_or(u64::MAX).max(1) }
    }

    fn check(self, group: Group, what: LimitKind) -> Result<(), SchedError> {
        let (group, what) = (group.0, what.name());
        for value in [self.per_sec, self.burst] {
            if value == 0 {
                return Err(SchedError::ZeroRate { group, what });
            }
            if value > RATE_MAX {
                return Err(SchedError::RateTooLarge { group, what, value, max: RATE_MAX });
            }
        }
        Ok(())
    }
}

/// A limit, and its tokens.
#[derive(Clone, Copy, Debug)]
struct LimitBucket {
    /// The limit as it was configured, from which the burst of other rates follows.
    configured: RateLimit,
    tokens: TokenBucket,
}

impl LimitBucket {
    /// Returns a full bucket with this limit.
    fn new(limit: RateLimit) -> LimitBucket {
        let rate = TokenRate::per_sec(limit.per_sec);
        let tokens = TokenBucket::new(rate, limit.burst, Rounding::Up);
        LimitBucket { configured: limit, tokens }
    }
}

/// Limits of a group in one direction; no rate means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionThrottle {
    /// Operations as the device sees them: merged requests count as one.
    pub operations: Option<RateLimit>,
    /// Bytes transferred.
    pub bytes: Option<RateLimit>,
}

/// Limits of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupThrottle {
    /// Reads, and extent queries, which transfer no bytes.
    pub read: DirectionThrottle,
    /// Writes, and Write Zeroes and discards, which transfer no bytes.
    pub write: DirectionThrottle,
}

/// Limits of all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThrottleConfig {
    /// Sector size of the device, in bytes.
    pub sector_bytes: u32,
    /// Limits by group; other groups have none.
    pub groups: Vec<(Group, GroupThrottle)>,
}

impl ThrottleConfig {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`SchedError::ZeroRate`], [`SchedError::RateTooLarge`], [`SchedError::TwoLimits`], and for
    /// the sector size [`SchedError::Zero`] and [`SchedError::TooLarge`].
    pub fn validate(&self) -> Result<(), SchedError> {
        super::error::within("sector_bytes", self.sector_bytes.into(), SECTOR_BYTES_MAX)?;
        for (index, (group, limits)) in self.groups.iter().enumerate() {
            if self.groups[..index].iter().any(|(other, _)| other == group) {
                return Err(SchedError::TwoLimits { group: group.0 });
            }
            let rates = [
                (limits.read.operations, LimitKind::ReadOperations),
                (limits.read.bytes, LimitKind::ReadBytes),
                (limits.write.operations, LimitKind::WriteOperations),
                (limits.write.bytes, LimitKind::WriteBytes),
            ];
            for (rate, what) in rates {
                if let Some(rate) = rate {
                    rate.check(*group, what)?;
                }
            }
        }
        Ok(())
    }
}

/// One direction of one group, if it has a limit.
#[derive(Debug)]
struct Gate {
    operations: Option<LimitBucket>,
    bytes: Option<LimitBucket>,
    waiting: FifoQueue,
    /// Time at which the first waiting request may pass, unless a merge makes it larger.
    ready_at: Nanos,
}

impl Gate {
    fn new(limits: DirectionThrottle) -> Option<Gate> {
        let limited = limits.operations.is_some() || limits.bytes.is_some();
        limited.then(|| Gate {
            operations: limits.operations.map(LimitBucket::new),
            bytes: limits.bytes.map(LimitBucket::new),
            waiting: FifoQueue::new(),
            ready_at: Nanos::MAX,
        })
    }

    /// Charges a request that transfers `bytes`, if both buckets have enough tokens.
    fn try_take(&mut self, now: Nanos, bytes: u64) -> bool {
        let mut prices = [(&mut self.operations, 1), (&mut self.bytes, bytes)];
        let enough = prices.iter_mut().all(|(bucket, price)| {
            bucket.as_mut().is_none_or(|bucket| {
                bucket.tokens.fill(now);
                bucket.tokens.can_take(*price)
            })
        });
        for (bucket, price) in prices.into_iter().filter(|_| enough) {
            if let Some(bucket) = bucket {
                bucket.tokens.take(price);
            }
        }
        enough
    }

    /// Returns when both buckets have enough tokens for `bytes`.
    fn tokens_ready_at(&self, bytes: u64) -> Nanos {
        let ready_at = |bucket: Option<LimitBucket>, price| {
            bucket.map_or(Nanos::ZERO, |bucket| bucket.tokens.ready_at(price))
        };
        let (operations, bytes) = (ready_at(self.operations, 1), ready_at(self.bytes, bytes));
        operations.max(bytes)
    }
}

const READ: usize = 0;
const WRITE: usize = 1;

fn direction(op: Op) -> usize {
    match op {
        Op::Read | Op::Extents => READ,
        Op::Write | Op::WriteZeroes | Op::Discard | Op::Flush => WRITE,
    }
}

/// A scheduler with limits per group.
#[derive(Debug)]
pub struct Throttled<S> {
    inner: S,
    sector_bytes: u32,
    /// Gate of a group and a direction, at `2 * group + direction`.
    gates: Vec<Option<Gate>>,
    /// Gates with waiting requests.
    blocked_gates: Vec<u32>,
    queued: usize,
    /// Earliest time at which a gate opens.
    ready_at: Nanos,
}

impl<S: Scheduler> Throttled<S> {
    /// Limits what reaches `inner`, which must be empty.
    ///
    /// # Errors
    /// Those of [`ThrottleConfig::validate`].
    pub fn new(config: &ThrottleConfig, inner: S) -> Result<Throttled<S>, SchedError> {
        config.validate()?;
        let mut gates = Vec::new();
        for (group, limits) in &config.groups {
            let at = 2 * usize::from(group.0);
            if gates.len() < at + 2 {
                gates.resize_with(at + 2, || None);
            }
            gates[at + READ] = Gate::new(limits.read);
            gates[at + WRITE] = Gate::new(limits.write);
        }
        let closed = Vec::with_capacity(gates.iter().flatten().count());
        let sector_bytes = config.sector_bytes;
        Ok(Throttled {
            inner,
            sector_bytes,
            gates,
            blocked_gates: closed,
            queued: 0,
            ready_at: Nanos::MAX,
        })
    }

    /// Returns the number of requests that wait for tokens.
    pub fn throttled(&self) -> usize {
        self.queued
    }

    /// Returns the number of bytes that a request transfers.
    fn bytes(staged: &StagedRequest, sector_bytes: u32) -> u64 {
        match staged.request.op {
            Op::Read | Op::Write => u64::from(staged.request.sectors) * u64::from(sector_bytes),
            Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => 0,
        }
    }

    fn gate_index(staged: &StagedRequest) -> usize {
        2 * usize::from(staged.group.0) + direction(staged.request.op)
    }

    /// Passes the waiting requests for which there are tokens.
    fn release_ready(&mut self, now: Nanos) {
        let Throttled { inner, gates, queued: held, sector_bytes, .. } = self;
        let mut earliest = Nanos::MAX;
        self.blocked_gates.retain(|at| {
            let Some(gate) = &mut gates[*at as usize] else { return false };
            while gate.ready_at <= now {
                let Some(first) = gate.waiting.front() else { break };
                let bytes = Self::bytes(first, *sector_bytes);
                if !gate.try_take(now, bytes) {
                    gate.ready_at = gate.tokens_ready_at(bytes);
                    break;
                }
                if let Some(staged) = gate.waiting.pop_front() {
                    inner.insert(now, staged);
                    *held -= 1;
                }
            }
            let stays = !gate.waiting.is_empty();
            gate.ready_at = if stays { gate.ready_at } else { Nanos::MAX };
            earliest = earliest.min(gate.ready_at);
            stays
        });
        self.ready_at = earliest;
    }
}

impl<S: Scheduler> Scheduler for Throttled<S> {
    fn insert(&mut self, now: Nanos, staged: StagedRequest) {
        let at = Self::gate_index(&staged);
        let Some(Some(gate)) = self.gates.get_mut(at) else {
            return self.inner.insert(now, staged);
        };
        let bytes = Self::bytes(&staged, self.sector_bytes);
        if gate.waiting.is_empty() {
            if gate.try_take(now, bytes) {
                return self.inner.insert(now, staged);
            }
            gate.ready_at = gate.tokens_ready_at(bytes);
            self.ready_at = self.ready_at.min(gate.ready_at);
            self.blocked_gates.push(at as u32);
        }
        gate.waiting.push_back(staged);
        self.queued += 1;
    }

    #[inline]
    fn requeue(&mut self, now: Nanos, staged: StagedRequest) {
        self.inner.requeue(now, staged);
    }

    #[inline]
    fn dispatch(&mut self, now: Nanos) -> Option<StagedRequest> {
        if now >= self.ready_at {
            self.release_ready(now);
        }
        self.inner.dispatch(now)
    }

    #[inline]
    fn completed(&mut self, now: Nanos, staged: &StagedRequest, device: Nanos) {
        self.inner.completed(now, staged, device);
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.ready_at.min(self.inner.deadline())
    }

    #[inline]
    fn len(&self) -> usize {
        self.queued + self.inner.len()
    }

    fn find_merge(
        &mut self,
        newcomer: &StagedRequest,
        visit: &mut dyn FnMut(&mut StagedRequest) -> bool,
    ) -> bool {
        match self.gates.get_mut(Self::gate_index(newcomer)) {
            Some(Some(gate)) => gate.waiting.find_merge(newcomer, visit),
            // A request must not be merged with one that another group has been charged for.
            _ => self
                .inner
                .find_merge(newcomer, &mut |held| held.group == newcomer.group && visit(held)),
        }
    }

    /// Changes the rate of a limit. The tokens saved until `now` stay, as far as the new burst
    /// holds them, and so does a debt.
    fn change_group(
        &mut self,
        now: Nanos,
        group: Group,
        change: GroupChange,
    ) -> Result<(), SchedError> {
        let GroupChange::Rate { of, per_sec } = change else {
            return self.inner.change_group(now, group, change);
        };
        let direction = match of {
            LimitKind::ReadOperations | LimitKind::ReadBytes => READ,
            LimitKind::WriteOperations | LimitKind::WriteBytes => WRITE,
        };
        let gate = self.gates.get_mut(2 * usize::from(group.0) + direction);
        let gate = gate.and_then(Option::as_mut).ok_or(change.unsupported(group))?;
        let bucket = match of {
            LimitKind::ReadOperations | LimitKind::WriteOperations => &mut gate.operations,
            LimitKind::ReadBytes | LimitKind::WriteBytes => &mut gate.bytes,
        };
        let bucket = bucket.as_mut().ok_or(change.unsupported(group))?;
        let limit = bucket.configured.with_rate(per_sec);
        limit.check(group, of)?;
        bucket.tokens.set_rate(now, TokenRate::per_sec(per_sec), limit.burst);
        if let Some(first) = gate.waiting.front() {
            gate.ready_at = gate.tokens_ready_at(Self::bytes(first, self.sector_bytes));
        }
        let blocked = self.blocked_gates.iter().filter_map(|at| self.gates[*at as usize].as_ref());
        self.ready_at = blocked.map(|gate| gate.ready_at).min().unwrap_or(Nanos::MAX);
        Ok(())
    }
}
