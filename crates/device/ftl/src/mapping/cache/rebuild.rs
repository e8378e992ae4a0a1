//! [`PageRebuild`]: rebuilds unreadable map pages from the metadata of lines [LightNVM17 §4.2.2].
//!
//! # Sources
//!
//! * The **reverse map**, if it is in memory and the page was reconciled: it names the valid
//!   sectors, readable or not. The rebuilt page equals the lost one.
//! * Otherwise a [scan](crate::mapping::p2l_reader) of all lines: the version of a sector in the
//!   unit with the largest sequence number is the latest. A version that a line footer names in an
//!   unreadable location is a media error. A page lost during a scan joins it at its current line,
//!   and is complete when the scan reaches that line again: pages lost together are rebuilt in one
//!   scan.
//!
//! # No stale data
//!
//! A scan may miss units that it cannot read and that no in-memory table describes. A missed unit's
//! sequence number is at most its line's `max_seq`. A version found with a larger number is
//! therefore the latest. Otherwise the missed unit may be newer, so the sector is reported as
//! uncorrectable. So are sectors lost before that have no location to record it (`lost`).
//!
//! # Isolation
//!
//! A page that is in no frame has no sector in the write buffer, and none can get there: writes,
//! trims and garbage collection wait for the page. So no version of its sectors is written during
//! the rebuild, and no valid one is erased: a line with such a sector is not reclaimed before it
//! was relocated. Copies that are erased, or about to be, were obsolete, and are removed
//! ([`Ftl::drop_line_copies`], [`Ftl::drop_erased_copies`]).
//!
//! # Durability
//!
//! A rebuild writes nothing. The page is dirty from then on, and written as any other: a power cut
//! before that loses it again, and it is rebuilt again. Meanwhile checkpoints record its old
//! location, or that it is lost.
//!
//! When a chunk is at risk, the pages on it that are in no frame are fetched, or rebuilt, while the
//! contents of the chunk are still known. The checkpoint that records the losses begins when the
//! pages are in frames, and flushes wait for it: after a flush and a power cut the same sectors are
//! lost as before.
//!
//! # Cost
//!
//! [`PAGES`] pages of copies, 16 bytes for each sector of a page; one pass over the reverse map, or
//! one scan of all lines. On the path of a write, one entry of the reverse map: obsolete sectors
//! are removed from it only if map pages are in frames.
//!
//! # Limits
//!
//! A scan does not see trims: a rebuild undoes a trim while a copy of the sector is on the media.
//! Nor does it see sectors lost without a location, if the page has not been read since power-on,
//! nor sectors that were already unreadable at power-on, which recovery does not know either (see
//! `recovery::lost`). Nor does it see the contents of a die that failed while power was off: the
//! latest version of every sector of those pages may have been there, unless a unit written since
//! the last checkpoint has a readable one. `tests/suite/paging.rs` checks that the number of errors is
//! minimal.
//!
//! Lines may have counted a rebuilt sector already. Then they count it twice, and seem fuller until
//! they are reclaimed. They never seem emptier, which would let them be erased while sectors are
//! valid.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use nvme::PhysSector;
use serde::{Deserialize, Serialize};

use crate::buffer::WriteBuffer;
use crate::env::Env;
use crate::ids::{Lba, LineId, MapPageId, NO_SECTOR, SlotId, ToIndex, WriteSeq};
use crate::mapping::Mapping;
use crate::mapping::l2p::L2p;
use crate::mapping::p2l_reader::{LineScanStep, P2lReader, ScanMaps, ScanRead};
use crate::recovery::CopyRef;
use crate::space::lines::{LineState, LineTable};
use crate::{L2pEntry, Oob};

/// Maximum number of pages that are being rebuilt, or are rebuilt and in no frame yet, besides
/// those with fetches.
const REBUILD_PAGES_MAX: usize = 64;

/// A sector without a copy so far.
const NO_COPY: CopyRef = CopyRef { sequence: WriteSeq(0), phys: NO_SECTOR, poison: false };

/// A page that is being rebuilt.
#[derive(Clone, Serialize, Deserialize)]
struct RebuildJob {
    /// The rebuild is complete when the scan reaches this line again.
    stop_line: LineId,
    rounds: u32,
    done: bool,
    /// Whether the reverse map names the valid sectors: no scan is needed.
    exact: bool,
    /// Units with sequence numbers up to this one may hold copies that nothing describes. Lines
    /// opened from `until_seq` on have no copies.
    unknown_below_seq: WriteSeq,
    until_seq: WriteSeq,
    /// Latest versions found of its sectors.
    copies: Box<[CopyRef]>,
}

