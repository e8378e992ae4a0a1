//! Compare, Verify, Write Uncorrectable, Copy and LBA Status of a drive that manages its own flash.
//!
//! A Compare and a Verify are reads to the FTL: they take the time of a read, without the transfer
//! to the host; the data of a Compare passes the DMA stage as that of a write. A Write Uncorrectable
//! is a write of sectors that are marked as unreadable in the out-of-band bytes and in the map, so
//! that the mark is as durable as data, and moves with its sector. A Copy reads all of its sources
//! into memory of the drive, and is a write of that memory from then on. Invariant: a Copy writes
//! nothing unless all of its sources could be read.

use ftl::{Completion, HostStream, SectorName};
use mem::SharedRegion;
use nvme::{IoCommand, LbaStatusDescriptor, NamedCommand, NamedOp, Status};
use time::Nanos;

use crate::command::data_buffer::DataBuffer;
use crate::command::table::{Command, Commands, nth_range, range_blocks, range_count};
use crate::personality::block::BlockDrive;
use crate::personality::block_flash::source_offset;
use crate::personality::logical_blocks::{BlockRange, CommandPart, UnitRange};
use crate::personality::rules::fetches::FetchRead;
use crate::personality::rules::named::name_status;
use crate::personality::spaces::SpaceId;
use crate::personality::unit_changes::{BlockChange, ChangeKind, RequestTag, UnitChange};

impl BlockDrive {
    /// Whether the drive supports Write Uncorrectable: its FTL marks units, which are its blocks.
    pub(crate) fn can_mark_blocks(&self) -> bool {
        !self.has_partial_units()
    }

    /// Starts a Compare or a Verify of a range of blocks.
    pub(super) fn start_check(
        &mut self,
        now: Nanos,
        id: u32,
        part: CommandPart,
        range: BlockRange,
        commands: &mut Commands,
    ) {
        if part == CommandPart::Compare && !commands.get(id).data_buffer.has_data() {
            // Bit Bucket descriptors have no data for the drive [NVMe1.4 §4.4].
            return commands.complete_op(id, Status::SGL_LENGTH_INVALID);
        }
        match part {
            CommandPart::Compare => self.command_stats.compares += 1,
            _ => self.command_stats.verifies += 1,
        }
        self.read_ranges(now, id, part, range, commands);
    }

    /// Reads the ranges of a command: `range`, or its extents.
    pub(super) fn read_ranges(
        &mut self,
        now: Nanos,
        id: u32,
        part: CommandPart,
        range: BlockRange,
        commands: &mut Commands,
    ) {
        let (count, space) = (range_count(commands.get(id)), commands.get(id).space);
        commands.get_mut(id).ops_left = count as u32;
        for n in 0..count {
            let BlockRange { slba, nlb } = nth_range(commands.get(id), n, range);
            let units = self.blocks.covering_units(slba, nlb);
            let tag = RequestTag::of_part(id, part).of_range(n as u16).encode();
            let (ftl, mut flash) = self.split_ftl_and_flash(space, commands);
            ftl.read(now, tag, units.first, units.count, &mut flash);
        }
    }

    /// Starts a change of the extents of a command.
    #[cold]
    pub(super) fn change_extents(
        &mut self,
        now: Nanos,
        id: u32,
        change: BlockChange,
        commands: &mut Commands,
    ) {
        let BlockChange { kind, durable, .. } = change;
        let (blocks, extents) = (self.blocks, &commands.get(id).extents);
        let parts = |n: usize, extents: &[BlockRange]| -> Vec<(CommandPart, UnitRange)> {
            let BlockRange { slba, nlb } = extents[n];
            blocks.parts(slba, nlb).collect()
        };
        let (count, space) = (extents.len(), commands.get(id).space);
        let ops = (0..count).map(|n| parts(n, extents).len() as u32).sum();
        commands.get_mut(id).ops_left = ops;
        for n in 0..count {
            for (part, units) in parts(n, &commands.get(id).extents) {
                let tag = RequestTag::of_part(id, part).of_range(n as u16);
                let change = UnitChange { tag, kind, units, durable };
                match blocks.is_below_unit() {
                    true => self.start_part(now, change, commands),
                    false => self.execute(space, change),
                }
            }
        }
    }

