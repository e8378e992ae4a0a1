//! [`PageFetches`]: pages of the map on their way from the media into [`Frames`](crate::mapping::cache::frames::Frames).
//!
//! Each is read into a slot of the write buffer that is its fetch's own, and copied into its frame when
//! it has come. Guarantees: a page is fetched once at a time, however many wait for it; its frame is
//! kept for it from the beginning; so many fetches are under way at most, and some of them are only for
//! requests.
//!
//! # A page that cannot be read
//!
//! is tried again, and then rebuilt (see `salvage`); its fetch goes on until it has been. If there is nothing
//! that it can be rebuilt of, it is given up: its sectors are [`L2pEntry::Lost`], reads of them fail, writes
//! heal them; and that is written, so that what garbage collection does not find is not found later.

use std::fmt;

use clock::Nanos;

use crate::check::{Subject, Violation, require, require_eq};
use crate::flash::OpKind;
use crate::mapping::cache::rebuild::PageRebuild;
use crate::mapping::l2p::{L2p, encode_l2p_entry};
use crate::mapping::p2l_reader::P2lReader;
use crate::mapping::translation_page::{PageEntry, TranslationPage};
use crate::recovery::CopyRef;
use crate::requests::host_reads::HostReads;
use crate::space::lines::NONE;
use crate::{CapacityPlan, FlashBackend, FlashGeometry, Ftl, L2pEntry, OpToken, ReadDest};

/// Pages that are read from the media at the same time at most, and how many of those for others than
/// requests.
const FETCH_MAX: u32 = 32;
pub(crate) const BACKGROUND_FETCH_MAX: u32 = 24;

/// How often a page is read before it is given up.
const READ_ATTEMPTS: u32 = 3;

/// Who asks for a page, and what may be done for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchReason {
    /// A read that has just come: a frame if one is free or clean.
    ReadFast,
    /// A read that has waited: any frame, or none at all.
    ReadBlocking,
    /// A write, a trim or garbage collection: any frame.
    Modify,
    /// A request behind others: a frame that is free or clean, as long as fetches are to spare.
    Prefetch,
    /// Counting, of what needs no frame.
    ReconcileView,
    /// Counting, of what has changed since it was written.
    ReconcileLoad,
}

/// What has become of the wish for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchOutcome {
    /// It is there now.
    Resident,
    /// This fetch brings it.
    InFlight(u32),
    /// There is no room for it now.
    NoFrame,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Reading,
    /// It waits for the page to be rebuilt.
    Rebuilding,
    Complete {
        failed: bool,
    },
}

/// A page on its way from the media.
#[derive(Clone, Copy, Debug)]
struct PageFetch {
    state: State,
    page: u32,
    /// Where it goes; [`NONE`] if it is only looked at.
    frame: u32,
    psn: u32,
    attempts: u32,
    /// Reads that wait for it, the first and the last.
    first_waiter: u32,
    last_waiter: u32,
}

/// What a page says.
enum PageContents<'a> {
    /// It was never written.
    Unwritten,
    Page(TranslationPage<'a>),
    /// It could not be read, but these copies of its sectors were found.
    Rebuilt(&'a [CopyRef]),
    /// It cannot be read.
    Lost,
}

/// Where a page is, that is not in a frame.
enum PageSource {
    Unwritten,
    Buffered(u32),
    OnFlash(u32),
    Lost,
    /// It has been rebuilt.
    Rebuilt,
}

/// What is under way between the media and the frames.
#[derive(Clone)]
pub(crate) struct PageFetches {
    fetches: Box<[PageFetch]>,
    first_slot: u32,
    reading: u32,
    completed: u32,
    rebuilding: u32,
    /// Slots that lines are read into to rebuild pages.
    scan_slots: u32,
    /// The page in the frame for look-ups.
    scratch_page: u32,
    /// Bytes of a page that was read.
    read_buf: Vec<u8>,
}

impl fmt::Debug for PageFetches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let busy = self.fetches.iter().filter(|f| f.state != State::Idle);
        f.debug_list().entries(busy.map(|f| (f.page, f.frame, f.attempts))).finish()
    }
}

