//! The block personality over NAND: the drive manages its own flash.
//!
//! [`BlockDrive`] runs the FTL ([`ftl::Ftl`]) on the drive's own parallel units. [`DriveFlash`] is
//! the adapter between the two: it stages program data on the media, and copies data between the
//! media, the write buffer and host memory. Invariant: every command completes exactly once, when
//! the FTL reports its completion.

use std::collections::VecDeque;

use ftl::{
    CapacityError, ChunkReport, Completion, ControlChange, ControlError, FlashBackend,
    FlashGeometry, Ftl, NewFtlError, Oob, OpToken, ReadAddress, ReadDest, RecoveryError, SlotId,
    WriteUnit,
};
use media::{BufferSlot, ChunkId, ChunkState, DataStore, PhysSector};
use mem::SharedRegion;
use nvme::{DsmRange, IoCommand, LbaStatusDescriptor, PuId, Status, VectorHints};
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::command::table::Commands;
use crate::media_health::scrub::{MediaEventHandler, MediaScrubRead};
use crate::nand_array::operation::SectorAddress;
use crate::nand_array::{NandArray, NandOpCompletion, NandOpKind, OpOwner};
use crate::personality::recovery::{recover, scan_chunk};
use crate::{DriveConfig, WriteBuffer};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BlockDrive {
    pub(crate) array: NandArray,
    pub(crate) ftl: Ftl,
    /// Whether the media store data: sectors, and slots of the write buffer.
    stores_data: bool,
    sector_bytes: u32,
    write_buffer: WriteBuffer,
    /// Whether the contents of the write buffer are durable. The capacitors of a drive with an
    /// image survive a power cut, but not the death of the process: there a flush writes to the
    /// media.
    buffer_durable: bool,
    kick: bool,
    /// Whether the last write found no space, because too many chunks have failed.
    is_read_only: bool,
    pub(crate) media_event_handler: MediaEventHandler,
    /// Completed writes without commands.
    #[serde(skip)]
    direct_writes: VecDeque<Completion>,
}

/// Marks the tags of writes without commands.
pub(crate) const DIRECT_TAG: u64 = 1 << 63;

/// Tag of a flush that no command requested.
const INTERNAL_FLUSH_TAG: u64 = u64::MAX;

impl BlockDrive {
    /// Powers the drive on: with a new FTL on fresh media, or with an FTL recovered from the media.
    pub(crate) fn new(
        mut array: NandArray,
        drive: &DriveConfig,
    ) -> Result<BlockDrive, RecoveryError> {
        let (mut config, cache) = (drive.ftl, drive.write_buffer);
        let nand = &mut array.nand;
        let sector_bytes = nand.layout().sector_bytes();
        let keeps = nand.config().data != DataStore::None;
        let shape = FlashGeometry::from_geometry(&nand.config().host_geometry());
        if !keeps && config.map_cache_sectors > 0 {
            return Err(NewFtlError::from(CapacityError::MapCacheWithoutData).into());
        }
        if let WriteBuffer::Volatile { bytes } | WriteBuffer::PowerLossProtected { bytes } = cache {
            let sectors = (bytes / u64::from(sector_bytes)).min(1 << 24) as u32;
            config.write_buffer_sectors = config.write_buffer_sectors.max(sectors);
        }
        let fresh = nand
            .chunks()
            .all(|(_, i)| matches!(i.state, ChunkState::Free | ChunkState::Offline) && i.wear == 0);
        let ftl = if fresh || !keeps {
            let usable = |c| match scan_chunk(nand, &shape, c) {
                ChunkReport::Bad => ChunkReport::Bad,
                _ => ChunkReport::Free,
            };
            Ftl::new(shape, config, usable)?
        } else {
            recover(nand, shape, config)?
        };
        let in_image = nand.config().data.image().is_some();
        let survives = matches!(cache, WriteBuffer::PowerLossProtected { .. }) && !in_image;
        nand.set_slots(ftl.slots()).map_err(NewFtlError::from)?;
        let care = MediaEventHandler::new(drive.controller.scrub);
        Ok(BlockDrive {
            array,
            ftl,
            stores_data: keeps,
            sector_bytes,
            write_buffer: cache,
            buffer_durable: survives,
            kick: true,
            is_read_only: false,
            media_event_handler: care,
            direct_writes: VecDeque::new(),
        })
    }

