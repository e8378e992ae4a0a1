//! What hints change about an operation of the flash (LightNVM paper section 3.3): planes a few at a
//! time, suspension of programs and erases, repetitions of reads.

use clock::Nanos;
use media::Psn;
use nvme::Hints;

use super::{Event, FlashArray};
use crate::operation::{Part, What};
use crate::pu::{Active, NONE, Phase};
use crate::{PuPolicy, SuspendConfig};

impl FlashArray {
    /// Array operations that a part over so many planes takes: one, unless a hint wants fewer planes
    /// at once than there are. Planes of a read pair up as they come.
    #[inline]
    pub(super) fn rounds(&self, hints: Hints, planes: u32) -> u8 {
        // A unit has at most 64 planes.
        hints.planes.planes().map_or(1, |at_once| planes.div_ceil(at_once).max(1) as u8)
    }

    /// The array has done some planes of a program or an erase and goes on with the others. Until
    /// the array is given to it again it waits like one that was suspended.
    pub(super) fn next_round(&mut self, pu: u32, id: u32) {
        self.parts[id as usize].rounds -= 1;
        let time = self.array_time(&self.parts[id as usize]);
        let unit = &mut self.pus[pu as usize];
        unit.active = None;
        unit.suspended = Some((id, time));
    }

    /// What a suspension costs, if there is one: by the drive's policy, or by a read's hint.
    #[inline]
    fn suspension(&self, hinted: bool) -> Option<SuspendConfig> {
        match self.policy {
            PuPolicy::ReadsFirst { suspend: Some(limits) } => Some(limits),
            _ if hinted => self.suspend_on_hint,
            _ => None,
        }
    }

    /// Whether the drive can suspend when a hint asks for it.
    pub(crate) fn suspends_on_hint(&self) -> bool {
        self.suspension(true).is_some()
    }

    /// Whether a read with the hint goes ahead of what waits on a parallel unit that works in order
    /// of arrival: if it can have the array by suspending what runs, if that is suspended already,
    /// and while the array waits for a program's data.
    pub(super) fn may_overtake(&self, pu: u32) -> bool {
        let Some(limits) = self.suspension(true) else { return false };
        let unit = &self.pus[pu as usize];
        if unit.suspended.is_some() {
            return true;
        }
        match unit.active {
            None => unit.staged != NONE,
            Some(Active { phase: Phase::Suspending, .. }) => true,
            Some(Active { phase: Phase::Out | Phase::Held, .. }) => false,
            Some(Active { part, phase: Phase::Array }) => {
                let part = &self.parts[part as usize];
                part.what != What::Read && u32::from(part.suspended) < limits.max_per_operation
            }
        }
    }

    /// Interrupts a running program or erase for a read, if the policy or the read's hint allows it.
    pub(super) fn suspend(&mut self, now: Nanos, pu: u32, hinted: bool) {
        let Some(limits) = self.suspension(hinted) else { return };
        let unit = &mut self.pus[pu as usize];
        let Some(active) = unit.active else { return };
        let part = &mut self.parts[active.part as usize];
        if active.phase != Phase::Array
            || part.what == What::Read
            || u32::from(part.suspended) >= limits.max_per_operation
        {
            return;
        }
        part.suspended = part.suspended.saturating_add(1);
        self.suspensions += 1;
        unit.epoch += 1;
        let remaining = unit.ends.since(now) + limits.resume;
        let (what, began) = ((active.part, part.what), unit.began);
        unit.suspended = Some((active.part, remaining));
        unit.active = Some(Active { part: active.part, phase: Phase::Suspending });
        let event = Event::Suspended { pu, epoch: unit.epoch };
        let delay = if self.instant { Nanos::ZERO } else { limits.suspend };
        self.timers.push(now + delay, event);
        self.array_was_busy(pu, what, began, now + delay);
    }

    /// Repetitions that a part needs: as many as its worst sector. A hint that forgoes them is
    /// counted.
    pub(super) fn retries_needed(&mut self, part: &Part) -> u16 {
        let op = &self.ops[part.op as usize];
        let sectors = usize::from(part.first)..usize::from(part.first) + usize::from(part.count);
        let mut most = 0;
        for (psn, _) in &op.addresses.get()[sectors] {
            most = self.nand.retries_needed(Psn(*psn)).max(most);
        }
        self.retries_forgone += u64::from(most > 0 && part.hints.limited_retry);
        // The error model has at most 1000.
        most as u16
    }
}