impl PageFetches {
    pub(crate) fn new(
        shape: &FlashGeometry,
        layout: &CapacityPlan,
        first_slot: u32,
    ) -> PageFetches {
        let idle = PageFetch {
            state: State::Idle,
            page: NONE,
            frame: NONE,
            psn: NONE,
            attempts: 0,
            first_waiter: NONE,
            last_waiter: NONE,
        };
        let fetches = if layout.map_frames == 0 { 0 } else { FETCH_MAX as usize };
        let bytes = if fetches == 0 { 0 } else { shape.sector_bytes as usize };
        PageFetches {
            fetches: vec![idle; fetches].into(),
            first_slot,
            reading: 0,
            completed: 0,
            rebuilding: 0,
            scan_slots: if fetches == 0 { 0 } else { P2lReader::slots(shape.ws_opt) },
            scratch_page: NONE,
            read_buf: vec![0; bytes],
        }
    }

    /// Slots that pages are read into, and what they are rebuilt of.
    pub(crate) fn slots(&self) -> u32 {
        self.fetches.len() as u32 + self.scan_slots
    }

    /// Pages on their way.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_transfer() + self.rebuilding
    }

    /// Those that are not being rebuilt.
    pub(crate) fn in_transfer(&self) -> u32 {
        self.reading + self.completed
    }

    /// The slot number `i` of those that lines are read into, and what names such a read.
    pub(crate) fn scan_slot(&self, i: u32) -> u32 {
        self.first_slot + FETCH_MAX + i
    }

    pub(crate) fn scan_op(&self, at: u32) -> u32 {
        FETCH_MAX + at
    }

    /// Whether somebody waits for a page that is being rebuilt.
    pub(crate) fn has_rebuild_waiters(&self) -> bool {
        let waits = |f: &&PageFetch| f.first_waiter != NONE || f.frame != NONE;
        let salvaging = self.fetches.iter().filter(|f| f.state == State::Rebuilding);
        self.rebuilding > 0 && salvaging.filter(waits).count() > 0
    }

    /// Ends the fetches of pages that have been rebuilt. Returns whether there are any.
    pub(crate) fn complete_rebuilt(&mut self, salvage: &PageRebuild) -> bool {
        let before = self.rebuilding;
        for fetch in &mut self.fetches {
            if fetch.state == State::Rebuilding && salvage.is_rebuilt(fetch.page) {
                fetch.state = State::Complete { failed: true };
                (self.rebuilding, self.completed) = (self.rebuilding - 1, self.completed + 1);
            }
        }
        before > self.rebuilding
    }

    /// A read waits for a fetch.
    pub(crate) fn add_waiter(&mut self, fetch: u32, index: u32, reads: &mut HostReads) {
        let fetch = &mut self.fetches[fetch as usize];
        reads.append_waiter(Some(fetch.last_waiter).filter(|last| *last != NONE), index);
        if fetch.last_waiter == NONE {
            fetch.first_waiter = index;
        }
        fetch.last_waiter = index;
    }

    /// The fetch that brings a page.
    pub(crate) fn find(&self, page: u32) -> Option<u32> {
        let mut fetches = (0..).zip(&self.fetches);
        Some(fetches.find(|(_, f)| f.state != State::Idle && f.page == page)?.0)
    }

    /// Reads that wait for a fetch.
    pub(crate) fn waiting_reads(&self, reads: &HostReads) -> impl Iterator<Item = u32> {
        let chains = self.fetches.iter().filter(|f| f.state != State::Idle).map(|f| f.first_waiter);
        let next = |at: &u32| Some(reads.next_waiter(*at)).filter(|next| *next != NONE);
        chains
            .filter(|first| *first != NONE)
            .flat_map(move |first| std::iter::successors(Some(first), next))
    }

    /// Checks the counters of fetches and returns the page in the scratch frame.
    pub(crate) fn check(&self, map: &L2p) -> Result<u32, Violation> {
        let (mut reading, mut ended, mut rebuilding) = (0, 0, 0);
        for (i, fetch) in (0..).zip(&self.fetches) {
            match fetch.state {
                State::Idle => continue,
                State::Reading => reading += 1,
                State::Complete { .. } => ended += 1,
                State::Rebuilding => rebuilding += 1,
            }
            require!(
                !map.is_page_resident(fetch.page),
                Mapping,
                "a page that is fetched is in no frame",
                Subject::Page(fetch.page),
                "no frame",
                "a frame"
            );
            let again = self.fetches[..i as usize].iter();
            let again = again.filter(|f| f.state != State::Idle && f.page == fetch.page);
            require_eq!(
                Mapping,
                "a page is fetched once at a time",
                Subject::Page(fetch.page),
                0,
                again.count()
            );
        }
        require_eq!(Mapping, "fetches being read", Subject::Part, reading, self.reading);
        require_eq!(Mapping, "fetches that have been read", Subject::Part, ended, self.completed);
        require_eq!(
            Mapping,
            "fetches that are rebuilt",
            Subject::Part,
            rebuilding,
            self.rebuilding
        );
        Ok(self.scratch_page)
    }

    /// A fetch that is not used; only if enough of them are left for requests, or this is one.
    fn find_idle(&self, demand: FetchReason) -> Option<u32> {
        let most = match demand {
            FetchReason::ReadFast | FetchReason::ReadBlocking | FetchReason::Modify => FETCH_MAX,
            FetchReason::Prefetch | FetchReason::ReconcileView | FetchReason::ReconcileLoad => {
                BACKGROUND_FETCH_MAX
            }
        };
        if self.in_flight() >= most {
            return None;
        }
        Some((0..).zip(&self.fetches).find(|(_, f)| f.state == State::Idle)?.0)
    }
}