impl RebuildJob {
    /// Completes the rebuild; `lost` as in [`PageRebuild`]. Sectors that may have had a newer copy,
    /// or were lost before, are lost.
    fn complete(&mut self, blind: WriteSeq, lost: WriteSeq) {
        self.done = true;
        let known =
            if self.exact { WriteSeq(0) } else { self.unknown_below_seq.max(blind).max(lost) };
        for copy in &mut self.copies {
            let nowhere = copy.phys == NO_SECTOR && copy.sequence == WriteSeq(0);
            if !self.exact && copy.sequence <= known && known > WriteSeq(0)
                || nowhere && lost > WriteSeq(0)
            {
                (copy.phys, copy.poison) = (NO_SECTOR, true);
            }
        }
    }
}

/// Pages that are being rebuilt.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct PageRebuild {
    jobs: BTreeMap<MapPageId, RebuildJob>,
    reader: P2lReader,
    /// Whether a job was added that needs only the reverse map and was not processed yet.
    has_exact_job: bool,
    /// Whether a page was added since the scan's last step.
    has_new_job: bool,
    /// Pages in no frame that are on chunks at risk: to be fetched and written elsewhere.
    at_risk_pages: BTreeSet<MapPageId>,
    /// Pages that alone record the loss of some of their sectors, each with the next sequence number
    /// when that was last seen.
    unlocated_losses: BTreeMap<MapPageId, WriteSeq>,
    /// Units with sequence numbers up to this one may be in locations that could not be read since
    /// power-on.
    unknown_below_seq: WriteSeq,
    /// The first sequence number since power-on.
    start_seq: WriteSeq,
    /// Sectors that were already unreadable at power-on.
    unreadable: BTreeSet<PhysSector>,
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
    /// Imports the sectors that a recovery could not read, the next sequence number, and whether
    /// written chunks may be in no line.
    pub(in crate::mapping) fn import_recovery(
        &mut self,
        unreadable: BTreeSet<PhysSector>,
        next: WriteSeq,
        blind: bool,
    ) {
        (self.unreadable, self.start_seq) = (unreadable, next);
        self.unknown_below_seq = if blind { next } else { WriteSeq(0) };
    }

    /// Pages being rebuilt, and rebuilt pages that no frame holds yet.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = MapPageId> {
        self.jobs.keys().copied()
    }

    /// Whether pages are being rebuilt, or have been and are in no frame yet.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        !self.jobs.is_empty() || self.has_at_risk()
    }

    /// Whether a page has been rebuilt and is in no frame yet.
    pub(crate) fn is_rebuilt(&self, page: MapPageId) -> bool {
        self.jobs.get(&page).is_some_and(|r| r.done)
    }

    /// Takes the copies of a rebuilt page. The caller returns them if it does not install the page.
    pub(super) fn take_copies(&mut self, page: MapPageId) -> Box<[CopyRef]> {
        self.jobs.get_mut(&page).map_or_else(Box::default, |r| std::mem::take(&mut r.copies))
    }

    pub(super) fn return_copies(&mut self, page: MapPageId, copies: Box<[CopyRef]>) {
        if let Some(rebuild) = self.jobs.get_mut(&page) {
            rebuild.copies = copies;
        }
    }

    /// Records that a page is in a frame. Returns whether it is to be written elsewhere.
    pub(super) fn remove(&mut self, page: MapPageId) -> bool {
        self.jobs.remove(&page);
        self.at_risk_pages.remove(&page)
    }

    /// Marks a page that is in no frame as on a chunk at risk.
    pub(super) fn mark_at_risk(&mut self, page: MapPageId) {
        self.at_risk_pages.insert(page);
    }

    /// Returns whether there are pages in no frame on chunks at risk.
    pub(crate) fn has_at_risk(&self) -> bool {
        !self.at_risk_pages.is_empty()
    }

    /// Records that a page has a lost sector without location: no other structure names it.
    #[cold]
    pub(super) fn record_unlocated_loss(&mut self, page: MapPageId, next: WriteSeq) {
        self.unlocated_losses.insert(page, next);
    }

    /// Returns whether a page was added since the scan's last step.
    #[inline]
    pub(crate) fn has_new_job(&self) -> bool {
        self.has_new_job
    }

    /// Whether pages are being rebuilt.
    pub(crate) fn is_scanning(&self) -> bool {
        self.jobs.values().any(|r| !r.done)
    }

    /// Records that a line has unreadable units that nothing describes, with sequence numbers up to
    /// `newest`.
    pub(super) fn record_unreadable(&mut self, opening: WriteSeq, newest: WriteSeq) {
        for rebuild in self.jobs.values_mut().filter(|r| !r.done && opening < r.until_seq) {
            rebuild.unknown_below_seq = rebuild.unknown_below_seq.max(newest);
        }
    }

    /// Ends the scan of a line. Returns whether a page has been rebuilt.
    fn advance(&mut self, lines: usize) -> bool {
        let (at, wraps) = self.reader.advance(lines);
        let mut ended = false;
        for (page, rebuild) in self.jobs.iter_mut().filter(|(_, r)| !r.done) {
            rebuild.rounds += u32::from(wraps);
            if rebuild.rounds > 1 || rebuild.rounds == 1 && at >= rebuild.stop_line {
                rebuild.complete(
                    self.unknown_below_seq,
                    self.unlocated_losses.get(page).copied().unwrap_or(WriteSeq(0)),
                );
                ended = true;
            }
        }
        ended
    }
}

