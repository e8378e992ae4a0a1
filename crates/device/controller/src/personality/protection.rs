//! End-to-end protection information of a drive that manages its own flash [NVMe1.4 §8.3].
//!
//! Each logical block has 8 bytes, [`ProtectionInfo`]. They are beside the data wherever it is: in a
//! table beside the slots of the write buffer ([`Protection`]), in the out-of-band area of the sector
//! after the bytes of the FTL, and after the contents of a unit that is changed in part. Invariants:
//! the drive generates information only for data that a host sends (or zeros that it asks for), so
//! that a relocation, and a change of another block of the unit, keep the information of data that
//! is wrong; data reaches a host only after the checks that its command asks for.
//!
//! The drive stores the complement of the bytes. An area without information, which is zeros, reads as
//! [`ProtectionInfo::UNCHECKED`]. Stored reference tags count blocks of the drive; those of a host that
//! sees a part of the drive are converted.

use ftl::{Oob, SlotId, WriteUnit};
use media::{BufferSlot, MediaError, PhysSector};
use mem::Iova;
use nvme::{IoCommand, ProtectionError, ProtectionInfo, ProtectionRequest, Status};
use serde::{Deserialize, Serialize};

use super::block_flash::{DriveFlash, command_window, source_window};
use super::logical_blocks::{BlockRange, CommandPart, LogicalBlocks, UnitWindow, block_range};
use super::unit_changes::RequestTag;
use crate::ProtectionErrors;
use crate::command::table::{Command, Commands, nth_range};
use crate::nand_array::NandOpCompletion;
use crate::nand_array::operation::SectorAddress;

/// The protection information of the slots of the write buffer, and the errors that were found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Protection {
    /// Bytes of the information of a unit.
    info_bytes: usize,
    /// By slot, as the media store it.
    slots: Vec<u8>,
    /// Memory for the data of a block.
    #[serde(skip)]
    block: Vec<u8>,
    pub(crate) errors: ProtectionErrors,
}

impl Protection {
    /// Creates the information of `slots` slots without any, for units of `unit_blocks` blocks.
    pub(super) fn new(slots: u32, unit_blocks: u32) -> Protection {
        let info_bytes = info_bytes(unit_blocks);
        let slots = vec![0; slots as usize * info_bytes];
        Protection { info_bytes, slots, block: Vec::new(), errors: ProtectionErrors::default() }
    }

    /// Forgets the information of all slots, which are `slots` now.
    pub(super) fn restart(&mut self, slots: u32) {
        self.slots.clear();
        self.slots.resize(slots as usize * self.info_bytes, 0);
    }

    /// Returns the number of bytes of the information of a unit.
    pub(super) fn info_bytes(&self) -> usize {
        self.info_bytes
    }

    fn slot(&self, slot: SlotId) -> &[u8] {
        &self.slots[slot.get() as usize * self.info_bytes..][..self.info_bytes]
    }

    /// Checks the information that the host sends with a write, as the write asks. A write that fails
    /// changes nothing.
    ///
    /// # Errors
    /// The status of the write.
    #[inline(never)]
    pub(super) fn check_host_info(
        &mut self,
        id: u32,
        block_bytes: usize,
        commands: &mut Commands,
    ) -> Result<(), Status> {
        let command = commands.get(id);
        let IoCommand::Write { slba, nlb, .. } = command.io else { return Ok(()) };
        let request = command.protection;
        if request.is_generated || !request.has_checks() {
            return Ok(());
        }
        // A Bit Bucket has no data: zeros are written.
        self.block.clear();
        self.block.resize(block_bytes, 0);
        for index in 0..u64::from(nlb) {
            let memory = command.port.memory();
            command.data_buffer.read(memory, index * block_bytes as u64, &mut self.block);
            let info = read_from_host(command, index, command.first_sector);
            let lba = slba.wrapping_add(index) as u32;
            if let Err(error) = request.check(info, &self.block, lba) {
                self.errors.count(error);
                commands.sector_failed(id, index as u32);
                return Err(error.status());
            }
        }
        Ok(())
    }

    pub(super) fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        &mut self.slots[slot.get() as usize * self.info_bytes..][..self.info_bytes]
    }
}

/// Returns the bytes of the contents of a unit with its protection information, as far as the media
/// store them.
pub(super) fn contents_bytes(
    stores_data: bool,
    unit_bytes: u32,
    protection: Option<&Protection>,
) -> usize {
    let data_bytes = if stores_data { unit_bytes as usize } else { 0 };
    data_bytes + protection.map_or(0, Protection::info_bytes)
}

