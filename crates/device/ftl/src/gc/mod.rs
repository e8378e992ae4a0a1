//! Garbage collection [LightNVM17 §4.2.4]: selects victims while free space is low, reads their
//! valid sectors into its own ring, and erases a victim when all of them are durable elsewhere.
//!
//! The reverse map says what was written, not what is valid: a sector is valid if its logical
//! sector still maps to it. The lookups are done for a whole write unit at a time, so that the
//! cache misses overlap.

mod candidates;
pub(crate) mod defer;
pub(crate) mod limiter;
pub(crate) mod limiter_history;
pub(crate) mod pid;
pub(crate) mod steady_lines;
pub(crate) mod victim;
pub(crate) mod victim_lines;
pub(crate) mod victim_p2l;

use std::collections::VecDeque;

use collections::Slab;
use nvme::ChunkId;
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::ReadAddress;
use crate::check::{Subject, Violation, require};
use crate::env::Env;
use crate::ids::{LineId, SlotId, ToIndex, ToU32};
use crate::space::line_meta::P2lTable;
use crate::space::lines::{CandidateChange, ClosedLine, LineTable};
use crate::{RateLimiter, RateLimiterKind, VictimPolicyKind};
use candidates::VictimCandidates;
use defer::{GcDeferral, MemberUnit, VictimUnit};
use victim_lines::{ChosenLine, VictimDecision, VictimLines};
use victim_p2l::VictimP2lRead;

/// Garbage collection: the lines being reclaimed, and the progress of each.
///
/// Invariants: a victim is being scanned or drained; the state of a scan exists only during a scan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Gc {
    candidates: VictimCandidates,
    /// Lines being scanned, oldest first.
    scans: VecDeque<VictimScan>,
    reads: Slab<Relocation>,
    /// Relocations that are to be read again.
    retries: Vec<u32>,
    /// The line of each source that the drive has copied.
    copied: Vec<LineId>,
    /// Reads that may be in flight.
    queue_depth: u32,
    /// Scratch memory for the addresses of one flash read.
    addresses: Vec<ReadAddress>,
    /// Lines whose sectors are all read but not all durable elsewhere.
    draining: u32,
    /// Victims since the host last wrote or space grew, and the largest free space since then.
    futile_victims: u32,
    free_high_water: u64,
    /// The P2L of the oldest victim, while it is read from flash.
    p2l_read: Option<Box<VictimP2lRead>>,
    /// The P2L that was read. It belongs to the scan: an open line may be written further meanwhile.
    victim_p2l: Option<Box<P2lTable>>,
    /// The unit scanned next, while its translation pages are being fetched.
    next_unit: Option<VictimUnit>,
    deferral: GcDeferral,
    limiter: RateLimiter,
}

/// The scan of a line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct VictimScan {
    pub(crate) line: LineId,
    /// Next write unit: all members' first units, then all members' second, and so on.
    pub(crate) unit: u32,
    pub(crate) member: u32,
    /// Write units of a chunk that are scanned.
    pub(crate) units: u32,
    /// Write units that may be read or programmed at a time, if the choice of the line has a bound.
    pub(crate) units_in_flight: Option<u32>,
}

/// A read of sectors to relocate: consecutive slots of the ring, which wraps around.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Relocation {
    pub(crate) line: LineId,
    pub(crate) first_slot: SlotId,
    pub(crate) count: u32,
    /// The sectors that are read for the second time, by their bits; 0 during the first read.
    pub(crate) again: u64,
}

impl Relocation {
    /// Returns the sectors that were not read, by their bits. Bit `i` of `failed` stands for the
    /// `i`-th sector that was read.
    pub(crate) fn unread(&self, failed: u64) -> u64 {
        let is_read = |i: &u32| self.again == 0 || self.again >> i & 1 != 0;
        let read = (0..self.count).filter(is_read).enumerate();
        read.fold(0, |unread, (bit, i)| unread | (failed >> bit & 1) << i)
    }
}