impl Mapping {
    /// Records that a page in no frame is on a chunk at risk.
    pub(crate) fn mark_page_at_risk(&mut self, page: MapPageId) {
        self.page_rebuild.mark_at_risk(page);
    }

    /// Returns the next page on a chunk at risk, from this one on.
    pub(crate) fn next_page_at_risk(&self, from: MapPageId) -> Option<MapPageId> {
        self.page_rebuild.at_risk_pages.range(from..).next().copied()
    }

    /// Records that a page was in a frame before it could be rebuilt. Returns whether it is to be written
    /// elsewhere.
    pub(crate) fn drop_rebuild(&mut self, page: MapPageId) -> bool {
        self.page_rebuild.remove(page)
    }

    /// Returns whether a page can be rebuilt: not without data, nor after a recovery that scanned
    /// everything and so knows all copies.
    pub(crate) fn can_rebuild(&self, page: MapPageId, stores_data: bool) -> bool {
        stores_data && !self.reconcile.recovery_is_complete_for(page)
    }

    /// Queues the rebuild of an unreadable page; [`is_rebuilt`](PageRebuild::is_rebuilt) says when
    /// it is complete.
    #[cold]
    pub(super) fn rebuild_page(
        &mut self,
        env: &Env,
        lines: &LineTable,
        buffer: &WriteBuffer,
        page: MapPageId,
        stores_data: bool,
    ) {
        if self.page_rebuild.jobs.contains_key(&page) || !self.can_rebuild(page, stores_data) {
            return;
        }
        // A page that was rebuilt for reads without a frame is rebuilt again when it is needed again.
        if self.page_rebuild.jobs.len() >= REBUILD_PAGES_MAX
            && let Some(page) = self.unclaimed_rebuilt_page()
        {
            self.page_rebuild.jobs.remove(&page);
        }
        let first = !self.page_rebuild.is_scanning();
        self.add_rebuild_job(page);
        if first {
            self.add_lost_pages(env, lines, buffer);
        }
    }

    fn add_rebuild_job(&mut self, page: MapPageId) {
        let Some(frames) = self.l2p.frames() else { return };
        let count = frames.page_range(page).sectors;
        let uncounted = self.reconcile.is_pending(page);
        let exact = self.p2l.is_in_memory() && !uncounted;
        let s = &mut self.page_rebuild;
        // A page that was not reconciled has not been in a frame since power-on.
        let until = if uncounted { s.start_seq } else { WriteSeq::MAX };
        (s.has_new_job, s.has_exact_job) = (true, s.has_exact_job || exact);
        // A part of the line that is read now was read without this page: the scan must
        // return to this line.
        let stop = s.reader.next_line();
        let copies = vec![NO_COPY; count.index()].into();
        let rebuild = RebuildJob {
            stop_line: stop,
            rounds: 0,
            done: false,
            exact,
            unknown_below_seq: WriteSeq(0),
            until_seq: until,
            copies,
        };
        s.jobs.insert(page, rebuild);
    }

    /// Adds the other pages that are known to be lost, or were on failed chunks, to the same scan.
    fn add_lost_pages(&mut self, env: &Env, lines: &LineTable, buffer: &WriteBuffer) {
        for page in env.plan.pages() {
            if self.page_rebuild.jobs.len() >= REBUILD_PAGES_MAX / 2 {
                return;
            }
            let lost = match self.l2p.get(env.plan.page_sector(page)) {
                L2pEntry::Lost => true,
                L2pEntry::Flash(phys) => {
                    self.p2l.is_poisoned(phys) || lines.chunk(env.geometry.chunk_of(phys)).offline
                }
                L2pEntry::Buffer(slot) => buffer.entry(slot).poison,
                L2pEntry::Unmapped => false,
            };
            let resident =
                self.l2p.is_page_resident(page) || self.reconcile.recovery_is_complete_for(page);
            if lost && !resident && !self.page_rebuild.jobs.contains_key(&page) {
                self.add_rebuild_job(page);
            }
        }
    }

