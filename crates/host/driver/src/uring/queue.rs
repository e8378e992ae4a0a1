//! [`RingQueue`]: a hardware queue that is an io_uring instance.
//!
//! A command is bound (its steps planned, its memory resolved) and issued together with all others.
//! The kernel completes it, perhaps in several steps ([`super::in_flight`]). The queue records per
//! tag whether the kernel has its command. A tag that was freed without a completion therefore
//! cannot be bound again before the kernel completes it.

mod flow_steps;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use rustix::io::Errno;
use time::Nanos;

use super::UringStats;
use super::backend::{CommandFlow, SqeData, UringBackend};
use super::ring::{Ring, RingSetup, SegmentTable};
use crate::hal::{
    BindError, CompletionEvent, Features, HardwareQueue, Limits, QueueState, WaitResult,
};
use crate::{Payload, Request, Tag, TagError, TagSet, TagState};

/// Poll period of a queue that waits for the kernel.
const RETRY_PERIOD: Nanos = Nanos::from_micros(50);

/// The current holder of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// There is no command, or it has completed.
    #[default]
    Idle,
    /// The queue, until the command is issued.
    Bound,
    /// The kernel.
    Issued,
}

/// The command of a tag.
#[derive(Clone, Copy, Debug, Default)]
struct TagCommand<C> {
    flow: C,
    stage: Stage,
    /// Whether the owner has requested an abort.
    aborted: bool,
}

/// Tags bound since the last issue, in order.
#[derive(Debug)]
struct BoundTags {
    tags: Box<[Tag]>,
    count: usize,
}

impl BoundTags {
    fn new(depth: usize) -> BoundTags {
        BoundTags { tags: vec![Tag(0); depth].into(), count: 0 }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a tag; the caller adds each tag at most once between two issues.
    #[inline]
    fn push(&mut self, tag: Tag) {
        if let Some(place) = self.tags.get_mut(self.count) {
            *place = tag;
            self.count += 1;
        }
    }

    /// Removes all tags, which remain readable by index. Returns their number.
    #[inline]
    fn take(&mut self) -> usize {
        std::mem::take(&mut self.count)
    }

    /// Returns a tag of the last [`take`](BoundTags::take).
    #[inline]
    fn taken(&self, index: usize) -> Tag {
        self.tags[index]
    }

    /// Puts a range of the tags of the last [`take`](BoundTags::take) back.
    fn requeue(&mut self, indices: Range<usize>) {
        self.count = indices.len();
        self.tags.copy_within(indices, 0);
    }
}

/// The device and the configuration of a queue.
#[derive(Clone, Copy, Debug)]
pub(in crate::uring) struct RingQueueConfig {
    pub(in crate::uring) limits: Limits,
    pub(in crate::uring) features: Features,
    pub(in crate::uring) setup: RingSetup,
    /// Time after which a reset that has not finished fails.
    pub(in crate::uring) reset_timeout: Nanos,
}

/// A hardware queue that is an io_uring instance: [`UringQueue`](super::UringQueue) of a file or
/// block device, [`PassthroughQueue`](super::PassthroughQueue) of a namespace under the kernel's
/// NVMe driver.
#[derive(Debug)]
pub struct RingQueue<W: UringBackend> {
    // Dropped first: its drop waits for the kernel, which uses the file.
    ring: Ring<W>,
    backend: W,
    config: RingQueueConfig,
    tags: TagSet,
    commands: Box<[TagCommand<W::Flow>]>,
    bound: BoundTags,
    /// Events of commands that were aborted before they were issued.
    local_events: VecDeque<CompletionEvent>,
    /// The event that a check has found.
    peeked_event: Option<CompletionEvent>,
    /// Whether the kernel has not taken all entries of the ring.
    backlog: bool,
    /// Time of the next attempt.
    retry_at: Nanos,
    reset: Option<Reset>,
    /// Whether the device has reported its removal.
    device_removed: bool,
    /// Why the kernel does not serve the ring any more.
    fault: Option<Errno>,
    waker: Option<Waker>,
    /// Whether no wake-up is possible, so that a waiting owner must poll.
    must_poll: bool,
}

#[derive(Clone, Copy, Debug)]
struct Reset {
    deadline: Nanos,
    next_poll: Nanos,
}

impl<W: UringBackend> RingQueue<W> {
    pub(super) fn new(
        wire: W,
        memory: AddressSpace,
        config: RingQueueConfig,
    ) -> io::Result<RingQueue<W>> {
        let setup = config.setup;
        let depth = usize::from(setup.depth);
        Ok(RingQueue {
            ring: Ring::new(wire.file(), setup, memory)?,
            backend: wire,
            config,
            tags: TagSet::new(setup.depth),
            commands: vec![TagCommand::default(); depth].into(),
            bound: BoundTags::new(depth),
            local_events: VecDeque::with_capacity(depth),
            peeked_event: None,
            backlog: false,
            retry_at: Nanos::ZERO,
            reset: None,
            device_removed: false,
            fault: None,
            waker: None,
            must_poll: setup.polled,
        })
    }

