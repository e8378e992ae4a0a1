//! [`LogicalBlocks`]: the relation between the logical blocks that hosts address and the units that
//! the FTL maps, which are the sectors of the flash. It is the only place that converts between them.
//!
//! Invariant: a unit has a power of two of logical blocks, and every range of logical blocks is
//! covered by the units that [`covering_units`](LogicalBlocks::covering_units) returns.

use nvme::IoCommand;
use serde::{Deserialize, Serialize};

/// The part of a command that one request to the FTL executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum CommandPart {
    /// Whole units; of a read, all units.
    Whole,
    /// The first unit of a change, which the command covers in part.
    Head,
    /// The last unit of a change, which the command covers in part.
    Tail,
    /// All units of a Compare.
    Compare,
    /// All units of a Verify.
    Verify,
    /// All units of a source range of a Copy.
    Copy,
    /// A unit that the rules of the drive fetch for a command.
    Fetch,
    /// A unit with a name.
    Named,
}

/// A range of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnitRange {
    pub(crate) first: u64,
    pub(crate) count: u32,
}

impl UnitRange {
    /// Whether both ranges have a unit in common.
    pub(crate) fn overlaps(self, other: UnitRange) -> bool {
        self.first < other.first + u64::from(other.count)
            && other.first < self.first + u64::from(self.count)
    }
}

/// A range of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRange {
    /// First block.
    pub(crate) slba: u64,
    /// Number of blocks.
    pub(crate) nlb: u32,
}

/// The part of a unit that a command covers, and its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitWindow {
    /// First byte in the unit.
    pub(crate) skip: usize,
    /// Number of bytes.
    pub(crate) len: usize,
    /// First byte in the data of the command.
    pub(crate) offset: u64,
}

/// The logical blocks of a drive whose FTL maps units.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct LogicalBlocks {
    unit_bytes: u32,
    /// Binary logarithm of the number of blocks in a unit.
    shift: u32,
}

impl LogicalBlocks {
    /// Creates the relation. Both sizes are powers of two, and a block is not larger than a unit.
    pub(crate) fn new(lba_bytes: u32, unit_bytes: u32) -> LogicalBlocks {
        LogicalBlocks { unit_bytes, shift: unit_bytes.ilog2() - lba_bytes.ilog2() }
    }

    /// Whether a block is smaller than a unit.
    #[inline]
    pub(crate) fn is_below_unit(self) -> bool {
        self.shift > 0
    }

    /// Returns the number of blocks in a unit.
    #[inline]
    pub(crate) fn unit_blocks(self) -> u32 {
        1 << self.shift
    }

    /// Returns the size of a block in bytes.
    #[inline]
    pub(crate) fn block_bytes(self) -> usize {
        (self.unit_bytes >> self.shift) as usize
    }

    /// Returns the size of a unit in bytes.
    #[inline]
    pub(crate) fn unit_bytes(self) -> usize {
        self.unit_bytes as usize
    }

    /// Returns the unit that contains a block.
    #[inline]
    pub(crate) fn unit_of(self, lba: u64) -> u64 {
        lba >> self.shift
    }

    /// Returns the units that contain the `nlb` blocks from `slba` on; the last possible ones if the
    /// range exceeds 64 bits.
    #[inline]
    pub(crate) fn covering_units(self, slba: u64, nlb: u32) -> UnitRange {
        let first = self.unit_of(slba);
        let end = slba.saturating_add(nlb.into()).div_ceil(u64::from(self.unit_blocks()));
        UnitRange { first, count: (end - first) as u32 }
    }

    /// Returns the units that lie completely in the `nlb` blocks from `slba` on.
    pub(crate) fn whole_units(self, slba: u64, nlb: u32) -> UnitRange {
        let first = slba.div_ceil(u64::from(self.unit_blocks()));
        let end = self.unit_of(slba.saturating_add(nlb.into()));
        UnitRange { first, count: end.saturating_sub(first) as u32 }
    }

    /// Returns the parts of a change of `nlb` blocks from `slba` on, in the order of their units: the
    /// first unit and the last one if the range covers a part of them, and the units between.
    pub(crate) fn parts(
        self,
        slba: u64,
        nlb: u32,
    ) -> impl Iterator<Item = (CommandPart, UnitRange)> {
        let (all, whole) = (self.covering_units(slba, nlb), self.whole_units(slba, nlb));
        let one = |first| UnitRange { first, count: 1 };
        let head = (whole.first > all.first).then(|| (CommandPart::Head, one(all.first)));
        let whole_part = (whole.count > 0).then_some((CommandPart::Whole, whole));
        let last = all.first + u64::from(all.count) - 1;
        let has_tail = last >= whole.first + u64::from(whole.count);
        let tail = has_tail.then(|| (CommandPart::Tail, one(last)));
        head.into_iter().chain(whole_part).chain(tail)
    }

