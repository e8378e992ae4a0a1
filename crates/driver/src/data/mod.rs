//! [`DataPointers`]: how commands of a queue say where their data is, and [`PrpLists`], the memory
//! that lists of pages take (NVMe sections 4.3 and 4.4).
//!
//! A drive that takes SGLs gets them: one descriptor says any range of memory, in pieces or not at
//! all (a bit bucket, if the drive knows those). All others get PRP entries: one per page, the first from any dword on. What
//! a bit bucket would swallow goes to one page of scratch memory there, again and again; what no list of
//! pages can name goes through memory that can ([`bounce`]).
//!
//! Guarantee: the list of a tag is written before its command is given to the drive, and not again
//! before the tag is bound anew; nothing is allocated per command.

mod bounce;
mod metadata;
mod segment_iter;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::{SglDescriptor, Sqe, Status};
use ring::{AddressSpace, Iova, PAGE_BYTES, Port, RegisterError, SharedRegion};

use self::bounce::Bounce;
pub use self::bounce::BounceStats;
use self::metadata::MetadataBuffer;
pub(crate) use self::metadata::{ExtendedLbaLayout, METADATA_BYTES_MAX};
use self::segment_iter::TransferShape;
use crate::{BindError, ControllerInfo, DriverError, Payload, Segment};

/// How commands say where their data is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataPointers {
    /// Scatter-gather lists: any alignment, many pieces, bit buckets among them.
    #[default]
    Sgl,
    /// The same without bit buckets: pieces at any alignment; PRPs for what goes nowhere, as a whole
    /// or in part.
    SglAndPrp,
    /// Physical region pages: whole pages, from a dword's address on. All else is copied.
    Prp,
}

/// Bytes of a transfer at most where entries are PRPs, whatever the drive takes: 4 MiB.
pub(crate) const PRP_TRANSFER_MAX: u64 = 4 << 20;

const PAGE64: u64 = PAGE_BYTES as u64;
/// Entries of a page of a list.
const PRPS_PER_PAGE: usize = PAGE_BYTES / 8;

/// The lists of a queue's commands: so many pages per tag, and one page of scratch memory behind
/// them. Like that of rings, memory of deleted queues is used again.
#[derive(Clone, Debug)]
pub(crate) struct PrpLists {
    region: Arc<SharedRegion>,
    at: Iova,
    tags: usize,
    /// Pages of a tag's list.
    pages: usize,
    bounce: Bounce,
    metadata_buffer: Option<MetadataBuffer>,
}

/// Data that a command transfers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferSpec {
    pub(crate) data: Payload,
    pub(crate) bytes: u32,
    /// Whether the drive writes to it.
    pub(crate) is_read: bool,
    pub(crate) layout: ExtendedLbaLayout,
}

/// Pages of a list for transfers of `bytes` bytes that may start anywhere in a page: all but the
/// last end with the address of the next.
fn list_pages(bytes: u64) -> usize {
    // The first entry is in the command.
    let entries = bytes.div_ceil(PAGE64) as usize;
    if entries <= PRPS_PER_PAGE {
        1
    } else {
        1 + (entries - PRPS_PER_PAGE).div_ceil(PRPS_PER_PAGE - 1)
    }
}

impl PrpLists {
    /// Lists for `tags` commands of a drive, registered with `port`.
    ///
    /// # Errors
    /// [`DriverError::Register`]; [`DriverError::Unsupported`] where no memory is in one piece.
    pub(crate) fn new(
        port: &Port,
        tags: u16,
        info: &ControllerInfo,
    ) -> Result<PrpLists, DriverError> {
        let beside = MetadataBuffer::new_if_needed(port, info)?;
        Ok(PrpLists {
            metadata_buffer: beside,
            ..PrpLists::with_max_transfer(port, tags, info.max_wire_bytes())?
        })
    }

    /// The same, of commands that transfer `max_bytes` at most and no metadata.
    fn with_max_transfer(port: &Port, tags: u16, max_bytes: u64) -> Result<PrpLists, DriverError> {
        let (tags, pages) = (usize::from(tags.max(1)), list_pages(max_bytes));
        let (region, at) = port.memory().allocate_registered((tags * pages + 1) * PAGE_BYTES)?;
        let bounce = Bounce::new(tags, max_bytes);
        Ok(PrpLists { region, at, tags, pages, bounce, metadata_buffer: None })
    }

    /// Sets the metadata pointer of a command that transfers data, if it needs one.
    pub(crate) fn set_metadata_pointer(&self, sqe: &mut Sqe, reads: bool) {
        if let Some(beside) = &self.metadata_buffer {
            beside.set_metadata_pointer(sqe, reads);
        }
    }