    /// Returns the limits of the device.
    pub fn limits(&self) -> Limits {
        self.config.limits
    }

    /// Returns the features of the driver.
    pub fn features(&self) -> Features {
        self.config.features
    }

    /// Returns the counters of the queue.
    pub fn stats(&self) -> UringStats {
        self.ring.stats()
    }

    /// Returns whether the kernel polls for completions.
    pub fn is_polled(&self) -> bool {
        self.ring.is_polled()
    }

    /// Returns why the queue was removed, if the cause is the kernel or a timeout: `EEXIST` for
    /// deferred task work on a second thread, `ETIMEDOUT` for a reset that took too long.
    pub fn fault(&self) -> Option<io::Error> {
        self.fault.map(io::Error::from)
    }

    /// Returns the ring as a descriptor that is readable while there are events, for an owner that
    /// sleeps in its own `poll(2)` or in [`event::Parker::park`]. The owner need not read from it.
    ///
    /// Returns `None` if a sleeping owner would miss events: with [`Polling`](super::Polling),
    /// where commands complete only when the owner polls, and with
    /// [`TaskWork::Deferred`](super::TaskWork). The kernel reports deferred work to an eventfd
    /// ([`set_waker`](HardwareQueue::set_waker)) but not to `poll(2)` on the ring.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ring.event_fd()
    }

    #[inline]
    fn plan(&mut self, tag: Tag, command: &Request) -> Result<W::Flow, BindError> {
        let course = self.backend.plan(command, &self.config.limits).map_err(BindError::Refused)?;
        match (course.data(), command.data) {
            (SqeData::None, _) => {}
            (SqeData::CommandTable(note), _) => self.ring.set_command_table(tag, &note)?,
            (SqeData::Payload { bytes, .. }, Payload::Contiguous(at)) => {
                self.ring.set_contiguous(tag, at, bytes)?
            }
            (SqeData::Payload { write, bytes }, Payload::BitBucket) => {
                self.ring.set_bit_bucket(tag, bytes, write)?;
            }
            (SqeData::Payload { write, bytes }, Payload::Scattered { table, segments }) => {
                let table = SegmentTable { at: table, segments };
                self.ring.set_segments(tag, table, bytes, write)?;
            }
        }
        Ok(course)
    }
}

impl<W: UringBackend> HardwareQueue for RingQueue<W> {
    #[inline]
    fn tags(&self) -> &TagSet {
        &self.tags
    }

    #[inline]
    fn tags_mut(&mut self) -> &mut TagSet {
        &mut self.tags
    }

    fn memory(&self) -> &AddressSpace {
        self.ring.memory()
    }

    /// Rejects commands of a removed device with [`Status::NOT_READY`]. A tag that was detached
    /// without an event is busy until the kernel has completed its old command.
    #[inline]
    fn bind_tag_cmd(&mut self, tag: Tag, command: &Request, now: Nanos) -> Result<(), BindError> {
        if self.reset.is_some() || self.fault.is_some() {
            return Err(BindError::Busy);
        }
        self.tags.bind(tag, command.tag, now)?;
        let flight = match self.device_removed {
            _ if self.ring.is_in_kernel(tag) => Err(BindError::Busy),
            false => self.plan(tag, command),
            true => Err(BindError::Refused(Status::NOT_READY)),
        };
        match flight {
            Ok(flight) => {
                let index = usize::from(tag.0);
                // A tag that was bound, freed and bound again is already in the list.
                let slot = &mut self.commands[index];
                *slot = TagCommand { flow: flight, stage: slot.stage, aborted: false };
                self.defer(tag);
                Ok(())
            }
            Err(error) => {
                self.tags.detach(tag)?;
                Err(error)
            }
        }
    }

    #[inline]
    fn issue_tags(&mut self) -> bool {
        if self.reset.is_some() || self.fault.is_some() {
            return false;
        }
        let any = !self.bound.is_empty();
        if any {
            self.push_bound();
        }
        if any || self.backlog {
            self.submit();
            self.backlog |= !self.bound.is_empty();
        }
        any
    }

