//! [`QueuePair`]: submit many, ring once, reap many.
//!
//! Owned by whoever submits (rule R4): no lock, no atomic read-modify-write, no allocation and no
//! system call per command, doorbells aside. Guarantee: every submitted command comes back exactly
//! once, through [`reap`](QueuePair::reap) or, when the queue is given up,
//! [`abandon`](QueuePair::orphan_next), whatever the drive writes into the completion queue.

use std::sync::Arc;

use clock::Nanos;
use nvme::{Cqe, Sqe, Status};
use ring::{CqConsumer, DoorbellStats, Iova, NotRegistered, Port, ShadowDoorbells, SqProducer};

use crate::{Event, Tag, TagSet, TagState};

/// A command that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// What [`QueuePair::submit`] was given.
    pub user: u64,
    /// Dwords 0 and 1 of the completion: on an open-channel drive, one status bit per address.
    pub result: u64,
    /// How it ended.
    pub status: Status,
}

/// As many commands are outstanding as the queue holds; reap some first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue pair is full")]
pub struct QueueFull;

/// The host's end of a submission queue and its completion queue.
#[derive(Debug)]
pub struct QueuePair {
    sq: SqProducer,
    cq: CqConsumer,
    tags: TagSet,
    qid: u16,
    depth: u16,
    vector: Option<u16>,
    /// Commands pushed since the doorbell was last rung.
    pushed: u16,
    spurious: u64,
}

impl QueuePair {
    /// The host's end of queue `qid`, which the drive knows by now; its rings are at `submission`
    /// and
    /// `completion`, both of `depth` entries and zero.
    ///
    /// # Errors
    /// [`NotRegistered`] when a ring is not registered, not page aligned, or shorter than that.
    pub fn open(
        port: &Arc<Port>,
        qid: u16,
        (submission, completion): (Iova, Iova),
        depth: u16,
        vector: Option<u16>,
    ) -> Result<QueuePair, NotRegistered> {
        Ok(QueuePair {
            sq: SqProducer::open(port, qid, submission, depth)?,
            cq: CqConsumer::open(port, qid, completion, depth)?,
            // A ring of `depth` entries holds one less; with a tag for each of these, neither ring
            // can overflow.
            tags: TagSet::new(depth - 1),
            qid,
            depth,
            vector,
            pushed: 0,
            spurious: 0,
        })
    }

    /// Begins anew on the same rings, which the drive has forgotten and which are zero. Tags stay as
    /// they are.
    ///
    /// # Errors
    /// As for [`open`](QueuePair::open).
    pub(crate) fn reopen(
        &mut self,
        port: &Arc<Port>,
        (submission, completion): (Iova, Iova),
    ) -> Result<(), NotRegistered> {
        let mut sq = SqProducer::open(port, self.qid, submission, self.depth)?;
        let mut cq = CqConsumer::open(port, self.qid, completion, self.depth)?;
        sq.take_over_state(&mut self.sq);
        cq.take_over_state(&mut self.cq);
        (self.sq, self.cq) = (sq, cq);
        self.pushed = 0;
        Ok(())
    }

    /// The queue has doorbells in memory, which the drive knows of; nothing was submitted yet.
    pub(crate) fn set_shadow_doorbells(&mut self, shadows: &ShadowDoorbells) {
        self.sq.enable_shadow(shadows);
        self.cq.enable_shadow(shadows);
    }

    /// How often doorbells were rung, if they are in memory.
    pub fn doorbells(&self) -> Option<DoorbellStats> {
        Some(self.sq.doorbell_stats()?.and(self.cq.doorbell_stats()?))
    }

    /// Tells a drive of everything by its registers that was told by memory.
    #[cold]
    pub(crate) fn ring_doorbell_registers(&mut self) {
        self.cq.rewrite_doorbell();
        self.sq.rewrite_doorbell();
    }

    /// The queue's identifier.
    pub fn qid(&self) -> u16 {
        self.qid
    }

    /// Entries of each ring.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Commands that can be outstanding: one less than the rings have entries.
    pub fn capacity(&self) -> u16 {
        self.tags.count()
    }

    /// The interrupt vector that the drive raises after completions.
    pub fn vector(&self) -> Option<u16> {
        self.vector
    }

