//! [`Device`]: what a front end submits to.

use clock::{Component, Nanos, Waker};
use nvme::Status;
use ring::AddressSpace;

use crate::{Completion, Limits, Op, Request, WaitResult};

/// The device takes no further request now; try again after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device's queue is full")]
pub struct QueueFull;

/// How a request that its device cannot take would end; `None` for one that it can. `longest` is the
/// longest transfer in sectors.
///
/// The same for every driver: ranges are checked here once, before a command is bound.
#[inline]
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
    (sectors == 0 || too_long).then_some(Status::INVALID_FIELD)
}

/// A block device, owned by whoever submits to it (rule R4): no lock, no allocation per request.
///
/// Every submitted request completes exactly once, in any order. Errors of the request itself
/// (range, length) are completions with a status, like those of the media.
pub trait BlockDevice: Component {
    /// What the device can do.
    fn limits(&self) -> &Limits;

    /// Takes a request. It goes to the drive with the next [`poll`](Component::poll).
    ///
    /// # Errors
    /// [`Busy`]; the request was not taken.
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull>;

    /// Takes a completion that a [`poll`](Component::poll) has found.
    fn reap(&mut self) -> Option<Completion>;

    /// Where payloads must be registered.
    fn memory(&self) -> &AddressSpace;

    /// Whom the drive wakes when something completes while the submitter's runner is parked.
    fn set_waker(&mut self, waker: Waker);

    /// Whether the drive wakes anybody: completions of one that does not must be looked for.
    fn can_wake(&self) -> bool {
        true
    }

    /// Says that several threads will use the device in turns, while nothing is outstanding: what was made
    /// for one thread alone is made again.
    fn enable_sharing(&mut self) {}

    /// Whether a submitter can [`rest`](BlockDevice::wait_for_event) in the device instead of parking.
    fn can_wait(&self) -> bool {
        false
    }

    /// Gives the drive what was submitted and sleeps until the drive has something to say, until the
    /// device's own [deadline](Component::deadline), or `until` at most ([`Nanos::MAX`]: without limit),
    /// all in one step: for a submitter with nothing else to wait for. Whatever it returns, the submitter
    /// [polls](Component::poll) next, by the time that it is then; after [`WaitResult::Unsupported`] it parks if that
    /// has found nothing.
    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        let _ = (now, until);
        WaitResult::Unsupported
    }
}

impl<D: BlockDevice + ?Sized> BlockDevice for &mut D {
    fn limits(&self) -> &Limits {
        (**self).limits()
    }
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        (**self).submit(now, request)
    }
    fn reap(&mut self) -> Option<Completion> {
        (**self).reap()
    }
    fn memory(&self) -> &AddressSpace {
        (**self).memory()
    }
    fn set_waker(&mut self, waker: Waker) {
        (**self).set_waker(waker);
    }
    fn can_wake(&self) -> bool {
        (**self).can_wake()
    }
    fn enable_sharing(&mut self) {
        (**self).enable_sharing();
    }
    fn can_wait(&self) -> bool {
        (**self).can_wait()
    }
    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        (**self).wait_for_event(now, until)
    }
}

impl<D: BlockDevice + ?Sized> BlockDevice for Box<D> {
    fn limits(&self) -> &Limits {
        (**self).limits()
    }
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        (**self).submit(now, request)
    }
    fn reap(&mut self) -> Option<Completion> {
        (**self).reap()
    }
    fn memory(&self) -> &AddressSpace {
        (**self).memory()
    }
    fn set_waker(&mut self, waker: Waker) {
        (**self).set_waker(waker);
    }
    fn can_wake(&self) -> bool {
        (**self).can_wake()
    }
    fn enable_sharing(&mut self) {
        (**self).enable_sharing();
    }
    fn can_wait(&self) -> bool {
        (**self).can_wait()
    }
    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        (**self).wait_for_event(now, until)
    }
}
