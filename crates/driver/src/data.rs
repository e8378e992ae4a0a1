//! [`DataPointers`]: how commands of a queue say where their data is, and [`PrpLists`], the memory
//! that lists of pages take (NVMe sections 4.3 and 4.4).
//!
//! A drive that takes SGLs gets them: one descriptor says any range of memory, in pieces or not at
//! all (a bit bucket, if the drive knows those). All others get PRP entries: one per page, the first from any dword on. What
//! a bit bucket would swallow goes to one page of scratch memory there, again and again; what no list of
//! pages can name goes through memory that can ([`crate::bounce`]).
//!
//! Guarantee: the list of a tag is written before its command is given to the drive, and not again
//! before the tag is bound anew; nothing is allocated per command.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::{Metadata, MetadataPlace, SglDescriptor, Sqe, Status};
use ring::{AddressSpace, Iova, PAGE, Port, Region, RegisterError};

use crate::bounce::{self, Bounce, BounceStats, Shape};
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

/// Metadata of a transfer at most that has a buffer of its own, which is in one piece.
pub(crate) const MOST_METADATA_BYTES: u64 = 64 << 10;

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

/// Where metadata comes from and goes to that has a buffer of its own and is nobody's: every command of
/// the queue is given the same.
#[derive(Clone, Debug)]
struct Beside {
    _region: Arc<Region>,
    /// As the drive finds them: zeros, which are written, and what is read.
    zeros: u64,
    thrown_away: u64,
}

impl Beside {
    fn new(port: &Port, bytes: u64) -> Result<Beside, DriverError> {
        let bytes = bytes.next_multiple_of(PAGE64);
        let (region, at) = port.memory().provide(2 * bytes as usize)?;
        let run = |at| port.memory().wire_run(at, bytes);
        let (zeros, thrown_away) = run(at)
            .zip(run(at.offset(bytes)))
            .ok_or(DriverError::Lacks { what: "memory in one piece for metadata" })?;
        Ok(Beside { _region: region, zeros, thrown_away })
    }
}

/// What of the bytes that a command transfers is its payload: of each `sector` bytes `gap` bytes more
/// are transferred, which are zeros when they are written and thrown away when they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) sector: u32,
    pub(crate) gap: u32,
}

impl Layout {
    /// All of it is.
    pub(crate) const PLAIN: Layout = Layout { sector: u32::MAX, gap: 0 };

