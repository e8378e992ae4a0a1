//! Where the data of a command is: an I/O virtual address → an address of this process.
//!
//! The only code that makes addresses for the kernel, each from a range that has been found whole in
//! registered memory (rule R1) or in the bit bucket, for a tag that the kernel does not have.

use ::ring::Iova;
use nvme::Status;

use super::{BUCKET_SLOT, Piece, Pin, Place, Ring, UNPINNED};
use crate::uring::wire::Wire;
use crate::{BindError, Segment, Tag};

impl<W: Wire> Ring<W> {
    #[inline]
    fn place(&self, tag: Tag) -> Result<&Place, BindError> {
        match self.places.get(usize::from(tag.0)) {
            Some(place) if !place.in_kernel => Ok(place),
            // Given back without an answer; the kernel still uses what it was bound to.
            _ => Err(BindError::Busy),
        }
    }

    #[inline]
    fn aligned(&self, address: usize) -> Result<usize, BindError> {
        if address & (self.setup.memory_align as usize - 1) != 0 {
            return Err(BindError::Refused(Status::PRP_OFFSET_INVALID));
        }
        Ok(address)
    }

    /// Points a tag at registered memory.
    #[inline]
    pub(in crate::uring) fn aim(
        &mut self,
        tag: Tag,
        at: Iova,
        bytes: u32,
    ) -> Result<(), BindError> {
        self.place(tag)?;
        let buffer = self
            .memory
            .find(at, bytes.into())
            .map_err(|_| BindError::Refused(Status::DATA_TRANSFER_ERROR))?;
        let slot = buffer.slot;
        let address = buffer.region.pointer(buffer.offset, bytes as usize).expose_provenance();
        let address = self.aligned(address)?;
        if self.pins[slot] == Pin::Untried {
            let region = buffer.region.clone();
            self.pin(slot, &region);
        }
        self.put(tag, address, bytes, slot);
        Ok(())
    }

    /// Points a tag at memory that nobody looks at.
    #[inline]
    pub(in crate::uring) fn aim_bucket(
        &mut self,
        tag: Tag,
        bytes: u32,
        write: bool,
    ) -> Result<(), BindError> {
        self.place(tag)?;
        let bytes = bytes.min(self.setup.bucket_bytes);
        let address = self.bucket_address(bytes, write);
        if self.pins[BUCKET_SLOT] == Pin::Untried {
            let region = self.bucket.clone();
            self.pin(BUCKET_SLOT, &region);
        }
        self.put(tag, address, bytes, BUCKET_SLOT);
        Ok(())
    }

    /// Points a tag at bytes of its own, which the command carries beside payloads: `note_bytes` of them
    /// at most.
    pub(in crate::uring) fn aim_note(&mut self, tag: Tag, note: &[u8]) -> Result<(), BindError> {
        self.place(tag)?;
        let room = self.setup.note_bytes as usize;
        if note.len() > room {
            return Err(BindError::Refused(Status::INTERNAL));
        }
        let offset = 2 * self.setup.bucket_bytes as usize + usize::from(tag.0) * room;
        self.bucket.write(offset, note);
        let address = self.bucket.pointer(offset, note.len()).expose_provenance();
        if self.pins[BUCKET_SLOT] == Pin::Untried {
            let region = self.bucket.clone();
            self.pin(BUCKET_SLOT, &region);
        }
        self.put(tag, address, note.len() as u32, BUCKET_SLOT);
        Ok(())
    }

    #[inline]
    fn bucket_address(&self, bytes: u32, write: bool) -> usize {
        let offset = if write { self.setup.bucket_bytes as usize } else { 0 };
        self.bucket.pointer(offset, bytes as usize).expose_provenance()
    }

    #[inline]
    fn put(&mut self, tag: Tag, address: usize, bytes: u32, slot: usize) {
        let fits = address & (self.setup.fixed_align as usize - 1) == 0;
        let buffer = if fits && self.pins[slot] == Pin::Pinned {
            slot as u16
        } else {
            self.stats.unregistered_transfers += 1;
            UNPINNED
        };
        self.places[usize::from(tag.0)] =
            Place { address, bytes, buffer, pieces: 0, first: 0, in_kernel: false };
    }

    /// Points a tag at the pieces of a table ([`Segment`]); what is over is left out.
    pub(in crate::uring) fn aim_pieces(
        &mut self,
        tag: Tag,
        (table, segments): (Iova, u16),
        bytes: u32,
        write: bool,
    ) -> Result<(), BindError> {
        let refused = |status| Err(BindError::Refused(status));
        self.place(tag)?;
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
                None if length <= self.setup.bucket_bytes => self.bucket_address(length, write),
                None => return refused(Status::SGL_LENGTH_INVALID),
                Some(at) => {
                    let Ok(buffer) = self.memory.find(at, length.into()) else {
                        return refused(Status::DATA_TRANSFER_ERROR);
                    };
                    let pointer = buffer.region.pointer(buffer.offset, length as usize);
                    self.aligned(pointer.expose_provenance())?
                }
            };
            // As many as `segments`, which is at most the tag's share.
            self.pieces[start + count] = Piece { address, bytes: length as usize };
            count += 1;
            left -= length;
        }
        if left > 0 {
            return refused(Status::SGL_LENGTH_INVALID);
        }
        let place = Place { pieces: count as u16, buffer: UNPINNED, ..Place::default() };
        self.places[usize::from(tag.0)] = place;
        Ok(())
    }

    /// Moves a tag's place on by what has been transferred already, less than all of it.
    pub(in crate::uring) fn advance(&mut self, tag: Tag, bytes: u32) {
        let segments = usize::from(self.setup.segments);
        let Some(place) = self.places.get_mut(usize::from(tag.0)).filter(|p| !p.in_kernel) else {
            return;
        };
        if place.pieces == 0 {
            let step = bytes.min(place.bytes);
            place.address += step as usize;
            place.bytes -= step;
            return;
        }
        let mut bytes = bytes as usize;
        let start = usize::from(tag.0) * segments;
        while place.pieces > 1 {
            let piece = self.pieces[start + usize::from(place.first)];
            if bytes < piece.bytes {
                break;
            }
            bytes -= piece.bytes;
            place.first += 1;
            place.pieces -= 1;
        }
        let piece = &mut self.pieces[start + usize::from(place.first)];
        let step = bytes.min(piece.bytes);
        piece.address += step;
        piece.bytes -= step;
    }
}
