//! [`DataPointers`]: how commands of a queue say where their data is, and [`PrpLists`], the memory
//! that lists of pages take (NVMe sections 4.3 and 4.4).
//!
//! A drive that takes SGLs gets them: one descriptor says any range of memory, in pieces or not at
//! all (a bit bucket, if the drive knows those). All others get PRP entries: one per page, the first from any dword on. What
//! a bit bucket would swallow goes to one page of scratch memory there, again and again.
//!
//! Guarantee: the list of a tag is written before its command is given to the drive, and not again
//! before the tag is bound anew; nothing is allocated per command.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::{SglDescriptor, Sqe, Status};
use ring::{Iova, PAGE, Port, Region};

use crate::{DriverError, Payload, Segment};

/// How commands say where their data is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataPointers {
    /// Scatter-gather lists: any alignment, many pieces, bit buckets among them.
    #[default]
    Sgl,
    /// The same without bit buckets: one piece, at any alignment; PRPs for what goes nowhere.
    SglAndPrp,
    /// Physical region pages: one piece, from a dword's address on.
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
}

/// Pages of a list for transfers of `bytes` bytes that may start anywhere in a page: all but the
/// last end with the address of the next.
fn list_pages(bytes: u64) -> usize {
    // The first entry is in the command.
    let entries = bytes.div_ceil(PAGE64) as usize;
    if entries <= ENTRIES { 1 } else { 1 + (entries - ENTRIES).div_ceil(ENTRIES - 1) }
}

impl PrpLists {
    /// Lists for `tags` commands that transfer `max_bytes` at most, registered with `port`.
    ///
    /// # Errors
    /// [`DriverError::Register`].
    pub(crate) fn new(port: &Port, tags: u16, max_bytes: u64) -> Result<PrpLists, DriverError> {
        let (tags, pages) = (usize::from(tags.max(1)), list_pages(max_bytes));
        let (region, at) = port.memory().provide((tags * pages + 1) * PAGE)?;
        Ok(PrpLists { region, at, tags, pages })
    }

    /// Whether a queue of `tags` tags and transfers of `max_bytes` at most can use it.
    pub(crate) fn suits(&self, tags: u16, max_bytes: u64) -> bool {
        self.tags >= usize::from(tags) && self.pages >= list_pages(max_bytes)
    }

