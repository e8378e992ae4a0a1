//! [`Ftl`]: requests in, flash operations out.

use std::collections::VecDeque;
use std::io;

use clock::Nanos;
use nvme::Status;

use crate::checkpoint::Checkpoint;
use crate::collect::Collector;
use crate::counting::Counting;
use crate::drive_map::DriveMap;
use crate::durable::{Trims, Waiter, Waiting};
use crate::fetch::{Demand, Fetches};
use crate::flash::OpKind;
use crate::frames::Frames;
use crate::issued::Issued;
use crate::journal::Journal;
use crate::lines::{LOST, Lines, NONE, OpenLine};
use crate::map_page::MapPage;
use crate::metadata::Metadata;
use crate::paging::Paging;
use crate::refresh::Refresher;
use crate::reverse::Reverse;
use crate::write_ring::{UnitState, WriteRing};
use crate::yielding::Yielding;
use crate::{
    CapacityError, Entry, Flash, Found, FtlConfig, FtlStats, Layout, Location, Map, OpId,
    RateLimiter, ReadTarget, Shape,
};

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The request's tag.
    pub tag: u64,
    /// How it ended.
    pub status: Status,
}

/// Which ring: the user's, or garbage collection's.
pub(crate) const USER: usize = 0;
pub(crate) const GC: usize = 1;
/// The stream of what static wear levelling moves; it has no ring of its own.
pub(crate) const COLD: usize = 2;
/// The stream of pages of a map in frames, which are written so often that whatever is beside them would
/// be moved again and again; they have no ring of their own either.
pub(crate) const PAGES: usize = 3;
/// Streams: each has open lines of its own.
pub(crate) const STREAMS: usize = 4;

/// Requests whose map words are looked at together.
const LOOK_AHEAD: usize = 32;

/// Trimmed sectors per [`Ftl::kick`] at most, so that a trim of a whole drive stops nobody.
const TRIM_SLICE: u32 = 1 << 16;

#[derive(Clone, Copy, Debug)]
enum PendingKind {
    Write,
    Zeroes,
    Trim,
}

/// A request that changes the map, admitted in order of arrival.
#[derive(Clone, Copy, Debug)]
struct Pending {
    kind: PendingKind,
    tag: u64,
    lba: u32,
    done: u32,
    sectors: u32,
    durable: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct UserRead {
    tag: u64,
    outstanding: u32,
    status: Status,
    lba: u32,
    sectors: u32,
    /// The next sector that is looked up, when its page of the map is there.
    next: u32,
    /// Another read that waits for the same page.
    pub(crate) behind: u32,
}

/// A page-mapped translation layer. See the crate's first page for the path of a request.
#[derive(Debug)]
pub struct Ftl {
    pub(crate) shape: Shape,
    pub(crate) config: FtlConfig,
    pub(crate) layout: Layout,
    pub(crate) map: Map,
    pub(crate) reverse: Reverse,
    pub(crate) lines: Lines,
    pub(crate) rings: [WriteRing; 2],
    /// Open lines by stream: users' (and everybody's without hot/cold separation), moved data's, cold
    /// data's that is moved for the sake of wear, pages' of the map.
    pub(crate) open: [VecDeque<OpenLine>; STREAMS],
    pub(crate) collector: Collector,
    pub(crate) yielding: Yielding,
    /// Parallel units that a stream is written to at a time, of those that a line has.
    pub(crate) active: u32,
    pub(crate) limiter: RateLimiter,
    pub(crate) journal: Journal,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) metadata: Metadata,
    /// Set if the drive keeps the map.
    pub(crate) drive_map: Option<Box<DriveMap>>,
    pub(crate) programs_on: Vec<u8>,
    pub(crate) programs: u32,
    /// Streams without a place for a write unit until a program or an erase has ended.
    pub(crate) blocked: [bool; STREAMS],
    pub(crate) stats: FtlStats,
    pub(crate) issued: Issued,
    pending: VecDeque<Pending>,
    /// Of them, those in front whose map words have been looked at.
    looked_at: usize,
    pub(crate) reads: Vec<UserRead>,
    free_reads: Vec<u32>,
    /// Requests that wait for a position of the user's ring to become durable, in order of it.
    pub(crate) waiting: VecDeque<Waiting>,
    pub(crate) completed: VecDeque<Done>,
    addresses: Vec<(u32, u32)>,
    /// Chunks with padding from outside of the rings under way.
    pub(crate) padded: Vec<u32>,
    /// Units whose program failed and which must be written again before any other.
    pub(crate) retry: VecDeque<(usize, u32)>,
    /// Map pages that somebody who flushes waits for, and how many sectors had been trimmed when each
    /// last was; 0 if it need not be written for that.
    pub(crate) trimmed_pages: Vec<u32>,
    pub(crate) trimmed_again: Vec<u32>,
    pub(crate) trimmed_at: Vec<u64>,
    /// Mapped sectors that have been trimmed.
    pub(crate) trimmed: u64,
    /// Position of the user's ring behind the last map page.
    pub(crate) pages_at: u64,
    /// Requests among those waiting: begun units are padded for them.
    pub(crate) urgent: u32,
    /// Those of them that only wait for losses to be recorded.
    pub(crate) held: VecDeque<u64>,
    pub(crate) refresher: Refresher,
    /// Parallel units on which something could not be read.
    pub(crate) suspect_pus: Vec<bool>,
    /// What is under way between the media and the map's frames, if it has any, and who waits for it.
    pub(crate) fetches: Fetches,
    pub(crate) paging: Paging,
    /// Pages of the map that have not been looked at since the recovery.
    pub(crate) counting: Counting,
}

