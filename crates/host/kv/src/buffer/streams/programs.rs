//! Programs of units: submission and completion.

use nvme::{ChunkId, Status};

use super::{AppendStreams, AppendUnitState, ProgramOutcome, ProgrammedUnit};
use crate::buffer::unit_memory::PADDING_SLOT;
use crate::device::KvDevice;
use crate::format::command_tag::KvCommandTag;
use crate::stats::KvStats;
use ocssd::vector::DataSegments;

impl AppendStreams {
    /// Submits the units that are ready, until the queue is full.
    pub(crate) fn send(&mut self, device: &mut KvDevice) {
        let KvDevice { queue, addresses, .. } = device;
        if self.ready_units == 0 {
            return;
        }
        let shape = *addresses.shape();
        for s in self.streams.iter_mut().flatten().filter(|s| !s.failed) {
            while let Some(unit) = s.units.get_mut((s.units_sent - s.first_unit) as usize)
                && unit.state == AppendUnitState::Ready
            {
                let first = shape.first_sector_of(ChunkId(s.chunk)) + s.units_sent * shape.ws_opt;
                let ppas = (0..shape.ws_opt as usize).map(|i| addresses.sector(first + i as u32));
                let slot = unit.slot.unwrap_or(PADDING_SLOT);
                let data = DataSegments::Contiguous(self.memory.data_at(slot));
                let user = KvCommandTag::Program { chunk: s.chunk, unit: s.units_sent }.to_bits();
                if queue.write(ppas, data, Some(self.memory.oob_at(slot)), user).is_err() {
                    return;
                }
                unit.state = AppendUnitState::Sent;
                s.units_sent += 1;
                s.outstanding += 1;
                self.ready_units -= 1;
            }
        }
    }

    /// Handles the completion of a program.
    pub(crate) fn on_program_complete(
        &mut self,
        programmed: ProgrammedUnit,
        status: Status,
        stats: &mut KvStats,
    ) -> ProgramOutcome {
        let ProgrammedUnit { chunk, unit } = programmed;
        let stream = self.find(chunk);
        let stream = stream.unwrap_or_else(|| panic!("a program of chunk {chunk}, not open"));
        let Some(s) = &mut self.streams[stream] else { return ProgramOutcome::Continue };
        assert!(s.outstanding > 0, "a program of chunk {chunk}, with none in flight: {s:?}");
        s.outstanding -= 1;
        if status.is_success() {
            stats.units_written += 1;
            if let Some(unit) =
                unit.checked_sub(s.first_unit).and_then(|i| s.units.get_mut(i as usize))
            {
                unit.state = AppendUnitState::Programmed;
                if let Some(number) = unit.seq.take() {
                    self.order.mark_durable(number);
                }
            }
            while s.units_programmed >= s.first_unit
                && s.units
                    .get((s.units_programmed - s.first_unit) as usize)
                    .is_some_and(|u| u.state == AppendUnitState::Programmed)
            {
                s.units_programmed += 1;
            }
        } else if !s.failed {
            s.failed = true;
            stats.program_failures += 1;
            self.ready_units -=
                s.units.iter().filter(|u| u.state == AppendUnitState::Ready).count() as u32;
            for member in self.classes.iter_mut().flatten().filter(|m| **m == Some(stream)) {
                *member = None;
            }
        }
        let Some(s) = &mut self.streams[stream] else { return ProgramOutcome::Continue };
        if s.failed {
            if s.outstanding > 0 {
                return ProgramOutcome::Continue;
            }
            self.failed.extend(self.streams[stream].take());
            return ProgramOutcome::ChunkFailed;
        }
        let readable = match s.units_programmed == self.layout.units {
            true => s.units_programmed,
            false => s.units_programmed.saturating_sub(self.layout.pair_units),
        };
        while s.first_unit < readable {
            let Some(unit) = s.units.pop_front() else { break };
            if let Some(slot) = unit.slot {
                self.memory.release(slot);
            }
            s.first_unit += 1;
        }
        if s.units_programmed < self.layout.units {
            return ProgramOutcome::Continue;
        }
        self.streams[stream] = None;
        for member in self.classes.iter_mut().flatten().filter(|m| **m == Some(stream)) {
            *member = None;
        }
        ProgramOutcome::ChunkFull
    }

    /// Drops a failed chunk after its live records were relocated.
    pub(crate) fn drop_failed(&mut self, chunk: u32) {
        let Some(failed) = self.failed.iter().position(|s| s.chunk == chunk) else { return };
        for unit in self.failed.swap_remove(failed).units {
            if let Some(slot) = unit.slot {
                self.memory.release(slot);
            }
            if let Some(number) = unit.seq {
                self.order.mark_durable(number);
            }
        }
    }
}
