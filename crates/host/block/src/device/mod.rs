//! The block-device interface, [`BlockDevice`], to which front ends submit.

pub mod delegate;

use std::any::Any;

use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use time::{Component, Nanos};

use crate::{Completion, Limits, Op, Request, WaitResult, delegate_block_device};

/// The device's queue is full; submit the request again after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device's queue is full")]
pub struct QueueFull;

/// Returns the status with which a device rejects `request`, or `None` if the request is valid.
/// `longest` is the longest transfer in sectors.
///
/// Every driver uses this function: it checks ranges once, before a command is bound.
#[inline(always)]
pub fn validate_request(limits: &Limits, longest: u32, request: &Request) -> Option<Status> {
    let Request { op, lba, sectors, .. } = *request;
    if op == Op::Flush {
        return None;
    }
    let past_end = u64::from(sectors) > limits.sectors || lba > limits.sectors - u64::from(sectors);
    if past_end {
        return Some(Status::LBA_OUT_OF_RANGE);
    }
    let too_long = sectors > longest && matches!(op, Op::Read | Op::Write);
    let is_refused = sectors == 0 || too_long || request.breaks_atomicity(&limits.atomic);
    is_refused.then_some(Status::INVALID_FIELD)
}

/// A block device, owned by its submitter (ARCHITECTURE.md, R4). It takes no lock and allocates no
/// memory per request.
///
/// Every submitted request completes exactly once, in any order. An error of the request itself
/// (range, length) is a completion with a status, like a media error.
///
/// No method has a default body, so that a device in front of another one does not forget to
/// forward one: see [`delegate_block_device!`](crate::delegate_block_device) and
/// [`answer_block_device!`](crate::answer_block_device).
pub trait BlockDevice: Component {
    /// Returns the limits of the device.
    fn limits(&self) -> &Limits;

    /// Submits a request. The device issues it to the drive at the next [`poll`](Component::poll).
    ///
    /// # Errors
    /// [`QueueFull`] if the device did not take the request.
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull>;

    /// Removes and returns a completion that a [`poll`](Component::poll) has found.
    fn reap(&mut self) -> Option<Completion>;

    /// Returns the address space in which payloads must be registered.
    fn memory(&self) -> &AddressSpace;

    /// Sets the waker that the drive calls on a completion while the submitter's runner is parked.
    fn set_waker(&mut self, waker: Waker);

    /// Returns whether the drive calls the waker. If it does not, the submitter must poll for
    /// completions.
    fn can_wake(&self) -> bool;

    /// Prepares the device for use by several threads, one at a time. The device recreates
    /// resources that are bound to a single thread.
    ///
    /// No request may be outstanding.
    fn enable_sharing(&mut self);

    /// Returns whether a submitter can sleep in [`wait_for_event`](BlockDevice::wait_for_event)
    /// instead of parking.
    fn can_wait(&self) -> bool;

    /// Issues the submitted requests and sleeps in the device, in one step. This is for a submitter
    /// that waits for nothing else.
    ///
    /// The call returns when the drive reports an event, at the device's own
    /// [deadline](Component::deadline), or at `until` ([`Nanos::MAX`]: no limit). After any result
    /// the submitter reads the clock and [polls](Component::poll). After
    /// [`WaitResult::Unsupported`] it parks if that poll finds nothing.
    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult;

    /// Calls `visit` with each layer that has state to show, from this device downwards: targets
    /// and block layers, through caches and other devices. What several queues share is visited
    /// from one of them.
    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any));
}

impl<D: BlockDevice + ?Sized> BlockDevice for &mut D {
    delegate_block_device!(self => **self);
}

impl<D: BlockDevice + ?Sized> BlockDevice for Box<D> {
    delegate_block_device!(self => **self);
}
