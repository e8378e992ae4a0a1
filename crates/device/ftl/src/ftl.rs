//! [`Ftl`]: requests in, flash operations out.

pub(crate) mod pipeline;
mod restore;

use std::io;

use serde::{Deserialize, Serialize};

use nvme::{ChunkId, Status};

use crate::buffer::WriteBuffer;
use crate::durability::Durability;
use crate::durability::device_l2p::DeviceL2p;
use crate::durability::journal::Journal;
use crate::env::Env;
use crate::gc::Gc;
use crate::geometry::MapPages;
use crate::health::Health;
use crate::ids::{Lba, SlotId, ToIndex, ToU32, WriteSeq};
use crate::mapping::Mapping;
use crate::requests::Requests;
use crate::space::Space;
use crate::space::lines::LineState;
use crate::{
    CapacityError, CapacityPlan, ChunkReport, FlashGeometry, FtlConfig, FtlStats, L2pEntry,
    LimiterSample, RateLimiter, VictimLines,
};

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// Its status.
    pub status: Status,
}

/// Index of the host ring, and of the stream of its data.
pub(crate) const HOST: usize = 0;
/// Index of the ring of garbage collection, and of the stream of relocated data.
pub(crate) const GC: usize = 1;
/// Index of the ring of [`HostStream::Hot`]. Without [`FtlConfig::hot_stream`] it has no slots.
pub(crate) const HOT: usize = 2;
/// The rings of the host, whose entries share one count of positions.
pub(crate) const HOST_RINGS: [usize; 2] = [HOST, HOT];
/// All rings, in the order in which their units are dispatched. The host's come first: admission has
/// limited them already, and victims may wait for their data to be durable.
pub(crate) const RINGS: [usize; 3] = [HOST, HOT, GC];
/// The stream of data relocated for static wear leveling; it uses the GC ring.
pub(crate) const GC_COLD: usize = 2;
/// The stream of translation pages of a map cache. They are rewritten so often that data beside them
/// would be relocated again and again. It uses the host ring.
pub(crate) const MAP_PAGES: usize = 3;
/// The stream of [`HostStream::Hot`].
pub(crate) const HOT_DATA: usize = 4;
/// Streams: each has open lines of its own.
pub(crate) const STREAM_COUNT: usize = 5;

/// The stream of a host write: data of different streams is written to different lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostStream {
    /// The stream of all writes that name no other.
    #[default]
    Host,
    /// Data that the host expects to overwrite soon. Without [`FtlConfig::hot_stream`] it is written
    /// to the stream of the host.
    Hot,
}

impl HostStream {
    /// The ring of a write of this stream.
    #[inline]
    pub(crate) fn ring(self) -> usize {
        match self {
            HostStream::Host => HOST,
            HostStream::Hot => HOT,
        }
    }
}

/// A page-mapped FTL. See the crate's first page for the path of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ftl {
    env: Env,
    requests: Requests,
    mapping: Mapping,
    buffer: WriteBuffer,
    space: Space,
    gc: Gc,
    durability: Durability,
    health: Health,
    stats: FtlStats,
}

impl Ftl {
    /// Creates an FTL over erased flash. `found` says which chunks it may use: those that are
    /// [`ChunkReport::Free`].
    ///
    /// # Errors
    ///
    /// [`crate::CapacityError`], or the error of `mmap(2)` for the tables.
    pub fn new(
        shape: FlashGeometry,
        config: FtlConfig,
        found: impl Fn(ChunkId) -> ChunkReport,
    ) -> Result<Ftl, NewFtlError> {
        let found: Vec<ChunkReport> = shape.chunks().map(found).collect();
        let good = found.iter().filter(|chunk| **chunk == ChunkReport::Free).count();
        Ftl::create(shape, config, &found, good.to_u32(), None)
    }

    /// Creates an FTL over flash that was erased after it had been used. Its capacity is that of a
    /// drive with `good_when_new` good chunks.
    ///
    /// # Errors
    ///
    /// As [`new`](Ftl::new).
    pub fn new_over_used_flash(
        shape: FlashGeometry,
        config: FtlConfig,
        found: impl Fn(ChunkId) -> ChunkReport,
        good_when_new: u32,
    ) -> Result<Ftl, NewFtlError> {
        let found: Vec<ChunkReport> = shape.chunks().map(found).collect();
        Ftl::create(shape, config, &found, good_when_new, None)
    }

