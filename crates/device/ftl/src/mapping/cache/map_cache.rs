//! [`MapPager`]: the parts of the FTL that need map pages and wait for them to be in [`Frames`],
//! and the eviction of pages. The map is paged on demand \[DFTL09\]; its pages are those of
//! checkpoints [LightNVM17 §4.2.2].
//!
//! # Users of a page
//!
//! * A **sector in the write buffer** pins its page from insertion until the sector is readable
//!   from the media: the map entry names its slot.
//! * A **write or trim** at the head of the queue waits for its page, and pins it when it arrives.
//!   An atomic write waits for the pages of all of its sectors, at most [`HEAD_PAGES`], so that it is
//!   admitted as a whole. The pages of the requests behind it are prefetched.
//! * **Garbage collection**, for space, health or wear, waits for the pages of all sectors of the
//!   next write unit, and pins them until it has processed the unit. If the contents of a line are
//!   not known otherwise, it visits all pages, one after the other.
//! * A **read** waits in the list of its page's fetch, and is looked up when the fetch completes.
//!   It pins nothing. If no frame is available, the lookup uses the fetched page, which is then
//!   dropped: reads wait for the media and for nothing else.
//! * **Checkpoints** need none: a page that is in no frame has not changed.
//!
//! # Eviction
//!
//! An unpinned page has no sectors in the write buffer. A clean page is dropped. A dirty page is
//! appended to the host ring and dropped immediately; until its flash copy is readable, fetches use
//! the buffer slot. No in-flight write can change the page, so its `base_seq` is the next sequence
//! number, and its trims become durable with it.
//!
//! # Lost pages
//!
//! When a chunk is at risk, the pages on it are rewritten; those in no frame are fetched first. A
//! checkpoint then records their locations (see `loss`), so that no older version is taken for the
//! latest one. A page that cannot be read is rebuilt (see `rebuild`).
//!
//! # Order
//!
//! A waiting read is looked up once, between its submission and its completion. It returns what all
//! writes and trims that completed before its submission left there, or something newer. Two
//! outstanding requests have no order, as without frames. Sectors of one request may be looked up
//! at different times.

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::env::Env;
use crate::ids::{FrameId, Lba, MapPageId, ToIndex, ToU32};
use crate::mapping::Mapping;
use crate::mapping::cache::fetch::FetchReason;
use crate::mapping::cache::frames::Frames;
use crate::{FlashGeometry, L2pEntry};

/// Frames that are searched for a clean page when dirty ones cannot be written.
const CLEAN_STEPS: u32 = 64;

/// Pages of the first write or trim at most: a write unit has 64 sectors at most, and a page more
/// entries.
const HEAD_PAGES: usize = 2;

/// Memory for the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapCacheStats {
    /// Maximum number of resident pages; all pages if the whole map is in memory.
    pub frames: u32,
    /// Pages that are resident or being fetched.
    pub resident: u32,
    /// Maximum of the resident pages so far.
    pub resident_max: u32,
    /// Pinned pages.
    pub pinned: u32,
    /// Bytes of memory for the map and for finding pages.
    pub bytes: u64,
}

/// A page that garbage collection waits for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct PinRequest {
    page: MapPageId,
    pinned: bool,
    /// Whether the next unit needs it, too.
    still_wanted: bool,
}

/// A page that the first write or trim waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct HeadPage {
    /// [`MapPageId::NONE`] if it waits for no page here.
    page: MapPageId,
    pinned: bool,
}

impl HeadPage {
    const NONE: HeadPage = HeadPage { page: MapPageId::NONE, pinned: false };
}

/// Waiters for map pages.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct MapPager {
    /// Reads that wait for a free fetch.
    waiting_reads: VecDeque<u32>,
    /// The pages that the first write or trim waits for.
    head_pages: [HeadPage; HEAD_PAGES],
    /// Pages of the unit that garbage collection scans next.
    gc_pages: Vec<PinRequest>,
    /// Buffer for an encoded page.
    page_scratch: Vec<u8>,
}

impl fmt::Debug for MapPager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paging")
            .field("waiting", &self.waiting_reads.len())
            .field("change", &self.head_pages)
            .field("scan", &self.gc_pages)
            .finish_non_exhaustive()
    }
}