    /// A page that has been rebuilt and that no fetch waits for.
    pub(crate) fn unclaimed_rebuilt_page(&self) -> Option<MapPageId> {
        let waits = |page: &MapPageId| self.fetches.find(*page).is_some();
        let mut jobs = self.page_rebuild.jobs.iter();
        jobs.find(|(page, r)| r.done && !waits(page)).map(|(page, _)| *page)
    }

    /// Begins a step of the rebuilds: completes the pages whose valid sectors the P2L knows. Returns
    /// whether a page has been rebuilt.
    pub(crate) fn rebuild_from_p2l(&mut self, env: &Env, lines: &LineTable) -> bool {
        self.page_rebuild.has_new_job = false;
        if !std::mem::take(&mut self.page_rebuild.has_exact_job) {
            return false;
        }
        let mut known: BTreeMap<MapPageId, &mut RebuildJob> = BTreeMap::new();
        for (page, rebuild) in self.page_rebuild.jobs.iter_mut().filter(|(_, r)| r.exact && !r.done)
        {
            known.insert(*page, rebuild);
        }
        let Some(frames) = self.l2p.frames() else { return false };
        for chunk in env.geometry.chunks() {
            let c = lines.chunk(chunk);
            // Sectors of a bad chunk may be in no line.
            let written = match lines.line_of(chunk) {
                LineId::NONE if c.bad => env.geometry.sectors_per_chunk,
                LineId::NONE => 0,
                _ => c.write_pointer,
            };
            let first_phys = env.geometry.first_sector_of(chunk);
            for phys in first_phys.run(written) {
                let Some(lba) = self.p2l.get(phys) else { continue };
                let Some(page) = frames.page_of(lba) else { continue };
                let Some(rebuild) = known.get_mut(&page) else { continue };
                let at = (lba - frames.page_range(page).first).index();
                debug_assert!(rebuild.copies[at] == NO_COPY, "{lba} is valid twice");
                let poison = self.p2l.is_poisoned(phys);
                rebuild.copies[at] = CopyRef { sequence: WriteSeq(1), phys, poison };
            }
        }
        for (page, rebuild) in known {
            let lost =
                self.page_rebuild.unlocated_losses.get(&page).copied().unwrap_or(WriteSeq(0));
            rebuild.complete(WriteSeq(0), lost);
        }
        true
    }

    /// Ends the fetches of pages that have been rebuilt. Returns whether there are any.
    pub(crate) fn complete_rebuilt(&mut self) -> bool {
        self.fetches.complete_rebuilt(&self.page_rebuild)
    }

    /// Continues the read of the current line. With `hurries` several units are read at a time;
    /// otherwise one, and only if the host is `idle`.
    pub(crate) fn step_line_scan(
        &mut self,
        env: &Env,
        lines: &LineTable,
        hurries: bool,
        idle: bool,
    ) -> LineScanStep {
        let PageRebuild { reader, jobs, unreadable, .. } = &mut self.page_rebuild;
        let maps = ScanMaps { l2p: &self.l2p, p2l: &self.p2l, unreadable };
        let mut add = |phys, oob| add_copy(jobs, &self.l2p, phys, oob);
        let step = reader.step(env, lines, maps, hurries, idle, &mut add);
        if let LineScanStep::Unreadable { opening, newest } = step {
            self.page_rebuild.record_unreadable(opening, newest);
            return LineScanStep::Done;
        }
        step
    }

    /// Ends the scan of the current line. Returns whether a page has been rebuilt.
    pub(crate) fn advance_rebuild(&mut self, lines: &LineTable) -> bool {
        self.page_rebuild.advance(lines.len())
    }

    /// The first slot of a read of a line, and the index of its flash operation.
    pub(crate) fn scan_slot(&self, env: &Env, at: u32) -> SlotId {
        self.fetches.scan_slot(at * env.geometry.ws_opt)
    }

    pub(crate) fn scan_op(&self, at: u32) -> u32 {
        self.fetches.scan_op(at)
    }