    /// Returns the unit at a position of a part of a command.
    fn unit(self, io: &IoCommand, part: CommandPart, range: BlockRange, position: u32) -> u64 {
        let BlockRange { slba, nlb } = range;
        let first = match (part, io) {
            (CommandPart::Head | CommandPart::Compare | CommandPart::Verify, _)
            | (CommandPart::Whole, IoCommand::Read { .. }) => self.unit_of(slba),
            (
                CommandPart::Whole | CommandPart::Copy | CommandPart::Fetch | CommandPart::Named,
                _,
            ) => self.whole_units(slba, nlb).first,
            (CommandPart::Tail, _) => self.unit_of(slba.saturating_add(nlb.into()) - 1),
        };
        first + u64::from(position)
    }

    /// Returns the part of a unit that a command covers, for the unit at a position of a part. `range`
    /// has the blocks of the drive that the part is in. The offset is that in the data of the range.
    pub(crate) fn window(
        self,
        io: &IoCommand,
        part: CommandPart,
        range: BlockRange,
        position: u32,
    ) -> UnitWindow {
        self.window_of(range, self.unit(io, part, range, position))
    }

    /// Returns the part of the unit at a position of the units that cover a range of blocks. Its offset
    /// is that in the data of the range.
    pub(crate) fn range_window(self, range: BlockRange, position: u32) -> UnitWindow {
        self.window_of(range, self.unit_of(range.slba) + u64::from(position))
    }

    /// Returns the part of a unit that a range of blocks covers.
    fn window_of(self, BlockRange { slba, nlb }: BlockRange, unit: u64) -> UnitWindow {
        let begin = unit << self.shift;
        let (first, end) =
            (slba.max(begin), (slba + u64::from(nlb)).min(begin + (1 << self.shift)));
        let bytes = |blocks: u64| blocks as usize * self.block_bytes();
        UnitWindow {
            skip: bytes(first - begin),
            len: bytes(end - first),
            offset: bytes(first - slba) as u64,
        }
    }
}

/// Returns the blocks that a command reads or changes.
pub(crate) fn block_range(io: &IoCommand) -> BlockRange {
    match *io {
        IoCommand::Read { slba, nlb, .. }
        | IoCommand::Write { slba, nlb, .. }
        | IoCommand::Compare { slba, nlb, .. }
        | IoCommand::Verify { slba, nlb, .. }
        | IoCommand::WriteZeroes { slba, nlb, .. } => BlockRange { slba, nlb },
        _ => BlockRange { slba: 0, nlb: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(slba: u64, nlb: u32) -> Vec<(CommandPart, u64, u32)> {
        let blocks = LogicalBlocks::new(512, 4096);
        blocks.parts(slba, nlb).map(|(part, units)| (part, units.first, units.count)).collect()
    }

    #[test]
    fn parts_of_every_range_cover_its_units_once() {
        use CommandPart::{Head, Tail, Whole};
        assert_eq!(parts(8, 8), [(Whole, 1, 1)]);
        assert_eq!(parts(8, 1), [(Tail, 1, 1)]);
        assert_eq!(parts(15, 1), [(Head, 1, 1)]);
        assert_eq!(parts(9, 2), [(Head, 1, 1)]);
        assert_eq!(parts(15, 2), [(Head, 1, 1), (Tail, 2, 1)]);
        assert_eq!(parts(15, 18), [(Head, 1, 1), (Whole, 2, 2), (Tail, 4, 1)]);
        let blocks = LogicalBlocks::new(512, 4096);
        for slba in 0..20 {
            for nlb in 1..40 {
                let units: Vec<u64> = blocks
                    .parts(slba, nlb)
                    .flat_map(|(_, units)| units.first..units.first + u64::from(units.count))
                    .collect();
                let all = blocks.covering_units(slba, nlb);
                let expected: Vec<u64> = (all.first..all.first + u64::from(all.count)).collect();
                assert_eq!(units, expected, "{nlb} blocks from {slba}");
            }
        }
    }

    #[test]
    fn the_windows_of_a_command_are_its_data_once() {
        let blocks = LogicalBlocks::new(512, 4096);
        for (slba, nlb) in [(8, 8), (8, 1), (15, 1), (9, 2), (15, 2), (15, 18), (3, 30)] {
            let fua = false;
            let io = IoCommand::WriteZeroes { slba, nlb, deallocate: false, fua };
            let mut expected = 0;
            for (part, units) in blocks.parts(slba, nlb) {
                for position in 0..units.count {
                    let range = BlockRange { slba, nlb };
                    let window = blocks.window(&io, part, range, position);
                    assert_eq!(window.offset, expected, "{nlb} blocks from {slba}");
                    let at = blocks.unit(&io, part, range, position) * 4096 + window.skip as u64;
                    assert_eq!(at, slba * 512 + window.offset, "{nlb} blocks from {slba}");
                    expected += window.len as u64;
                }
            }
            assert_eq!(expected, u64::from(nlb) * 512);
        }
    }
}
