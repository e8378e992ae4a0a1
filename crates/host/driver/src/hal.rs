//! The hardware abstraction layer: the interface of every low-level driver.
//!
//! The operations are those of [HIOPS14 §3.2]. [SYSTOR13 §3.3] adds what a driver exports to a
//! multi-queue block layer: the number of hardware queues, their depth, and the mapping from
//! software queues.
//!
//! ```text
//! get_free_tags → bind_tag_cmd → issue_tags ┐                    the issue side
//!                                    device ┘
//! check_event → fetch_event → detach_tag_cmd → release_tags → end_cmd    the completion side
//! ```
//!
//! Tags are allocated here, once, and index the command in every table above and below.
//!
//! Concurrency: a [`HardwareQueue`] has one owner (ARCHITECTURE.md, R4), and its operations take
//! `&mut self`. A shared queue is the same type behind a lock.

use std::any::Any;

use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use time::Nanos;

use crate::{Detached, Request, Tag, TagError, TagSet};

/// The limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sector size in bytes; requests consist of whole sectors.
    pub sector_bytes: u32,
    /// Number of sectors of the device.
    pub sectors: u64,
    /// Maximum number of sectors per request.
    pub max_sectors: u32,
    /// Number of sectors that the media programs at once (a multi-plane page).
    pub optimal_sectors: u32,
    /// Maximum number of outstanding requests per queue.
    pub queue_depth: u32,
    /// Whether completed writes need a [`Flush`](crate::Op::Flush) to be durable.
    pub volatile_cache: bool,
    /// The writes that a power cut does not tear.
    pub atomic: AtomicLimits,
}

/// The writes that a power cut does not tear: after it all sectors of such a write are as it, or later
/// writes, left them, or none is [NVMe1.4 §6.4].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicLimits {
    /// Maximum number of sectors; 0 if the device promises nothing.
    pub sectors: u32,
    /// A write across a multiple of this many sectors is not atomic; 0 for no boundary.
    pub boundary_sectors: u32,
}

impl AtomicLimits {
    /// A device that promises nothing.
    pub const NONE: AtomicLimits = AtomicLimits { sectors: 0, boundary_sectors: 0 };

    /// Returns whether a write is atomic.
    pub fn allows(&self, lba: u64, sectors: u32) -> bool {
        let boundary = u64::from(self.boundary_sectors);
        let last = lba.saturating_add(u64::from(sectors).saturating_sub(1));
        (1..=self.sectors).contains(&sectors)
            && (boundary == 0 || lba / boundary == last / boundary)
    }

    /// Returns the limits of a device that divides requests at every multiple of `sectors`.
    pub fn divided_at(self, sectors: u32) -> AtomicLimits {
        let boundary = match self.boundary_sectors {
            0 => sectors,
            own => gcd(own, sectors),
        };
        AtomicLimits { sectors: self.sectors.min(boundary), boundary_sectors: boundary }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Limits {
    /// Returns the capacity in bytes.
    pub fn bytes(&self) -> u64 {
        self.sectors * u64::from(self.sector_bytes)
    }
}

/// The features of a driver besides contiguous reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Maximum number of segments of a scattered payload; below 2 none is supported.
    pub segments: u16,
    /// Whether writes with force unit access are supported.
    pub fua: bool,
    /// Whether discards are supported.
    pub discard: bool,
    /// Whether Write Zeroes is supported.
    pub write_zeroes: bool,
    /// Whether extent queries are supported.
    pub extents: bool,
    /// The writes that a power cut does not tear.
    pub atomic: AtomicLimits,
}

/// A completion event of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionEvent {
    /// The command's tag.
    pub tag: Tag,
    /// The status.
    pub status: Status,
    /// The command's result ([`Completion::result`](crate::Completion::result)).
    pub result: u64,
}

/// The reason why a command was not bound; its tag is still allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The device takes no command now, although there are tags; retry later.
    #[error("the device is busy")]
    Busy,
    /// The device cannot execute the command; the status with which it would complete.
    #[error("the device cannot execute the command: {0}")]
    Refused(Status),
    /// The tag was not allocated.
    #[error(transparent)]
    Tag(#[from] TagError),
}

