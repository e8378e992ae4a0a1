//! What garbage collection keeps back for users' reads (thesis chapter 6: the host knows which parallel
//! units its reads wait on; LightNVM paper section 4.2.4 has collection out of the users' way).
//!
//! By [`GcReadPriority`]:
//!
//! * To parallel units with reads waiting: what garbage collection wants there takes another unit's turn.
//!   Victims' units on quiet parallel units are read first, moved data is programmed on quiet ones, and an
//!   erase waits until its unit is quiet. What finds no quiet unit is kept back.
//! * To any read: a parallel unit is quiet when no read is under way at all, so that everything is kept
//!   back. The next read goes elsewhere than this one, and finds what was started there.
//!
//! Guarantees: only while space does not press ([`RateLimiter::is_below_critical`](crate::RateLimiter)); as soon as
//! it does, all that was kept back goes on. While something is kept back users write as if nothing were
//! being moved, so that they wait for garbage collection no longer than without this. Something that is
//! kept back is looked at again whenever a user's read has ended, and no read waits for it.

use clock::Nanos;

use crate::flash::OpKind;
use crate::ftl::GC;
use crate::gc::VictimScan;
use crate::{FlashBackend, FlashGeometry, Ftl, GcReadPriority, OpToken};

/// Units of a victim that are passed over for others at most.
const SKIPPED_UNITS_MAX: usize = 64;

/// A write unit of the line that is being scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VictimUnit {
    pub(crate) unit: u32,
    pub(crate) member: u32,
    /// Whether it is the line's last.
    pub(crate) last: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct GcDeferral {
    priority: GcReadPriority,
    /// Units of the victim that is being scanned, passed over: unit and member.
    skipped_units: Vec<(u32, u32)>,
    /// Per parallel unit, whether the programs that are being placed avoid it.
    avoided_pus: Vec<bool>,
    avoiding: bool,
    /// Whether a scan found nothing but waiting reads.
    scan_deferred: bool,
    /// Whether a program found nothing but waiting reads, or units that are busy.
    program_deferred: bool,
    /// Chunks whose erase has been kept back.
    deferred_erases: Vec<u32>,
}

impl GcDeferral {
    pub(crate) fn new(shape: &FlashGeometry, priority: GcReadPriority) -> GcDeferral {
        let on = priority != GcReadPriority::Off;
        GcDeferral {
            priority,
            skipped_units: Vec::with_capacity(if on { SKIPPED_UNITS_MAX } else { 0 }),
            avoided_pus: vec![false; if on { shape.pus as usize } else { 0 }],
            avoiding: false,
            scan_deferred: false,
            program_deferred: false,
            deferred_erases: Vec::new(),
        }
    }

    /// Chunks whose erase is deferred.
    pub(crate) fn deferred_erases(&self) -> impl Iterator<Item = u32> {
        self.deferred_erases.iter().copied()
    }

    /// Whether something is kept back.
    #[inline]
    pub(crate) fn is_deferring(&self) -> bool {
        self.scan_deferred || self.program_deferred || !self.deferred_erases.is_empty()
    }

    /// Whether a program is kept back.
    #[inline]
    pub(crate) fn is_program_deferred(&self) -> bool {
        self.program_deferred
    }

    /// Whether what is being placed keeps away from a parallel unit.
    #[inline]
    pub(crate) fn should_avoid(&self, pu: u32) -> bool {
        self.avoiding && self.avoided_pus[pu as usize]
    }

    pub(crate) fn clear_avoided(&mut self) {
        self.avoiding = false;
    }

    /// Whether units of the victim were passed over that are still to be looked at.
    #[inline]
    pub(crate) fn has_skipped_units(&self) -> bool {
        !self.skipped_units.is_empty()
    }

    /// The victim has been scanned.
    pub(crate) fn on_scan_complete(&mut self) {
        self.skipped_units.clear();
        self.scan_deferred = false;
    }
}

impl Ftl {
    /// Sectors that users may write without having earned them, because garbage collection moves on
    /// more slowly than it could: as long as that goes on, from one on.
    #[inline]
    pub(crate) fn credit_while_gc_deferred(&self, free: u64) -> Option<u32> {
        if !self.gc.deferral.scan_deferred && !self.gc.deferral.program_deferred {
            return None;
        }
        let spare = self.gc.limiter.budget_until_critical(free).filter(|spare| *spare > 0)?;
        Some(spare.min(u32::MAX.into()) as u32)
    }

    #[inline]
    fn can_defer_gc(&self) -> bool {
        self.gc.deferral.priority != GcReadPriority::Off
            && !self.gc.limiter.is_below_critical(self.free_sectors())
    }

