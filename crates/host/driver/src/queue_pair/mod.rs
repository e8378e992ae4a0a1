//! [`QueuePair`]: the host side of a submission queue and its completion queue.
//!
//! The owner submits a batch, rings the doorbell once, and reaps a batch. The submitter owns the
//! pair (ARCHITECTURE.md, R4). A command takes no lock, no atomic read-modify-write, no allocation
//! and no system call, except for doorbells.
//!
//! Guarantee: every submitted command is returned exactly once, whatever the drive writes into the
//! completion queue. It is returned by [`reap`](QueuePair::reap) or, when the queue is abandoned,
//! by [`orphan_next`](QueuePair::orphan_next).

pub(crate) mod memory;

use std::sync::Arc;

use mem::{Iova, NotRegistered};
use nvme::{Cqe, Sqe, Status};
use time::Nanos;
use transport::{CqConsumer, DoorbellStats, Port, ShadowDoorbells, SqProducer};

use crate::{CompletionEvent, Tag, TagSet, TagState};

/// A completed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The value passed to [`QueuePair::submit`].
    pub user: u64,
    /// Dwords 0 and 1 of the completion; on an open-channel drive, one status bit per address.
    pub result: u64,
    /// The status.
    pub status: Status,
}

/// The queue is full; reap some completions first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue pair is full")]
pub struct QueueFull;

/// The host side of a submission queue and its completion queue.
#[derive(Debug)]
pub struct QueuePair {
    sq: SqProducer,
    cq: CqConsumer,
    tags: TagSet,
    qid: u16,
    depth: u16,
    vector: Option<u16>,
    /// Number of commands submitted since the doorbell was last rung.
    pushed: u16,
    spurious: u64,
}

/// Addresses of the rings of a queue pair in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// First submission queue entry.
    pub submission: Iova,
    /// First completion queue entry.
    pub completion: Iova,
}

impl QueuePair {
    /// Opens the host side of queue `qid`, which the drive has already created. Its rings are
    /// zeroed and have `depth` entries each.
    ///
    /// # Errors
    /// [`NotRegistered`] if a ring is not registered, not page aligned, or too short.
    pub fn open(
        port: &Arc<Port>,
        qid: u16,
        rings: RingAddresses,
        depth: u16,
        vector: Option<u16>,
    ) -> Result<QueuePair, NotRegistered> {
        let RingAddresses { submission, completion } = rings;
        Ok(QueuePair {
            sq: SqProducer::open(port, qid, submission, depth)?,
            cq: CqConsumer::open(port, qid, completion, depth)?,
            // A ring of `depth` entries holds one command less. With one tag for each of these,
            // neither ring can overflow.
            tags: TagSet::new(depth - 1),
            qid,
            depth,
            vector,
            pushed: 0,
            spurious: 0,
        })
    }

    /// Restarts the queue pair on the same rings, which the drive has forgotten and which are
    /// zeroed. Tags are unchanged.
    ///
    /// # Errors
    /// As for [`open`](QueuePair::open).
    pub(crate) fn reopen(
        &mut self,
        port: &Arc<Port>,
        rings: RingAddresses,
    ) -> Result<(), NotRegistered> {
        let RingAddresses { submission, completion } = rings;
        let mut sq = SqProducer::open(port, self.qid, submission, self.depth)?;
        let mut cq = CqConsumer::open(port, self.qid, completion, self.depth)?;
        sq.take_over_state(&mut self.sq);
        cq.take_over_state(&mut self.cq);
        (self.sq, self.cq) = (sq, cq);
        self.pushed = 0;
        Ok(())
    }

    /// Switches to doorbells in memory, which the drive already knows. No command may have been
    /// submitted.
    pub(crate) fn set_shadow_doorbells(&mut self, shadows: &ShadowDoorbells) {
        self.sq.enable_shadow(shadows);
        self.cq.enable_shadow(shadows);
    }

    /// Returns the doorbell counters, if doorbells are in memory.
    pub fn doorbells(&self) -> Option<DoorbellStats> {
        Some(self.sq.doorbell_stats()?.plus(&self.cq.doorbell_stats()?))
    }

    /// Writes the doorbell registers with the values that were reported in memory.
    #[cold]
    pub(crate) fn ring_doorbell_registers(&mut self) {
        self.cq.rewrite_doorbell();
        self.sq.rewrite_doorbell();
    }

    /// Returns the queue's identifier.
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Returns the number of entries of each ring.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Returns the maximum number of outstanding commands: one less than a ring has entries.
    pub fn capacity(&self) -> u16 {
        self.tags.count()
    }

    /// Returns the interrupt vector that the drive raises after completions.
    pub fn vector(&self) -> Option<u16> {
        self.vector
    }

