//! [`Ticket`]: a buffer that is being written.

/// The right to a buffer that a [`SpeculativeHandle`](crate::SpeculativeHandle) has:
/// [`take`](crate::SpeculativeHandle::take) waits for its write and returns it, and
/// [`release`](crate::SpeculativeHandle::release) frees it after the write.
///
/// The handle keeps the buffer of a ticket that is dropped until the handle itself is dropped.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the handle keeps the buffer until its ticket is taken or released"]
pub struct Ticket {
    slot: u32,
    use_number: u32,
}

impl Ticket {
    pub(crate) fn new(slot: u32, use_number: u32) -> Ticket {
        Ticket { slot, use_number }
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    pub(crate) fn use_number(&self) -> u32 {
        self.use_number
    }
}
