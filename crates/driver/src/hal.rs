//! The hardware abstraction layer: what every low-level driver implements.
//!
//! HIOPS section 3.2 names the operations; SYSTOR'13 section 3.3 adds what a driver exports to a
//! multi-queue block layer: how many hardware queues there are, how deep they are, and which of them
//! a software queue maps to.
//!
//! ```text
//! get_free_tags → bind_tag_cmd → issue_tags ┐                    the issue side
//!                                    device ┘
//! check_event → fetch_event → detach_tag_cmd → release_tags → end_cmd    the completion side
//! ```
//!
//! A [`HardwareQueue`] is owned by who uses it (rule R4): its operations take `&mut self`, and a
//! queue that several share is the same type behind a lock. Tags are generated here, once, and are
//! the index of a command in every table above and below.

use std::any::Any;

use clock::{Nanos, Waker};
use nvme::Status;
use ring::AddressSpace;

use crate::{Detached, Request, Tag, TagError, TagSet};

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes per sector: requests are in whole sectors.
    pub sector_bytes: u32,
    /// Sectors of the device.
    pub sectors: u64,
    /// Sectors of one request at most.
    pub max_sectors: u32,
    /// Sectors of a request that the media takes in one go (a multi-plane page).
    pub optimal_sectors: u32,
    /// Requests outstanding at most, per queue.
    pub queue_depth: u32,
    /// Whether completed writes need a [`Flush`](crate::Op::Flush) to be durable.
    pub volatile_cache: bool,
}

impl Limits {
    /// Bytes of the device.
    pub fn bytes(&self) -> u64 {
        self.sectors * u64::from(self.sector_bytes)
    }
}

/// What a driver can do besides reading and writing in one piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Segments of a scattered payload at most; below 2 it takes none.
    pub segments: u16,
    /// Writes with force unit access.
    pub fua: bool,
    /// Discards.
    pub discard: bool,
    /// Write zeroes.
    pub write_zeroes: bool,
    /// Queries for mapped extents.
    pub extents: bool,
}

/// A device's end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The command.
    pub tag: Tag,
    /// How it ended.
    pub status: Status,
    /// What it returned ([`Completion::result`](crate::Completion::result)).
    pub result: u64,
}

/// A command was not bound; its tag is still taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The device takes no command now, although there are tags; try again later.
    #[error("the device is busy")]
    Busy,
    /// The device cannot carry the command out: how it would have ended.
    #[error("the command cannot be carried out: {0}")]
    Refused(Status),
    /// The tag was not taken.
    #[error(transparent)]
    Tag(#[from] TagError),
}

/// Whether a hardware queue takes commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// It does.
    Ready,
    /// It is being reset; nothing completes and nothing can be bound until it is ready again.
    Resetting,
    /// The device is gone, or does not come back from a reset: nothing will complete any more.
    Removed,
}

/// How an owner that asked to rest has spent the time ([`HardwareQueue::wait_for_event`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// Not at all, and nothing was done: it issues, looks and waits for its waker instead.
    Unsupported,
    /// What was bound is issued; there was an event already.
    Ready,
    /// What was bound is issued, and it has slept until the device had something to say, the time was
    /// over, or a signal came.
    Waited,
}

/// One hardware queue of a device.
///
/// A driver implements the device's side ([`bind_tag_cmd`](HardwareQueue::bind_tag_cmd) to
/// [`fetch_event`](HardwareQueue::fetch_event), [`abort_tag`](HardwareQueue::abort_tag),
/// [`reset`](HardwareQueue::reset)) and keeps a [`TagSet`]; the operations on tags follow from it.
pub trait HardwareQueue: Send {
    /// The tags.
    fn tags(&self) -> &TagSet;

    /// The tags, to change them.
    fn tags_mut(&mut self) -> &mut TagSet;

    /// Where payloads must be registered.
    fn memory(&self) -> &AddressSpace;

    /// Takes as many free tags as there are, and as `into` has room for; returns how many. None
    /// means that the device is busy.
    #[inline]
    fn get_free_tags(&mut self, into: &mut [Tag]) -> usize {
        let mut taken = 0;
        for place in into {
            let Some(tag) = self.tags_mut().take() else { break };
            *place = tag;
            taken += 1;
        }
        taken
    }

    /// Binds a command to a taken tag and starts its clock; `command.tag` is the name that
    /// [`detach_tag_cmd`](HardwareQueue::detach_tag_cmd) returns. The caller has checked the range.
    ///
    /// # Errors
    /// [`BindError`]; the tag is as it was.
    fn bind_tag_cmd(&mut self, tag: Tag, command: &Request, now: Nanos) -> Result<(), BindError>;

