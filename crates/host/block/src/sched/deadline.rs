//! [`Deadline`]: dispatches in sector order, with an expiry time per request.
//!
//! The behaviour is that of Linux's `mq-deadline` (Documentation/block/deadline-iosched.rst), one
//! of the schedulers that [SYSTOR13 §2.1] names. Reads and writes are queued separately, each in
//! sector order and in arrival order. Everything that changes sectors (writes, Write Zeroes,
//! discards) counts as a write.
//!
//! Requests are dispatched in batches of one direction, in sector order from the position of that
//! direction. A new batch prefers reads, unless read batches have passed over waiting writes
//! `writes_starved` times. It starts with the oldest request of its direction if that request has
//! expired, or if none lies ahead of the position.
//!
//! Guarantee: an expired request that is the oldest of its direction is dispatched after the
//! current batch. A read waits for at most one further batch of writes, a write for at most
//! `writes_starved` batches of reads.

use time::Nanos;

use super::Scheduler;
use super::error::{SchedError, within};
use super::fifo::FifoQueue;
use super::sorted::SectorSorted;
use crate::{Op, StagedRequest};

/// Maximum expiry time.
const EXPIRE_MAX: Nanos = Nanos::from_secs(3600);
/// Maximum of `fifo_batch` and of `writes_starved`.
const BATCH_MAX: u32 = 1 << 16;

/// Parameters of [`Deadline`]. The defaults are Linux's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineConfig {
    /// Time after which a read expires.
    pub read_expire: Nanos,
    /// Time after which a write expires.
    pub write_expire: Nanos,
    /// Maximum number of requests per batch.
    pub fifo_batch: u32,
    /// Number of read batches that may pass over waiting writes.
    pub writes_starved: u32,
    /// Whether a request may be merged in front of one that begins at its end. Back merges are
    /// always tried and are far more frequent.
    pub front_merges: bool,
}

impl Default for DeadlineConfig {
    fn default() -> DeadlineConfig {
        DeadlineConfig {
            read_expire: Nanos::from_millis(500),
            write_expire: Nanos::from_secs(5),
            fifo_batch: 16,
            writes_starved: 2,
            front_merges: true,
        }
    }
}

