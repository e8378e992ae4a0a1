//! [`MapPager`]: who needs which pages of the map, and waits for them to come into its [`Frames`]; and
//! which of them go (demand paging of the map as in DFTL: Gupta, Kim, Urgaonkar, ASPLOS 2009; the pages are
//! those of checkpoints, LightNVM paper section 4.2.2).
//!
//! # Who needs a page
//!
//! * A **sector in the write buffer**, of a user or of garbage collection, *holds* its page from when it
//!   is put there until it can be read from the media: the word of the map names its slot.
//! * A **write or trim** at the head of the queue waits for its page, and holds it when it comes. The
//!   pages of those behind are fetched ahead.
//! * **Garbage collection**, for the sake of space, health or wear, waits for the pages of all sectors of
//!   the write unit that it looks at next, and holds them until it has. If nothing else tells what was
//!   written in a line, it looks at all pages, one after the other.
//! * A **read** waits in a list of its own, at the fetch of its page, and is looked up when that ends. It
//!   holds nothing, and when no frame is to be had the page is shown to it and forgotten: reads wait for
//!   the media and for nothing else.
//! * **Checkpoints** need none: a page that is not in a frame has not changed.
//!
//! # How a page goes
//!
//! One that nobody holds has no sector in the write buffer. If it is clean, it is forgotten. If not, it
//! is written through the users' ring, and forgotten at once: until it can be read from the media it is
//! read from its slot. Nothing that is under way can change what it says, so that its `low` is the next
//! number there is: all trims in it are as durable as it is itself.
//!
//! # What is lost
//!
//! When a chunk is going, the pages on it are written again, those that are in no frame when they have been
//! brought into one, and a checkpoint says where they are (see `loss`): so none of an older copy is taken for
//! what there is. One that cannot be read is rebuilt (see `salvage`).
//!
//! # Order
//!
//! A read that waits is looked up once, later than it came and before it ends; what it finds is what all
//! writes and trims that had ended when it came left there, or something newer. Two requests that are
//! outstanding together have no order, here as without frames. Sectors of one request may be looked up
//! at different times.

use std::collections::VecDeque;
use std::fmt;

use clock::Nanos;

use crate::buffer::write_ring::WriteRing;
use crate::ftl::HOST;
use crate::gc::defer::VictimUnit;
use crate::mapping::cache::fetch::{FetchOutcome, FetchReason};
use crate::mapping::cache::frames::Frames;
use crate::space::lines::NONE;
use crate::{BufferEntry, FlashBackend, FlashGeometry, Ftl, L2pEntry};

/// Pages that are fetched ahead for requests that wait behind others.
const PREFETCH_PAGES_MAX: u32 = 8;

/// Frames that are looked at for a clean page when nothing may be written.
const CLEAN_STEPS: u32 = 64;

/// Memory for the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapCacheStats {
    /// Pages that fit; all there are if all of the map is in memory.
    pub frames: u32,
    /// Pages that are there, or on their way.
    pub resident: u32,
    /// The most there ever were.
    pub resident_max: u32,
    /// Pages that cannot go now.
    pub pinned: u32,
    /// Bytes of memory for the map and for finding pages.
    pub bytes: u64,
}

/// A page that garbage collection waits for.
#[derive(Clone, Copy, Debug)]
struct PinRequest {
    page: u32,
    pinned: bool,
    /// It has been asked for once more.
    still_wanted: bool,
}

/// Who waits for pages of the map.
#[derive(Clone)]
pub(crate) struct MapPager {
    /// Reads that wait for a fetch to be free.
    waiting_reads: VecDeque<u32>,
    /// The page that the first write or trim waits for, and whether it is held for it.
    head_write_page: (u32, bool),
    /// Those of what garbage collection looks at next.
    gc_pages: Vec<PinRequest>,
    /// Bytes of a page that is made.
    pub(crate) page_scratch: Vec<u8>,
}

impl fmt::Debug for MapPager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paging")
            .field("waiting", &self.waiting_reads.len())
            .field("change", &self.head_write_page)
            .field("scan", &self.gc_pages)
            .finish_non_exhaustive()
    }
}

impl MapPager {
    pub(crate) fn new(shape: &FlashGeometry) -> MapPager {
        MapPager {
            waiting_reads: VecDeque::new(),
            head_write_page: (NONE, false),
            gc_pages: Vec::new(),
            page_scratch: Vec::with_capacity(shape.sector_bytes as usize),
        }
    }

    /// Reads that wait for a free fetch slot.
    pub(crate) fn waiting_reads(&self) -> impl Iterator<Item = u32> {
        self.waiting_reads.iter().copied()
    }

