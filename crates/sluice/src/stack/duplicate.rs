//! [`Stack::duplicate`]: a second stack in the state of the first.

use super::{Stack, StackDevice, StackError};
use crate::scenario::DriveSpec;

impl Stack {
    /// A stack of the same plan in the state of this one, which is at rest and has no block layer yet: what
    /// the two do from now on is the same. It is built and brought up as this one was, without letting time
    /// pass, and takes over the state of the drive and of the translation layer on either side. `None` if
    /// there is something that cannot be copied: a pblk in shards, a controller memory buffer, media
    /// notifications, a patrol of the host.
    ///
    /// # Errors
    /// [`StackError`]: as [`build`](Stack::build).
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
