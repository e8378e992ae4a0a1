//! [`Fetches`]: pages of the map on their way from the media into [`Frames`](crate::frames::Frames).
//!
//! Each is read into a slot of the write buffer that is its fetch's own, and copied into its frame when
//! it has come. Guarantees: a page is fetched once at a time, however many wait for it; its frame is
//! kept for it from the beginning; so many fetches are under way at most, and some of them are only for
//! requests.
//!
//! # A page that cannot be read
//!
//! is tried again, and then rebuilt (see `salvage`); its fetch goes on until it has been. If there is nothing
//! that it can be rebuilt of, it is given up: its sectors are [`Location::Lost`], reads of them fail, writes
//! heal them; and that is written, so that what garbage collection does not find is not found later.

use std::fmt;

use clock::Nanos;

use crate::flash::OpKind;
use crate::line_scan::LineScan;
use crate::lines::NONE;
use crate::map::word;
use crate::map_page::{MapPage, Mapped};
use crate::read::UserRead;
use crate::recover::Copy;
use crate::salvage::Salvage;
use crate::{Flash, Ftl, Layout, Location, OpId, ReadTarget, Shape};

/// Pages that are read from the media at the same time at most, and how many of those for others than
/// requests.
const FETCHES: u32 = 32;
pub(crate) const BACKGROUND: u32 = 24;

/// How often a page is read before it is given up.
const TRIES: u32 = 3;

/// Who asks for a page, and what may be done for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// A read that has just come: a frame if one is free or clean.
    Idle,
    /// A read that has waited: any frame, or none at all.
    Read,
    /// A write, a trim or garbage collection: any frame.
    Change,
    /// A request behind others: a frame that is free or clean, as long as fetches are to spare.
    Ahead,
    /// Counting, of what needs no frame.
    Count,
    /// Counting, of what has changed since it was written.
    Merge,
}

/// What has become of the wish for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// It is there now.
    Resident,
    /// This fetch brings it.
    Coming(u32),
    /// There is no room for it now.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Reading,
    /// It waits for the page to be rebuilt.
    Salvaging,
    Ended {
        failed: bool,
    },
}

/// A page on its way from the media.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    state: State,
    page: u32,
    /// Where it goes; [`NONE`] if it is only looked at.
    frame: u32,
    psn: u32,
    tries: u32,
    /// Reads that wait for it, the first and the last.
    first: u32,
    last: u32,
}

/// What a page says.
enum Contents<'a> {
    /// It was never written.
    Empty,
    Page(MapPage<'a>),
    /// It could not be read, but these copies of its sectors were found.
    Rebuilt(&'a [Copy]),
    /// It cannot be read.
    Lost,
}

/// Where a page is, that is not in a frame.
enum Source {
    Nowhere,
    Slot(u32),
    Flash(u32),
    Lost,
    /// It has been rebuilt.
    Rebuilt,
}

/// What is under way between the media and the frames.
#[derive(Clone)]
pub(crate) struct Fetches {
    fetches: Box<[Fetch]>,
    first_slot: u32,
    reading: u32,
    ended: u32,
    salvaging: u32,
    /// Slots that lines are read into to rebuild pages.
    scan_slots: u32,
    /// The page in the frame for look-ups.
    shown: u32,
    /// Bytes of a page that was read.
    read: Vec<u8>,
}

impl fmt::Debug for Fetches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let busy = self.fetches.iter().filter(|f| f.state != State::Idle);
        f.debug_list().entries(busy.map(|f| (f.page, f.frame, f.tries))).finish()
    }
}

impl Fetches {
    pub(crate) fn new(shape: &Shape, layout: &Layout, first_slot: u32) -> Fetches {
        let idle = Fetch {
            state: State::Idle,
            page: NONE,
            frame: NONE,
            psn: NONE,
            tries: 0,
            first: NONE,
            last: NONE,
        };
        let fetches = if layout.map_frames == 0 { 0 } else { FETCHES as usize };
        let bytes = if fetches == 0 { 0 } else { shape.sector_bytes as usize };
        Fetches {
            fetches: vec![idle; fetches].into(),
            first_slot,
            reading: 0,
            ended: 0,
            salvaging: 0,
            scan_slots: if fetches == 0 { 0 } else { LineScan::slots(shape.unit) },
            shown: NONE,
            read: vec![0; bytes],
        }
    }