    /// Pages pinned for the queue head and for GC, once per pin.
    pub(crate) fn pinned_pages(&self) -> impl Iterator<Item = u32> {
        let scan = self.gc_pages.iter().filter(|w| w.pinned).map(|w| w.page);
        scan.chain(self.head_write_page.1.then_some(self.head_write_page.0))
    }

    /// A read waits until a fetch is free.
    pub(crate) fn add_waiting_read(&mut self, index: u32) {
        self.waiting_reads.push_back(index);
    }

    /// A page has arrived in its frame: it is held for those who wait to change what is in it.
    pub(crate) fn fill_done(&mut self, page: u32, frames: &mut Frames) {
        let scanned = self.gc_pages.iter_mut().map(|w| (w.page, &mut w.pinned));
        for (wanted, held) in scanned.chain([(self.head_write_page.0, &mut self.head_write_page.1)])
        {
            if wanted == page && !*held {
                *held = true;
                frames.pin(page);
            }
        }
    }
}

impl Ftl {
    /// The memory for the map.
    pub fn map_cache(&self) -> MapCacheStats {
        match &self.mapping.l2p.frames {
            Some(f) => MapCacheStats {
                frames: f.len(),
                resident: f.resident(),
                resident_max: f.resident_max(),
                pinned: f.pinned(),
                bytes: f.bytes(),
            },
            None => {
                let pages = self.env.plan.map_pages;
                let bytes = 4 * u64::from(self.env.plan.logical + pages);
                MapCacheStats {
                    frames: pages,
                    resident: pages,
                    resident_max: pages,
                    pinned: pages,
                    bytes,
                }
            }
        }
    }

    /// How many of a read's sectors from `lba` on can be looked up now, at least one.
    ///
    /// # Errors
    /// The fetch that brings the page of the first one, if there is room for it.
    #[inline]
    pub(crate) fn resident_run(
        &mut self,
        now: Nanos,
        lba: u32,
        sectors: u32,
        demand: FetchReason,
        flash: &mut impl FlashBackend,
    ) -> Result<u32, Option<u32>> {
        let Some(frames) = &self.mapping.l2p.frames else { return Ok(sectors) };
        let (page, run) = (self.env.geometry.map_page_of(lba), frames.run_in_page(lba, sectors));
        let resident = frames.is_resident(page);
        if demand == FetchReason::ReadFast {
            self.stats.map_hits += u64::from(resident);
            self.stats.map_misses += u64::from(!resident);
        }
        match self.request_page(now, page, demand, flash) {
            FetchOutcome::Resident => Ok(run),
            FetchOutcome::InFlight(fetch) => Err(Some(fetch)),
            FetchOutcome::NoFrame => Err(None),
        }
    }

    /// How many sectors from `lba` on can be written or trimmed now, for which the users' ring has
    /// `room`; if none, their page is on its way, or will be, or waits for room.
    pub(crate) fn prepare_modify(
        &mut self,
        now: Nanos,
        lba: u32,
        sectors: u32,
        room: impl Fn(&WriteRing) -> u32,
        flash: &mut impl FlashBackend,
    ) -> u32 {
        let Some(frames) = &self.mapping.l2p.frames else { return sectors };
        let (page, run) = (self.env.geometry.map_page_of(lba), frames.run_in_page(lba, sectors));
        let waited = self.mapping.pager.head_write_page.0 == page;
        if !waited {
            let resident = frames.is_resident(page);
            self.stats.map_hits += u64::from(resident);
            self.stats.map_misses += u64::from(!resident);
            self.set_head_write_page(page);
        }
        if self.request_page(now, page, FetchReason::Modify, flash) != FetchOutcome::Resident {
            // Once for each that is waited for: what was fetched ahead may have to go again.
            if !waited {
                self.prefetch_queued_pages(now, lba + run, lba + sectors, flash);
            }
            return 0;
        }
        // A page that had to go may have taken the last room.
        let run = run.min(room(&self.buffer.rings[HOST]));
        match &mut self.mapping.l2p.frames {
            Some(frames) if run == 0 && !self.mapping.pager.head_write_page.1 => {
                self.mapping.pager.head_write_page.1 = true;
                frames.pin(page);
            }
            Some(_) if run == 0 => {}
            _ => self.set_head_write_page(NONE),
        }
        run
    }

    /// The first write or trim waits for another page, or for none.
    fn set_head_write_page(&mut self, page: u32) {
        let (before, held) =
            std::mem::replace(&mut self.mapping.pager.head_write_page, (page, false));
        if let (true, Some(frames)) = (held, &mut self.mapping.l2p.frames) {
            frames.unpin(before);
        }
    }

    /// Whether a sector's word can be changed without a page from the media.
    pub(crate) fn can_modify_now(&self, lba: u32) -> bool {
        let Some(frames) = &self.mapping.l2p.frames else { return true };
        let page = self.env.geometry.map_page_of(lba);
        frames.is_resident(page) || self.is_known_empty(page)
    }