    /// Commands outstanding.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.tags.bound()
    }

    /// Completions that named no outstanding command of this queue: faults of the drive, dropped.
    pub fn spurious_completions(&self) -> u64 {
        self.spurious
    }

    /// The tag that the next [`submit`](QueuePair::submit) will take, for commands that point to
    /// memory kept per tag; `None` when the queue is full.
    #[inline]
    pub fn next_tag(&self) -> Option<Tag> {
        self.tags.peek()
    }

    /// Puts a command into the submission ring under a tag of its own, which becomes its command
    /// identifier. The drive sees it after [`ring`](QueuePair::ring); `user` comes back with its
    /// completion.
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
        // The same tag: nobody else takes any.
        self.tags.take_bound(user, Nanos::ZERO).ok_or(QueueFull)
    }

    /// Puts a command into the submission ring under a tag that was taken from
    /// [`tags_mut`](QueuePair::tags_mut); `now` starts its clock.
    ///
    /// # Errors
    /// [`QueueFull`], also when the tag was not taken; nothing has changed.
    // A command that is made where it is pushed goes to the ring from registers.
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

    /// Reports a command that was put into the submission queue.
    #[inline(always)]
    fn trace(&self, tag: Tag, user: u64) {
        let (qid, cid) = (self.qid, tag.0);
        tracepoint::trace(|| tracepoint::Event::CommandSubmitted { qid, cid, user });
    }

    /// Rings the doorbell if commands were submitted since the last call, once for all of them, and
    /// wakes the drive if it sleeps. Returns whether it did.
    ///
    /// Reaped entries go back to the drive first, so that a completion ring always has room for
    /// every command that the drive has been told of.
    #[inline]
    pub fn ring(&mut self) -> bool {
        if self.pushed == 0 {
            return false;
        }
        // The drive is woken once, for both doorbells.
        self.cq.release_without_wake();
        self.pushed = 0;
        self.sq.ring();
        true
    }

    /// Takes the next completion. Its entry goes back to the drive with the next
    /// [`ring`](QueuePair::ring) or [`release`](QueuePair::release).
    ///
    /// A completion for a tag that is not outstanding, or for another queue, is counted
    /// ([`spurious_completions`](QueuePair::spurious_completions)) and skipped.
    #[inline]
    pub fn reap(&mut self) -> Option<Completed> {
        let event = self.fetch()?;
        // The event is that of a bound tag.
        let user = self.tags.free_bound(event.tag).ok()?.user;
        Some(Completed { user, result: event.result, status: event.status })
    }

    /// Takes the command back that an event of this pair was about.
    pub(crate) fn complete_event(&mut self, event: Event) -> Option<Completed> {
        let user = self.tags.free_bound(event.tag).ok()?.user;
        Some(Completed { user, result: event.result, status: event.status })
    }

    /// Takes the next completion of a bound tag, which stays bound; as for [`reap`](QueuePair::reap).
    #[inline]
    pub(crate) fn fetch(&mut self) -> Option<Event> {
        let cqe = self.cq.pop()?;
        match self.validate_cqe(cqe) {
            Some(event) => Some(event),
            None => self.fetch_after_spurious(),
        }
    }

    /// Whether there may be a completion.
    #[inline]
    pub(crate) fn has_completion(&self) -> bool {
        self.cq.has_completion()
    }

    /// The tags.
    #[inline]
    pub(crate) fn tags(&self) -> &TagSet {
        &self.tags
    }

    /// The tags, for who binds commands itself.
    #[inline]
    pub(crate) fn tags_mut(&mut self) -> &mut TagSet {
        &mut self.tags
    }

    /// Gives reaped entries back to the drive. Only needed when nothing is submitted any more.
    #[inline]
    pub fn release(&mut self) {
        self.cq.release();
    }

    /// Gives up every outstanding command: each call returns one, with `status`, until none is
    /// left. What the drive still writes for them counts as stray.
    pub fn orphan_next(&mut self, status: Status) -> Option<Completed> {
        let (tag, _) = self.tags.bound_tags().next()?;
        let user = self.tags.free_bound(tag).ok()?.user;
        Some(Completed { user, result: 0, status })
    }

    #[inline]
    fn validate_cqe(&mut self, cqe: Cqe) -> Option<Event> {
        let tag = Tag(cqe.cid);
        if cqe.sq_id != self.qid || self.tags.state(tag) != Some(TagState::Bound) {
            return None;
        }
        self.sq.update_head(cqe.sq_head);
        Some(Event { tag, result: cqe.result, status: cqe.status })
    }

    /// Counts a stray completion and goes on behind it, once round the ring at most: a drive that
    /// writes faster than this reads cannot keep it here.
    #[cold]
    fn fetch_after_spurious(&mut self) -> Option<Event> {
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