    /// Slots that pages are read into, and what they are rebuilt of.
    pub(crate) fn slots(&self) -> u32 {
        self.fetches.len() as u32 + self.scan_slots
    }

    /// Pages on their way.
    pub(crate) fn under_way(&self) -> u32 {
        self.arriving() + self.salvaging
    }

    /// Those that are not being rebuilt.
    pub(crate) fn arriving(&self) -> u32 {
        self.reading + self.ended
    }

    /// The slot number `i` of those that lines are read into, and what names such a read.
    pub(crate) fn scan_slot(&self, i: u32) -> u32 {
        self.first_slot + FETCHES + i
    }

    pub(crate) fn scan_op(&self, at: u32) -> u32 {
        FETCHES + at
    }

    /// Whether somebody waits for a page that is being rebuilt.
    pub(crate) fn awaits_salvage(&self) -> bool {
        let waits = |f: &&Fetch| f.first != NONE || f.frame != NONE;
        let salvaging = self.fetches.iter().filter(|f| f.state == State::Salvaging);
        self.salvaging > 0 && salvaging.filter(waits).count() > 0
    }

    /// Ends the fetches of pages that have been rebuilt. Returns whether there are any.
    pub(crate) fn end_salvaged(&mut self, salvage: &Salvage) -> bool {
        let before = self.salvaging;
        for fetch in &mut self.fetches {
            if fetch.state == State::Salvaging && salvage.has(fetch.page) {
                fetch.state = State::Ended { failed: true };
                (self.salvaging, self.ended) = (self.salvaging - 1, self.ended + 1);
            }
        }
        before > self.salvaging
    }

    /// A read waits for a fetch.
    pub(crate) fn wait_for(&mut self, fetch: u32, index: u32, reads: &mut [UserRead]) {
        let fetch = &mut self.fetches[fetch as usize];
        reads[index as usize].behind = NONE;
        match fetch.last {
            NONE => fetch.first = index,
            last => reads[last as usize].behind = index,
        }
        fetch.last = index;
    }

    /// The fetch that brings a page.
    pub(crate) fn find(&self, page: u32) -> Option<u32> {
        let mut fetches = (0..).zip(&self.fetches);
        Some(fetches.find(|(_, f)| f.state != State::Idle && f.page == page)?.0)
    }

    /// A fetch that is not used; only if enough of them are left for requests, or this is one.
    fn idle(&self, demand: Demand) -> Option<u32> {
        let most = match demand {
            Demand::Idle | Demand::Read | Demand::Change => FETCHES,
            Demand::Ahead | Demand::Count | Demand::Merge => BACKGROUND,
        };
        if self.under_way() >= most {
            return None;
        }
        Some((0..).zip(&self.fetches).find(|(_, f)| f.state == State::Idle)?.0)
    }
}

