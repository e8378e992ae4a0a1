//! Deferral of garbage collection for host reads. The host knows which parallel units its reads
//! wait on [Thesis15 ch. 6], and collection should not delay them [LightNVM17 §4.2.4].
//!
//! By [`GcReadPriority`]:
//!
//! * `PerPu`: units with host reads in flight are avoided. Victim units on idle parallel units are
//!   read first, relocations are programmed on idle ones, and an erase waits until its unit is
//!   idle. An operation is deferred if no parallel unit is idle.
//! * `Global`: a parallel unit counts as idle only when no host read is in flight at all, so that
//!   everything is deferred. Otherwise the next read, which goes to another unit, would find the
//!   operations started there.
//!
//! Guarantees: operations are deferred only while free space is above the critical level
//! ([`RateLimiter::is_below_critical`](crate::RateLimiter)); below it, all deferred operations
//! start at once. While some are deferred, the host writes as if nothing were being relocated, so
//! it waits for garbage collection no longer than without deferral. Deferred operations are
//! reconsidered whenever a host read completes, and no read waits for them.

use crate::gc::{Gc, VictimScan};
use crate::ids::{ToIndex, ToU32};
use crate::space::lines::LineTable;
use crate::{FlashGeometry, GcReadPriority};
use nvme::{ChunkId, PuId};
use serde::{Deserialize, Serialize};

/// Maximum number of skipped units of a victim.
const SKIPPED_UNITS_MAX: usize = 64;

/// A write unit of a line: the member, and the index of the unit in the member's chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberUnit {
    pub(crate) unit: u32,
    pub(crate) member: u32,
}

/// The write unit of the scanned line that is scanned next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VictimUnit {
    pub(crate) at: MemberUnit,
    /// Whether it is the last of the line.
    pub(crate) last: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GcDeferral {
    priority: GcReadPriority,
    /// Skipped units of the scanned victim.
    skipped_units: Vec<MemberUnit>,
    /// By parallel unit, whether the programs being placed avoid it.
    avoided_pus: Vec<bool>,
    avoiding: bool,
    /// Whether a scan found host reads on all parallel units that it needs.
    scan_deferred: bool,
    /// Whether a program found only parallel units with host reads or without a free program slot.
    program_deferred: bool,
    /// Chunks whose erase is deferred.
    deferred_erases: Vec<ChunkId>,
}

impl GcDeferral {
    pub(crate) fn new(shape: &FlashGeometry, priority: GcReadPriority) -> GcDeferral {
        let on = priority != GcReadPriority::Off;
        GcDeferral {
            priority,
            skipped_units: Vec::with_capacity(if on { SKIPPED_UNITS_MAX } else { 0 }),
            avoided_pus: vec![false; if on { shape.pus.index() } else { 0 }],
            avoiding: false,
            scan_deferred: false,
            program_deferred: false,
            deferred_erases: Vec::new(),
        }
    }

    /// Chunks whose erase is deferred.
    pub(crate) fn deferred_erases(&self) -> impl Iterator<Item = ChunkId> {
        self.deferred_erases.iter().copied()
    }

    /// Returns whether skipped units of the victim are still to be processed.
    #[inline]
    pub(crate) fn has_skipped_units(&self) -> bool {
        !self.skipped_units.is_empty()
    }

    /// Records that the victim has been scanned.
    pub(crate) fn on_scan_complete(&mut self) {
        self.skipped_units.clear();
        self.scan_deferred = false;
    }
}

impl Gc {
    /// Whether something is deferred for host reads.
    #[inline]
    pub(crate) fn is_deferring(&self) -> bool {
        let y = &self.deferral;
        y.scan_deferred || y.program_deferred || !y.deferred_erases.is_empty()
    }

    /// Whether a program is deferred.
    #[inline]
    pub(crate) fn is_program_deferred(&self) -> bool {
        self.deferral.program_deferred
    }

