//! Random reads, and the read cursor.
//!
//! Readable sectors are read from the drive, many in parallel. Others are read from memory, as are
//! sectors whose read fails while they are still in memory. An unreadable sector does not affect
//! other sectors.

use std::io;
use std::ops::Range;

use nvme::Status;

use super::{UncorrectableSectors, VirtualBlock, VirtualBlockError, merge};
use crate::ppa::{BlockingSession, VectorOptions};

/// Maximum number of sectors of a vector.
const VECTOR_SECTORS_MAX: u64 = 2048;
/// Number of sectors that a [`BlockReader`] reads ahead.
const READ_AHEAD_SECTORS: u64 = 64;

/// Failed sectors of a batch.
#[derive(Debug, Default)]
struct FailedSectors {
    sectors: Vec<Range<u64>>,
    addresses: Vec<nvme::Address>,
    status: Option<Status>,
}

impl VirtualBlock {
    /// Reads whole sectors starting at `first`.
    ///
    /// # Errors
    /// - Nothing was read: [`VirtualBlockError::PartialSector`], [`VirtualBlockError::PastEnd`],
    ///   [`VirtualBlockError::NotYetReadable`].
    /// - All other sectors were read: [`VirtualBlockError::Uncorrectable`].
    pub fn read(
        &mut self,
        io: &mut BlockingSession<'_>,
        first: u64,
        into: &mut [u8],
    ) -> Result<(), VirtualBlockError> {
        self.read_sectors(io, first, into, None)
    }

    /// Reads whole sectors with their out-of-band bytes; otherwise as [`read`](VirtualBlock::read).
    ///
    /// # Errors
    /// As for [`read`](VirtualBlock::read); [`VirtualBlockError::OobLength`].
    pub fn read_with_oob(
        &mut self,
        io: &mut BlockingSession<'_>,
        first: u64,
        into: &mut [u8],
        oob: &mut [u8],
    ) -> Result<(), VirtualBlockError> {
        let (sectors, each) = (self.sector_count(into.len())?, self.space.geometry().oob_bytes);
        if oob.len() as u64 != sectors * u64::from(each) {
            return Err(VirtualBlockError::OobLength { given: oob.len(), sectors, each });
        }
        self.read_sectors(io, first, into, Some(oob))
    }

    fn read_sectors(
        &mut self,
        io: &mut BlockingSession<'_>,
        first: u64,
        into: &mut [u8],
        mut oob: Option<&mut [u8]>,
    ) -> Result<(), VirtualBlockError> {
        let count = self.sector_count(into.len())?;
        if first.checked_add(count).is_none_or(|end| end > self.len()) {
            return Err(VirtualBlockError::PastEnd { first, count, len: self.len() });
        }
        self.wait_all(io)?;
        let early = self.not_yet_readable(first..first + count);
        if !early.is_empty() {
            return Err(VirtualBlockError::NotYetReadable(early));
        }
        let g = *self.space.geometry();
        let mut failed = FailedSectors::default();
        let mut at = first;
        while at < first + count {
            let end = (at + VECTOR_SECTORS_MAX).min(first + count);
            let part = |each: u32| {
                let each = u64::from(each);
                ((at - first) * each) as usize..((end - first) * each) as usize
            };
            let oob = oob.as_mut().map(|oob| &mut oob[part(g.oob_bytes)]);
            self.read_batch(io, at, &mut into[part(g.sector_bytes)], oob, &mut failed)?;
            at = end;
        }
        let FailedSectors { sectors, addresses, status: Some(status) } = failed else {
            return Ok(());
        };
        self.stats.uncorrectable += addresses.len() as u64;
        Err(VirtualBlockError::Uncorrectable(UncorrectableSectors { sectors, addresses, status }))
    }

    /// Returns whether a read of the sector from the drive is final: it is readable, or torn.
    fn is_on_drive(&self, sector: u64) -> bool {
        if self.torn.iter().any(|r| r.contains(&sector)) {
            return true;
        }
        let unit = sector / self.unit_sectors();
        let (index, first) = self.locate_unit(unit);
        unit < self.units_submitted
            && self.is_readable(index, first + (sector % self.unit_sectors()) as u32)
    }