    /// Creates an FTL over erased flash whose drive keeps the map. The sequence numbers of write
    /// units start at `from`, which is larger than that of any trim that the drive knows.
    ///
    /// # Errors
    ///
    /// As [`new`](Ftl::new).
    pub fn new_with_device_l2p(
        shape: FlashGeometry,
        config: FtlConfig,
        found: impl Fn(ChunkId) -> ChunkReport,
        from: WriteSeq,
    ) -> Result<Ftl, NewFtlError> {
        let found: Vec<ChunkReport> = shape.chunks().map(found).collect();
        let good = found.iter().filter(|chunk| **chunk == ChunkReport::Free).count();
        Ftl::create(shape, config, &found, good.to_u32(), Some(from.max(WriteSeq(1))))
    }

    fn create(
        shape: FlashGeometry,
        config: FtlConfig,
        found: &[ChunkReport],
        good_when_new: u32,
        drive_map_from: Option<WriteSeq>,
    ) -> Result<Ftl, NewFtlError> {
        let config = if drive_map_from.is_some() { config.for_device_l2p()? } else { config };
        let good = |chunk: &ChunkId| found[chunk.index()] == ChunkReport::Free;
        let layout = CapacityPlan::new(&shape, &config, owned_chunks(found), good_when_new)?;
        let reserved = journal_chunks(&shape, found, layout.journal.chunks);
        let chunks: Vec<ChunkId> = reserved.iter().copied().filter(good).collect();
        let wanted = layout.journal_config(drive_map_from.is_some());
        let journal = Journal::create(&shape, wanted, &chunks).map_err(CapacityError::Journal)?;
        let first_seq = drive_map_from.unwrap_or(WriteSeq(1));
        let device_l2p = drive_map_from.map(|from| DeviceL2p::new(&shape, &layout, from, &[]));
        let env = Env { geometry: shape, pages: MapPages::new(&shape), config, plan: layout };
        let owner_state = vec![0; env.config.owner_bytes.index()];
        let durability = Durability::new(&env, journal, WriteSeq(1), device_l2p, owner_state);
        let mut ftl = Ftl::empty(env, durability, first_seq)?;
        // The journal takes the good ones of its chunks; a bad one belongs to nothing.
        let is_journals = |chunk: &ChunkId| reserved.contains(chunk) && good(chunk);
        for chunk in shape.chunks().filter(|chunk| !is_journals(chunk)) {
            ftl.space.add_chunk(chunk, good(&chunk));
        }
        // The journal must identify this FTL before the first line is opened.
        ftl.durability.request_snapshot();
        Ok(ftl)
    }

    /// Creates an FTL without chunks. Its first unit gets the sequence number `first_seq`.
    fn empty(env: Env, durability: Durability, first_seq: WriteSeq) -> io::Result<Ftl> {
        let buffer = WriteBuffer::new(&env, first_seq);
        let first_slot = SlotId(buffer.capacity() + env.geometry.ws_opt);
        Ok(Ftl {
            requests: Requests::new(),
            mapping: Mapping::new(&env, first_slot)?,
            space: Space::new(&env),
            gc: Gc::new(&env),
            durability,
            health: Health::new(&env),
            stats: FtlStats::default(),
            buffer,
            env,
        })
    }

    /// Imports the erase counts of the chunks, which the FTL counts on. Wear leveling and
    /// [`VictimPolicyKind::CostWear`](crate::VictimPolicyKind) use them.
    pub fn import_wear(&mut self, erases: impl Fn(ChunkId) -> u32) {
        self.space.import_wear(erases);
        self.gc.import_wear(self.space.table());
    }

    /// Returns how often a chunk has been erased, as far as known; 0 for a chunk that does not
    /// exist.
    pub fn wear_of(&self, chunk: ChunkId) -> u32 {
        self.space.table().erases(chunk)
    }

    /// Returns the capacity of the host in sectors.
    pub fn sectors(&self) -> u64 {
        self.env.plan.logical.into()
    }

    /// Returns the configuration.
    pub fn config(&self) -> &FtlConfig {
        &self.env.config
    }

    /// Returns the capacities that follow from the flash and the configuration.
    pub fn capacity_plan(&self) -> &CapacityPlan {
        &self.env.plan
    }

    /// Returns the number of bad chunks: those that were bad when the FTL was new, and those that
    /// failed since. Counts all chunks each time.
    pub fn bad_chunks(&self) -> u32 {
        self.space.bad_chunks()
    }

    /// Returns the geometry of the flash.
    pub fn geometry(&self) -> &FlashGeometry {
        &self.env.geometry
    }

    /// Returns the counters.
    pub fn stats(&self) -> &FtlStats {
        &self.stats
    }

    /// Adds the counters of the FTL that had this flash before, so that they go on after a power cut.
    pub fn add_stats(&mut self, earlier: &FtlStats) {
        self.stats = self.stats.plus(earlier);
    }

    /// Returns the history of the rate limiter since the FTL was started or the history was
    /// [reset](Ftl::reset_limiter_history): at most 512 samples, oldest first, about equally many
    /// written sectors apart.
    pub fn limiter_history(&self) -> &[LimiterSample] {
        self.gc.limiter().history()
    }

