//! [`Salvage`]: pages of a map in frames that cannot be read are rebuilt of what lines say of themselves
//! (LightNVM paper section 4.2.2: the map is recovered by scanning the metadata of blocks).
//!
//! # Of what
//!
//! * The **reverse map**, if it is in memory and the page was counted: it says what is valid, whatever can be
//!   read. The page is then what it was.
//! * Else a [scan](crate::line_scan) of all lines: of all copies of a sector the one in the unit with the
//!   largest number is the newest. One whose last metadata names it where nothing can be read is a media error.
//!   A page that is lost while others are being rebuilt joins where the scan is, and has been rebuilt when the
//!   scan comes there again: pages that are lost together are rebuilt in one scan.
//!
//! # Never an older copy
//!
//! What a scan cannot read, and nothing names, may hold newer copies than those that it finds. No copy is there
//! in a unit with a larger number than the newest of that line: what was found in such a unit is the newest; what
//! was not is a media error. So is what was lost before and has no place that says so (`lost`).
//!
//! # Why nothing changes meanwhile
//!
//! A page that is not in a frame has no sector in the write buffer, and none can get there: writes, trims and
//! garbage collection wait for the page. So no copy of its sectors is written while it is rebuilt, and none
//! that is valid is erased: a line with such a sector is not reclaimed before it was moved. What is erased, or is
//! about to be, was obsolete, and is taken out ([`Ftl::forget_line`], [`Ftl::settle_rebuilt`]).
//!
//! # What it does not write
//!
//! Anything. The page is changed from then on, and written as any other: a power cut before that loses it
//! again, and it is rebuilt again. Checkpoints meanwhile say where it was, or that it is lost.
//!
//! # Why flushes wait for it
//!
//! When a chunk is going, the pages on it that are in no frame are brought into one, rebuilt if need be, while
//! it is still known what was in it, and the checkpoint that says what is lost begins when they are there: after
//! a flush and a power cut the same sectors are lost as before.
//!
//! # What it costs
//!
//! [`PAGES`] pages of copies, 16 bytes for each sector of a page; one pass over the reverse map, or one over all
//! lines. On the path of a write, a word of the reverse map: only a map in frames has what is not valid taken
//! out of it.
//!
//! # What cannot be known
//!
//! A scan does not see what was trimmed: a trim is taken back, as long as a copy is on the media. Nor, what was
//! lost without a place if the page has not been read since power came on; nor what could not be read already
//! when it did, of which recovery knows nothing either (see `recover::lost`). Nor does it see what a die held that
//! went while power was off: every sector of the pages there may have had its newest copy on it, unless a unit since
//! the last checkpoint has one that can be read. `tests/paging.rs` counts that no fewer can be errors.
//! Lines of what it brings back may have counted it already: then they count it twice, and seem fuller than they
//! are until they are reclaimed. Never emptier, which would have them erased below their readers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use clock::Nanos;

use crate::fetch::{Demand, Want};
use crate::line_scan::LineScan;
use crate::lines::{LineState, NONE};
use crate::map::Map;
use crate::recover::Copy;
use crate::{Flash, Ftl, Location, Oob, Shape};

/// Pages that are being rebuilt, or have been and are in no frame yet, at most, besides those that are
/// fetched.
const PAGES: usize = 64;

/// Pages on chunks that are going that are fetched at a time.
const DOUBTFUL: u32 = 4;

/// A sector of which no copy was found.
const NOWHERE: Copy = Copy { sequence: 0, psn: NONE, poison: false };

/// A page that is being rebuilt.
#[derive(Clone)]
struct Rebuild {
    /// It is done when the scan, once round, comes here.
    stop: u32,
    rounds: u32,
    done: bool,
    /// The reverse map knows what is valid: nothing needs to be looked for.
    exact: bool,
    /// Units with numbers up to this one may hold copies that nothing tells of; none of those in lines that
    /// were opened from `until` on does.
    blind: u64,
    until: u64,
    /// The newest copies found of its sectors.
    copies: Box<[Copy]>,
}

impl Rebuild {
    /// Everything has been looked at; `lost` as in [`Salvage`]. What may have had a newer copy, or was lost
    /// before, is lost.
    fn end(&mut self, blind: u64, lost: u64) {
        self.done = true;
        let blind = if self.exact { 0 } else { self.blind.max(blind).max(lost) };
        for copy in &mut self.copies {
            let nowhere = copy.psn == NONE && copy.sequence == 0;
            if !self.exact && copy.sequence <= blind && blind > 0 || nowhere && lost > 0 {
                (copy.psn, copy.poison) = (NONE, true);
            }
        }
    }
}

