//! [`DriveFlash`]: the FTL's view of a drive's flash and memory. It stages program data on the media,
//! and copies data between the media, the write buffer, host memory, and the contents of units that
//! commands change in part.

use ftl::{
    FlashBackend, Oob, OpToken, ReadAddress, ReadDest, SlotId, VictimDecision, VictimLines,
    WriteUnit,
};
use media::{BufferSlot, ChunkId, PhysSector};
use mem::SharedRegion;
use nvme::{IoCommand, PuId, Status, VectorHints};
use time::Nanos;

use crate::BlockCommandStats;
use crate::command::table::{Command, Commands, nth_range};
use crate::nand_array::operation::SectorAddress;
use crate::nand_array::{NandArray, NandOpCompletion, NandOpKind, OpOwner};
use crate::personality::logical_blocks::{
    BlockRange, CommandPart, LogicalBlocks, UnitWindow, block_range,
};
use crate::personality::protection::Protection;
use crate::personality::spaces::{ONLY_SPACE, SpaceId};
use crate::personality::unit_changes::{RequestTag, UnitChanges};

/// The FTL's view of the drive's flash and memory.
pub(super) struct DriveFlash<'a> {
    /// The space whose FTL it is.
    pub(super) space: SpaceId,
    /// First slot of its write buffer.
    pub(super) first_slot: u32,
    pub(super) array: &'a mut NandArray,
    pub(super) commands: &'a mut Commands,
    pub(super) stores_data: bool,
    pub(super) blocks: LogicalBlocks,
    pub(super) changes: &'a mut UnitChanges,
    pub(super) stats: &'a mut BlockCommandStats,
    /// Memory for a unit.
    pub(super) scratch: &'a mut Vec<u8>,
    pub(super) protection: &'a mut Option<Box<Protection>>,
}

/// Bytes of the data of a Compare that are compared at a time: blocks have a multiple of them.
const COMPARED_BYTES: usize = 512;

/// Returns the offset in a command's data of the unit at a position of a request to the FTL.
pub(super) fn source_offset(
    command: &Command,
    blocks: LogicalBlocks,
    tag: RequestTag,
    position: u32,
) -> u64 {
    match tag.part {
        CommandPart::Copy => source_window(command, blocks, tag, position).offset,
        _ => command_window(command, blocks, tag, position).offset,
    }
}

/// Returns the part of a unit that a command covers, for the unit at a position of a request to the
/// FTL. Its offset is that in the data of the command.
#[inline]
pub(super) fn command_window(
    command: &Command,
    blocks: LogicalBlocks,
    tag: RequestTag,
    position: u32,
) -> UnitWindow {
    if blocks.is_below_unit() || tag.range > 0 {
        return partial_window(command, blocks, tag, position);
    }
    let len = blocks.unit_bytes();
    UnitWindow { skip: 0, len, offset: u64::from(position) * len as u64 }
}

/// Returns the part of a unit that a command covers, of blocks below a unit, and of extents.
#[inline(never)]
fn partial_window(
    command: &Command,
    blocks: LogicalBlocks,
    tag: RequestTag,
    position: u32,
) -> UnitWindow {
    let range = nth_range(command, tag.range.into(), block_range(&command.io));
    let before = command.extents.iter().take(tag.range.into());
    let blocks_before: u64 = before.map(|range| u64::from(range.nlb)).sum();
    let window = blocks.window(&command.io, tag.part, range, position);
    let offset = window.offset + blocks_before * blocks.block_bytes() as u64;
    UnitWindow { offset, ..window }
}

/// Returns the part of a unit that a source range of a Copy covers, and its offset in the data of all
/// sources.
pub(super) fn source_window(
    command: &Command,
    blocks: LogicalBlocks,
    tag: RequestTag,
    position: u32,
) -> UnitWindow {
    let (before, ranges) = command.ranges.split_at(usize::from(tag.range));
    let blocks_before: u64 = before.iter().map(|range| u64::from(range.nlb.get())).sum();
    let range = BlockRange { slba: ranges[0].slba.get(), nlb: ranges[0].nlb.get() };
    let window = blocks.range_window(range, position);
    let offset = window.offset + blocks_before * blocks.block_bytes() as u64;
    UnitWindow { offset, ..window }
}

