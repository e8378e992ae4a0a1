//! Conversion of requests into command FISes and physical region tables.

use ahci::ata::{TrimRange, command};
use ahci::{PrdtEntry, RegisterH2d};
use mem::{AddressSpace, Iova};
use nvme::Status;

use super::memory::{PRDT_ENTRIES_MAX, PortMemory, SCRATCH_BYTES, TRIM_BLOCKS_MAX};
use crate::hal::Limits;
use crate::{Op, Payload, Request, Segment};

/// The command of a request, whose table is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AtaCommand {
    /// The command FIS.
    pub(super) fis: RegisterH2d,
    /// Whether data is transferred to the drive.
    pub(super) write: bool,
    /// Number of physical regions.
    pub(super) regions: u16,
}

impl AtaCommand {
    /// Returns whether the command is queued (native command queuing), or needs the drive
    /// exclusively.
    pub(super) fn is_queued(&self) -> bool {
        command::is_queued(self.fis.command)
    }
}

/// The capabilities of a drive.
#[derive(Clone, Copy, Debug)]
pub(super) struct DriveCapabilities {
    pub(super) limits: Limits,
    /// Maximum number of 512-byte blocks of trim ranges; 0 for a drive without trim.
    pub(super) trim_blocks: u16,
}

/// Converts a request into a command and writes its command table in slot `slot`.
///
/// Addresses are checked here, because a drive would stop and forget all its commands on access to
/// an unregistered address.
///
/// # Errors
/// The status with which the request completes if such a drive does not support it.
#[inline]
pub(super) fn prepare(
    memory: &PortMemory,
    space: &AddressSpace,
    abilities: DriveCapabilities,
    slot: u8,
    request: &Request,
) -> Result<AtaCommand, Status> {
    let Request { op, lba, sectors, fua, .. } = *request;
    let limits = abilities.limits;
    let command = match op {
        Op::Read | Op::Write => {
            if sectors == 0 || sectors > limits.max_sectors || lba >> 48 != 0 {
                return Err(Status::INVALID_FIELD);
            }
            let bytes = u64::from(sectors) * u64::from(limits.sector_bytes);
            let regions = write_prdt(memory, space, slot, request.data, bytes)?;
            if op == Op::Write {
                let fis = RegisterH2d::write_queued(lba, sectors, slot, fua);
                AtaCommand { fis, write: true, regions }
            } else {
                AtaCommand {
                    fis: RegisterH2d::read_queued(lba, sectors, slot),
                    write: false,
                    regions,
                }
            }
        }
        Op::Flush => AtaCommand { fis: RegisterH2d::flush(), write: false, regions: 0 },
        Op::Discard => prepare_trim(memory, abilities, slot, lba, sectors)?,
        // The ATA command set has no such command for drives of this class.
        Op::WriteZeroes | Op::Extents => return Err(Status::INVALID_OPCODE),
    };
    memory.write_fis(slot.into(), &command.fis);
    Ok(command)
}

/// Writes physical regions and counts them.
struct PrdtWriter<'a> {
    memory: &'a PortMemory,
    table: usize,
    count: usize,
}

impl PrdtWriter<'_> {
    #[inline]
    fn push(&mut self, at: Iova, bytes: u64) -> Result<(), Status> {
        let (mut at, mut left) = (at, bytes);
        while left > 0 {
            if self.count == PRDT_ENTRIES_MAX {
                return Err(Status::INVALID_FIELD);
            }
            let piece = left.min(PrdtEntry::BYTES_MAX.into()) as u32;
            self.memory.write_prdt_entry(self.table, self.count, PrdtEntry::new(at.0, piece));
            self.count += 1;
            at = at.offset(piece.into());
            left -= u64::from(piece);
        }
        Ok(())
    }

    #[inline]
    fn push_checked(&mut self, space: &AddressSpace, at: Iova, bytes: u64) -> Result<(), Status> {
        // Regions consist of whole 16-bit words ([AHCI1.3 §4.2.3.3]).
        if !at.0.is_multiple_of(2) {
            return Err(Status::INVALID_FIELD);
        }
        if space.find(at, bytes).is_err() {
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        self.push(at, bytes)
    }

    fn push_scratch(&mut self, bytes: u64) -> Result<(), Status> {
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(SCRATCH_BYTES as u64);
            self.push(self.memory.scratch(), piece)?;
            left -= piece;
        }
        Ok(())
    }
}

/// Writes the physical regions of a payload of `bytes` bytes. Returns their number.
#[inline]
fn write_prdt(
    memory: &PortMemory,
    space: &AddressSpace,
    slot: u8,
    data: Payload,
    bytes: u64,
) -> Result<u16, Status> {
    let mut regions = PrdtWriter { memory, table: slot.into(), count: 0 };
    match data {
        Payload::Contiguous(at) => regions.push_checked(space, at, bytes)?,
        Payload::BitBucket => regions.push_scratch(bytes)?,
        Payload::Scattered { table, segments } => {
            let length = usize::from(segments) * Segment::BYTES;
            let found = space.find(table, length as u64);
            let found = found.map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            let mut left = bytes;
            for i in 0..usize::from(segments) {
                let mut raw = [0; Segment::BYTES];
                found.region.read(found.offset + i * Segment::BYTES, &mut raw);
                let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = raw;
                let words = [[a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]];
                let segment = Segment::decode(words.map(u64::from_le_bytes));
                let Segment { at, bytes } = segment.ok_or(Status::SGL_TYPE_INVALID)?;
                let bytes = u64::from(bytes).min(left);
                if bytes == 0 {
                    continue;
                }
                if !bytes.is_multiple_of(2) {
                    return Err(Status::SGL_LENGTH_INVALID);
                }
                match at {
                    Some(at) => regions.push_checked(space, at, bytes)?,
                    None => regions.push_scratch(bytes)?,
                }
                left -= bytes;
            }
            if left > 0 {
                return Err(Status::SGL_LENGTH_INVALID);
            }
        }
    }
    Ok(regions.count as u16)
}

/// Prepares a DATA SET MANAGEMENT command with ranges of 65,535 sectors.
fn prepare_trim(
    memory: &PortMemory,
    abilities: DriveCapabilities,
    slot: u8,
    lba: u64,
    sectors: u32,
) -> Result<AtaCommand, Status> {
    const EACH: u32 = u16::MAX as u32;
    if abilities.trim_blocks == 0 {
        return Err(Status::INVALID_OPCODE);
    }
    let ranges = sectors.div_ceil(EACH) as usize;
    let blocks = ranges.div_ceil(TrimRange::PER_BLOCK).max(1);
    if blocks > usize::from(abilities.trim_blocks).min(TRIM_BLOCKS_MAX) {
        return Err(Status::INVALID_FIELD);
    }
    let index = usize::from(slot);
    for i in 0..blocks * TrimRange::PER_BLOCK {
        let done = i as u64 * u64::from(EACH);
        let left = u64::from(sectors).saturating_sub(done).min(EACH.into());
        // A range of no sectors is unused.
        let lba = if left == 0 { 0 } else { lba.saturating_add(done) };
        memory.write_trim_range(index, i, TrimRange { lba, sectors: left as u16 });
    }
    let mut regions = PrdtWriter { memory, table: index, count: 0 };
    regions.push(memory.ranges(index), blocks as u64 * 512)?;
    let fis = RegisterH2d::trim(blocks as u16);
    Ok(AtaCommand { fis, write: true, regions: regions.count as u16 })
}
