//! Translation of I/O virtual addresses to addresses of this process.
//!
//! This is the only code that creates addresses for the kernel. Each is in a range that has been
//! checked to be in registered memory (ARCHITECTURE.md, R1) or in the bit bucket. The kernel does
//! not have its tag.

use mem::Iova;
use nvme::Status;

use super::{BIT_BUCKET_BUFFER, DataLocation, IoVec, NO_FIXED_BUFFER, Pin, Ring};
use crate::uring::backend::UringBackend;
use crate::{BindError, Segment, Tag};

/// A table of data segments in registered memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::uring) struct SegmentTable {
    /// Address of the first [`Segment`].
    pub(in crate::uring) at: Iova,
    /// Number of segments.
    pub(in crate::uring) segments: u16,
}

impl<W: UringBackend> Ring<W> {
    #[inline]
    fn check_location(&self, tag: Tag) -> Result<&DataLocation, BindError> {
        match self.locations.get(usize::from(tag.0)) {
            Some(place) if !place.in_kernel => Ok(place),
            // The tag was freed without a completion; the kernel still uses its old command.
            _ => Err(BindError::Busy),
        }
    }

    #[inline]
    fn check_alignment(&self, address: usize) -> Result<usize, BindError> {
        if address & (self.setup.memory_align as usize - 1) != 0 {
            return Err(BindError::Refused(Status::PRP_OFFSET_INVALID));
        }
        Ok(address)
    }

    /// Sets the data of a tag to registered memory.
    #[inline]
    pub(in crate::uring) fn set_contiguous(
        &mut self,
        tag: Tag,
        at: Iova,
        bytes: u32,
    ) -> Result<(), BindError> {
        self.check_location(tag)?;
        let buffer = self
            .memory
            .find(at, bytes.into())
            .map_err(|_| BindError::Refused(Status::DATA_TRANSFER_ERROR))?;
        let slot = buffer.slot;
        let address = buffer.region.pointer(buffer.offset, bytes as usize).expose_provenance();
        let address = self.check_alignment(address)?;
        if self.pins[slot] == Pin::Untried {
            let region = buffer.region.clone();
            self.pin(slot, &region);
        }
        self.set_location(tag, address, bytes, slot);
        Ok(())
    }

    /// Sets the data of a tag to the bit bucket.
    #[inline]
    pub(in crate::uring) fn set_bit_bucket(
        &mut self,
        tag: Tag,
        bytes: u32,
        write: bool,
    ) -> Result<(), BindError> {
        self.check_location(tag)?;
        let bytes = bytes.min(self.setup.bit_bucket_bytes);
        let address = self.bit_bucket_address(bytes, write);
        if self.pins[BIT_BUCKET_BUFFER] == Pin::Untried {
            let region = self.bit_bucket.clone();
            self.pin(BIT_BUCKET_BUFFER, &region);
        }
        self.set_location(tag, address, bytes, BIT_BUCKET_BUFFER);
        Ok(())
    }

    /// Sets the data of a tag to its command table, which holds at most `command_table_bytes`.
    pub(in crate::uring) fn set_command_table(
        &mut self,
        tag: Tag,
        note: &[u8],
    ) -> Result<(), BindError> {
        self.check_location(tag)?;
        let room = self.setup.command_table_bytes as usize;
        if note.len() > room {
            return Err(BindError::Refused(Status::INTERNAL));
        }
        let offset = 2 * self.setup.bit_bucket_bytes as usize + usize::from(tag.0) * room;
        self.bit_bucket.write(offset, note);
        let address = self.bit_bucket.pointer(offset, note.len()).expose_provenance();
        if self.pins[BIT_BUCKET_BUFFER] == Pin::Untried {
            let region = self.bit_bucket.clone();
            self.pin(BIT_BUCKET_BUFFER, &region);
        }
        self.set_location(tag, address, note.len() as u32, BIT_BUCKET_BUFFER);
        Ok(())
    }

    #[inline]
    fn bit_bucket_address(&self, bytes: u32, write: bool) -> usize {
        let offset = if write { self.setup.bit_bucket_bytes as usize } else { 0 };
        self.bit_bucket.pointer(offset, bytes as usize).expose_provenance()
    }

