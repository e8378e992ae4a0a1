//! [`DataPointers`]: the kind of data pointers of a queue's commands. [`PrpLists`]: memory for PRP
//! lists ([NVMe1.4 §4.3], [NVMe1.4 §4.4]).
//!
//! A drive that supports SGLs gets SGLs: one descriptor names any range of memory, contiguous or
//! scattered, or a bit bucket if the drive supports those. All other drives get PRP entries: one
//! per page, the first at any dword. The data of a bit bucket then goes to one page of scratch
//! memory, repeatedly. Data that PRP entries cannot name goes through bounce memory ([`bounce`]).
//!
//! Invariants: the list of a tag is written before its command is issued, and not changed before
//! the tag is bound again. No memory is allocated per command.

mod bounce;
mod metadata;
mod segment_iter;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mem::{AddressSpace, Iova, PAGE_BYTES, RegisterError, SharedRegion};
use nvme::{SglDescriptor, Sqe, Status};
use transport::Port;

use self::bounce::Bounce;
pub use self::bounce::BounceStats;
use self::metadata::MetadataBuffer;
pub(crate) use self::metadata::{ExtendedLbaLayout, METADATA_BYTES_MAX};
use self::segment_iter::TransferShape;
use crate::{BindError, ControllerInfo, DriverError, Payload, Segment};

/// The kind of data pointers in commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataPointers {
    /// Scatter-gather lists: any alignment, scattered payloads, and bit buckets.
    #[default]
    Sgl,
    /// Scatter-gather lists without bit buckets: segments at any alignment. PRPs for payloads with
    /// a bit bucket, whole or in part.
    SglAndPrp,
    /// Physical region pages: whole pages, the first from a dword address. All other data is
    /// copied.
    Prp,
}

/// Maximum bytes per transfer with PRPs, whatever the drive supports: 4 MiB.
pub(crate) const PRP_TRANSFER_MAX: u64 = 4 << 20;

const PAGE64: u64 = PAGE_BYTES as u64;
/// Number of entries per page of a PRP list.
const PRPS_PER_PAGE: usize = PAGE_BYTES / 8;

/// The PRP lists of a queue: a number of pages per tag, followed by one page of scratch memory. The
/// memory of deleted queues is reused.
#[derive(Clone, Debug)]
pub(crate) struct PrpLists {
    region: Arc<SharedRegion>,
    at: Iova,
    tags: usize,
    /// Number of pages per tag's list.
    pages: usize,
    bounce: Bounce,
    metadata_buffer: Option<MetadataBuffer>,
}

/// The data of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferSpec {
    pub(crate) data: Payload,
    pub(crate) bytes: u32,
    /// Whether the drive writes to memory.
    pub(crate) is_read: bool,
    pub(crate) layout: ExtendedLbaLayout,
}

/// Returns the number of list pages for transfers of `bytes` bytes at any offset in a page. All
/// list pages but the last end with the address of the next.
fn list_pages(bytes: u64) -> usize {
    // The first entry is in the command.
    let entries = bytes.div_ceil(PAGE64) as usize;
    if entries <= PRPS_PER_PAGE {
        1
    } else {
        1 + (entries - PRPS_PER_PAGE).div_ceil(PRPS_PER_PAGE - 1)
    }
}

/// The memory that data pointers refer to, and their format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointerTarget<'a> {
    pub(crate) memory: &'a AddressSpace,
    /// Whether the drive supports SGLs, though not bit buckets.
    pub(crate) has_sgls: bool,
}

impl PrpLists {
    /// Allocates lists for `tags` commands of a drive, registered with `port`.
    ///
    /// # Errors
    /// [`DriverError::Register`]; [`DriverError::Unsupported`] if no memory is contiguous for the
    /// drive.
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

    /// Allocates lists for commands that transfer at most `max_bytes` and no metadata.
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

    /// Returns the counters of copied data, since the queue got the lists.
    pub(crate) fn bounce_stats(&self) -> BounceStats {
        self.bounce.stats()
    }

    /// Returns why bounce memory could not be allocated when it was needed.
    pub(crate) fn bounce_error(&self) -> Option<RegisterError> {
        self.bounce.alloc_error()
    }

    /// Prepares the lists for another queue, which has no command outstanding.
    pub(crate) fn reset(&mut self) {
        self.bounce.reset();
    }

    /// Releases the resources of all commands, which the drive has forgotten.
    pub(crate) fn clear(&mut self) {
        self.bounce.clear();
    }

    /// Releases the resources of `tag`, whose command has completed or was not issued.
    #[inline]
    pub(crate) fn complete(&mut self, memory: &AddressSpace, tag: u16, successful: bool) {
        self.bounce.unmap(memory, tag, successful);
    }

    /// Returns whether a queue with `tags` tags and transfers of at most `max_bytes` can use the
    /// lists.
    pub(crate) fn is_compatible(&self, tags: u16, max_bytes: u64) -> bool {
        self.tags >= usize::from(tags)
            && self.pages >= list_pages(max_bytes)
            && self.bounce.is_compatible(max_bytes)
    }

    /// Returns the two PRP entries of a command that transfers `bytes` contiguous bytes; writes the
    /// tag's list if there are more entries. The address is dword aligned.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for more bytes than the list supports.
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

    /// Returns the two PRP entries for memory that the drive reaches page by page.
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

    /// Returns the two PRP entries for a bit bucket: all pages are the scratch page.
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

    /// Returns the drive's address of a byte of the lists.
    #[inline]
    fn bus_address(&self, memory: &AddressSpace, offset: usize) -> Result<u64, Status> {
        memory.bus_address(self.at.offset(offset as u64)).ok_or(Status::INTERNAL)
    }

    /// Returns the two PRP entries for `count` pages at arbitrary addresses; the first may start at
    /// any dword.
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

    /// Writes a list of `count` pages and returns its address.
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

    /// Sets the data pointer of the command of `tag`, which is not in flight.
    ///
    /// # Errors
    /// [`BindError::Busy`] if too little bounce memory is free; else the status with which the
    /// command would complete, such as [`Status::INVALID_FIELD`] for too many bytes.
    #[inline]
    pub(crate) fn set_data_pointer(
        &mut self,
        sqe: &mut Sqe,
        tag: u16,
        transfer: TransferSpec,
        target: PointerTarget<'_>,
    ) -> Result<(), BindError> {
        let PointerTarget { memory, has_sgls: sgls } = target;
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

    /// Returns the two PRP entries of a command whose data is copied.
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