impl Ftl {
    /// Sees to it that a page comes.
    pub(crate) fn request_page(
        &mut self,
        now: Nanos,
        page: u32,
        demand: FetchReason,
        flash: &mut impl FlashBackend,
    ) -> FetchOutcome {
        let Some(frames) = &mut self.mapping.l2p.frames else { return FetchOutcome::Resident };
        if frames.touch(page) {
            return FetchOutcome::Resident;
        }
        self.unmap_scratch();
        if let Some(fetch) = self.mapping.fetches.find(page) {
            let looks = self.mapping.fetches.fetches[fetch as usize].frame == NONE;
            if looks && matches!(demand, FetchReason::Modify | FetchReason::ReconcileLoad) {
                let Some(frame) = self.allocate_frame(page, true, flash) else {
                    return FetchOutcome::NoFrame;
                };
                self.mapping.fetches.fetches[fetch as usize].frame = frame;
            }
            return FetchOutcome::InFlight(fetch);
        }
        let source = self.source_of(page);
        let idle = self.mapping.fetches.find_idle(demand);
        let rebuilds = matches!(source, PageSource::Lost) && self.can_rebuild(page, flash);
        if (rebuilds || matches!(source, PageSource::OnFlash(_))) && idle.is_none() {
            return FetchOutcome::NoFrame;
        }
        let frame = match demand {
            FetchReason::ReadFast | FetchReason::Prefetch => {
                self.allocate_frame(page, false, flash)
            }
            FetchReason::ReadBlocking | FetchReason::Modify | FetchReason::ReconcileLoad => {
                self.allocate_frame(page, true, flash)
            }
            FetchReason::ReconcileView => None,
        };
        if frame.is_none()
            && !matches!(demand, FetchReason::ReadBlocking | FetchReason::ReconcileView)
        {
            return FetchOutcome::NoFrame;
        }
        let frame = frame.unwrap_or(NONE);
        if let (PageSource::OnFlash(_) | PageSource::Lost, Some(idle)) = (&source, idle)
            && (rebuilds || matches!(source, PageSource::OnFlash(_)))
        {
            let fetch = &mut self.mapping.fetches.fetches[idle as usize];
            (fetch.page, fetch.frame, fetch.attempts) = (page, frame, 0);
            (fetch.first_waiter, fetch.last_waiter) = (NONE, NONE);
            match source {
                PageSource::OnFlash(psn) => self.read_page(now, idle, psn, flash),
                _ => self.wait_for_rebuild(idle, flash),
            }
            return FetchOutcome::InFlight(idle);
        }
        self.with_contents(page, &source, flash, |ftl, contents| {
            ftl.install_page(page, frame, contents)
        });
        FetchOutcome::Resident
    }