    /// Whether a page is known to have no mapped sector, without looking at it.
    pub(crate) fn is_known_empty(&self, page: u32) -> bool {
        let resident = self.mapping.l2p.frames.as_ref().is_none_or(|f| f.is_resident(page));
        let written = self.mapping.l2p.get(self.env.plan.logical + page) != L2pEntry::Unmapped;
        !resident && !written && !self.mapping.reconcile.is_pending(page)
    }

    /// [`extent`](Ftl::extent) of a map in frames.
    pub(crate) fn extent_in_frames(&self, lba: u32, sectors: u32) -> (bool, u32) {
        let Some(frames) = &self.mapping.l2p.frames else { return (false, sectors) };
        let (mut at, end, mut state) = (lba, lba + sectors, None);
        while at < end {
            let (page, run) = (self.env.geometry.map_page_of(at), frames.run_in_page(at, end - at));
            if frames.is_resident(page) {
                let words = self.mapping.l2p.raw_range(at, run);
                let state = *state.get_or_insert(words[0] != 0);
                if let Some(other) = words.iter().position(|w| (*w != 0) != state) {
                    return (state, at - lba + other as u32);
                }
            } else {
                let mapped = !self.is_known_empty(page);
                if *state.get_or_insert(mapped) != mapped {
                    break;
                }
            }
            at += run;
        }
        (state.unwrap_or(false), at - lba)
    }

    /// Whether garbage collection can look at a write unit of a line now: the pages of what was written
    /// there are in frames. If not, they are on their way, and held when they come.
    #[inline]
    pub(crate) fn prepare_gc_unit(
        &mut self,
        now: Nanos,
        line: u32,
        unit: VictimUnit,
        flash: &mut impl FlashBackend,
    ) -> bool {
        self.mapping.l2p.frames.is_none() || self.pin_gc_pages(now, line, unit, flash)
    }

    fn pin_gc_pages(
        &mut self,
        now: Nanos,
        line: u32,
        unit: VictimUnit,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let mut scan = std::mem::take(&mut self.mapping.pager.gc_pages);
        let first_time = scan.is_empty();
        // Asked for each time: a line that was being written may be another one by now.
        scan.iter_mut().for_each(|wanted| wanted.still_wanted = false);
        for psn in self.sectors_of_unit(line, unit.unit, unit.member) {
            let Some(page) = self.page_of_p2l(line, psn) else { continue };
            match scan.iter_mut().find(|wanted| wanted.page == page) {
                Some(wanted) => wanted.still_wanted = true,
                None => scan.push(PinRequest { page, pinned: false, still_wanted: true }),
            }
        }
        let mut ready = true;
        for PinRequest { page, pinned: held, .. } in
            scan.iter_mut().filter(|w| w.still_wanted && !w.pinned)
        {
            if self.request_page(now, *page, FetchReason::Modify, flash) == FetchOutcome::Resident {
                *held = true;
                if let Some(frames) = &mut self.mapping.l2p.frames {
                    frames.pin(*page);
                }
            } else {
                ready = false;
            }
        }
        scan.retain(|w| {
            let stays = w.still_wanted && !ready;
            if let (true, Some(frames)) = (!stays && w.pinned, &mut self.mapping.l2p.frames) {
                frames.unpin(w.page);
            }
            stays
        });
        self.mapping.pager.gc_pages = scan;
        if !ready && first_time {
            for ahead in 0..2 {
                let Some((unit, member)) = self.peek_victim_unit(ahead) else { break };
                for psn in self.sectors_of_unit(line, unit, member) {
                    if let Some(page) = self.page_of_p2l(line, psn) {
                        self.prefetch_page(now, page, flash);
                    }
                }
            }
        }
        ready
    }

    /// Garbage collection looks at something else: it needs none of the pages that it waited for.
    pub(crate) fn release_gc_pages(&mut self) {
        for wanted in self.mapping.pager.gc_pages.drain(..) {
            if let (true, Some(frames)) = (wanted.pinned, &mut self.mapping.l2p.frames) {
                frames.unpin(wanted.page);
            }
        }
    }

    /// The page of the users' sector that was written at a physical one of a victim.
    fn page_of_p2l(&self, line: u32, psn: u32) -> Option<u32> {
        self.mapping.l2p.frames.as_ref()?.page_of(self.p2l_lookup(line, psn)?)
    }

    /// Fetches a page that will be needed, if a good part of the frames can be had.
    fn prefetch_page(&mut self, now: Nanos, page: u32, flash: &mut impl FlashBackend) {
        let Some(frames) = &self.mapping.l2p.frames else { return };
        let easy = self.mapping.fetches.in_flight() < (frames.len() - frames.pinned()) / 2;
        if easy && !frames.is_resident(page) && self.mapping.fetches.find(page).is_none() {
            self.request_page(now, page, FetchReason::Prefetch, flash);
        }
    }