impl DeadlineConfig {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`SchedError::Zero`] and [`SchedError::TooLarge`]: times must be at most an hour (0
    /// dispatches in arrival order), the other values in `1..=65536`.
    pub fn validate(&self) -> Result<(), SchedError> {
        let expire = |what, value: Nanos| within(what, value.0.max(1), EXPIRE_MAX.0);
        expire("read_expire_ns", self.read_expire)?;
        expire("write_expire_ns", self.write_expire)?;
        within("fifo_batch", self.fifo_batch.into(), BATCH_MAX.into())?;
        within("writes_starved", self.writes_starved.into(), BATCH_MAX.into())
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

/// A scheduler in sector order with expiry times.
#[derive(Debug)]
pub struct Deadline {
    config: DeadlineConfig,
    /// Waiting reads and writes.
    waiting: [SectorSorted; 2],
    /// Position of each direction: the first sector of the request dispatched last.
    position: [u64; 2],
    /// Requests that were requeued from the hardware. Their batch has been charged, so they go
    /// first.
    requeued: FifoQueue,
    /// Direction of the current batch.
    batch: usize,
    /// Number of requests that the current batch may still dispatch.
    batch_remaining: u32,
    /// Number of read batches that passed over waiting writes.
    starved: u32,
}

impl Deadline {
    /// Creates an empty scheduler.
    ///
    /// # Errors
    /// Those of [`DeadlineConfig::validate`].
    pub fn new(config: DeadlineConfig) -> Result<Deadline, SchedError> {
        config.validate()?;
        Ok(Deadline {
            config,
            waiting: [SectorSorted::new(), SectorSorted::new()],
            position: [0; 2],
            requeued: FifoQueue::new(),
            batch: READ,
            batch_remaining: 0,
            starved: 0,
        })
    }

    /// Returns the direction of a new batch. At least one request is waiting.
    fn choose_direction(&mut self) -> usize {
        let [reads, writes] = &self.waiting;
        if !reads.is_empty() {
            if writes.is_empty() {
                return READ;
            }
            if self.starved < self.config.writes_starved {
                self.starved += 1;
                return READ;
            }
        }
        self.starved = 0;
        WRITE
    }

    /// Removes and returns the next request of the current batch.
    #[inline]
    fn continue_batch(&mut self) -> Option<StagedRequest> {
        if self.batch_remaining == 0 {
            return None;
        }
        let staged = self.waiting[self.batch].pop_from(self.position[self.batch])?;
        self.batch_remaining -= 1;
        Some(staged)
    }

    fn begin_batch(&mut self, now: Nanos) -> Option<StagedRequest> {
        let direction = self.choose_direction();
        let waiting = &mut self.waiting[direction];
        let expired = waiting.oldest_expires().is_some_and(|at| at <= now);
        let position = self.position[direction];
        let staged = if expired { None } else { waiting.pop_from(position) };
        let staged = match staged {
            Some(staged) => staged,
            None => waiting.pop_oldest()?,
        };
        self.batch = direction;
        self.batch_remaining = self.config.fifo_batch - 1;
        Some(staged)
    }
}

impl Scheduler for Deadline {
    fn insert(&mut self, now: Nanos, staged: StagedRequest) {
        let direction = direction(staged.request.op);
        let expire = [self.config.read_expire, self.config.write_expire][direction];
        self.waiting[direction].push(staged, now + expire);
    }

    fn requeue(&mut self, _: Nanos, staged: StagedRequest) {
        self.requeued.push_front(staged);
    }

    fn dispatch(&mut self, now: Nanos) -> Option<StagedRequest> {
        if let Some(staged) = self.requeued.pop_front() {
            return Some(staged);
        }
        if self.waiting.iter().all(SectorSorted::is_empty) {
            return None;
        }
        let staged = self.continue_batch().or_else(|| self.begin_batch(now))?;
        self.position[self.batch] = staged.request.lba;
        Some(staged)
    }

    #[inline]
    fn len(&self) -> usize {
        let [reads, writes] = &self.waiting;
        reads.len() + writes.len() + self.requeued.len()
    }

    fn find_merge(
        &mut self,
        newcomer: &StagedRequest,
        visit: &mut dyn FnMut(&mut StagedRequest) -> bool,
    ) -> bool {
        let front = self.config.front_merges;
        self.waiting[direction(newcomer.request.op)].find_merge(newcomer, front, visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Group, Payload, Request, Submitter};

    fn staged(request: Request) -> StagedRequest {
        StagedRequest {
            request,
            since: Nanos::ZERO,
            submitter: Submitter(0),
            group: Group(0),
            merged: 1,
            requeues: 0,
        }
    }

    fn scheduler(change: impl FnOnce(&mut DeadlineConfig)) -> Deadline {
        let mut config = DeadlineConfig::default();
        change(&mut config);
        Deadline::new(config).unwrap()
    }

    fn read(lba: u64) -> StagedRequest {
        staged(Request::read(lba, 1, Payload::BitBucket, lba))
    }

    fn write(lba: u64) -> StagedRequest {
        staged(Request::write(lba, 1, Payload::BitBucket, lba))
    }

    fn order(scheduler: &mut Deadline, now: Nanos) -> Vec<(Op, u64)> {
        let next = std::iter::from_fn(|| scheduler.dispatch(now));
        next.map(|s| (s.request.op, s.request.lba)).collect()
    }

    #[test]
    fn sectors_ascend_from_where_the_direction_was() {
        let mut deadline = scheduler(|_| ());
        [50, 10, 40].into_iter().for_each(|lba| deadline.insert(Nanos::ZERO, read(lba)));
        assert_eq!(deadline.dispatch(Nanos::ZERO).map(|s| s.request.lba), Some(10));
        [5, 45].into_iter().for_each(|lba| deadline.insert(Nanos::ZERO, read(lba)));
        let lbas: Vec<_> = order(&mut deadline, Nanos::ZERO).iter().map(|(_, lba)| *lba).collect();
        assert_eq!(lbas, [40, 45, 50, 5], "what lies behind waits for the next sweep");
    }

    #[test]
    fn writes_are_passed_over_twice() {
        let mut deadline = scheduler(|c| c.fifo_batch = 2);
        (0..8).for_each(|lba| deadline.insert(Nanos::ZERO, read(lba)));
        (0..4).for_each(|lba| deadline.insert(Nanos::ZERO, write(lba)));
        let ops: String = order(&mut deadline, Nanos::ZERO)
            .iter()
            .map(|(op, _)| if *op == Op::Read { 'r' } else { 'w' })
            .collect();
        assert_eq!(ops, "rrrrwwrrrrww");
    }

    #[test]
    fn a_batch_begins_with_the_oldest_when_its_time_is_up() {
        let mut deadline = scheduler(|c| c.fifo_batch = 2);
        deadline.insert(Nanos::ZERO, read(50));
        assert_eq!(order(&mut deadline, Nanos::ZERO).len(), 1);
        deadline.insert(Nanos::ZERO, read(10));
        (60..66).for_each(|lba| deadline.insert(Nanos(1), read(lba)));
        let late = deadline.config.read_expire;
        let lbas: Vec<_> = order(&mut deadline, late).iter().map(|(_, lba)| *lba).collect();
        assert_eq!(lbas, [60, 10, 61, 62, 63, 64, 65], "the batch under way ends first");
    }

    #[test]
    fn what_changes_sectors_is_a_write() {
        let mut deadline = scheduler(|_| ());
        let at = Payload::BitBucket;
        for request in [
            Request::discard(1, 8, 0),
            Request::write_zeroes(2, 8, false, 1),
            Request::write(3, 8, at, 2),
            Request::flush(3),
            Request::read(9, 1, at, 4),
            Request::extents(8, 1, mem::Iova(0), 5),
        ] {
            deadline.insert(Nanos::ZERO, staged(request));
        }
        assert_eq!(deadline.len(), 6);
        let ops: Vec<_> = order(&mut deadline, Nanos::ZERO).iter().map(|(op, _)| *op).collect();
        let writes = [Op::Flush, Op::Discard, Op::WriteZeroes, Op::Write];
        assert_eq!(ops, [&[Op::Extents, Op::Read][..], &writes].concat());
    }

    #[test]
    fn nonsense_is_refused() {
        let error = |change: fn(&mut DeadlineConfig)| {
            let mut config = DeadlineConfig::default();
            change(&mut config);
            Deadline::new(config).unwrap_err()
        };
        assert_eq!(error(|c| c.fifo_batch = 0), SchedError::Zero { what: "fifo_batch" });
        assert_eq!(error(|c| c.writes_starved = 0), SchedError::Zero { what: "writes_starved" });
        assert!(matches!(error(|c| c.read_expire = Nanos::MAX), SchedError::TooLarge { .. }));
        assert!(matches!(error(|c| c.write_expire = Nanos::MAX), SchedError::TooLarge { .. }));
        assert!(matches!(error(|c| c.fifo_batch = u32::MAX), SchedError::TooLarge { .. }));
        assert!(
            Deadline::new(DeadlineConfig { read_expire: Nanos::ZERO, ..Default::default() })
                .is_ok()
        );
    }
}
