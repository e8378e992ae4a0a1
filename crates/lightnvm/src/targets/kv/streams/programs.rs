//! Units on their way to flash: sending them, and what follows when their programs end.

use nvme::Status;

use super::{After, Step, Streams};
use crate::targets::kv::flight::Flight;
use crate::targets::kv::order::Order;
use crate::targets::kv::slots::PADDING;
use crate::targets::kv::stats::KvStats;
use crate::vector::{Addresses, Sectors, VectorQueue};

impl Streams {
    /// Sends the units that are ready, as far as the queue has room.
    pub(crate) fn send(&mut self, queue: &mut VectorQueue, addresses: &Addresses) {
        if self.ready == 0 {
            return;
        }
        let shape = *addresses.shape();
        for s in self.all.iter_mut().flatten().filter(|s| !s.failed) {
            while let Some(unit) = s.units.get_mut((s.sent - s.base) as usize)
                && unit.step == Step::Ready
            {
                let first = shape.first_psn(s.chunk) + s.sent * shape.unit;
                let ppas = (0..shape.unit as usize).map(|i| addresses.sector(first + i as u32));
                let slot = unit.slot.unwrap_or(PADDING);
                let data = Sectors::Run(self.slots.data_at(slot));
                let user = Flight::Program { chunk: s.chunk, unit: s.sent }.to_bits();
                if queue.write(ppas, data, Some(self.slots.oob_at(slot)), user).is_err() {
                    return;
                }
                unit.step = Step::Sent;
                s.sent += 1;
                s.outstanding += 1;
                self.ready -= 1;
            }
        }
    }

    /// A program has ended.
    pub(crate) fn ended(
        &mut self,
        (chunk, unit): (u32, u32),
        status: Status,
        order: &mut Order,
        stats: &mut KvStats,
    ) -> After {
        let Some(stream) = self.find(chunk) else { return After::Nothing };
        let Some(s) = &mut self.all[stream] else { return After::Nothing };
        s.outstanding -= 1;
        if status.is_success() {
            stats.units_written += 1;
            if let Some(unit) = unit.checked_sub(s.base).and_then(|i| s.units.get_mut(i as usize)) {
                unit.step = Step::Done;
                if let Some(number) = unit.order.take() {
                    order.end(number);
                }
            }
            while s.done >= s.base
                && s.units.get((s.done - s.base) as usize).is_some_and(|u| u.step == Step::Done)
            {
                s.done += 1;
            }
        } else if !s.failed {
            s.failed = true;
            stats.program_failures += 1;
            self.ready -= s.units.iter().filter(|u| u.step == Step::Ready).count() as u32;
            for member in self.groups.iter_mut().flatten().filter(|m| **m == Some(stream)) {
                *member = None;
            }
        }
        let Some(s) = &mut self.all[stream] else { return After::Nothing };
        if s.failed {
            if s.outstanding > 0 {
                return After::Nothing;
            }
            self.failed.extend(self.all[stream].take());
            return After::Failed;
        }
        let readable = match s.done == self.layout.units {
            true => s.done,
            false => s.done.saturating_sub(self.layout.pair_units),
        };
        while s.base < readable {
            let Some(unit) = s.units.pop_front() else { break };
            if let Some(slot) = unit.slot {
                self.slots.give_back(slot);
            }
            s.base += 1;
        }
        if s.done < self.layout.units {
            return After::Nothing;
        }
        self.all[stream] = None;
        for member in self.groups.iter_mut().flatten().filter(|m| **m == Some(stream)) {
            *member = None;
        }
        After::Full
    }

    /// Forgets a chunk that failed: what was live in it is somewhere else.
    pub(crate) fn forget(&mut self, chunk: u32, order: &mut Order) {
        let Some(failed) = self.failed.iter().position(|s| s.chunk == chunk) else { return };
        for unit in self.failed.swap_remove(failed).units {
            if let Some(slot) = unit.slot {
                self.slots.give_back(slot);
            }
            if let Some(number) = unit.order {
                order.end(number);
            }
        }
    }
}
