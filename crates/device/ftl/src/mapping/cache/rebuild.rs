//! [`PageRebuild`]: pages of a map in frames that cannot be read are rebuilt of what lines say of themselves
//! (LightNVM paper section 4.2.2: the map is recovered by scanning the metadata of blocks).
//!
//! # Of what
//!
//! * The **reverse map**, if it is in memory and the page was counted: it says what is valid, whatever can be
//!   read. The page is then what it was.
//! * Else a [scan](crate::mapping::p2l_reader) of all lines: of all copies of a sector the one in the unit with the
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
//! about to be, was obsolete, and is taken out ([`Ftl::drop_line_copies`], [`Ftl::drop_erased_copies`]).
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

use crate::mapping::cache::fetch::{FetchOutcome, FetchReason};
use crate::mapping::l2p::L2p;
use crate::mapping::p2l_reader::P2lReader;
use crate::recovery::CopyRef;
use crate::space::lines::{LineState, NONE};
use crate::{FlashBackend, FlashGeometry, Ftl, L2pEntry, Oob};

/// Pages that are being rebuilt, or have been and are in no frame yet, at most, besides those that are
/// fetched.
const REBUILD_PAGES_MAX: usize = 64;

/// Pages on chunks that are going that are fetched at a time.
const AT_RISK_FETCH_MAX: u32 = 4;

/// A sector of which no copy was found.
const NO_COPY: CopyRef = CopyRef { sequence: 0, psn: NONE, poison: false };

/// A page that is being rebuilt.
#[derive(Clone)]
struct RebuildJob {
    /// It is done when the scan, once round, comes here.
    stop_line: u32,
    rounds: u32,
    done: bool,
    /// The reverse map knows what is valid: nothing needs to be looked for.
    exact: bool,
    /// Units with numbers up to this one may hold copies that nothing tells of; none of those in lines that
    /// were opened from `until` on does.
    unknown_below_seq: u64,
    until_seq: u64,
    /// The newest copies found of its sectors.
    copies: Box<[CopyRef]>,
}

impl RebuildJob {
    /// Everything has been looked at; `lost` as in [`PageRebuild`]. What may have had a newer copy, or was lost
    /// before, is lost.
    fn complete(&mut self, blind: u64, lost: u64) {
        self.done = true;
        let blind = if self.exact { 0 } else { self.unknown_below_seq.max(blind).max(lost) };
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
pub(crate) struct PageRebuild {
    jobs: BTreeMap<u32, RebuildJob>,
    pub(crate) reader: P2lReader,
    /// A page that the reverse map knows all of has joined, and has not been looked for.
    has_exact_job: bool,
    /// A page has joined since the scan went on.
    has_new_job: bool,
    /// Pages on chunks that are going, in no frame: they are to be brought there, and written elsewhere.
    at_risk_pages: BTreeSet<u32>,
    /// Pages that alone know of some of their sectors that those were lost, and the number that the next unit
    /// had when that was last seen.
    unlocated_losses: BTreeMap<u32, u64>,
    /// Units with numbers up to this one may be where nothing was found since power came on.
    unknown_below_seq: u64,
    /// The number of the first unit since then.
    start_seq: u64,
    /// What could not be read already when power came on.
    unreadable: BTreeSet<u32>,
}

impl fmt::Debug for PageRebuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = self.jobs.iter().map(|(page, r)| (page, r.stop_line, r.rounds, r.done));
        f.debug_struct("Salvage")
            .field("pages", &pages.collect::<Vec<_>>())
            .field("scan", &self.reader)
            .field("doubtful", &self.at_risk_pages)
            .finish_non_exhaustive()
    }
}

impl PageRebuild {
    /// Learns what a recovery could not read, which number comes next, and whether there may be chunks with
    /// something in them that are in no line.
    pub(crate) fn import_recovery(&mut self, unreadable: BTreeSet<u32>, next: u64, blind: bool) {
        (self.unreadable, self.start_seq) = (unreadable, next);
        self.unknown_below_seq = if blind { next } else { 0 };
    }

