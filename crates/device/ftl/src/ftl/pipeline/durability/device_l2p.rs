//! Trims and sequence numbers of a drive that keeps the map. The rules are in
//! [`device_l2p`](crate::durability::device_l2p).

use nvme::Status;
use time::Nanos;

use crate::buffer::write_ring::UnitState;
use crate::durability::device_l2p::TrimSync;
use crate::flash::OpKind;
use crate::ftl::{GC, HOST};
use crate::{FlashBackend, Ftl, L2pEntry, OpToken};

impl Ftl {
    /// Identifies the trim that a sector written now comes after and that the drive has not been told of; 0
    /// for none.
    #[inline]
    pub(crate) fn trim_before(&self, lba: u32, old: L2pEntry) -> u64 {
        if !self.durability.has_device_l2p() {
            return 0;
        }
        match old {
            L2pEntry::Unmapped if self.durability.is_trim_pending(lba) => {
                self.buffer.ring(HOST).head_pos() + 1
            }
            L2pEntry::Buffer(slot) => self.trim_dep_of(slot),
            L2pEntry::Unmapped | L2pEntry::Flash(_) | L2pEntry::Lost => 0,
        }
    }

    /// The trim that a buffered sector of the host comes after, as long as the sector is not durable.
    fn trim_dep_of(&self, slot: u32) -> u64 {
        let is_host = slot < self.buffer.ring(HOST).capacity();
        if is_host && self.buffer.unit_of(slot).state < UnitState::Persisted {
            self.buffer.entry(slot).trim_dep
        } else {
            0
        }
    }

    /// Makes the first `trimmed` trims durable: everything that was written before is numbered up to
    /// `sequence` and durable.
    pub(super) fn sync_trims(
        &mut self,
        now: Nanos,
        sequence: u64,
        trimmed: u64,
        flash: &mut impl FlashBackend,
    ) -> TrimSync {
        let (mapping, buffer) = (&self.mapping, &self.buffer);
        let host_slots = buffer.ring(HOST).capacity();
        // Whether no copy of a trimmed sector since its trim is durable.
        let needs_sync = |lba| match mapping.get(lba) {
            L2pEntry::Unmapped => true,
            L2pEntry::Flash(_) | L2pEntry::Lost => false,
            L2pEntry::Buffer(slot) => {
                slot < host_slots
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
        self.stats.trims_synced += ranges.iter().map(|(_, n)| u64::from(*n)).sum::<u64>();
        let sequence = self.durability.trim_sequence();
        let taken = flash.device_trim(now, OpToken::new(OpKind::Trim, 0), ranges, sequence);
        self.durability.trims_sent(taken)
    }

    /// The drive has answered [`FlashBackend::device_trim`]. [`kick`](Ftl::kick) afterwards.
    pub fn device_trim_done(&mut self, now: Nanos, status: Status, flash: &mut impl FlashBackend) {
        self.durability.device_trim_done(status);
        self.complete_barriers(now, flash);
    }

    /// Whether the next unit of a ring may get a sequence number.
    #[inline]
    pub(crate) fn can_assign_seq(&self, ring: usize) -> bool {
        self.durability.can_assign_seq(self.buffer.next_seq(), ring == GC)
    }

    /// Reserves sequence numbers, and gives the journal what it must say.
    pub(super) fn step_seq_reservation(&mut self) -> bool {
        let mapping = &self.mapping;
        // Data on flash that is whole, and a trim that the drive knows of, are no longer in doubt.
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