    #[inline]
    fn set_location(&mut self, tag: Tag, address: usize, bytes: u32, slot: usize) {
        let fits = address & (self.setup.fixed_align as usize - 1) == 0;
        let buffer = if fits && self.pins[slot] == Pin::Pinned {
            slot as u16
        } else {
            self.stats.unregistered_transfers += 1;
            NO_FIXED_BUFFER
        };
        self.locations[usize::from(tag.0)] = DataLocation {
            address,
            bytes,
            buffer,
            iovec_count: 0,
            first_iovec: 0,
            in_kernel: false,
        };
    }

    /// Sets the data of a tag to the segments of a table ([`Segment`]); ignores segments beyond the
    /// length.
    pub(in crate::uring) fn set_segments(
        &mut self,
        tag: Tag,
        table: SegmentTable,
        bytes: u32,
        write: bool,
    ) -> Result<(), BindError> {
        let SegmentTable { at: table, segments } = table;
        let refused = |status| Err(BindError::Refused(status));
        self.check_location(tag)?;
        if segments == 0 || segments > self.setup.segments {
            return refused(Status::SGL_LENGTH_INVALID);
        }
        let start = usize::from(tag.0) * usize::from(self.setup.segments);
        let (mut left, mut count) = (bytes, 0);
        for index in 0..u64::from(segments) {
            if left == 0 {
                break;
            }
            let mut entry = [0; Segment::BYTES];
            let at = table.offset(index * Segment::BYTES as u64);
            if self.memory.read(at, &mut entry).is_err() {
                return refused(Status::DATA_TRANSFER_ERROR);
            }
            let words = u128::from_le_bytes(entry);
            let Some(segment) = Segment::decode([words as u64, (words >> 64) as u64]) else {
                return refused(Status::SGL_TYPE_INVALID);
            };
            let length = segment.bytes.min(left);
            if length == 0 {
                continue;
            }
            let address = match segment.at {
                None if length <= self.setup.bit_bucket_bytes => {
                    self.bit_bucket_address(length, write)
                }
                None => return refused(Status::SGL_LENGTH_INVALID),
                Some(at) => {
                    let Ok(buffer) = self.memory.find(at, length.into()) else {
                        return refused(Status::DATA_TRANSFER_ERROR);
                    };
                    let pointer = buffer.region.pointer(buffer.offset, length as usize);
                    self.check_alignment(pointer.expose_provenance())?
                }
            };
            // At most `segments`, the length of the tag's vector.
            self.iovecs[start + count] = IoVec { address, bytes: length as usize };
            count += 1;
            left -= length;
        }
        if left > 0 {
            return refused(Status::SGL_LENGTH_INVALID);
        }
        let place = DataLocation {
            iovec_count: count as u16,
            buffer: NO_FIXED_BUFFER,
            ..DataLocation::default()
        };
        self.locations[usize::from(tag.0)] = place;
        Ok(())
    }

    /// Advances the data location of a tag by the bytes already transferred, which are fewer than
    /// all.
    pub(in crate::uring) fn advance(&mut self, tag: Tag, bytes: u32) {
        let segments = usize::from(self.setup.segments);
        let Some(place) = self.locations.get_mut(usize::from(tag.0)).filter(|p| !p.in_kernel)
        else {
            return;
        };
        if place.iovec_count == 0 {
            let step = bytes.min(place.bytes);
            place.address += step as usize;
            place.bytes -= step;
            return;
        }
        let mut bytes = bytes as usize;
        let start = usize::from(tag.0) * segments;
        while place.iovec_count > 1 {
            let piece = self.iovecs[start + usize::from(place.first_iovec)];
            if bytes < piece.bytes {
                break;
            }
            bytes -= piece.bytes;
            place.first_iovec += 1;
            place.iovec_count -= 1;
        }
        let piece = &mut self.iovecs[start + usize::from(place.first_iovec)];
        let step = bytes.min(piece.bytes);
        piece.address += step;
        piece.bytes -= step;
    }
}
