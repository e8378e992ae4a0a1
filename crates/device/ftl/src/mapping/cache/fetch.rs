//! [`PageFetches`]: fetches of map pages from the media into
//! [`Frames`](crate::mapping::cache::frames::Frames).
//!
//! A fetch reads a page into a slot of the write buffer of its own, and copies it into its frame on
//! completion. Guarantees: a page has one fetch at a time, however many requests wait for it; its
//! frame is allocated at the start; the number of fetches is limited, and some of them are reserved
//! for requests.
//!
//! # Unreadable pages
//!
//! A failed read is retried, and then the page is rebuilt (see `rebuild`); its fetch stays open
//! until then. If there is no source for a rebuild, the page is lost: its sectors are
//! [`L2pEntry::Lost`], reads of them fail, and writes repair them. The lost page is written, so
//! that sectors that garbage collection did not find are not found later.

use std::fmt;

use nvme::PhysSector;
use serde::{Deserialize, Serialize};

use crate::buffer::WriteBuffer;
use crate::check::{Subject, Violation, require, require_eq};
use crate::env::Env;
use crate::ids::{
    FrameId, LbaRun, MapPageId, NO_INDEX, NO_SECTOR, SlotId, ToIndex, ToU32, WriteSeq,
};
use crate::mapping::Mapping;
use crate::mapping::cache::install::{InstallView, PageInstalled};
use crate::mapping::cache::rebuild::{PageRebuild, drop_erased_copies};
use crate::mapping::l2p::{L2p, encode_l2p_entry};
use crate::mapping::p2l_reader::P2lReader;
use crate::mapping::translation_page::{PageEntry, TranslationPage};
use crate::recovery::CopyRef;
use crate::requests::host_reads::HostReads;
use crate::space::lines::LineTable;
use crate::{CapacityPlan, FlashGeometry, L2pEntry};

/// Maximum number of fetches at a time, and those of them for other users than requests.
pub(crate) const FETCH_MAX: u32 = 32;
pub(crate) const BACKGROUND_FETCH_MAX: u32 = 24;

/// Read attempts before a page is lost.
pub(crate) const READ_ATTEMPTS: u32 = 3;

/// Reason of a fetch, which decides the frames that it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchReason {
    /// A read at its submission: a free frame or one with a clean page.
    ReadFast,
    /// A read that waits: any frame, or none.
    ReadBlocking,
    /// A write, a trim or garbage collection: any frame.
    Modify,
    /// A request that is not at the head: a free frame or one with a clean page, as long as enough
    /// fetches remain.
    Prefetch,
    /// Reconciliation of a page that needs no frame.
    ReconcileView,
    /// Reconciliation of a page that changed since it was written.
    ReconcileLoad,
}

/// Result of a request for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchOutcome {
    /// The page is in memory.
    Resident,
    /// The page is being fetched by this fetch.
    InFlight(u32),
    /// No frame is available now.
    NoFrame,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Idle,
    Reading,
    /// The fetch waits for the page to be rebuilt.
    Rebuilding,
    Complete {
        failed: bool,
    },
}

/// A page being fetched.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct PageFetch {
    state: State,
    page: MapPageId,
    /// Frame of the page; [`FrameId::NONE`] if it is only used for a lookup.
    frame: FrameId,
    phys: PhysSector,
    attempts: u32,
    /// The first and the last read that wait for it.
    first_waiter: u32,
    last_waiter: u32,
}

/// Contents of a page.
enum PageContents<'a> {
    /// The page was never written.
    Unwritten,
    Page(TranslationPage<'a>),
    /// The page could not be read, but these copies of its sectors were found.
    Rebuilt(&'a [CopyRef]),
    /// The page cannot be read.
    Lost,
}

/// Location of the latest version of a translation page that is in no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageSource {
    /// The page was never written: all of its sectors are unmapped.
    Unwritten,
    /// A slot of the write buffer, or the slot that the page was read into.
    Buffered(SlotId),
    /// A physical sector.
    OnFlash(PhysSector),
    /// The page cannot be read.
    Lost,
    /// The page has been rebuilt.
    Rebuilt,
}

