//! [`Readahead`]: detects a sequential reader, and selects blocks to be read ahead of it.

use std::ops::Range;

/// A sequential reader.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Readahead {
    /// The block at which a sequential reader's next read begins.
    next_expected: u64,
    window: u64,
    /// End of the blocks already requested.
    requested_end: u64,
}

impl Readahead {
    /// Records a read of blocks `first..end`. Returns whether the reader is sequential.
    #[inline]
    pub(super) fn record(&mut self, first: u64, end: u64, blocks_max: u32) -> bool {
        // Two reads of the same block count as sequential, too.
        let goes_on =
            blocks_max > 0 && (first == self.next_expected || first + 1 == self.next_expected);
        self.next_expected = end;
        if !goes_on {
            (self.window, self.requested_end) = (0, end);
        }
        goes_on
    }

    /// Enlarges the window after a sequential read that ended at `end`. Returns the blocks to be
    /// read now, if they are worth a command; the device has `blocks`.
    pub(super) fn next_window(
        &mut self,
        end: u64,
        blocks: u64,
        blocks_max: u32,
    ) -> Option<Range<u64>> {
        let most = u64::from(blocks_max);
        self.window = (2 * self.window).clamp(most.min(4), most);
        let from = self.requested_end.max(end);
        let target = (end + self.window).min(blocks);
        let is_small = target.saturating_sub(from) < self.window.div_ceil(2) && target < blocks;
        (!is_small).then_some(from..target)
    }

    /// Records that blocks up to `end` were requested.
    pub(super) fn set_requested(&mut self, end: u64) {
        self.requested_end = self.requested_end.max(end);
    }
}