    /// Whether garbage collection keeps away from a parallel unit, if it yields.
    #[inline]
    fn is_pu_avoided(&self, pu: u32, flash: &impl FlashBackend) -> bool {
        match self.gc.deferral.priority {
            GcReadPriority::Off => false,
            GcReadPriority::PerPu => flash.host_reads_in_flight(pu) > 0,
            GcReadPriority::Global => self.host_reads_in_flight() > 0,
        }
    }

    /// Before programs of a ring are placed: garbage collection's keep away from parallel units with
    /// reads waiting.
    pub(crate) fn update_avoided_pus(&mut self, ring: usize, flash: &impl FlashBackend) {
        if ring != GC || self.gc.deferral.priority == GcReadPriority::Off {
            return;
        }
        self.gc.deferral.avoiding = false;
        self.gc.deferral.program_deferred = false;
        if self.buffer.rings[GC].ready().is_none() || !self.can_defer_gc() {
            return;
        }
        for pu in 0..self.env.geometry.pus {
            let avoided = self.is_pu_avoided(pu, flash);
            self.gc.deferral.avoided_pus[pu as usize] = avoided;
            self.gc.deferral.avoiding |= avoided;
        }
    }

    /// A ring's program found no place: whether because of reads that wait.
    pub(crate) fn record_unplaced(&mut self, ring: usize) {
        self.gc.deferral.program_deferred |= ring == GC && self.gc.deferral.avoiding;
    }

    /// The next write unit of the oldest victim to be looked at: of those on quiet parallel units the
    /// first; `None` if there is none, or no victim.
    pub(crate) fn next_victim_unit(&mut self, flash: &impl FlashBackend) -> Option<VictimUnit> {
        self.gc.deferral.scan_deferred = false;
        let yields = self.can_defer_gc();
        if yields
            && self.gc.deferral.priority == GcReadPriority::Global
            && self.host_reads_in_flight() > 0
        {
            self.gc.deferral.scan_deferred = true;
            return None;
        }
        let yields = yields && self.gc.deferral.priority == GcReadPriority::PerPu;
        let (shape, y) = (&self.env.geometry, &mut self.gc.deferral);
        let VictimScan { line, unit, member, units } = self.gc.scans.front_mut()?;
        let units = *units;
        let chunks = &self.space.lines.lines[*line as usize].chunks;
        let quiet = |member: u32| {
            !yields || flash.host_reads_in_flight(shape.pu_of(chunks[member as usize])) == 0
        };
        let at_end = |unit: u32| unit >= units;
        if let Some(i) = y.skipped_units.iter().position(|(_, member)| quiet(*member)) {
            let (of, by) = y.skipped_units.swap_remove(i);
            return Some(VictimUnit {
                unit: of,
                member: by,
                last: at_end(*unit) && y.skipped_units.is_empty(),
            });
        }
        while !at_end(*unit) && y.skipped_units.len() < SKIPPED_UNITS_MAX {
            let (of, by) = (*unit, *member);
            *member += 1;
            if *member as usize == chunks.len() {
                (*unit, *member) = (of + 1, 0);
            }
            if quiet(by) {
                let last = at_end(*unit) && y.skipped_units.is_empty();
                return Some(VictimUnit { unit: of, member: by, last });
            }
            y.skipped_units.push((of, by));
        }
        y.scan_deferred = true;
        None
    }

    /// Whether the erase of a chunk is kept back: not if the chunk may be wanted before long.
    fn should_defer_erase(&self, chunk: u32, flash: &impl FlashBackend) -> bool {
        self.can_defer_gc()
            && self.space.lines.free_chunks() >= 2 * self.env.plan.active_pus
            && self.is_pu_avoided(self.env.geometry.pu_of(chunk), flash)
    }

    /// Erases a chunk that counts as being erased, now or as soon as its parallel unit is quiet.
    pub(crate) fn erase_or_defer(&mut self, now: Nanos, chunk: u32, flash: &mut impl FlashBackend) {
        if self.should_defer_erase(chunk, flash) {
            self.gc.deferral.deferred_erases.push(chunk);
        } else {
            flash.erase(now, OpToken::new(OpKind::Erase, chunk), chunk);
        }
    }

    /// Begins a round of garbage collection: erases what was kept back and need not be any more.
    /// Returns whether there was something.
    pub(crate) fn run_deferred_erases(
        &mut self,
        now: Nanos,
        flash: &mut impl FlashBackend,
    ) -> bool {
        self.gc.deferral.scan_deferred = false;
        let mut moved = false;
        for i in (0..self.gc.deferral.deferred_erases.len()).rev() {
            let chunk = self.gc.deferral.deferred_erases[i];
            if !self.should_defer_erase(chunk, flash) {
                self.gc.deferral.deferred_erases.swap_remove(i);
                flash.erase(now, OpToken::new(OpKind::Erase, chunk), chunk);
                moved = true;
            }
        }
        moved
    }
}