    /// Returns the host reads that garbage collection is deferred for.
    #[inline]
    pub(crate) fn read_priority(&self) -> GcReadPriority {
        self.deferral.priority
    }

    /// Returns the sectors that the host may write without credits, because garbage collection is
    /// deferred.
    #[inline]
    pub(crate) fn credit_while_deferred(&self, free: u64) -> Option<u32> {
        if !self.deferral.scan_deferred && !self.deferral.program_deferred {
            return None;
        }
        let spare = self.limiter.budget_until_critical(free).filter(|spare| *spare > 0)?;
        Some(spare.min(u32::MAX.into()).to_u32())
    }

    /// Begins to place programs of garbage collection; no parallel unit is avoided.
    pub(crate) fn begin_placement(&mut self) {
        self.deferral.avoiding = false;
        self.deferral.program_deferred = false;
    }

    /// Sets whether programs that are being placed avoid a parallel unit.
    pub(crate) fn set_avoided(&mut self, pu: PuId, avoided: bool) {
        self.deferral.avoided_pus[pu.index()] = avoided;
        self.deferral.avoiding |= avoided;
    }

    /// Whether programs that are being placed avoid a parallel unit.
    #[inline]
    pub(crate) fn should_avoid(&self, pu: PuId) -> bool {
        self.deferral.avoiding && self.deferral.avoided_pus[pu.index()]
    }

    /// Ends the placement of programs.
    #[inline]
    pub(crate) fn end_placement(&mut self) {
        self.deferral.avoiding = false;
    }

    /// Records that a program of garbage collection found no location, perhaps because of host reads.
    pub(crate) fn record_unplaced(&mut self) {
        self.deferral.program_deferred |= self.deferral.avoiding;
    }

    /// Sets whether the scan is deferred.
    pub(crate) fn set_scan_deferred(&mut self, deferred: bool) {
        self.deferral.scan_deferred = deferred;
    }

    /// Returns the next write unit of the oldest victim to scan, among those on parallel units that
    /// are `quiet`; `None` if there is none, or no victim.
    pub(crate) fn next_victim_unit(
        &mut self,
        lines: &LineTable,
        quiet: impl Fn(ChunkId) -> bool,
    ) -> Option<VictimUnit> {
        let y = &mut self.deferral;
        let VictimScan { line, unit, member, units, .. } = self.scans.front_mut()?;
        let units = *units;
        let chunks = &lines.line(*line).chunks;
        let quiet = |member: u32| quiet(chunks[member.index()]);
        let at_end = |unit: u32| unit >= units;
        if let Some(i) = y.skipped_units.iter().position(|at| quiet(at.member)) {
            let at = y.skipped_units.swap_remove(i);
            let last = at_end(*unit) && y.skipped_units.is_empty();
            return Some(VictimUnit { at, last });
        }
        while !at_end(*unit) && y.skipped_units.len() < SKIPPED_UNITS_MAX {
            let at = MemberUnit { unit: *unit, member: *member };
            *member += 1;
            if member.index() == chunks.len() {
                (*unit, *member) = (at.unit + 1, 0);
            }
            if quiet(at.member) {
                let last = at_end(*unit) && y.skipped_units.is_empty();
                return Some(VictimUnit { at, last });
            }
            y.skipped_units.push(at);
        }
        y.scan_deferred = true;
        None
    }

    /// Defers the erase of a chunk.
    pub(crate) fn defer_erase(&mut self, chunk: ChunkId) {
        self.deferral.deferred_erases.push(chunk);
    }

    /// The number of deferred erases.
    pub(crate) fn deferred_erase_count(&self) -> usize {
        self.deferral.deferred_erases.len()
    }

    /// The chunk of a deferred erase.
    pub(crate) fn deferred_erase(&self, index: usize) -> ChunkId {
        self.deferral.deferred_erases[index]
    }

    /// Removes a deferred erase, which is started.
    pub(crate) fn remove_deferred_erase(&mut self, index: usize) {
        self.deferral.deferred_erases.swap_remove(index);
    }
}