impl Ftl {
    /// A layer over erased flash: `found` says which chunks it may use, those that are
    /// [`Found::Free`].
    ///
    /// # Errors
    /// [`crate::CapacityError`], or what `mmap(2)` returns for the tables.
    pub fn new(
        shape: Shape,
        config: FtlConfig,
        found: impl Fn(u32) -> Found,
    ) -> Result<Ftl, NewFtlError> {
        Ftl::over(shape, config, &(0..shape.total_chunks()).map(found).collect::<Vec<_>>(), None)
    }

    /// The same over erased flash of a drive that keeps the map: write units are numbered `from` or
    /// more, and no trim that the drive knows of has as large a number.
    ///
    /// # Errors
    /// As [`new`](Ftl::new).
    pub fn new_with_drive_map(
        shape: Shape,
        config: FtlConfig,
        found: impl Fn(u32) -> Found,
        from: u64,
    ) -> Result<Ftl, NewFtlError> {
        let found: Vec<Found> = (0..shape.total_chunks()).map(found).collect();
        Ftl::over(shape, config, &found, Some(from.max(1)))
    }

    fn over(
        shape: Shape,
        config: FtlConfig,
        found: &[Found],
        drive_map_from: Option<u64>,
    ) -> Result<Ftl, NewFtlError> {
        // Its recovery does not ask for lines.
        let line_metadata = config.line_metadata && drive_map_from.is_none();
        let config = FtlConfig { line_metadata, ..config };
        if drive_map_from.is_some() && config.map_cache_sectors > 0 {
            return Err(CapacityError::MapCacheOfDriveMap.into());
        }
        let good = |chunk: &u32| found[*chunk as usize] == Found::Free;
        let counted = (0..shape.total_chunks()).filter(good).count() as u32;
        let layout = Layout::of(&shape, &config, owned(found), counted)?;
        let reserved = reserved(&shape, found, layout.journal);
        let chunks: Vec<u32> = reserved.iter().copied().filter(good).collect();
        let wanted = layout.journal_config(drive_map_from.is_some());
        let journal = Journal::create(&shape, wanted, &chunks).map_err(CapacityError::Journal)?;
        let mut ftl = Ftl::empty(shape, config, layout, journal)?;
        for chunk in (0..shape.total_chunks()).filter(good) {
            if !reserved.contains(&chunk) {
                ftl.lines.add_free(chunk);
            }
        }
        if let Some(from) = drive_map_from {
            ftl.issued = Issued::from(from);
            ftl.drive_map = Some(Box::new(DriveMap::new(&shape, &layout, from, &[])));
        }
        // So that the journal is of this layer before a line is.
        ftl.want_compaction();
        Ok(ftl)
    }

