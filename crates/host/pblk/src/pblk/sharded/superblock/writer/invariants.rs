//! Invariants of [`SuperblockWriter`].

use super::{LOCATIONS, SlotContent, SuperblockWriter, WriterStep};
use crate::invariants::{PblkViolation, require, require_eq};

impl SuperblockWriter {
    /// Checks the contents of the locations, and the current step.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(in crate::pblk::sharded::superblock) fn check_invariants(
        &self,
    ) -> Result<(), PblkViolation> {
        for found in self.generations() {
            require!(
                found <= self.generation,
                Superblock,
                "no copy is newer than the current generation",
                "all copies",
                format_args!("at most {}", self.generation),
                found
            );
        }
        let (at, content) = match self.step {
            WriterStep::Idle | WriterStep::Read(..LOCATIONS) => return Ok(()),
            WriterStep::Program(at, 0) => (at, Some(SlotContent::Erased)),
            WriterStep::Program(at, _) | WriterStep::Verify(at) => {
                (at, Some(SlotContent::Unreadable))
            }
            WriterStep::Erase(at) | WriterStep::Read(at) => (at, None),
        };
        let subject = format_args!("location {at}");
        require!(at < LOCATIONS, Superblock, "a location exists", subject, LOCATIONS, self.step);
        let slot = &self.slots[at];
        let is_claimed = slot.attempted;
        require!(is_claimed, Superblock, "a location is written once", subject, true, self.step);
        if let Some(content) = content {
            let name = "a location is programmed from its start";
            require_eq!(Superblock, name, subject, content, slot.content);
        }
        if let WriterStep::Program(_, unit) = self.step {
            let name = "a copy is complete after its write units";
            let max = format_args!("less than {}", self.units);
            require!(unit < self.units, Superblock, name, subject, max, unit);
        }
        // A location without a copy is erased also when all copies are lost.
        let is_copy = matches!(slot.content, SlotContent::Valid(_));
        let (erases, copies) =
            (matches!(self.step, WriterStep::Erase(_)), self.generations().count());
        require!(
            !(erases && is_copy) || copies > 1,
            Superblock,
            "a copy is erased while another one exists",
            subject,
            "two copies",
            copies
        );
        Ok(())
    }
}
