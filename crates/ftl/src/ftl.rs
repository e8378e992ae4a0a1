//! [`Ftl`]: requests in, flash operations out.

use std::collections::VecDeque;
use std::io;

use clock::Nanos;
use nvme::Status;

use crate::admit::Pending;
use crate::again::Again;
use crate::checkpoint::Checkpoint;
use crate::collect::Collector;
use crate::counting::Counting;
use crate::drive_map::DriveMap;
use crate::durable::Waiting;
use crate::ending::Ending;
use crate::fetch::Fetches;
use crate::frames::Frames;
use crate::issued::Issued;
use crate::journal::Journal;
use crate::lines::{LOST, Lines, NONE};
use crate::metadata::Metadata;
use crate::open_line::OpenLine;
use crate::paging::Paging;
use crate::program::Padding;
use crate::read::UserRead;
use crate::refresh::Refresher;
use crate::reverse::Reverse;
use crate::salvage::Salvage;
use crate::write_ring::{UnitState, WriteRing};
use crate::yielding::Yielding;
use crate::{
    CapacityError, Entry, Flash, Found, FtlConfig, FtlStats, Layout, Location, Map, RateLimiter,
    Shape,
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

/// A page-mapped translation layer. See the crate's first page for the path of a request.
#[derive(Clone, Debug)]
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
    pub(crate) open: [Vec<OpenLine>; STREAMS],
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
    pub(crate) pending: VecDeque<Pending>,
    /// Sectors that users may write out of the reserve.
    pub(crate) granted: u32,
    /// Of them, those in front whose map words have been looked at.
    pub(crate) looked_at: usize,
    pub(crate) reads: Vec<UserRead>,
    pub(crate) free_reads: Vec<u32>,
    /// Requests that wait for a position of the user's ring to become durable, in order of it.
    pub(crate) waiting: VecDeque<Waiting>,
    pub(crate) completed: VecDeque<Done>,
    pub(crate) addresses: Vec<(u32, u32)>,
    /// Padding from outside of the rings that is under way.
    pub(crate) padded: Vec<Padding>,
    /// Units that are [written again](crate::again), before any other.
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
    pub(crate) again: Again,
    pub(crate) ending: Ending,
    /// Parallel units on which something could not be read.
    pub(crate) suspect_pus: Vec<bool>,
    /// What is under way between the media and the map's frames, if it has any, and who waits for it.
    pub(crate) fetches: Fetches,
    pub(crate) paging: Paging,
    pub(crate) salvage: Salvage,
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
        let config = if drive_map_from.is_some() { config.of_drive_map()? } else { config };
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
        let (low, high) = layout.limiter_levels(&config);
        let first_slot = user.capacity() + gc.capacity() + shape.unit;
        let map = match layout.map_frames {
            0 => Map::new(layout.logical + layout.meta)?,
            n => Map::in_frames(Frames::new(&shape, layout.logical, layout.meta, n))?,
        };
        Ok(Ftl {
            fetches: Fetches::new(&shape, &layout, first_slot),
            paging: Paging::new(&shape),
            salvage: Salvage::default(),
            counting: Counting::default(),
            map,
            reverse: Reverse::new(
                shape.total_sectors(),
                config.reverse_map,
                layout.map_frames > 0,
            )?,
            lines: Lines::new(shape, &layout, &config),
            collector: Collector::new(&layout),
            yielding: Yielding::new(&shape, config.gc_yields),
            active: layout.active,
            limiter: RateLimiter::new(low, high, user.capacity(), config.rate_limiter),
            journal,
            checkpoint: Checkpoint::new(&layout, &config, 1),
            metadata: Metadata::new(&layout),
            drive_map: None,
            rings: [user, gc],
            open: Default::default(),
            programs_on: vec![0; shape.pus as usize],
            programs: 0,
            blocked: [false; STREAMS],
            stats: FtlStats::default(),
            issued: Issued::from(1),
            pending: VecDeque::new(),
            granted: 0,
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
            again: Again::default(),
            ending: Ending::default(),
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
            && !self.salvage.is_scanning()
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
        self.space(chunks).saturating_sub(self.unplaced(USER))
    }

    /// Sectors of a ring that wait for a place on the media, for the first time or again.
    #[inline]
    pub(crate) fn unplaced(&self, ring: usize) -> u64 {
        let unmapped = self.rings[ring].unmapped();
        if self.retry.is_empty() {
            return unmapped;
        }
        let again = self.retry.iter().filter(|(of, _)| *of == ring).count() as u64;
        unmapped + again * u64::from(self.shape.unit)
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
        self.space(self.lines.free_chunks()) >= self.promised() + u64::from(self.shape.unit)
    }

    /// Sectors of free chunks and open lines that are not to be had: for what was admitted, padded to
    /// whole write units, and for the map pages of trims that drained lines may wait for.
    pub(crate) fn promised(&self) -> u64 {
        let unit = u64::from(self.shape.unit);
        let pages = u64::from(self.layout.page_reserve(self.drive_map.is_some()));
        self.unplaced(USER).next_multiple_of(unit) + pages.next_multiple_of(unit)
    }

    /// Whether users may write one unit more although the limiter lets them wait. What was overwritten
    /// in lines that are still open cannot be won back before they are full; when space is short with
    /// all of the rest won back, to write on is what makes there be more. A line, and half of what is
    /// held for power cuts, stays garbage collection's.
    pub(crate) fn spares_for_users(&self) -> bool {
        let unit = u64::from(self.shape.unit);
        let kept = u64::from(self.layout.line_sectors) + u64::from(self.layout.slack / 2);
        self.space(self.lines.free_chunks()) >= self.promised() + unit + kept
    }

    pub(crate) fn in_range(&self, lba: u64, sectors: u32) -> bool {
        lba.checked_add(sectors.into()).is_some_and(|end| end <= self.sectors())
    }

    #[inline]
    pub(crate) fn complete(&mut self, tag: u64, status: Status) {
        tracepoint::trace(|| tracepoint::Event::FtlEnded { tag });
        self.completed.push_back(Done { tag, status });
    }

    /// Whether a request has ended that [`take_done`](Ftl::take_done) has not returned yet.
    #[inline]
    pub fn has_done(&self) -> bool {
        !self.completed.is_empty()
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
            let swept = self.sweep_due(flash);
            let admitted = self.admit_pending(now, flash) || swept;
            if self.pads() {
                self.complete_durable(now, flash);
                self.pad(flash);
            }
            let mapped = self.program_ready(now, flash);
            let collected = !self.counting.is_counting() && self.collect(now, flash);
            let collected = self.go_on_ending(now, flash) || collected;
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
             journal failed {:?}; {:?}, fetches {:?}, {:?}, {:?}; lines: {}",
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
            self.salvage,
            lines.join(", "),
        )
    }
}