    /// The two entries of a command that transfers `bytes` bytes in one piece; writes the tag's
    /// list if there are more.
    ///
    /// # Errors
    /// [`Status::PRP_OFFSET_INVALID`] for an address that is not a dword's,
    /// [`Status::INVALID_FIELD`] for more bytes than the list is for.
    #[inline]
    fn entries(&self, tag: u16, at: Iova, bytes: u32) -> Result<(u64, u64), Status> {
        if !at.0.is_multiple_of(4) {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        let head = PAGE64 - at.0 % PAGE64;
        let rest = u64::from(bytes).saturating_sub(head);
        let next = at.0 - at.0 % PAGE64 + PAGE64;
        match rest.div_ceil(PAGE64) {
            0 => Ok((at.0, 0)),
            1 => Ok((at.0, next)),
            pages => Ok((at.0, self.list(tag, next, PAGE64, pages as usize)?)),
        }
    }

    /// The same for a command whose data goes nowhere.
    #[inline]
    fn scratch(&self, tag: u16, bytes: u32) -> Result<(u64, u64), Status> {
        let page = self.at.0 + (self.tags * self.pages * PAGE) as u64;
        match u64::from(bytes).div_ceil(PAGE64) {
            0 | 1 => Ok((page, 0)),
            2 => Ok((page, page)),
            pages => Ok((page, self.list(tag, page, 0, pages as usize - 1)?)),
        }
    }

    /// Writes a list of `pages` entries, `step` bytes apart from `first` on, and returns where it
    /// is.
    fn list(&self, tag: u16, first: u64, step: u64, pages: usize) -> Result<u64, Status> {
        let base = usize::from(tag) * self.pages * PAGE;
        let room = self.pages * (ENTRIES - 1) + 1;
        if usize::from(tag) >= self.tags || pages > room {
            return Err(Status::INVALID_FIELD);
        }
        let (mut slot, mut entry) = (0, first);
        for left in (1..=pages).rev() {
            if slot % ENTRIES == ENTRIES - 1 && left > 1 {
                let following = self.at.0 + (base + (slot + 1) * 8) as u64;
                self.region.word(base + slot * 8).store(following, Ordering::Relaxed);
                slot += 1;
            }
            self.region.word(base + slot * 8).store(entry, Ordering::Relaxed);
            slot += 1;
            entry = entry.wrapping_add(step);
        }
        Ok(self.at.0 + base as u64)
    }

    /// Sets the data pointer of the command of `tag`, which transfers `bytes` bytes.
    ///
    /// # Errors
    /// How the command would end: [`Status::PRP_OFFSET_INVALID`] for memory at an odd address,
    /// [`Status::INVALID_FIELD`] for memory in pieces or too many bytes.
    #[inline]
    pub(crate) fn point(
        &self,
        sqe: &mut Sqe,
        tag: u16,
        data: Payload,
        bytes: u32,
    ) -> Result<(), Status> {
        let (first, second) = match data {
            Payload::At(at) => self.entries(tag, at, bytes)?,
            Payload::BitBucket => self.scratch(tag, bytes)?,
            Payload::Scattered { .. } => return Err(Status::INVALID_FIELD),
        };
        sqe.set_prp(first, second);
        Ok(())
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

#[cfg(test)]
mod tests {
    use nvme::DataPointer;
    use rng::Rng;

    use super::*;

    /// The pages that a controller would go to, by the specification: first bytes, then whole pages.
    fn walk(port: &Port, sqe: &Sqe, bytes: u64) -> Vec<(u64, u64)> {
        let DataPointer::Prp(first, second) = sqe.data() else { panic!("not PRPs") };
        let mut out = vec![(first, bytes.min(PAGE64 - first % PAGE64))];
        let mut left = bytes - out[0].1;
        if left == 0 {
            assert_eq!(second, 0, "reserved");
        } else if left <= PAGE64 {
            out.push((second, left));
        } else {
            let mut list = second;
            while left > 0 {
                let mut word = [0; 8];
                port.memory().read(Iova(list), &mut word).unwrap();
                let entry = u64::from_le_bytes(word);
                assert_eq!(entry % PAGE64, 0);
                if list % PAGE64 == PAGE64 - 8 && left > PAGE64 {
                    list = entry;
                    continue;
                }
                out.push((entry, left.min(PAGE64)));
                left -= left.min(PAGE64);
                list += 8;
            }
        }
        out
    }

    #[test]
    fn lists_cover_transfers_of_every_length_and_place() {
        let port = Port::new().unwrap();
        let (_, data) = port.memory().provide(5 << 20).unwrap();
        let lists = PrpLists::new(&port, 3, MOST_PRP_BYTES).unwrap();
        let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(7);
        println!("SLUICE_SEED={seed}");
        let mut rng = Rng::new(seed);
        let edges = [512, 4096, 4608, 8192, 8704, 511 << 12, 512 << 12, 513 << 12, 514 << 12]
            .map(|bytes| (bytes, 0));
        let most = MOST_PRP_BYTES as u32;
        let more = [(most, 0), (most, 4), (most, 4092), (most - 512, 512)];
        let random = (0..2_000).map(|_| {
            let scale = rng.below(14);
            let bytes = 512 * (1 + rng.below(1 << scale) as u32);
            (bytes, 4 * rng.below(1024))
        });
        for (bytes, offset) in edges.into_iter().chain(more).chain(random.collect::<Vec<_>>()) {
            let at = data.offset(offset);
            let mut sqe = Sqe::read(1, 0, 1);
            lists.point(&mut sqe, 2, Payload::At(at), bytes).unwrap();
            let mut next = at.0;
            for (address, len) in walk(&port, &sqe, bytes.into()) {
                assert_eq!(address, next, "{bytes} bytes from {offset} on");
                next += len;
            }
            assert_eq!(next, at.0 + u64::from(bytes));
            lists.point(&mut sqe, 1, Payload::BitBucket, bytes).unwrap();
            let pages = walk(&port, &sqe, bytes.into());
            assert!(pages.iter().all(|p| p.0 == pages[0].0), "one page of scratch memory");
            assert!(port.memory().find(Iova(pages[0].0), PAGE64).is_ok());
        }
    }

    #[test]
    fn what_entries_cannot_say_is_refused() {
        let port = Port::new().unwrap();
        let (_, data) = port.memory().provide(1 << 20).unwrap();
        let lists = PrpLists::new(&port, 2, 64 << 10).unwrap();
        let mut sqe = Sqe::read(1, 0, 1);
        let odd = lists.point(&mut sqe, 0, Payload::At(data.offset(2)), 512);
        assert_eq!(odd, Err(Status::PRP_OFFSET_INVALID));
        let pieces = Payload::Scattered { table: data, segments: 2 };
        assert_eq!(lists.point(&mut sqe, 0, pieces, 512), Err(Status::INVALID_FIELD));
        let long = lists.point(&mut sqe, 0, Payload::At(data), 4 << 20);
        assert_eq!(long, Err(Status::INVALID_FIELD));
        assert_eq!(
            lists.point(&mut sqe, 2, Payload::At(data), 1 << 14),
            Err(Status::INVALID_FIELD)
        );
        assert!(lists.suits(2, 64 << 10) && lists.suits(1, 2 << 20));
        assert!(!lists.suits(3, 512) && !lists.suits(1, 4 << 20));
    }
}
