//! [`RingQueue`]: a hardware queue that is an io_uring instance.
//!
//! A command is bound (planned, its memory found), issued with all others at once, and answered by
//! the kernel, perhaps in several steps ([`super::flight`]). What is outstanding at the kernel is known
//! tag by tag, so a tag that was given back without an answer cannot be bound again before there is
//! one.

mod flow_steps;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ::ring::AddressSpace;
use clock::{Nanos, Waker};
use nvme::Status;
use rustix::io::Errno;

use super::UringStats;
use super::backend::{CommandFlow, SqeData, UringBackend};
use super::ring::{Ring, RingSetup};
use crate::hal::{BindError, Event, Features, HardwareQueue, Limits, QueueState, WaitResult};
use crate::{Payload, Request, Tag, TagError, TagSet, TagState};

/// How often a queue that waits for the kernel looks again.
const RETRY_PERIOD: Nanos = Nanos::from_micros(50);

/// Who has a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nobody: there is no command, or it has ended.
    #[default]
    Idle,
    /// The queue, until it is issued.
    Bound,
    /// The kernel.
    Issued,
}

/// The command of a tag.
#[derive(Clone, Copy, Debug, Default)]
struct TagCommand<C> {
    flow: C,
    stage: Stage,
    /// Somebody has asked to give it up.
    aborted: bool,
}

