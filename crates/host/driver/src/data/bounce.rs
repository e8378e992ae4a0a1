//! [`Bounce`]: registered memory for payloads that PRP lists cannot name.
//!
//! PRP entries after the first are page addresses; the first is a dword address ([NVMe1.4 §4.3]). A
//! transfer takes as many pages as it needs, in any order.
//!
//! Invariants:
//!
//! - The memory has enough pages for the longest transfer, so that a queue with no command
//!   outstanding accepts any command.
//! - Memory is bounded. A command that finds too few free pages is rejected as busy; the caller
//!   retries after another command has completed.
//! - Pages are not reused before the drive has completed their command.
//! - No memory is allocated per command. The bounce memory is allocated with the first command that
//!   needs it; most queues never need it.

// guarantee: C-02, C-03, C-15

use std::sync::Arc;

use mem::{AddressSpace, Iova, PAGE_BYTES, RegisterError, SharedRegion};
use nvme::Status;

use super::TransferSpec;
use super::metadata::ExtendedLbaLayout;
use super::segment_iter::{SegmentIter, transfer_shape};
use crate::{Payload, Segment};

/// Minimum number of pages, whatever the longest transfer is: 64 KiB.
const PAGES_MIN: usize = 16;
/// The end of a list of pages.
const NONE: u16 = u16::MAX;

/// Counters of a queue's bounce memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BounceStats {
    /// Commands whose data was copied.
    pub commands: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Commands rejected as busy because too few pages were free.
    pub busy: u64,
    /// Commands rejected with [`INTERNAL`](Status::INTERNAL) because the bounce memory could not be
    /// allocated.
    pub refused: u64,
    /// Size of the bounce memory in bytes; 0 before the first command that needs it.
    pub memory: u64,
}

collections::counters!(BounceStats { commands, bytes, busy, refused, memory });

/// The pages of a command.
#[derive(Clone, Copy, Debug)]
struct BounceMapping {
    first: u16,
    data: Payload,
    bytes: u32,
    /// Whether the drive writes to the pages.
    is_read: bool,
    layout: ExtendedLbaLayout,
}

/// The pages of the bounce memory.
#[derive(Clone, Debug)]
struct Pages {
    region: Arc<SharedRegion>,
    at: Iova,
}

/// The bounce memory of one queue, allocated when it is first needed.
#[derive(Clone, Debug)]
pub(crate) struct Bounce {
    pages: Option<Pages>,
    /// The reason of a failed allocation, which is not repeated: further attempts would use up all
    /// registrations.
    alloc_error: Option<RegisterError>,
    /// The first free page, and for each page the next one in its list.
    free: u16,
    free_count: usize,
    next: Box<[u16]>,
    mappings: Box<[Option<BounceMapping>]>,
    stats: BounceStats,
}

/// Returns the number of pages for transfers of at most `max_bytes`.
fn pages_for(max_bytes: u64) -> usize {
    max_bytes.div_ceil(PAGE_BYTES as u64).clamp(PAGES_MIN as u64, u64::from(NONE)) as usize
}

impl Bounce {
    /// Creates an instance for transfers of at most `max_bytes` and `tags` tags, without memory.
    pub(crate) fn new(tags: usize, max_bytes: u64) -> Bounce {
        let pages = pages_for(max_bytes);
        let mut bounce = Bounce {
            pages: None,
            alloc_error: None,
            free: NONE,
            free_count: 0,
            next: vec![NONE; pages].into(),
            mappings: vec![None; tags].into(),
            stats: BounceStats::default(),
        };
        bounce.clear();
        bounce
    }

    /// Allocates the memory, unless that has been done.
    fn allocate(&mut self, memory: &AddressSpace) -> Result<(), Status> {
        if self.pages.is_some() {
            return Ok(());
        }
        if self.alloc_error.is_none() {
            match memory.allocate_registered(self.next.len() * PAGE_BYTES) {
                Ok((region, at)) => {
                    self.pages = Some(Pages { region, at });
                    return Ok(());
                }
                Err(error) => self.alloc_error = Some(error),
            }
        }
        self.stats.refused += 1;
        Err(Status::INTERNAL)
    }

