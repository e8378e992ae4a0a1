//! [`Frames`]: memory for map pages, with CLOCK replacement \[Corbato68\]. DFTL caches single entries
//! \[DFTL09\]; this cache holds whole pages.
//!
//! A page is in at most one frame, and a frame holds at most one page. A *pinned* frame keeps its
//! page. Guarantees: there are never more pages than frames; a pinned frame is never picked; every
//! other frame is picked within two rounds. The last frame is outside of the cache: it holds a page
//! for the time of a lookup when no other frame is available, so that reads never wait for one.

use collections::{ClockFrame, ClockFrames};
use serde::{Deserialize, Serialize};

use crate::FlashGeometry;
use crate::check::{Subject, Violation, require, require_eq};
use crate::geometry::MapPages;
use crate::ids::{FrameId, Lba, LbaRun, MapPageId, ToIndex};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Frame {
    /// The page in it or being fetched into it; [`MapPageId::NONE`] if it is free.
    page: MapPageId,
    /// Number of pins.
    pins: u32,
    /// Whether it was used since the CLOCK hand passed.
    referenced: bool,
}

impl ClockFrame for Frame {
    #[inline]
    fn is_evictable(&self) -> bool {
        self.page != MapPageId::NONE && self.pins == 0
    }

    #[inline]
    fn take_referenced(&mut self) -> bool {
        std::mem::take(&mut self.referenced)
    }
}

/// The frames, and the page in each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Frames {
    geometry: FlashGeometry,
    pages: MapPages,
    /// Host sectors; index of the first entry for the pages' own locations.
    logical: u32,
    gtd_base: usize,
    frame_of: Box<[FrameId]>,
    frames: ClockFrames<Frame>,
    /// Number of pinned frames.
    pinned: u32,
    resident_max: u32,
}

impl Frames {
    /// Frames for `pages` pages of the map of `logical` sectors: one for look-ups, `frames` others.
    pub(crate) fn new(shape: &FlashGeometry, logical: u32, pages: u32, frames: u32) -> Frames {
        let pages_of_map = MapPages::new(shape);
        let free = Frame { page: MapPageId::NONE, pins: 0, referenced: false };
        Frames {
            geometry: *shape,
            pages: pages_of_map,
            logical,
            gtd_base: (frames.index() + 1) * pages_of_map.sectors_per_page().index(),
            frame_of: vec![FrameId::NONE; pages.index()].into(),
            frames: ClockFrames::new(vec![free; frames.index()], u32::from(frames > 1)),
            pinned: 0,
            resident_max: 0,
        }
    }

    pub(super) fn geometry(&self) -> &FlashGeometry {
        &self.geometry
    }

    /// Returns the number of map entries: of all frames, and of the pages' own locations.
    pub(crate) fn entry_count(&self) -> usize {
        self.gtd_base + self.frame_of.len()
    }

    /// Returns the size in bytes, map entries included.
    pub(crate) fn bytes(&self) -> u64 {
        let words = self.entry_count() + self.frame_of.len() + self.frames.len().index();
        4 * words as u64 + u64::from(self.frames.len()) * size_of::<Frame>() as u64
    }

    /// Returns the index of a logical sector's entry. The page of a host sector must be in a frame.
    #[inline]
    pub(crate) fn index(&self, lba: Lba) -> usize {
        if lba.get() >= self.logical {
            return self.gtd_base + (lba.get() - self.logical).index();
        }
        let page = self.pages.page_of(lba);
        let frame = self.frame_of[page.index()];
        debug_assert_ne!(frame, FrameId::NONE, "{page} is used without being there");
        self.frame_base(frame) + (lba - self.pages.first_sector_of(page)).index()
    }

    /// Returns the page of a host sector; `None` for the pages' own sectors.
    #[inline]
    pub(crate) fn page_of(&self, lba: Lba) -> Option<MapPageId> {
        (lba.get() < self.logical).then(|| self.pages.page_of(lba))
    }

    /// Returns the first sector of a page and the number of its sectors.
    pub(crate) fn page_range(&self, page: MapPageId) -> LbaRun {
        self.pages.sectors_of(page, self.logical)
    }