impl Ftl {
    /// Sees to it that a page comes.
    pub(crate) fn want_page(
        &mut self,
        now: Nanos,
        page: u32,
        demand: Demand,
        flash: &mut impl Flash,
    ) -> Want {
        let Some(frames) = &mut self.map.frames else { return Want::Resident };
        if frames.uses(page) {
            return Want::Resident;
        }
        self.hide();
        if let Some(fetch) = self.fetches.find(page) {
            let looks = self.fetches.fetches[fetch as usize].frame == NONE;
            if looks && matches!(demand, Demand::Change | Demand::Merge) {
                let Some(frame) = self.frame_for(page, true, flash) else { return Want::Nothing };
                self.fetches.fetches[fetch as usize].frame = frame;
            }
            return Want::Coming(fetch);
        }
        let source = self.source_of(page);
        let idle = self.fetches.idle(demand);
        let rebuilds = matches!(source, Source::Lost) && self.may_salvage(page, flash);
        if (rebuilds || matches!(source, Source::Flash(_))) && idle.is_none() {
            return Want::Nothing;
        }
        let frame = match demand {
            Demand::Idle | Demand::Ahead => self.frame_for(page, false, flash),
            Demand::Read | Demand::Change | Demand::Merge => self.frame_for(page, true, flash),
            Demand::Count => None,
        };
        if frame.is_none() && !matches!(demand, Demand::Read | Demand::Count) {
            return Want::Nothing;
        }
        let frame = frame.unwrap_or(NONE);
        if let (Source::Flash(_) | Source::Lost, Some(idle)) = (&source, idle)
            && (rebuilds || matches!(source, Source::Flash(_)))
        {
            let fetch = &mut self.fetches.fetches[idle as usize];
            (fetch.page, fetch.frame, fetch.tries) = (page, frame, 0);
            (fetch.first, fetch.last) = (NONE, NONE);
            match source {
                Source::Flash(psn) => self.read_page(now, idle, psn, flash),
                _ => self.wait_for_salvage(idle, flash),
            }
            return Want::Coming(idle);
        }
        self.with_contents(page, &source, flash, |ftl, contents| {
            ftl.put_page(page, frame, contents)
        });
        Want::Resident
    }

    /// A page cannot be read: it is rebuilt.
    fn wait_for_salvage(&mut self, index: u32, flash: &impl Flash) {
        let fetch = &mut self.fetches.fetches[index as usize];
        (fetch.state, fetch.tries) = (State::Salvaging, TRIES);
        let page = fetch.page;
        self.fetches.salvaging += 1;
        self.salvage(page, flash);
    }

    fn source_of(&self, page: u32) -> Source {
        match self.place_of(page) {
            Source::Lost if self.salvage.has(page) => Source::Rebuilt,
            source => source,
        }
    }

    fn place_of(&self, page: u32) -> Source {
        match self.map.get(self.layout.logical + page) {
            Location::Unmapped => Source::Nowhere,
            Location::Buffer(slot) if self.entry(slot).poison => Source::Lost,
            Location::Flash(psn) if self.reverse.poisoned(psn) => Source::Lost,
            Location::Buffer(slot) => Source::Slot(slot),
            Location::Flash(psn) => Source::Flash(psn),
            Location::Lost => Source::Lost,
        }
    }

    fn read_page(&mut self, now: Nanos, index: u32, psn: u32, flash: &mut impl Flash) {
        let fetch = &mut self.fetches.fetches[index as usize];
        (fetch.state, fetch.psn, fetch.tries) = (State::Reading, psn, fetch.tries + 1);
        self.fetches.reading += 1;
        self.stats.map_page_reads += 1;
        let slot = self.fetches.first_slot + index;
        flash.read(now, OpId::new(OpKind::MapRead, index), &[(psn, slot)], ReadTarget::Slots);
    }

    /// A page has been read. [`kick`](Ftl::kick) afterwards.
    pub(crate) fn map_read_done(&mut self, index: u32, failed: u64, flash: &mut impl Flash) {
        if let Some(at) = index.checked_sub(FETCHES) {
            return self.scan_read_done(at, failed, flash);
        }
        let Some(fetch) = self.fetches.fetches.get_mut(index as usize) else { return };
        if failed == 0 {
            flash.moved(fetch.psn, self.fetches.first_slot + index);
        }
        fetch.state = State::Ended { failed: failed != 0 };
        self.fetches.reading -= 1;
        self.fetches.ended += 1;
    }