    /// Starts a Write Uncorrectable.
    pub(super) fn start_uncorrectable(
        &mut self,
        id: u32,
        range: BlockRange,
        durable: bool,
        commands: &mut Commands,
    ) {
        if !self.can_mark_blocks() {
            return commands.complete_op(id, Status::INVALID_OPCODE);
        }
        self.command_stats.uncorrectable_writes += 1;
        let (count, space) = (range_count(commands.get(id)), commands.get(id).space);
        commands.get_mut(id).ops_left = count as u32;
        for n in 0..count {
            let BlockRange { slba, nlb } = nth_range(commands.get(id), n, range);
            let tag = RequestTag::whole(id).of_range(n as u16).encode();
            self.spaces.of_mut(space).0.write_uncorrectable(tag, slba, nlb, durable);
        }
        self.kick = true;
    }

    /// Starts the reads of a Copy, whose target is written to a stream. `through` tells whether writes complete only on the media.
    pub(super) fn start_copy(
        &mut self,
        now: Nanos,
        id: u32,
        stream: HostStream,
        through: bool,
        commands: &mut Commands,
    ) {
        let space = commands.get(id).space;
        let end = self.blocks_in(space);
        let command = commands.get_mut(id);
        let IoCommand::Copy { slba, fua, .. } = &mut command.io else { return };
        *fua |= through;
        let fits =
            |slba: u64, nlb: u64| slba.checked_add(nlb).is_some_and(|range_end| range_end <= end);
        let sources = command.ranges.iter().map(|r| (r.slba.get(), u64::from(r.nlb.get())));
        let blocks: u64 = sources.clone().map(|(_, nlb)| nlb).sum();
        let fits_target = !command.extents.is_empty() || fits(*slba, blocks);
        if !fits_target || !sources.clone().all(|(slba, nlb)| fits(slba, nlb)) {
            return commands.complete_op(id, Status::LBA_OUT_OF_RANGE.do_not_retry());
        }
        command.data_buffer = match self.stores_data() {
            true => match SharedRegion::anonymous(command.bytes as usize) {
                Ok(region) => DataBuffer::Internal(region),
                Err(_) => return commands.complete_op(id, Status::INTERNAL),
            },
            false => DataBuffer::Empty,
        };
        let units: Vec<_> =
            sources.map(|(slba, nlb)| self.blocks.covering_units(slba, nlb as u32)).collect();
        (command.ops_left, command.stream) = (units.len() as u32, stream);
        let (ftl, mut flash) = self.split_ftl_and_flash(space, commands);
        for (range, units) in (0..=u16::MAX).zip(units) {
            let tag = RequestTag { command: id, part: CommandPart::Copy, range };
            ftl.read(now, tag.encode(), units.first, units.count, &mut flash);
        }
    }

    /// Starts the reads of sectors for the rules of a command.
    pub(super) fn fetch(
        &mut self,
        now: Nanos,
        id: u32,
        reads: &[FetchRead],
        commands: &mut Commands,
    ) {
        let Command { app, space, .. } = *commands.get(id);
        let base = self.spaces.base_of(app);
        for FetchRead { place, lba } in reads {
            let tag = RequestTag::of_part(id, CommandPart::Fetch).of_range(*place).encode();
            let (ftl, mut flash) = self.split_ftl_and_flash(space, commands);
            ftl.read(now, tag, base + lba, 1, &mut flash);
        }
        // The controller resumes the rules after the FTL has worked.
        self.kick = true;
        self.collect_completions(now, space, commands);
    }

    /// Processes the completion of the read of a sector for the rules of a command.
    #[cold]
    fn on_fetched(&mut self, tag: RequestTag, status: Status, commands: &mut Commands) {
        if let Some(rules) = &mut commands.rules {
            rules.fetch_done(tag.command, tag.range, status);
        }
        self.kick = true;
    }

