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
mod pieces;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::{SglDescriptor, Sqe, Status};
use ring::{AddressSpace, Iova, PAGE, Port, Region, RegisterError};

use self::bounce::Bounce;
pub use self::bounce::BounceStats;
use self::metadata::Beside;
pub(crate) use self::metadata::{Layout, MOST_METADATA_BYTES};
use self::pieces::Shape;
use crate::{BindError, DriveInfo, DriverError, Payload, Segment};

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
pub(crate) const MOST_PRP_BYTES: u64 = 4 << 20;

const PAGE64: u64 = PAGE as u64;
/// Entries of a page of a list.
const ENTRIES: usize = PAGE / 8;

/// The lists of a queue's commands: so many pages per tag, and one page of scratch memory behind
/// them. Like that of rings, memory of deleted queues is used again.
#[derive(Clone, Debug)]
pub(crate) struct PrpLists {
    region: Arc<Region>,
    at: Iova,
    tags: usize,
    /// Pages of a tag's list.
    pages: usize,
    bounce: Bounce,
    beside: Option<Beside>,
}

/// Data that a command transfers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) data: Payload,
    pub(crate) bytes: u32,
    /// Whether the drive writes to it.
    pub(crate) reads: bool,
    pub(crate) layout: Layout,
}

/// Pages of a list for transfers of `bytes` bytes that may start anywhere in a page: all but the
/// last end with the address of the next.
fn list_pages(bytes: u64) -> usize {
    // The first entry is in the command.
    let entries = bytes.div_ceil(PAGE64) as usize;
    if entries <= ENTRIES { 1 } else { 1 + (entries - ENTRIES).div_ceil(ENTRIES - 1) }
}

impl PrpLists {
    /// Lists for `tags` commands of a drive, registered with `port`.
    ///
    /// # Errors
    /// [`DriverError::Register`]; [`DriverError::Lacks`] where no memory is in one piece.
    pub(crate) fn new(port: &Port, tags: u16, info: &DriveInfo) -> Result<PrpLists, DriverError> {
        let beside = Beside::of(port, info)?;
        Ok(PrpLists { beside, ..PrpLists::of(port, tags, info.max_wire_bytes())? })
    }

    /// The same, of commands that transfer `max_bytes` at most and no metadata.
    fn of(port: &Port, tags: u16, max_bytes: u64) -> Result<PrpLists, DriverError> {
        let (tags, pages) = (usize::from(tags.max(1)), list_pages(max_bytes));
        let (region, at) = port.memory().provide((tags * pages + 1) * PAGE)?;
        let bounce = Bounce::new(tags, max_bytes);
        Ok(PrpLists { region, at, tags, pages, bounce, beside: None })
    }

    /// Sets the metadata pointer of a command that transfers data, if it needs one.
    pub(crate) fn point_metadata(&self, sqe: &mut Sqe, reads: bool) {
        if let Some(beside) = &self.beside {
            beside.point(sqe, reads);
        }
    }

    /// What was copied, since the lists are the queue's.
    pub(crate) fn bounced(&self) -> BounceStats {
        self.bounce.stats()
    }

    /// Why nothing can be copied, if something had to be.
    pub(crate) fn refused(&self) -> Option<RegisterError> {
        self.bounce.refused()
    }

    /// They become another queue's, which has nothing outstanding.
    pub(crate) fn renew(&mut self) {
        self.bounce.renew();
    }

    /// The drive has forgotten every command.
    pub(crate) fn forgotten(&mut self) {
        self.bounce.clear();
    }

    /// The command of `tag` has ended, or was not sent.
    #[inline]
    pub(crate) fn ended(&mut self, memory: &AddressSpace, tag: u16, successful: bool) {
        self.bounce.end(memory, tag, successful);
    }

    /// Whether a queue of `tags` tags and transfers of `max_bytes` at most can use it.
    pub(crate) fn suits(&self, tags: u16, max_bytes: u64) -> bool {
        self.tags >= usize::from(tags)
            && self.pages >= list_pages(max_bytes)
            && self.bounce.suits(max_bytes)
    }