    /// Puts the pages that have been read into their frames, and goes on with who waits for them.
    pub(crate) fn end_fetches(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        if self.fetches.ended == 0 {
            return false;
        }
        for index in 0..FETCHES {
            let Fetch { state: State::Ended { failed }, page, psn: read_at, tries, .. } =
                self.fetches.fetches[index as usize]
            else {
                continue;
            };
            self.fetches.ended -= 1;
            let slot = self.fetches.first_slot + index;
            let read = if failed { Source::Lost } else { Source::Slot(slot) };
            let ended = self.with_contents(page, &read, flash, |ftl, contents| {
                if matches!(contents, Contents::Lost) {
                    return false;
                }
                ftl.end_fetch(index, contents);
                true
            });
            if !ended {
                let rebuilt = self.salvage.has(page);
                self.stats.map_read_errors += u64::from(!rebuilt);
                // It may be somewhere else by now.
                let source = match self.source_of(page) {
                    Source::Flash(psn) if !rebuilt && (tries < TRIES || psn != read_at) => {
                        self.read_page(now, index, psn, flash);
                        continue;
                    }
                    Source::Flash(_) if rebuilt => Source::Rebuilt,
                    Source::Flash(_) | Source::Lost if self.may_salvage(page, flash) => {
                        self.wait_for_salvage(index, flash);
                        continue;
                    }
                    Source::Flash(_) => Source::Lost,
                    source => source,
                };
                self.with_contents(page, &source, flash, |ftl, contents| {
                    ftl.end_fetch(index, contents);
                });
            }
            self.go_on_with_waiting(now, index, flash);
        }
        true
    }