    /// Pages being rebuilt, and rebuilt pages that no frame holds yet.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = u32> {
        self.jobs.keys().copied()
    }

    /// Whether pages are being rebuilt, or have been and are in no frame yet.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !self.jobs.is_empty() || self.has_at_risk()
    }

    /// Whether a page has been rebuilt and is in no frame yet.
    pub(crate) fn is_rebuilt(&self, page: u32) -> bool {
        self.jobs.get(&page).is_some_and(|r| r.done)
    }

    /// The copies of a page that has been rebuilt; to be given back if it goes into no frame.
    pub(crate) fn take_copies(&mut self, page: u32) -> Box<[CopyRef]> {
        self.jobs.get_mut(&page).map_or_else(Box::default, |r| std::mem::take(&mut r.copies))
    }

    pub(crate) fn return_copies(&mut self, page: u32, copies: Box<[CopyRef]>) {
        if let Some(rebuild) = self.jobs.get_mut(&page) {
            rebuild.copies = copies;
        }
    }

    /// A page is in a frame. Returns whether it is to be written elsewhere.
    pub(crate) fn remove(&mut self, page: u32) -> bool {
        self.jobs.remove(&page);
        self.at_risk_pages.remove(&page)
    }

    /// A page that is in no frame is on a chunk that is going.
    pub(crate) fn mark_at_risk(&mut self, page: u32) {
        self.at_risk_pages.insert(page);
    }

    /// Whether there are pages on chunks that are going, which are in no frame yet.
    pub(crate) fn has_at_risk(&self) -> bool {
        !self.at_risk_pages.is_empty()
    }

    /// A page says of some sector that it was lost, and not where: nothing else does.
    #[cold]
    pub(crate) fn note_unlocated_loss(&mut self, page: u32, next: u64) {
        self.unlocated_losses.insert(page, next);
    }

    /// Whether a page has joined that the scan has not gone on for.
    #[inline]
    pub(crate) fn has_new_job(&self) -> bool {
        self.has_new_job
    }

    /// Whether pages are being rebuilt.
    pub(crate) fn is_scanning(&self) -> bool {
        self.jobs.values().any(|r| !r.done)
    }

    /// Whether a sector could not be read when power came on.
    pub(crate) fn was_unreadable(&self, psn: u32) -> bool {
        self.unreadable.contains(&psn)
    }

    /// What could not be read of a line, and nothing names, is in units with numbers up to `newest`.
    pub(crate) fn note_unreadable(&mut self, opening: u64, newest: u64) {
        for rebuild in self.jobs.values_mut().filter(|r| !r.done && opening < r.until_seq) {
            rebuild.unknown_below_seq = rebuild.unknown_below_seq.max(newest);
        }
    }

    /// A copy was found.
    pub(crate) fn add_copy(&mut self, map: &L2p, shape: &FlashGeometry, psn: u32, oob: Oob) {
        let Some((lba, frames)) = oob.lba.zip(map.frames.as_ref()) else { return };
        let Some(page) = frames.page_of(lba) else { return };
        let Some(rebuild) = self.jobs.get_mut(&page).filter(|r| !r.done && !r.exact) else {
            return;
        };
        let at = lba - frames.page_range(shape.map_page_of(lba)).0;
        let Some(newest) = rebuild.copies.get_mut(at as usize) else { return };
        // Within a unit the later one is newer.
        let first = newest.psn == NONE && newest.sequence == 0;
        if first || (oob.sequence, psn) > (newest.sequence, newest.psn) {
            *newest = CopyRef { sequence: oob.sequence, psn, poison: oob.poison };
        }
    }

    /// A line has been looked at, this one is next. Returns whether a page has been rebuilt.
    fn advance(&mut self, lines: u32) -> bool {
        let (at, wraps) = self.reader.advance(lines);
        let mut ended = false;
        for (page, rebuild) in self.jobs.iter_mut().filter(|(_, r)| !r.done) {
            rebuild.rounds += u32::from(wraps);
            if rebuild.rounds > 1 || rebuild.rounds == 1 && at >= rebuild.stop_line {
                rebuild.complete(
                    self.unknown_below_seq,
                    self.unlocated_losses.get(page).copied().unwrap_or(0),
                );
                ended = true;
            }
        }
        ended
    }
}

impl Ftl {
    /// Has a page rebuilt that cannot be read; [`has`](PageRebuild::is_rebuilt) says when it is.
    #[cold]
    pub(crate) fn rebuild_page(&mut self, page: u32, flash: &impl FlashBackend) {
        if self.mapping.page_rebuild.jobs.contains_key(&page) || !self.can_rebuild(page, flash) {
            return;
        }
        // What was rebuilt for reads that needed no frame is rebuilt again when it is needed again.
        let waits = |page: &u32| self.mapping.fetches.find(*page).is_some();
        let done = self.mapping.page_rebuild.jobs.iter().find(|(page, r)| r.done && !waits(page));
        if self.mapping.page_rebuild.jobs.len() >= REBUILD_PAGES_MAX
            && let Some(page) = done.map(|(page, _)| *page)
        {
            self.mapping.page_rebuild.jobs.remove(&page);
        }
        let first = !self.mapping.page_rebuild.is_scanning();
        self.add_rebuild_job(page);
        if first {
            self.add_lost_pages();
        }
    }

