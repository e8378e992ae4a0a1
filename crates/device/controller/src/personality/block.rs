//! The block personality over NAND: the drive manages its own flash.
//!
//! [`BlockDrive`] runs the FTL ([`ftl::Ftl`]) on the drive's own parallel units. [`DriveFlash`] is
//! the adapter between the two. Commands address logical blocks, which may be smaller than the units
//! that the FTL maps ([`LogicalBlocks`]); then the drive splits a change into whole units and parts of
//! units, which it reads, modifies and writes ([`UnitChanges`]). Invariant: every command completes
//! exactly once, when the FTL has reported the completion of each of its parts.

use std::collections::VecDeque;

use ftl::{
    BatchWrite, ChunkReport, Completion, ControlChange, ControlError, FlashGeometry, Ftl,
    NewFtlError, RecoveryError,
};
use media::{ChunkState, DataStore};
use nvme::{DsmRange, IoCommand, Status, VectorHints};
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::command::table::Commands;
use crate::media_health::scrub::{MediaEventHandler, MediaScrubRead};
use crate::namespaces::{NamespaceTable, management};
use crate::nand_array::operation::SectorAddress;
use crate::nand_array::{NandArray, NandOpCompletion, NandOpKind, OpOwner};
use crate::persistence::nonvolatile::NonVolatile;
use crate::personality::block_flash::DriveFlash;
use crate::personality::format::{DriveMaintenance, FORMAT_TAG};
use crate::personality::logical_blocks::{BlockRange, CommandPart, LogicalBlocks, UnitRange};
use crate::personality::protection::{Protection, contents_bytes};
use crate::personality::recovery::{
    erased_ftl, factory_good_chunks, ftl_config, recover, scan_chunk,
};
use crate::personality::sanitize::{self, SanitizeRecord, SanitizeState};
use crate::personality::spaces::{
    ONLY_SPACE, SpaceId, SpaceUnits, Spaces, check_names, check_units,
};
use crate::personality::unit_changes::{
    BlockChange, COPY_TAGS, ChangeKind, ChangeStep, RequestTag, UnitChange, UnitChanges, is_change,
};
use crate::{BlockCommandStats, DriveConfig, DriveError, WriteBuffer};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BlockDrive {
    pub(crate) array: NandArray,
    pub(crate) spaces: Spaces,
    /// Whether the media store data: sectors, and slots of the write buffer.
    stores_data: bool,
    pub(crate) blocks: LogicalBlocks,
    pub(crate) protection: Option<Box<Protection>>,
    /// Unused if logical blocks are the units of the FTL.
    pub(crate) changes: UnitChanges,
    pub(super) cache: WriteCache,
    pub(super) kick: bool,
    /// Whether the last write found no space, because too many chunks have failed.
    pub(super) is_read_only: bool,
    pub(crate) media_event_handler: MediaEventHandler,
    pub(crate) command_stats: BlockCommandStats,
    pub(crate) namespaces: NamespaceTable,
    pub(crate) maintenance: DriveMaintenance,
    /// Completed writes without commands.
    #[serde(skip)]
    direct_writes: VecDeque<Completion>,
    /// Memory for the contents of a unit.
    #[serde(skip)]
    scratch: Vec<u8>,
}

/// The write buffer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct WriteCache {
    buffer: WriteBuffer,
    /// Whether its contents are durable. The capacitors of a drive with an image survive a power
    /// cut, but not the death of the process: there a flush writes to the media.
    pub(super) is_durable: bool,
}

/// Marks the tags of writes without commands.
pub(crate) const DIRECT_TAG: u64 = 1 << 63;

/// Tag of a flush or a trim that no command requested.
pub(crate) const INTERNAL_TAG: u64 = u64::MAX;