/// Returns the number of out-of-band bytes of the information of a unit of `unit_blocks` blocks.
pub(crate) fn info_bytes(unit_blocks: u32) -> usize {
    unit_blocks as usize * ProtectionInfo::BYTES
}

/// Returns the information of the block at an index in a unit, as stored.
fn load(stored: &[u8], index: usize) -> ProtectionInfo {
    let block = &stored[index * ProtectionInfo::BYTES..];
    ProtectionInfo::from_bytes(std::array::from_fn(|i| !block[i]))
}

/// Stores the information of the block at an index in a unit.
fn store(stored: &mut [u8], index: usize, info: ProtectionInfo) {
    let block = &mut stored[index * ProtectionInfo::BYTES..][..ProtectionInfo::BYTES];
    block.iter_mut().zip(info.to_bytes()).for_each(|(to, byte)| *to = !byte);
}

/// Converts the reference tag of a host's blocks to that of the drive's blocks: `first` is the block
/// of the drive that the host addresses as 0.
fn to_drive(info: ProtectionInfo, first: u64) -> ProtectionInfo {
    match info.is_checked() {
        true => {
            let reference_tag = info.reference_tag.wrapping_add(first as u32);
            ProtectionInfo { reference_tag, ..info }
        }
        false => info,
    }
}

/// Converts the reference tag back to that of the host's blocks.
fn to_host(info: ProtectionInfo, first: u64) -> ProtectionInfo {
    to_drive(info, first.wrapping_neg())
}

/// Reads the information of the block at an index in a command from memory of the host, which addresses
/// block `first` of the drive as 0.
fn read_from_host(command: &Command, index: u64, first: u64) -> ProtectionInfo {
    let mut bytes = [0; ProtectionInfo::BYTES];
    let at = Iova(command.metadata).offset(index * ProtectionInfo::BYTES as u64);
    // The range was checked when the command was fetched; registrations are never withdrawn.
    let _ = command.port.memory().read(at, &mut bytes);
    to_drive(ProtectionInfo::from_bytes(bytes), first)
}

/// Writes the information of the block at an index in a command to memory of the host, which addresses
/// block `first` of the drive as 0.
fn write_to_host(command: &Command, index: u64, info: ProtectionInfo, first: u64) {
    let at = Iova(command.metadata).offset(index * ProtectionInfo::BYTES as u64);
    let bytes = to_host(info, first).to_bytes();
    let _ = command.port.memory().write(at, &bytes);
}

/// Whether the command returns protection information to its host.
fn returns_info(command: &Command) -> bool {
    command.metadata != 0 && matches!(command.io, IoCommand::Read { .. })
}

/// The blocks of a unit that a command covers.
struct CoveredBlocks {
    /// Index of the first block in the unit.
    first: usize,
    count: usize,
    /// Index of the first block in the data of the command.
    index: u64,
    /// Address of the first block.
    lba: u64,
}

impl CoveredBlocks {
    /// Returns the block of the drive that the host of a command would address as 0, if all of its
    /// blocks were where these are. A namespace may have several extents.
    fn origin(&self, command: &Command) -> u64 {
        let slba = block_range(&command.io).slba.wrapping_sub(command.first_sector);
        self.lba.wrapping_sub(self.index).wrapping_sub(slba)
    }
}

/// Returns the blocks that a command covers of the unit at a position of a request to the FTL.
fn covered_blocks(
    command: &Command,
    blocks: LogicalBlocks,
    tag: RequestTag,
    position: u32,
) -> CoveredBlocks {
    let bytes = blocks.block_bytes();
    let (UnitWindow { skip, len, offset }, lba) = match tag.part {
        CommandPart::Copy => {
            let range = &command.ranges[usize::from(tag.range)];
            let range = BlockRange { slba: range.slba.get(), nlb: range.nlb.get() };
            let in_range = blocks.range_window(range, position).offset;
            let lba = range.slba + in_range / bytes as u64;
            (source_window(command, blocks, tag, position), lba)
        }
        part => {
            let range = nth_range(command, tag.range.into(), block_range(&command.io));
            let in_range = blocks.window(&command.io, part, range, position).offset;
            let window = command_window(command, blocks, tag, position);
            (window, range.slba + in_range / bytes as u64)
        }
    };
    CoveredBlocks { first: skip / bytes, count: len / bytes, index: offset / bytes as u64, lba }
}

