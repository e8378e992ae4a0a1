//! [`Counting`]: after a recovery that leaves the map's pages where they are, what they say: how many
//! sectors of each line are valid, which logical sector is where, and what was lost.
//!
//! A page is counted when it is first looked at for good, be it because a request needs it or because
//! its turn has come; one that says the same as when it was written needs no frame for that. Copies
//! that were found in units which its page does not know of wait here until then, and change it. Until
//! every page is counted
//!
//! * the counts of valid sectors are too low, so that no line is closed and none reclaimed;
//! * no checkpoint begins, so that copies that no page knows of are found again after the next power
//!   cut.
//!
//! Nothing else waits: reads and writes are served from the start. Without need one page is read at a
//! time, and only when nothing else is; when space gets short, many.

use std::collections::BTreeSet;

use clock::Nanos;

use crate::fetch::{BACKGROUND, Demand, Want};
use crate::frames::Frames;
use crate::ftl::STREAMS;
use crate::map_page::{MapPage, Mapped};
use crate::recover::{Copies, Sightings};
use crate::{Flash, Ftl, Shape};

/// Pages that have not been looked at since the recovery, and copies newer than what they say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counting {
    /// One bit per page; how many are set; where to go on.
    uncounted: Box<[u64]>,
    left: u32,
    next: u32,
    /// Pages that could not be read when they were only looked at, or that say what does not hold.
    bad: BTreeSet<u32>,
    copies: Copies,
    /// Everything on the media was looked at; and what was found there.
    all: bool,
    seen: Sightings,
}

impl Counting {
    /// These of `pages` pages are to be counted.
    pub(crate) fn new(
        pages: u32,
        to_count: impl Iterator<Item = u32>,
        copies: Copies,
        all: bool,
        seen: Sightings,
    ) -> Counting {
        let mut uncounted = vec![0u64; (pages as usize).div_ceil(64)];
        for page in to_count {
            uncounted[page as usize / 64] |= 1 << (page % 64);
        }
        let left = uncounted.iter().map(|w| w.count_ones()).sum();
        Counting {
            uncounted: uncounted.into(),
            left,
            next: 0,
            bad: BTreeSet::new(),
            copies,
            all,
            seen,
        }
    }

    /// Whether some page has not been counted.
    #[inline]
    pub(crate) fn is_counting(&self) -> bool {
        self.left > 0
    }

    /// Whether a page has not been counted.
    #[inline]
    pub(crate) fn is_uncounted(&self, page: u32) -> bool {
        self.left > 0 && self.uncounted[page as usize / 64] >> (page % 64) & 1 != 0
    }

    /// Whether all that there is of a page that has not been counted was found by the recovery.
    #[inline]
    pub(crate) fn knows_all(&self, page: u32) -> bool {
        self.all && self.is_uncounted(page)
    }

    /// Sectors of the pages that have not been counted.
    pub(crate) fn sectors_at_most(&self, shape: &Shape) -> u64 {
        u64::from(self.left) * u64::from(MapPage::count(shape))
    }

    /// A page that was only looked at cannot be read, or does not say what holds.
    pub(crate) fn needs_frame(&mut self, page: u32) {
        if self.is_uncounted(page) {
            self.bad.insert(page);
        }
    }

    /// A page has been counted.
    pub(crate) fn counted(&mut self, page: u32) {
        self.left -= u32::from(self.is_uncounted(page));
        self.uncounted[page as usize / 64] &= !(1 << (page % 64));
        self.bad.remove(&page);
    }

    /// Whether copies wait for a page.
    pub(crate) fn has_copies(&self, page: u32, frames: &Frames) -> bool {
        let (first, count) = frames.sectors(page);
        self.copies.any_in(first..first + count)
    }