    /// Gives the device every command bound since the last call, all at once. Returns whether there
    /// was one.
    fn issue_tags(&mut self) -> bool;

    /// Whether [`fetch_event`](HardwareQueue::fetch_event) would find something.
    fn check_event(&mut self) -> bool;

    /// Takes what the device says next. Nothing that a device says is trusted: the tag may be any.
    fn fetch_event(&mut self) -> Option<Event>;

    /// Separates a command that has ended from its tag.
    ///
    /// # Errors
    /// [`TagError`] for a tag without command: the device's fault, to be counted and forgotten.
    #[inline]
    fn detach_tag_cmd(&mut self, tag: Tag) -> Result<Detached, TagError> {
        self.tags_mut().detach(tag)
    }

    /// Gives tags back.
    ///
    /// # Errors
    /// [`TagError`] for the first that was not taken or not detached; those before it are back.
    #[inline]
    fn release_tags(&mut self, tags: &[Tag]) -> Result<(), TagError> {
        tags.iter().try_for_each(|tag| self.tags_mut().release(*tag))
    }

    /// Stops the clock of a detached command: how long the device had it. Needs no queue, so that
    /// who waits for the command can do it without one (HIOPS section 3.3, lazy processing).
    #[inline]
    fn end_cmd(command: &Detached, now: Nanos) -> Nanos
    where
        Self: Sized,
    {
        now.since(command.bound_at)
    }

    /// Asks the device to give a command up. If it does, the command ends with an event; it may
    /// also end as if nothing had been asked, or not at all.
    ///
    /// # Errors
    /// [`TagError`] for a tag without command.
    fn abort_tag(&mut self, tag: Tag, now: Nanos) -> Result<(), TagError>;

    /// Begins to reset the queue. From now until it is [`QueueState::Ready`] again nothing can be
    /// bound; afterwards the device has forgotten every command: tags that are still bound will
    /// see no event, and their owner detaches and releases them.
    fn reset(&mut self, now: Nanos);

    /// Whether the queue takes commands.
    fn state(&self) -> QueueState;

    /// Moves a reset on, and whatever else takes time. Returns whether anything moved.
    fn poll(&mut self, now: Nanos) -> bool {
        let _ = now;
        false
    }

    /// When [`poll`](HardwareQueue::poll) must be called next; [`Nanos::MAX`] if only the device
    /// can give it work.
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }

    /// Whether an owner can [`rest`](HardwareQueue::wait_for_event) here instead of waiting for its waker.
    fn can_wait(&self) -> bool {
        false
    }

    /// Issues everything bound and sleeps until there is an event, or for `timeout` at most
    /// ([`Nanos::MAX`]: without limit), all in one step: for an owner with nothing else to wait for. The
    /// waker need not be set.
    fn wait_for_event(&mut self, timeout: Nanos) -> WaitResult {
        let _ = timeout;
        WaitResult::Unsupported
    }

    /// Shows `look` the memory behind this struct that binding or ending the command of `tag` writes
    /// to: for whoever accounts for what cores transfer to each other. The tags, unless implemented.
    fn report_cache_lines(&self, tag: Tag, look: &mut dyn FnMut(&dyn Any)) {
        self.tags().report_cache_lines(tag, look);
    }

    /// Whom the device wakes when there are events: the notification. A waiting
    /// [`InterruptContext`](crate::InterruptContext) makes an upcall of it.
    fn set_waker(&mut self, waker: Waker);
}

/// A low-level driver: a device and its hardware queues.
pub trait LowLevelDriver {
    /// Its queues.
    type Queue: HardwareQueue;

    /// What the device can do; `queue_depth` is the number of tags of each hardware queue.
    fn limits(&self) -> Limits;

    /// What the driver can do.
    fn features(&self) -> Features;

    /// How many hardware queues there are.
    fn queues(&self) -> u16;

    /// Where payloads must be registered.
    fn memory(&self) -> &AddressSpace;

    /// Which hardware queue software queue `software` of `count` maps to. Neighbours share one when
    /// there are fewer hardware queues.
    fn map_queue(&self, software: u16, count: u16) -> u16 {
        (u32::from(software) * u32::from(self.queues()) / u32::from(count.max(1))) as u16
    }

    /// Hands out a hardware queue; `None` if there is no such queue, or it has been handed out.
    fn take_queue(&mut self, index: u16) -> Option<Self::Queue>;
}