impl DriveFlash<'_> {
    /// Stores the information of the blocks that a command writes in a unit, after the contents of the
    /// unit: from the host, or generated.
    fn set_info(&mut self, tag: RequestTag, position: u32, unit: &mut [u8]) {
        let command = self.commands.get(tag.command);
        let request = command.protection;
        let (contents, stored) = unit.split_at_mut(self.blocks.unit_bytes());
        let covered = covered_blocks(command, self.blocks, tag, position);
        let data = contents.chunks(self.blocks.block_bytes()).skip(covered.first);
        for (i, data) in data.take(covered.count).enumerate() {
            let info = match command.io {
                _ if request.is_generated => {
                    let reference_tag = covered.lba.wrapping_add(i as u64) as u32;
                    ProtectionInfo::of_data(data, request.application_tag, reference_tag)
                }
                IoCommand::Write { .. } => {
                    let first = covered.origin(command);
                    read_from_host(command, covered.index + i as u64, first)
                }
                _ => ProtectionInfo::UNCHECKED,
            };
            store(stored, covered.first + i, info);
        }
    }

    /// Returns memory for the contents of a unit and its information, all zeros.
    fn take_protected_scratch(&mut self) -> Vec<u8> {
        let info_bytes = self.protection.as_ref().map_or(0, |protection| protection.info_bytes);
        let mut unit = std::mem::take(self.scratch);
        unit.clear();
        unit.resize(self.blocks.unit_bytes() + info_bytes, 0);
        unit
    }

    /// Copies the contents of a slot to those of a unit, which are zeros.
    fn read_slot_contents(&self, slot: SlotId, unit: &mut [u8]) {
        if let Some((buffer, from)) = self.array.nand.slot_data(BufferSlot(slot.get())) {
            buffer.read(from, &mut unit[..self.blocks.unit_bytes()]);
        }
    }

    /// Stores the information of a slot that a command has just filled with a whole unit.
    #[inline(never)]
    pub(super) fn protect_slot(&mut self, tag: RequestTag, position: u32, slot: SlotId) {
        let mut unit = self.take_protected_scratch();
        self.read_slot_contents(slot, &mut unit);
        self.set_info(tag, position, &mut unit);
        self.set_slot_info(slot, &unit[self.blocks.unit_bytes()..]);
        *self.scratch = unit;
    }

    fn set_slot_info(&mut self, slot: SlotId, info: &[u8]) {
        if let Some(protection) = self.protection.as_deref_mut() {
            protection.slot_mut(slot).copy_from_slice(info);
        }
    }

    /// Writes a unit that a command changes in part into a slot, with its information.
    pub(super) fn write_merged_info(&mut self, tag: RequestTag, slot: SlotId) {
        let mut unit = self.take_protected_scratch();
        unit.copy_from_slice(self.changes.contents_mut(tag));
        self.set_info(tag, 0, &mut unit);
        self.set_slot_info(slot, &unit[self.blocks.unit_bytes()..]);
        *self.scratch = unit;
    }

    /// Stages the information of the slots of a write unit, whose data is staged.
    #[inline(never)]
    pub(super) fn stage_info(
        &mut self,
        first: PhysSector,
        unit: &WriteUnit<'_>,
    ) -> Result<(), MediaError> {
        let Some(protection) = self.protection.as_deref() else { return Ok(()) };
        for i in 0..unit.entries.len() as u32 {
            let info = protection.slot(unit.first_slot + i);
            self.array.nand.set_oob_at(first + i, Oob::BYTES, info)?;
        }
        Ok(())
    }

    /// Loads the information of a sector into a slot.
    pub(super) fn load_info(&mut self, phys: PhysSector, slot: SlotId) {
        if let Some(protection) = self.protection.as_deref_mut() {
            self.array.nand.oob_at(phys, Oob::BYTES, protection.slot_mut(slot));
        }
    }

    /// Uses the data of a completed read of a drive with protection information.
    #[inline(never)]
    pub(super) fn use_protected_read(&mut self, done: &NandOpCompletion, tag: RequestTag) {
        for i in 0..self.array.addresses(done.op).len() {
            let SectorAddress { phys, position } = self.array.addresses(done.op)[i];
            if done.failed >> i & 1 != 0 {
                continue;
            }
            let mut unit = self.take_protected_scratch();
            let (contents, info) = unit.split_at_mut(self.blocks.unit_bytes());
            self.array.nand.read_bytes(phys, contents);
            self.array.nand.oob_at(phys, Oob::BYTES, info);
            self.use_protected_unit(tag, position, &unit);
            *self.scratch = unit;
        }
    }

    /// Uses the contents of a slot that a request has read, on a drive with protection information.
    #[inline(never)]
    pub(super) fn use_protected_slot(&mut self, tag: RequestTag, position: u32, slot: SlotId) {
        let mut unit = self.take_protected_scratch();
        self.read_slot_contents(slot, &mut unit);
        if let Some(protection) = self.protection.as_deref() {
            unit[self.blocks.unit_bytes()..].copy_from_slice(protection.slot(slot));
        }
        self.use_protected_unit(tag, position, &unit);
        *self.scratch = unit;
    }

    /// Uses a unit that a request has read: its contents, followed by its information.
    fn use_protected_unit(&mut self, tag: RequestTag, position: u32, unit: &[u8]) {
        if let CommandPart::Head | CommandPart::Tail = tag.part {
            // The information of the blocks that do not change stays, right or wrong.
            return self.changes.contents_mut(tag).copy_from_slice(unit);
        }
        if let Err(error) = self.check_unit(tag, position, unit) {
            self.fail_block(tag, error);
        } else if tag.part == CommandPart::Whole {
            self.send_unit(tag, position, unit);
        } else {
            self.use_unit(tag, position, &unit[..self.blocks.unit_bytes()]);
        }
    }

    /// Checks the blocks of a unit that a command reads, as the command asks.
    ///
    /// # Errors
    /// The first error, and the index of its block in the command.
    fn check_unit(
        &self,
        tag: RequestTag,
        position: u32,
        unit: &[u8],
    ) -> Result<(), (ProtectionError, u32)> {
        let command = self.commands.get(tag.command);
        let (contents, stored) = unit.split_at(self.blocks.unit_bytes());
        if tag.part == CommandPart::Fetch {
            return self.check_fetched(tag, contents, stored).map_err(|error| (error, 0));
        }
        let covered = covered_blocks(command, self.blocks, tag, position);
        let data = contents.chunks(self.blocks.block_bytes()).skip(covered.first);
        for (i, data) in data.take(covered.count).enumerate() {
            let info = load(stored, covered.first + i);
            let lba = covered.lba.wrapping_add(i as u64) as u32;
            let checked = command.protection.check(info, data, lba);
            checked.map_err(|error| (error, (covered.index + i as u64) as u32))?;
        }
        Ok(())
    }

    /// Checks guard and reference tag of a sector that rules fetch.
    ///
    /// # Errors
    /// The error.
    fn check_fetched(
        &self,
        tag: RequestTag,
        contents: &[u8],
        stored: &[u8],
    ) -> Result<(), ProtectionError> {
        let rules = self.commands.rules.as_ref();
        let Some(lba) = rules.and_then(|rules| rules.fetched_block(tag.command, tag.range)) else {
            return Ok(());
        };
        let request = ProtectionRequest {
            checks_guard: true,
            checks_reference_tag: true,
            ..ProtectionRequest::default()
        };
        request.check(load(stored, 0), contents, lba as u32)
    }

    /// Fails a command whose block at an index has failed a check.
    #[cold]
    fn fail_block(&mut self, tag: RequestTag, (error, block): (ProtectionError, u32)) {
        match &mut self.commands.rules {
            Some(rules) if tag.part == CommandPart::Fetch => {
                rules.fail_fetch(tag.command, tag.range, error.status());
            }
            _ => {
                self.commands.fail_block(tag.command, block, error.status());
            }
        }
        if let Some(protection) = self.protection.as_deref_mut() {
            protection.errors.count(error);
        }
    }

    /// Copies the blocks of a unit to the host, and their information if the host takes it.
    fn send_unit(&mut self, tag: RequestTag, position: u32, unit: &[u8]) {
        let command = self.commands.get(tag.command);
        let (contents, stored) = unit.split_at(self.blocks.unit_bytes());
        let UnitWindow { skip, len, offset } = command_window(command, self.blocks, tag, position);
        let memory = command.port.memory();
        command.data_buffer.write(memory, offset, &contents[skip..skip + len]);
        if returns_info(command) {
            let covered = covered_blocks(command, self.blocks, tag, position);
            let first = covered.origin(command);
            for i in 0..covered.count {
                let info = load(stored, covered.first + i);
                write_to_host(command, covered.index + i as u64, info, first);
            }
        }
    }

    /// Returns the information of blocks without data, which are not checked, to the host if it takes
    /// it.
    pub(super) fn send_unchecked_info(&self, tag: RequestTag, position: u32) {
        let command = self.commands.get(tag.command);
        if returns_info(command) {
            let covered = covered_blocks(command, self.blocks, tag, position);
            for index in covered.index..covered.index + covered.count as u64 {
                write_to_host(command, index, ProtectionInfo::UNCHECKED, 0);
            }
        }
    }
}