/// The state of a hardware queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueState {
    /// The queue accepts commands.
    Ready,
    /// The queue is being reset; no command completes or can be bound until it is ready again.
    Resetting,
    /// The device was removed or did not recover from a reset; no command will complete.
    Removed,
}

/// The result of [`HardwareQueue::wait_for_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// Not supported, and nothing was done: the owner issues, polls and waits for its waker
    /// instead.
    Unsupported,
    /// Bound commands were issued; there was an event already.
    Ready,
    /// Bound commands were issued, and the call slept until an event, the timeout, or a signal.
    Waited,
}

/// A hardware queue of a device.
///
/// A driver implements the device's side, from [`bind_tag_cmd`](HardwareQueue::bind_tag_cmd) to
/// [`fetch_event`](HardwareQueue::fetch_event), [`abort_tag`](HardwareQueue::abort_tag) and
/// [`reset`](HardwareQueue::reset). It provides a [`TagSet`], on which the operations on tags are
/// implemented.
pub trait HardwareQueue: Send {
    /// Whether the owner must call [`poll`](HardwareQueue::poll) each time before it looks for
    /// events, because the device beneath makes progress only then. The default is a device that
    /// works by itself, such as a drive.
    const MUST_POLL: bool = false;

    /// Returns the tags.
    fn tags(&self) -> &TagSet;

    /// Returns mutable access to the tags.
    fn tags_mut(&mut self) -> &mut TagSet;

    /// Returns the address space in which payloads must be registered.
    fn memory(&self) -> &AddressSpace;

    /// Allocates free tags until `into` is full or none is left. Returns their number; 0 means that
    /// the device is busy.
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

    /// Binds a command to an allocated tag, with `now` as its start time.
    /// [`detach_tag_cmd`](HardwareQueue::detach_tag_cmd) returns `command.tag`. The caller has
    /// checked the range.
    ///
    /// # Errors
    /// [`BindError`]; the tag is unchanged.
    fn bind_tag_cmd(&mut self, tag: Tag, command: &Request, now: Nanos) -> Result<(), BindError>;

    /// Issues all commands bound since the last call, as one batch. Returns whether there were any.
    fn issue_tags(&mut self) -> bool;

    /// Returns whether [`fetch_event`](HardwareQueue::fetch_event) would return an event.
    fn check_event(&mut self) -> bool;

    /// Removes and returns the device's next event. The device is not trusted: the tag may have any
    /// value.
    fn fetch_event(&mut self) -> Option<CompletionEvent>;

    /// Detaches a completed command from its tag.
    ///
    /// # Errors
    /// [`TagError`] for a tag without a command: a device fault, which the caller counts and
    /// ignores.
    #[inline]
    fn detach_tag_cmd(&mut self, tag: Tag) -> Result<Detached, TagError> {
        self.tags_mut().detach(tag)
    }

    /// Frees tags.
    ///
    /// # Errors
    /// [`TagError`] for the first tag that was not allocated or still bound. The tags before it
    /// have been freed.
    #[inline]
    fn release_tags(&mut self, tags: &[Tag]) -> Result<(), TagError> {
        tags.iter().try_for_each(|tag| self.tags_mut().release(*tag))
    }

    /// Returns how long the device had a detached command. Needs no queue, so that the waiter can
    /// call it without one ([HIOPS14 §3.3], lazy processing).
    #[inline]
    fn end_cmd(command: &Detached, now: Nanos) -> Nanos
    where
        Self: Sized,
    {
        now.since(command.bound_at)
    }

    /// Asks the device to abort a command. If the device does, the command completes with an event.
    /// It may also complete normally, or not at all.
    ///
    /// # Errors
    /// [`TagError`] for a tag without a command.
    fn abort_tag(&mut self, tag: Tag, now: Nanos) -> Result<(), TagError>;

    /// Starts a reset of the queue. No command can be bound until the queue is
    /// [`QueueState::Ready`] again. The device has then forgotten every command: tags that are
    /// still bound get no event, and their owner detaches and frees them.
    fn reset(&mut self, now: Nanos);

    /// Returns the state of the queue.
    fn state(&self) -> QueueState;

    /// Advances a reset and other long operations. Returns whether there was progress.
    fn poll(&mut self, now: Nanos) -> bool {
        let _ = now;
        false
    }