    /// Whether there is something that a page can be rebuilt of: not without data, and if everything was
    /// looked at by the recovery, it knows all that there is.
    pub(crate) fn can_rebuild(&self, page: u32, flash: &impl FlashBackend) -> bool {
        flash.stores_data() && !self.mapping.reconcile.recovery_is_complete_for(page)
    }

    fn add_rebuild_job(&mut self, page: u32) {
        let Some(frames) = &self.mapping.l2p.frames else { return };
        let (_, count) = frames.page_range(page);
        let uncounted = self.mapping.reconcile.is_pending(page);
        let exact = self.mapping.p2l.is_in_memory() && !uncounted;
        let s = &mut self.mapping.page_rebuild;
        // One that has not been counted has not been in a frame since power came on.
        let until = if uncounted { s.start_seq } else { u64::MAX };
        (s.has_new_job, s.has_exact_job) = (true, s.has_exact_job || exact);
        // Of the line that is being looked at some has been missed.
        let stop = s.reader.next_line();
        let copies = vec![NO_COPY; count as usize].into();
        let rebuild = RebuildJob {
            stop_line: stop,
            rounds: 0,
            done: false,
            exact,
            unknown_below_seq: 0,
            until_seq: until,
            copies,
        };
        s.jobs.insert(page, rebuild);
    }

    /// The other pages that are known to be lost, or were on chunks that have gone, are rebuilt in the same
    /// scan.
    fn add_lost_pages(&mut self) {
        for page in 0..self.env.plan.map_pages {
            if self.mapping.page_rebuild.jobs.len() >= REBUILD_PAGES_MAX / 2 {
                return;
            }
            let lost = match self.mapping.l2p.get(self.env.plan.logical + page) {
                L2pEntry::Lost => true,
                L2pEntry::Flash(psn) => {
                    self.mapping.p2l.is_poisoned(psn)
                        || self.space.lines.chunks[self.env.geometry.chunk_of(psn) as usize].offline
                }
                L2pEntry::Buffer(slot) => self.entry(slot).poison,
                L2pEntry::Unmapped => false,
            };
            let resident = self.mapping.l2p.is_page_resident(page)
                || self.mapping.reconcile.recovery_is_complete_for(page);
            if lost && !resident && !self.mapping.page_rebuild.jobs.contains_key(&page) {
                self.add_rebuild_job(page);
            }
        }
    }

    /// Goes on with the scan, and puts what nobody waits for into frames. Returns whether a page has been
    /// rebuilt or put there.
    pub(crate) fn step_rebuild(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        self.mapping.page_rebuild.is_busy() && self.step_rebuild_now(now, flash)
    }

    #[cold]
    fn step_rebuild_now(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        self.mapping.page_rebuild.has_new_job = false;
        let mut moved = self.rebuild_from_p2l();
        while self.mapping.page_rebuild.is_scanning() && self.read_line_p2l(now, flash) {
            moved |= self.mapping.page_rebuild.advance(self.space.lines.lines.len() as u32);
        }
        moved |= self.mapping.fetches.complete_rebuilt(&self.mapping.page_rebuild);
        // Whoever waits comes first; what is left needs a frame.
        let waits = |page: &u32| self.mapping.fetches.find(*page).is_some();
        let left = self.mapping.page_rebuild.jobs.iter().find(|(page, r)| r.done && !waits(page));
        if let Some(page) = left.map(|(page, _)| *page) {
            moved |= self.request_page(now, page, FetchReason::ReconcileLoad, flash)
                == FetchOutcome::Resident;
            self.unmap_scratch();
        }
        self.load_at_risk_pages(now, flash) | moved
    }

    /// Brings pages that are on chunks that are going into frames, from which they are written elsewhere.
    fn load_at_risk_pages(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let (mut moved, mut from) = (false, 0);
        while let Some(page) = self.mapping.page_rebuild.at_risk_pages.range(from..).next().copied()
        {
            if self.mapping.fetches.in_transfer() >= AT_RISK_FETCH_MAX {
                break;
            }
            match self.request_page(now, page, FetchReason::ReconcileLoad, flash) {
                FetchOutcome::Resident => {
                    // There before somebody looked.
                    if self.mapping.page_rebuild.remove(page) {
                        self.durability.checkpoint.mark_dirty(page);
                    }
                    moved = true;
                }
                FetchOutcome::InFlight(_) => {}
                FetchOutcome::NoFrame => break,
            }
            self.unmap_scratch();
            from = page + 1;
        }
        moved
    }

