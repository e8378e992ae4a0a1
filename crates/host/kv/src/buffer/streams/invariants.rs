//! Invariants of the streams, of the memory of their units, and of the durable prefix.

use std::collections::BTreeSet;

use super::{AppendStream, AppendStreams, AppendUnitState};
use crate::check::{KvPart, KvSubject, KvViolation, PartCheck};

const CHECK: PartCheck = PartCheck(KvPart::Buffer);

impl AppendStreams {
    /// Recomputes the counts, and compares the memory and sequence numbers of units with the units
    /// that have them; for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self) -> Result<(), KvViolation> {
        let open = || self.streams.iter().enumerate().filter_map(|(i, s)| Some((i, s.as_ref()?)));
        let mut ready = 0;
        for (i, s) in open() {
            ready += self.check_stream(i, s)?;
        }
        let parts = KvSubject::Part;
        CHECK.equal("units that wait to be submitted", parts.clone(), ready, self.ready_units)?;
        let mut members = BTreeSet::new();
        for &stream in self.classes.iter().flatten().flatten() {
            let subject = || KvSubject::Stream(stream);
            CHECK.equal("a stream has one class", subject(), true, members.insert(stream))?;
            let is_usable =
                self.streams.get(stream).is_some_and(|s| s.as_ref().is_some_and(|s| !s.failed));
            CHECK.equal("a class has open streams", subject(), true, is_usable)?;
        }
        let units = || open().map(|(_, s)| s).chain(&self.failed).flat_map(|s| &s.units);
        let mut slots: Vec<u32> = units().filter_map(|u| u.slot).collect();
        slots.extend(self.memory.free_slots());
        slots.sort_unstable();
        let all: Vec<u32> = (0..self.memory.slot_count()).collect();
        CHECK.equal("a slot is free or has one unit", parts.clone(), all, slots)?;
        let mut waiting: Vec<u64> = units().filter_map(|u| u.seq).collect();
        waiting.sort_unstable();
        let not_durable: Vec<u64> = self.order.not_durable().collect();
        CHECK.equal("units that are not durable have sequence numbers", parts, waiting, not_durable)
    }

    /// Checks an open stream. Returns the number of its units that wait to be submitted.
    fn check_stream(&self, i: usize, s: &AppendStream) -> Result<u32, KvViolation> {
        let subject = || KvSubject::Stream(i);
        let count = |state| s.units.iter().filter(|u| u.state == state).count() as u32;
        CHECK.equal(
            "submitted units are in flight",
            subject(),
            s.outstanding,
            // Units whose programs failed stay in this state.
            if s.failed { s.outstanding } else { count(AppendUnitState::Sent) },
        )?;
        let end = s.first_unit + s.units.len() as u32;
        let bounds = [s.first_unit, s.units_programmed, s.units_sent, end];
        CHECK.require(
            bounds.is_sorted(),
            "readable, programmed, submitted and started units are prefixes",
            subject(),
            "ascending numbers",
            bounds,
        )?;
        CHECK.equal(
            "started units are those with allocated bytes",
            subject(),
            s.fill_bytes.div_ceil(self.layout.unit_bytes),
            end,
        )?;
        let unsent = s.units.iter().skip((s.units_sent - s.first_unit) as usize);
        let states: Vec<AppendUnitState> = unsent.map(|u| u.state).collect();
        let is_prefix = states.iter().rev().skip(1).all(|s| *s == AppendUnitState::Ready)
            && states.last().is_none_or(|s| *s < AppendUnitState::Sent);
        CHECK.require(
            is_prefix || s.failed,
            "only the last unit is filling, and units are submitted in order",
            subject(),
            "ready units and one that is filling",
            &states,
        )?;
        Ok(if s.failed { 0 } else { count(AppendUnitState::Ready) })
    }

    /// Forgets that a unit is not durable.
    #[cfg(test)]
    pub(crate) fn break_unit_seq(&mut self) {
        let mut units = self.streams.iter_mut().flatten().flat_map(|s| &mut s.units);
        units.find_map(|u| u.seq.take()).expect("a unit that is not durable");
    }
}
