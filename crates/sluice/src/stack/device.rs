//! [`StackDevice`]: the block device on top of a stack.

use block::{Busy, Completion, Device, Limits, Raw, Request};
use clock::{Component, Nanos, Waker};
use drive::Drive;
use lightnvm::{Pblk, Rrpc};
use ring::AddressSpace;

use super::Cores;

/// A block device, whoever manages the flash: one match per call, so that jobs need not be compiled
/// for every way.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one per drive; a box would cost the raw path a load"
)]
pub enum StackDevice {
    /// The drive: straight to its queue pair.
    Raw(Raw),
    /// The host: pblk over vector commands.
    Pblk(Box<Pblk>),
    /// The host: rrpc over vector commands and the drive's own map.
    Rrpc(Box<Rrpc>),
    /// The drive: through the block layer's queues.
    Layered(Box<Cores>),
}

impl StackDevice {
    /// The block layer, if there is one.
    pub fn cores(&self) -> Option<&Cores> {
        match self {
            StackDevice::Layered(cores) => Some(cores),
            StackDevice::Raw(_) | StackDevice::Pblk(_) | StackDevice::Rrpc(_) => None,
        }
    }

    /// Has a translation layer on the host make a checkpoint of the map, without letting time pass, so
    /// that the next opening has nothing to look for (LightNVM paper section 4.2.2: the snapshot on
    /// power-down). Everything must have been flushed. A layer that cannot is left as it is: what
    /// was flushed is found again without.
    pub fn checkpoint(&mut self, now: Nanos, drive: &mut Drive) {
        let StackDevice::Pblk(pblk) = self else { return };
        pblk.checkpoint();
        drive.set_instant(true);
        while pblk.ftl().is_checkpointing() && pblk.poll(now) | drive.poll(now) {}
        drive.set_instant(false);
    }

    /// The same, to change it.
    pub fn cores_mut(&mut self) -> Option<&mut Cores> {
        match self {
            StackDevice::Layered(cores) => Some(cores),
            StackDevice::Raw(_) | StackDevice::Pblk(_) | StackDevice::Rrpc(_) => None,
        }
    }
}

macro_rules! each {
    ($self:ident, $d:ident => $e:expr) => {
        match $self {
            StackDevice::Raw($d) => $e,
            StackDevice::Pblk($d) => $e,
            StackDevice::Rrpc($d) => $e,
            StackDevice::Layered($d) => $e,
        }
    };
}

impl Component for StackDevice {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        each!(self, d => d.poll(now))
    }
    #[inline]
    fn deadline(&self) -> Nanos {
        each!(self, d => d.deadline())
    }
}

impl Device for StackDevice {
    #[inline]
    fn limits(&self) -> &Limits {
        each!(self, d => d.limits())
    }
    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
        each!(self, d => d.submit(now, request))
    }
    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        each!(self, d => d.reap())
    }
    fn memory(&self) -> &AddressSpace {
        each!(self, d => d.memory())
    }
    fn set_waker(&mut self, waker: Waker) {
        each!(self, d => d.set_waker(waker));
    }
}
