//! The effect of hints on flash operations [LightNVM17 §3.3]: plane mode, suspension of programs
//! and erases, and limited read retries.

use nvme::VectorHints;
use time::Nanos;

use super::{ArrayEvent, NandArray};
use crate::nand_array::operation::{NandOpKind, PuOp, PuOpId};
use crate::nand_array::pu::{ActiveOp, ArrayPhase, NO_PU_OP, SuspendedOp};
use crate::{PuScheduling, SuspendConfig};

impl NandArray {
    /// Returns the number of array operations over `planes` planes: one, unless a hint limits the
    /// planes per operation. Planes of a read are grouped in the order of the list.
    #[inline]
    pub(super) fn array_op_count(&self, hints: VectorHints, planes: u32) -> u8 {
        // A parallel unit has at most 64 planes.
        hints.planes.planes().map_or(1, |at_once| planes.div_ceil(at_once).max(1) as u8)
    }

    /// Continues a program or erase with its next planes. Until the array is assigned to it again,
    /// it waits like a suspended operation.
    pub(super) fn next_array_op(&mut self, pu: u32, id: u32) {
        self.ops.pu_op_mut(id).array_ops_left -= 1;
        let time = self.array_time(self.ops.pu_op(id));
        let unit = &mut self.pus[pu as usize];
        unit.array.active = None;
        unit.array.suspended = Some(SuspendedOp { pu_op: id, remaining: time });
    }

    /// Returns the costs of a suspension that the policy or a read's hint allows.
    #[inline]
    fn suspension(&self, hinted: bool) -> Option<SuspendConfig> {
        match self.config.scheduling {
            PuScheduling::ReadPriority { suspend: Some(limits) } => Some(limits),
            _ if hinted => self.config.suspend_on_hint,
            _ => None,
        }
    }

    /// Whether the drive can suspend on a read's hint.
    pub(crate) fn can_suspend_on_hint(&self) -> bool {
        self.suspension(true).is_some()
    }

    /// Whether a read with the hint goes ahead of the waiting operations of a parallel unit with
    /// FIFO scheduling. It does if it can suspend the running operation, if that is already
    /// suspended, or while the array waits for program data.
    pub(super) fn can_overtake(&self, pu: u32) -> bool {
        let Some(limits) = self.suspension(true) else { return false };
        let unit = &self.pus[pu as usize];
        if unit.array.suspended.is_some() {
            return true;
        }
        match unit.array.active {
            None => unit.cache.staged != NO_PU_OP,
            Some(ActiveOp { phase: ArrayPhase::Suspending, .. }) => true,
            Some(ActiveOp { phase: ArrayPhase::DataOut | ArrayPhase::InPageRegister, .. }) => false,
            Some(ActiveOp { pu_op: part, phase: ArrayPhase::Array }) => {
                let part = self.ops.pu_op(part);
                part.kind != NandOpKind::Read
                    && u32::from(part.suspensions) < limits.max_per_operation
            }
        }
    }

    /// Suspends a running program or erase for a read, if the policy or the read's hint allows it.
    pub(super) fn suspend(&mut self, now: Nanos, pu: u32, hinted: bool) {
        let Some(limits) = self.suspension(hinted) else { return };
        let unit = &mut self.pus[pu as usize];
        let Some(active) = unit.array.active else { return };
        let part = self.ops.pu_op_mut(active.pu_op);
        if active.phase != ArrayPhase::Array
            || part.kind == NandOpKind::Read
            || u32::from(part.suspensions) >= limits.max_per_operation
        {
            return;
        }
        part.suspensions = part.suspensions.saturating_add(1);
        self.counters.suspensions += 1;
        unit.array.epoch += 1;
        let remaining = unit.array.end.since(now) + limits.resume;
        let what = PuOpId { id: active.pu_op, kind: part.kind };
        let began = unit.array.start;
        unit.array.suspended = Some(SuspendedOp { pu_op: active.pu_op, remaining });
        unit.array.active = Some(ActiveOp { pu_op: active.pu_op, phase: ArrayPhase::Suspending });
        let event = ArrayEvent::Suspended { pu, epoch: unit.array.epoch };
        let delay = if self.zero_latency { Nanos::ZERO } else { limits.suspend };
        self.timers.push(now + delay, event);
        self.record_array_busy(pu, what, began, now + delay);
    }

    /// Returns the number of read retries of a parallel-unit operation, which is that of its worst
    /// sector. Counts retries that a hint suppresses.
    pub(super) fn retries_needed(&mut self, part: &PuOp) -> u16 {
        let op = self.ops.op(part.op);
        let sectors = usize::from(part.first)..usize::from(part.first) + usize::from(part.count);
        let mut most = 0;
        for address in &op.addresses.get()[sectors] {
            most = self.nand.retries_needed(address.phys).max(most);
        }
        self.counters.retries_forgone += u64::from(most > 0 && part.hints.limited_retry);
        // The error model limits the number to 1000.
        most as u16
    }
}
