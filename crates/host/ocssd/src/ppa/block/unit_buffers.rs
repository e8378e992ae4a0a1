//! [`UnitBuffers`]: write units in memory. Unit `u` is in slot `u mod len`, if it is in memory. A
//! slot's buffer is allocated on first use and kept.

use crate::ppa::{VectorBuffer, VectorBufferPool};
use crate::vector::MemoryError;

#[derive(Debug)]
enum UnitBuffer {
    Empty,
    /// A buffer without a unit.
    Idle(VectorBuffer),
    /// A unit that is being filled or kept.
    Occupied(u64, VectorBuffer),
    /// A unit in flight; its command owns the buffer.
    InFlight(u64),
}

/// Write units in memory.
#[derive(Debug)]
pub(super) struct UnitBuffers {
    slots: Vec<UnitBuffer>,
}

impl UnitBuffers {
    pub(super) fn new(count: usize) -> UnitBuffers {
        UnitBuffers { slots: (0..count).map(|_| UnitBuffer::Empty).collect() }
    }

    /// Returns the capacity in units.
    pub(super) fn len(&self) -> u64 {
        self.slots.len() as u64
    }

    fn index(&self, unit: u64) -> usize {
        (unit % self.slots.len() as u64) as usize
    }

    /// Returns the unit in the slot of `unit`.
    pub(super) fn occupant(&self, unit: u64) -> Option<u64> {
        match self.slots[self.index(unit)] {
            UnitBuffer::Occupied(there, _) | UnitBuffer::InFlight(there) => Some(there),
            UnitBuffer::Empty | UnitBuffer::Idle(_) => None,
        }
    }

    /// Claims the slot of `unit`, with `sectors` sectors, and discards the previous unit. The
    /// contents of the buffer are undefined.
    pub(super) fn claim(
        &mut self,
        unit: u64,
        sectors: u32,
        buffers: &VectorBufferPool,
    ) -> Result<(), MemoryError> {
        let index = self.index(unit);
        let slot = std::mem::replace(&mut self.slots[index], UnitBuffer::Empty);
        let buffer = match slot {
            UnitBuffer::Idle(buffer) | UnitBuffer::Occupied(_, buffer) => buffer,
            // A buffer in flight is not returned to the slot any more.
            UnitBuffer::Empty | UnitBuffer::InFlight(_) => buffers.allocate(sectors)?,
        };
        self.slots[index] = UnitBuffer::Occupied(unit, buffer);
        Ok(())
    }

    /// Stores a unit, and discards the previous unit of the slot.
    pub(super) fn insert(&mut self, unit: u64, buffer: VectorBuffer) {
        let index = self.index(unit);
        self.slots[index] = UnitBuffer::Occupied(unit, buffer);
    }

    /// Returns the buffer of a unit that is in memory.
    pub(super) fn get(&self, unit: u64) -> Option<&VectorBuffer> {
        match &self.slots[self.index(unit)] {
            UnitBuffer::Occupied(there, buffer) if *there == unit => Some(buffer),
            _ => None,
        }
    }

    /// Returns the mutable buffer of a unit that is in memory.
    pub(super) fn get_mut(&mut self, unit: u64) -> Option<&mut VectorBuffer> {
        let index = self.index(unit);
        match &mut self.slots[index] {
            UnitBuffer::Occupied(there, buffer) if *there == unit => Some(buffer),
            _ => None,
        }
    }

    /// Takes the buffer of a unit that is in memory, for its write.
    pub(super) fn take_for_write(&mut self, unit: u64) -> Option<VectorBuffer> {
        let index = self.index(unit);
        match std::mem::replace(&mut self.slots[index], UnitBuffer::Empty) {
            UnitBuffer::Occupied(there, buffer) if there == unit => {
                self.slots[index] = UnitBuffer::InFlight(unit);
                Some(buffer)
            }
            other => {
                self.slots[index] = other;
                None
            }
        }
    }

    /// Returns the buffer of a unit after its write; it is freed if the slot was claimed meanwhile.
    pub(super) fn return_buffer(&mut self, unit: u64, buffer: Option<VectorBuffer>) {
        let index = self.index(unit);
        if matches!(self.slots[index], UnitBuffer::InFlight(there) if there == unit) {
            self.slots[index] =
                buffer.map_or(UnitBuffer::Empty, |buffer| UnitBuffer::Occupied(unit, buffer));
        }
    }

    /// Discards all units, and keeps the buffers.
    pub(super) fn clear(&mut self) {
        for slot in &mut self.slots {
            *slot = match std::mem::replace(slot, UnitBuffer::Empty) {
                UnitBuffer::Occupied(_, buffer) | UnitBuffer::Idle(buffer) => {
                    UnitBuffer::Idle(buffer)
                }
                UnitBuffer::Empty | UnitBuffer::InFlight(_) => UnitBuffer::Empty,
            };
        }
    }
}