    /// Fetches what the first request will need next, which goes on from one sector to another, and
    /// those behind it.
    fn prefetch_queued_pages(
        &mut self,
        now: Nanos,
        first: u32,
        end: u32,
        flash: &mut impl FlashBackend,
    ) {
        let (mut at, mut end, mut left) = (first, end, PREFETCH_PAGES_MAX);
        for i in 0..PREFETCH_PAGES_MAX as usize {
            while at < end && left > 0 {
                let Some(frames) = &self.mapping.l2p.frames else { return };
                let run = frames.run_in_page(at, end - at);
                self.prefetch_page(now, self.env.geometry.map_page_of(at), flash);
                (at, left) = (at + run, left - 1);
            }
            let Some(next) = self.pending_sectors(i) else { return };
            (at, end) = next;
        }
    }

    /// A frame for a page, which holds it; without `writes` only one that is free or whose page is
    /// clean.
    pub(crate) fn allocate_frame(
        &mut self,
        page: u32,
        writes: bool,
        flash: &mut impl FlashBackend,
    ) -> Option<u32> {
        let frames = self.mapping.l2p.frames.as_mut()?;
        if let Some(frame) = frames.allocate(page) {
            return Some(frame);
        }
        let any = writes && self.buffer.rings[HOST].free() > 0;
        let steps = if writes { 2 * frames.len() + 1 } else { CLEAN_STEPS };
        let (checkpoint, trims) = (&self.durability.checkpoint, &self.durability.trims);
        let clean = |page: u32| !checkpoint.is_dirty(page) && trims.is_written(page);
        let old = frames.pick_victim(steps, any, clean)?;
        if !clean(old) {
            self.write_map_page(old, flash);
            self.stats.map_page_writes += 1;
        }
        let frames = self.mapping.l2p.frames.as_mut()?;
        frames.evict(old);
        let taken = frames.allocate(page);
        if self.buffer.rings[HOST].free_in_unit() > 0 {
            self.write_next_dirty_pages(flash);
        }
        taken
    }

    /// Writes those that would go next, too, when one has begun a write unit: pages are to have units of
    /// their own.
    fn write_next_dirty_pages(&mut self, flash: &mut impl FlashBackend) {
        let page = |entry: &BufferEntry| entry.lba_plus_1 > self.env.plan.logical;
        if !self.buffer.rings[HOST].open_entries().iter().all(page) {
            return;
        }
        for _ in 0..self.buffer.rings[HOST].free_in_unit() {
            let Some(frames) = &mut self.mapping.l2p.frames else { return };
            let checkpoint = &self.durability.checkpoint;
            let steps = 4 * self.env.geometry.ws_opt;
            let Some(page) = frames.pick_victim_if(steps, |page| checkpoint.is_dirty(page)) else {
                return;
            };
            self.write_map_page(page, flash);
            self.stats.map_page_writes += 1;
        }
    }

    /// Whether a unit of the users' ring holds nothing but pages of a map that does not fit its frames.
    #[inline]
    pub(crate) fn holds_only_map_pages(&self, unit: u32) -> bool {
        let page = |entry: &BufferEntry| entry.lba_plus_1 > self.env.plan.logical;
        self.env.plan.map_write_reserve > 0
            && self.buffer.rings[HOST].entries(unit).iter().all(page)
    }

    /// The number below which everything that was written is in a page that is made now. If nobody
    /// holds it nothing of it is under way, and all trims are in it for good.
    pub(crate) fn base_seq_of_page(&mut self, page: u32) -> u64 {
        match &self.mapping.l2p.frames {
            Some(frames) if !frames.is_pinned(page) => {
                self.durability.trims.mark_written(page);
                self.buffer.sequencer.next_seq()
            }
            _ => self.buffer.sequencer.low_watermark(),
        }
    }

    /// Asks for the pages that reads wait for, and goes on counting.
    #[inline]
    pub(crate) fn start_fetches(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        self.mapping.l2p.frames.is_some() && self.start_fetches_now(now, flash)
    }

    fn start_fetches_now(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        if self.mapping.pager.head_write_page.0 != NONE && self.pending_sectors(0).is_none() {
            self.set_head_write_page(NONE);
        }
        let mut moved = false;
        while let Some(&read) = self.mapping.pager.waiting_reads.front() {
            if !self.step_read(now, read, FetchReason::ReadBlocking, flash) {
                break;
            }
            self.mapping.pager.waiting_reads.pop_front();
            moved = true;
        }
        self.unmap_scratch();
        moved |= self.step_reconcile(now, flash);
        self.step_rebuild(now, flash) | moved
    }
}