    /// Returns when [`poll`](HardwareQueue::poll) must be called next; [`Nanos::MAX`] if only the
    /// device can create work.
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }

    /// Returns whether an owner can sleep in [`wait_for_event`](HardwareQueue::wait_for_event)
    /// instead of waiting for its waker.
    fn can_wait(&self) -> bool {
        false
    }

    /// Issues all bound commands and sleeps until there is an event, or for at most `timeout`
    /// ([`Nanos::MAX`]: no limit), in one step. This is for an owner that waits for nothing else.
    /// The waker need not be set.
    fn wait_for_event(&mut self, timeout: Nanos) -> WaitResult {
        let _ = timeout;
        WaitResult::Unsupported
    }

    /// Calls `look` with the memory behind this struct that binding or completing the command of
    /// `tag` writes, for a model of cache transfers between cores. The default reports the tags.
    fn report_cache_lines(&self, tag: Tag, look: &mut dyn FnMut(&dyn Any)) {
        self.tags().report_cache_lines(tag, look);
    }

    /// Calls `visit` with each layer beneath this queue that has state to show, as a block device
    /// does. The default is a device without such layers.
    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        let _ = visit;
    }

    /// Sets the waker that the device calls when there are events: the notification. An
    /// [`InterruptContext`](crate::InterruptContext) turns it into an upcall.
    fn set_waker(&mut self, waker: Waker);
}

/// A low-level driver: a device and its hardware queues.
pub trait LowLevelDriver {
    /// The type of the hardware queues.
    type Queue: HardwareQueue;

    /// Returns the limits of the device; `queue_depth` is the number of tags of each hardware
    /// queue.
    fn limits(&self) -> Limits;

    /// Returns the features of the driver.
    fn features(&self) -> Features;

    /// Returns the number of hardware queues.
    fn queues(&self) -> u16;

    /// Returns the address space in which payloads must be registered.
    fn memory(&self) -> &AddressSpace;

    /// Returns the hardware queue to which software queue `software` of `count` maps. Neighbouring
    /// software queues share one if there are fewer hardware queues.
    fn map_queue(&self, software: u16, count: u16) -> u16 {
        (u32::from(software) * u32::from(self.queues()) / u32::from(count.max(1))) as u16
    }

    /// Hands out a hardware queue; `None` if the queue does not exist or has been handed out.
    fn take_queue(&mut self, index: u16) -> Option<Self::Queue>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Payload;

    #[test]
    fn atomic_writes_end_at_their_length_and_at_boundaries() {
        let limits = AtomicLimits { sectors: 8, boundary_sectors: 0 };
        assert!(limits.allows(5, 8) && !limits.allows(5, 9) && !limits.allows(5, 0));
        let bounded = AtomicLimits { boundary_sectors: 16, ..limits };
        assert!(bounded.allows(8, 8) && bounded.allows(15, 1) && !bounded.allows(12, 8));
        assert!(bounded.allows(u64::MAX - 7, 8));
        assert!(!AtomicLimits::NONE.allows(0, 1));
        // A device that divides requests.
        let divided = AtomicLimits { sectors: 4, boundary_sectors: 4 };
        assert_eq!(limits.divided_at(4), divided);
        assert_eq!(
            bounded.divided_at(24),
            AtomicLimits { sectors: 8, boundary_sectors: 8 },
            "a write is divided at both"
        );
        assert_eq!(AtomicLimits::NONE.divided_at(4).sectors, 0);
    }

    #[test]
    fn only_writes_can_be_atomic() {
        let limits = AtomicLimits { sectors: 8, boundary_sectors: 0 };
        let is_refused =
            |request: Request| Request { atomic: true, ..request }.breaks_atomicity(&limits);
        let bucket = Payload::BitBucket;
        assert!(!is_refused(Request::write(3, 8, bucket, 0)));
        assert!(!is_refused(Request::write_zeroes(3, 8, false, 0)));
        for refused in [
            Request::write(3, 9, bucket, 0),
            Request::write_zeroes(3, 8, true, 0),
            Request::discard(3, 8, 0),
            Request::read(3, 8, bucket, 0),
            Request::flush(0),
        ] {
            assert!(is_refused(refused), "{refused:?}");
            assert!(!refused.breaks_atomicity(&limits), "it need not be atomic");
        }
    }
}
