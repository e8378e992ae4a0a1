//! [`UnitChanges`]: the changes in progress of a drive whose logical blocks are smaller than the units
//! that its FTL maps.
//!
//! A change of a part of a unit reads the unit, replaces the part and writes the unit. Meanwhile no
//! other change of the unit may be in progress, or one of them would be lost. A change therefore
//! waits until all earlier changes of its units have completed, if it or one of them covers a part of
//! a unit. Changes of whole units do not wait for each other: the FTL orders them.
//!
//! Invariants: a waiting change has at least one earlier change to wait for, or is about to start; it
//! waits only for earlier ones, so that no cycle exists. Each change is removed exactly once, when the
//! FTL has completed it.

use ftl::HostStream;
use nvme::{IoCommand, Status};
use serde::{Deserialize, Serialize};

use super::logical_blocks::{BlockRange, CommandPart, UnitRange};
use crate::ReadModifyWriteStats;
use crate::check::{DriveCheck, DrivePart, DriveViolation};

/// Names a request to the FTL: a part of a command. In the tags of the FTL the command is in the
/// lower 32 bits, so that the tag of a command's whole units is its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RequestTag {
    /// Index of the command in its table.
    pub(crate) command: u32,
    pub(crate) part: CommandPart,
    /// Number of the source range of a Copy, of the place for a sector that rules fetch, or of the extent of a command that crosses the ends of
    /// extents of its namespace; 0 for other commands.
    pub(crate) range: u16,
}

/// The smallest tag of the reads of a Copy. Tags of other commands are smaller, but for those of reads
/// for rules, and of units with names.
pub(crate) const COPY_TAGS: u64 = (CommandPart::Copy as u64) << 48;

impl RequestTag {
    /// Returns the tag of all units of a read, or of the whole units of a change.
    pub(crate) fn whole(command: u32) -> RequestTag {
        RequestTag::of_part(command, CommandPart::Whole)
    }

    /// Returns the tag of a part of a command.
    pub(crate) fn of_part(command: u32, part: CommandPart) -> RequestTag {
        RequestTag { command, part, range: 0 }
    }

    /// Returns the tag of this part of another range.
    pub(crate) fn of_range(self, range: u16) -> RequestTag {
        RequestTag { range, ..self }
    }

    /// Returns the tag for the FTL.
    #[inline]
    pub(crate) fn encode(self) -> u64 {
        u64::from(self.command) | u64::from(self.range) << 32 | (self.part as u64) << 48
    }

    /// Returns the part that a tag of the FTL names.
    #[inline]
    pub(crate) fn decode(tag: u64) -> RequestTag {
        let part = match (tag >> 48) as u8 {
            0 => CommandPart::Whole,
            1 => CommandPart::Head,
            2 => CommandPart::Tail,
            3 => CommandPart::Compare,
            4 => CommandPart::Verify,
            5 => CommandPart::Copy,
            6 => CommandPart::Fetch,
            _ => CommandPart::Named,
        };
        RequestTag { command: tag as u32, part, range: (tag >> 32) as u16 }
    }
}

/// The effect of a change on its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ChangeKind {
    /// Data of the command are written, to a stream.
    Write(HostStream),
    /// Zeros are written, to a stream.
    Zeroes(HostStream),
    /// The units are deallocated.
    Trim,
}

impl ChangeKind {
    /// Returns the stream of what is written.
    pub(crate) fn stream(self) -> HostStream {
        match self {
            ChangeKind::Write(stream) | ChangeKind::Zeroes(stream) => stream,
            ChangeKind::Trim => HostStream::Host,
        }
    }
}

/// A change of logical blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockChange {
    pub(crate) range: BlockRange,
    pub(crate) kind: ChangeKind,
    /// Whether it completes only when it is on the media.
    pub(crate) durable: bool,
}

/// A change of units: a request to the FTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnitChange {
    pub(crate) tag: RequestTag,
    pub(crate) kind: ChangeKind,
    pub(crate) units: UnitRange,
    /// Whether it completes only when it is on the media.
    pub(crate) durable: bool,
}

impl UnitChange {
    /// Whether it covers a part of its unit.
    pub(crate) fn is_partial(&self) -> bool {
        self.tag.part != CommandPart::Whole
    }

    /// Whether the later of both changes must wait for the earlier one.
    fn conflicts_with(&self, other: &UnitChange) -> bool {
        (self.is_partial() || other.is_partial()) && self.units.overlaps(other.units)
    }
}

/// The progress of a change, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Progress {
    /// It waits for this number of earlier changes.
    Waiting(u32),
    /// The unit is being read.
    Reading,
    /// The FTL executes the change.
    Executing,
}

impl Progress {
    /// Returns the progress of a change that starts.
    fn started(change: &UnitChange) -> Progress {
        if change.is_partial() { Progress::Reading } else { Progress::Executing }
    }
}

/// A change in progress.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OpenChange {
    change: UnitChange,
    progress: Progress,
    /// The contents of the unit before the change, of a change of a part on a drive that stores data.
    contents: Vec<u8>,
}

/// The step that follows the completion of a request to the FTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeStep {
    /// The unit has been read: it is written.
    Write(UnitChange),
    /// The change is complete. Changes that waited for it may start.
    Complete,
}

/// The changes in progress. Changes that do not wait are in the order in which they started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct UnitChanges {
    open: Vec<OpenChange>,
    /// Number of changes of parts among the open ones, of waiting ones, and of those that wait for
    /// nothing any more.
    partial_count: usize,
    waiting_count: usize,
    ready_count: usize,
    /// Buffers for contents, for reuse.
    #[serde(skip)]
    spare: Vec<Vec<u8>>,
    /// Size of the contents of a unit in bytes; 0 on a drive that stores no data.
    contents_bytes: usize,
    pub(crate) stats: ReadModifyWriteStats,
}

