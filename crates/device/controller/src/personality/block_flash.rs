//! [`DriveFlash`]: the FTL's view of a drive's flash and memory. It stages program data on the media,
//! and copies data between the media, the write buffer, host memory, and the contents of units that
//! commands change in part.

use ftl::{FlashBackend, Oob, OpToken, ReadAddress, ReadDest, SlotId, WriteUnit};
use media::{BufferSlot, ChunkId, PhysSector};
use mem::SharedRegion;
use nvme::{IoCommand, PuId, VectorHints};
use time::Nanos;

use crate::command::table::Commands;
use crate::nand_array::operation::SectorAddress;
use crate::nand_array::{NandArray, NandOpCompletion, NandOpKind, OpOwner};
use crate::personality::logical_blocks::{CommandPart, LogicalBlocks, UnitWindow};
use crate::personality::unit_changes::{RequestTag, UnitChanges};

/// The FTL's view of the drive's flash and memory.
pub(super) struct DriveFlash<'a> {
    pub(super) array: &'a mut NandArray,
    pub(super) commands: &'a Commands,
    pub(super) stores_data: bool,
    pub(super) blocks: LogicalBlocks,
    pub(super) changes: &'a mut UnitChanges,
}

impl DriveFlash<'_> {
    /// Copies the data of a completed read to the host, or to the contents of a unit that is to be
    /// modified.
    #[inline]
    pub(super) fn copy_read_data(&mut self, done: &NandOpCompletion, tag: RequestTag) {
        if !self.stores_data {
            return;
        }
        let command = self.commands.get(tag.command);
        if self.is_read_for_change(tag) {
            return self.copy_to_contents(done, tag);
        }
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
                self.blocks.window(&command.io, tag.part, position);
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

    /// Whether a read of the FTL is that of a unit that a command changes in part.
    #[inline]
    fn is_read_for_change(&self, tag: RequestTag) -> bool {
        tag.part != CommandPart::Whole
    }

    /// Copies the data of a completed read to the contents of a unit that is to be modified.
    #[inline(never)]
    fn copy_to_contents(&mut self, done: &NandOpCompletion, tag: RequestTag) {
        if let (0, [SectorAddress { phys, .. }]) = (done.failed, self.array.addresses(done.op)) {
            self.array.nand.read_bytes(*phys, self.changes.contents_mut(tag));
        }
    }

    /// Writes a unit that a command changes in part into a slot: its contents, with the data of the
    /// command or zeros in place of the part.
    #[inline(never)]
    fn write_merged(&mut self, tag: RequestTag, slot: SlotId) {
        let command = self.commands.get(tag.command);
        let UnitWindow { skip, len, offset } = self.blocks.window(&command.io, tag.part, 0);
        let contents = self.changes.contents_mut(tag);
        let part = &mut contents[skip..skip + len];
        // The data of a Bit Bucket write is undefined; zeros leak nothing.
        part.fill(0);
        if matches!(command.io, IoCommand::Write { .. }) {
            command.data_buffer.read(command.port.memory(), offset, part);
        }
        self.array.nand.write_slot(BufferSlot(slot.get()), contents);
    }

    /// Copies the pattern of the logical address to the host, for media that store no data.
    fn copy_pattern_to_host(&self, tag: RequestTag, sector: u32) {
        let command = self.commands.get(tag.command);
        if let (true, IoCommand::Read { slba, .. }) = (command.data_buffer.has_data(), command.io) {
            let mut window = self.blocks.window(&command.io, tag.part, sector);
            let mut bytes = vec![0; self.blocks.block_bytes()];
            while window.len > 0 {
                let block = window.offset / bytes.len() as u64;
                media::fill_pattern(slba - command.first_sector + block, &mut bytes);
                command.data_buffer.write(command.port.memory(), window.offset, &bytes);
                window.offset += bytes.len() as u64;
                window.len -= bytes.len();
            }
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
                let tag = RequestTag::decode(request);
                let command = self.commands.get(tag.command);
                if self.is_read_for_change(tag) {
                    self.changes.stats.sectors_read += addresses.len() as u64;
                } else if !self.stores_data && command.data_buffer.has_data() {
                    for address in addresses {
                        self.copy_pattern_to_host(tag, address.place);
                    }
                }
                let hints = command.io.hints();
                let owner = OpOwner::FtlForCommand(op, tag);
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
        let tag = RequestTag::decode(request);
        if tag.part != CommandPart::Whole {
            return self.write_merged(tag, slot);
        }
        let command = self.commands.get(tag.command);
        if !command.data_buffer.has_data() {
            // The data of a Bit Bucket write is undefined; zeros leak nothing.
            return self.array.nand.write_slot(BufferSlot(slot.get()), &[]);
        }
        let Some((buffer, to)) = self.array.nand.slot_to_write(BufferSlot(slot.get())) else {
            return;
        };
        let UnitWindow { len, offset, .. } = self.blocks.window(&command.io, tag.part, sector);
        command.data_buffer.for_each_segment(
            command.port.memory(),
            offset,
            len,
            |region, at, done, n| {
                SharedRegion::copy(region, at, buffer, to + done, n);
            },
        );
    }

    fn copy_to_host(&mut self, request: u64, sector: u32, slot: SlotId) {
        let tag = RequestTag::decode(request);
        if !self.stores_data {
            return self.copy_pattern_to_host(tag, sector);
        }
        let Some((buffer, from)) = self.array.nand.slot_data(BufferSlot(slot.get())) else {
            return self.zero_to_host(request, sector);
        };
        if self.is_read_for_change(tag) {
            return buffer.read(from, self.changes.contents_mut(tag));
        }
        let command = self.commands.get(tag.command);
        let UnitWindow { skip, len, offset } = self.blocks.window(&command.io, tag.part, sector);
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
        if self.is_read_for_change(tag) {
            return self.changes.contents_mut(tag).fill(0);
        }
        let command = self.commands.get(tag.command);
        let UnitWindow { len, offset, .. } = self.blocks.window(&command.io, tag.part, sector);
        command.data_buffer.for_each_segment(
            command.port.memory(),
            offset,
            len,
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
        let size = out.len().min(self.blocks.unit_bytes());
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
