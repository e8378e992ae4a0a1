//! [`SplitReads`]: reads of the FTL that take several commands.
//!
//! A read of the FTL is one command, except if its slots wrap around the end of the ring, which one
//! metadata pointer cannot express, or if it exceeds the drive's maximum transfer.

use collections::Slab;
use ftl::OpToken;

use crate::invariants::{PblkViolation, require_eq};

#[derive(Clone, Copy, Debug)]
struct SplitRead {
    op: OpToken,
    /// The caller's identifier in the read tracker.
    tracker_id: u32,
    remaining_fragments: u32,
    failed: u64,
}

/// The outstanding split reads.
#[derive(Debug, Default)]
pub(crate) struct SplitReads {
    all: Slab<SplitRead>,
}

impl SplitReads {
    /// Adds a read that takes `parts` commands. Returns its id.
    pub(crate) fn begin(&mut self, op: OpToken, wait: u32, parts: u32) -> u32 {
        let split = SplitRead { op, tracker_id: wait, remaining_fragments: parts, failed: 0 };
        self.all.insert(split)
    }

    /// Records a completed fragment; `failed` is a mask over the addresses of the whole read. The
    /// last fragment returns the operation, its tracker id and the mask of all failed addresses.
    pub(crate) fn complete_fragment(
        &mut self,
        id: u32,
        failed: u64,
    ) -> Option<(OpToken, u32, u64)> {
        let split = &mut self.all[id];
        split.failed |= failed;
        split.remaining_fragments -= 1;
        if split.remaining_fragments > 0 {
            return None;
        }
        let completed = (split.op, split.tracker_id, split.failed);
        self.all.release(id);
        Some(completed)
    }

    /// Returns the number of fragments that have not completed, of all reads.
    pub(crate) fn fragments(&self) -> usize {
        let in_use = self.all.iter().zip(self.all.usage()).filter(|(_, is_in_use)| *is_in_use);
        in_use.map(|(split, _)| split.remaining_fragments as usize).sum()
    }

    /// Returns the number of fragments of a read that have not completed; 0 if there is no such
    /// read.
    pub(crate) fn remaining_fragments(&self, id: u32) -> u32 {
        self.all.get(id).map_or(0, |split| split.remaining_fragments)
    }

    /// Compares the reads with the free places.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check_invariants(&self) -> Result<(), PblkViolation> {
        let usage = self.all.usage();
        for (id, (split, is_in_use)) in self.all.iter().zip(&usage).enumerate() {
            require_eq!(
                SplitReads,
                "a read ends with its last fragment",
                format_args!("read {id}, {} fragments", split.remaining_fragments),
                split.remaining_fragments > 0,
                *is_in_use
            );
        }
        let in_use = usage.into_iter().filter(|is_in_use| *is_in_use).count();
        require_eq!(SplitReads, "a place is free once", "all places", in_use, self.all.in_use());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_completes_with_its_last_fragment() {
        let mut splits = SplitReads::default();
        let (a, b) = (splits.begin(OpToken(7), 70, 3), splits.begin(OpToken(8), 80, 1));
        assert_eq!(splits.complete_fragment(a, 0b1), None);
        assert_eq!(splits.complete_fragment(b, 0), Some((OpToken(8), 80, 0)));
        assert_eq!(splits.begin(OpToken(9), 0, 1), b, "used again");
        assert_eq!(splits.complete_fragment(a, 0), None);
        assert_eq!(splits.complete_fragment(a, 0b100), Some((OpToken(7), 70, 0b101)));
    }

    #[test]
    fn a_read_that_lost_its_fragments_is_reported() {
        let mut splits = SplitReads::default();
        let id = splits.begin(OpToken(7), 70, 3);
        assert_eq!(splits.check_invariants(), Ok(()));
        splits.all[id].remaining_fragments = 0;
        let broken = splits.check_invariants().expect_err("a read without fragments");
        assert_eq!(broken.invariant, "a read ends with its last fragment");
        assert_eq!(broken.subject, "read 0, 0 fragments");
    }
}