    /// Clears the history, and begins a new one of the same density.
    pub fn reset_limiter_history(&mut self) {
        self.gc.reset_limiter_history();
    }

    /// Returns the rate limiter.
    pub fn limiter(&self) -> &RateLimiter {
        self.gc.limiter()
    }

    /// Returns the number of slots of the write buffer: those of the rings, a write unit that is
    /// never written to and must be zeros, those for reads of map pages, those for line metadata,
    /// and the journal's.
    pub fn slots(&self) -> u32 {
        let meta = self.mapping.slots() + self.metadata_slots();
        self.buffer.capacity()
            + self.env.geometry.ws_opt
            + meta
            + Ftl::journal_slots(&self.env.geometry)
    }

    /// Returns the number of used sectors of the host's write buffer.
    pub fn buffered(&self) -> u32 {
        HOST_RINGS.into_iter().map(|ring| self.buffer.ring(ring).used()).sum()
    }

    /// Free lines, those being erased included, in whole lines and fractions of the open ones.
    pub fn free_lines(&self) -> f64 {
        self.free_sectors() as f64 / f64::from(self.env.plan.line_sectors)
    }

    /// Returns the number of mapped logical sectors. With a map in frames this is an upper bound:
    /// after a recovery, all sectors of a page count until it is reconciled, and those of a lost
    /// page always do.
    pub fn mapped(&self) -> u64 {
        self.mapping.mapped_sectors(&self.env.geometry)
    }

    /// Returns the location of a logical sector; `None` if its map page is not in memory. No logical sector is
    /// mapped if sectors have names.
    ///
    /// # Panics
    ///
    /// If it is not a host sector.
    #[inline]
    pub fn location(&self, slba: u64) -> Option<L2pEntry> {
        if self.mapping.is_named() {
            return Some(L2pEntry::Unmapped);
        }
        let lba = self.host_sector(slba, 1).expect("it is a host sector");
        let page = self.env.pages.page_of(lba);
        self.mapping.is_page_resident(page).then(|| self.mapping.get(lba))
    }

    /// Returns the valid sectors of each line that is full and not being reclaimed, in no order.
    pub fn valid_sectors_by_line(&self) -> impl Iterator<Item = u32> {
        let closed = self.space.table().iter();
        closed.filter(|(_, l)| l.state == LineState::Closed).map(|(_, l)| l.valid_sectors)
    }

    /// Returns the facts about the lines that can be a victim of garbage collection.
    pub fn victim_lines(&self) -> VictimLines<'_> {
        self.gc.victim_lines(&self.env, self.space.table(), self.free_sectors())
    }

    /// Returns whether no request and no flash operation is outstanding. Relocated sectors may still
    /// wait for others to fill their write unit.
    pub fn is_idle(&self) -> bool {
        self.requests.writes().is_empty()
            && self.requests.batch().is_empty()
            && !self.durability.barriers().has_host_requests()
            && !self.requests.has_completion()
            && self.requests.reads().in_flight() == 0
            && self.space.programs().total() == 0
            && self.space.erasing() == 0
            && !self.gc.is_relocating()
            && self.durability.journal().is_idle()
            && self.space.metadata().is_idle()
            && !self.durability.is_syncing_trims()
            && !self.is_checkpointing()
            && self.mapping.fetches_in_flight() == 0
            && !self.mapping.reconcile().is_running()
            && !self.mapping.page_rebuild().is_scanning()
    }

    /// Removes and returns the next completed request.
    #[inline]
    pub fn pop_completion(&mut self) -> Option<Completion> {
        self.requests.pop_completion()
    }

    /// Returns the sectors that can be written, now or after the erases in flight, less the
    /// committed ones: admitted data has its space.
    #[inline]
    pub(crate) fn free_sectors(&self) -> u64 {
        let chunks = self.space.free_chunks() + self.space.erasing();
        self.space
            .writable_sectors(&self.env, chunks)
            .saturating_sub(self.buffer.undispatched_host_sectors(&self.env.geometry, 1))
    }

    /// Returns whether garbage collection may place a write unit. It may not use the space of
    /// admitted host data, because drained lines may wait for that data to be durable.
    pub(crate) fn gc_can_place_unit(&self) -> bool {
        self.space.writable_sectors(&self.env, self.space.free_chunks())
            >= self.committed_sectors() + u64::from(self.env.geometry.ws_opt)
    }

    /// Returns the committed sectors of free chunks and open lines: admitted host data, padded to
    /// whole write units, and the translation pages of trims that drained lines may wait for.
    pub(crate) fn committed_sectors(&self) -> u64 {
        let unit = u64::from(self.env.geometry.ws_opt);
        let pages = u64::from(self.env.plan.page_reserve(self.durability.has_device_l2p()));
        self.buffer.undispatched_host_sectors(&self.env.geometry, unit)
            + pages.next_multiple_of(unit)
    }

    /// Returns whether the host may write one more unit although the limiter delays it. Overwritten
    /// sectors in open lines cannot be reclaimed before these are full. If everything else is
    /// reclaimed and space is short, further writes are what frees space. One line, and half of the
    /// reserve for power cuts, stays garbage collection's.
    pub(crate) fn host_can_use_reserve(&self) -> bool {
        let unit = u64::from(self.env.geometry.ws_opt);
        let kept =
            u64::from(self.env.plan.line_sectors) + u64::from(self.env.plan.padding_reserve / 2);
        self.space.writable_sectors(&self.env, self.space.free_chunks())
            >= self.committed_sectors() + unit + kept
    }

    /// Returns the first sector of a range that a command names, if all of it is the host's.
    #[inline]
    pub(crate) fn host_sector(&self, slba: u64, sectors: u32) -> Option<Lba> {
        let end = slba.checked_add(sectors.into())?;
        (end <= self.env.plan.addressable.into()).then(|| Lba(slba.to_u32()))
    }

    #[inline]
    pub(crate) fn complete(&mut self, tag: u64, status: Status) {
        tracepoint::trace(|| tracepoint::Event::FtlCompleted { tag });
        self.requests.complete(tag, status);
    }

    /// Returns whether a completed request waits for [`pop_completion`](Ftl::pop_completion).
    #[inline]
    pub fn has_completion(&self) -> bool {
        self.requests.has_completion()
    }

    /// Returns whether the sectors from `slba` on are mapped, and for how many of `sectors` that
    /// holds. Does not wait: sectors of a map page that is not in memory count as mapped, unless
    /// the page was never written.
    ///
    /// # Panics
    ///
    /// If the range is not within the host's sectors.
    pub fn extent(&self, slba: u64, sectors: u32) -> (bool, u32) {
        assert!(sectors > 0, "an extent has a sector");
        if self.mapping.is_named() {
            return (false, sectors);
        }
        let lba = self.host_sector(slba, sectors).expect("they are host sectors");
        self.mapping.extent(&self.env, lba, sectors)
    }
}

