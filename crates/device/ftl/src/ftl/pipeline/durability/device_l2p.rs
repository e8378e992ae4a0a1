//! Trims and sequence numbers of a drive that keeps the map. The rules are in
//! [`device_l2p`](crate::durability::device_l2p).

use crate::ids::{Lba, SlotId, WriteSeq};
use nvme::Status;
use time::Nanos;

use crate::buffer::write_ring::UnitState;
use crate::durability::device_l2p::TrimSync;
use crate::flash::OpKind;
use crate::ftl::GC;
use crate::{FlashBackend, Ftl, L2pEntry, OpToken};

impl Ftl {
    /// Returns the number of the trim that precedes a write of a sector and that the drive has not
    /// been told of; 0 for none.
    #[inline]
    pub(crate) fn trim_before(&self, lba: Lba, old: L2pEntry) -> u64 {
        if !self.durability.has_device_l2p() {
            return 0;
        }
        match old {
            L2pEntry::Unmapped if self.durability.is_trim_pending(lba) => {
                self.buffer.head_pos() + 1
            }
            L2pEntry::Buffer(slot) => self.trim_dep_of(slot),
            L2pEntry::Unmapped | L2pEntry::Flash(_) | L2pEntry::Lost => 0,
        }
    }

    /// Returns the trim that precedes a buffered host sector, as long as the sector is not durable.
    fn trim_dep_of(&self, slot: SlotId) -> u64 {
        if !self.buffer.ring(GC).has_slot(slot)
            && self.buffer.unit_of(slot).state < UnitState::Persisted
        {
            self.buffer.entry(slot).trim_dep
        } else {
            0
        }
    }

    /// Makes the first `trimmed` trims durable. All earlier writes are durable and have sequence
    /// numbers up to `sequence`.
    pub(super) fn sync_trims(
        &mut self,
        now: Nanos,
        sequence: WriteSeq,
        trimmed: u64,
        flash: &mut impl FlashBackend,
    ) -> TrimSync {
        let (mapping, buffer) = (&self.mapping, &self.buffer);
        // Whether no copy of the trimmed sector written after its trim is durable.
        let needs_sync = |lba| match mapping.get(lba) {
            L2pEntry::Unmapped => true,
            L2pEntry::Flash(_) | L2pEntry::Lost => false,
            L2pEntry::Buffer(slot) => {
                !buffer.ring(GC).has_slot(slot)
                    && buffer.unit_of(slot).state < UnitState::Persisted
                    && buffer.entry(slot).trim_dep != 0
            }
        };
        match self.durability.sync_trims(&self.env, sequence, trimmed, needs_sync) {
            TrimSync::Send => self.send_trims(now, flash),
            sync => sync,
        }
    }

    fn send_trims(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> TrimSync {
        let ranges = self.durability.trim_ranges();
        self.stats.trims_synced += ranges.iter().map(|range| u64::from(range.sectors)).sum::<u64>();
        let sequence = self.durability.trim_sequence();
        let taken = flash.device_trim(now, OpToken::new(OpKind::Trim, 0), ranges, sequence);
        self.durability.trims_sent(taken)
    }

    /// Reports the end of a [`FlashBackend::device_trim`]. Call [`kick`](Ftl::kick) afterwards.
    pub fn device_trim_done(&mut self, now: Nanos, status: Status, flash: &mut impl FlashBackend) {
        self.durability.device_trim_done(status);
        self.complete_barriers(now, flash);
    }

    /// Returns whether the next unit of a ring may get a sequence number.
    #[inline]
    pub(crate) fn can_assign_seq(&self, ring: usize) -> bool {
        self.durability.can_assign_seq(self.buffer.next_seq(), ring == GC)
            && !self.mapping.named().is_some_and(|named| named.awaits_snapshot())
    }

    /// Reserves sequence numbers and appends the journal's record of the reservation.
    pub(super) fn step_seq_reservation(&mut self) -> bool {
        let mapping = &self.mapping;
        // Readable data on flash, and a trim that the drive has recorded, are no longer lost.
        let is_lost = |lba, is_trim_pending| match mapping.get(lba) {
            L2pEntry::Flash(phys) => mapping.is_poisoned(phys),
            L2pEntry::Unmapped => is_trim_pending,
            L2pEntry::Buffer(_) | L2pEntry::Lost => true,
        };
        let next = self.buffer.next_seq();
        let step = self.durability.step_reservation(&self.env, next, is_lost);
        if step.is_durable {
            self.space.unblock();
        }
        self.stats.checkpoints += u64::from(step.has_begun);
        step.moved
    }
}