impl UnitChanges {
    /// Creates the table without changes.
    pub(crate) fn new(contents_bytes: usize) -> UnitChanges {
        UnitChanges { contents_bytes, ..UnitChanges::default() }
    }

    /// Adds a change. Returns whether it starts at once: the unit of a change of a part is to be read,
    /// another change is to be executed. Otherwise it starts when
    /// [`next_ready`](UnitChanges::next_ready) returns it.
    pub(crate) fn add(&mut self, change: UnitChange) -> bool {
        let mut blockers = 0;
        if change.is_partial() || self.partial_count > 0 {
            let conflicts = self.open.iter().filter(|open| open.change.conflicts_with(&change));
            blockers = conflicts.count() as u32;
        }
        let mut contents = Vec::new();
        if change.is_partial() {
            self.partial_count += 1;
            self.stats.units += 1;
            contents = self.spare.pop().unwrap_or_default();
            contents.resize(self.contents_bytes, 0);
        }
        let progress = match blockers {
            0 => Progress::started(&change),
            _ => Progress::Waiting(blockers),
        };
        self.stats.waits += u64::from(blockers > 0);
        self.waiting_count += usize::from(blockers > 0);
        self.open.push(OpenChange { change, progress, contents });
        blockers == 0
    }

    /// Returns the next change that waited and does not any more, and marks it as started.
    pub(crate) fn next_ready(&mut self) -> Option<UnitChange> {
        if self.ready_count == 0 {
            return None;
        }
        let ready = self.open.iter().position(|open| open.progress == Progress::Waiting(0))?;
        let mut open = self.open.remove(ready);
        let change = open.change;
        open.progress = Progress::started(&change);
        self.open.push(open);
        (self.ready_count, self.waiting_count) = (self.ready_count - 1, self.waiting_count - 1);
        Some(change)
    }

    /// Processes the completion of a request to the FTL: of a read of a unit, or of a change.
    /// Several changes of whole units with the same tag complete in the order of their start.
    ///
    /// # Panics
    /// If no started change has this tag.
    pub(crate) fn on_complete(&mut self, tag: RequestTag, status: Status) -> ChangeStep {
        let is_started =
            |open: &OpenChange| open.change.tag == tag && open.progress >= Progress::Reading;
        let found = self.open.iter().position(is_started);
        let index = found.expect("the FTL completes a change that was started");
        let open = &mut self.open[index];
        if open.progress == Progress::Reading {
            if status.is_success() {
                open.progress = Progress::Executing;
                return ChangeStep::Write(open.change);
            }
            self.stats.failures += 1;
        }
        let OpenChange { change, contents, .. } = self.open.remove(index);
        if change.is_partial() {
            self.partial_count -= 1;
            self.spare.push(contents);
        }
        if self.waiting_count > 0 {
            self.unblock(&change);
        }
        ChangeStep::Complete
    }

    /// Tells the changes that waited for a change that it is complete.
    fn unblock(&mut self, done: &UnitChange) {
        for open in &mut self.open {
            if let Progress::Waiting(blockers) = &mut open.progress
                && open.change.conflicts_with(done)
            {
                *blockers -= 1;
                self.ready_count += usize::from(*blockers == 0);
            }
        }
    }

    /// Returns the contents of the unit of a change of a part that has started; empty on a drive that
    /// stores no data.
    pub(crate) fn contents_mut(&mut self, tag: RequestTag) -> &mut [u8] {
        let open = self.open.iter_mut().find(|open| open.change.tag == tag);
        open.map_or(&mut [], |open| &mut open.contents)
    }

    /// Checks the counts, and that a change waits for all started changes that it conflicts with.
    pub(crate) fn check_invariants(&self) -> Result<(), DriveViolation> {
        let check = |index| DriveCheck { part: DrivePart::Commands, subject: "change", index };
        let count = |is: &dyn Fn(&OpenChange) -> bool| self.open.iter().filter(|o| is(o)).count();
        let partial = count(&|open| open.change.is_partial());
        let waiting = count(&|open| matches!(open.progress, Progress::Waiting(_)));
        let ready = count(&|open| open.progress == Progress::Waiting(0));
        check(0).equal("changes of parts are counted", partial, self.partial_count)?;
        check(0).equal("waiting changes are counted", waiting, self.waiting_count)?;
        check(0).equal("changes that may start are counted", ready, self.ready_count)?;
        for (index, open) in (0..).zip(&self.open) {
            let started = self.open.iter().filter(|other| other.progress >= Progress::Reading);
            let blocking = started.filter(|other| other.change.conflicts_with(&open.change));
            let blocking = blocking.count() as u32;
            let (is_valid, expected) = match open.progress {
                Progress::Waiting(blockers) => (blockers >= blocking, blocking),
                Progress::Reading | Progress::Executing => {
                    (blocking == u32::from(open.change.is_partial()), 0)
                }
            };
            check(index).require(
                is_valid,
                "a change of a part is the only one in progress on its unit",
                expected,
                open,
            )?;
        }
        Ok(())
    }

    /// Breaks the count of waiting changes.
    #[cfg(test)]
    pub(crate) fn break_waiting_count(&mut self) {
        self.waiting_count += 1;
    }
}

/// Whether a command changes blocks.
pub(super) fn is_change(io: &IoCommand) -> bool {
    matches!(
        io,
        IoCommand::Write { .. }
            | IoCommand::WriteZeroes { .. }
            | IoCommand::DatasetManagement { .. }
    )
}