/// A hardware queue that is an io_uring instance: [`UringQueue`](super::UringQueue) of a file or block
/// device, [`PassthroughQueue`](super::PassthroughQueue) of a controller under the kernel's driver.
#[derive(Debug)]
pub struct RingQueue<W: UringBackend> {
    // Dropped first: it waits for the kernel, which uses the file.
    ring: Ring<W>,
    backend: W,
    limits: Limits,
    features: Features,
    tags: TagSet,
    commands: Box<[TagCommand<W::Flow>]>,
    /// Tags bound since the last issue, in order.
    bound: Box<[Tag]>,
    bound_count: usize,
    /// Commands given to the kernel with one system call at most.
    submit_batch: u16,
    /// Events without an answer of the kernel: commands that were given up before they were issued.
    local_events: VecDeque<Event>,
    /// The event that a look has found.
    peeked_event: Option<Event>,
    /// The kernel has not taken everything that is in the ring.
    backlog: bool,
    /// When it is asked again.
    retry_at: Nanos,
    reset: Option<Reset>,
    reset_timeout: Nanos,
    /// The device has said that it is gone.
    device_removed: bool,
    /// Why the kernel does not serve the ring any more.
    fault: Option<Errno>,
    waker: Option<Waker>,
    /// Nobody can be woken: whoever waits must look.
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
        setup: RingSetup,
        memory: AddressSpace,
        (limits, features): (Limits, Features),
        reset_patience: Nanos,
    ) -> io::Result<RingQueue<W>> {
        let depth = usize::from(setup.depth);
        Ok(RingQueue {
            ring: Ring::new(wire.file(), setup, memory)?,
            backend: wire,
            limits,
            features,
            tags: TagSet::new(setup.depth),
            commands: vec![TagCommand::default(); depth].into(),
            bound: vec![Tag(0); depth].into(),
            bound_count: 0,
            submit_batch: setup.submit_batch,
            local_events: VecDeque::with_capacity(depth),
            peeked_event: None,
            backlog: false,
            retry_at: Nanos::ZERO,
            reset: None,
            reset_timeout: reset_patience,
            device_removed: false,
            fault: None,
            waker: None,
            must_poll: setup.polled,
        })
    }

    /// What the device can do.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What the driver can do.
    pub fn features(&self) -> Features {
        self.features
    }

    /// What the queue has counted.
    pub fn stats(&self) -> UringStats {
        self.ring.stats()
    }

    /// Whether completions are polled for.
    pub fn is_polled(&self) -> bool {
        self.ring.is_polled()
    }

    /// Why the queue was removed, if the kernel or its patience is at fault: `EEXIST` for deferred
    /// task work on a second thread, `ETIMEDOUT` for a reset that took too long.
    pub fn fault(&self) -> Option<io::Error> {
        self.fault.map(io::Error::from)
    }

    /// The ring as a descriptor that is readable while there are events: for an owner that sleeps in
    /// a `poll(2)` of its own, or beside [`clock::Parker::park`]. Nothing need be read from it. `None`
    /// where a sleeper would miss its event: with [`Polling`](super::Polling), where nothing ends unless
    /// somebody looks, and with [`TaskWork::Deferred`](super::TaskWork), of whose waiting work the kernel
    /// tells an eventfd ([`set_waker`](HardwareQueue::set_waker)) but not who polls the ring.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.ring.event_fd()
    }

    #[inline]
    fn plan(&mut self, tag: Tag, command: &Request) -> Result<W::Flow, BindError> {
        let course = self.backend.plan(command, &self.limits).map_err(BindError::Refused)?;
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
                self.ring.set_segments(tag, (table, segments), bytes, write)?;
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

    /// A device that is gone refuses with [`Status::NOT_READY`]. A tag that was detached without an
    /// event is busy until the kernel has answered what it was bound to.
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
                // A tag that was bound, given back and bound again is kept already.
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
        let any = self.bound_count > 0;
        if any {
            self.push_bound();
        }
        if any || self.backlog {
            self.submit();
            self.backlog |= self.bound_count > 0;
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
    fn fetch_event(&mut self) -> Option<Event> {
        if self.peeked_event.is_some() {
            return self.peeked_event.take();
        }
        if self.reset.is_some() {
            return None;
        }
        self.next_event()
    }

    /// A command that has not been issued ends with the next
    /// [`issue_tags`](HardwareQueue::issue_tags). One that the device has begun ends as it does.
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

    /// Commands that the kernel has are cancelled; those that the device has begun are waited for.
    fn reset(&mut self, now: Nanos) {
        if self.reset.is_some() || self.fault.is_some() {
            return;
        }
        self.bound_count = 0;
        self.local_events.clear();
        self.peeked_event = None;
        if self.ring.in_kernel() > 0 {
            self.ring.cancel(None);
            self.submit();
        }
        let reset = Reset { deadline: now + self.reset_timeout, next_poll: now };
        self.reset = Some(reset);
    }

    /// Removed are a queue whose device is gone, once every command has ended, and one whose ring
    /// the kernel does not serve any more ([`fault`](RingQueue::fault)).
    fn state(&self) -> QueueState {
        let ended = self.ring.in_kernel() == 0
            && self.local_events.is_empty()
            && self.peeked_event.is_none();
        match self.reset {
            _ if self.fault.is_some() => QueueState::Removed,
            _ if self.device_removed && ended && self.bound_count == 0 => QueueState::Removed,
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
            // What has been bound since goes along.
            self.push_bound();
            self.submit();
            self.backlog |= self.bound_count > 0;
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

    /// Where completions are not polled for.
    fn can_wait(&self) -> bool {
        self.ring.can_wake()
    }

    /// One system call, or none if there is nothing to issue and an event waits. A queue that is being
    /// reset, or that the kernel has not taken everything from, is looked after by
    /// [`poll`](HardwareQueue::poll) instead.
    #[inline]
    fn wait_for_event(&mut self, timeout: Nanos) -> WaitResult {
        if !self.ring.can_wake() || self.reset.is_some() || self.fault.is_some() || self.backlog {
            return WaitResult::Unsupported;
        }
        self.push_bound();
        if self.peeked_event.is_some() || !self.local_events.is_empty() || self.bound_count > 0 {
            self.submit();
            self.backlog |= self.bound_count > 0;
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

    /// The kernel writes to the waker's eventfd itself. Where it cannot ([`Polling`](super::Polling),
    /// or a ring that belongs to another thread already), the deadline is now while anything is under
    /// way, so that its owner does not sleep.
    fn set_waker(&mut self, waker: Waker) {
        let watched = self.ring.register_event_fd(waker.as_fd()).is_ok();
        self.must_poll = self.ring.is_polled() || !watched;
        self.waker = Some(waker);
    }
}
