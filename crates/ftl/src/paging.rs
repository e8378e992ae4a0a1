//! [`Paging`]: who needs which pages of the map, and waits for them to come into its [`Frames`]; and
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

use crate::fetch::{Demand, Want};
use crate::frames::Frames;
use crate::ftl::USER;
use crate::lines::NONE;
use crate::write_ring::WriteRing;
use crate::yielding::Unit;
use crate::{Entry, Flash, Ftl, Location, Shape};

/// Pages that are fetched ahead for requests that wait behind others.
const AHEAD: u32 = 8;

/// Frames that are looked at for a clean page when nothing may be written.
const CLEAN_STEPS: u32 = 64;

/// In [`Ftl::trimmed_at`]: the trims are in a copy of the page that takes back all of them.
const WRITTEN: u64 = 1 << 63;

/// Memory for the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapCache {
    /// Pages that fit; all there are if all of the map is in memory.
    pub frames: u32,
    /// Pages that are there, or on their way.
    pub resident: u32,
    /// The most there ever were.
    pub resident_max: u32,
    /// Pages that cannot go now.
    pub held: u32,
    /// Bytes of memory for the map and for finding pages.
    pub bytes: u64,
}

/// A page that garbage collection waits for.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    page: u32,
    held: bool,
    /// It has been asked for once more.
    again: bool,
}

/// Who waits for pages of the map.
#[derive(Clone)]
pub(crate) struct Paging {
    /// Reads that wait for a fetch to be free.
    waiting: VecDeque<u32>,
    /// The page that the first write or trim waits for, and whether it is held for it.
    change: (u32, bool),
    /// Those of what garbage collection looks at next.
    scan: Vec<Wanted>,
    /// Bytes of a page that is made.
    pub(crate) made: Vec<u8>,
}

impl fmt::Debug for Paging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paging")
            .field("waiting", &self.waiting.len())
            .field("change", &self.change)
            .field("scan", &self.scan)
            .finish_non_exhaustive()
    }
}

impl Paging {
    pub(crate) fn new(shape: &Shape) -> Paging {
        Paging {
            waiting: VecDeque::new(),
            change: (NONE, false),
            scan: Vec::new(),
            made: Vec::with_capacity(shape.sector_bytes as usize),
        }
    }

    /// A read waits until a fetch is free.
    pub(crate) fn read_waits(&mut self, index: u32) {
        self.waiting.push_back(index);
    }

    /// A page has arrived in its frame: it is held for those who wait to change what is in it.
    pub(crate) fn arrived(&mut self, page: u32, frames: &mut Frames) {
        let scanned = self.scan.iter_mut().map(|w| (w.page, &mut w.held));
        for (wanted, held) in scanned.chain([(self.change.0, &mut self.change.1)]) {
            if wanted == page && !*held {
                *held = true;
                frames.hold(page);
            }
        }
    }
}

impl Ftl {
    /// The memory for the map.
    pub fn map_cache(&self) -> MapCache {
        match &self.map.frames {
            Some(f) => MapCache {
                frames: f.len(),
                resident: f.resident(),
                resident_max: f.resident_max(),
                held: f.held(),
                bytes: f.bytes(),
            },
            None => {
                let pages = self.layout.meta;
                let bytes = 4 * u64::from(self.layout.logical + pages);
                MapCache { frames: pages, resident: pages, resident_max: pages, held: pages, bytes }
            }
        }
    }

    /// How many of a read's sectors from `lba` on can be looked up now, at least one.
    ///
    /// # Errors
    /// The fetch that brings the page of the first one, if there is room for it.
    #[inline]
    pub(crate) fn map_run(
        &mut self,
        now: Nanos,
        lba: u32,
        sectors: u32,
        demand: Demand,
        flash: &mut impl Flash,
    ) -> Result<u32, Option<u32>> {
        let Some(frames) = &self.map.frames else { return Ok(sectors) };
        let (page, run) = (self.shape.map_page_of(lba), frames.run(lba, sectors));
        let resident = frames.is_resident(page);
        if demand == Demand::Idle {
            self.stats.map_hits += u64::from(resident);
            self.stats.map_misses += u64::from(!resident);
        }
        match self.want_page(now, page, demand, flash) {
            Want::Resident => Ok(run),
            Want::Coming(fetch) => Err(Some(fetch)),
            Want::Nothing => Err(None),
        }
    }