    /// Starts a command on a sector with a name.
    #[cold]
    pub(super) fn start_named(
        &mut self,
        now: Nanos,
        id: u32,
        NamedCommand { op, arg0, arg1 }: NamedCommand,
        commands: &mut Commands,
    ) {
        let space = commands.get(id).space;
        let tag = RequestTag::of_part(id, CommandPart::Named).encode();
        let (ftl, mut flash) = self.split_ftl_and_flash(space, commands);
        let ended = match op {
            NamedOp::Write => {
                ftl.write_named(tag, arg0);
                None
            }
            NamedOp::Read => ftl.read_named(now, tag, SectorName(arg0), arg1, &mut flash).err(),
            NamedOp::Free => {
                let freed = ftl.free_named(SectorName(arg0));
                let status = freed.map_or_else(name_status, |()| Status::SUCCESS);
                commands.complete_op(id, status);
                None
            }
        };
        if let Some(error) = ended {
            commands.complete_op(id, name_status(error));
        }
        self.kick = true;
    }

    /// Processes the completion of a command on a sector with a name.
    #[cold]
    fn on_named(
        &mut self,
        space: SpaceId,
        tag: RequestTag,
        status: Status,
        commands: &mut Commands,
    ) {
        // A name is there before the completion of its write.
        while let Some(write) = self.spaces.of_mut(space).0.pop_named_write() {
            commands.get_mut(RequestTag::decode(write.request).command).result = write.name.0;
        }
        commands.complete_op(tag.command, status);
        self.kick = true;
    }

    /// Processes the completion of the read of a source of a Copy. After the last one the data is
    /// written.
    #[cold]
    pub(super) fn on_source_read(
        &mut self,
        now: Nanos,
        space: SpaceId,
        done: Completion,
        commands: &mut Commands,
    ) {
        let tag = RequestTag::decode(done.tag);
        if tag.part == CommandPart::Fetch {
            return self.on_fetched(tag, done.status, commands);
        }
        if tag.part == CommandPart::Named {
            return self.on_named(space, tag, done.status, commands);
        }
        let id = tag.command;
        let protected = self.cache.is_durable;
        let command = commands.get_mut(id);
        if command.status.is_success() {
            command.status = done.status;
        }
        command.ops_left -= 1;
        if command.ops_left > 0 {
            return;
        }
        let stream = std::mem::take(&mut command.stream);
        let IoCommand::Copy { slba, fua, limited_retry, .. } = command.io else { return };
        if !command.status.is_success() {
            let status = command.status;
            return commands.complete(id, status);
        }
        let nlb = range_blocks(command) as u32;
        self.command_stats.copies += 1;
        self.command_stats.copied_blocks += u64::from(nlb);
        command.io = IoCommand::Write { slba, nlb, fua, limited_retry };
        command.ops_left = 1;
        let (range, kind) = (BlockRange { slba, nlb }, ChangeKind::Write(stream));
        let durable = fua && !protected;
        self.change(now, id, BlockChange { range, kind, durable }, commands);
    }

    /// Returns the position in a command's data of the block at a position of a request to the FTL.
    pub(super) fn block_position(
        &self,
        commands: &Commands,
        tag: RequestTag,
        position: u32,
    ) -> u32 {
        let offset = source_offset(commands.get(tag.command), self.blocks, tag, position);
        (offset / self.blocks.block_bytes() as u64) as u32
    }

    /// Returns to the host which blocks of a range are mapped, in up to `max` extents.
    pub(super) fn lba_status(
        &self,
        id: u32,
        slba: u64,
        nlb: u32,
        max: u32,
        commands: &mut Commands,
    ) -> Status {
        let command = commands.get(id);
        let is_outside =
            slba.checked_add(nlb.into()).is_none_or(|end| end > self.blocks_in(command.space));
        if command.extents.is_empty() && is_outside {
            return Status::LBA_OUT_OF_RANGE.do_not_retry();
        }
        let (mut host, mut found) = (slba.wrapping_sub(command.first_sector), 0);
        for n in 0..range_count(command) {
            let BlockRange { slba, nlb } = nth_range(command, n, BlockRange { slba, nlb });
            let (mut at, mut left) = (slba, nlb);
            while left > 0 && found < max {
                let (mapped, n) = self.extent(command.space, at, left);
                let bytes = LbaStatusDescriptor::new(host, n, mapped).to_bytes();
                let offset = u64::from(found) * LbaStatusDescriptor::BYTES as u64;
                command.data_buffer.write(command.port.memory(), offset, &bytes);
                (at, left, found, host) =
                    (at + u64::from(n), left - n, found + 1, host + u64::from(n));
            }
        }
        commands.get_mut(id).result = found.into();
        Status::SUCCESS
    }
}