    /// Hands over what is at a place where a page is.
    fn with_contents<T>(
        &mut self,
        page: u32,
        source: &Source,
        flash: &mut impl Flash,
        then: impl FnOnce(&mut Ftl, &Contents<'_>) -> T,
    ) -> T {
        let slot = match source {
            Source::Slot(slot) => *slot,
            Source::Nowhere => return then(self, &Contents::Empty),
            Source::Flash(_) | Source::Lost => return then(self, &Contents::Lost),
            Source::Rebuilt => {
                let mut copies = self.salvage.take(page);
                self.settle_rebuilt(&mut copies);
                let done = then(self, &Contents::Rebuilt(&copies));
                // It is forgotten if it is in a frame.
                self.salvage.give_back(page, copies);
                return done;
            }
        };
        let mut bytes = std::mem::take(&mut self.fetches.read);
        flash.load(slot, &mut bytes);
        let shape = self.shape;
        let contents = MapPage::decode(&shape, page, &bytes);
        let done = then(self, &contents.map_or(Contents::Lost, Contents::Page));
        self.fetches.read = bytes;
        done
    }

    /// A page has arrived: it is held for those who wait to change it.
    fn end_fetch(&mut self, index: u32, contents: &Contents<'_>) {
        let fetch = &mut self.fetches.fetches[index as usize];
        fetch.state = State::Idle;
        let (page, frame) = (fetch.page, fetch.frame);
        self.put_page(page, frame, contents);
        let Some(frames) = self.map.frames.as_mut().filter(|_| frame != NONE) else { return };
        self.paging.arrived(page, frames);
    }

    /// Goes on with the reads that waited for a page, while it is there.
    fn go_on_with_waiting(&mut self, now: Nanos, index: u32, flash: &mut impl Flash) {
        let Fetch { page, mut first, .. } = self.fetches.fetches[index as usize];
        let view = self.fetches.shown == page;
        while first != NONE {
            let read = first;
            first = self.reads[read as usize].behind;
            if view {
                self.show(page);
            }
            if !self.go_on_with_read(now, read, Demand::Ahead, flash) {
                self.paging.read_waits(read);
            }
        }
        self.hide();
    }

    /// Puts a page into its frame, which nobody holds then; or without one shows it.
    fn put_page(&mut self, page: u32, frame: u32, contents: &Contents<'_>) {
        let Some(frames) = &self.map.frames else { return };
        let (view, first) = (frame == NONE, frames.sectors(page).0);
        let counted = !self.counting.is_uncounted(page);
        self.fill(page, if view { frames.view() } else { frame }, contents);
        let Some(frames) = &mut self.map.frames else { return };
        if view {
            self.show(page);
            return;
        }
        frames.arrived(frame);
        frames.let_go(page);
        if self.salvage.forget(page) {
            self.checkpoint.touch(page);
        }
        match contents {
            Contents::Lost => {
                self.stats.map_pages_lost += 1;
                self.checkpoint.touch(page);
            }
            Contents::Rebuilt(copies) => {
                self.stats.pages_rebuilt += 1;
                self.checkpoint.touch(page);
                if counted {
                    self.count_rebuilt(first, copies);
                }
            }
            Contents::Empty | Contents::Page(_) => {}
        }
    }

    /// Writes the words of a page into a frame. The first time since a recovery that is not just a
    /// look, they are counted.
    fn fill(&mut self, page: u32, frame: u32, contents: &Contents<'_>) {
        let Some(frames) = &self.map.frames else { return };
        let ((first, count), at) = (frames.sectors(page), frames.at(frame));
        let view = frame == frames.view();
        let lost = matches!(contents, Contents::Lost | Contents::Rebuilt(_));
        // Of what is not known to be valid it is not known either whether it has been counted.
        let again = match contents {
            Contents::Rebuilt(_) => !self.reverse.is_in_memory(),
            _ => lost,
        };
        let uncounted = self.counting.is_uncounted(page);
        let low = match contents {
            Contents::Page(page) => Some(page.low),
            Contents::Empty => Some(0),
            Contents::Lost | Contents::Rebuilt(_) => None,
        };
        let says = |i| match contents {
            Contents::Rebuilt(copies) => {
                copies.get(i as usize).map_or(Mapped { psn: None, poison: false }, |c| Mapped {
                    psn: Some(c.psn).filter(|p| *p != NONE),
                    poison: c.poison,
                })
            }
            Contents::Page(page) => page.get(i),
            Contents::Empty => Mapped { psn: None, poison: false },
            Contents::Lost => Mapped { psn: None, poison: true },
        };
        let mut counts = uncounted;
        if view && uncounted {
            // Only what holds as it is can be counted without a frame.
            counts = !lost
                && !self.counting.has_copies(page, frames)
                && !(0..count).any(|i| self.merge(first + i, &mut says(i), low, false));
            if !counts {
                self.counting.needs_frame(page);
            }
        }
        let (mut changed, mut nowhere) = (false, false);
        for i in 0..count {
            let mut mapped = says(i);
            if uncounted {
                changed |= self.merge(first + i, &mut mapped, low, counts);
            }
            let to = match mapped {
                Mapped { psn: Some(psn), poison } => {
                    if counts {
                        self.count(first + i, psn, poison);
                    }
                    // What was lost is noted where it is when that is counted.
                    let known = !poison || counts || !uncounted;
                    if known { Location::Flash(psn) } else { Location::Lost }
                }
                Mapped { psn: None, poison: true } => Location::Lost,
                Mapped { psn: None, poison: false } => Location::Unmapped,
            };
            nowhere |= mapped == Mapped { psn: None, poison: true };
            self.map.mapped += u64::from((counts || again && !view) && to != Location::Unmapped);
            self.map.put_word(at, i, word(to));
        }
        if nowhere {
            self.salvage.note_lost(page, self.issued.next());
        }
        if counts {
            self.counting.counted(page);
        }
        if changed && counts {
            self.checkpoint.touch(page);
        }
    }

    /// Shows a page that has been put into the frame for look-ups.
    fn show(&mut self, page: u32) {
        if let Some(frames) = &mut self.map.frames
            && self.fetches.shown != page
        {
            frames.show(page);
            self.fetches.shown = page;
        }
    }

    pub(crate) fn hide(&mut self) {
        let shown = std::mem::replace(&mut self.fetches.shown, NONE);
        if let (true, Some(frames)) = (shown != NONE, &mut self.map.frames) {
            frames.hide(shown);
        }
    }
}