    /// A page cannot be read: it is rebuilt.
    fn wait_for_rebuild(&mut self, index: u32, flash: &impl FlashBackend) {
        let fetch = &mut self.mapping.fetches.fetches[index as usize];
        (fetch.state, fetch.attempts) = (State::Rebuilding, READ_ATTEMPTS);
        let page = fetch.page;
        self.mapping.fetches.rebuilding += 1;
        self.rebuild_page(page, flash);
    }

    fn source_of(&self, page: u32) -> PageSource {
        match self.stored_source_of(page) {
            PageSource::Lost if self.mapping.page_rebuild.is_rebuilt(page) => PageSource::Rebuilt,
            source => source,
        }
    }

    fn stored_source_of(&self, page: u32) -> PageSource {
        match self.mapping.l2p.get(self.env.plan.logical + page) {
            L2pEntry::Unmapped => PageSource::Unwritten,
            L2pEntry::Buffer(slot) if self.entry(slot).poison => PageSource::Lost,
            L2pEntry::Flash(psn) if self.mapping.p2l.is_poisoned(psn) => PageSource::Lost,
            L2pEntry::Buffer(slot) => PageSource::Buffered(slot),
            L2pEntry::Flash(psn) => PageSource::OnFlash(psn),
            L2pEntry::Lost => PageSource::Lost,
        }
    }

    fn read_page(&mut self, now: Nanos, index: u32, psn: u32, flash: &mut impl FlashBackend) {
        let fetch = &mut self.mapping.fetches.fetches[index as usize];
        (fetch.state, fetch.psn, fetch.attempts) = (State::Reading, psn, fetch.attempts + 1);
        self.mapping.fetches.reading += 1;
        self.stats.map_page_reads += 1;
        let slot = self.mapping.fetches.first_slot + index;
        flash.read(now, OpToken::new(OpKind::MapRead, index), &[(psn, slot)], ReadDest::Buffer);
    }

    /// A page has been read. [`kick`](Ftl::kick) afterwards.
    pub(crate) fn map_read_done(&mut self, index: u32, failed: u64, flash: &mut impl FlashBackend) {
        if let Some(at) = index.checked_sub(FETCH_MAX) {
            return self.scan_read_done(at, failed, flash);
        }
        let fetch = &mut self.mapping.fetches.fetches[index as usize];
        assert!(fetch.state == State::Reading, "no page is being read by fetch {index}");
        if failed == 0 {
            flash.sync_slot(fetch.psn, self.mapping.fetches.first_slot + index);
        }
        fetch.state = State::Complete { failed: failed != 0 };
        self.mapping.fetches.reading -= 1;
        self.mapping.fetches.completed += 1;
    }

    /// Puts the pages that have been read into their frames, and goes on with who waits for them.
    pub(crate) fn complete_fetches(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        if self.mapping.fetches.completed == 0 {
            return false;
        }
        for index in 0..FETCH_MAX {
            let PageFetch {
                state: State::Complete { failed },
                page,
                psn: read_at,
                attempts: tries,
                ..
            } = self.mapping.fetches.fetches[index as usize]
            else {
                continue;
            };
            self.mapping.fetches.completed -= 1;
            let slot = self.mapping.fetches.first_slot + index;
            let read = if failed { PageSource::Lost } else { PageSource::Buffered(slot) };
            let ended = self.with_contents(page, &read, flash, |ftl, contents| {
                if matches!(contents, PageContents::Lost) {
                    return false;
                }
                ftl.complete_fetch(index, contents);
                true
            });
            if !ended {
                let rebuilt = self.mapping.page_rebuild.is_rebuilt(page);
                self.stats.map_read_errors += u64::from(!rebuilt);
                // It may be somewhere else by now.
                let source = match self.source_of(page) {
                    PageSource::OnFlash(psn)
                        if !rebuilt && (tries < READ_ATTEMPTS || psn != read_at) =>
                    {
                        self.read_page(now, index, psn, flash);
                        continue;
                    }
                    PageSource::OnFlash(_) if rebuilt => PageSource::Rebuilt,
                    PageSource::OnFlash(_) | PageSource::Lost if self.can_rebuild(page, flash) => {
                        self.wait_for_rebuild(index, flash);
                        continue;
                    }
                    PageSource::OnFlash(_) => PageSource::Lost,
                    source => source,
                };
                self.with_contents(page, &source, flash, |ftl, contents| {
                    ftl.complete_fetch(index, contents);
                });
            }
            self.resume_waiting_reads(now, index, flash);
        }
        true
    }

