//! [`SplitReads`]: reads of the FTL that take several commands.
//!
//! A read of the FTL is one command, except if its slots wrap around the end of the ring, which one
//! metadata pointer cannot express, or if it exceeds the drive's maximum transfer.

use collections::Slab;
use ftl::OpToken;

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
}