    /// Returns the number of sectors from `lba` on that are in its page.
    #[inline]
    pub(crate) fn run_in_page(&self, lba: Lba, sectors: u32) -> u32 {
        sectors.min(self.page_range(self.pages.page_of(lba)).end() - lba)
    }

    /// Whether a page is in a frame.
    #[inline]
    pub(crate) fn is_resident(&self, page: MapPageId) -> bool {
        self.frame_of[page.index()] != FrameId::NONE
    }

    /// Returns whether a page is in a frame, and marks it as used.
    #[inline]
    pub(crate) fn touch(&mut self, page: MapPageId) -> bool {
        let frame = self.frame_of[page.index()];
        if let Some(frame) = self.frames.get_mut(frame.get()) {
            frame.referenced = true;
        }
        frame != FrameId::NONE
    }

    /// Whether a page in a frame is pinned.
    #[inline]
    pub(crate) fn is_pinned(&self, page: MapPageId) -> bool {
        let frame = self.frame_of[page.index()];
        self.frames.get(frame.get()).is_some_and(|f| f.pins > 0)
    }

    /// Pins a page.
    #[inline]
    pub(crate) fn pin(&mut self, page: MapPageId) {
        self.pin_frame(self.frame_of[page.index()]);
    }

    #[inline]
    fn pin_frame(&mut self, frame: FrameId) {
        let frame = &mut self.frames[frame.get()];
        self.pinned += u32::from(frame.pins == 0);
        frame.pins += 1;
    }

    /// Releases one pin of a page.
    #[inline]
    pub(crate) fn unpin(&mut self, page: MapPageId) {
        self.unpin_frame(self.frame_of[page.index()]);
    }

    #[inline]
    fn unpin_frame(&mut self, frame: FrameId) {
        let frame = &mut self.frames[frame.get()];
        debug_assert!(frame.pins > 0);
        frame.pins -= 1;
        self.pinned -= u32::from(frame.pins == 0);
    }

    /// Takes a free frame for a page being fetched, which pins it.
    pub(crate) fn allocate(&mut self, page: MapPageId) -> Option<FrameId> {
        let frame = FrameId(self.frames.take_free()?);
        self.frames[frame.get()] = Frame { page, pins: 0, referenced: true };
        self.pin_frame(frame);
        self.resident_max = self.resident_max.max(self.resident());
        Some(frame)
    }

    /// Records that the page is in its frame, still pinned.
    pub(crate) fn fill_done(&mut self, frame: FrameId) {
        let page = self.frames[frame.get()].page;
        debug_assert!(!self.is_resident(page));
        self.frame_of[page.index()] = frame;
    }

    /// Advances the hand to the next page that may be evicted: a `clean` one, or with `any` every
    /// unpinned one. Returns `None` if there is none within `steps`.
    pub(crate) fn pick_victim(
        &mut self,
        steps: u32,
        any: bool,
        clean: impl Fn(MapPageId) -> bool,
    ) -> Option<MapPageId> {
        self.pick_victim_if(steps, |page| any || clean(page))
    }

    /// Picks a frame to evict among those for which `may` holds.
    pub(crate) fn pick_victim_if(
        &mut self,
        steps: u32,
        may: impl Fn(MapPageId) -> bool,
    ) -> Option<MapPageId> {
        if self.pinned == self.frames.len() {
            return None;
        }
        let frame = self.frames.pick_victim(steps, |frame| may(frame.page))?;
        Some(self.frames[frame].page)
    }

    /// Evicts a page; its frame is free.
    pub(crate) fn evict(&mut self, page: MapPageId) {
        let frame = std::mem::replace(&mut self.frame_of[page.index()], FrameId::NONE);
        debug_assert_eq!(self.frames[frame.get()].pins, 0);
        self.frames[frame.get()].page = MapPageId::NONE;
        self.frames.release(frame.get());
    }

    /// Resident pages and the number of pins of each; pages that are being read are not resident.
    pub(crate) fn resident_pins(&self) -> impl Iterator<Item = (MapPageId, u32)> {
        let frames =
            self.frames.iter().filter(|f| f.page != MapPageId::NONE && self.is_resident(f.page));
        frames.map(|f| (f.page, f.pins))
    }

