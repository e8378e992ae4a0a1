//! [`WriteQueue`]: writes and trims that have not been admitted into the write buffer.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::HostStream;
use crate::check::{Subject, Violation, require};
use crate::ids::Lba;

/// Requests at the head of the queue whose map entries are prefetched together.
const PREFETCH_REQUESTS: usize = 32;

/// Requests at the head of the queue that a write may overtake.
const PROMOTION_DISTANCE: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum QueuedWriteKind {
    Write,
    Zeroes,
    Uncorrectable,
    Trim,
    /// A write of a sector that gets a name.
    Named,
}

/// A request that changes the map. Requests are admitted in the order of their arrival.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct QueuedWrite {
    pub(crate) kind: QueuedWriteKind,
    pub(crate) tag: u64,
    pub(crate) lba: Lba,
    pub(crate) done_sectors: u32,
    pub(crate) sectors: u32,
    /// Whether it is a write that completes only when it is on the media.
    pub(crate) durable: bool,
    /// The stream of a write.
    pub(crate) stream: HostStream,
}

impl QueuedWrite {
    /// Returns the first sector that has not been admitted.
    #[inline]
    pub(crate) fn next_lba(&self) -> Lba {
        self.lba + self.done_sectors
    }

    /// Returns the number of sectors that have not been admitted.
    #[inline]
    pub(crate) fn left(&self) -> u32 {
        self.sectors - self.done_sectors
    }

    /// Whether both requests concern a sector.
    fn overlaps(&self, other: &QueuedWrite) -> bool {
        self.lba < other.lba + other.sectors && other.lba < self.lba + self.sectors
    }

    /// Whether it is a trim.
    #[inline]
    pub(crate) fn is_trim(&self) -> bool {
        self.kind == QueuedWriteKind::Trim
    }
}

/// Writes and trims in the order of their arrival, and the grant to write into the reserve.
///
/// Invariants: no more requests have been prefetched than there are; all sectors are the host's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WriteQueue {
    queue: VecDeque<QueuedWrite>,
    /// Requests at the head whose map entries have been prefetched.
    prefetched: usize,
    /// Sectors that the host may write although the rate limiter does not admit any.
    reserve_grant: u32,
}

impl WriteQueue {
    /// Creates an empty queue.
    pub(crate) fn new() -> WriteQueue {
        WriteQueue { queue: VecDeque::new(), prefetched: 0, reserve_grant: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Requests in the queue.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    #[inline]
    pub(crate) fn push(&mut self, request: QueuedWrite) {
        self.queue.push_back(request);
    }

    /// Returns the request that is admitted next.
    #[inline]
    pub(crate) fn front(&self) -> Option<QueuedWrite> {
        self.queue.front().copied()
    }

    /// Moves the first write of at most `sectors` to the head, if it is among the next few and
    /// concerns no sector of the requests that it overtakes. Returns whether there was one. `is_ready`
    /// says whether a write can be admitted at once.
    pub(crate) fn promote(
        &mut self,
        sectors: u32,
        is_ready: impl Fn(&QueuedWrite) -> bool,
    ) -> bool {
        let fits = |at: &usize| {
            let request = &self.queue[*at];
            request.sectors <= sectors
                && !request.is_trim()
                && is_ready(request)
                && !self.queue.range(..at).any(|earlier| earlier.overlaps(request))
        };
        let Some(at) = (1..self.queue.len().min(PROMOTION_DISTANCE)).find(fits) else {
            return false;
        };
        self.queue.remove(at).into_iter().for_each(|request| self.queue.push_front(request));
        true
    }

    /// Returns the request with this position in the queue.
    #[inline]
    pub(crate) fn get(&self, position: usize) -> Option<QueuedWrite> {
        self.queue.get(position).copied()
    }

    /// Replaces the first request, after a part of it has been admitted.
    #[inline]
    pub(crate) fn update_front(&mut self, request: QueuedWrite) {
        self.queue[0] = request;
    }

    /// Removes the first request.
    #[inline]
    pub(crate) fn pop_front(&mut self) {
        self.queue.pop_front();
        self.prefetched = self.prefetched.saturating_sub(1);
    }

    /// Whether requests are to be prefetched now: those prefetched last are all admitted.
    #[inline]
    pub(crate) fn is_prefetch_due(&self) -> bool {
        self.prefetched == 0
    }

    /// Returns the requests to be prefetched now.
    #[inline]
    pub(crate) fn next_to_prefetch(&mut self) -> impl Iterator<Item = QueuedWrite> + '_ {
        self.prefetched = self.queue.len().min(PREFETCH_REQUESTS);
        self.queue.range(..self.prefetched).copied()
    }

    /// Returns the sectors that may be written into the reserve.
    #[inline]
    pub(crate) fn reserve_grant(&self) -> u32 {
        self.reserve_grant
    }

    /// Consumes up to `sectors` of the grant, and returns how many.
    #[inline]
    pub(crate) fn use_reserve(&mut self, sectors: u32) -> u32 {
        let used = sectors.min(self.reserve_grant);
        self.reserve_grant -= used;
        used
    }

    /// Replaces the grant, and returns the one before.
    pub(crate) fn set_reserve_grant(&mut self, sectors: u32) -> u32 {
        std::mem::replace(&mut self.reserve_grant, sectors)
    }

    /// Checks the invariants; `logical` is the number of the host's sectors.
    pub(crate) fn check(&self, logical: u32) -> Result<(), Violation> {
        require!(
            self.prefetched <= self.queue.len(),
            Requests,
            "prefetched requests are queued",
            Subject::Part,
            format_args!("at most {}", self.queue.len()),
            self.prefetched
        );
        for (i, request) in (0..).zip(&self.queue) {
            let QueuedWrite { lba, sectors, done_sectors, .. } = *request;
            require!(
                done_sectors <= sectors
                    && u64::from(lba.get()) + u64::from(sectors) <= logical.into(),
                Requests,
                "a queued request has sectors left, all of them the host's",
                Subject::Index(i),
                format_args!("sectors below {logical}"),
                format_args!("{request:?}")
            );
        }
        Ok(())
    }

    /// Breaks the count of prefetched requests.
    #[cfg(test)]
    pub(crate) fn break_prefetched(&mut self) {
        self.prefetched = self.queue.len() + 1;
    }
}