    /// A layer without any chunk, for recovery to fill.
    pub(crate) fn empty(
        shape: Shape,
        config: FtlConfig,
        layout: Layout,
        journal: Journal,
    ) -> io::Result<Ftl> {
        let user = WriteRing::new(&shape, layout.user_units, 0);
        let gc = WriteRing::new(&shape, layout.gc_units, user.capacity());
        let line = u64::from(layout.line_sectors);
        // Open room is counted as free; of garbage collection's stream up to a line is not users'.
        let low = u64::from(config.reserve_lines.max(1) + u32::from(config.hot_cold)) * line
            + u64::from(layout.slack)
            + u64::from(layout.map_spare);
        // Garbage collection must be able to reach where it stops, with every sector mapped.
        let zone = u64::from(config.gc_start_lines.max(1)) * line;
        let high = low + zone.min(u64::from(layout.spare - layout.map_spare) / 2);
        let first_slot = user.capacity() + gc.capacity() + shape.unit;
        let map = match layout.map_frames {
            0 => Map::new(layout.logical + layout.meta)?,
            n => Map::in_frames(Frames::new(&shape, layout.logical, layout.meta, n))?,
        };
        Ok(Ftl {
            fetches: Fetches::new(&shape, &layout, first_slot),
            paging: Paging::new(&shape),
            counting: Counting::default(),
            map,
            reverse: Reverse::new(shape.total_sectors(), config.reverse_map)?,
            lines: Lines::new(shape, &layout, &config),
            collector: Collector::new(&layout),
            yielding: Yielding::new(&shape, config.gc_yields),
            active: layout.active,
            limiter: RateLimiter::new(low, high, user.capacity(), config.rate_limiter),
            journal,
            checkpoint: Checkpoint::new(layout.meta, layout.checkpoint_sectors, 0, 1),
            metadata: Metadata::default(),
            drive_map: None,
            rings: [user, gc],
            open: Default::default(),
            programs_on: vec![0; shape.pus as usize],
            programs: 0,
            blocked: [false; STREAMS],
            stats: FtlStats::default(),
            issued: Issued::from(1),
            pending: VecDeque::new(),
            looked_at: 0,
            reads: Vec::new(),
            free_reads: Vec::new(),
            waiting: VecDeque::new(),
            completed: VecDeque::new(),
            addresses: Vec::with_capacity(64),
            padded: Vec::new(),
            retry: VecDeque::new(),
            trimmed_pages: Vec::new(),
            trimmed_again: Vec::new(),
            trimmed_at: vec![0; layout.meta as usize],
            trimmed: 0,
            pages_at: 0,
            urgent: 0,
            held: VecDeque::new(),
            refresher: Refresher::default(),
            suspect_pus: vec![false; shape.pus as usize],
            shape,
            config,
            layout,
        })
    }

    /// Learns how often each chunk has been erased; counted from here on. Wear levelling and
    /// [`VictimPolicyKind::Cost`](crate::VictimPolicyKind) go by it.
    pub fn learn_wear(&mut self, erases: impl Fn(u32) -> u32) {
        self.lines.learn_wear(erases);
    }

    /// How often a chunk has been erased, as far as is known; 0 for one that there is not.
    pub fn wear_of(&self, chunk: u32) -> u32 {
        self.lines.chunks.get(chunk as usize).map_or(0, |c| c.erases)
    }

    /// Sectors that users see.
    pub fn sectors(&self) -> u64 {
        self.layout.logical.into()
    }

    /// What the configuration made of the flash.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The flash as the layer sees it.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Counters.
    pub fn stats(&self) -> &FtlStats {
        &self.stats
    }

    /// Slots of the write buffer: the rings', then a write unit that is never written to and must be
    /// zeros, then those that pages of the map are read into, those of lines' metadata, and the
    /// journal's.
    pub fn slots(&self) -> u32 {
        let rings = self.rings[USER].capacity() + self.rings[GC].capacity();
        let meta = self.fetches.slots() + self.metadata_slots();
        rings + self.shape.unit + meta + Ftl::journal_slots(&self.shape)
    }

    /// Sectors of the users' write buffer that are in use.
    pub fn buffered(&self) -> u32 {
        self.rings[USER].used()
    }

    /// Free lines, those being erased included, in whole lines and fractions of the open ones.
    pub fn free_lines(&self) -> f64 {
        self.free_sectors() as f64 / f64::from(self.layout.line_sectors)
    }

    /// Logical sectors that are mapped. With a map in frames at most: after a recovery those of a page
    /// count in full until it has been looked at, and for ever those of a page that was lost.
    pub fn mapped(&self) -> u64 {
        self.map.mapped + self.counting.sectors_at_most(&self.shape)
    }

    /// Where a logical sector is; `None` when its page of the map is not in memory.
    ///
    /// # Panics
    /// When it is not one of the users' sectors.
    #[inline]
    pub fn location(&self, lba: u64) -> Option<Location> {
        assert!(self.in_range(lba, 1));
        let lba = lba as u32;
        self.map.has_page(self.shape.map_page_of(lba)).then(|| self.map.get(lba))
    }