    /// Returns the sectors that are not readable yet, neither from the drive nor from memory.
    pub(super) fn not_yet_readable(&self, sectors: Range<u64>) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        let mut at = sectors.start;
        while at < sectors.end {
            let unit = at / self.unit_sectors();
            let end = ((unit + 1) * self.unit_sectors()).min(sectors.end);
            if !self.is_unit_readable(unit) && self.unit_buffers.get(unit).is_none() {
                let early = (at..end).filter(|s| !self.is_on_drive(*s));
                early.for_each(|s| merge(&mut ranges, s..s + 1));
            }
            at = end;
        }
        ranges
    }

    /// Reads sectors that are readable.
    fn read_batch(
        &mut self,
        io: &mut BlockingSession<'_>,
        first: u64,
        into: &mut [u8],
        mut oob: Option<&mut [u8]>,
        failed: &mut FailedSectors,
    ) -> Result<(), VirtualBlockError> {
        let g = *self.space.geometry();
        let (size, oob_size) = (g.sector_bytes as usize, g.oob_bytes as usize);
        let count = (into.len() / size) as u64;
        self.ppas.clear();
        for sector in first..first + count {
            if self.is_on_drive(sector) {
                let ppa = self.space.ppa(self.address(sector)?)?;
                self.ppas.push(ppa);
            }
        }
        let mut from_drive = None;
        if !self.ppas.is_empty() {
            let buffer = io.buffers().allocate(self.ppas.len() as u32)?;
            let options = match oob {
                Some(_) => VectorOptions::default(),
                None => VectorOptions::default().without_oob(),
            };
            let ticket = io.session().read(&self.ppas, buffer, options)?;
            from_drive = Some(io.wait(ticket)?);
        }
        let mut position = 0;
        for sector in first..first + count {
            let n = (sector - first) as usize;
            let data = &mut into[n * size..][..size];
            let oob = oob.as_mut().map(|oob| &mut oob[n * oob_size..][..oob_size]);
            if self.is_on_drive(sector) {
                let at = position;
                position += 1;
                if let Some(ended) = &from_drive
                    && let Some(buffer) = &ended.buffer
                    && !ended.failed.contains(at)
                {
                    buffer.read(at, data)?;
                    oob.map_or(Ok(()), |oob| buffer.read_oob(at, oob))?;
                    self.stats.read += 1;
                    continue;
                }
            }
            let (unit, at) = (sector / self.unit_sectors(), sector % self.unit_sectors());
            if let Some(buffer) = self.unit_buffers.get(unit) {
                buffer.read(at as u32, data)?;
                oob.map_or(Ok(()), |oob| buffer.read_oob(at as u32, oob))?;
                self.stats.read_from_memory += 1;
                continue;
            }
            merge(&mut failed.sectors, sector..sector + 1);
            failed.addresses.push(self.address(sector)?);
            let status = from_drive.as_ref().map_or(Status::UNRECOVERED_READ, |e| e.status);
            failed.status.get_or_insert(status);
        }
        Ok(())
    }

    /// Returns the sector that [`read_next`](VirtualBlock::read_next) reads next.
    pub fn read_cursor(&self) -> u64 {
        self.read_cursor
    }

    /// Sets the read cursor; nothing is read past the end.
    pub fn seek(&mut self, sector: u64) {
        self.read_cursor = sector;
    }

    /// Reads as many whole sectors from the read cursor as fit in `into` and exist, and advances
    /// the cursor. Returns their number; 0 at the end.
    ///
    /// # Errors
    /// As for [`read`](VirtualBlock::read). The cursor advances past
    /// [uncorrectable](VirtualBlockError::Uncorrectable) sectors, and is unchanged after other errors.
    pub fn read_next(
        &mut self,
        io: &mut BlockingSession<'_>,
        into: &mut [u8],
    ) -> Result<u64, VirtualBlockError> {
        let room = self.sector_count(into.len())?;
        let count = room.min(self.len().saturating_sub(self.read_cursor));
        if count == 0 {
            return Ok(0);
        }
        let bytes = count as usize * self.space.geometry().sector_bytes as usize;
        let read = self.read(io, self.read_cursor, &mut into[..bytes]);
        if matches!(read, Ok(()) | Err(VirtualBlockError::Uncorrectable(_))) {
            self.read_cursor += count;
        }
        read.map(|()| count)
    }

    /// Returns a byte stream that starts at the read cursor.
    pub fn reader<'b, 'p>(&'b mut self, io: &'b mut BlockingSession<'p>) -> BlockReader<'b, 'p> {
        BlockReader { block: self, io, read_ahead: Vec::new(), offset: 0 }
    }
}

/// A byte stream of a block that starts at its read cursor. It reads whole sectors ahead and
/// advances the cursor with them.
#[derive(Debug)]
pub struct BlockReader<'b, 'p> {
    block: &'b mut VirtualBlock,
    io: &'b mut BlockingSession<'p>,
    read_ahead: Vec<u8>,
    /// Number of bytes of `read_ahead` that were consumed.
    offset: usize,
}

impl io::Read for BlockReader<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.offset == self.read_ahead.len() {
            let size = self.block.space.geometry().sector_bytes as usize;
            self.offset = 0;
            self.read_ahead.resize(READ_AHEAD_SECTORS as usize * size, 0);
            let read = self.block.read_next(self.io, &mut self.read_ahead);
            let sectors = *read.as_ref().unwrap_or(&0);
            self.read_ahead.truncate(sectors as usize * size);
            read.map_err(io::Error::other)?;
        }
        let n = into.len().min(self.read_ahead.len() - self.offset);
        into[..n].copy_from_slice(&self.read_ahead[self.offset..][..n]);
        self.offset += n;
        Ok(n)
    }
}
