//! [`Stack::duplicate`]: creates a second stack in the state of the first.

use scenario::DriveSpec;

use super::{Stack, StackDevice, StackError};

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
        let mut copy = Stack::build(plan, None)?;
        let host = match (&mut copy.device, &self.device) {
            (StackDevice::Raw(_), StackDevice::Raw(_)) => true,
            (StackDevice::Pblk(copy), StackDevice::Pblk(pblk)) => copy.clone_state_from(pblk),
            (StackDevice::Rrpc(copy), StackDevice::Rrpc(rrpc)) => copy.clone_state_from(rrpc),
            _ => false,
        };
        Ok((host && copy.drive.copy_state_from(&self.drive)).then_some(copy))
    }
}
