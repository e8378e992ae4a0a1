//! [`NamedSlots`]: by slot of the write buffer, the facts that a sector with a name has besides its entry.

use serde::{Deserialize, Serialize};

use crate::ids::{SlotId, ToIndex};

/// A sector of the write buffer that has a name, or gets one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedSlot {
    /// The host's tag.
    pub tag: u64,
    /// The tag of the request that writes it; `None` if that request has failed.
    pub(crate) request: Option<u64>,
}

/// The sectors in all slots; empty if sectors have logical addresses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct NamedSlots {
    slots: Box<[NamedSlot]>,
}

impl NamedSlots {
    /// Creates the state of `count` slots.
    pub(super) fn new(count: u32) -> NamedSlots {
        NamedSlots { slots: vec![NamedSlot::default(); count.index()].into() }
    }

    /// Whether sectors have names.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        !self.slots.is_empty()
    }

    /// The sector in a slot.
    pub(crate) fn get(&self, slot: SlotId) -> NamedSlot {
        self.slots[slot.index()]
    }

    /// Records that the request which writes a sector has failed.
    pub(crate) fn abandon(&mut self, slot: SlotId) {
        self.slots[slot.index()].request = None;
    }

    /// Records the sector that a slot is filled with.
    pub(crate) fn set(&mut self, slot: SlotId, sector: NamedSlot) {
        self.slots[slot.index()] = sector;
    }

    /// The sectors of a unit of `count` slots; empty if sectors have logical addresses.
    #[inline]
    pub(crate) fn of_unit(&self, first: SlotId, count: u32) -> &[NamedSlot] {
        let first = first.index();
        self.slots.get(first..first + count.index()).unwrap_or_default()
    }
}