    /// Finds what is valid in pages of which the reverse map knows.
    fn rebuild_from_p2l(&mut self) -> bool {
        if !std::mem::take(&mut self.mapping.page_rebuild.has_exact_job) {
            return false;
        }
        let mut known: BTreeMap<u32, &mut RebuildJob> = BTreeMap::new();
        for (page, rebuild) in
            self.mapping.page_rebuild.jobs.iter_mut().filter(|(_, r)| r.exact && !r.done)
        {
            known.insert(*page, rebuild);
        }
        let Some(frames) = &self.mapping.l2p.frames else { return false };
        for chunk in 0..self.env.geometry.total_chunks() {
            let c = &self.space.lines.chunks[chunk as usize];
            // Of no line is what is in a bad chunk.
            let written = match self.space.lines.line_of[chunk as usize] {
                NONE if c.bad => self.env.geometry.sectors_per_chunk,
                NONE => 0,
                _ => c.write_pointer,
            };
            let first_psn = self.env.geometry.first_sector_of(chunk);
            for psn in first_psn..first_psn + written {
                let Some(lba) = self.mapping.p2l.get(psn) else { continue };
                let Some(page) = frames.page_of(lba) else { continue };
                let Some(rebuild) = known.get_mut(&page) else { continue };
                let at = (lba - frames.page_range(page).0) as usize;
                debug_assert!(rebuild.copies[at] == NO_COPY, "sector {lba} is valid twice");
                let poison = self.mapping.p2l.is_poisoned(psn);
                rebuild.copies[at] = CopyRef { sequence: 1, psn, poison };
            }
        }
        for (page, rebuild) in known {
            rebuild.complete(
                0,
                self.mapping.page_rebuild.unlocated_losses.get(&page).copied().unwrap_or(0),
            );
        }
        true
    }

    /// What is in a line is about to be erased: nobody wants it.
    #[inline]
    pub(crate) fn drop_line_copies(&mut self, line: u32) {
        if self.mapping.l2p.frames.is_some() {
            self.drop_line_copies_now(line);
        }
    }

    #[cold]
    fn drop_line_copies_now(&mut self, line: u32) {
        let s = &mut self.mapping.page_rebuild;
        s.reader.invalidate_line(line);
        let (line_of, shape) = (&self.space.lines.line_of, &self.env.geometry);
        let there = |psn: u32| psn != NONE && line_of[shape.chunk_of(psn) as usize] == line;
        for copy in s.jobs.values_mut().flat_map(|r| &mut *r.copies).filter(|c| there(c.psn)) {
            copy.psn = NONE;
        }
        s.unreadable.retain(|psn| !there(*psn));
    }

    /// Takes out what is in lines that are about to be erased, or in none.
    pub(crate) fn drop_erased_copies(&self, copies: &mut [CopyRef]) {
        for copy in copies.iter_mut().filter(|c| c.psn != NONE) {
            let chunk = self.env.geometry.chunk_of(copy.psn) as usize;
            let line = self.space.lines.lines.get(self.space.lines.line_of[chunk] as usize);
            let gone = |l: &crate::space::lines::Line| {
                matches!(l.state, LineState::Free | LineState::Draining)
            };
            // Of no line is what is in a bad chunk: reads of it fail.
            if line.map_or(!self.space.lines.chunks[chunk].bad, gone) {
                copy.psn = NONE;
            }
        }
    }

    /// A page that had been counted was rebuilt, and not of what is known to be valid: its lines count what
    /// it says, perhaps once more, and one that is being collected is gone through again.
    pub(crate) fn count_rebuilt(&mut self, first: u32, copies: &[CopyRef]) {
        let exact = self.mapping.p2l.is_in_memory();
        let mut lines: BTreeMap<u32, u32> = BTreeMap::new();
        for (lba, copy) in (first..).zip(copies).filter(|(_, c)| c.psn != NONE) {
            self.mapping.p2l.set(copy.psn, Some(lba), copy.poison);
            let line = self.space.lines.line_of[self.env.geometry.chunk_of(copy.psn) as usize];
            *lines.entry(line).or_default() += 1;
        }
        for (line, sectors) in lines.into_iter().filter(|_| !exact) {
            self.space.lines.inc_valid(line, sectors);
            for scan in self.gc.scans.iter_mut().filter(|scan| scan.line == line) {
                (scan.unit, scan.member) = (0, 0);
            }
        }
    }
}