impl Gc {
    pub(crate) fn new(env: &Env) -> Gc {
        let Env { geometry, config, plan, .. } = env;
        let (low, high) = plan.limiter_watermarks(config);
        let burst = plan.host_buffer_units * geometry.ws_opt;
        Gc {
            candidates: VictimCandidates::new(env),
            scans: VecDeque::new(),
            reads: Slab::new(),
            retries: Vec::new(),
            copied: Vec::new(),
            queue_depth: plan.gc_buffer_units,
            addresses: Vec::with_capacity(64),
            draining: 0,
            futile_victims: 0,
            free_high_water: 0,
            p2l_read: None,
            victim_p2l: None,
            next_unit: None,
            deferral: GcDeferral::new(geometry, config.gc_read_priority),
            limiter: RateLimiter::new(low, high, burst, config.rate_limiter),
        }
    }

    /// Changes the policy that chooses among the closed lines.
    pub(crate) fn set_victim_policy(&mut self, kind: VictimPolicyKind, lines: &LineTable) {
        self.candidates.set_policy(kind, lines);
    }

    /// Changes the rule of the rate limiter.
    pub(crate) fn set_rate_limiter(&mut self, kind: RateLimiterKind) {
        self.limiter.set_kind(kind);
    }

    /// Adds a line that was closed to the candidates.
    pub(crate) fn add_candidate(&mut self, closed: ClosedLine) {
        self.candidates.add(closed);
    }

    /// Records that a closed line has fewer valid sectors.
    #[inline]
    pub(crate) fn on_candidate(&mut self, change: CandidateChange) {
        self.candidates.on_change(change);
    }

    /// Records that a closed line, which had `before` valid sectors, has more of them.
    pub(crate) fn on_more_valid(&mut self, closed: ClosedLine, before: u32) {
        self.candidates.on_more_valid(closed, before);
    }

    /// Updates the wear of the closed lines.
    pub(crate) fn import_wear(&mut self, lines: &LineTable) {
        for id in lines.closed() {
            self.candidates.on_wear(id, lines.mean_wear(id));
        }
    }

    /// Whether closed lines have a failed chunk: they are reclaimed first.
    pub(crate) fn has_degraded(&self) -> bool {
        self.candidates.has_degraded()
    }

    /// Whether closed lines have no valid sector.
    pub(crate) fn has_empty(&self) -> bool {
        self.candidates.has_empty()
    }

    /// Removes and returns a closed line without a valid sector.
    pub(crate) fn pop_empty(&mut self) -> Option<LineId> {
        let scanned = self.current_victim();
        self.candidates.pop_empty(scanned)
    }

    /// Removes a closed line that became a victim whatever the policy says.
    pub(crate) fn remove_candidate(&mut self, lines: &LineTable, line: LineId) {
        self.candidates.remove(line, lines.line(line));
    }