/// Pages that are being rebuilt.
#[derive(Clone, Default)]
pub(crate) struct Salvage {
    pages: BTreeMap<u32, Rebuild>,
    pub(crate) scan: LineScan,
    /// A page that the reverse map knows all of has joined, and has not been looked for.
    known: bool,
    /// A page has joined since the scan went on.
    joined: bool,
    /// Pages on chunks that are going, in no frame: they are to be brought there, and written elsewhere.
    doubtful: BTreeSet<u32>,
    /// Pages that alone know of some of their sectors that those were lost, and the number that the next unit
    /// had when that was last seen.
    lost: BTreeMap<u32, u64>,
    /// Units with numbers up to this one may be where nothing was found since power came on.
    blind: u64,
    /// The number of the first unit since then.
    begun: u64,
    /// What could not be read already when power came on.
    unreadable: BTreeSet<u32>,
}

impl fmt::Debug for Salvage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = self.pages.iter().map(|(page, r)| (page, r.stop, r.rounds, r.done));
        f.debug_struct("Salvage")
            .field("pages", &pages.collect::<Vec<_>>())
            .field("scan", &self.scan)
            .field("doubtful", &self.doubtful)
            .finish_non_exhaustive()
    }
}

impl Salvage {
    /// Learns what a recovery could not read, which number comes next, and whether there may be chunks with
    /// something in them that are in no line.
    pub(crate) fn begin(&mut self, unreadable: BTreeSet<u32>, next: u64, blind: bool) {
        (self.unreadable, self.begun) = (unreadable, next);
        self.blind = if blind { next } else { 0 };
    }

    /// Whether pages are being rebuilt, or have been and are in no frame yet.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !self.pages.is_empty() || self.doubts()
    }

    /// Whether a page has been rebuilt and is in no frame yet.
    pub(crate) fn has(&self, page: u32) -> bool {
        self.pages.get(&page).is_some_and(|r| r.done)
    }

    /// The copies of a page that has been rebuilt; to be given back if it goes into no frame.
    pub(crate) fn take(&mut self, page: u32) -> Box<[Copy]> {
        self.pages.get_mut(&page).map_or_else(Box::default, |r| std::mem::take(&mut r.copies))
    }

    pub(crate) fn give_back(&mut self, page: u32, copies: Box<[Copy]>) {
        if let Some(rebuild) = self.pages.get_mut(&page) {
            rebuild.copies = copies;
        }
    }

    /// A page is in a frame. Returns whether it is to be written elsewhere.
    pub(crate) fn forget(&mut self, page: u32) -> bool {
        self.pages.remove(&page);
        self.doubtful.remove(&page)
    }

    /// A page that is in no frame is on a chunk that is going.
    pub(crate) fn doubt(&mut self, page: u32) {
        self.doubtful.insert(page);
    }

    /// Whether there are pages on chunks that are going, which are in no frame yet.
    pub(crate) fn doubts(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// A page says of some sector that it was lost, and not where: nothing else does.
    #[cold]
    pub(crate) fn note_lost(&mut self, page: u32, next: u64) {
        self.lost.insert(page, next);
    }

    /// Whether a page has joined that the scan has not gone on for.
    #[inline]
    pub(crate) fn has_joined(&self) -> bool {
        self.joined
    }

    /// Whether pages are being rebuilt.
    pub(crate) fn is_scanning(&self) -> bool {
        self.pages.values().any(|r| !r.done)
    }

    /// Whether a sector could not be read when power came on.
    pub(crate) fn was_unreadable(&self, psn: u32) -> bool {
        self.unreadable.contains(&psn)
    }

    /// What could not be read of a line, and nothing names, is in units with numbers up to `newest`.
    pub(crate) fn cannot_look(&mut self, opening: u64, newest: u64) {
        for rebuild in self.pages.values_mut().filter(|r| !r.done && opening < r.until) {
            rebuild.blind = rebuild.blind.max(newest);
        }
    }

    /// A copy was found.
    pub(crate) fn found(&mut self, map: &Map, shape: &Shape, psn: u32, oob: Oob) {
        let Some((lba, frames)) = oob.lba.zip(map.frames.as_ref()) else { return };
        let Some(page) = frames.page_of(lba) else { return };
        let Some(rebuild) = self.pages.get_mut(&page).filter(|r| !r.done && !r.exact) else {
            return;
        };
        let at = lba - frames.sectors(shape.map_page_of(lba)).0;
        let Some(newest) = rebuild.copies.get_mut(at as usize) else { return };
        // Within a unit the later one is newer.
        let first = newest.psn == NONE && newest.sequence == 0;
        if first || (oob.sequence, psn) > (newest.sequence, newest.psn) {
            *newest = Copy { sequence: oob.sequence, psn, poison: oob.poison };
        }
    }

    /// A line has been looked at, this one is next. Returns whether a page has been rebuilt.
    fn turn(&mut self, lines: u32) -> bool {
        let (at, wraps) = self.scan.turn(lines);
        let mut ended = false;
        for (page, rebuild) in self.pages.iter_mut().filter(|(_, r)| !r.done) {
            rebuild.rounds += u32::from(wraps);
            if rebuild.rounds > 1 || rebuild.rounds == 1 && at >= rebuild.stop {
                rebuild.end(self.blind, self.lost.get(page).copied().unwrap_or(0));
                ended = true;
            }
        }
        ended
    }
}