    /// Hands over what is at a place where a page is.
    fn with_contents<T>(
        &mut self,
        page: u32,
        source: &PageSource,
        flash: &mut impl FlashBackend,
        then: impl FnOnce(&mut Ftl, &PageContents<'_>) -> T,
    ) -> T {
        let slot = match source {
            PageSource::Buffered(slot) => *slot,
            PageSource::Unwritten => return then(self, &PageContents::Unwritten),
            PageSource::OnFlash(_) | PageSource::Lost => return then(self, &PageContents::Lost),
            PageSource::Rebuilt => {
                let mut copies = self.mapping.page_rebuild.take_copies(page);
                self.drop_erased_copies(&mut copies);
                let done = then(self, &PageContents::Rebuilt(&copies));
                // It is forgotten if it is in a frame.
                self.mapping.page_rebuild.return_copies(page, copies);
                return done;
            }
        };
        let mut bytes = std::mem::take(&mut self.mapping.fetches.read_buf);
        flash.read_slot(slot, &mut bytes);
        let shape = self.env.geometry;
        let contents = TranslationPage::decode(&shape, page, &bytes);
        let done = then(self, &contents.map_or(PageContents::Lost, PageContents::Page));
        self.mapping.fetches.read_buf = bytes;
        done
    }

    /// A page has arrived: it is held for those who wait to change it.
    fn complete_fetch(&mut self, index: u32, contents: &PageContents<'_>) {
        let fetch = &mut self.mapping.fetches.fetches[index as usize];
        fetch.state = State::Idle;
        let (page, frame) = (fetch.page, fetch.frame);
        self.install_page(page, frame, contents);
        let Some(frames) = self.mapping.l2p.frames.as_mut().filter(|_| frame != NONE) else {
            return;
        };
        self.mapping.pager.fill_done(page, frames);
    }

    /// Goes on with the reads that waited for a page, while it is there.
    fn resume_waiting_reads(&mut self, now: Nanos, index: u32, flash: &mut impl FlashBackend) {
        let PageFetch { page, first_waiter: mut first, .. } =
            self.mapping.fetches.fetches[index as usize];
        let view = self.mapping.fetches.scratch_page == page;
        while first != NONE {
            let read = first;
            first = self.requests.host_reads.next_waiter(read);
            if view {
                self.map_scratch(page);
            }
            if !self.step_read(now, read, FetchReason::Prefetch, flash) {
                self.mapping.pager.add_waiting_read(read);
            }
        }
        self.unmap_scratch();
    }

    /// Puts a page into its frame, which nobody holds then; or without one shows it.
    fn install_page(&mut self, page: u32, frame: u32, contents: &PageContents<'_>) {
        let Some(frames) = &self.mapping.l2p.frames else { return };
        let (view, first) = (frame == NONE, frames.page_range(page).0);
        let counted = !self.mapping.reconcile.is_pending(page);
        self.fill(page, if view { frames.scratch_frame() } else { frame }, contents);
        let Some(frames) = &mut self.mapping.l2p.frames else { return };
        if view {
            self.map_scratch(page);
            return;
        }
        frames.fill_done(frame);
        frames.unpin(page);
        if self.mapping.page_rebuild.remove(page) {
            self.durability.checkpoint.mark_dirty(page);
        }
        match contents {
            PageContents::Lost => {
                self.stats.map_pages_lost += 1;
                self.durability.checkpoint.mark_dirty(page);
            }
            PageContents::Rebuilt(copies) => {
                self.stats.pages_rebuilt += 1;
                self.durability.checkpoint.mark_dirty(page);
                if counted {
                    self.count_rebuilt(first, copies);
                }
            }
            PageContents::Unwritten | PageContents::Page(_) => {}
        }
    }

    /// Writes the words of a page into a frame. The first time since a recovery that is not just a
    /// look, they are counted.
    fn fill(&mut self, page: u32, frame: u32, contents: &PageContents<'_>) {
        let Some(frames) = &self.mapping.l2p.frames else { return };
        let ((first, count), at) = (frames.page_range(page), frames.frame_base(frame));
        let view = frame == frames.scratch_frame();
        let lost = matches!(contents, PageContents::Lost | PageContents::Rebuilt(_));
        // Of what is not known to be valid it is not known either whether it has been counted.
        let again = match contents {
            PageContents::Rebuilt(_) => !self.mapping.p2l.is_in_memory(),
            _ => lost,
        };
        let uncounted = self.mapping.reconcile.is_pending(page);
        let low = match contents {
            PageContents::Page(page) => Some(page.base_seq),
            PageContents::Unwritten => Some(0),
            PageContents::Lost | PageContents::Rebuilt(_) => None,
        };
        let says = |i| match contents {
            PageContents::Rebuilt(copies) => {
                copies.get(i as usize).map_or(PageEntry { psn: None, poison: false }, |c| {
                    PageEntry { psn: Some(c.psn).filter(|p| *p != NONE), poison: c.poison }
                })
            }
            PageContents::Page(page) => page.get(i),
            PageContents::Unwritten => PageEntry { psn: None, poison: false },
            PageContents::Lost => PageEntry { psn: None, poison: true },
        };
        let mut counts = uncounted;
        if view && uncounted {
            // Only what holds as it is can be counted without a frame.
            counts = !lost
                && !self.mapping.reconcile.has_copies(page, frames)
                && !(0..count).any(|i| self.merge_newer_copy(first + i, &mut says(i), low, false));
            if !counts {
                self.mapping.reconcile.mark_frame_needed(page);
            }
        }
        let (mut changed, mut nowhere) = (false, false);
        for i in 0..count {
            let mut mapped = says(i);
            if uncounted {
                changed |= self.merge_newer_copy(first + i, &mut mapped, low, counts);
            }
            let to = match mapped {
                PageEntry { psn: Some(psn), poison } => {
                    if counts {
                        self.count_valid(first + i, psn, poison);
                    }
                    // What was lost is noted where it is when that is counted.
                    let known = !poison || counts || !uncounted;
                    if known { L2pEntry::Flash(psn) } else { L2pEntry::Lost }
                }
                PageEntry { psn: None, poison: true } => L2pEntry::Lost,
                PageEntry { psn: None, poison: false } => L2pEntry::Unmapped,
            };
            nowhere |= mapped == PageEntry { psn: None, poison: true };
            self.mapping.l2p.mapped +=
                u64::from((counts || again && !view) && to != L2pEntry::Unmapped);
            self.mapping.l2p.set_raw(at, i, encode_l2p_entry(to));
        }
        if nowhere {
            self.mapping.page_rebuild.note_unlocated_loss(page, self.buffer.sequencer.next_seq());
        }
        if counts {
            self.mapping.reconcile.mark_done(page);
        }
        if changed && counts {
            self.durability.checkpoint.mark_dirty(page);
        }
    }

    /// Shows a page that has been put into the frame for look-ups.
    fn map_scratch(&mut self, page: u32) {
        if let Some(frames) = &mut self.mapping.l2p.frames
            && self.mapping.fetches.scratch_page != page
        {
            frames.map_scratch(page);
            self.mapping.fetches.scratch_page = page;
        }
    }

    pub(crate) fn unmap_scratch(&mut self) {
        let shown = std::mem::replace(&mut self.mapping.fetches.scratch_page, NONE);
        if let (true, Some(frames)) = (shown != NONE, &mut self.mapping.l2p.frames) {
            frames.unmap_scratch(shown);
        }
    }
}