    /// Whether nothing is outstanding: no request, and no operation of the flash. Moved sectors may
    /// still wait for others to fill their write unit.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
            && self.urgent == 0
            && self.completed.is_empty()
            && self.free_reads.len() == self.reads.len()
            && self.programs == 0
            && self.lines.erasing == 0
            && !self.collector.is_moving()
            && self.journal.is_idle()
            && self.metadata.is_idle()
            && !self.drive_map.as_ref().is_some_and(|m| m.is_telling())
            && !self.is_checkpointing()
            && self.fetches.under_way() == 0
            && !self.counting.is_counting()
    }

    /// Takes a request that has ended.
    #[inline]
    pub fn take_done(&mut self) -> Option<Done> {
        self.completed.pop_front()
    }

    /// Sectors that can be written, now or when erases under way have ended, less those that have
    /// been promised: what is admitted has its space.
    #[inline]
    pub(crate) fn free_sectors(&self) -> u64 {
        let chunks = self.lines.free_chunks() + self.lines.erasing;
        self.space(chunks).saturating_sub(self.rings[USER].unmapped())
    }

    /// Sectors for data of this many chunks, however they become lines, and of the room in open lines.
    pub(crate) fn space(&self, chunks: u32) -> u64 {
        let meta = match self.layout.line_meta {
            0 => 0,
            units => u64::from(chunks / self.layout.active * units) * u64::from(self.shape.unit),
        };
        let open: u32 = self.open.iter().flatten().map(|o| o.room).sum();
        u64::from(chunks) * u64::from(self.shape.sectors) - meta
            + u64::from(open) * u64::from(self.shape.unit)
    }

    /// Whether garbage collection may place a write unit: not in the space that users' admitted
    /// data needs, because lines that are drained already may wait for that data to be durable.
    pub(crate) fn spares_a_unit(&self) -> bool {
        let unit = u64::from(self.shape.unit);
        let promised = self.rings[USER].unmapped().next_multiple_of(unit) + unit;
        self.space(self.lines.free_chunks()) >= promised
    }

    fn in_range(&self, lba: u64, sectors: u32) -> bool {
        lba.checked_add(sectors.into()).is_some_and(|end| end <= self.sectors())
    }

    #[inline]
    pub(crate) fn complete(&mut self, tag: u64, status: Status) {
        self.completed.push_back(Done { tag, status });
    }

    /// Users' reads that wait for the flash.
    #[inline]
    pub(crate) fn reads_under_way(&self) -> usize {
        self.reads.len() - self.free_reads.len()
    }

    /// Whether a request has ended that [`take_done`](Ftl::take_done) has not returned yet.
    #[inline]
    pub fn has_done(&self) -> bool {
        !self.completed.is_empty()
    }

    /// Reads `sectors` from `lba` into the memory of request `tag`.
    #[inline]
    pub fn read(&mut self, now: Nanos, tag: u64, lba: u64, sectors: u32, flash: &mut impl Flash) {
        if !self.in_range(lba, sectors) {
            return self.complete(tag, Status::LBA_OUT_OF_RANGE.do_not_retry());
        }
        self.stats.user_reads += u64::from(sectors);
        if sectors == 1
            && self.map.frames.is_none()
            && let Location::Flash(psn) = self.map.get(lba as u32)
            && !self.reverse.poisoned(psn)
        {
            let index = self.begin_read(tag, lba as u32, 1);
            let op = OpId::new(OpKind::UserRead, index);
            return flash.read(now, op, &[(psn, 0)], ReadTarget::Request(tag));
        }
        self.read_many(now, tag, lba, sectors, flash);
    }

    /// Notes a read of one operation.
    #[inline]
    fn begin_read(&mut self, tag: u64, lba: u32, sectors: u32) -> u32 {
        let read = UserRead {
            tag,
            outstanding: 1,
            status: Status::SUCCESS,
            lba,
            sectors,
            next: sectors,
            behind: NONE,
        };
        match self.free_reads.pop() {
            Some(index) => {
                self.reads[index as usize] = read;
                index
            }
            None => {
                self.reads.push(read);
                (self.reads.len() - 1) as u32
            }
        }
    }

    /// A read of anything.
    fn read_many(&mut self, now: Nanos, tag: u64, lba: u64, sectors: u32, flash: &mut impl Flash) {
        let index = self.begin_read(tag, lba as u32, sectors);
        let read = UserRead { outstanding: 0, next: 0, ..self.reads[index as usize] };
        if !self.look_up(now, index, read, Demand::Idle, flash) {
            // Room for the page must be made, or it must be waited for.
            self.paging.read_waits(index);
            self.kick(now, flash);
        }
    }

    /// Looks up what is left of a read, and reads that. `false` if it needs a page of the map that
    /// cannot be had as `demand` asks for it; the caller sees to the read then.
    #[inline]
    fn look_up(
        &mut self,
        now: Nanos,
        index: u32,
        mut read: UserRead,
        demand: Demand,
        flash: &mut impl Flash,
    ) -> bool {
        let (tag, lba) = (read.tag, read.lba);
        let op = OpId::new(OpKind::UserRead, index);
        let mut addresses = std::mem::take(&mut self.addresses);
        let mut waits = None;
        while read.next < read.sectors {
            let (first, left) = (read.next, read.sectors - read.next);
            let run = match self.map_run(now, lba + first, left, demand, flash) {
                Ok(run) => run,
                Err(fetch) => {
                    waits = Some(fetch);
                    break;
                }
            };
            for i in first..first + run {
                match self.map.get(lba + i) {
                    Location::Unmapped => {
                        self.stats.unmapped_reads += 1;
                        flash.give_zeroes(tag, i);
                    }
                    Location::Buffer(slot) => {
                        self.stats.buffer_hits += 1;
                        if self.entry(slot).poison {
                            read.status = Status::UNRECOVERED_READ;
                        }
                        flash.give(tag, i, slot);
                    }
                    Location::Flash(psn) => {
                        if self.reverse.poisoned(psn) {
                            read.status = Status::UNRECOVERED_READ;
                            continue;
                        }
                        addresses.push((psn, i));
                        if addresses.len() == 64 {
                            flash.read(now, op, &addresses, ReadTarget::Request(tag));
                            read.outstanding += 1;
                            addresses.clear();
                        }
                    }
                    Location::Lost => read.status = Status::UNRECOVERED_READ,
                }
            }
            read.next = first + run;
        }
        if !addresses.is_empty() {
            flash.read(now, op, &addresses, ReadTarget::Request(tag));
            read.outstanding += 1;
            addresses.clear();
        }
        self.addresses = addresses;
        if waits.is_none() && read.outstanding == 0 {
            self.free_reads.push(index);
            self.complete(tag, read.status);
            return true;
        }
        // The page counts as something outstanding.
        read.outstanding += u32::from(waits.is_some());
        self.reads[index as usize] = read;
        match waits {
            Some(Some(fetch)) => self.fetches.wait_for(fetch, index, &mut self.reads),
            Some(None) => return false,
            None => {}
        }
        true
    }

    /// Goes on with a read whose page of the map is there, or may be asked for now; `false` as of
    /// [`look_up`](Ftl::look_up).
    pub(crate) fn go_on_with_read(
        &mut self,
        now: Nanos,
        index: u32,
        demand: Demand,
        flash: &mut impl Flash,
    ) -> bool {
        let mut read = self.reads[index as usize];
        read.outstanding -= 1;
        self.look_up(now, index, read, demand, flash)
    }

    #[inline]
    pub(crate) fn entry(&self, slot: u32) -> &Entry {
        self.rings[usize::from(slot >= self.rings[USER].capacity())].entry(slot)
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, slot: u32) -> &mut Entry {
        let ring = usize::from(slot >= self.rings[USER].capacity());
        self.rings[ring].entry_mut(slot)
    }

    /// Writes `sectors` at `lba`; the data is taken from request `tag` during a
    /// [`kick`](Ftl::kick). Completes when it is in the write buffer, or with `durable` when it is
    /// on the media.
    #[inline]
    pub fn write(&mut self, tag: u64, lba: u64, sectors: u32, durable: bool) {
        self.enqueue(PendingKind::Write, tag, lba, sectors, durable);
    }

    /// Writes zeros, as mapped sectors.
    pub fn write_zeroes(&mut self, tag: u64, lba: u64, sectors: u32, durable: bool) {
        self.enqueue(PendingKind::Zeroes, tag, lba, sectors, durable);
    }

    /// Unmaps sectors. The trim is as durable as a buffered write: a flush makes it so. Of a map in
    /// frames one may end with [`Status::CAPACITY_EXCEEDED`], when nothing can be written any more so that
    /// a page could come for one that goes.
    pub fn trim(&mut self, tag: u64, lba: u64, sectors: u32) {
        self.enqueue(PendingKind::Trim, tag, lba, sectors, false);
    }

    #[inline]
    fn enqueue(&mut self, kind: PendingKind, tag: u64, lba: u64, sectors: u32, durable: bool) {
        if !self.in_range(lba, sectors) {
            return self.complete(tag, Status::LBA_OUT_OF_RANGE.do_not_retry());
        }
        self.pending.push_back(Pending { kind, tag, lba: lba as u32, done: 0, sectors, durable });
    }

    /// Puts one sector into the user's ring and points the map at it.
    #[inline]
    pub(crate) fn admit(&mut self, lba: u32) -> u32 {
        let slot = self.rings[USER].next_slot();
        let old = self.map.set(lba, Location::Buffer(slot));
        if let Location::Flash(psn) = old {
            self.lines.invalidate(psn, Some(self.rings[USER].position() + 1));
        }
        let (under, under_sequence) = self.newest_on_media(old);
        let trim = self.trim_before(lba, old);
        let entry = Entry { lba_plus_1: lba + 1, poison: false, under, under_sequence, trim };
        let slot = self.rings[USER].push(entry, false);
        self.map.hold(lba);
        slot
    }

    /// The write unit of a slot.
    pub(crate) fn unit_of(&self, slot: u32) -> &crate::write_ring::Unit {
        let ring = &self.rings[usize::from(slot >= self.rings[USER].capacity())];
        &ring.units[ring.unit_of_slot(slot)]
    }

    /// The newest copy on the media of a sector that is here, [`NONE`] or [`LOST`]; and the number
    /// below which no unit holds a newer one.
    #[inline]
    pub(crate) fn newest_on_media(&self, at: Location) -> (u32, u64) {
        match at {
            Location::Unmapped => (NONE, self.issued.next()),
            Location::Lost => (LOST, self.issued.next()),
            Location::Flash(psn) => (psn, self.issued.next()),
            Location::Buffer(slot) => {
                let ring = &self.rings[usize::from(slot >= self.rings[USER].capacity())];
                let unit = &ring.units[ring.unit_of_slot(slot)];
                if unit.state >= UnitState::Persisted {
                    let psn = self.shape.first_psn(unit.chunk) + unit.sector;
                    return (psn + ring.place_in_unit(slot), unit.sequence);
                }
                let entry = ring.entry(slot);
                (entry.under, entry.under_sequence)
            }
        }
    }

    /// Admits, maps, programs and collects as far as possible. Call it after a batch of requests
    /// and after operations are done.
    pub fn kick(&mut self, now: Nanos, flash: &mut impl Flash) {
        loop {
            let kept = self.yielding.keeps();
            let fetched = self.end_fetches(now, flash);
            let admitted = self.admit_pending(now, flash);
            if self.pads() {
                self.complete_durable(now, flash);
                self.pad(flash);
            }
            let mapped = self.program_ready(now, flash);
            let collected = !self.counting.is_counting() && self.collect(now, flash);
            let checkpointed = self.go_on_with_checkpoint(now, flash);
            let fetched = self.start_fetches(now, flash) || fetched;
            // As long as something is kept back users need not earn what they write.
            let keeps_now = self.yielding.keeps() && !kept;
            let moved = admitted || mapped || collected || checkpointed || fetched || keeps_now;
            if !moved && !self.unstick(now, flash) {
                break;
            }
        }
        let free = self.free_sectors();
        self.limiter.observe(now, free);
        if self.fail_if_full() {
            self.kick(now, flash);
        }
    }

    /// Looks at what the map says of sectors that are about to be looked up, one after the other: here
    /// the cache misses overlap, there each would be waited for.
    #[inline]
    pub fn look_at(&self, lbas: impl Iterator<Item = u64>) {
        let mut seen = 0;
        for lba in lbas {
            seen ^= self.map.look(lba).unwrap_or(0);
        }
        std::hint::black_box(seen);
    }

    /// The same for what is about to be admitted, and for the lines that it is to be taken from.
    #[inline]
    fn look_at_pending(&mut self) {
        let mut seen = 0;
        let end = self.pending.len().min(LOOK_AHEAD);
        for p in self.pending.range(self.looked_at.min(end)..end) {
            if let Some(psn) = self.map.look((p.lba + p.done).into()) {
                seen ^= self.lines.line_of[self.shape.chunk_of(psn) as usize];
            }
        }
        self.looked_at = end;
        std::hint::black_box(seen);
    }

    fn admit_pending(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        let mut moved = false;
        if self.pending.is_empty() {
            return false;
        }
        // Nothing here changes any of these but what is admitted, by as much; and pages of the map that
        // go, which are looked for.
        let (mut free, mut slots) = (self.free_sectors(), self.rings[USER].free());
        let idle = !self.collector.is_moving();
        while let Some(&(mut p)) = self.pending.front() {
            if self.looked_at == 0 {
                self.look_at_pending();
            }
            let left = p.sectors - p.done;
            let took = match p.kind {
                PendingKind::Trim => {
                    self.trim_slice(now, p.lba + p.done, left.min(TRIM_SLICE), flash)
                }
                PendingKind::Write | PendingKind::Zeroes => {
                    let room = left.min(slots);
                    let n = match self.spares_while_kept_back(free) {
                        Some(spare) if !idle => room.min(spare),
                        _ => self.limiter.admits(room, free, idle),
                    };
                    let n = match n {
                        0 => 0,
                        n => self.map_change(now, p.lba + p.done, n, WriteRing::free, flash),
                    };
                    if self.map.frames.is_some() {
                        (free, slots) = (self.free_sectors(), self.rings[USER].free());
                    }
                    for i in p.done..p.done + n {
                        let slot = self.admit(p.lba + i);
                        match p.kind {
                            PendingKind::Write => flash.take(p.tag, i, slot),
                            _ => flash.store(slot, &[]),
                        }
                    }
                    self.limiter.spend(n, free);
                    (free, slots) = (free.saturating_sub(n.into()), slots - n);
                    self.stats.user_writes += u64::from(n);
                    if n > 0 {
                        self.collector.renew();
                    }
                    n
                }
            };
            p.done += took;
            moved |= took > 0;
            if p.done < p.sectors {
                self.pending[0] = p;
                // A trim goes on next time round; a write waits for room.
                return moved;
            }
            self.pending.pop_front();
            self.looked_at -= 1;
            if p.durable {
                self.wait_durable(Waiter::Request(p.tag), Trims::None);
            } else {
                self.complete(p.tag, Status::SUCCESS);
            }
            moved = true;
        }
        moved
    }

    /// The sectors that the `i`-th waiting request that changes the map has still to do: the first one
    /// and the end.
    pub(crate) fn pending_sectors(&self, i: usize) -> Option<(u32, u32)> {
        self.pending.get(i).map(|p| (p.lba + p.done, p.lba + p.sectors))
    }

    fn trim_slice(&mut self, now: Nanos, lba: u32, sectors: u32, flash: &mut impl Flash) -> u32 {
        let Some(frames) = &self.map.frames else { return self.trim_words(lba, sectors) };
        // Page by page.
        let run = frames.run(lba, sectors);
        if !self.holds_nothing(frames.page_of(lba).unwrap_or(0)) {
            let run = self.map_change(now, lba, sectors, |_| u32::MAX, flash);
            return self.trim_words(lba, run);
        }
        run
    }

    fn trim_words(&mut self, lba: u32, sectors: u32) -> u32 {
        if sectors > 0 {
            self.collector.renew();
        }
        let page = MapPage::count(&self.shape);
        let mut at = lba;
        while at < lba + sectors {
            // Skip what is not mapped without asking for every sector.
            let rest = self.map.words(at, lba + sectors - at);
            let Some(skip) = rest.iter().position(|w| *w != 0) else { break };
            at += skip as u32;
            if let Location::Flash(psn) = self.map.set(at, Location::Unmapped) {
                self.lines.invalidate(psn, None);
            }
            self.stats.trimmed += 1;
            self.trimmed += 1;
            let p = at / page;
            if std::mem::replace(&mut self.trimmed_at[p as usize], self.trimmed) == 0 {
                self.trimmed_pages.push(p);
            }
            match &mut self.drive_map {
                Some(map) => map.trimmed(at),
                None => self.checkpoint.touch(p),
            }
            at += 1;
        }
        sectors
    }

    /// A read has ended; [`kick`](Ftl::kick) afterwards if something may follow from it (`true`): it
    /// was not a user's, it failed, or something was kept back for users' reads. Bit `i` of `failed`
    /// stands for the `i`-th address of the call.
    #[inline]
    pub fn read_done(&mut self, op: OpId, failed: u64, flash: &mut impl Flash) -> bool {
        match op.kind() {
            OpKind::GcRead => {
                self.gc_read_done(op.index(), failed, flash);
                return true;
            }
            OpKind::MapRead => {
                self.map_read_done(op.index(), failed, flash);
                return true;
            }
            _ => {}
        }
        if op.kind() == OpKind::Meta {
            self.metadata_read_done(op.index(), failed, flash);
            return true;
        }
        let index = op.index();
        let read = &mut self.reads[index as usize];
        if failed != 0 {
            read.status = Status::UNRECOVERED_READ;
        }
        read.outstanding -= 1;
        let read = *read;
        if read.outstanding == 0 {
            self.free_reads.push(index);
            self.completed.push_back(Done { tag: read.tag, status: read.status });
        }
        if failed != 0 {
            self.read_failed(read.lba, read.sectors);
        }
        failed != 0 || self.yielding.keeps()
    }

    /// Fails what can never go on: writes without space and flushes of data without space, when
    /// nothing is under way that would give any back. Returns whether a trim that waited behind
    /// failed writes can go on now.
    fn fail_if_full(&mut self) -> bool {
        if self.pending.is_empty() && self.urgent == 0 {
            return false;
        }
        let under_way = self.lines.erasing > 0
            || self.collector.reading() > 0
            || self.programs > 0
            || self.fetches.under_way() > 0
            || !self.journal.is_idle()
            || self.yielding.keeps() && self.reads_under_way() > 0
            || self.drive_map.as_ref().is_some_and(|m| m.is_telling());
        if under_way {
            return false;
        }
        let mut failed = false;
        while let Some(p) = self.pending.front() {
            // One that was first has had its chance, if it needs a page that has no room.
            if matches!(p.kind, PendingKind::Trim) && (failed || self.may_change(p.lba + p.done)) {
                return true;
            }
            let tag = p.tag;
            failed = true;
            self.pending.pop_front();
            self.looked_at = self.looked_at.saturating_sub(1);
            self.complete(tag, Status::CAPACITY_EXCEEDED);
        }
        for i in (0..self.waiting.len()).rev() {
            if let Waiter::Request(tag) = self.waiting[i].waiter {
                self.waiting.remove(i);
                self.urgent -= 1;
                self.complete(tag, Status::CAPACITY_EXCEEDED);
            }
        }
        self.end_held(Status::CAPACITY_EXCEEDED);
        false
    }

    /// The state of the sectors from `lba` on: mapped or not, and for how many of `sectors`. Those of a
    /// page of the map that is not in memory count as mapped, unless it was never written: nobody
    /// waits here.
    ///
    /// # Panics
    /// When the range is not within the users' sectors.
    pub fn extent(&self, lba: u64, sectors: u32) -> (bool, u32) {
        assert!(self.in_range(lba, sectors) && sectors > 0);
        if self.map.frames.is_some() {
            return self.extent_in_frames(lba as u32, sectors);
        }
        let words = self.map.words(lba as u32, sectors);
        let mapped = words[0] != 0;
        let end = words.iter().position(|w| (*w != 0) != mapped);
        (mapped, end.map_or(sectors, |e| e as u32))
    }
}