    /// Returns why the memory could not be allocated when it was needed.
    pub(crate) fn alloc_error(&self) -> Option<RegisterError> {
        self.alloc_error
    }

    /// Returns whether there are enough pages for transfers of `max_bytes`.
    pub(crate) fn is_compatible(&self, max_bytes: u64) -> bool {
        self.next.len() >= pages_for(max_bytes)
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> BounceStats {
        let memory = self.pages.as_ref().map_or(0, |pages| pages.region.len() as u64);
        BounceStats { memory, ..self.stats }
    }

    /// Frees all pages, because the drive has forgotten every command.
    pub(crate) fn clear(&mut self) {
        let pages = self.next.len();
        for (page, next) in self.next.iter_mut().enumerate() {
            *next = if page + 1 < pages { page as u16 + 1 } else { NONE };
        }
        (self.free, self.free_count) = (0, pages);
        self.mappings.fill(None);
    }

    /// Prepares the memory for another queue and clears the counters.
    pub(crate) fn reset(&mut self) {
        self.clear();
        self.alloc_error = None;
        self.stats = BounceStats::default();
    }

    /// Returns the drive's address of a page.
    fn bus_address(&self, memory: &AddressSpace, page: u16) -> Option<u64> {
        memory.bus_address(self.pages.as_ref()?.at.offset(u64::from(page) * PAGE_BYTES as u64))
    }

    /// Allocates pages for the command of `tag`, and copies the data that it writes. Returns the
    /// number of pages; `None` if too few are free.
    ///
    /// # Errors
    /// The status with which the command would complete: unregistered memory, a table that does not
    /// add up to `bytes`, or [`Status::INTERNAL`] without bounce memory.
    pub(crate) fn map(
        &mut self,
        memory: &AddressSpace,
        tag: u16,
        transfer: TransferSpec,
    ) -> Result<Option<usize>, Status> {
        let TransferSpec { data, bytes, is_read: reads, layout } = transfer;
        let wire = layout.wire_bytes(bytes).ok_or(Status::INVALID_FIELD)?;
        let pages = (wire as usize).div_ceil(PAGE_BYTES);
        match data {
            Payload::Contiguous(at) => {
                memory.find(at, bytes.into()).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            }
            Payload::Scattered { table, segments } => {
                transfer_shape(memory, table, segments, bytes)?;
            }
            Payload::BitBucket => {}
        }
        if usize::from(tag) >= self.mappings.len() || pages == 0 || pages > self.next.len() {
            return Err(Status::INVALID_FIELD);
        }
        self.allocate(memory)?;
        // The owner may have detached the tag without a completion.
        self.release_pages(tag);
        if pages > self.free_count {
            self.stats.busy += 1;
            return Ok(None);
        }
        let first = self.free;
        let mut last = first;
        for _ in 1..pages {
            last = self.next[usize::from(last)];
        }
        self.free = std::mem::replace(&mut self.next[usize::from(last)], NONE);
        self.free_count -= pages;
        let held = BounceMapping { first, data, bytes, is_read: reads, layout };
        self.mappings[usize::from(tag)] = Some(held);
        if !reads {
            self.copy(memory, held);
        }
        self.stats.commands += 1;
        self.stats.bytes += u64::from(bytes);
        Ok(Some(pages))
    }

    /// Returns the drive's addresses of a command's pages, in order.
    pub(crate) fn pages(&self, memory: &AddressSpace, tag: u16) -> impl Iterator<Item = u64> {
        let held = self.mappings.get(usize::from(tag)).and_then(Option::as_ref);
        let first = held.map(|held| held.first);
        std::iter::successors(first, |page| {
            Some(self.next[usize::from(*page)]).filter(|next| *next != NONE)
        })
        .filter_map(|page| self.bus_address(memory, page))
    }

    /// Frees the pages of `tag`, whose command has completed or was not issued. Copies the data of
    /// a successful read first.
    pub(crate) fn unmap(&mut self, memory: &AddressSpace, tag: u16, successful: bool) {
        if let Some(held) = self.mappings.get(usize::from(tag)).copied().flatten() {
            if held.is_read && successful {
                self.copy(memory, held);
            }
            self.release_pages(tag);
        }
    }

    fn release_pages(&mut self, tag: u16) {
        let Some(held) = self.mappings[usize::from(tag)].take() else { return };
        let (mut last, mut pages) = (held.first, 1);
        while self.next[usize::from(last)] != NONE {
            last = self.next[usize::from(last)];
            pages += 1;
        }
        self.next[usize::from(last)] = self.free;
        self.free = held.first;
        self.free_count += pages;
    }

    /// Copies between a command's pages and its payload. Skips parts of the payload that have
    /// changed since the command was bound.
    fn copy(
        &self,
        memory: &AddressSpace,
        BounceMapping { first, data, bytes, is_read: reads, layout }: BounceMapping,
    ) {
        let Some(pages) = &self.pages else { return };
        let mut ours = PageCursor { next: &self.next, page: first, offset: 0 };
        let (mut left, mut of_sector) = (bytes as usize, layout.sector as usize);
        for piece in SegmentIter::new(memory, data, bytes) {
            let Ok(Segment { at, bytes: len }) = piece else { return };
            let mut len = (len as usize).min(left);
            left -= len;
            let mut theirs = match at.map(|at| memory.find(at, len as u64)) {
                None => None,
                Some(Ok(buffer)) => Some((buffer.region, buffer.offset)),
                Some(Err(_)) => return,
            };
            while len > 0 {
                let Some((at, now)) = ours.advance(len.min(of_sector)) else { return };
                if let Some((region, offset)) = &mut theirs {
                    match reads {
                        true => SharedRegion::copy(&pages.region, at, region, *offset, now),
                        false => SharedRegion::copy(region, *offset, &pages.region, at, now),
                    }
                    *offset += now;
                }
                (len, of_sector) = (len - now, of_sector - now);
                if of_sector == 0 {
                    of_sector = layout.sector as usize;
                    let mut gap = layout.metadata_bytes as usize;
                    while gap > 0 {
                        let Some((at, now)) = ours.advance(gap) else { return };
                        if !reads {
                            pages.region.fill(at, now, 0);
                        }
                        gap -= now;
                    }
                }
            }
        }
    }
}

/// A position in a command's pages.
struct PageCursor<'a> {
    next: &'a [u16],
    page: u16,
    offset: usize,
}