    /// Changes a setting of the FTL.
    pub(crate) fn apply_change(&mut self, change: &ControlChange) -> Result<(), ControlError> {
        self.ftl.apply_change(change)?;
        self.kick = true;
        Ok(())
    }

    /// Whether the media store data.
    pub(crate) fn stores_data(&self) -> bool {
        self.stores_data
    }

    /// Whether completed writes need a flush to be durable.
    pub(crate) fn has_volatile_cache(&self) -> bool {
        matches!(self.write_buffer, WriteBuffer::Volatile { .. })
    }

    /// Whether a write completes only on the media.
    #[inline]
    fn writes_through(&self, cache_enabled: bool) -> bool {
        matches!(self.write_buffer, WriteBuffer::None)
            || self.has_volatile_cache() && !cache_enabled
    }

    /// Queues a write without a command. `tag` has the mark [`DIRECT_TAG`].
    pub(crate) fn write_directly(&mut self, tag: u64, lba: u64, sectors: u32, cache_enabled: bool) {
        self.ftl.write(tag, lba, sectors, self.writes_through(cache_enabled));
        self.kick = true;
        // A range that the FTL refuses completes at once.
        while let Some(done) = self.ftl.pop_completion() {
            self.direct_writes.push_back(done);
        }
    }

    /// Removes and returns the tag and the status of a completed direct write.
    pub(crate) fn pop_direct_write(&mut self) -> Option<(u64, Status)> {
        let done = self.direct_writes.pop_front()?;
        Some((done.tag & !DIRECT_TAG, done.status))
    }

    /// Starts a command.
    #[inline]
    pub(crate) fn start(
        &mut self,
        now: Nanos,
        id: u32,
        commands: &mut Commands,
        cache_enabled: bool,
    ) {
        let command = commands.get_mut(id);
        command.ops_left = 1;
        if let IoCommand::Read { slba, nlb, .. } = command.io {
            let (ftl, mut flash) = self.split_ftl_and_flash(commands);
            ftl.read(now, id.into(), slba, nlb, &mut flash);
        } else {
            self.start_change(now, id, commands, cache_enabled);
        }
        self.collect_completions(commands);
    }

    /// Starts a command that is no read.
    #[inline(never)]
    fn start_change(&mut self, now: Nanos, id: u32, commands: &mut Commands, cache_enabled: bool) {
        let through = self.writes_through(cache_enabled);
        let protected = self.buffer_durable;
        let tag = u64::from(id);
        match commands.get(id).io {
            IoCommand::Read { .. } => {}
            IoCommand::Write { slba, nlb, fua, .. } => {
                self.ftl.write(tag, slba, nlb, through || fua && !protected);
                self.kick = true;
            }
            IoCommand::WriteZeroes { slba, nlb, deallocate, fua } => {
                if deallocate && !fua {
                    self.ftl.trim(tag, slba, nlb);
                } else {
                    self.ftl.write_zeroes(tag, slba, nlb, through || fua && !protected);
                }
                self.kick = true;
            }
            IoCommand::Flush if protected => commands.complete_op(id, Status::SUCCESS),
            IoCommand::Flush => {
                let (ftl, mut flash) = self.split_ftl_and_flash(commands);
                ftl.flush(now, tag, &mut flash);
                self.kick = true;
            }
            IoCommand::DatasetManagement { deallocate, .. } => {
                self.trim(id, deallocate, commands);
            }
            IoCommand::LbaStatus { slba, nlb, max_descriptors } => {
                let status = self.lba_status(id, slba, nlb, max_descriptors, commands);
                commands.complete_op(id, status);
            }
            IoCommand::VectorRead { .. }
            | IoCommand::VectorWrite { .. }
            | IoCommand::VectorReset { .. }
            | IoCommand::VectorCopy { .. }
            | IoCommand::DeviceTrim { .. } => commands.complete_op(id, Status::INVALID_OPCODE),
        }
    }

    fn trim(&mut self, id: u32, deallocate: bool, commands: &mut Commands) {
        if !deallocate {
            // The other attributes are only hints [NVMe1.4 §6.7].
            return commands.complete_op(id, Status::SUCCESS);
        }
        let command = commands.get_mut(id);
        command.ranges.retain(|r| r.nlb.get() > 0);
        let ranges = &command.ranges;
        let end = self.ftl.sectors();
        let fits = |r: &DsmRange| {
            r.slba.get().checked_add(r.nlb.get().into()).is_some_and(|last| last <= end)
        };
        if !ranges.iter().all(fits) {
            return commands.complete_op(id, Status::LBA_OUT_OF_RANGE.do_not_retry());
        }
        command.ops_left = 1 + ranges.len() as u32;
        for range in &command.ranges {
            self.ftl.trim(u64::from(id), range.slba.get(), range.nlb.get());
        }
        commands.complete_op(id, Status::SUCCESS);
        self.kick = true;
    }