    /// The two entries of a command that transfers `bytes` bytes in one piece; writes the tag's
    /// list if there are more. The address is a dword's.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] for more bytes than the list is for.
    #[inline]
    fn entries(
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
                Ok((at.0, self.list(tag, pages as usize, entries, memory)?))
            }
        }
    }

    /// The same for memory that the drive reaches page by page.
    fn reached(
        &self,
        tag: u16,
        (at, bytes): (Iova, u32),
        memory: &AddressSpace,
    ) -> Result<(u64, u64), Status> {
        memory.find(at, bytes.into()).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        let begin = at.0 - at.0 % PAGE64;
        let count = (at.0 % PAGE64 + u64::from(bytes)).div_ceil(PAGE64);
        let pages = (0..count).map(|page| Iova(at.0.max(begin + page * PAGE64)));
        let pages = pages.filter_map(|page| memory.wire(page));
        self.named(tag, count as usize, pages, memory)
    }

    /// The same for a command whose data goes nowhere.
    #[inline]
    fn scratch(&self, tag: u16, bytes: u32, memory: &AddressSpace) -> Result<(u64, u64), Status> {
        let page = self.wire(memory, self.tags * self.pages * PAGE)?;
        match u64::from(bytes).div_ceil(PAGE64) {
            0 | 1 => Ok((page, 0)),
            2 => Ok((page, page)),
            pages => {
                let pages = pages as usize - 1;
                Ok((page, self.list(tag, pages, std::iter::repeat_n(page, pages), memory)?))
            }
        }
    }

    /// Where the drive finds a byte of the lists.
    #[inline]
    fn wire(&self, memory: &AddressSpace, offset: usize) -> Result<u64, Status> {
        memory.wire(self.at.offset(offset as u64)).ok_or(Status::INTERNAL)
    }

    /// The same for `count` pages, whichever they are; the first from any dword on.
    fn named(
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
            count => Ok((first, self.list(tag, count - 1, pages, memory)?)),
        }
    }

    /// Writes a list of `count` pages, and returns where it is.
    #[inline]
    fn list(
        &self,
        tag: u16,
        count: usize,
        pages: impl Iterator<Item = u64>,
        memory: &AddressSpace,
    ) -> Result<u64, Status> {
        let base = usize::from(tag) * self.pages * PAGE;
        let room = self.pages * (ENTRIES - 1) + 1;
        if usize::from(tag) >= self.tags || count > room {
            return Err(Status::INVALID_FIELD);
        }
        let (mut slot, mut left) = (0, count);
        for entry in pages.take(count) {
            if slot % ENTRIES == ENTRIES - 1 && left > 1 {
                let following = self.wire(memory, base + (slot + 1) * 8)?;
                self.region.word(base + slot * 8).store(following, Ordering::Relaxed);
                slot += 1;
            }
            self.region.word(base + slot * 8).store(entry, Ordering::Relaxed);
            slot += 1;
            left -= 1;
        }
        if left > 0 { Err(Status::INVALID_FIELD) } else { self.wire(memory, base) }
    }

    /// Sets the data pointer of the command of `tag`, which is not under way. `sgls`: the drive takes
    /// SGLs, though not with bit buckets.
    ///
    /// # Errors
    /// [`BindError::Busy`] when there is no memory now for what must be copied; else how the command
    /// would end, such as [`Status::INVALID_FIELD`] for too many bytes.
    #[inline]
    pub(crate) fn point(
        &mut self,
        sqe: &mut Sqe,
        tag: u16,
        transfer: Transfer,
        (memory, sgls): (&AddressSpace, bool),
    ) -> Result<(), BindError> {
        let Transfer { data, bytes, layout, .. } = transfer;
        let (first, second) = match data {
            Payload::BitBucket => {
                let bytes = layout.wire(bytes).ok_or(BindError::Refused(Status::INVALID_FIELD))?;
                self.scratch(tag, bytes, memory)
            }
            Payload::At(_) | Payload::Scattered { .. } if layout != Layout::PLAIN => {
                self.copied(tag, transfer, memory)?
            }
            Payload::At(_) if sgls => {
                point_sgl(sqe, data, bytes);
                return Ok(());
            }
            Payload::At(at) if at.0.is_multiple_of(4) && !memory.is_by_pages() => {
                self.entries(tag, (at, bytes), memory)
            }
            Payload::At(at) if at.0.is_multiple_of(4) && memory.wire(at).is_some() => {
                self.reached(tag, (at, bytes), memory)
            }
            Payload::Scattered { table, segments } => {
                match pieces::shape(memory, table, segments, bytes).map_err(BindError::Refused)? {
                    Shape::Pages(_) | Shape::Memory if sgls => {
                        point_sgl(sqe, data, bytes);
                        return Ok(());
                    }
                    Shape::Pages(count) => {
                        self.named(tag, count, pieces::pages_of(memory, table, segments), memory)
                    }
                    Shape::Memory | Shape::Holes => self.copied(tag, transfer, memory)?,
                }
            }
            Payload::At(_) => self.copied(tag, transfer, memory)?,
        }
        .map_err(BindError::Refused)?;
        sqe.set_prp(first, second);
        Ok(())
    }

    /// The two entries of a command whose data is copied.
    #[cold]
    fn copied(
        &mut self,
        tag: u16,
        transfer: Transfer,
        memory: &AddressSpace,
    ) -> Result<Result<(u64, u64), Status>, BindError> {
        let taken = self.bounce.take(memory, tag, transfer);
        let count = taken.map_err(BindError::Refused)?.ok_or(BindError::Busy)?;
        Ok(self.named(tag, count, self.bounce.pages(memory, tag), memory))
    }
}

/// Sets the data pointer of a command that transfers `bytes` bytes to an SGL.
#[inline]
pub(crate) fn point_sgl(sqe: &mut Sqe, data: Payload, bytes: u32) {
    sqe.set_sgl(match data {
        Payload::At(at) => SglDescriptor::DataBlock { address: at.0, length: bytes },
        Payload::BitBucket => SglDescriptor::BitBucket { length: bytes },
        Payload::Scattered { table, segments } => {
            let length = u32::from(segments) * Segment::BYTES as u32;
            SglDescriptor::Segment { address: table.0, length, last: true }
        }
    });
}
