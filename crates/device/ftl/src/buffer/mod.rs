//! The write buffer: rings of write units, their sequence numbers, and units that are redispatched.

pub(crate) mod redispatch;
pub(crate) mod sequence;
pub(crate) mod write_ring;

use crate::env::Env;
use crate::ftl::HOST;
use crate::space::lines::{LOST, NONE};
use crate::{BufferEntry, FlashGeometry, L2pEntry};
use redispatch::RedispatchTracker;
use sequence::WriteSequencer;
use write_ring::{BufferUnit, UnitState, WriteRing};

/// The rings of the host and of garbage collection, and the sequence numbers of their units.
#[derive(Clone, Debug)]
pub(crate) struct WriteBuffer {
    pub(crate) rings: [WriteRing; 2],
    pub(crate) sequencer: WriteSequencer,
    pub(crate) redispatch: RedispatchTracker,
}

impl WriteBuffer {
    /// An empty buffer, whose first unit gets the sequence number `first_seq`.
    pub(crate) fn new(env: &Env, first_seq: u64) -> WriteBuffer {
        let host = WriteRing::new(&env.geometry, env.plan.host_buffer_units, 0);
        let gc = WriteRing::new(&env.geometry, env.plan.gc_buffer_units, host.capacity());
        WriteBuffer {
            rings: [host, gc],
            sequencer: WriteSequencer::starting_at(first_seq),
            redispatch: RedispatchTracker::default(),
        }
    }

    /// Slots of both rings.
    pub(crate) fn capacity(&self) -> u32 {
        self.rings.iter().map(WriteRing::capacity).sum()
    }

    #[inline]
    fn ring_of_slot(&self, slot: u32) -> usize {
        usize::from(slot >= self.rings[HOST].capacity())
    }

    /// The entry of a slot.
    #[inline]
    pub(crate) fn entry(&self, slot: u32) -> &BufferEntry {
        self.rings[self.ring_of_slot(slot)].entry(slot)
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, slot: u32) -> &mut BufferEntry {
        let ring = self.ring_of_slot(slot);
        self.rings[ring].entry_mut(slot)
    }

    /// The write unit of a slot.
    #[inline]
    pub(crate) fn unit_of(&self, slot: u32) -> &BufferUnit {
        let ring = &self.rings[self.ring_of_slot(slot)];
        &ring.units[ring.unit_of_slot(slot)]
    }

    /// The newest copy on flash of a sector that is at this location, [`NONE`] or [`LOST`], and the sequence
    /// number below which no unit holds a newer one.
    #[inline]
    pub(crate) fn durable_copy_of(&self, geometry: &FlashGeometry, at: L2pEntry) -> (u32, u64) {
        match at {
            L2pEntry::Unmapped => (NONE, self.sequencer.next_seq()),
            L2pEntry::Lost => (LOST, self.sequencer.next_seq()),
            L2pEntry::Flash(psn) => (psn, self.sequencer.next_seq()),
            L2pEntry::Buffer(slot) => {
                let ring = &self.rings[self.ring_of_slot(slot)];
                let unit = &ring.units[ring.unit_of_slot(slot)];
                if unit.state >= UnitState::Persisted {
                    let psn = geometry.first_sector_of(unit.chunk) + unit.sector;
                    return (psn + ring.offset_in_unit(slot), unit.sequence);
                }
                let entry = ring.entry(slot);
                (entry.durable_copy, entry.durable_copy_seq)
            }
        }
    }
}