    /// How many sectors from `lba` on can be written or trimmed now, for which the users' ring has
    /// `room`; if none, their page is on its way, or will be, or waits for room.
    pub(crate) fn map_change(
        &mut self,
        now: Nanos,
        lba: u32,
        sectors: u32,
        room: impl Fn(&WriteRing) -> u32,
        flash: &mut impl Flash,
    ) -> u32 {
        let Some(frames) = &self.map.frames else { return sectors };
        let (page, run) = (self.shape.map_page_of(lba), frames.run(lba, sectors));
        let waited = self.paging.change.0 == page;
        if !waited {
            let resident = frames.is_resident(page);
            self.stats.map_hits += u64::from(resident);
            self.stats.map_misses += u64::from(!resident);
            self.wait_for_change(page);
        }
        if self.want_page(now, page, Demand::Change, flash) != Want::Resident {
            // Once for each that is waited for: what was fetched ahead may have to go again.
            if !waited {
                self.fetch_ahead(now, lba + run, lba + sectors, flash);
            }
            return 0;
        }
        // A page that had to go may have taken the last room.
        let run = run.min(room(&self.rings[USER]));
        match &mut self.map.frames {
            Some(frames) if run == 0 && !self.paging.change.1 => {
                self.paging.change.1 = true;
                frames.hold(page);
            }
            Some(_) if run == 0 => {}
            _ => self.wait_for_change(NONE),
        }
        run
    }

    /// The first write or trim waits for another page, or for none.
    fn wait_for_change(&mut self, page: u32) {
        let (before, held) = std::mem::replace(&mut self.paging.change, (page, false));
        if let (true, Some(frames)) = (held, &mut self.map.frames) {
            frames.let_go(before);
        }
    }

    /// Whether a sector's word can be changed without a page from the media.
    pub(crate) fn may_change(&self, lba: u32) -> bool {
        let Some(frames) = &self.map.frames else { return true };
        let page = self.shape.map_page_of(lba);
        frames.is_resident(page) || self.holds_nothing(page)
    }

    /// Whether a page is known to have no mapped sector, without looking at it.
    pub(crate) fn holds_nothing(&self, page: u32) -> bool {
        let resident = self.map.frames.as_ref().is_none_or(|f| f.is_resident(page));
        let written = self.map.get(self.layout.logical + page) != Location::Unmapped;
        !resident && !written && !self.counting.is_uncounted(page)
    }