/// Returns the number of chunks that the FTL owns, bad ones included.
pub(crate) fn owned_chunks(found: &[ChunkReport]) -> u32 {
    found.iter().filter(|f| **f != ChunkReport::NotOwned).count().to_u32()
}

/// Returns the chunks reserved for the journal: the FTL's first ones on each parallel unit, in
/// striping order. Bad chunks are included, so that the set does not change when chunks fail.
pub(crate) fn journal_chunks(
    shape: &FlashGeometry,
    found: &[ChunkReport],
    count: u32,
) -> Vec<ChunkId> {
    let pus = || (0..shape.pus).map(|i| shape.striped_pu(i));
    let by_number =
        (0..shape.chunks_per_pu).flat_map(|n| pus().map(move |pu| shape.chunk_on(pu, n)));
    let own = by_number.filter(|c| found[c.index()] != ChunkReport::NotOwned);
    own.take(count.index()).collect()
}

/// Errors of the start of an FTL.
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
    /// Returns the state of the FTL and what it waits for, for bug reports.
    pub fn debug_state(&self) -> String {
        let lines = self.space.table().iter();
        let lines: Vec<String> = lines
            .filter(|(_, l)| l.state != crate::space::lines::LineState::Free)
            .map(|(i, l)| format!("{i} {:?} {} of {}", l.state, l.valid_sectors, l.sectors))
            .collect();
        let open: [_; STREAM_COUNT] = std::array::from_fn(|stream| self.space.open_lines(stream));
        let open = open.map(|o| o.iter().map(|l| (l.line, l.free_units)).collect::<Vec<_>>());
        format!(
            "free {} sectors (share {:.2}), {} free chunks, {} erasing, pending {:?}, waiting {:?}, \
             host rings durable {} of {}, free {:?}; gc ring ready {:?}, free {}; open {open:?}; {:?}; \
             journal failed {:?}; {:?}, {}; lines: {}",
            self.free_sectors(),
            self.gc.limiter().headroom(self.free_sectors()),
            self.space.free_chunks(),
            self.space.erasing(),
            self.requests.writes().front(),
            self.durability.barriers().front(),
            self.buffer.durable_pos(),
            self.buffer.head_pos(),
            HOST_RINGS.map(|ring| self.buffer.ring(ring).free()),
            self.buffer.ring(GC).ready(),
            self.buffer.ring(GC).free(),
            self.gc,
            self.durability.journal().failed(),
            self.map_cache(),
            self.mapping.debug_state(),
            lines.join(", "),
        )
    }
}