    /// Returns the number of outstanding commands.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.tags.bound()
    }

    /// Returns the number of completions that named no outstanding command of this queue. Such
    /// completions are faults of the drive and are dropped.
    pub fn spurious_completions(&self) -> u64 {
        self.spurious
    }

    /// Returns the tag of the next [`submit`](QueuePair::submit), for commands that point to memory
    /// kept per tag; `None` if the queue is full.
    #[inline]
    pub fn next_tag(&self) -> Option<Tag> {
        self.tags.peek()
    }

    /// Writes a command into the submission ring under a new tag, which becomes its command
    /// identifier. The drive sees it after [`ring`](QueuePair::ring); its completion returns
    /// `user`.
    ///
    /// # Errors
    /// [`QueueFull`]; the command was not taken.
    #[inline]
    pub fn submit(&mut self, mut sqe: Sqe, user: u64) -> Result<Tag, QueueFull> {
        let next = self.tags.peek().ok_or(QueueFull)?;
        sqe.cid = next.0.into();
        self.sq.push(&sqe).map_err(|_| QueueFull)?;
        self.pushed += 1;
        self.trace(next, user);
        // The tag is unchanged since it was peeked.
        self.tags.take_bound(user, Nanos::ZERO).ok_or(QueueFull)
    }

    /// Writes a command into the submission ring under a tag allocated from
    /// [`tags_mut`](QueuePair::tags_mut). `now` is its start time.
    ///
    /// # Errors
    /// [`QueueFull`], also if the tag was not allocated; nothing has changed.
    // Inlined, so that a command goes from registers to the ring.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        tag: Tag,
        mut sqe: Sqe,
        user: u64,
        now: Nanos,
    ) -> Result<(), QueueFull> {
        if self.tags.state(tag) != Some(TagState::Taken) {
            return Err(QueueFull);
        }
        sqe.cid = tag.0.into();
        self.sq.push(&sqe).map_err(|_| QueueFull)?;
        self.pushed += 1;
        self.trace(tag, user);
        self.tags.bind(tag, user, now).map_err(|_| QueueFull)
    }

    /// Emits a tracepoint for a command written into the submission queue.
    #[inline(always)]
    fn trace(&self, tag: Tag, user: u64) {
        let (qid, cid) = (self.qid, tag.0);
        tracepoint::trace(|| {
            let port = self.sq.port_number();
            tracepoint::Event::CommandSubmitted { port, qid, cid, user }
        });
    }

    /// Rings the doorbell once for all commands submitted since the last call, if any, and wakes
    /// the drive if it sleeps. Returns whether it rang.
    ///
    /// Releases reaped entries to the drive first, so that the completion ring has space for every
    /// command that the drive knows of.
    #[inline]
    pub fn ring(&mut self) -> bool {
        if self.pushed == 0 {
            return false;
        }
        // Wake the drive once for both doorbells.
        self.cq.release_without_wake();
        self.pushed = 0;
        self.sq.ring();
        true
    }

    /// Reaps the next completion. Its entry is released to the drive by the next
    /// [`ring`](QueuePair::ring) or [`release`](QueuePair::release).
    ///
    /// A completion for a tag that is not outstanding, or for another queue, is counted
    /// ([`spurious_completions`](QueuePair::spurious_completions)) and skipped.
    #[inline]
    pub fn reap(&mut self) -> Option<Completed> {
        let event = self.fetch()?;
        // The event has a bound tag.
        let user = self.tags.free_bound(event.tag).ok()?.user;
        Some(Completed { user, result: event.result, status: event.status })
    }

    /// Completes the command of an event of this pair.
    pub(crate) fn complete_event(&mut self, event: CompletionEvent) -> Option<Completed> {
        let user = self.tags.free_bound(event.tag).ok()?.user;
        Some(Completed { user, result: event.result, status: event.status })
    }

    /// Fetches the next completion of a bound tag, which stays bound; otherwise as
    /// [`reap`](QueuePair::reap).
    #[inline]
    pub(crate) fn fetch(&mut self) -> Option<CompletionEvent> {
        let cqe = self.cq.pop()?;
        match self.validate_cqe(cqe) {
            Some(event) => Some(event),
            None => self.fetch_after_spurious(),
        }
    }

    /// Returns whether there may be a completion.
    #[inline]
    pub(crate) fn has_completion(&self) -> bool {
        self.cq.has_completion()
    }

    /// Returns the tags.
    #[inline]
    pub(crate) fn tags(&self) -> &TagSet {
        &self.tags
    }

    /// Returns mutable access to the tags, for callers that bind commands themselves.
    #[inline]
    pub(crate) fn tags_mut(&mut self) -> &mut TagSet {
        &mut self.tags
    }

    /// Releases reaped entries to the drive. Only needed when no command is submitted any more.
    #[inline]
    pub fn release(&mut self) {
        self.cq.release();
    }

    /// Abandons the outstanding commands: each call returns one, with `status`, until none is left.
    /// Later completions of the drive for them count as spurious.
    pub fn orphan_next(&mut self, status: Status) -> Option<Completed> {
        let (tag, _) = self.tags.bound_tags().next()?;
        let user = self.tags.free_bound(tag).ok()?.user;
        Some(Completed { user, result: 0, status })
    }

    #[inline]
    fn validate_cqe(&mut self, cqe: Cqe) -> Option<CompletionEvent> {
        let tag = Tag(cqe.cid);
        if cqe.sq_id != self.qid || self.tags.state(tag) != Some(TagState::Bound) {
            return None;
        }
        self.sq.update_head(cqe.sq_head);
        Some(CompletionEvent { tag, result: cqe.result, status: cqe.status })
    }

    /// Counts a spurious completion and continues behind it, for at most one round of the ring. A
    /// drive that writes faster than the host reads therefore cannot keep the host in this loop.
    #[cold]
    fn fetch_after_spurious(&mut self) -> Option<CompletionEvent> {
        self.spurious += 1;
        for _ in 1..self.depth {
            let cqe = self.cq.pop()?;
            if let Some(event) = self.validate_cqe(cqe) {
                return Some(event);
            }
            self.spurious += 1;
        }
        None
    }
}
