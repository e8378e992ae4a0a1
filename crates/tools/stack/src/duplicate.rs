//! [`Stack::duplicate`]: creates a second stack in the state of the first.

use block::Raw;
use controller::Controller;
use pblk::{Pblk, Rrpc};
use scenario::DriveSpec;

use super::{CoreQueues, Stack, StackError};

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
    pub(super) fn duplicate_parts(
        drive: &Controller,
        device: &CoreQueues,
        plan: &DriveSpec,
    ) -> Result<Option<Stack>, StackError> {
        let mut copy = Stack::build(plan, None)?;
        let other = &mut copy.device;
        let host = if let Some(pblk) = device.only::<Pblk>() {
            other.only_mut().is_some_and(|copy: &mut Pblk| copy.clone_state_from(pblk))
        } else if let Some(rrpc) = device.only::<Rrpc>() {
            other.only_mut().is_some_and(|copy: &mut Rrpc| copy.clone_state_from(rrpc))
        } else {
            device.only::<Raw>().is_some()
        };
        Ok((host && copy.drive.copy_state_from(drive)).then_some(copy))
    }
}
