//! [`Slots`]: write units in memory. Unit `u` is in slot `u` modulo their number, if it is there at
//! all. A slot's buffer is made when it is first used, and kept.

use crate::ppa::{Buffer, Buffers};
use crate::vector::MemoryError;

#[derive(Debug)]
enum UnitBuffer {
    Empty,
    /// Nothing of use is in it.
    Idle(Buffer),
    /// A unit, being filled or kept.
    Occupied(u64, Buffer),
    /// A unit on its way to the drive, which has the buffer.
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

    /// How many units there is room for.
    pub(super) fn len(&self) -> u64 {
        self.slots.len() as u64
    }

    fn index(&self, unit: u64) -> usize {
        (unit % self.slots.len() as u64) as usize
    }

    /// The unit that is where `unit` would be.
    pub(super) fn occupant(&self, unit: u64) -> Option<u64> {
        match self.slots[self.index(unit)] {
            UnitBuffer::Occupied(there, _) | UnitBuffer::InFlight(there) => Some(there),
            UnitBuffer::Empty | UnitBuffer::Idle(_) => None,
        }
    }

    /// Makes room for `unit`, of `sectors` sectors, and forgets what was there. What is in it then is
    /// anything.
    pub(super) fn claim(
        &mut self,
        unit: u64,
        sectors: u32,
        buffers: &Buffers,
    ) -> Result<(), MemoryError> {
        let index = self.index(unit);
        let slot = std::mem::replace(&mut self.slots[index], UnitBuffer::Empty);
        let buffer = match slot {
            UnitBuffer::Idle(buffer) | UnitBuffer::Occupied(_, buffer) => buffer,
            // What is away comes back to nobody.
            UnitBuffer::Empty | UnitBuffer::InFlight(_) => buffers.allocate(sectors)?,
        };
        self.slots[index] = UnitBuffer::Occupied(unit, buffer);
        Ok(())
    }

    /// Keeps a unit, in place of what was there.
    pub(super) fn insert(&mut self, unit: u64, buffer: Buffer) {
        let index = self.index(unit);
        self.slots[index] = UnitBuffer::Occupied(unit, buffer);
    }

    /// The buffer of a unit that is here.
    pub(super) fn get(&self, unit: u64) -> Option<&Buffer> {
        match &self.slots[self.index(unit)] {
            UnitBuffer::Occupied(there, buffer) if *there == unit => Some(buffer),
            _ => None,
        }
    }

    /// As [`get`](Slots::get), to be filled.
    pub(super) fn get_mut(&mut self, unit: u64) -> Option<&mut Buffer> {
        let index = self.index(unit);
        match &mut self.slots[index] {
            UnitBuffer::Occupied(there, buffer) if *there == unit => Some(buffer),
            _ => None,
        }
    }

    /// The buffer of a unit that is here, for the drive.
    pub(super) fn take_for_write(&mut self, unit: u64) -> Option<Buffer> {
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

    /// The buffer of a unit comes back; if it was given up meanwhile, it goes.
    pub(super) fn return_buffer(&mut self, unit: u64, buffer: Option<Buffer>) {
        let index = self.index(unit);
        if matches!(self.slots[index], UnitBuffer::InFlight(there) if there == unit) {
            self.slots[index] =
                buffer.map_or(UnitBuffer::Empty, |buffer| UnitBuffer::Occupied(unit, buffer));
        }
    }

    /// Forgets what is in memory, and keeps the memory.
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