impl Ftl {
    /// Has a page rebuilt that cannot be read; [`has`](Salvage::has) says when it is.
    #[cold]
    pub(crate) fn salvage(&mut self, page: u32, flash: &impl Flash) {
        if self.salvage.pages.contains_key(&page) || !self.may_salvage(page, flash) {
            return;
        }
        // What was rebuilt for reads that needed no frame is rebuilt again when it is needed again.
        let waits = |page: &u32| self.fetches.find(*page).is_some();
        let done = self.salvage.pages.iter().find(|(page, r)| r.done && !waits(page));
        if self.salvage.pages.len() >= PAGES
            && let Some(page) = done.map(|(page, _)| *page)
        {
            self.salvage.pages.remove(&page);
        }
        let first = !self.salvage.is_scanning();
        self.join_salvage(page);
        if first {
            self.join_others();
        }
    }

    /// Whether there is something that a page can be rebuilt of: not without data, and if everything was
    /// looked at by the recovery, it knows all that there is.
    pub(crate) fn may_salvage(&self, page: u32, flash: &impl Flash) -> bool {
        flash.keeps_data() && !self.counting.knows_all(page)
    }

    fn join_salvage(&mut self, page: u32) {
        let Some(frames) = &self.map.frames else { return };
        let (_, count) = frames.sectors(page);
        let uncounted = self.counting.is_uncounted(page);
        let exact = self.reverse.is_in_memory() && !uncounted;
        let s = &mut self.salvage;
        // One that has not been counted has not been in a frame since power came on.
        let until = if uncounted { s.begun } else { u64::MAX };
        (s.joined, s.known) = (true, s.known || exact);
        // Of the line that is being looked at some has been missed.
        let stop = s.scan.ahead();
        let copies = vec![NOWHERE; count as usize].into();
        let rebuild = Rebuild { stop, rounds: 0, done: false, exact, blind: 0, until, copies };
        s.pages.insert(page, rebuild);
    }

    /// The other pages that are known to be lost, or were on chunks that have gone, are rebuilt in the same
    /// scan.
    fn join_others(&mut self) {
        for page in 0..self.layout.meta {
            if self.salvage.pages.len() >= PAGES / 2 {
                return;
            }
            let lost = match self.map.get(self.layout.logical + page) {
                Location::Lost => true,
                Location::Flash(psn) => {
                    self.reverse.poisoned(psn)
                        || self.lines.chunks[self.shape.chunk_of(psn) as usize].offline
                }
                Location::Buffer(slot) => self.entry(slot).poison,
                Location::Unmapped => false,
            };
            let resident = self.map.has_page(page) || self.counting.knows_all(page);
            if lost && !resident && !self.salvage.pages.contains_key(&page) {
                self.join_salvage(page);
            }
        }
    }

    /// Goes on with the scan, and puts what nobody waits for into frames. Returns whether a page has been
    /// rebuilt or put there.
    pub(crate) fn go_on_with_salvage(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        self.salvage.is_busy() && self.salvage_now(now, flash)
    }

    #[cold]
    fn salvage_now(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        self.salvage.joined = false;
        let mut moved = self.look_in_memory();
        while self.salvage.is_scanning() && self.look_at_line(now, flash) {
            moved |= self.salvage.turn(self.lines.lines.len() as u32);
        }
        moved |= self.fetches.end_salvaged(&self.salvage);
        // Whoever waits comes first; what is left needs a frame.
        let waits = |page: &u32| self.fetches.find(*page).is_some();
        let left = self.salvage.pages.iter().find(|(page, r)| r.done && !waits(page));
        if let Some(page) = left.map(|(page, _)| *page) {
            moved |= self.want_page(now, page, Demand::Merge, flash) == Want::Resident;
            self.hide();
        }
        self.bring_doubtful(now, flash) | moved
    }