    #[inline]
    fn check_event(&mut self) -> bool {
        if self.peeked_event.is_none() {
            self.peeked_event = self.fetch_event();
        }
        self.peeked_event.is_some()
    }

    #[inline]
    fn fetch_event(&mut self) -> Option<CompletionEvent> {
        if self.peeked_event.is_some() {
            return self.peeked_event.take();
        }
        if self.reset.is_some() {
            return None;
        }
        self.next_event()
    }

    /// A command that has not been issued completes with the next
    /// [`issue_tags`](HardwareQueue::issue_tags). A command that the device has started completes
    /// normally.
    fn abort_tag(&mut self, tag: Tag, _now: Nanos) -> Result<(), TagError> {
        if self.tags.state(tag) != Some(TagState::Bound) {
            return self.tags.detach(tag).map(drop);
        }
        let flight = &mut self.commands[usize::from(tag.0)];
        flight.aborted = true;
        if flight.stage == Stage::Issued {
            self.ring.cancel(Some(tag));
            self.submit();
        }
        Ok(())
    }

    /// Cancels the commands in the kernel; waits for those that the device has started.
    fn reset(&mut self, now: Nanos) {
        if self.reset.is_some() || self.fault.is_some() {
            return;
        }
        self.bound.take();
        self.local_events.clear();
        self.peeked_event = None;
        if self.ring.in_kernel() > 0 {
            self.ring.cancel(None);
            self.submit();
        }
        let reset = Reset { deadline: now + self.config.reset_timeout, next_poll: now };
        self.reset = Some(reset);
    }

    /// Returns [`QueueState::Removed`] for a removed device once every command has completed, and
    /// for a ring that the kernel does not serve any more ([`fault`](RingQueue::fault)).
    fn state(&self) -> QueueState {
        let ended = self.ring.in_kernel() == 0
            && self.local_events.is_empty()
            && self.peeked_event.is_none();
        match self.reset {
            _ if self.fault.is_some() => QueueState::Removed,
            _ if self.device_removed && ended && self.bound.is_empty() => QueueState::Removed,
            Some(_) => QueueState::Resetting,
            None => QueueState::Ready,
        }
    }

    fn poll(&mut self, now: Nanos) -> bool {
        if self.fault.is_some() {
            return false;
        }
        if self.backlog {
            self.retry_at = now + RETRY_PERIOD;
            // Commands bound since are issued as well.
            self.push_bound();
            self.submit();
            self.backlog |= !self.bound.is_empty();
        }
        match self.reset {
            Some(reset) => self.step_reset(reset, now),
            None => false,
        }
    }

    fn deadline(&self) -> Nanos {
        if self.fault.is_some() {
            return Nanos::MAX;
        }
        if self.must_poll && self.ring.in_kernel() > 0 {
            return Nanos::ZERO;
        }
        let reset = self.reset.map_or(Nanos::MAX, |reset| reset.next_poll);
        if self.backlog { reset.min(self.retry_at) } else { reset }
    }

    /// Returns whether completions are reported without polling.
    fn can_wait(&self) -> bool {
        self.ring.can_wake()
    }

    /// Makes one system call, or none if nothing is to be issued and there is an event. During a
    /// reset, and while the kernel has not taken all entries, [`poll`](HardwareQueue::poll) does
    /// the work instead.
    #[inline]
    fn wait_for_event(&mut self, timeout: Nanos) -> WaitResult {
        if !self.ring.can_wake() || self.reset.is_some() || self.fault.is_some() || self.backlog {
            return WaitResult::Unsupported;
        }
        self.push_bound();
        if self.peeked_event.is_some() || !self.local_events.is_empty() || !self.bound.is_empty() {
            self.submit();
            self.backlog |= !self.bound.is_empty();
            return WaitResult::Ready;
        }
        match self.ring.submit_and_wait(timeout) {
            Ok((all, rest)) => {
                self.backlog = !all;
                rest
            }
            Err(error) => {
                self.fail(&error);
                WaitResult::Unsupported
            }
        }
    }

    /// The kernel writes to the waker's eventfd itself. It cannot with [`Polling`](super::Polling),
    /// or if the ring belongs to another thread. The deadline is then now while any command is in
    /// flight, so that the owner does not sleep.
    fn set_waker(&mut self, waker: Waker) {
        let watched = self.ring.register_event_fd(waker.as_fd()).is_ok();
        self.must_poll = self.ring.is_polled() || !watched;
        self.waker = Some(waker);
    }
}