    /// What was copied, since the lists are the queue's.
    pub(crate) fn bounce_stats(&self) -> BounceStats {
        self.bounce.stats()
    }

    /// Why nothing can be copied, if something had to be.
    pub(crate) fn bounce_error(&self) -> Option<RegisterError> {
        self.bounce.alloc_error()
    }

    /// They become another queue's, which has nothing outstanding.
    pub(crate) fn reset(&mut self) {
        self.bounce.reset();
    }

    /// The drive has forgotten every command.
    pub(crate) fn clear(&mut self) {
        self.bounce.clear();
    }

    /// The command of `tag` has ended, or was not sent.
    #[inline]
    pub(crate) fn complete(&mut self, memory: &AddressSpace, tag: u16, successful: bool) {
        self.bounce.unmap(memory, tag, successful);
    }

    /// Whether a queue of `tags` tags and transfers of `max_bytes` at most can use it.
    pub(crate) fn is_compatible(&self, tags: u16, max_bytes: u64) -> bool {
        self.tags >= usize::from(tags)
            && self.pages >= list_pages(max_bytes)
            && self.bounce.is_compatible(max_bytes)
    }

    /// The two entries of a command that transfers `bytes` bytes in one piece; writes the tag's
    /// list if there are more. The address is a dword's.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for more bytes than the list is for.
    #[inline]
    fn prp_entries(
        &self,
        tag: u16,
        (at, bytes): (Iova, u32),
        memory: &AddressSpace,
    ) -> Result<(u64, u64), Status> {
        let head = PAGE64 - at.0 % PAGE64;
        let rest = u64::from(bytes).saturating_sub(head);
        let next = at.0 - at.0 % PAGE64 + PAGE64;
        match rest.div_ceil(PAGE64) {
            0 => Ok((at.0, 0)),
            1 => Ok((at.0, next)),
            pages => {
                let entries = (0..pages).map(|page| next + page * PAGE64);
                Ok((at.0, self.write_prp_list(tag, pages as usize, entries, memory)?))
            }
        }
    }

    /// The same for memory that the drive reaches page by page.
    fn prp_entries_by_page(
        &self,
        tag: u16,
        (at, bytes): (Iova, u32),
        memory: &AddressSpace,
    ) -> Result<(u64, u64), Status> {
        memory.find(at, bytes.into()).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        let begin = at.0 - at.0 % PAGE64;
        let count = (at.0 % PAGE64 + u64::from(bytes)).div_ceil(PAGE64);
        let pages = (0..count).map(|page| Iova(at.0.max(begin + page * PAGE64)));
        let pages = pages.filter_map(|page| memory.bus_address(page));
        self.prp_entries_of_pages(tag, count as usize, pages, memory)
    }

    /// The same for a command whose data goes nowhere.
    #[inline]
    fn prp_entries_to_scratch(
        &self,
        tag: u16,
        bytes: u32,
        memory: &AddressSpace,
    ) -> Result<(u64, u64), Status> {
        let page = self.bus_address(memory, self.tags * self.pages * PAGE_BYTES)?;
        match u64::from(bytes).div_ceil(PAGE64) {
            0 | 1 => Ok((page, 0)),
            2 => Ok((page, page)),
            pages => {
                let pages = pages as usize - 1;
                Ok((
                    page,
                    self.write_prp_list(tag, pages, std::iter::repeat_n(page, pages), memory)?,
                ))
            }
        }
    }

    /// Where the drive finds a byte of the lists.
    #[inline]
    fn bus_address(&self, memory: &AddressSpace, offset: usize) -> Result<u64, Status> {
        memory.bus_address(self.at.offset(offset as u64)).ok_or(Status::INTERNAL)
    }

    /// The same for `count` pages, whichever they are; the first from any dword on.
    fn prp_entries_of_pages(
        &self,
        tag: u16,
        count: usize,
        mut pages: impl Iterator<Item = u64>,
        memory: &AddressSpace,
    ) -> Result<(u64, u64), Status> {
        let first = pages.next().ok_or(Status::INVALID_FIELD)?;
        match count {
            1 => Ok((first, 0)),
            2 => Ok((first, pages.next().ok_or(Status::INVALID_FIELD)?)),
            count => Ok((first, self.write_prp_list(tag, count - 1, pages, memory)?)),
        }
    }