impl BlockDrive {
    /// Powers the drive on: with a new FTL on fresh media, or with an FTL recovered from the media.
    /// `settings` are those that the controller has kept.
    pub(crate) fn new(
        mut array: NandArray,
        drive: &DriveConfig,
        mut settings: NonVolatile,
    ) -> Result<BlockDrive, DriveError> {
        let cache = drive.write_buffer;
        let nand = &mut array.nand;
        let sector_bytes = nand.layout().sector_bytes();
        let keeps = nand.config().data != DataStore::None;
        let shape = FlashGeometry::from_geometry(&nand.config().host_geometry());
        let is_named = drive.rules.as_ref().map_or(Ok(false), |rules| rules.has_names(drive))?;
        let config = ftl_config(nand, drive, is_named).map_err(RecoveryError::from)?;
        let apps = drive.rules.as_ref().map_or(Ok(Vec::new()), |rules| rules.spaces(drive))?;
        let all = SpaceUnits::all(nand);
        let fresh = nand
            .chunks()
            .all(|(_, i)| matches!(i.state, ChunkState::Free | ChunkState::Offline) && i.wear == 0);
        let is_new = fresh || !keeps;
        check_names(&settings, is_named, is_new)?;
        check_units(&mut settings, &apps, is_named, is_new)?;
        let sanitize = SanitizeState::power_on(SanitizeRecord::read(&settings), fresh);
        let mut spaces = Spaces::open(&apps, all, config, |units, config| {
            if sanitize.has_flash {
                // It is replaced when the operation ends.
                let good_when_new = factory_good_chunks(nand, units);
                return Ok(erased_ftl(nand, units, config, good_when_new)?);
            }
            if is_new {
                let usable = |chunk| match scan_chunk(nand, units, &shape, chunk) {
                    unusable @ (ChunkReport::Bad | ChunkReport::NotOwned) => unusable,
                    _ => ChunkReport::Free,
                };
                return Ok(Ftl::new(shape, config, usable)?);
            }
            recover(nand, units, shape, config)
        })?;
        let in_image = nand.config().data.image().is_some();
        let survives = matches!(cache, WriteBuffer::PowerLossProtected { .. }) && !in_image;
        nand.set_slots(spaces.slots()).map_err(|e| RecoveryError::from(NewFtlError::from(e)))?;
        let blocks = LogicalBlocks::new(drive.lba_bytes(), sector_bytes);
        let namespaces = management::open_table(drive, &mut settings, &mut spaces, blocks, is_new)?;
        let care = MediaEventHandler::new(drive.controller.scrub);
        let protected = drive.protection.is_some();
        let protection =
            protected.then(|| Box::new(Protection::new(spaces.slots(), blocks.unit_blocks())));
        let contents_bytes = contents_bytes(keeps, sector_bytes, protection.as_deref());
        Ok(BlockDrive {
            array,
            spaces,
            stores_data: keeps,
            blocks,
            protection,
            changes: UnitChanges::new(contents_bytes),
            cache: WriteCache { buffer: cache, is_durable: survives },
            kick: true,
            is_read_only: false,
            media_event_handler: care,
            command_stats: BlockCommandStats::default(),
            namespaces,
            maintenance: DriveMaintenance { settings, format: None, sanitize },
            direct_writes: VecDeque::new(),
            scratch: Vec::new(),
        })
    }

    /// Starts again with an FTL that has no data. Settings of the FTL return to those of the
    /// configuration. The drive has one application at most.
    ///
    /// # Errors
    /// No memory for the write buffer.
    pub(super) fn restart(&mut self, mut ftl: Ftl, drive: &DriveConfig) -> Result<(), NewFtlError> {
        self.array.nand.set_slots(ftl.slots())?;
        ftl.add_stats(self.spaces.first.stats());
        if let Some(protection) = self.protection.as_deref_mut() {
            protection.restart(ftl.slots());
        }
        self.spaces.first = ftl;
        let (scrub, partial) = (self.media_event_handler.stats, self.changes.stats);
        let sector_bytes = self.array.nand.layout().sector_bytes();
        let bytes = contents_bytes(self.stores_data, sector_bytes, self.protection.as_deref());
        self.changes = UnitChanges::new(bytes);
        self.media_event_handler = MediaEventHandler::new(drive.controller.scrub);
        (self.media_event_handler.stats, self.changes.stats) = (scrub, partial);
        (self.is_read_only, self.kick) = (false, true);
        Ok(())
    }

