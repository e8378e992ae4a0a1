//! [`SavedStack`]: the state of an idle drive and of the device of its only host.

use block::Raw;
use controller::{Controller, SavedDrive};
use pblk::{Pblk, Rrpc, SavedPblk, SavedRrpc};
use scenario::DriveSpec;
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::{CoreQueues, Stack, StackError};

/// The state of a drive and its host, to be copied or saved. Taken over by a drive and a host that
/// were built from the same plan, it makes them behave as the first ones would.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedStack<'a> {
    #[serde(borrow)]
    host: SavedHost<'a>,
    drive: SavedDrive<'a>,
    /// The time that the stack had reached.
    now: Nanos,
}

#[derive(Debug, Serialize, Deserialize)]
enum SavedHost<'a> {
    /// A raw path has no state of its own.
    Raw,
    Pblk(#[serde(borrow)] SavedPblk<'a>),
    Rrpc(#[serde(borrow)] SavedRrpc<'a>),
}

impl<'a> SavedStack<'a> {
    /// Returns the state; `None` if some of it cannot be saved: that of a sharded pblk, of a
    /// target with rules, of a controller memory buffer, of media events, of a scrub of the host, and of anything in flight.
    pub(super) fn new(
        drive: &'a Controller,
        device: &'a CoreQueues,
        now: Nanos,
    ) -> Option<SavedStack<'a>> {
        let host = if let Some(pblk) = device.only::<Pblk>() {
            SavedHost::Pblk(pblk.state_to_save()?)
        } else if let Some(rrpc) = device.only::<Rrpc>() {
            SavedHost::Rrpc(rrpc.state_to_save()?)
        } else {
            device.only::<Raw>().map(|_| SavedHost::Raw)?
        };
        Some(SavedStack { host, drive: SavedDrive::new(drive)?, now })
    }

    /// Gives the state to a drive and its host, and returns the time that it had reached. Returns
    /// `None`, and changes nothing, if it does not fit them.
    pub(super) fn restore(self, drive: &mut Controller, device: &mut CoreQueues) -> Option<Nanos> {
        SavedStack::new(drive, device, self.now)?;
        let host = match self.host {
            SavedHost::Raw => device.only::<Raw>().is_some(),
            SavedHost::Pblk(state) => {
                device.only_mut().is_some_and(|pblk: &mut Pblk| pblk.restore(state))
            }
            SavedHost::Rrpc(state) => {
                device.only_mut().is_some_and(|rrpc: &mut Rrpc| rrpc.restore(state))
            }
        };
        (host && self.drive.restore(drive)).then_some(self.now)
    }
}

impl Stack {
    /// Creates a stack from `plan`, the plan of this stack, in the state of this stack.
    ///
    /// This stack must be idle and must not yet have a block layer. From then on both stacks behave
    /// identically. The new stack is built and initialized as this one was, without advancing time.
    /// It then copies the state of the drive and of the FTL on either side. Returns `None` if some
    /// state cannot be copied: sharded pblk, a controller memory buffer, media events, or a scrub
    /// of the host.
    ///
    /// # Errors
    /// [`StackError`], as for [`build`](Stack::build).
    pub fn duplicate(&self, plan: &DriveSpec) -> Result<Option<Stack>, StackError> {
        Stack::duplicate_parts(&self.drive, &self.device, plan)
    }

    /// Creates a stack in the state of `drive` and of `device`, the device of its only host.
    pub(crate) fn duplicate_parts(
        drive: &Controller,
        device: &CoreQueues,
        plan: &DriveSpec,
    ) -> Result<Option<Stack>, StackError> {
        let mut copy = Stack::build(plan, None)?;
        if drive.config() != copy.drive.config() {
            return Ok(None);
        }
        let state = SavedStack::new(drive, device, Nanos::ZERO);
        let copied = state.and_then(|state| state.restore(&mut copy.drive, &mut copy.device));
        Ok(copied.map(|_| copy))
    }
}