impl MapPager {
    pub(crate) fn new(shape: &FlashGeometry) -> MapPager {
        MapPager {
            waiting_reads: VecDeque::new(),
            head_pages: [HeadPage::NONE; HEAD_PAGES],
            gc_pages: Vec::new(),
            page_scratch: Vec::with_capacity(shape.sector_bytes.index()),
        }
    }

    /// Reads that wait for a free fetch slot.
    pub(super) fn waiting_reads(&self) -> impl Iterator<Item = u32> {
        self.waiting_reads.iter().copied()
    }

    /// Pages pinned for the queue head and for GC, once per pin.
    pub(crate) fn pinned_pages(&self) -> impl Iterator<Item = MapPageId> {
        let scan = self.gc_pages.iter().filter(|w| w.pinned).map(|w| w.page);
        scan.chain(self.head_pages.iter().filter(|head| head.pinned).map(|head| head.page))
    }

    /// Records that a page has arrived in its frame, and pins it for the waiting modifications.
    pub(crate) fn fill_done(&mut self, page: MapPageId, frames: &mut Frames) {
        let scanned = self.gc_pages.iter_mut().map(|w| (w.page, &mut w.pinned));
        let heads = self.head_pages.iter_mut().map(|head| (head.page, &mut head.pinned));
        for (wanted, held) in scanned.chain(heads) {
            if wanted == page && !*held {
                *held = true;
                frames.pin(page);
            }
        }
    }
}

impl Mapping {
    /// Queues a read until a fetch is free.
    pub(crate) fn add_waiting_read(&mut self, index: u32) {
        self.pager.waiting_reads.push_back(index);
    }

    /// The read that has waited longest for a free fetch.
    pub(crate) fn first_waiting_read(&self) -> Option<u32> {
        self.pager.waiting_reads.front().copied()
    }

    /// Removes the read that has waited longest.
    pub(crate) fn pop_waiting_read(&mut self) {
        self.pager.waiting_reads.pop_front();
    }