    /// Records that a read of a line ended; `None` if the unit is read again or not needed any more.
    ///
    /// # Panics
    /// If no such read is in flight.
    pub(crate) fn scan_read_done(&mut self, at: u32, failed: u64) -> Option<ScanRead> {
        self.page_rebuild.reader.read_done(at, failed)
    }

    /// Returns the memory for the `i`-th sector of a unit of a line's footer.
    pub(crate) fn scan_footer_bytes(&mut self, env: &Env, read: ScanRead, i: u32) -> &mut [u8] {
        self.page_rebuild.reader.footer_bytes(env, read, i)
    }

    /// Imports the out-of-band bytes of a unit. The sectors with a bit in `failed` could not be
    /// read.
    pub(crate) fn import_scanned_oobs(
        &mut self,
        env: &Env,
        read: ScanRead,
        failed: u64,
        oobs: &[Option<Oob>],
    ) {
        let PageRebuild { reader, jobs, unreadable, .. } = &mut self.page_rebuild;
        let maps = ScanMaps { l2p: &self.l2p, p2l: &self.p2l, unreadable };
        let mut add = |phys, oob| add_copy(jobs, &self.l2p, phys, oob);
        reader.import_oobs(env, maps, read, failed, oobs, &mut add);
    }

    /// Drops the copies that were found in a line that is about to be erased.
    #[inline]
    pub(crate) fn drop_line_copies(&mut self, env: &Env, lines: &LineTable, line: LineId) {
        if self.l2p.frames().is_some() {
            self.drop_line_copies_now(env, lines, line);
        }
    }

    #[cold]
    fn drop_line_copies_now(&mut self, env: &Env, lines: &LineTable, line: LineId) {
        let s = &mut self.page_rebuild;
        s.reader.invalidate_line(line);
        let there = |phys: PhysSector| {
            phys != NO_SECTOR && lines.line_of(env.geometry.chunk_of(phys)) == line
        };
        for copy in s.jobs.values_mut().flat_map(|r| &mut *r.copies).filter(|c| there(c.phys)) {
            copy.phys = NO_SECTOR;
        }
        s.unreadable.retain(|phys| !there(*phys));
    }

    /// Records the sectors of a counted page that was rebuilt. Returns how many of them are in each line,
    /// if those lines may have counted them before: not if the P2L knew them.
    pub(super) fn count_rebuilt(
        &mut self,
        env: &Env,
        lines: &LineTable,
        first: Lba,
        copies: &[CopyRef],
    ) -> BTreeMap<LineId, u32> {
        let exact = self.p2l.is_in_memory();
        let mut counts: BTreeMap<LineId, u32> = BTreeMap::new();
        for (lba, copy) in first.ascending().zip(copies).filter(|(_, c)| c.phys != NO_SECTOR) {
            self.p2l.set(copy.phys, Some(lba), copy.poison);
            let line = lines.line_of(env.geometry.chunk_of(copy.phys));
            if !exact {
                *counts.entry(line).or_default() += 1;
            }
        }
        counts
    }
}

/// Removes the copies in lines that are about to be erased, or in no line.
pub(super) fn drop_erased_copies(env: &Env, lines: &LineTable, copies: &mut [CopyRef]) {
    for copy in copies.iter_mut().filter(|c| c.phys != NO_SECTOR) {
        let chunk = env.geometry.chunk_of(copy.phys);
        let gone = match lines.get(lines.line_of(chunk)) {
            Some(line) => matches!(line.state, LineState::Free | LineState::Draining),
            // Sectors of a bad chunk may be in no line: reads of them fail.
            None => !lines.chunk(chunk).bad,
        };
        if gone {
            copy.phys = NO_SECTOR;
        }
    }
}

/// Adds a copy to the page that it belongs to, if that is being rebuilt.
fn add_copy(jobs: &mut BTreeMap<MapPageId, RebuildJob>, map: &L2p, phys: PhysSector, oob: Oob) {
    let Some((lba, frames)) = oob.lba.zip(map.frames()) else { return };
    let Some(page) = frames.page_of(lba) else { return };
    let Some(rebuild) = jobs.get_mut(&page).filter(|r| !r.done && !r.exact) else { return };
    let at = lba - frames.page_range(page).first;
    let Some(newest) = rebuild.copies.get_mut(at.index()) else { return };
    // Within a unit the later one is newer.
    let first = newest.phys == NO_SECTOR && newest.sequence == WriteSeq(0);
    if first || (oob.sequence, phys) > (newest.sequence, newest.phys) {
        *newest = CopyRef { sequence: oob.sequence, phys, poison: oob.poison };
    }
}