    /// Checks that pages and frames refer to each other, and the counters.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        for (page, &frame) in (0..).zip(&self.frame_of) {
            if frame != FrameId::NONE {
                let found = self.frames.get(frame.get()).map_or(MapPageId::NONE, |f| f.page).get();
                require_eq!(
                    Mapping,
                    "the frame of a page holds it",
                    Subject::Page(MapPageId(page)),
                    page,
                    found
                );
            }
        }
        let mut free = vec![false; self.frames.len().index()];
        for &frame in self.frames.free_indices() {
            let twice = std::mem::replace(&mut free[frame.index()], true);
            require!(!twice, Mapping, "a frame is free once", Subject::Frame(FrameId(frame)), 1, 2);
        }
        let mut held = 0;
        for (frame, (f, &is_free)) in (0..).zip(self.frames.iter().zip(&free)) {
            require_eq!(
                Mapping,
                "a frame is free or holds a page",
                Subject::Frame(FrameId(frame)),
                is_free,
                f.page == MapPageId::NONE
            );
            held += u32::from(f.pins > 0 && !is_free);
        }
        require_eq!(Mapping, "pinned frames", Subject::Part, held, self.pinned);
        Ok(())
    }

    /// The number of the frame for look-ups.
    pub(crate) fn scratch_frame(&self) -> FrameId {
        FrameId(self.frames.len())
    }

    /// Shows a page in the scratch frame, until it is cleared.
    pub(crate) fn map_scratch(&mut self, page: MapPageId) {
        debug_assert!(!self.is_resident(page));
        self.frame_of[page.index()] = self.scratch_frame();
    }

    /// Clears the scratch frame.
    pub(crate) fn unmap_scratch(&mut self, page: MapPageId) {
        self.frame_of[page.index()] = FrameId::NONE;
    }

    /// Returns the index of the first entry of a frame.
    #[inline]
    pub(crate) fn frame_base(&self, frame: FrameId) -> usize {
        frame.index() * self.pages.sectors_per_page().index()
    }

    /// Returns the number of frames with a page in them or being fetched.
    pub(crate) fn resident(&self) -> u32 {
        self.frames.in_use()
    }

    /// Returns the maximum of the resident pages so far.
    pub(crate) fn resident_max(&self) -> u32 {
        self.resident_max
    }

    /// Returns the number of pinned frames.
    pub(crate) fn pinned(&self) -> u32 {
        self.pinned
    }

    /// Returns the number of frames without the scratch frame.
    pub(crate) fn len(&self) -> u32 {
        self.frames.len()
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;
    use rng::Rng;

    use super::*;
    use crate::ids::ToU32;

    fn frames(pages: u32, frames: u32) -> Frames {
        let shape = FlashGeometry::from_geometry(&Geometry {
            groups: 1,
            pus: 1,
            chunks: 100,
            sectors: 100,
            sector_bytes: 512,
            oob_bytes: 16,
            ws_min: 1,
            ws_opt: 1,
            mw_cunits: 0,
        });
        Frames::new(&shape, pages * 112 - 5, pages, frames)
    }

    fn fill(f: &mut Frames, page: MapPageId) {
        let frame = f.allocate(page).expect("a free frame");
        f.fill_done(frame);
        f.unpin(page);
    }

    #[test]
    fn words_of_a_page_are_in_its_frame_and_the_pages_own_behind_all() {
        let mut f = frames(4, 2);
        assert_eq!(
            (f.entry_count(), f.scratch_frame(), f.page_range(MapPageId(3))),
            (3 * 112 + 4, FrameId(2), LbaRun { first: Lba(336), sectors: 107 })
        );
        assert_eq!((f.page_of(Lba(442)), f.page_of(Lba(443))), (Some(MapPageId(3)), None));
        assert_eq!(
            (f.run_in_page(Lba(100), 50), f.run_in_page(Lba(440), 9), f.run_in_page(Lba(0), 7)),
            (12, 3, 7)
        );
        fill(&mut f, MapPageId(3));
        fill(&mut f, MapPageId(1));
        assert_eq!((f.index(Lba(336)), f.index(Lba(113)), f.index(Lba(443))), (0, 113, 336));
        assert!(
            f.is_resident(MapPageId(3))
                && !f.is_resident(MapPageId(0))
                && f.allocate(MapPageId(0)).is_none()
        );
        f.map_scratch(MapPageId(0));
        assert_eq!(f.index(Lba(1)), 225);
        f.unmap_scratch(MapPageId(0));
        assert!(!f.is_resident(MapPageId(0)));
    }

    #[test]
    fn the_hand_spares_what_was_used_once_and_what_is_pinned_always() {
        let mut f = frames(8, 3);
        (0..3).for_each(|page| fill(&mut f, MapPageId(page)));
        f.pin(MapPageId(1));
        // The first round clears the reference bits.
        let second = f.pick_victim(6, true, |_| true).expect("two may go");
        assert_ne!(second, MapPageId(1));
        f.evict(second);
        fill(&mut f, MapPageId(5));
        let third = f.pick_victim(6, true, |_| true).expect("one has no mark");
        assert!(third != MapPageId(1) && third != MapPageId(5), "{third}");
        f.pin(third);
        assert_eq!(
            f.pick_victim(6, false, |page| page != MapPageId(5)),
            None,
            "what is left is not clean"
        );
        f.pin(MapPageId(5));
        assert_eq!((f.pinned(), f.pick_victim(100, true, |_| true)), (3, None));
        f.unpin(MapPageId(5));
        assert_eq!(f.pick_victim(6, true, |_| true), Some(MapPageId(5)));
    }

    #[test]
    fn random_use_agrees_with_a_model_and_never_exceeds_the_frames() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (pages, count) = (2 + rng.below(30).to_u32(), 1 + rng.below(9).to_u32());
            let mut f = frames(pages, count);
            let mut model: Vec<Option<u32>> = vec![None; pages.index()];
            for _ in 0..500 {
                let page = rng.below(pages.into()).to_u32();
                let holds = &mut model[page.index()];
                match (rng.below(4), *holds) {
                    (0 | 1, None) => {
                        if f.allocate(MapPageId(page)).is_none() {
                            let clean = rng.below(pages.into()).to_u32();
                            let any = rng.chance(0.5);
                            let chosen =
                                f.pick_victim(2 * count + 1, any, |p| p >= MapPageId(clean));
                            let may = |p: &u32| model[p.index()] == Some(0) && (any || *p >= clean);
                            assert_eq!(chosen.is_some(), (0..pages).any(|p| may(&p)), "{seed}");
                            let Some(chosen) = chosen else { continue };
                            assert!(may(&chosen.get()), "seed {seed}: {chosen}");
                            f.evict(chosen);
                            model[chosen.index()] = None;
                            f.allocate(MapPageId(page)).expect("it is free now");
                        }
                        let frame = f.frames.iter().position(|x| x.page == MapPageId(page));
                        f.fill_done(FrameId(frame.expect("it was taken").to_u32()));
                        model[page.index()] = Some(1);
                    }
                    (0 | 2, Some(n)) => {
                        f.pin(MapPageId(page));
                        *holds = Some(n + 1);
                    }
                    (_, Some(n @ 1..)) => {
                        f.unpin(MapPageId(page));
                        *holds = Some(n - 1);
                    }
                    _ => {}
                }
                for (page, holds) in (0..).zip(&model) {
                    assert_eq!(f.touch(MapPageId(page)), holds.is_some(), "seed {seed}");
                    assert_eq!(
                        f.is_pinned(MapPageId(page)),
                        holds.is_some_and(|n| n > 0),
                        "seed {seed}"
                    );
                }
                let resident = model.iter().flatten().count().to_u32();
                assert_eq!(f.resident(), resident, "seed {seed}");
                assert!(resident <= count && f.resident_max() <= count, "seed {seed}");
                assert_eq!(f.pinned(), model.iter().flatten().filter(|n| **n > 0).count().to_u32());
            }
        }
    }
}