impl DriveFlash<'_> {
    /// Returns the slot of the drive's write buffer that is this one of the FTL.
    #[inline]
    fn buffer_slot(&self, slot: SlotId) -> BufferSlot {
        BufferSlot(self.first_slot + slot.get())
    }

    /// Records for which space the last operation is.
    #[inline]
    fn mark_last_op(&mut self) {
        if self.space != ONLY_SPACE {
            self.array.set_last_unit(self.space.get());
        }
    }

    /// Has the rules of the drive choose a victim.
    #[cold]
    fn choose_by_rules(&mut self, now: Nanos, lines: &VictimLines<'_>) -> VictimDecision {
        let (outstanding, is_timed) = (self.commands.outstanding(), !self.array.zero_latency);
        self.commands.rules.as_mut().map_or(VictimDecision::Policy, |rules| {
            rules.choose_victim(now, self.space, outstanding, is_timed, lines)
        })
    }

    /// Copies the data of a completed read to the host, or to the contents of a unit that is to be
    /// modified.
    #[inline]
    pub(super) fn copy_read_data(&mut self, done: &NandOpCompletion, tag: RequestTag) {
        if !self.stores_data {
            return;
        }
        if self.protection.is_some() {
            return self.use_protected_read(done, tag);
        }
        if has_own_use(tag) {
            return self.use_read_data(done, tag);
        }
        let command = self.commands.get(tag.command);
        if !command.data_buffer.has_data() {
            return;
        }
        let unit_bytes = self.blocks.unit_bytes();
        for (i, &SectorAddress { phys, position }) in
            self.array.addresses(done.op).iter().enumerate()
        {
            if done.failed >> i & 1 != 0 {
                continue;
            }
            let UnitWindow { skip, len, offset } =
                command_window(command, self.blocks, tag, position);
            let memory = command.port.memory();
            let mut whole = true;
            command.data_buffer.for_each_segment(memory, offset, len, |region, at, _, n| {
                if n == unit_bytes {
                    self.array.nand.copy_out(phys, region, at);
                } else {
                    whole = false;
                }
            });
            if !whole {
                let mut bytes = vec![0; unit_bytes];
                self.array.nand.read_bytes(phys, &mut bytes);
                command.data_buffer.write(memory, offset, &bytes[skip..skip + len]);
            }
        }
    }

    /// Uses the data of a completed read that is not for the host.
    #[inline(never)]
    fn use_read_data(&mut self, done: &NandOpCompletion, tag: RequestTag) {
        match tag.part {
            CommandPart::Whole | CommandPart::Verify => {}
            CommandPart::Head | CommandPart::Tail => {
                let addresses = self.array.addresses(done.op);
                if let (0, [SectorAddress { phys, .. }]) = (done.failed, addresses) {
                    self.array.nand.read_bytes(*phys, self.changes.contents_mut(tag));
                }
            }
            CommandPart::Fetch => {
                let addresses = self.array.addresses(done.op);
                if let (0, [SectorAddress { phys, .. }]) = (done.failed, addresses)
                    && let Some(rules) = &mut self.commands.rules
                    && let Some((_, sector)) = rules.fetched_sector_mut(tag.command, tag.range)
                {
                    self.array.nand.read_bytes(*phys, sector);
                }
            }
            CommandPart::Compare | CommandPart::Copy | CommandPart::Named => {
                let mut unit = self.take_scratch();
                for i in 0..self.array.addresses(done.op).len() {
                    let SectorAddress { phys, position } = self.array.addresses(done.op)[i];
                    if done.failed >> i & 1 == 0 {
                        self.array.nand.read_bytes(phys, &mut unit);
                        self.use_unit(tag, position, &unit);
                    }
                }
                *self.scratch = unit;
            }
        }
    }

    /// Returns the memory for the contents of a unit, which are zeros.
    fn take_scratch(&mut self) -> Vec<u8> {
        let mut unit = std::mem::take(self.scratch);
        unit.clear();
        unit.resize(self.blocks.unit_bytes(), 0);
        unit
    }

    /// Uses a unit of zeros that a request has read and that is not for the host.
    #[inline(never)]
    fn use_zeros(&mut self, tag: RequestTag, position: u32) {
        if let CommandPart::Head | CommandPart::Tail = tag.part {
            return self.changes.contents_mut(tag).fill(0);
        }
        let unit = self.take_scratch();
        self.use_unit(tag, position, &unit);
        *self.scratch = unit;
    }

    /// Compares the contents of a unit that a Compare has read, or copies those that a Copy has read
    /// to its data.
    #[cold]
    pub(super) fn use_unit(&mut self, tag: RequestTag, position: u32, unit: &[u8]) {
        match tag.part {
            CommandPart::Compare => self.compare_unit(tag, position, unit),
            CommandPart::Copy => {
                let command = self.commands.get(tag.command);
                let UnitWindow { skip, len, offset } =
                    source_window(command, self.blocks, tag, position);
                let memory = command.port.memory();
                command.data_buffer.write(memory, offset, &unit[skip..skip + len]);
            }
            CommandPart::Fetch => {
                if let Some((_, sector)) = self.fetched_sector(tag) {
                    sector.copy_from_slice(unit);
                }
            }
            CommandPart::Named => {
                let command = self.commands.get(tag.command);
                command.data_buffer.write(command.port.memory(), 0, unit);
            }
            _ => {}
        }
    }

    /// Returns the block of a sector that is read for rules, and the memory for it.
    pub(super) fn fetched_sector(&mut self, tag: RequestTag) -> Option<(u64, &mut [u8])> {
        let rules = self.commands.rules.as_mut();
        rules.and_then(|rules| rules.fetched_sector_mut(tag.command, tag.range))
    }

    /// Uses the pattern of the logical address of a unit, on media that store no data.
    #[cold]
    fn use_pattern(&mut self, tag: RequestTag, position: u32) {
        match tag.part {
            CommandPart::Compare => self.compare_pattern(tag, position),
            CommandPart::Fetch => {
                if let Some((lba, sector)) = self.fetched_sector(tag) {
                    media::fill_pattern(lba, sector);
                }
            }
            _ => {}
        }
    }

    /// Compares the data of a Compare with the contents of a unit.
    fn compare_unit(&mut self, tag: RequestTag, position: u32, unit: &[u8]) {
        let command = self.commands.get(tag.command);
        let UnitWindow { skip, len, offset } = command_window(command, self.blocks, tag, position);
        let mut data = [0; COMPARED_BYTES];
        for (at, found) in (offset..)
            .step_by(COMPARED_BYTES)
            .zip(unit[skip..skip + len].chunks_exact(COMPARED_BYTES))
        {
            command.data_buffer.read(command.port.memory(), at, &mut data);
            if data != found {
                let block = at / self.blocks.block_bytes() as u64;
                let is_first =
                    self.commands.fail_block(tag.command, block as u32, Status::COMPARE_FAILURE);
                self.stats.mismatches += u64::from(is_first);
                return;
            }
        }
    }

    /// Begins a read that is not for the host.
    #[inline(never)]
    fn begin_own_read(&mut self, tag: RequestTag, addresses: &[ReadAddress]) {
        match tag.part {
            CommandPart::Head | CommandPart::Tail => {
                self.changes.stats.sectors_read += addresses.len() as u64;
            }
            CommandPart::Compare | CommandPart::Fetch if !self.stores_data => {
                for address in addresses {
                    self.use_pattern(tag, address.place);
                }
            }
            _ => {}
        }
    }

    /// Compares the data of a Compare with the pattern of the logical addresses of a unit, on media
    /// that store no data.
    fn compare_pattern(&mut self, tag: RequestTag, position: u32) {
        let command = self.commands.get(tag.command);
        let window = command_window(command, self.blocks, tag, position);
        let block = |bytes: u64| bytes / self.blocks.block_bytes() as u64;
        let slba = block_range(&command.io).slba.wrapping_sub(command.first_sector);
        let first = slba + block(window.offset) - block(window.skip as u64);
        let mut unit = self.take_scratch();
        for (lba, block) in (first..).zip(unit.chunks_mut(self.blocks.block_bytes())) {
            media::fill_pattern(lba, block);
        }
        self.compare_unit(tag, position, &unit);
        *self.scratch = unit;
    }

    /// Writes a unit that a command changes in part into a slot: its contents, with the data of the
    /// command or zeros in place of the part.
    #[inline(never)]
    fn write_merged(&mut self, tag: RequestTag, slot: SlotId) {
        let to = self.buffer_slot(slot);
        if tag.part == CommandPart::Named {
            let mut unit = self.take_scratch();
            let command = self.commands.get(tag.command);
            command.data_buffer.read(command.port.memory(), 0, &mut unit);
            self.array.nand.write_slot(to, &unit);
            *self.scratch = unit;
            return;
        }
        let command = self.commands.get(tag.command);
        let UnitWindow { skip, len, offset } = command_window(command, self.blocks, tag, 0);
        let unit_bytes = self.blocks.unit_bytes();
        let contents = self.changes.contents_mut(tag);
        let part = &mut contents[skip..skip + len];
        // The data of a Bit Bucket write is undefined; zeros leak nothing.
        part.fill(0);
        if matches!(command.io, IoCommand::Write { .. }) {
            command.data_buffer.read(command.port.memory(), offset, part);
        }
        self.array.nand.write_slot(to, &contents[..unit_bytes]);
        if self.protection.is_some() {
            self.write_merged_info(tag, slot);
        }
    }

    /// Uses the contents of a slot that a request has read and that are not for the host.
    #[inline(never)]
    fn use_slot(&mut self, tag: RequestTag, position: u32, slot: SlotId) {
        if !self.stores_data {
            return self.use_pattern(tag, position);
        }
        let Some((buffer, from)) = self.array.nand.slot_data(self.buffer_slot(slot)) else {
            return self.use_zeros(tag, position);
        };
        if let CommandPart::Head | CommandPart::Tail = tag.part {
            return buffer.read(from, self.changes.contents_mut(tag));
        }
        let mut unit = std::mem::take(self.scratch);
        unit.resize(self.blocks.unit_bytes(), 0);
        buffer.read(from, &mut unit);
        self.use_unit(tag, position, &unit);
        *self.scratch = unit;
    }

    /// Copies the pattern of the logical address to the host, for media that store no data.
    fn copy_pattern_to_host(&self, tag: RequestTag, sector: u32) {
        let command = self.commands.get(tag.command);
        if let (true, IoCommand::Read { slba, .. }) = (command.data_buffer.has_data(), command.io) {
            let mut window = command_window(command, self.blocks, tag, sector);
            let mut bytes = vec![0; self.blocks.block_bytes()];
            while window.len > 0 {
                let block = window.offset / bytes.len() as u64;
                media::fill_pattern(slba.wrapping_sub(command.first_sector) + block, &mut bytes);
                command.data_buffer.write(command.port.memory(), window.offset, &bytes);
                window.offset += bytes.len() as u64;
                window.len -= bytes.len();
            }
        }
    }
}