    fn lba_status(
        &self,
        id: u32,
        slba: u64,
        nlb: u32,
        max: u32,
        commands: &mut Commands,
    ) -> Status {
        if slba.checked_add(nlb.into()).is_none_or(|end| end > self.ftl.sectors()) {
            return Status::LBA_OUT_OF_RANGE.do_not_retry();
        }
        let command = commands.get(id);
        let (mut at, mut left, mut found) = (slba, nlb, 0);
        while left > 0 && found < max {
            let (mapped, n) = self.ftl.extent(at, left);
            let bytes = LbaStatusDescriptor::new(at - command.first_sector, n, mapped).to_bytes();
            let offset = u64::from(found) * LbaStatusDescriptor::BYTES as u64;
            command.data_buffer.write(command.port.memory(), offset, &bytes);
            (at, left, found) = (at + u64::from(n), left - n, found + 1);
        }
        commands.get_mut(id).result = found.into();
        Status::SUCCESS
    }

    #[inline]
    fn split_ftl_and_flash<'a>(
        &'a mut self,
        commands: &'a Commands,
    ) -> (&'a mut Ftl, DriveFlash<'a>) {
        let flash = DriveFlash {
            array: &mut self.array,
            commands,
            stores_data: self.stores_data,
            sector_bytes: self.sector_bytes,
        };
        (&mut self.ftl, flash)
    }

    /// Records in a command which of its sectors could not be read.
    #[cold]
    fn record_failed_sectors(&self, done: &NandOpCompletion, commands: &mut Commands) {
        let (OpOwner::FtlForCommand(_, request), NandOpKind::Read) = (done.owner, done.kind) else {
            return;
        };
        for (i, address) in self.array.addresses(done.op).iter().enumerate() {
            if done.failed >> i & 1 != 0 {
                commands.sector_failed(request, address.position);
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
        if done.failed != 0 {
            self.record_failed_sectors(&done, commands);
        }
        let (ftl, mut flash) = self.split_ftl_and_flash(commands);
        match (done.owner, done.kind) {
            (OpOwner::FtlForCommand(op, request), NandOpKind::Read) => {
                flash.copy_to_host(&done, request);
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
            (OpOwner::Scrub, NandOpKind::Read) => self.media_event_handler.on_read_complete(now),
            (OpOwner::Command(_) | OpOwner::FtlForCommand(..) | OpOwner::Scrub, _) => {}
        }
        self.collect_completions(commands);
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
        let (ftl, mut flash) = self.split_ftl_and_flash(commands);
        ftl.kick(now, &mut flash);
        self.collect_completions(commands);
        true
    }

    /// Handles new media events.
    #[cold]
    fn handle_media_events(&mut self) {
        for notice in self.array.media_events.drain_pending() {
            self.media_event_handler.on_media_event(notice, &mut self.ftl);
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

    /// Executes the scrub steps that are due.
    #[cold]
    pub(crate) fn run_scrub(&mut self, now: Nanos) {
        let (read, kick) = self.media_event_handler.step(now, &mut self.ftl, &self.array.nand);
        self.kick |= kick;
        if let Some(MediaScrubRead { first, sectors }) = read {
            let addresses = (0..sectors.min(64))
                .map(|position| SectorAddress { phys: first + position, position });
            self.array.read(now, OpOwner::Scrub, VectorHints::NONE, addresses);
        }
    }

    /// Records whether writes find space. Returns the status that the host sees: a write without
    /// space is one to a drive that is read only, since a drive with all of its spare space always
    /// has some.
    #[cold]
    fn update_read_only(&mut self, status: Status, io: &IoCommand) -> Status {
        let writes = matches!(io, IoCommand::Write { .. } | IoCommand::WriteZeroes { .. });
        if writes && status.is_success() {
            self.is_read_only = false;
        }
        let is_full = status.is(Status::CAPACITY_EXCEEDED);
        if !is_full || !writes && !matches!(io, IoCommand::Flush) {
            return status;
        }
        self.is_read_only = true;
        Status::WRITE_PROTECTED.do_not_retry()
    }

    /// Returns whether the last write found no space.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    #[inline(always)]
    fn collect_completions(&mut self, commands: &mut Commands) {
        if self.ftl.has_completion() {
            self.collect_all_completions(commands);
        }
    }

    #[inline(never)]
    fn collect_all_completions(&mut self, commands: &mut Commands) {
        while let Some(done) = self.ftl.pop_completion() {
            if done.tag < DIRECT_TAG {
                let mut status = done.status;
                if self.is_read_only || !status.is_success() {
                    status = self.update_read_only(status, &commands.get(done.tag as u32).io);
                }
                commands.complete_op(done.tag as u32, status);
            } else if done.tag != INTERNAL_FLUSH_TAG {
                self.direct_writes.push_back(done);
            }
        }
    }

    /// Shuts down in order, without advancing time. The FTL writes the buffer and a checkpoint of
    /// the map to the media, so that the next power-on needs no scan ([LightNVM17 §4.2.2]: the
    /// snapshot on power-down).
    pub(crate) fn shut_down(&mut self, now: Nanos, commands: &mut Commands) {
        if self.stores_data() {
            self.ftl.checkpoint();
        }
        self.drain(now, commands);
    }

    /// Writes the write buffer to the media, without advancing time: on power loss (capacitors),
    /// and on orderly shutdown.
    pub(crate) fn drain(&mut self, now: Nanos, commands: &mut Commands) {
        let instant = std::mem::replace(&mut self.array.zero_latency, true);
        let (ftl, mut flash) = self.split_ftl_and_flash(commands);
        ftl.flush(now, INTERNAL_FLUSH_TAG, &mut flash);
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

/// The FTL's view of the drive's flash and memory.
struct DriveFlash<'a> {
    array: &'a mut NandArray,
    commands: &'a Commands,
    stores_data: bool,
    sector_bytes: u32,
}

impl DriveFlash<'_> {
    /// Copies the data of a completed host read to the host.
    #[inline]
    fn copy_to_host(&mut self, done: &NandOpCompletion, request: u32) {
        if !self.stores_data {
            return;
        }
        let command = self.commands.get(request);
        if !command.data_buffer.has_data() {
            return;
        }
        let size = self.sector_bytes as usize;
        for (i, &SectorAddress { phys, position }) in
            self.array.addresses(done.op).iter().enumerate()
        {
            if done.failed >> i & 1 != 0 {
                continue;
            }
            let offset = u64::from(position) * size as u64;
            let memory = command.port.memory();
            let mut whole = true;
            command.data_buffer.for_each_segment(memory, offset, size, |region, at, _, n| {
                if n == size {
                    self.array.nand.copy_out(phys, region, at);
                } else {
                    whole = false;
                }
            });
            if !whole {
                let mut bytes = vec![0; size];
                self.array.nand.read_bytes(phys, &mut bytes);
                command.data_buffer.write(memory, offset, &bytes);
            }
        }
    }

    /// Copies the pattern of the logical address to the host, for media that store no data.
    fn copy_pattern_to_host(&self, request: u64, sector: u32) {
        let command = self.commands.get(request as u32);
        if let (true, IoCommand::Read { slba, .. }) = (command.data_buffer.has_data(), command.io) {
            let mut bytes = vec![0; self.sector_bytes as usize];
            media::fill_pattern(slba - command.first_sector + u64::from(sector), &mut bytes);
            let offset = u64::from(sector) * u64::from(self.sector_bytes);
            command.data_buffer.write(command.port.memory(), offset, &bytes);
        }
    }
}

impl FlashBackend for DriveFlash<'_> {
    #[inline]
    fn stores_data(&self) -> bool {
        self.stores_data
    }

    fn program(&mut self, now: Nanos, op: OpToken, unit: WriteUnit<'_>) {
        tracepoint::trace_at(now, || {
            let (chunk, lba) = (unit.chunk, unit.first_lba().map(|lba| lba.get().into()));
            tracepoint::Event::FtlProgram { chunk: chunk.get(), lba }
        });
        let WriteUnit { chunk, sector, first_slot, .. } = unit;
        if self.stores_data {
            let nand = &mut self.array.nand;
            let first = nand.layout().phys(chunk, sector);
            if let Err(e) = nand.stage_slots(first, BufferSlot(first_slot.get()), unit.oobs()) {
                return self.array.fail(OpOwner::Ftl(op), NandOpKind::Program, e.status());
            }
        }
        self.array.program(now, OpOwner::Ftl(op), VectorHints::NONE, chunk.get(), sector);
    }

    #[inline]
    fn read(&mut self, now: Nanos, op: OpToken, addresses: &[ReadAddress], target: ReadDest) {
        match target {
            ReadDest::Host(request) => {
                let command = self.commands.get(request as u32);
                if !self.stores_data && command.data_buffer.has_data() {
                    for address in addresses {
                        self.copy_pattern_to_host(request, address.place);
                    }
                }
                let hints = command.io.hints();
                let owner = OpOwner::FtlForCommand(op, request as u32);
                self.array.read(now, owner, hints, sector_addresses(addresses));
            }
            ReadDest::Buffer => {
                let addresses = sector_addresses(addresses);
                self.array.read(now, OpOwner::Ftl(op), VectorHints::NONE, addresses)
            }
        }
    }

    fn erase(&mut self, now: Nanos, op: OpToken, chunk: ChunkId) {
        self.array.erase(now, OpOwner::Ftl(op), VectorHints::NONE, chunk.get());
    }

    #[inline]
    fn host_reads_in_flight(&self, pu: PuId) -> u32 {
        self.array.pus[pu.index()].host_reads
    }

    #[inline]
    fn copy_from_host(&mut self, request: u64, sector: u32, slot: SlotId) {
        if !self.stores_data {
            return;
        }
        let command = self.commands.get(request as u32);
        if !command.data_buffer.has_data() {
            // The data of a Bit Bucket write is undefined; zeros leak nothing.
            return self.array.nand.write_slot(BufferSlot(slot.get()), &[]);
        }
        let Some((buffer, to)) = self.array.nand.slot_to_write(BufferSlot(slot.get())) else {
            return;
        };
        let size = self.sector_bytes as usize;
        let offset = u64::from(sector) * size as u64;
        command.data_buffer.for_each_segment(
            command.port.memory(),
            offset,
            size,
            |region, at, done, n| {
                SharedRegion::copy(region, at, buffer, to + done, n);
            },
        );
    }

    fn copy_to_host(&mut self, request: u64, sector: u32, slot: SlotId) {
        if !self.stores_data {
            return self.copy_pattern_to_host(request, sector);
        }
        let Some((buffer, from)) = self.array.nand.slot_data(BufferSlot(slot.get())) else {
            return self.zero_to_host(request, sector);
        };
        let command = self.commands.get(request as u32);
        let size = self.sector_bytes as usize;
        let offset = u64::from(sector) * size as u64;
        command.data_buffer.for_each_segment(
            command.port.memory(),
            offset,
            size,
            |region, at, done, n| {
                SharedRegion::copy(buffer, from + done, region, at, n);
            },
        );
    }

    fn zero_to_host(&mut self, request: u64, sector: u32) {
        let command = self.commands.get(request as u32);
        let size = self.sector_bytes as usize;
        let offset = u64::from(sector) * size as u64;
        command.data_buffer.for_each_segment(
            command.port.memory(),
            offset,
            size,
            |region, at, _, n| {
                region.fill(at, n, 0);
            },
        );
    }

    fn write_slot(&mut self, slot: SlotId, bytes: &[u8]) {
        self.array.nand.write_slot(BufferSlot(slot.get()), bytes);
    }

    fn sync_slot(&mut self, phys: PhysSector, slot: SlotId) {
        self.array.nand.load_slot(phys, BufferSlot(slot.get()));
    }

    fn read_slot(&mut self, slot: SlotId, out: &mut [u8]) {
        let size = out.len().min(self.sector_bytes as usize);
        let out = &mut out[..size];
        match self.array.nand.slot_data(BufferSlot(slot.get())) {
            Some((buffer, from)) => buffer.read(from, out),
            None => out.fill(0),
        }
    }

    fn read_slot_oob(&mut self, phys: PhysSector, _slot: SlotId, out: &mut [u8; Oob::BYTES]) {
        self.array.nand.oob(phys, out);
    }
}

/// Returns the addresses of a read of the FTL.
#[inline]
fn sector_addresses(
    addresses: &[ReadAddress],
) -> impl ExactSizeIterator<Item = SectorAddress> + Clone {
    addresses.iter().map(|address| SectorAddress { phys: address.phys, position: address.place })
}