impl PageCursor<'_> {
    /// Advances by at most `most` contiguous bytes. Returns their offset and length; `None` after
    /// the last page.
    fn advance(&mut self, most: usize) -> Option<(usize, usize)> {
        if self.offset == PAGE_BYTES {
            let next = self.next[usize::from(self.page)];
            self.page = Some(next).filter(|next| *next != NONE)?;
            self.offset = 0;
        }
        let now = most.min(PAGE_BYTES - self.offset);
        let at = usize::from(self.page) * PAGE_BYTES + self.offset;
        self.offset += now;
        Some((at, now))
    }
}

#[cfg(test)]
mod tests {
    use rng::Rng;
    use transport::Port;

    use super::*;
    use crate::data::segment_iter::tests::write_table;

    fn seed(default: u64) -> u64 {
        let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok());
        let seed = seed.unwrap_or(default);
        println!("SLUICE_SEED={seed}");
        seed
    }

    /// Returns, for each transferred byte, whether it belongs to the payload.
    fn payload_of(layout: ExtendedLbaLayout, wire: u32) -> Vec<bool> {
        let sector = u64::from(layout.sector);
        let each = sector + u64::from(layout.metadata_bytes);
        (0..u64::from(wire)).map(|at| at % each < sector).collect()
    }

    /// Random commands allocate pages, then succeed, fail or are forgotten. Every byte is in its
    /// place, no page belongs to two commands, and no page is lost.
    #[test]
    fn bytes_go_where_they_belong_and_pages_come_back() {
        const TAGS: usize = 6;
        const BYTES_MAX: u64 = 96 << 10;
        let seed = seed(31);
        let mut rng = Rng::new(seed);
        let port = Port::new().unwrap();
        let memory = port.memory();
        let (data, data_at) = memory.allocate_registered(TAGS * (128 << 10)).unwrap();
        let (_, tables) = memory.allocate_registered(TAGS * PAGE_BYTES).unwrap();
        let mut bounce = Bounce::new(TAGS, BYTES_MAX);
        let mut under_way: [Option<(Vec<Segment>, TransferSpec)>; TAGS] = [const { None }; TAGS];
        let (mut busy, mut with_gaps) = (0, 0);
        for round in 0..20_000u32 {
            let tag = rng.below(TAGS as u64) as usize;
            if let Some((pieces, transfer)) = under_way[tag].take() {
                let TransferSpec { bytes, is_read: reads, layout, .. } = transfer;
                let wire = layout.wire_bytes(bytes).unwrap();
                let is_payload = payload_of(layout, wire);
                let pages: Vec<u64> = bounce.pages(memory, tag as u16).collect();
                assert_eq!(pages.len(), (wire as usize).div_ceil(PAGE_BYTES), "seed {seed}");
                // Act as the drive: check the data of a write, or fill the pages of a read.
                let byte = round as u8;
                let mut left = wire as usize;
                let mut seen = Vec::new();
                for page in &pages {
                    let found = memory.find(Iova(*page), PAGE_BYTES as u64).unwrap();
                    let now = left.min(PAGE_BYTES);
                    let of = &is_payload[wire as usize - left..][..now];
                    let mut bytes: Vec<u8> =
                        of.iter().map(|payload| if *payload { byte } else { !byte }).collect();
                    match reads {
                        true => found.region.write(found.offset, &bytes),
                        false => found.region.read(found.offset, &mut bytes),
                    }
                    seen.extend(bytes);
                    left -= now;
                }
                let mut payload = is_payload.iter();
                if !reads {
                    let gaps = seen.iter().zip(&is_payload).filter(|(_, payload)| !**payload);
                    assert!(gaps.map(|(byte, _)| *byte).all(|byte| byte == 0), "seed {seed}");
                    with_gaps += u32::from(layout != ExtendedLbaLayout::NO_METADATA);
                }
                seen.retain(|_| *payload.next().unwrap());
                assert_eq!(seen.len(), bytes as usize);
                let good = rng.below(4) > 0;
                bounce.unmap(memory, tag as u16, good);
                let mut at = 0;
                for piece in pieces {
                    let mut bytes = vec![0; piece.bytes as usize];
                    if let Some(place) = piece.at {
                        memory.read(place, &mut bytes).unwrap();
                        let wanted = match (reads, good) {
                            (true, true) => vec![byte; bytes.len()],
                            (true, false) => vec![tag as u8 ^ 0x80; bytes.len()],
                            (false, _) => seen[at..at + bytes.len()].to_vec(),
                        };
                        assert!(bytes == wanted, "seed {seed}, round {round}");
                    }
                    at += bytes.len();
                }
                continue;
            }
            if rng.below(200) == 0 {
                bounce.clear();
                under_way = [const { None }; TAGS];
                continue;
            }
            let base = tag * (128 << 10);
            data.fill(base, 128 << 10, tag as u8 ^ 0x80);
            let (mut pieces, mut bytes, mut offset) = (Vec::new(), 0u32, base as u64);
            let layout = match rng.below(6) {
                0 => ExtendedLbaLayout { sector: 512, metadata_bytes: 8 },
                1 => ExtendedLbaLayout { sector: 4096, metadata_bytes: 64 },
                2 => ExtendedLbaLayout { sector: 512, metadata_bytes: 5000 },
                _ => ExtendedLbaLayout::NO_METADATA,
            };
            let most = match layout {
                ExtendedLbaLayout::NO_METADATA => 1 + rng.below(BYTES_MAX),
                ExtendedLbaLayout { sector, metadata_bytes: gap } => {
                    u64::from(sector) * (1 + rng.below(BYTES_MAX / u64::from(sector + gap)))
                }
            };
            let one = rng.below(3) == 0;
            while u64::from(bytes) < most && pieces.len() < 32 {
                let len =
                    if one { most } else { (1 + rng.below(9000)).min(most - u64::from(bytes)) };
                offset += rng.below(60);
                let hole = !one && rng.below(6) == 0;
                pieces.push(Segment {
                    at: (!hole).then(|| data_at.offset(offset)),
                    bytes: len as u32,
                });
                offset += len;
                bytes += len as u32;
            }
            let reads = rng.below(2) == 0;
            if !reads {
                // Bytes that encode their position.
                for i in (0..128 << 10).step_by(512) {
                    data.write(base + i, &rng.below(u64::MAX).to_le_bytes());
                }
            }
            let payload = match one {
                true => Payload::Contiguous(pieces[0].at.unwrap()),
                false => write_table(&port, tables.offset((tag * PAGE_BYTES) as u64), &pieces),
            };
            let free = bounce.free_count;
            let transfer = TransferSpec { data: payload, bytes, is_read: reads, layout };
            match bounce.map(memory, tag as u16, transfer).unwrap() {
                Some(_) => under_way[tag] = Some((pieces, transfer)),
                None => {
                    let wire = layout.wire_bytes(bytes).unwrap() as usize;
                    assert!(wire.div_ceil(PAGE_BYTES) > free, "seed {seed}");
                    assert!(under_way.iter().any(Option::is_some), "seed {seed}: alone, and busy");
                    busy += 1;
                }
            }
            let all: Vec<u64> = (0..TAGS as u16)
                .flat_map(|t| bounce.pages(memory, t).collect::<Vec<_>>())
                .collect();
            let mut once = all.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), all.len(), "seed {seed}: a page of two");
            assert_eq!(all.len() + bounce.free_count, bounce.next.len(), "seed {seed}");
        }
        assert!(busy > 100 && with_gaps > 1000, "{busy}, {with_gaps}");
        assert_eq!(bounce.stats().busy, busy);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let port = Port::new().unwrap();
        let (_, at) = port.memory().allocate_registered(1 << 16).unwrap();
        let mut bounce = Bounce::new(2, 512);
        assert!(bounce.is_compatible(64 << 10) && !bounce.is_compatible((64 << 10) + 1));
        let of = |data, bytes, reads| TransferSpec {
            data,
            bytes,
            is_read: reads,
            layout: ExtendedLbaLayout::NO_METADATA,
        };
        let mut take = |tag, data, bytes| bounce.map(port.memory(), tag, of(data, bytes, false));
        let nowhere = Payload::Contiguous(Iova(1 << 50));
        assert_eq!(take(0, nowhere, 512), Err(Status::DATA_TRANSFER_ERROR));
        assert_eq!(take(0, Payload::Contiguous(at), 0), Err(Status::INVALID_FIELD));
        assert_eq!(
            take(2, Payload::Contiguous(at), 512),
            Err(Status::INVALID_FIELD),
            "no such tag"
        );
        assert_eq!(take(0, Payload::BitBucket, 1 << 20), Err(Status::INVALID_FIELD), "too long");
        assert_eq!(take(0, Payload::Contiguous(at.offset(1)), 512), Ok(Some(1)));
        let layout = ExtendedLbaLayout { sector: 512, metadata_bytes: u32::MAX };
        let many = TransferSpec { layout, ..of(Payload::Contiguous(at), 1024, true) };
        assert_eq!(bounce.map(port.memory(), 1, many), Err(Status::INVALID_FIELD));
        let memory = 64 << 10;
        let stats = BounceStats { commands: 1, bytes: 512, memory, ..BounceStats::default() };
        assert_eq!(bounce.stats(), stats);
        // Rebinding a tag that its owner detached frees the old pages.
        let again = of(Payload::Contiguous(at), 1 << 16, true);
        assert_eq!(bounce.map(port.memory(), 0, again), Ok(Some(16)));
        bounce.unmap(port.memory(), 0, false);
        bounce.unmap(port.memory(), 0, true);
        assert_eq!(bounce.free_count, 16);
    }
}