    /// Writes a list of `count` pages, and returns where it is.
    #[inline]
    fn write_prp_list(
        &self,
        tag: u16,
        count: usize,
        pages: impl Iterator<Item = u64>,
        memory: &AddressSpace,
    ) -> Result<u64, Status> {
        let base = usize::from(tag) * self.pages * PAGE_BYTES;
        let room = self.pages * (PRPS_PER_PAGE - 1) + 1;
        if usize::from(tag) >= self.tags || count > room {
            return Err(Status::INVALID_FIELD);
        }
        let (mut slot, mut left) = (0, count);
        for entry in pages.take(count) {
            if slot % PRPS_PER_PAGE == PRPS_PER_PAGE - 1 && left > 1 {
                let following = self.bus_address(memory, base + (slot + 1) * 8)?;
                self.region.atomic_u64(base + slot * 8).store(following, Ordering::Relaxed);
                slot += 1;
            }
            self.region.atomic_u64(base + slot * 8).store(entry, Ordering::Relaxed);
            slot += 1;
            left -= 1;
        }
        if left > 0 { Err(Status::INVALID_FIELD) } else { self.bus_address(memory, base) }
    }

    /// Sets the data pointer of the command of `tag`, which is not under way. `sgls`: the drive takes
    /// SGLs, though not with bit buckets.
    ///
    /// # Errors
    /// [`BindError::Busy`] when there is no memory now for what must be copied; else how the command
    /// would end, such as [`Status::INVALID_FIELD`] for too many bytes.
    #[inline]
    pub(crate) fn set_data_pointer(
        &mut self,
        sqe: &mut Sqe,
        tag: u16,
        transfer: TransferSpec,
        (memory, sgls): (&AddressSpace, bool),
    ) -> Result<(), BindError> {
        let TransferSpec { data, bytes, layout, .. } = transfer;
        let (first, second) = match data {
            Payload::BitBucket => {
                let bytes =
                    layout.wire_bytes(bytes).ok_or(BindError::Refused(Status::INVALID_FIELD))?;
                self.prp_entries_to_scratch(tag, bytes, memory)
            }
            Payload::Contiguous(_) | Payload::Scattered { .. }
                if layout != ExtendedLbaLayout::NO_METADATA =>
            {
                self.prp_entries_bounced(tag, transfer, memory)?
            }
            Payload::Contiguous(_) if sgls => {
                set_sgl_pointer(sqe, data, bytes);
                return Ok(());
            }
            Payload::Contiguous(at) if at.0.is_multiple_of(4) && !memory.is_paged() => {
                self.prp_entries(tag, (at, bytes), memory)
            }
            Payload::Contiguous(at)
                if at.0.is_multiple_of(4) && memory.bus_address(at).is_some() =>
            {
                self.prp_entries_by_page(tag, (at, bytes), memory)
            }
            Payload::Scattered { table, segments } => {
                match segment_iter::transfer_shape(memory, table, segments, bytes)
                    .map_err(BindError::Refused)?
                {
                    TransferShape::Pages(_) | TransferShape::Memory if sgls => {
                        set_sgl_pointer(sqe, data, bytes);
                        return Ok(());
                    }
                    TransferShape::Pages(count) => self.prp_entries_of_pages(
                        tag,
                        count,
                        segment_iter::page_addresses(memory, table, segments),
                        memory,
                    ),
                    TransferShape::Memory | TransferShape::Holes => {
                        self.prp_entries_bounced(tag, transfer, memory)?
                    }
                }
            }
            Payload::Contiguous(_) => self.prp_entries_bounced(tag, transfer, memory)?,
        }
        .map_err(BindError::Refused)?;
        sqe.set_prp(first, second);
        Ok(())
    }

    /// The two entries of a command whose data is copied.
    #[cold]
    fn prp_entries_bounced(
        &mut self,
        tag: u16,
        transfer: TransferSpec,
        memory: &AddressSpace,
    ) -> Result<Result<(u64, u64), Status>, BindError> {
        let taken = self.bounce.map(memory, tag, transfer);
        let count = taken.map_err(BindError::Refused)?.ok_or(BindError::Busy)?;
        Ok(self.prp_entries_of_pages(tag, count, self.bounce.pages(memory, tag), memory))
    }
}

/// Sets the data pointer of a command that transfers `bytes` bytes to an SGL.
#[inline]
pub(crate) fn set_sgl_pointer(sqe: &mut Sqe, data: Payload, bytes: u32) {
    sqe.set_sgl(match data {
        Payload::Contiguous(at) => SglDescriptor::DataBlock { address: at.0, length: bytes },
        Payload::BitBucket => SglDescriptor::BitBucket { length: bytes },
        Payload::Scattered { table, segments } => {
            let length = u32::from(segments) * Segment::BYTES as u32;
            SglDescriptor::Segment { address: table.0, length, last: true }
        }
    });
}