/// Chunks that are this layer's, bad ones included.
pub(crate) fn owned(found: &[Found]) -> u32 {
    found.iter().filter(|f| **f != Found::Foreign).count() as u32
}

/// The chunks reserved for the journal: the layer's first ones on each parallel unit, in striping
/// order, bad ones included, so that they are the same whatever goes bad.
pub(crate) fn reserved(shape: &Shape, found: &[Found], count: u32) -> Vec<u32> {
    let pus = || (0..shape.pus).map(|i| shape.striped_pu(i));
    let by_number = (0..shape.chunks).flat_map(|n| pus().map(move |pu| pu * shape.chunks + n));
    let own = by_number.filter(|c| found[*c as usize] != Found::Foreign);
    own.take(count as usize).collect()
}

/// Why a layer could not be started.
#[derive(Debug, thiserror::Error)]
pub enum NewFtlError {
    /// The flash cannot host it.
    #[error(transparent)]
    Capacity(#[from] crate::CapacityError),
    /// No memory for the tables.
    #[error("no memory for the mapping tables: {0}")]
    Memory(#[from] io::Error),
}

impl Ftl {
    /// What the layer has and waits for, for a bug report.
    pub fn debug_state(&self) -> String {
        let lines = self.lines.lines.iter().enumerate();
        let lines: Vec<String> = lines
            .filter(|(_, l)| l.state != crate::lines::LineState::Free)
            .map(|(i, l)| format!("{i} {:?} {} of {}", l.state, l.valid, l.sectors))
            .collect();
        let open = self.open.each_ref();
        let open = open.map(|o| o.iter().map(|l| (l.line, l.room)).collect::<Vec<_>>());
        format!(
            "free {} sectors (share {:.2}), {} free chunks, {} erasing, pending {:?}, waiting {:?}, \
             user ring durable {} of {}, free {}; gc ring ready {:?}, free {}; open {open:?}; {:?}; \
             journal failed {:?}; {:?}, fetches {:?}, {:?}; lines: {}",
            self.free_sectors(),
            self.limiter.share(self.free_sectors()),
            self.lines.free_chunks(),
            self.lines.erasing,
            self.pending.front(),
            self.waiting.front(),
            self.rings[USER].durable(),
            self.rings[USER].position(),
            self.rings[USER].free(),
            self.rings[GC].ready(),
            self.rings[GC].free(),
            self.collector,
            self.journal.failed(),
            self.map_cache(),
            self.fetches,
            self.paging,
            lines.join(", "),
        )
    }
}
