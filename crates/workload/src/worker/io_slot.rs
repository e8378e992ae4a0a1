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
    /// Sectors given to the device.
    pub(super) sectors_submitted: u32,
    /// Parts given to the device and not completed.
    pub(super) fragments: u32,
    /// The first error among the parts.
    pub(super) status: Status,
    /// The write's number in the ledger, 0 if it is not there.
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

/// Bytes of memory per slot, beside payloads.
pub(crate) const SLOT_BYTES: u64 = (size_of::<IoSlot>() + 3 * size_of::<u32>()) as u64;

/// Slots that a job has from the start: as many as it may have outstanding, but no more than the device
/// takes, and one on its way. Slots that hold completions for a busy CPU come later, if at all.
/// Payloads of verifying jobs are placed per slot, so that those have all slots at once.
pub(crate) fn initial_slot_count(spec: &JobSpec, limits: &Limits) -> u32 {
    let depth = spec.depth();
    if spec.verify { depth } else { depth.min(limits.queue_depth.saturating_add(1)) }
}

impl JobThread {
    /// Whether another request can have a slot.
    #[inline]
    pub(super) fn has_slot(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.depth
    }

    /// A slot for a request: the last one that became free, or a new one.
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