    /// Brings pages that are on chunks that are going into frames, from which they are written elsewhere.
    fn bring_doubtful(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        let (mut moved, mut from) = (false, 0);
        while let Some(page) = self.salvage.doubtful.range(from..).next().copied() {
            if self.fetches.arriving() >= DOUBTFUL {
                break;
            }
            match self.want_page(now, page, Demand::Merge, flash) {
                Want::Resident => {
                    // There before somebody looked.
                    if self.salvage.forget(page) {
                        self.checkpoint.touch(page);
                    }
                    moved = true;
                }
                Want::Coming(_) => {}
                Want::Nothing => break,
            }
            self.hide();
            from = page + 1;
        }
        moved
    }

    /// Finds what is valid in pages of which the reverse map knows.
    fn look_in_memory(&mut self) -> bool {
        if !std::mem::take(&mut self.salvage.known) {
            return false;
        }
        let mut known: BTreeMap<u32, &mut Rebuild> = BTreeMap::new();
        for (page, rebuild) in self.salvage.pages.iter_mut().filter(|(_, r)| r.exact && !r.done) {
            known.insert(*page, rebuild);
        }
        let Some(frames) = &self.map.frames else { return false };
        for chunk in 0..self.shape.total_chunks() {
            let c = &self.lines.chunks[chunk as usize];
            // Of no line is what is in a bad chunk.
            let written = match self.lines.line_of[chunk as usize] {
                NONE if c.bad => self.shape.sectors,
                NONE => 0,
                _ => c.persisted,
            };
            let first_psn = self.shape.first_psn(chunk);
            for psn in first_psn..first_psn + written {
                let Some(lba) = self.reverse.get(psn) else { continue };
                let Some(page) = frames.page_of(lba) else { continue };
                let Some(rebuild) = known.get_mut(&page) else { continue };
                let at = (lba - frames.sectors(page).0) as usize;
                debug_assert!(rebuild.copies[at] == NOWHERE, "sector {lba} is valid twice");
                let poison = self.reverse.poisoned(psn);
                rebuild.copies[at] = Copy { sequence: 1, psn, poison };
            }
        }
        for (page, rebuild) in known {
            rebuild.end(0, self.salvage.lost.get(&page).copied().unwrap_or(0));
        }
        true
    }

    /// What is in a line is about to be erased: nobody wants it.
    #[inline]
    pub(crate) fn forget_line(&mut self, line: u32) {
        if self.map.frames.is_some() {
            self.forget_line_now(line);
        }
    }

    #[cold]
    fn forget_line_now(&mut self, line: u32) {
        let s = &mut self.salvage;
        s.scan.leave(line);
        let (line_of, shape) = (&self.lines.line_of, &self.shape);
        let there = |psn: u32| psn != NONE && line_of[shape.chunk_of(psn) as usize] == line;
        for copy in s.pages.values_mut().flat_map(|r| &mut *r.copies).filter(|c| there(c.psn)) {
            copy.psn = NONE;
        }
        s.unreadable.retain(|psn| !there(*psn));
    }

    /// Takes out what is in lines that are about to be erased, or in none.
    pub(crate) fn settle_rebuilt(&self, copies: &mut [Copy]) {
        for copy in copies.iter_mut().filter(|c| c.psn != NONE) {
            let chunk = self.shape.chunk_of(copy.psn) as usize;
            let line = self.lines.lines.get(self.lines.line_of[chunk] as usize);
            let gone =
                |l: &crate::lines::Line| matches!(l.state, LineState::Free | LineState::Draining);
            // Of no line is what is in a bad chunk: reads of it fail.
            if line.map_or(!self.lines.chunks[chunk].bad, gone) {
                copy.psn = NONE;
            }
        }
    }

    /// A page that had been counted was rebuilt, and not of what is known to be valid: its lines count what
    /// it says, perhaps once more, and one that is being collected is gone through again.
    pub(crate) fn count_rebuilt(&mut self, first: u32, copies: &[Copy]) {
        let exact = self.reverse.is_in_memory();
        let mut lines: BTreeMap<u32, u32> = BTreeMap::new();
        for (lba, copy) in (first..).zip(copies).filter(|(_, c)| c.psn != NONE) {
            self.reverse.set(copy.psn, Some(lba), copy.poison);
            let line = self.lines.line_of[self.shape.chunk_of(copy.psn) as usize];
            *lines.entry(line).or_default() += 1;
        }
        for (line, sectors) in lines.into_iter().filter(|_| !exact) {
            self.lines.revive(line, sectors);
            for scan in self.collector.victims.iter_mut().filter(|scan| scan.line == line) {
                (scan.unit, scan.member) = (0, 0);
            }
        }
    }
}
