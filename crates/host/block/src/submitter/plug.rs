//! [`Plug`]: requests of one submitter that wait for others to merge with.
//!
//! A request merges only with the last one in the plug, so all before it may be started at once.
//! With an own path to the hardware and no scheduler, the last request therefore waits in the slot
//! of its tag, where the hardware queue needs it. It is bound when the next request arrives, or at
//! the next run of the queue. A request without a neighbour is then copied no more often than
//! without merging.
//!
//! Invariant: if a request waits in a slot, the list of requests is empty.

use driver::Tag;

use crate::StagedRequest;

/// Maximum number of requests in the plug (Linux's plug holds 32 per device).
pub(crate) const PLUG_MAX: usize = 32;

/// The plug of a submitter.
#[derive(Debug)]
pub(crate) struct Plug {
    /// The requests that wait, oldest first.
    pub(crate) requests: Vec<StagedRequest>,
    /// The tag in whose slot the last request waits.
    slot: Option<Tag>,
    /// Number of requests since the plug was flushed that are or were in a slot.
    in_slots: usize,
}

impl Plug {
    pub(crate) fn new() -> Plug {
        Plug { requests: Vec::with_capacity(PLUG_MAX), slot: None, in_slots: 0 }
    }

    /// Returns whether no request waits.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.slot.is_none()
    }

    /// Returns whether the plug must be flushed: [`PLUG_MAX`] requests were added since the last
    /// flush.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() + self.in_slots >= PLUG_MAX
    }

    /// Returns the tag in whose slot the last request waits.
    #[inline(always)]
    pub(crate) fn slot(&self) -> Option<Tag> {
        self.slot
    }

    /// Records that the last request waits in the slot of `tag`.
    #[inline(always)]
    pub(crate) fn set_slot(&mut self, tag: Tag) {
        self.slot = Some(tag);
        self.in_slots += 1;
    }

    /// Removes the request that waits in a slot, which is started. It counts until the next flush.
    #[inline(always)]
    pub(crate) fn take_slot(&mut self) -> Option<Tag> {
        self.slot.take()
    }

    /// Moves the request that waited in a slot into the list.
    pub(crate) fn move_from_slot(&mut self, staged: StagedRequest) {
        self.slot = None;
        self.in_slots -= 1;
        self.requests.push(staged);
    }

    /// Records that the requests in slots are flushed.
    #[inline(always)]
    pub(crate) fn flush_slots(&mut self) {
        self.in_slots = 0;
    }
}