/// Whether the data of a read of the FTL is not for the host.
#[inline]
fn has_own_use(tag: RequestTag) -> bool {
    tag.part != CommandPart::Whole
}

impl FlashBackend for DriveFlash<'_> {
    #[inline]
    fn stores_data(&self) -> bool {
        self.stores_data
    }

    #[inline]
    fn choose_victim(&mut self, now: Nanos, lines: &VictimLines<'_>) -> VictimDecision {
        match self.commands.rules.is_some() {
            true => self.choose_by_rules(now, lines),
            false => VictimDecision::Policy,
        }
    }

    fn program(&mut self, now: Nanos, op: OpToken, unit: WriteUnit<'_>) {
        tracepoint::trace_at(now, || {
            let (chunk, lba) = (unit.chunk, unit.first_lba().map(|lba| lba.get().into()));
            tracepoint::Event::FtlProgram { chunk: chunk.get(), lba }
        });
        let WriteUnit { chunk, sector, first_slot, .. } = unit;
        if self.stores_data {
            let from = self.buffer_slot(first_slot);
            let nand = &mut self.array.nand;
            let first = nand.layout().phys(chunk, sector);
            if let Err(e) = nand.stage_slots(first, from, unit.oobs()) {
                self.array.fail(OpOwner::Ftl(op), NandOpKind::Program, e.status());
                return self.mark_last_op();
            }
            if self.protection.is_some()
                && let Err(e) = self.stage_info(first, &unit)
            {
                return self.array.fail(OpOwner::Ftl(op), NandOpKind::Program, e.status());
            }
        }
        self.array.program(now, OpOwner::Ftl(op), VectorHints::NONE, chunk.get(), sector);
        self.mark_last_op();
    }

    #[inline]
    fn read(&mut self, now: Nanos, op: OpToken, addresses: &[ReadAddress], target: ReadDest) {
        match target {
            ReadDest::Host(request) => {
                let tag = RequestTag::decode(request);
                if has_own_use(tag) {
                    self.begin_own_read(tag, addresses);
                } else if !self.stores_data && self.commands.get(tag.command).data_buffer.has_data()
                {
                    for address in addresses {
                        self.copy_pattern_to_host(tag, address.place);
                    }
                }
                let hints = self.commands.get(tag.command).io.hints();
                let owner = OpOwner::FtlForCommand(op, tag);
                self.array.read(now, owner, hints, sector_addresses(addresses));
            }
            ReadDest::Buffer => {
                let addresses = sector_addresses(addresses);
                self.array.read(now, OpOwner::Ftl(op), VectorHints::NONE, addresses);
            }
        }
        self.mark_last_op();
    }

    fn erase(&mut self, now: Nanos, op: OpToken, chunk: ChunkId) {
        self.array.erase(now, OpOwner::Ftl(op), VectorHints::NONE, chunk.get());
        self.mark_last_op();
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
        let tag = RequestTag::decode(request);
        if tag.part != CommandPart::Whole {
            return self.write_merged(tag, slot);
        }
        let command = self.commands.get(tag.command);
        if !command.data_buffer.has_data() {
            // The data of a Bit Bucket write is undefined; zeros leak nothing.
            self.array.nand.write_slot(self.buffer_slot(slot), &[]);
            if self.protection.is_some() {
                self.protect_slot(tag, sector, slot);
            }
            return;
        }
        let Some((buffer, to)) = self.array.nand.slot_to_write(self.buffer_slot(slot)) else {
            return;
        };
        let UnitWindow { len, offset, .. } = command_window(command, self.blocks, tag, sector);
        command.data_buffer.for_each_segment(
            command.port.memory(),
            offset,
            len,
            |region, at, done, n| {
                SharedRegion::copy(region, at, buffer, to + done, n);
            },
        );
        if self.protection.is_some() {
            self.protect_slot(tag, sector, slot);
        }
    }

    fn zero_slot(&mut self, request: u64, sector: u32, slot: SlotId) {
        self.write_slot(slot, &[]);
        if self.protection.is_some() {
            self.protect_slot(RequestTag::decode(request), sector, slot);
        }
    }

    fn copy_to_host(&mut self, request: u64, sector: u32, slot: SlotId) {
        let tag = RequestTag::decode(request);
        if self.protection.is_some() {
            return self.use_protected_slot(tag, sector, slot);
        }
        if has_own_use(tag) {
            return self.use_slot(tag, sector, slot);
        }
        if !self.stores_data {
            return self.copy_pattern_to_host(tag, sector);
        }
        let Some((buffer, from)) = self.array.nand.slot_data(self.buffer_slot(slot)) else {
            return self.zero_to_host(request, sector);
        };
        let command = self.commands.get(tag.command);
        let UnitWindow { skip, len, offset } = command_window(command, self.blocks, tag, sector);
        command.data_buffer.for_each_segment(
            command.port.memory(),
            offset,
            len,
            |region, at, done, n| {
                SharedRegion::copy(buffer, from + skip + done, region, at, n);
            },
        );
    }

    fn zero_to_host(&mut self, request: u64, sector: u32) {
        let tag = RequestTag::decode(request);
        if has_own_use(tag) {
            return self.use_zeros(tag, sector);
        }
        let command = self.commands.get(tag.command);
        let UnitWindow { len, offset, .. } = command_window(command, self.blocks, tag, sector);
        command.data_buffer.for_each_segment(
            command.port.memory(),
            offset,
            len,
            |region, at, _, n| {
                region.fill(at, n, 0);
            },
        );
        if self.protection.is_some() {
            self.send_unchecked_info(tag, sector);
        }
    }

    #[cold]
    fn record_unreadable(&mut self, request: u64, sector: u32) {
        let tag = RequestTag::decode(request);
        if let CommandPart::Fetch | CommandPart::Named = tag.part {
            return;
        }
        let offset = source_offset(self.commands.get(tag.command), self.blocks, tag, sector);
        let block = offset / self.blocks.block_bytes() as u64;
        self.commands.sector_failed(tag.command, block as u32);
    }

    fn write_slot(&mut self, slot: SlotId, bytes: &[u8]) {
        self.array.nand.write_slot(self.buffer_slot(slot), bytes);
        if let Some(protection) = &mut self.protection {
            // As of deallocated blocks: zeros in place of a trimmed sector have no host's information.
            protection.slot_mut(slot).fill(0xff);
        }
    }

    fn sync_slot(&mut self, phys: PhysSector, slot: SlotId) {
        self.array.nand.load_slot(phys, self.buffer_slot(slot));
        if self.protection.is_some() {
            self.load_info(phys, slot);
        }
    }

    fn read_slot(&mut self, slot: SlotId, out: &mut [u8]) {
        let size = out.len().min(self.blocks.unit_bytes());
        let out = &mut out[..size];
        match self.array.nand.slot_data(self.buffer_slot(slot)) {
            Some((buffer, from)) => buffer.read(from, out),
            None => out.fill(0),
        }
    }

    fn read_host_oob(
        &mut self,
        _request: u64,
        _sector: u32,
        phys: PhysSector,
        out: &mut [u8; Oob::BYTES],
    ) {
        self.array.nand.oob(phys, out);
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