    /// Bytes that are transferred for so many bytes of payload.
    pub(crate) fn wire(self, bytes: u32) -> Option<u32> {
        bytes.checked_add((bytes / self.sector).checked_mul(self.gap)?)
    }
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
        let mut lists = PrpLists::of(port, tags, info.max_wire_bytes())?;
        if let Some(Metadata { bytes, place: MetadataPlace::Apart, .. }) = info.metadata {
            let bytes = u64::from(info.max_sectors) * u64::from(bytes);
            lists.beside = Some(Beside::new(port, bytes)?);
        }
        Ok(lists)
    }

    /// The same, of commands that transfer `max_bytes` at most and no metadata.
    fn of(port: &Port, tags: u16, max_bytes: u64) -> Result<PrpLists, DriverError> {
        let (tags, pages) = (usize::from(tags.max(1)), list_pages(max_bytes));
        let (region, at) = port.memory().provide((tags * pages + 1) * PAGE)?;
        let bounce = Bounce::new(tags, max_bytes);
        Ok(PrpLists { region, at, tags, pages, bounce, beside: None })
    }

    /// Sets the metadata pointer of a command that transfers any.
    pub(crate) fn point_metadata(&self, sqe: &mut Sqe, reads: bool) {
        if let Some(beside) = &self.beside {
            sqe.mptr = if reads { beside.thrown_away } else { beside.zeros }.into();
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
                match bounce::shape(memory, table, segments, bytes).map_err(BindError::Refused)? {
                    Shape::Pages(_) | Shape::Memory if sgls => {
                        point_sgl(sqe, data, bytes);
                        return Ok(());
                    }
                    Shape::Pages(count) => {
                        self.named(tag, count, bounce::pages_of(memory, table, segments), memory)
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use nvme::DataPointer;
    use ring::{Bus, Reach};
    use rng::Rng;

    use super::*;

    fn read(data: Payload, bytes: u32) -> Transfer {
        Transfer { data, bytes, reads: true, layout: Layout::PLAIN }
    }

    /// The pages that a controller would go to, by the specification: first bytes, then whole pages.
    fn walk(port: &Port, sqe: &Sqe, bytes: u64) -> Vec<(u64, u64)> {
        walk_by(sqe, bytes, |at| {
            let mut word = [0; 8];
            port.memory().read(Iova(at), &mut word).unwrap();
            u64::from_le_bytes(word)
        })
    }

    fn walk_by(sqe: &Sqe, bytes: u64, word: impl Fn(u64) -> u64) -> Vec<(u64, u64)> {
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
                let entry = word(list);
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
        let mut lists = PrpLists::of(&port, 3, MOST_PRP_BYTES).unwrap();
        let memory = (port.memory(), false);
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
            lists.point(&mut sqe, 2, read(Payload::At(at), bytes), memory).unwrap();
            let mut next = at.0;
            for (address, len) in walk(&port, &sqe, bytes.into()) {
                assert_eq!(address, next, "{bytes} bytes from {offset} on");
                next += len;
            }
            assert_eq!(next, at.0 + u64::from(bytes));
            lists.point(&mut sqe, 1, read(Payload::BitBucket, bytes), memory).unwrap();
            let pages = walk(&port, &sqe, bytes.into());
            assert!(pages.iter().all(|p| p.0 == pages[0].0), "one page of scratch memory");
            assert!(port.memory().find(Iova(pages[0].0), PAGE64).is_ok());
        }
    }

    #[test]
    fn what_entries_cannot_say_is_copied_or_refused() {
        let port = Port::new().unwrap();
        let (_, data) = port.memory().provide(1 << 20).unwrap();
        let (tables, table) = port.memory().provide(PAGE).unwrap();
        let mut lists = PrpLists::of(&port, 2, 64 << 10).unwrap();
        let memory = (port.memory(), false);
        let mut sqe = Sqe::read(1, 0, 1);
        let odd = read(Payload::At(data.offset(2)), 16 << 10);
        lists.point(&mut sqe, 0, odd, memory).unwrap();
        let pages = walk(&port, &sqe, 16 << 10);
        assert_eq!(pages.len(), 4);
        assert!(pages.iter().all(|(at, _)| *at < data.0 || *at > data.0 + (1 << 20)), "copied");
        // Pieces that are pages are named as they are, wherever they are.
        let segments = [(0x3000, 8192), (0x1000, 4096), (0x8000, 512)];
        for (i, (offset, bytes)) in segments.into_iter().enumerate() {
            let words = Segment { at: Some(data.offset(offset)), bytes }.encode();
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            tables.write(16 * i, &bytes);
        }
        let pieces = Payload::Scattered { table, segments: 3 };
        lists.point(&mut sqe, 1, read(pieces, 12800), memory).unwrap();
        let named: Vec<u64> = walk(&port, &sqe, 12800).iter().map(|(at, _)| at - data.0).collect();
        assert_eq!(named, [0x3000, 0x4000, 0x1000, 0x8000]);
        assert_eq!(lists.bounced().commands, 1);
        // More than there are pages for now, and then.
        let second = read(Payload::At(data.offset(1)), 64 << 10);
        assert_eq!(lists.point(&mut sqe, 1, second, memory), Err(BindError::Busy));
        lists.ended(port.memory(), 0, true);
        lists.point(&mut sqe, 1, second, memory).unwrap();
        let refused = |status| Err(BindError::Refused(status));
        let long = lists.point(&mut sqe, 0, read(Payload::At(data), 4 << 20), memory);
        assert_eq!(long, refused(Status::INVALID_FIELD));
        let tag = lists.point(&mut sqe, 2, read(Payload::At(data), 1 << 14), memory);
        assert_eq!(tag, refused(Status::INVALID_FIELD));
        let short = lists.point(&mut sqe, 0, read(pieces, 512), memory);
        assert_eq!(short, refused(Status::SGL_LENGTH_INVALID));
        // With SGLs only what has holes needs pages.
        let sgls = (port.memory(), true);
        lists.point(&mut sqe, 0, read(pieces, 12800), sgls).unwrap();
        assert!(matches!(sqe.data(), DataPointer::Sgl(SglDescriptor::Segment { .. })));
        assert!(lists.suits(2, 64 << 10) && lists.suits(1, 64 << 10));
        assert!(!lists.suits(3, 512) && !lists.suits(1, 4 << 20));
    }

    /// A bus without an IOMMU: what it provides is reached page by page, last page first; nothing else is.
    #[derive(Debug, Default)]
    struct Exposed {
        provided: Mutex<Vec<usize>>,
        /// No more pages than that.
        most: AtomicUsize,
    }

    const EXPOSED: u64 = 0x7_0000_0000;

    impl Bus for Exposed {
        fn map(&self, at: Iova, region: &Region) -> io::Result<Reach> {
            let (pointer, bytes) = region.whole_pages();
            if !self.provided.lock().unwrap().contains(&pointer.addr()) {
                return Ok(Reach::Nowhere);
            }
            let last = EXPOSED + at.0 + (bytes - PAGE) as u64;
            let pages = (0..(bytes / PAGE) as u64).map(|page| last - page * PAGE64);
            Ok(Reach::Pages(pages.collect()))
        }

        fn is_by_pages(&self) -> bool {
            true
        }

        fn provide(&self, len: usize) -> io::Result<Arc<Region>> {
            let left = self.most.load(Ordering::Relaxed).checked_sub(len.div_ceil(PAGE));
            self.most.store(left.ok_or(io::ErrorKind::OutOfMemory)?, Ordering::Relaxed);
            let region = Region::anonymous(len)?;
            self.provided.lock().unwrap().push(region.pointer(0, 1).addr());
            Ok(region)
        }

        fn advice(&self) -> &'static str {
            " (more)"
        }

        fn vectors(&self) -> u16 {
            0
        }

        fn connect(&self, _: u16, _: &clock::Waker) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn exposed(most: usize) -> (Arc<Exposed>, io::Result<Arc<Port>>) {
        let bus = Arc::new(Exposed { most: most.into(), ..Exposed::default() });
        let window = ring::BusWindow::largest(&[(1 << 32, (1 << 40) - 1)]).unwrap();
        let bells = ring::Doorbells::of_controller(0);
        let registers = Region::anonymous(0x3000).unwrap();
        (bus.clone(), Port::device(registers, bells, window, bus))
    }

    #[test]
    fn without_an_iommu_pages_are_named_where_they_are_and_other_memory_is_copied() {
        let (_, port) = exposed(4000);
        let port = port.unwrap();
        assert!(!port.has_interrupts() && port.most_queues() > 1);
        let memory = port.memory();
        let (data, data_at) = memory.provide(3 << 20).unwrap();
        let own = Region::anonymous(1 << 20).unwrap();
        let own_at = memory.register(&own).unwrap();
        assert_eq!(memory.wire(own_at), None);
        let mut lists = PrpLists::of(&port, 2, 2 << 20).unwrap();
        assert_eq!(lists.bounced(), BounceStats::default(), "no memory before it is needed");
        // Back from what the controller is told: regions are reversed as a whole.
        let back = |wire: u64| {
            let page = Iova(wire - wire % PAGE64 - EXPOSED);
            let found = memory.find(page, PAGE64).unwrap();
            let begin = page.0 - found.offset as u64;
            let last = found.region.len().next_multiple_of(PAGE) - PAGE;
            let at = begin + (last - found.offset) as u64 + wire % PAGE64;
            assert_eq!(memory.wire(Iova(at)), Some(wire));
            at
        };
        let word = |wire: u64| {
            let mut word = [0; 8];
            memory.read(Iova(back(wire)), &mut word).unwrap();
            u64::from_le_bytes(word)
        };
        let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(8);
        println!("SLUICE_SEED={seed}");
        let mut rng = Rng::new(seed);
        let mut copied = 0;
        for round in 0..600u32 {
            let scale = rng.below(12);
            let bytes = 512 * (1 + rng.below(1 << scale) as u32);
            let (ours, offset) = (rng.chance(0.5), 4 * rng.below(1024));
            let bytes = if ours { bytes.min(1 << 19) } else { bytes };
            let at = if ours { own_at } else { data_at }.offset(offset);
            let mut sqe = Sqe::read(1, 0, 1);
            let transfer =
                Transfer { data: Payload::At(at), bytes, reads: true, layout: Layout::PLAIN };
            lists.point(&mut sqe, 1, transfer, (memory, false)).unwrap();
            let pages = walk_by(&sqe, bytes.into(), word);
            let (mut next, mut done) = (at.0, 0u64);
            for (wire, len) in pages {
                let found = back(wire);
                // What a controller would write there.
                memory.write(Iova(found), &vec![round as u8; len as usize]).unwrap();
                assert!(ours || found == next, "{bytes} bytes from {offset} on");
                (next, done) = (next + len, done + len);
            }
            assert_eq!(done, u64::from(bytes));
            copied += u64::from(ours);
            assert_eq!(lists.bounced().commands, copied);
            lists.ended(memory, 1, true);
            let mut out = vec![0; bytes as usize];
            memory.read(at, &mut out).unwrap();
            assert!(out.iter().all(|byte| *byte == round as u8), "it is there");
            lists.point(&mut sqe, 0, read(Payload::BitBucket, bytes), (memory, false)).unwrap();
            for (wire, _) in walk_by(&sqe, bytes.into(), word) {
                assert!(memory.find(Iova(back(wire)), PAGE64).is_ok());
            }
        }
        assert!(copied > 100 && lists.bounced().memory == 2 << 20, "{:?}", lists.bounced());
        // A controller goes to whatever it is told: what is no memory of ours is refused before.
        let mut sqe = Sqe::read(1, 0, 1);
        let beyond = data_at.offset((3 << 20) - 4096);
        for (at, bytes) in [(beyond, 8192), (Iova(1 << 50), 512), (Iova(0x1000), 512)] {
            let refused = lists.point(&mut sqe, 0, read(Payload::At(at), bytes), (memory, false));
            assert_eq!(refused, Err(BindError::Refused(Status::DATA_TRANSFER_ERROR)), "{at}");
        }
        drop(data);
    }

    #[test]
    fn memory_to_copy_through_that_is_not_there_is_said_and_not_asked_for_again() {
        let (_, none) = exposed(1);
        let said = none.unwrap_err();
        assert!(said.to_string().contains("controller reaches"), "{said}");
        // Admin queues, and lists for one tag.
        let (bus, port) = exposed(2 + 2);
        let port = port.unwrap();
        let own = Region::anonymous(PAGE).unwrap();
        let at = port.memory().register(&own).unwrap();
        let mut lists = PrpLists::of(&port, 1, 64 << 10).unwrap();
        assert_eq!(lists.refused(), None);
        let mut sqe = Sqe::read(1, 0, 1);
        for round in 1..=3 {
            // Later there would be some.
            let memory = (port.memory(), false);
            let ended = lists.point(&mut sqe, 0, read(Payload::At(at), 512), memory);
            assert_eq!(ended, Err(BindError::Refused(Status::INTERNAL)));
            let why = lists.refused().expect("why").to_string();
            assert!(why.contains("65536 bytes") && why.ends_with("(more)"), "{why}");
            let stats = BounceStats { refused: round, ..BounceStats::default() };
            assert_eq!(lists.bounced(), stats);
            bus.most.store(1000, Ordering::Relaxed);
        }
        // Another queue's may be made.
        let mut lists = PrpLists::of(&port, 1, 64 << 10).unwrap();
        lists.point(&mut sqe, 0, read(Payload::At(at), 512), (port.memory(), false)).unwrap();
    }
}