    /// The next page that is not counted, from `self.next` on.
    fn next_page(&self) -> Option<u32> {
        let mut word = self.next as usize / 64;
        let mut bits = self.uncounted.get(word)? & !0 << (self.next % 64);
        while bits == 0 {
            word += 1;
            bits = *self.uncounted.get(word)?;
        }
        Some(word as u32 * 64 + bits.trailing_zeros())
    }
}

impl Ftl {
    /// What holds of a sector of a page that is not counted, and whether the page says something else;
    /// with `take` for good.
    ///
    /// A page says what holds if no copy was found in a unit numbered from its `low` on; one that was
    /// lost has none, and says nothing. When everything was read it takes back what was trimmed, and
    /// knows of what could not be read; what else it says was found. What is not where it says has a
    /// newer copy that cannot be read: it is lost (see `recover::lost`).
    pub(crate) fn merge(
        &mut self,
        lba: u32,
        mapped: &mut Mapped,
        low: Option<u64>,
        take: bool,
    ) -> bool {
        let (c, shape) = (&mut self.counting, &self.shape);
        let copy = c.copies.get(lba);
        if take && copy.is_some() {
            c.copies.forget(lba);
        }
        let newer = copy.is_some_and(|c| low.is_none_or(|low| c.sequence >= low));
        let stale = |psn| c.seen.is_stale(shape, lba, psn);
        if !newer && low.is_some() && mapped.psn.is_some_and(stale) {
            *mapped = Mapped { psn: None, poison: true };
            if take {
                self.stats.map_sectors_lost += 1;
                self.checkpoint.note_loss();
            }
            return true;
        }
        let readable = |psn| !c.seen.cannot_look(shape, psn);
        let known = !c.all || low.is_some() && !mapped.psn.is_some_and(readable);
        if !newer && known {
            return false;
        }
        let before = *mapped;
        *mapped = match copy {
            Some(copy) => Mapped { psn: Some(copy.psn), poison: copy.poison },
            None => Mapped { psn: None, poison: false },
        };
        if !newer && low.is_some() && take {
            self.stats.map_contradictions += u64::from(before.psn != mapped.psn);
        }
        *mapped != before
    }

    /// A sector is where a page that is being counted says.
    pub(crate) fn count(&mut self, lba: u32, psn: u32, poison: bool) {
        let line = self.lines.line_of[self.shape.chunk_of(psn) as usize];
        // Of no line is what is in a bad chunk: reads of it fail.
        if let Some(line) = self.lines.lines.get_mut(line as usize) {
            line.valid += 1;
        }
        self.reverse.set(psn, Some(lba), poison);
    }

    /// Counts pages, as long as nobody else reads any, or as fast as it goes when that is waited for.
    pub(crate) fn go_on_counting(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        if !self.lines.counting {
            return false;
        }
        let hurries = self.limiter.collects(self.free_sectors()) || self.checkpoint.is_wanted();
        let most = if hurries { BACKGROUND } else { 1 };
        let (mut moved, mut again) = (false, self.counting.next > 0);
        while self.fetches.arriving() < most {
            let Some(page) = self.counting.next_page() else {
                self.counting.next = 0;
                if std::mem::take(&mut again) {
                    continue;
                }
                break;
            };
            let changed = self.counting.bad.contains(&page)
                || self.map.frames.as_ref().is_some_and(|f| self.counting.has_copies(page, f));
            let demand = if changed { Demand::Merge } else { Demand::Count };
            match self.want_page(now, page, demand, flash) {
                Want::Nothing => break,
                Want::Coming(_) => {}
                Want::Resident => moved = true,
            }
            self.hide();
            self.counting.next = page + 1;
        }
        if !self.counting.is_counting() {
            self.end_counting();
            return true;
        }
        moved
    }

    /// Every page is counted: lines are what they are.
    fn end_counting(&mut self) {
        self.counting = Counting::default();
        self.lines.counting = false;
        for line in 0..self.lines.lines.len() as u32 {
            self.lines.close_if_done(line);
        }
        self.blocked = [false; STREAMS];
    }
}