    /// Picks the next victim. Relocations may use `room` sectors of the `free` ones. If less than a
    /// line is available, only a victim that fits can be relocated: the line with the fewest valid
    /// sectors, whatever the policy. `choose` decides in place of the policy.
    pub(crate) fn pick_victim(
        &mut self,
        env: &Env,
        lines: &LineTable,
        free: u64,
        room: u64,
        choose: impl FnOnce(&VictimLines<'_>) -> VictimDecision,
    ) -> Option<ChosenLine> {
        self.candidates.set_critical(self.limiter.headroom(free) <= 0.0);
        if room < u64::from(env.plan.line_sectors) {
            return self.candidates.pop_fewest_valid(room, lines).map(ChosenLine::new);
        }
        if let Some(line) = self.candidates.pop_degraded() {
            return Some(ChosenLine::new(line));
        }
        match choose(&self.victim_lines(env, lines, free)) {
            VictimDecision::Policy => {
                self.candidates.pop_by_policy(lines.closed_total()).map(ChosenLine::new)
            }
            VictimDecision::Line(chosen) => {
                self.candidates.pop_chosen(chosen.line).map(|line| ChosenLine { line, ..chosen })
            }
            VictimDecision::None => None,
        }
    }

    /// Returns the facts about the lines that the policy could choose.
    pub(crate) fn victim_lines<'a>(
        &'a self,
        env: &Env,
        lines: &'a LineTable,
        free: u64,
    ) -> VictimLines<'a> {
        let (reserve, _) = self.limiter.watermarks();
        VictimLines {
            candidates: &self.candidates,
            lines,
            free_lines: free.saturating_sub(reserve) / u64::from(env.plan.line_sectors.max(1)),
            is_critical: self.limiter.headroom(free) <= 0.0,
        }
    }

    /// Counts a victim that is reclaimed for its space.
    pub(crate) fn count_victim(&mut self) {
        self.futile_victims += 1;
    }

    /// Returns whether reclamation frees nothing: every line has been a victim twice, and not one
    /// more write unit is free than before. On flash with almost no spare space, padding takes what
    /// victims free. Without this limit reclamation would wear out the flash, and requests that wait
    /// for space would not fail (see [`Ftl::fail_if_full`](crate::Ftl)).
    pub(crate) fn is_futile(&mut self, env: &Env, lines: &LineTable, free: u64) -> bool {
        if free >= self.free_high_water + u64::from(env.geometry.ws_opt) {
            (self.futile_victims, self.free_high_water) = (0, free);
        }
        self.futile_victims.index() > 2 * lines.len()
    }

    /// Records that the host wrote or trimmed, so that more may be reclaimed than before.
    #[inline]
    pub(crate) fn record_host_change(&mut self) {
        (self.futile_victims, self.free_high_water) = (0, 0);
    }

    /// Begins the scan of a line with `units` written units per chunk.
    pub(crate) fn begin_scan(&mut self, line: LineId, units: u32, units_in_flight: Option<u32>) {
        self.scans.push_back(VictimScan { line, unit: 0, member: 0, units, units_in_flight });
    }

    /// Returns the scan in progress.
    #[inline]
    pub(crate) fn current_scan(&self) -> Option<VictimScan> {
        self.scans.front().copied()
    }

    /// Returns the line of the scan in progress.
    pub(crate) fn current_victim(&self) -> Option<LineId> {
        self.scans.front().map(|v| v.line)
    }

    /// Returns whether a line is scanned or queued for a scan.
    pub(crate) fn is_scanned(&self, line: LineId) -> bool {
        self.scans.iter().any(|scan| scan.line == line)
    }

    /// Restarts the scan of a line whose valid sectors were not all known.
    pub(crate) fn restart_scans_of(&mut self, line: LineId) {
        for scan in self.scans.iter_mut().filter(|scan| scan.line == line) {
            (scan.unit, scan.member) = (0, 0);
        }
    }

    /// Ends the oldest scan.
    pub(crate) fn complete_scan(&mut self) {
        self.scans.pop_front();
        self.deferral.on_scan_complete();
        (self.next_unit, self.victim_p2l) = (None, None);
    }

    /// Returns the chosen unit, whose translation pages are being fetched.
    pub(crate) fn chosen_unit(&self) -> Option<VictimUnit> {
        self.next_unit
    }

    /// Records the chosen unit until its translation pages are in memory, or clears it.
    pub(crate) fn set_chosen_unit(&mut self, unit: Option<VictimUnit>) {
        self.next_unit = unit;
    }

    /// Returns whether skipped units of the victim are still to be scanned.
    pub(crate) fn has_skipped_units(&self) -> bool {
        self.deferral.has_skipped_units()
    }

    /// Returns the write unit `ahead` positions after the one scanned next.
    pub(crate) fn peek_unit(&self, lines: &LineTable, ahead: u32) -> Option<MemberUnit> {
        let scan = self.scans.front()?;
        let members = lines.line(scan.line).chunks.len().to_u32();
        let at = scan.unit * members + scan.member + ahead;
        (at < scan.units * members).then(|| MemberUnit { unit: at / members, member: at % members })
    }

    /// Records a read of sectors to relocate, and returns its index, which is in the token of the
    /// flash read.
    pub(crate) fn begin_relocation(&mut self, read: Relocation) -> u32 {
        self.reads.insert(read)
    }

    /// Returns a read of sectors to relocate.
    pub(crate) fn relocation(&self, index: u32) -> Relocation {
        self.reads[index]
    }

    /// Removes a read of sectors to relocate.
    ///
    /// # Panics
    /// If it is not in flight.
    pub(crate) fn end_relocation(&mut self, index: u32) -> Relocation {
        let read = &mut self.reads[index];
        let read = Relocation { count: std::mem::take(&mut read.count), ..*read };
        assert!(read.count > 0, "no relocation {index} is in flight");
        self.reads.release(index);
        read
    }

    /// Has the sectors of a relocation read again that were not read.
    pub(crate) fn read_again(&mut self, index: u32, unread: u64) {
        self.reads[index].again = unread;
        self.retries.push(index);
    }

    /// Removes a relocation that is to be read again.
    pub(crate) fn pop_retry(&mut self) -> Option<(u32, Relocation)> {
        let index = self.retries.pop()?;
        Some((index, self.reads[index]))
    }

    /// Records that a source of this line was copied by the drive, and is read no more.
    #[inline]
    pub(crate) fn add_copied(&mut self, line: LineId) {
        self.copied.push(line);
    }

    /// Removes the line of a source that the drive has copied.
    #[inline]
    pub(crate) fn pop_copied(&mut self) -> Option<LineId> {
        self.copied.pop()
    }

    /// Returns the lines of the sources that the drive has copied.
    pub(crate) fn copied(&self) -> &[LineId] {
        &self.copied
    }

    /// Takes the empty scratch memory for addresses, to be returned.
    pub(crate) fn take_addresses(&mut self) -> Vec<ReadAddress> {
        std::mem::take(&mut self.addresses)
    }

    pub(crate) fn return_addresses(&mut self, addresses: Vec<ReadAddress>) {
        self.addresses = addresses;
    }

    /// Reads that may be in flight.
    pub(crate) fn queue_depth(&self) -> u32 {
        self.queue_depth
    }

    /// Returns whether relocations are in progress, which will earn the host credits.
    #[inline]
    pub(crate) fn is_relocating(&self) -> bool {
        !self.scans.is_empty() || self.reads_in_flight() > 0
    }

    /// Flash reads in flight.
    #[inline]
    pub(crate) fn reads_in_flight(&self) -> u32 {
        let list = self.p2l_read.as_ref().map_or(0, |r| r.outstanding());
        self.reads.in_use().to_u32() + list
    }

    /// Lines whose sectors have all been read but are not all durable elsewhere.
    pub(crate) fn draining(&self) -> u32 {
        self.draining
    }

    /// Counts a line whose sectors have all been read.
    pub(crate) fn begin_drain(&mut self) {
        self.draining += 1;
    }

    /// Counts a drained line that is erased.
    pub(crate) fn end_drain(&mut self) {
        self.draining -= 1;
    }

    /// The rate limiter.
    #[inline]
    pub(crate) fn limiter(&self) -> &RateLimiter {
        &self.limiter
    }

    /// Counts sectors that the host wrote, with the free ones after that.
    #[inline]
    pub(crate) fn host_wrote(&mut self, sectors: u32, free: u64) {
        self.limiter.spend(sectors, free);
    }

    /// Counts relocated sectors.
    pub(crate) fn relocated(&mut self, sectors: u32, free: u64) {
        self.limiter.on_relocated(sectors, free);
    }

    /// Adds a sample to the rate limiter's history, if one is due.
    #[inline]
    pub(crate) fn observe(&mut self, now: Nanos, free: u64) {
        self.limiter.observe(now, free);
    }

    /// Begins a new history of the rate limiter.
    pub(crate) fn reset_limiter_history(&mut self) {
        self.limiter.reset_history();
    }

    /// Sectors of victims that are being read.
    pub(crate) fn sectors_being_read(&self) -> u32 {
        let busy = (0..).zip(&self.reads).filter(|(i, _)| !self.reads.is_free(*i));
        busy.map(|(_, read): (u32, &Relocation)| read.count).sum()
    }

    /// Chunks whose erase is deferred.
    pub(crate) fn deferred_erases(&self) -> impl Iterator<Item = ChunkId> {
        self.deferral.deferred_erases()
    }

    /// Checks the candidates, the scans and the table of relocations, against the lines.
    pub(crate) fn check_invariants(&self, lines: &LineTable) -> Result<(), Violation> {
        let mut free = vec![false; self.reads.len()];
        for &index in self.reads.free_indices() {
            let twice = std::mem::replace(&mut free[index.index()], true);
            require!(!twice, Gc, "a free relocation is free once", Subject::Index(index), 1, 2);
        }
        require!(
            !self.scans.is_empty() || self.next_unit.is_none() && self.victim_p2l.is_none(),
            Gc,
            "scan state belongs to a scan",
            Subject::Part,
            "nothing",
            "something"
        );
        for (at, scan) in (1..).zip(&self.scans) {
            let again = self.scans.iter().skip(at);
            require!(
                again.filter(|v| v.line == scan.line).count() == 0,
                Gc,
                "a line is scanned once at a time",
                Subject::Line(scan.line),
                1,
                2
            );
        }
        self.candidates.check(lines)
    }
}
