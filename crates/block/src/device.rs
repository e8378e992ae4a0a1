//! [`Device`]: what a front end submits to.

use clock::{Component, Nanos, Waker};
use ring::AddressSpace;

use crate::{Completion, Request};

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
    /// Requests outstanding at most.
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

/// The device takes no further request now; try again after a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device's queue is full")]
pub struct Busy;

/// A block device, owned by whoever submits to it (rule R4): no lock, no allocation per request.
///
/// Every submitted request completes exactly once, in any order. Errors of the request itself
/// (range, length) are completions with a status, like those of the media.
pub trait Device: Component {
    /// What the device can do.
    fn limits(&self) -> &Limits;

    /// Takes a request. It goes to the drive with the next [`poll`](Component::poll).
    ///
    /// # Errors
    /// [`Busy`]; the request was not taken.
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy>;

    /// Takes a completion that a [`poll`](Component::poll) has found.
    fn reap(&mut self) -> Option<Completion>;

    /// Where payloads must be registered.
    fn memory(&self) -> &AddressSpace;

    /// Whom the drive wakes when something completes while the submitter's runner is parked.
    fn set_waker(&mut self, waker: Waker);
}

impl<D: Device + ?Sized> Device for &mut D {
    fn limits(&self) -> &Limits {
        (**self).limits()
    }
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
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
}

impl<D: Device + ?Sized> Device for Box<D> {
    fn limits(&self) -> &Limits {
        (**self).limits()
    }
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
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
}
