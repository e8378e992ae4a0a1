//! Slots of a [`JobThread`]: one per outstanding request.

use block::Limits;
use clock::Nanos;
use nvme::Status;

use super::JobThread;
use crate::job::JobSpec;
use crate::source::{IoKind, NextIo};

/// One outstanding request.
#[derive(Clone, Copy, Debug)]
pub(super) struct IoSlot {
    pub(super) wanted: Nanos,
    pub(super) issued: Nanos,
    pub(super) io: NextIo,
    /// Number of sectors submitted to the device.
    pub(super) sectors_submitted: u32,
    /// Number of fragments submitted and not completed.
    pub(super) fragments: u32,
    /// First error of a fragment.
    pub(super) status: Status,
    /// Sequence number of the write in [`VerifyState`], or 0 if it has none.
    pub(super) seq: u64,
}

pub(super) const EMPTY_SLOT: IoSlot = IoSlot {
    wanted: Nanos::ZERO,
    issued: Nanos::ZERO,
    io: NextIo { kind: IoKind::Flush, lba: 0, sectors: 0 },
    sectors_submitted: 0,
    fragments: 0,
    status: Status::SUCCESS,
    seq: 0,
};

/// Memory per slot without payloads, in bytes.
pub(crate) const SLOT_BYTES: u64 = (size_of::<IoSlot>() + 3 * size_of::<u32>()) as u64;

/// Returns the number of slots that a job allocates at its start.
///
/// It is the maximum of outstanding requests, limited to those that the device accepts, plus one on
/// its way. Slots of completions that wait for a busy CPU are allocated later, if needed. Verifying
/// jobs allocate all slots at the start because their payload buffers are assigned per slot.
pub(crate) fn initial_slot_count(spec: &JobSpec, limits: &Limits) -> u32 {
    let depth = spec.depth();
    if spec.verify { depth } else { depth.min(limits.queue_depth.saturating_add(1)) }
}

impl JobThread {
    /// Returns whether a slot for another request is available.
    #[inline]
    pub(super) fn has_slot(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.depth
    }

    /// Allocates a slot: the one freed last, or a new one.
    #[inline]
    pub(super) fn allocate_slot(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            (self.slots.len() < self.depth).then(|| {
                self.slots.push(EMPTY_SLOT);
                self.slots.len() as u32 - 1
            })
        })
    }
}