    /// Takes the memory for the bytes of a page, to be [given back](Mapping::return_page_buffer).
    pub(crate) fn take_page_buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pager.page_scratch)
    }

    pub(crate) fn return_page_buffer(&mut self, bytes: Vec<u8>) {
        self.pager.page_scratch = bytes;
    }

    /// Returns the number of sectors from `lba` on that are in the page of the first one; `None` if
    /// the whole map is in memory.
    #[inline]
    pub(crate) fn run_in_page(&self, lba: Lba, sectors: u32) -> Option<u32> {
        Some(self.l2p.frames()?.run_in_page(lba, sectors))
    }

    /// The translation page of a host sector of a cached map.
    pub(crate) fn page_of(&self, lba: Lba) -> Option<MapPageId> {
        self.l2p.frames()?.page_of(lba)
    }

    /// The location of a host sector; `None` if its page is not in memory.
    pub(crate) fn get_resident(&self, lba: Lba) -> Option<L2pEntry> {
        let page = self.page_of(lba);
        page.is_none_or(|page| self.l2p.is_page_resident(page)).then(|| self.l2p.get(lba))
    }

    /// Whether a page is pinned in its frame; not if all of the map is in memory.
    pub(crate) fn is_unpinned(&self, page: MapPageId) -> bool {
        self.l2p.frames().is_some_and(|frames| !frames.is_pinned(page))
    }

    /// The page that the first write or trim waits for, or the first one of several.
    pub(crate) fn head_write_page(&self) -> Option<MapPageId> {
        Some(self.pager.head_pages[0].page).filter(|page| *page != MapPageId::NONE)
    }

    /// Replaces the pages that the first write or trim waits for by one, or by none.
    pub(crate) fn set_head_write_page(&mut self, page: Option<MapPageId>) {
        self.set_head_pages(page.into_iter());
    }

    /// Replaces the pages that the first write or trim waits for.
    fn set_head_pages(&mut self, pages: impl Iterator<Item = MapPageId>) {
        let mut heads = [HeadPage::NONE; HEAD_PAGES];
        for (head, page) in heads.iter_mut().zip(pages) {
            head.page = page;
        }
        let before = std::mem::replace(&mut self.pager.head_pages, heads);
        if let Some(frames) = self.l2p.frames_mut() {
            before.iter().filter(|head| head.pinned).for_each(|head| frames.unpin(head.page));
        }
    }

    /// Replaces the pages that the first write waits for by those of all of its sectors. Pages that it
    /// waits for already stay pinned. Returns whether it waited for others.
    ///
    /// # Panics
    /// If there are more than [`HEAD_PAGES`].
    pub(crate) fn want_whole_write(&mut self, first: MapPageId, last: MapPageId) -> bool {
        assert!(last.get() - first.get() < HEAD_PAGES.to_u32(), "{first} to {last}: a write unit");
        let other = (last != first).then_some(last);
        let heads = &self.pager.head_pages;
        if heads[0].page == first && heads[1].page == other.unwrap_or(MapPageId::NONE) {
            return false;
        }
        self.set_head_pages(std::iter::once(first).chain(other));
        true
    }

    /// The index, from `from` on, and the page of a page that the first write or trim waits for and that
    /// is not pinned for it.
    pub(crate) fn unpinned_head_page(&self, from: usize) -> Option<(usize, MapPageId)> {
        let mut heads = self.pager.head_pages.iter().enumerate().skip(from);
        let found = heads.find(|(_, head)| head.page != MapPageId::NONE && !head.pinned);
        found.map(|(index, head)| (index, head.page))
    }

    /// Keeps a resident page that the first write or trim waits for in its frame.
    pub(crate) fn pin_head_page(&mut self, index: usize) {
        let HeadPage { page, pinned } = &mut self.pager.head_pages[index];
        if let (false, Some(frames)) = (std::mem::replace(pinned, true), self.l2p.frames_mut()) {
            frames.pin(*page);
        }
    }

    /// Whether the pages of some sectors are in memory.
    pub(crate) fn are_pages_resident(&self, env: &Env, lba: Lba, sectors: u32) -> bool {
        let last = lba + sectors.saturating_sub(1);
        let pages = [env.pages.page_of(lba), env.pages.page_of(last)];
        pages.iter().all(|page| self.l2p.is_page_resident(*page))
    }

    /// Whether a sector's entry can be changed without a read of its page.
    pub(crate) fn can_modify_now(&self, env: &Env, lba: Lba) -> bool {
        let Some(frames) = self.l2p.frames() else { return true };
        let page = env.pages.page_of(lba);
        frames.is_resident(page) || self.is_known_empty(env, page)
    }

    /// Whether a page that is in no frame is known to have no mapped sector.
    pub(crate) fn is_known_empty(&self, env: &Env, page: MapPageId) -> bool {
        let resident = self.l2p.is_page_resident(page);
        let written = self.l2p.get(env.plan.page_sector(page)) != L2pEntry::Unmapped;
        !resident && !written && !self.reconcile.is_pending(page)
    }

    /// Whether the sectors from `lba` on are mapped, and for how many of `sectors` this holds. Sectors of a
    /// page that is not in memory count as mapped, unless it was never written.
    pub(crate) fn extent(&self, env: &Env, lba: Lba, sectors: u32) -> (bool, u32) {
        let Some(frames) = self.l2p.frames() else {
            let words = self.l2p.raw_range(lba, sectors);
            let mapped = words[0] != 0;
            let end = words.iter().position(|w| (*w != 0) != mapped);
            return (mapped, end.map_or(sectors, |e| e.to_u32()));
        };
        let (mut at, end, mut state) = (lba, lba + sectors, None);
        while at < end {
            let (page, run) = (env.pages.page_of(at), frames.run_in_page(at, end - at));
            if frames.is_resident(page) {
                let words = self.l2p.raw_range(at, run);
                let state = *state.get_or_insert(words[0] != 0);
                if let Some(other) = words.iter().position(|w| (*w != 0) != state) {
                    return (state, at - lba + other.to_u32());
                }
            } else {
                let mapped = !self.is_known_empty(env, page);
                if *state.get_or_insert(mapped) != mapped {
                    break;
                }
            }
            at += run;
        }
        (state.unwrap_or(false), at - lba)
    }

    /// Replaces the pages that garbage collection waits for by those of the unit that it scans next.
    /// Pages that it waits for already stay pinned. Returns whether it waited for none.
    pub(crate) fn want_gc_pages(&mut self, pages: impl Iterator<Item = MapPageId>) -> bool {
        let wanted = &mut self.pager.gc_pages;
        let first_time = wanted.is_empty();
        wanted.iter_mut().for_each(|wanted| wanted.still_wanted = false);
        for page in pages {
            match wanted.iter_mut().find(|wanted| wanted.page == page) {
                Some(wanted) => wanted.still_wanted = true,
                None => wanted.push(PinRequest { page, pinned: false, still_wanted: true }),
            }
        }
        first_time
    }

    /// The index, from `from` on, and the page of a page that garbage collection wants and that is not
    /// pinned for it.
    pub(crate) fn unpinned_gc_page(&self, from: usize) -> Option<(usize, MapPageId)> {
        let mut wanted = self.pager.gc_pages.iter().enumerate().skip(from);
        wanted.find(|(_, w)| w.still_wanted && !w.pinned).map(|(index, w)| (index, w.page))
    }

    /// Pins a resident page for garbage collection.
    pub(crate) fn pin_gc_page(&mut self, index: usize) {
        let wanted = &mut self.pager.gc_pages[index];
        wanted.pinned = true;
        if let Some(frames) = self.l2p.frames_mut() {
            frames.pin(wanted.page);
        }
    }

    /// Unpins the pages that garbage collection does not want any more; all if it has what it wanted.
    pub(crate) fn settle_gc_pages(&mut self, ready: bool) {
        let mut frames = self.l2p.frames_mut();
        self.pager.gc_pages.retain(|w| {
            let stays = w.still_wanted && !ready;
            if let (true, Some(frames)) = (!stays && w.pinned, &mut frames) {
                frames.unpin(w.page);
            }
            stays
        });
    }

    /// Unpins all pages that garbage collection waited for.
    pub(crate) fn release_gc_pages(&mut self) {
        let mut frames = self.l2p.frames_mut();
        for wanted in self.pager.gc_pages.drain(..) {
            if let (true, Some(frames)) = (wanted.pinned, &mut frames) {
                frames.unpin(wanted.page);
            }
        }
    }

    /// Returns whether a page may be prefetched: enough frames can be evicted.
    pub(crate) fn can_prefetch(&self, page: MapPageId) -> bool {
        let Some(frames) = self.l2p.frames() else { return false };
        let easy = self.fetches.in_flight() < (frames.len() - frames.pinned()) / 2;
        easy && !frames.is_resident(page) && self.fetches.find(page).is_none()
    }

    /// Takes a free frame for a page, pinned until the page is fetched.
    pub(crate) fn take_free_frame(&mut self, page: MapPageId) -> Option<FrameId> {
        self.l2p.frames_mut()?.allocate(page)
    }

    /// Picks the page to evict. Without `waits` only a few frames are searched; without `any` the
    /// page must be clean.
    pub(crate) fn choose_eviction(
        &mut self,
        waits: bool,
        any: bool,
        is_clean: impl Fn(MapPageId) -> bool,
    ) -> Option<MapPageId> {
        let frames = self.l2p.frames_mut()?;
        let steps = if waits { 2 * frames.len() + 1 } else { CLEAN_STEPS };
        frames.pick_victim(steps, any, is_clean)
    }

    /// Chooses another page to write that is dirty and may be evicted soon.
    pub(crate) fn choose_dirty(
        &mut self,
        steps: u32,
        is_dirty: impl Fn(MapPageId) -> bool,
    ) -> Option<MapPageId> {
        self.l2p.frames_mut()?.pick_victim_if(steps, is_dirty)
    }

    /// Evicts a page, and takes its frame for another one.
    pub(crate) fn replace_page(&mut self, old: MapPageId, new: MapPageId) -> Option<FrameId> {
        let frames = self.l2p.frames_mut()?;
        frames.evict(old);
        frames.allocate(new)
    }

    /// Returns the next page to reconcile in this round, and the reason of its fetch.
    pub(crate) fn peek_reconcile(&self) -> Option<(MapPageId, FetchReason)> {
        self.reconcile.peek(self.l2p.frames())
    }

    /// Begins the next round of the reconciliation.
    pub(crate) fn restart_reconcile(&mut self) {
        self.reconcile.restart();
    }

    /// Continues the reconciliation behind a page.
    pub(crate) fn advance_reconcile(&mut self, page: MapPageId) {
        self.unmap_scratch();
        self.reconcile.advance(page);
    }

    /// Ends the reconciliation.
    pub(crate) fn finish_reconcile(&mut self) {
        self.reconcile = Default::default();
    }
}