/// A completed read of a translation page that was not processed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletedFetch {
    pub(crate) page: MapPageId,
    pub(crate) failed: bool,
    /// The physical sector that was read.
    pub(crate) phys: PhysSector,
    /// Number of read attempts.
    pub(crate) attempts: u32,
    /// The slot with its bytes.
    pub(crate) slot: SlotId,
}

/// A flash read of a translation page: the physical sector and the destination slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageRead {
    pub(crate) phys: PhysSector,
    pub(crate) slot: SlotId,
}

/// The fetches, and the reads of lines for rebuilds.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct PageFetches {
    fetches: Box<[PageFetch]>,
    first_slot: SlotId,
    reading: u32,
    completed: u32,
    rebuilding: u32,
    /// Slots that lines are read into to rebuild pages.
    scan_slots: u32,
    /// The page in the frame for look-ups.
    scratch_page: MapPageId,
    /// Buffer for the bytes of a page.
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
        first_slot: SlotId,
    ) -> PageFetches {
        let idle = PageFetch {
            state: State::Idle,
            page: MapPageId::NONE,
            frame: FrameId::NONE,
            phys: NO_SECTOR,
            attempts: 0,
            first_waiter: NO_INDEX,
            last_waiter: NO_INDEX,
        };
        let fetches = if layout.map_cache.frames == 0 { 0 } else { FETCH_MAX.index() };
        let bytes = if fetches == 0 { 0 } else { shape.sector_bytes.index() };
        PageFetches {
            fetches: vec![idle; fetches].into(),
            first_slot,
            reading: 0,
            completed: 0,
            rebuilding: 0,
            scan_slots: if fetches == 0 { 0 } else { P2lReader::slots(shape.ws_opt) },
            scratch_page: MapPageId::NONE,
            read_buf: vec![0; bytes],
        }
    }

    /// Returns the number of slots for fetched pages and for the lines that pages are rebuilt from.
    pub(crate) fn slots(&self) -> u32 {
        self.fetches.len().to_u32() + self.scan_slots
    }

    /// Returns the number of fetches in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_transfer() + self.rebuilding
    }

    /// Returns the number of fetches that are not rebuilds.
    pub(crate) fn in_transfer(&self) -> u32 {
        self.reading + self.completed
    }

    /// Returns the `i`-th slot for reads of lines, which also identifies the read.
    pub(crate) fn scan_slot(&self, i: u32) -> SlotId {
        self.first_slot + FETCH_MAX + i
    }

    pub(crate) fn scan_op(&self, at: u32) -> u32 {
        FETCH_MAX + at
    }

    /// Whether a request waits for a page that is being rebuilt.
    pub(crate) fn has_rebuild_waiters(&self) -> bool {
        let waits = |f: &&PageFetch| f.first_waiter != NO_INDEX || f.frame != FrameId::NONE;
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

    /// Appends a read to the waiters of a fetch. Returns the one in front of it.
    fn add_waiter(&mut self, fetch: u32, index: u32) -> Option<u32> {
        let fetch = &mut self.fetches[fetch.index()];
        let last = Some(fetch.last_waiter).filter(|last| *last != NO_INDEX);
        if last.is_none() {
            fetch.first_waiter = index;
        }
        fetch.last_waiter = index;
        last
    }

    /// The fetch that brings a page.
    pub(crate) fn find(&self, page: MapPageId) -> Option<u32> {
        let mut fetches = (0..).zip(&self.fetches);
        Some(fetches.find(|(_, f)| f.state != State::Idle && f.page == page)?.0)
    }

    /// Reads that wait for a fetch.
    pub(crate) fn waiting_reads(&self, reads: &HostReads) -> impl Iterator<Item = u32> {
        let chains = self.fetches.iter().filter(|f| f.state != State::Idle).map(|f| f.first_waiter);
        let next = |at: &u32| reads.next_waiter(*at);
        chains
            .filter(|first| *first != NO_INDEX)
            .flat_map(move |first| std::iter::successors(Some(first), next))
    }

    /// Checks the counters of fetches and returns the page in the scratch frame.
    pub(crate) fn check(&self, map: &L2p) -> Result<MapPageId, Violation> {
        let (mut reading, mut ended, mut rebuilding) = (0, 0, 0);
        for (i, fetch) in self.fetches.iter().enumerate() {
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
            let again = self.fetches[..i].iter();
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

    /// Returns an unused fetch, if enough remain for requests or this is one.
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

impl Mapping {
    /// Returns the number of slots for fetched pages and for the lines that pages are rebuilt from.
    pub(crate) fn slots(&self) -> u32 {
        self.fetches.slots()
    }

    /// Returns the number of fetches in flight.
    #[inline]
    pub(crate) fn fetches_in_flight(&self) -> u32 {
        self.fetches.in_flight()
    }

    /// Returns the number of fetches in flight that are not rebuilds.
    pub(crate) fn fetches_in_transfer(&self) -> u32 {
        self.fetches.in_transfer()
    }

    /// Returns whether completed reads of translation pages wait to be processed.
    #[inline]
    pub(crate) fn has_completed_fetches(&self) -> bool {
        self.fetches.completed > 0
    }

    /// Whether a request waits for a page that is being rebuilt.
    pub(crate) fn has_rebuild_waiters(&self) -> bool {
        self.fetches.has_rebuild_waiters()
    }

    /// Whether a page is in memory, which counts as a use of its frame.
    pub(crate) fn touch_page(&mut self, page: MapPageId) -> bool {
        self.l2p.frames_mut().is_none_or(|frames| frames.touch(page))
    }

    /// The fetch that brings a page.
    pub(crate) fn fetch_of(&self, page: MapPageId) -> Option<u32> {
        self.fetches.find(page)
    }

    /// Returns whether a fetch has no frame for its page, which is used for a lookup only.
    pub(crate) fn is_view(&self, fetch: u32) -> bool {
        self.fetches.fetches[fetch.index()].frame == FrameId::NONE
    }

    /// Gives a fetch a frame for its page.
    pub(crate) fn set_fetch_frame(&mut self, fetch: u32, frame: FrameId) {
        self.fetches.fetches[fetch.index()].frame = frame;
    }

    /// Returns an unused fetch, if one is available for this reason.
    pub(crate) fn idle_fetch(&self, reason: FetchReason) -> Option<u32> {
        self.fetches.find_idle(reason)
    }

    /// Returns where the latest version of a page that is in no frame is.
    pub(crate) fn source_of(&self, env: &Env, buffer: &WriteBuffer, page: MapPageId) -> PageSource {
        match self.l2p.get(env.plan.page_sector(page)) {
            L2pEntry::Unmapped => PageSource::Unwritten,
            L2pEntry::Buffer(slot) if !buffer.entry(slot).poison => PageSource::Buffered(slot),
            L2pEntry::Flash(phys) if !self.p2l.is_poisoned(phys) => PageSource::OnFlash(phys),
            L2pEntry::Buffer(_) | L2pEntry::Flash(_) | L2pEntry::Lost => {
                if self.page_rebuild.is_rebuilt(page) {
                    PageSource::Rebuilt
                } else {
                    PageSource::Lost
                }
            }
        }
    }

    /// Begins to fetch a page into a frame, or into none.
    pub(crate) fn begin_fetch(&mut self, fetch: u32, page: MapPageId, frame: Option<FrameId>) {
        let fetch = &mut self.fetches.fetches[fetch.index()];
        (fetch.page, fetch.frame, fetch.attempts) = (page, frame.unwrap_or(FrameId::NONE), 0);
        (fetch.first_waiter, fetch.last_waiter) = (NO_INDEX, NO_INDEX);
    }

    /// Records that the page of a fetch is read from a physical sector, and returns the read.
    pub(crate) fn begin_page_read(&mut self, fetch: u32, phys: PhysSector) -> PageRead {
        let slot = self.fetches.first_slot + fetch;
        let fetch = &mut self.fetches.fetches[fetch.index()];
        (fetch.state, fetch.phys, fetch.attempts) = (State::Reading, phys, fetch.attempts + 1);
        self.fetches.reading += 1;
        PageRead { phys, slot }
    }

    /// Queues the rebuild of an unreadable page that a fetch needs.
    pub(crate) fn wait_for_rebuild(
        &mut self,
        env: &Env,
        lines: &LineTable,
        buffer: &WriteBuffer,
        fetch: u32,
        stores_data: bool,
    ) {
        let fetch = &mut self.fetches.fetches[fetch.index()];
        (fetch.state, fetch.attempts) = (State::Rebuilding, READ_ATTEMPTS);
        let page = fetch.page;
        self.fetches.rebuilding += 1;
        self.rebuild_page(env, lines, buffer, page, stores_data);
    }

    /// Records that the read of a fetch has ended, and returns it.
    ///
    /// # Panics
    /// If no page is being read by this fetch.
    pub(crate) fn page_read_done(&mut self, index: u32, failed: bool) -> PageRead {
        let fetch = &mut self.fetches.fetches[index.index()];
        assert!(fetch.state == State::Reading, "no page is being read by fetch {index}");
        fetch.state = State::Complete { failed };
        self.fetches.reading -= 1;
        self.fetches.completed += 1;
        PageRead { phys: fetch.phys, slot: self.fetches.first_slot + index }
    }

    /// Takes a completed read of a page; [`complete_fetch`](Mapping::complete_fetch), another read,
    /// or a rebuild follows.
    pub(crate) fn take_completed(&mut self, index: u32) -> Option<CompletedFetch> {
        let fetch = &self.fetches.fetches[index.index()];
        let State::Complete { failed } = fetch.state else { return None };
        self.fetches.completed -= 1;
        Some(CompletedFetch {
            page: fetch.page,
            failed,
            phys: fetch.phys,
            attempts: fetch.attempts,
            slot: self.fetches.first_slot + index,
        })
    }

    /// The first read that waits for a fetch; none if there is none.
    pub(crate) fn first_waiter(&self, fetch: u32) -> Option<u32> {
        Some(self.fetches.fetches[fetch.index()].first_waiter).filter(|first| *first != NO_INDEX)
    }

    /// Appends a read to the waiters of a fetch. Returns the one in front of it.
    pub(crate) fn add_fetch_waiter(&mut self, fetch: u32, read: u32) -> Option<u32> {
        self.fetches.add_waiter(fetch, read)
    }

    /// Reads that wait for translation pages.
    pub(crate) fn waiting_reads(&self, reads: &HostReads) -> impl Iterator<Item = u32> {
        self.pager.waiting_reads().chain(self.fetches.waiting_reads(reads))
    }

    /// Takes the memory for the bytes of a page, to be [given back](Mapping::return_read_buffer).
    pub(crate) fn take_read_buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.fetches.read_buf)
    }

    pub(crate) fn return_read_buffer(&mut self, bytes: Vec<u8>) {
        self.fetches.read_buf = bytes;
    }

    /// Completes a fetch: puts its page into its frame, pinned for the requests that will change it,
    /// or shows it in the scratch frame. `bytes` are those of a [buffered](PageSource::Buffered)
    /// page. Without `gives_up` nothing changes if the page is lost.
    pub(crate) fn complete_fetch(
        &mut self,
        env: &Env,
        view: InstallView<'_>,
        index: u32,
        source: PageSource,
        gives_up: bool,
    ) -> Option<PageInstalled> {
        let PageFetch { page, frame, .. } = self.fetches.fetches[index.index()];
        let fetch = Some(index);
        let installed = self.install(env, view, page, frame, source, fetch, gives_up)?;
        if let Some(frames) = self.l2p.frames_mut().filter(|_| frame != FrameId::NONE) {
            self.pager.fill_done(page, frames);
        }
        Some(installed)
    }

    /// Puts a page that needs no fetch into a frame, or shows it in the scratch frame.
    pub(crate) fn install_page(
        &mut self,
        env: &Env,
        view: InstallView<'_>,
        page: MapPageId,
        frame: Option<FrameId>,
        source: PageSource,
    ) -> PageInstalled {
        let frame = frame.unwrap_or(FrameId::NONE);
        self.install(env, view, page, frame, source, None, true).unwrap_or_default()
    }

    #[expect(clippy::too_many_arguments, reason = "the two callers above name them")]
    fn install(
        &mut self,
        env: &Env,
        view: InstallView<'_>,
        page: MapPageId,
        frame: FrameId,
        source: PageSource,
        fetch: Option<u32>,
        gives_up: bool,
    ) -> Option<PageInstalled> {
        let mut copies = None;
        let contents = match source {
            PageSource::Unwritten => PageContents::Unwritten,
            PageSource::OnFlash(_) | PageSource::Lost => PageContents::Lost,
            PageSource::Rebuilt => {
                let found = copies.insert(self.page_rebuild.take_copies(page));
                drop_erased_copies(env, view.lines, found);
                PageContents::Rebuilt(found)
            }
            PageSource::Buffered(_) => {
                TranslationPage::decode(&env.geometry, page.get(), view.bytes)
                    .map_or(PageContents::Lost, PageContents::Page)
            }
        };
        if !gives_up && matches!(contents, PageContents::Lost) {
            return None;
        }
        if let Some(fetch) = fetch {
            self.fetches.fetches[fetch.index()].state = State::Idle;
        }
        let installed = self.install_contents(env, &view, page, frame, &contents);
        if let Some(copies) = copies {
            // The copies are dropped if the page is in a frame.
            self.page_rebuild.return_copies(page, copies);
        }
        Some(installed)
    }

    /// Puts a page into its frame, without a pin; or without a frame shows it in the scratch frame.
    fn install_contents(
        &mut self,
        env: &Env,
        view: &InstallView<'_>,
        page: MapPageId,
        frame: FrameId,
        contents: &PageContents<'_>,
    ) -> PageInstalled {
        let mut installed = PageInstalled::default();
        let Some(frames) = self.l2p.frames() else { return installed };
        let (is_view, first) = (frame == FrameId::NONE, frames.page_range(page).first);
        let counted = !self.reconcile.is_pending(page);
        let scratch = frames.scratch_frame();
        self.fill(
            page,
            if is_view { scratch } else { frame },
            contents,
            view.next_seq,
            &mut installed,
        );
        if is_view {
            self.map_scratch(page);
            return installed;
        }
        let Some(frames) = self.l2p.frames_mut() else { return installed };
        frames.fill_done(frame);
        frames.unpin(page);
        installed.is_dirty |= self.page_rebuild.remove(page);
        match contents {
            PageContents::Lost => (installed.is_lost, installed.is_dirty) = (true, true),
            PageContents::Rebuilt(copies) => {
                (installed.is_rebuilt, installed.is_dirty) = (true, true);
                if counted {
                    installed.recounted = self.count_rebuilt(env, view.lines, first, copies);
                }
            }
            PageContents::Unwritten | PageContents::Page(_) => {}
        }
        installed
    }

    /// Writes the entries of a page into a frame. The first time after a recovery they are counted,
    /// unless the page is only shown.
    fn fill(
        &mut self,
        page: MapPageId,
        frame: FrameId,
        contents: &PageContents<'_>,
        next_seq: WriteSeq,
        installed: &mut PageInstalled,
    ) {
        let Some(frames) = self.l2p.frames() else { return };
        let (LbaRun { first, sectors: count }, at) =
            (frames.page_range(page), frames.frame_base(frame));
        let view = frame == frames.scratch_frame();
        let lost = matches!(contents, PageContents::Lost | PageContents::Rebuilt(_));
        // For entries that may not be valid it is not known either whether they were counted.
        let again = match contents {
            PageContents::Rebuilt(_) => !self.p2l.is_in_memory(),
            _ => lost,
        };
        let uncounted = self.reconcile.is_pending(page);
        let low = match contents {
            PageContents::Page(page) => Some(page.base_seq),
            PageContents::Unwritten => Some(WriteSeq(0)),
            PageContents::Lost | PageContents::Rebuilt(_) => None,
        };
        let says = |i: u32| match contents {
            PageContents::Rebuilt(copies) => {
                copies.get(i.index()).map_or(PageEntry { phys: None, poison: false }, |c| {
                    PageEntry { phys: Some(c.phys).filter(|p| *p != NO_SECTOR), poison: c.poison }
                })
            }
            PageContents::Page(page) => page.get(i),
            PageContents::Unwritten => PageEntry { phys: None, poison: false },
            PageContents::Lost => PageEntry { phys: None, poison: true },
        };
        let mut counts = uncounted;
        if view && uncounted {
            // Without a frame only a page without newer copies can be counted.
            let geometry = frames.geometry();
            counts = !lost
                && !self.reconcile.has_copies(page, frames)
                && !(0..count)
                    .any(|i| self.reconcile.would_change(geometry, first + i, says(i), low));
            if !counts {
                self.reconcile.mark_frame_needed(page);
            }
        }
        let geometry = *frames.geometry();
        let (mut changed, mut nowhere) = (false, false);
        for i in 0..count {
            let mut mapped = says(i);
            if uncounted && counts {
                changed |=
                    self.reconcile.take_newer(&geometry, first + i, &mut mapped, low, installed);
            } else if uncounted {
                mapped = self.reconcile.merged(&geometry, first + i, mapped, low);
            }
            let to = match mapped {
                PageEntry { phys: Some(phys), poison } => {
                    if counts {
                        self.p2l.set(phys, Some(first + i), poison);
                        installed.valid.push(phys);
                    }
                    // A lost sector is recorded at its physical sector when that is counted.
                    let known = !poison || counts || !uncounted;
                    if known { L2pEntry::Flash(phys) } else { L2pEntry::Lost }
                }
                PageEntry { phys: None, poison: true } => L2pEntry::Lost,
                PageEntry { phys: None, poison: false } => L2pEntry::Unmapped,
            };
            nowhere |= mapped == PageEntry { phys: None, poison: true };
            if (counts || again && !view) && to != L2pEntry::Unmapped {
                self.l2p.count_mapped();
            }
            self.l2p.set_raw(at, i, encode_l2p_entry(to));
        }
        if nowhere {
            self.page_rebuild.record_unlocated_loss(page, next_seq);
        }
        if counts {
            self.reconcile.mark_done(page);
        }
        installed.is_dirty |= changed && counts;
    }

    /// Whether the scratch frame shows a page.
    pub(crate) fn shows(&self, page: MapPageId) -> bool {
        self.fetches.scratch_page == page
    }

    /// Shows a page that has been put into the scratch frame.
    pub(crate) fn map_scratch(&mut self, page: MapPageId) {
        if let Some(frames) = self.l2p.frames_mut()
            && self.fetches.scratch_page != page
        {
            frames.map_scratch(page);
            self.fetches.scratch_page = page;
        }
    }

    /// Clears the scratch frame.
    pub(crate) fn unmap_scratch(&mut self) {
        let shown = std::mem::replace(&mut self.fetches.scratch_page, MapPageId::NONE);
        if let (true, Some(frames)) = (shown != MapPageId::NONE, self.l2p.frames_mut()) {
            frames.unmap_scratch(shown);
        }
    }
}
