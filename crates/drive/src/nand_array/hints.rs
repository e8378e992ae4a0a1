//! What hints change about an operation of the flash (LightNVM paper section 3.3): planes a few at a
//! time, suspension of programs and erases, repetitions of reads.

use clock::Nanos;
use media::PhysSector;
use nvme::VectorHints;

use super::{ArrayEvent, NandArray};
use crate::operation::{NandOpKind, PuOp};
use crate::pu::{ActiveOp, ArrayPhase, NO_PU_OP};
use crate::{PuScheduling, SuspendConfig};

impl NandArray {
    /// Array operations that a part over so many planes takes: one, unless a hint wants fewer planes
    /// at once than there are. Planes of a read pair up as they come.
    #[inline]
    pub(super) fn array_op_count(&self, hints: VectorHints, planes: u32) -> u8 {
        // A unit has at most 64 planes.
        hints.planes.planes().map_or(1, |at_once| planes.div_ceil(at_once).max(1) as u8)
    }

    /// The array has done some planes of a program or an erase and goes on with the others. Until
    /// the array is given to it again it waits like one that was suspended.
    pub(super) fn next_array_op(&mut self, pu: u32, id: u32) {
        self.pu_ops[id as usize].array_ops_left -= 1;
        let time = self.array_time(&self.pu_ops[id as usize]);
        let unit = &mut self.pus[pu as usize];
        unit.active = None;
        unit.suspended = Some((id, time));
    }

    /// What a suspension costs, if there is one: by the drive's policy, or by a read's hint.
    #[inline]
    fn suspension(&self, hinted: bool) -> Option<SuspendConfig> {
        match self.scheduling {
            PuScheduling::ReadPriority { suspend: Some(limits) } => Some(limits),
            _ if hinted => self.suspend_on_hint,
            _ => None,
        }
    }

    /// Whether the drive can suspend when a hint asks for it.
    pub(crate) fn can_suspend_on_hint(&self) -> bool {
        self.suspension(true).is_some()
    }

    /// Whether a read with the hint goes ahead of what waits on a parallel unit that works in order
    /// of arrival: if it can have the array by suspending what runs, if that is suspended already,
    /// and while the array waits for a program's data.
    pub(super) fn can_overtake(&self, pu: u32) -> bool {
        let Some(limits) = self.suspension(true) else { return false };
        let unit = &self.pus[pu as usize];
        if unit.suspended.is_some() {
            return true;
        }
        match unit.active {
            None => unit.staged != NO_PU_OP,
            Some(ActiveOp { phase: ArrayPhase::Suspending, .. }) => true,
            Some(ActiveOp { phase: ArrayPhase::DataOut | ArrayPhase::InPageRegister, .. }) => false,
            Some(ActiveOp { pu_op: part, phase: ArrayPhase::Array }) => {
                let part = &self.pu_ops[part as usize];
                part.kind != NandOpKind::Read
                    && u32::from(part.suspensions) < limits.max_per_operation
            }
        }
    }

    /// Interrupts a running program or erase for a read, if the policy or the read's hint allows it.
    pub(super) fn suspend(&mut self, now: Nanos, pu: u32, hinted: bool) {
        let Some(limits) = self.suspension(hinted) else { return };
        let unit = &mut self.pus[pu as usize];
        let Some(active) = unit.active else { return };
        let part = &mut self.pu_ops[active.pu_op as usize];
        if active.phase != ArrayPhase::Array
            || part.kind == NandOpKind::Read
            || u32::from(part.suspensions) >= limits.max_per_operation
        {
            return;
        }
        part.suspensions = part.suspensions.saturating_add(1);
        self.suspensions += 1;
        unit.epoch += 1;
        let remaining = unit.array_end.since(now) + limits.resume;
        let (what, began) = ((active.pu_op, part.kind), unit.array_start);
        unit.suspended = Some((active.pu_op, remaining));
        unit.active = Some(ActiveOp { pu_op: active.pu_op, phase: ArrayPhase::Suspending });
        let event = ArrayEvent::Suspended { pu, epoch: unit.epoch };
        let delay = if self.zero_latency { Nanos::ZERO } else { limits.suspend };
        self.timers.push(now + delay, event);
        self.record_array_busy(pu, what, began, now + delay);
    }

    /// Repetitions that a part needs: as many as its worst sector. A hint that forgoes them is
    /// counted.
    pub(super) fn retries_needed(&mut self, part: &PuOp) -> u16 {
        let op = &self.ops[part.op as usize];
        let sectors = usize::from(part.first)..usize::from(part.first) + usize::from(part.count);
        let mut most = 0;
        for (psn, _) in &op.addresses.get()[sectors] {
            most = self.nand.retries_needed(PhysSector(*psn)).max(most);
        }
        self.retries_forgone += u64::from(most > 0 && part.hints.limited_retry);
        // The error model has at most 1000.
        most as u16
    }
}