    /// [`extent`](Ftl::extent) of a map in frames.
    pub(crate) fn extent_in_frames(&self, lba: u32, sectors: u32) -> (bool, u32) {
        let Some(frames) = &self.map.frames else { return (false, sectors) };
        let (mut at, end, mut state) = (lba, lba + sectors, None);
        while at < end {
            let (page, run) = (self.shape.map_page_of(at), frames.run(at, end - at));
            if frames.is_resident(page) {
                let words = self.map.words(at, run);
                let state = *state.get_or_insert(words[0] != 0);
                if let Some(other) = words.iter().position(|w| (*w != 0) != state) {
                    return (state, at - lba + other as u32);
                }
            } else {
                let mapped = !self.holds_nothing(page);
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
    pub(crate) fn map_for_scan(
        &mut self,
        now: Nanos,
        line: u32,
        unit: Unit,
        flash: &mut impl Flash,
    ) -> bool {
        self.map.frames.is_none() || self.fetch_for_scan(now, line, unit, flash)
    }

    fn fetch_for_scan(
        &mut self,
        now: Nanos,
        line: u32,
        unit: Unit,
        flash: &mut impl Flash,
    ) -> bool {
        let mut scan = std::mem::take(&mut self.paging.scan);
        let first_time = scan.is_empty();
        // Asked for each time: a line that was being written may be another one by now.
        scan.iter_mut().for_each(|wanted| wanted.again = false);
        for psn in self.sectors_of_unit(line, unit.unit, unit.member) {
            let Some(page) = self.page_written_at(line, psn) else { continue };
            match scan.iter_mut().find(|wanted| wanted.page == page) {
                Some(wanted) => wanted.again = true,
                None => scan.push(Wanted { page, held: false, again: true }),
            }
        }
        let mut ready = true;
        for Wanted { page, held, .. } in scan.iter_mut().filter(|w| w.again && !w.held) {
            if self.want_page(now, *page, Demand::Change, flash) == Want::Resident {
                *held = true;
                if let Some(frames) = &mut self.map.frames {
                    frames.hold(*page);
                }
            } else {
                ready = false;
            }
        }
        scan.retain(|w| {
            let stays = w.again && !ready;
            if let (true, Some(frames)) = (!stays && w.held, &mut self.map.frames) {
                frames.let_go(w.page);
            }
            stays
        });
        self.paging.scan = scan;
        if !ready && first_time {
            for ahead in 0..2 {
                let Some((unit, member)) = self.unit_to_scan(ahead) else { break };
                for psn in self.sectors_of_unit(line, unit, member) {
                    if let Some(page) = self.page_written_at(line, psn) {
                        self.fetch_if_easy(now, page, flash);
                    }
                }
            }
        }
        ready
    }

    /// Garbage collection looks at something else: it needs none of the pages that it waited for.
    pub(crate) fn end_scan(&mut self) {
        for wanted in self.paging.scan.drain(..) {
            if let (true, Some(frames)) = (wanted.held, &mut self.map.frames) {
                frames.let_go(wanted.page);
            }
        }
    }

    /// The page of the users' sector that was written at a physical one of a victim.
    fn page_written_at(&self, line: u32, psn: u32) -> Option<u32> {
        self.map.frames.as_ref()?.page_of(self.written_at(line, psn)?)
    }

    /// Fetches a page that will be needed, if a good part of the frames can be had.
    fn fetch_if_easy(&mut self, now: Nanos, page: u32, flash: &mut impl Flash) {
        let Some(frames) = &self.map.frames else { return };
        let easy = self.fetches.under_way() < (frames.len() - frames.held()) / 2;
        if easy && !frames.is_resident(page) && self.fetches.find(page).is_none() {
            self.want_page(now, page, Demand::Ahead, flash);
        }
    }

    /// Fetches what the first request will need next, which goes on from one sector to another, and
    /// those behind it.
    fn fetch_ahead(&mut self, now: Nanos, first: u32, end: u32, flash: &mut impl Flash) {
        let (mut at, mut end, mut left) = (first, end, AHEAD);
        for i in 0..AHEAD as usize {
            while at < end && left > 0 {
                let Some(frames) = &self.map.frames else { return };
                let run = frames.run(at, end - at);
                self.fetch_if_easy(now, self.shape.map_page_of(at), flash);
                (at, left) = (at + run, left - 1);
            }
            let Some(next) = self.pending_sectors(i) else { return };
            (at, end) = next;
        }
    }

    /// A frame for a page, which holds it; without `writes` only one that is free or whose page is
    /// clean.
    pub(crate) fn frame_for(
        &mut self,
        page: u32,
        writes: bool,
        flash: &mut impl Flash,
    ) -> Option<u32> {
        let frames = self.map.frames.as_mut()?;
        if let Some(frame) = frames.take(page) {
            return Some(frame);
        }
        let any = writes && self.rings[USER].free() > 0;
        let steps = if writes { 2 * frames.len() + 1 } else { CLEAN_STEPS };
        let (checkpoint, trimmed_at) = (&self.checkpoint, &self.trimmed_at);
        let clean = |page: u32| {
            let trims = trimmed_at[page as usize];
            !checkpoint.is_dirty(page) && (trims == 0 || trims & WRITTEN != 0)
        };
        let old = frames.choose(steps, any, clean)?;
        if !clean(old) {
            self.write_map_page(old, flash);
            self.stats.map_page_writes += 1;
        }
        let frames = self.map.frames.as_mut()?;
        frames.drop_page(old);
        let taken = frames.take(page);
        if self.rings[USER].missing() > 0 {
            self.write_next_pages(flash);
        }
        taken
    }

    /// Writes those that would go next, too, when one has begun a write unit: pages are to have units of
    /// their own.
    fn write_next_pages(&mut self, flash: &mut impl Flash) {
        let page = |entry: &Entry| entry.lba_plus_1 > self.layout.logical;
        if !self.rings[USER].begun().iter().all(page) {
            return;
        }
        for _ in 0..self.rings[USER].missing() {
            let Some(frames) = &mut self.map.frames else { return };
            let checkpoint = &self.checkpoint;
            let steps = 4 * self.shape.unit;
            let Some(page) = frames.choose_if(steps, |page| checkpoint.is_dirty(page)) else {
                return;
            };
            self.write_map_page(page, flash);
            self.stats.map_page_writes += 1;
        }
    }

    /// Whether a unit of the users' ring holds nothing but pages of a map that does not fit its frames.
    #[inline]
    pub(crate) fn is_of_pages(&self, unit: u32) -> bool {
        let page = |entry: &Entry| entry.lba_plus_1 > self.layout.logical;
        self.layout.map_spare > 0 && self.rings[USER].entries(unit).iter().all(page)
    }

    /// The number below which everything that was written is in a page that is made now. If nobody
    /// holds it nothing of it is under way, and all trims are in it for good.
    pub(crate) fn low_of_page(&mut self, page: u32) -> u64 {
        match &self.map.frames {
            Some(frames) if !frames.is_held(page) => {
                let trims = &mut self.trimmed_at[page as usize];
                *trims |= if *trims == 0 { 0 } else { WRITTEN };
                self.issued.next()
            }
            _ => self.issued.low(),
        }
    }

    /// Whether a copy of a page that was written since takes back all that was trimmed in it.
    pub(crate) fn trims_are_in(&mut self, page: u32) -> bool {
        let trims = &mut self.trimmed_at[page as usize];
        let written = *trims & WRITTEN != 0;
        *trims = if written { 0 } else { *trims };
        written
    }

    /// Asks for the pages that reads wait for, and goes on counting.
    #[inline]
    pub(crate) fn start_fetches(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        self.map.frames.is_some() && self.start_fetches_now(now, flash)
    }

    fn start_fetches_now(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        if self.paging.change.0 != NONE && self.pending_sectors(0).is_none() {
            self.wait_for_change(NONE);
        }
        let mut moved = false;
        while let Some(&read) = self.paging.waiting.front() {
            if !self.go_on_with_read(now, read, Demand::Read, flash) {
                break;
            }
            self.paging.waiting.pop_front();
            moved = true;
        }
        self.hide();
        moved |= self.go_on_counting(now, flash);
        self.go_on_with_salvage(now, flash) | moved
    }
}