    /// Changes a setting of the FTL.
    pub(crate) fn apply_change(&mut self, change: &ControlChange) -> Result<(), ControlError> {
        // A change that one translation layer refuses is made by none.
        self.spaces.all().try_for_each(|ftl| ftl.check_change(change))?;
        for ftl in self.spaces.all_mut() {
            ftl.apply_change(change)?;
        }
        self.kick = true;
        Ok(())
    }

    /// Whether the media store data.
    pub(crate) fn stores_data(&self) -> bool {
        self.stores_data
    }

    /// Whether completed writes need a flush to be durable.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        matches!(self.cache.buffer, WriteBuffer::Volatile { .. })
    }

    /// Whether a write completes only on the media.
    #[inline]
    fn writes_through(&self, cache_enabled: bool) -> bool {
        matches!(self.cache.buffer, WriteBuffer::None)
            || self.has_volatile_cache() && !cache_enabled
    }

    /// Queues a write without a command. `tag` has the mark [`DIRECT_TAG`].
    pub(crate) fn write_directly(&mut self, tag: u64, lba: u64, sectors: u32, cache_enabled: bool) {
        sanitize::record_direct_writes(self);
        let is_durable = self.writes_through(cache_enabled);
        self.spaces.first.write(tag, lba, sectors, is_durable);
        self.kick = true;
        // A range that the FTL refuses completes at once.
        while let Some(done) = self.spaces.first.pop_completion() {
            self.direct_writes.push_back(done);
        }
    }

    /// Queues writes without commands, and gives their tags the mark [`DIRECT_TAG`].
    pub(crate) fn write_batch_directly(&mut self, writes: &mut [BatchWrite], cache_enabled: bool) {
        sanitize::record_direct_writes(self);
        writes.iter_mut().for_each(|write| write.tag |= DIRECT_TAG);
        if self.writes_through(cache_enabled) {
            for write in writes {
                self.write_directly(write.tag, write.slba, write.sectors, cache_enabled);
            }
        } else if !writes.is_empty() {
            self.spaces.first.write_batch(writes);
            self.kick = true;
        }
    }

    /// Removes and returns the tag and the status of a completed direct write.
    pub(crate) fn pop_direct_write(&mut self) -> Option<(u64, Status)> {
        let done = self.direct_writes.pop_front()?;
        Some((done.tag & !DIRECT_TAG, done.status))
    }

    /// Starts a command of a space.
    #[inline(always)]
    pub(crate) fn start(
        &mut self,
        now: Nanos,
        id: u32,
        space: SpaceId,
        commands: &mut Commands,
        cache_enabled: bool,
    ) {
        let command = commands.get_mut(id);
        command.ops_left = 1;
        if let IoCommand::Read { slba, nlb, .. } = command.io
            && command.extents.is_empty()
        {
            let units = self.blocks.covering_units(slba, nlb);
            let (ftl, mut flash) = self.split_ftl_and_flash(space, commands);
            ftl.read(now, id.into(), units.first, units.count, &mut flash);
        } else {
            self.start_change(now, id, commands, cache_enabled);
        }
        self.collect_completions(now, space, commands);
    }

    /// Starts a command that is no read of one range.
    #[inline(never)]
    fn start_change(&mut self, now: Nanos, id: u32, commands: &mut Commands, cache_enabled: bool) {
        let stream = std::mem::take(&mut commands.get_mut(id).stream);
        if let Err(status) = sanitize::record_command(self, &commands.get(id).io) {
            return commands.complete_op(id, status);
        }
        let through = self.writes_through(cache_enabled);
        let (protected, tag) = (self.cache.is_durable, u64::from(id));
        match commands.get(id).io {
            IoCommand::Read { slba, nlb, .. } => {
                self.read_ranges(now, id, CommandPart::Whole, BlockRange { slba, nlb }, commands);
            }
            IoCommand::Write { slba, nlb, fua, .. } => {
                let block_bytes = self.blocks.block_bytes();
                if let Some(protection) = &mut self.protection
                    && let Err(status) = protection.check_host_info(id, block_bytes, commands)
                {
                    return commands.complete_op(id, status);
                }
                let (durable, range) = (through || fua && !protected, BlockRange { slba, nlb });
                let kind = ChangeKind::Write(stream);
                self.change(now, id, BlockChange { range, kind, durable }, commands);
            }
            IoCommand::WriteZeroes { slba, nlb, deallocate, fua } => {
                let is_trim = deallocate && !fua;
                let kind = if is_trim { ChangeKind::Trim } else { ChangeKind::Zeroes(stream) };
                let (durable, range) = (through || fua && !protected, BlockRange { slba, nlb });
                self.change(now, id, BlockChange { range, kind, durable }, commands);
            }
            IoCommand::Compare { slba, nlb, .. } => {
                self.start_check(now, id, CommandPart::Compare, BlockRange { slba, nlb }, commands);
            }
            IoCommand::Verify { slba, nlb, .. } => {
                self.start_check(now, id, CommandPart::Verify, BlockRange { slba, nlb }, commands);
            }
            IoCommand::WriteUncorrectable { slba, nlb } => {
                self.start_uncorrectable(id, BlockRange { slba, nlb }, through, commands);
            }
            IoCommand::Copy { .. } => self.start_copy(now, id, stream, through, commands),
            IoCommand::Flush if protected => commands.complete_op(id, Status::SUCCESS),
            IoCommand::Flush => {
                let space = commands.get(id).space;
                let (ftl, mut flash) = self.split_ftl_and_flash(space, commands);
                ftl.flush(now, tag, &mut flash);
                self.kick = true;
            }
            IoCommand::DatasetManagement { deallocate, .. } => {
                self.trim(now, id, deallocate, commands);
            }
            IoCommand::LbaStatus { slba, nlb, max_descriptors } => {
                let status = self.lba_status(id, slba, nlb, max_descriptors, commands);
                commands.complete_op(id, status);
            }
            IoCommand::VectorRead { .. }
            | IoCommand::VectorWrite { .. }
            | IoCommand::VectorReset { .. }
            | IoCommand::VectorCopy { .. }
            | IoCommand::DeviceTrim { .. }
            | IoCommand::Rule(_) => commands.complete_op(id, Status::INVALID_OPCODE),
            IoCommand::Named(named) => self.start_named(now, id, named, commands),
        }
    }

    /// Starts a change of blocks.
    pub(super) fn change(
        &mut self,
        now: Nanos,
        id: u32,
        change: BlockChange,
        commands: &mut Commands,
    ) {
        let BlockChange { range: BlockRange { slba, nlb }, kind, durable } = change;
        if !commands.get(id).extents.is_empty() {
            return self.change_extents(now, id, change, commands);
        }
        if !self.blocks.is_below_unit() {
            let units = UnitRange { first: slba, count: nlb };
            let change = UnitChange { tag: RequestTag::whole(id), kind, units, durable };
            return self.execute(commands.get(id).space, change);
        }
        if slba.checked_add(nlb.into()).is_none_or(|end| end > self.capacity_blocks()) {
            return commands.complete_op(id, Status::LBA_OUT_OF_RANGE.do_not_retry());
        }
        commands.get_mut(id).ops_left = self.blocks.parts(slba, nlb).count() as u32;
        for (part, units) in self.blocks.parts(slba, nlb) {
            let tag = RequestTag::of_part(id, part);
            self.start_part(now, UnitChange { tag, kind, units, durable }, commands);
        }
    }

    /// Starts a part of a change, unless it has to wait. Only a drive with one application has parts.
    pub(super) fn start_part(&mut self, now: Nanos, change: UnitChange, commands: &mut Commands) {
        if self.changes.add(change) {
            self.execute_part(now, change, commands);
        }
    }

    /// Gives a started part of a change to the FTL, or reads its unit first.
    fn execute_part(&mut self, now: Nanos, change: UnitChange, commands: &mut Commands) {
        if !change.is_partial() {
            return self.execute(ONLY_SPACE, change);
        }
        let (ftl, mut flash) = self.split_ftl_and_flash(ONLY_SPACE, commands);
        ftl.read(now, change.tag.encode(), change.units.first, change.units.count, &mut flash);
    }

    /// Gives a change to the FTL. A part of a unit is written with the contents of its unit, also if
    /// its blocks are zeroed.
    #[inline]
    pub(super) fn execute(&mut self, space: SpaceId, change: UnitChange) {
        let (ftl, _) = self.spaces.of_mut(space);
        let UnitChange { units: UnitRange { first, count }, durable, .. } = change;
        let tag = change.tag.encode();
        match change.kind {
            ChangeKind::Write(stream) => ftl.write_to(stream, tag, first, count, durable),
            kind if change.is_partial() => {
                ftl.write_to(kind.stream(), tag, first, count, durable);
            }
            ChangeKind::Zeroes(to) => ftl.write_zeroes_to(to, tag, first, count, durable),
            ChangeKind::Trim => ftl.trim(tag, first, count),
        }
        self.kick = true;
    }

    /// Processes the completion of a part of a command. Returns whether the part is complete.
    #[inline(never)]
    fn on_part_complete(&mut self, done: Completion) -> bool {
        match self.changes.on_complete(RequestTag::decode(done.tag), done.status) {
            ChangeStep::Write(change) => {
                self.execute(ONLY_SPACE, change);
                false
            }
            ChangeStep::Complete => true,
        }
    }

    /// Deallocates the units that lie completely in the ranges of a command.
    fn trim(&mut self, now: Nanos, id: u32, deallocate: bool, commands: &mut Commands) {
        if !deallocate {
            // The other attributes are only hints [NVMe1.4 §6.7].
            return commands.complete_op(id, Status::SUCCESS);
        }
        let space = commands.get(id).space;
        let (end, blocks) = (self.blocks_in(space), self.blocks);
        let fits = |r: &DsmRange| {
            r.slba.get().checked_add(r.nlb.get().into()).is_some_and(|last| last <= end)
        };
        let units_of = |r: &DsmRange| blocks.whole_units(r.slba.get(), r.nlb.get());
        let ranges = &mut commands.get_mut(id).ranges;
        ranges.retain(|r| r.nlb.get() > 0);
        if !ranges.iter().all(fits) {
            return commands.complete_op(id, Status::LBA_OUT_OF_RANGE.do_not_retry());
        }
        ranges.retain(|r| units_of(r).count > 0);
        let count = ranges.len();
        commands.get_mut(id).ops_left = 1 + count as u32;
        for index in 0..count {
            let units = units_of(&commands.get(id).ranges[index]);
            let (tag, kind, durable) = (RequestTag::whole(id), ChangeKind::Trim, false);
            let change = UnitChange { tag, kind, units, durable };
            match blocks.is_below_unit() {
                true => self.start_part(now, change, commands),
                false => self.execute(space, change),
            }
        }
        commands.complete_op(id, Status::SUCCESS);
        self.kick = true;
    }

    #[inline]
    pub(super) fn split_ftl_and_flash<'a>(
        &'a mut self,
        space: SpaceId,
        commands: &'a mut Commands,
    ) -> (&'a mut Ftl, DriveFlash<'a>) {
        let (ftl, first_slot) = self.spaces.of_mut(space);
        let flash = DriveFlash {
            space,
            first_slot,
            array: &mut self.array,
            commands,
            stores_data: self.stores_data,
            blocks: self.blocks,
            changes: &mut self.changes,
            stats: &mut self.command_stats,
            scratch: &mut self.scratch,
            protection: &mut self.protection,
        };
        (ftl, flash)
    }

    /// Records in a command which of its sectors could not be read.
    #[cold]
    fn record_failed_sectors(&self, done: &NandOpCompletion, commands: &mut Commands) {
        let (OpOwner::FtlForCommand(_, tag), NandOpKind::Read) = (done.owner, done.kind) else {
            return;
        };
        if let CommandPart::Fetch | CommandPart::Named = tag.part {
            // It is in no range of its command.
            return;
        }
        for (i, address) in self.array.addresses(done.op).iter().enumerate() {
            if done.failed >> i & 1 != 0 {
                let block = self.block_position(commands, tag, address.position);
                commands.sector_failed(tag.command, block);
            }
        }
    }

    /// Handles the completion of a flash operation.
    #[inline]
    pub(crate) fn on_op_complete(
        &mut self,
        now: Nanos,
        done: NandOpCompletion,
        commands: &mut Commands,
    ) {
        // The unit of an operation is the space that it is for.
        match done.unit {
            0 => self.on_op_of(now, ONLY_SPACE, done, commands),
            _ => self.on_op_of_other(now, done, commands),
        }
    }

    /// Handles the completion of a flash operation of a space behind the first one.
    #[inline(never)]
    fn on_op_of_other(&mut self, now: Nanos, done: NandOpCompletion, commands: &mut Commands) {
        self.on_op_of(now, SpaceId::new(done.unit), done, commands);
    }

    /// Handles the completion of a flash operation of a space.
    #[inline(always)]
    fn on_op_of(
        &mut self,
        now: Nanos,
        space: SpaceId,
        done: NandOpCompletion,
        commands: &mut Commands,
    ) {
        if done.failed != 0 {
            self.record_failed_sectors(&done, commands);
        }
        let (ftl, mut flash) = self.split_ftl_and_flash(space, commands);
        match (done.owner, done.kind) {
            (OpOwner::FtlForCommand(op, tag), NandOpKind::Read) => {
                flash.copy_read_data(&done, tag);
                self.kick |= ftl.read_done(op, done.failed, &mut flash);
            }
            (OpOwner::Ftl(op), NandOpKind::Read) => {
                self.kick |= ftl.read_done(op, done.failed, &mut flash);
            }
            (OpOwner::Ftl(op), NandOpKind::Program) => {
                ftl.program_done(now, op, done.status, &mut flash);
                self.kick = true;
            }
            (OpOwner::Ftl(op), NandOpKind::Erase) => {
                ftl.erase_done(op, done.status);
                self.kick = true;
            }
            (OpOwner::Sanitize(_), _) => sanitize::on_op_complete(self, now, &done),
            (OpOwner::Scrub, NandOpKind::Read) => self.media_event_handler.on_read_complete(now),
            (OpOwner::Command(_) | OpOwner::FtlForCommand(..) | OpOwner::Scrub, _) => {}
        }
        self.kick |= self.maintenance.sanitize.has_flash;
        self.collect_completions(now, space, commands);
    }

    /// Runs the FTL after a batch of commands and operations. Returns whether it made progress.
    #[inline]
    pub(crate) fn run_ftl(&mut self, now: Nanos, commands: &mut Commands) -> bool {
        if self.array.media_events.has_pending() {
            self.handle_media_events();
        }
        self.kick && self.kick_ftl(now, commands)
    }

    #[inline(never)]
    fn kick_ftl(&mut self, now: Nanos, commands: &mut Commands) -> bool {
        self.kick = false;
        if self.maintenance.sanitize.has_flash {
            sanitize::step(self, now);
            return true;
        }
        for space in self.spaces.ids() {
            let (ftl, mut flash) = self.split_ftl_and_flash(space, commands);
            ftl.kick(now, &mut flash);
            self.collect_completions(now, space, commands);
        }
        if self.maintenance.format.is_some() {
            self.step_format(now, commands);
        }
        true
    }

    /// Handles new media events.
    #[cold]
    fn handle_media_events(&mut self) {
        let is_sanitized = self.maintenance.sanitize.has_flash;
        let shape = *self.spaces.first.geometry();
        for notice in self.array.media_events.drain_pending() {
            if is_sanitized {
                continue;
            }
            let pu = shape.pu_of(shape.chunk_of(notice.phys));
            self.media_event_handler.on_media_event(notice, self.spaces.owner_mut(pu));
        }
        self.kick = true;
    }

    /// Returns the deadline of the next flash operation or scrub step.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        self.array.deadline().min(self.media_event_handler.deadline())
    }

    /// Whether the FTL has work now.
    #[inline]
    pub(crate) fn has_ftl_work(&self) -> bool {
        self.kick || self.array.media_events.has_pending()
    }

    /// Whether the next step is the scrub, at `now` or earlier.
    #[inline]
    pub(crate) fn is_scrub_due(&self, now: Nanos) -> bool {
        let due = self.media_event_handler.deadline();
        due <= now && due < self.array.deadline()
    }

    /// Whether an operation of the array is due at `now`, and comes before a scrub step and the
    /// handling of media events.
    #[inline]
    pub(crate) fn is_op_due(&self, now: Nanos) -> bool {
        self.array.deadline() <= now
            && !self.is_scrub_due(now)
            && !self.array.media_events.has_pending()
    }

    /// Executes the scrub steps that are due.
    #[cold]
    pub(crate) fn run_scrub(&mut self, now: Nanos) {
        let (read, kick) =
            self.media_event_handler.step(now, &mut self.spaces.first, &self.array.nand);
        self.kick |= kick;
        if let Some(MediaScrubRead { first, sectors }) = read {
            let addresses = (0..sectors.min(64))
                .map(|position| SectorAddress { phys: first + position, position });
            self.array.read(now, OpOwner::Scrub, VectorHints::NONE, addresses);
        }
    }

    #[inline(always)]
    pub(super) fn collect_completions(
        &mut self,
        now: Nanos,
        space: SpaceId,
        commands: &mut Commands,
    ) {
        if self.spaces.of(space).has_completion() {
            self.collect_all_completions(now, space, commands);
        }
    }

    #[inline(never)]
    fn collect_all_completions(&mut self, now: Nanos, space: SpaceId, commands: &mut Commands) {
        while let Some(done) = self.spaces.of_mut(space).0.pop_completion() {
            if done.tag < COPY_TAGS {
                self.on_completion(now, done, commands);
            } else if done.tag == FORMAT_TAG {
                self.on_format_step(now, done, commands);
            } else if done.tag < DIRECT_TAG {
                self.on_source_read(now, space, done, commands);
            } else if done.tag != INTERNAL_TAG {
                self.direct_writes.push_back(done);
            }
        }
    }

    /// Processes the completion of a command, or of a part of it.
    #[inline(always)]
    fn on_completion(&mut self, now: Nanos, done: Completion, commands: &mut Commands) {
        let id = done.tag as u32;
        let mut status = done.status;
        let is_part = self.blocks.is_below_unit() && is_change(&commands.get(id).io);
        if is_part && !self.on_part_complete(done) {
            return;
        }
        if self.is_read_only || !status.is_success() {
            status = self.update_read_only(status, &commands.get(id).io);
        }
        commands.complete_op(id, status);
        if is_part {
            while let Some(change) = self.changes.next_ready() {
                self.execute_part(now, change, commands);
            }
        }
    }

    /// Shuts down in order, without advancing time. The FTL writes the buffer and a checkpoint of
    /// the map to the media, so that the next power-on needs no scan ([LightNVM17 §4.2.2]: the
    /// snapshot on power-down).
    pub(crate) fn shut_down(&mut self, now: Nanos, commands: &mut Commands) {
        if self.stores_data() && !self.maintenance.sanitize.has_flash {
            self.spaces.all_mut().for_each(Ftl::checkpoint);
        }
        self.drain(now, commands);
    }

    /// Writes the write buffer to the media, without advancing time: on power loss (capacitors),
    /// and on orderly shutdown. During Sanitize nothing is written.
    pub(crate) fn drain(&mut self, now: Nanos, commands: &mut Commands) {
        if self.maintenance.sanitize.has_flash {
            return;
        }
        let instant = std::mem::replace(&mut self.array.zero_latency, true);
        if let Some(rules) = &mut commands.rules {
            rules.record_changes(&mut self.spaces.first);
        }
        for space in self.spaces.ids() {
            let (ftl, mut flash) = self.split_ftl_and_flash(space, commands);
            ftl.flush(now, INTERNAL_TAG, &mut flash);
        }
        self.run_ftl(now, commands);
        while !self.array.is_idle() {
            // Operations that started earlier complete at their own times.
            let at = self.array.deadline().max(now);
            if at == Nanos::MAX {
                break;
            }
            self.array.advance(at);
            if let Some(done) = self.array.pop_completion() {
                self.on_op_complete(at, done, commands);
                self.run_ftl(at, commands);
            }
        }
        self.array.zero_latency = instant;
    }
}
