//! Invariants of the write buffer alone.

use std::collections::BTreeSet;

use nvme::ChunkId;

use super::WriteBuffer;
use crate::buffer::write_ring::UnitState;
use crate::check::{Subject, Violation, require, require_eq};
use crate::env::Env;
use crate::ftl::{GC, HOST, HOST_RINGS, HOT, RINGS};
use crate::ids::{Lba, LineId, ToIndex, WriteSeq};

impl WriteBuffer {
    /// Checks the rings, the units that are redispatched, the chains and the sequence numbers.
    pub(crate) fn check_invariants(&self, env: &Env) -> Result<(), Violation> {
        for ring in RINGS {
            self.ring(ring).check(self.renumbers())?;
        }
        self.check_redispatch()?;
        self.check_chains(env)?;
        self.check_sequence_numbers()?;
        for ring in HOST_RINGS {
            require_eq!(
                Buffer,
                "the host's data is there when it is admitted",
                Subject::Ring(ring),
                0,
                self.fills_pending(ring)
            );
        }
        self.check_positions()?;
        self.check_unsequenced()
    }

    /// Checks the positions of the host's entries.
    fn check_positions(&self) -> Result<(), Violation> {
        let first = HOST_RINGS.map(|ring| self.ring(ring).first_undurable_pos());
        let durable = first.into_iter().flatten().min().unwrap_or(self.head_pos);
        require!(
            self.durable_pos <= durable && durable <= self.head_pos,
            Buffer,
            "the host's entries are durable up to a position",
            Subject::Part,
            format_args!("{} to {}", self.durable_pos, self.head_pos),
            durable
        );
        Ok(())
    }

    /// Checks that a sector without a sequence number is in one of the host's rings.
    fn check_unsequenced(&self) -> Result<(), Violation> {
        let [host, hot] = [HOST, HOT].map(|ring| {
            let units =
                self.ring(ring).occupied().filter(|(id, _)| self.unit(*id).is_unsequenced());
            let entries = units
                .flat_map(|(id, filled)| self.ring(ring).entries(id).iter().take(filled.index()));
            entries.filter_map(crate::BufferEntry::lba).collect::<BTreeSet<Lba>>()
        });
        require!(
            host.is_disjoint(&hot),
            Buffer,
            "a sector without a sequence number is in one of the host's rings",
            Subject::Ring(HOT),
            "no sector of ring 0",
            format_args!("{:?}", host.intersection(&hot))
        );
        Ok(())
    }

    /// Entries of a ring whose data is still to be read.
    pub(crate) fn fills_pending(&self, ring: usize) -> u32 {
        let units = self.ring(ring).occupied();
        units.map(|(unit, _)| self.ring(ring).unit(unit).fills_pending).sum()
    }

    /// Checks the queue of units to re-dispatch, and the counter of those that are already on the
    /// media.
    fn check_redispatch(&self) -> Result<(), Violation> {
        let mut queued = BTreeSet::new();
        for id in self.redispatch.units() {
            let ring = id.ring();
            let subject = Subject::Unit(id);
            require!(
                queued.insert(id),
                Buffer,
                "a unit is queued for redispatch once",
                subject,
                1,
                2
            );
            let u = self.unit(id);
            let keeps_number = ring != GC && !self.renumbers() && u.redispatch_from == LineId::NONE;
            let expected = if keeps_number { UnitState::Programming } else { UnitState::Filling };
            require!(
                u.state == expected || ring != GC && u.state == UnitState::Programming,
                Buffer,
                "a unit queued for redispatch is not on the media",
                subject,
                format_args!("{expected:?}"),
                format_args!("{:?}", u.state)
            );
        }
        let mut redispatched = 0;
        for ring in RINGS {
            for (unit, _) in self.ring(ring).occupied() {
                let u = self.ring(ring).unit(unit);
                redispatched += u32::from(u.redispatch_from != LineId::NONE);
                if u.redispatch_from != LineId::NONE {
                    require!(
                        u.state < UnitState::Persisted,
                        Buffer,
                        "a redispatched unit that is durable is like any other",
                        Subject::Unit(unit),
                        "Filling or Programming",
                        format_args!("{:?}", u.state)
                    );
                }
            }
        }
        require_eq!(
            Buffer,
            "redispatched units in flight",
            Subject::Part,
            redispatched,
            self.redispatch.in_flight()
        );
        Ok(())
    }

    /// Checks the list of units of each chunk.
    fn check_chains(&self, env: &Env) -> Result<(), Violation> {
        let mut chained = BTreeSet::new();
        for (chunk, c) in (0..).map(ChunkId).zip(&self.chains) {
            let (mut at, mut last, mut end) = (c.first, None, 0);
            while let Some(id) = at {
                let subject = Subject::Unit(id);
                require!(
                    chained.insert(id),
                    Buffer,
                    "a unit is in one chunk's list",
                    subject,
                    1,
                    2
                );
                let u = self.unit(id);
                require_eq!(Buffer, "a unit is in its chunk's list", subject, u.chunk, chunk);
                require!(
                    matches!(u.state, UnitState::Programming | UnitState::Persisted),
                    Buffer,
                    "a unit in a chunk's list is programming or durable",
                    subject,
                    "Programming or Persisted",
                    format_args!("{:?}", u.state)
                );
                require!(
                    u.sector >= end,
                    Buffer,
                    "a chunk's list ascends",
                    subject,
                    format_args!("at least {end}"),
                    u.sector
                );
                (end, last) = (u.sector + env.geometry.ws_opt, at);
                at = u.chain_next;
            }
            require!(
                last == c.last,
                Buffer,
                "the end of a chunk's list",
                Subject::Chunk(chunk),
                format_args!("{last:?}"),
                format_args!("{:?}", c.last)
            );
        }
        let mut expected = 0;
        for ring in RINGS {
            for (unit, _) in self.ring(ring).occupied() {
                let state = self.ring(ring).unit(unit).state;
                let has_place = matches!(state, UnitState::Programming | UnitState::Persisted);
                expected += usize::from(has_place && !self.redispatch.contains(unit));
            }
        }
        require_eq!(
            Buffer,
            "every unit with a place is in a chunk's list",
            Subject::Part,
            expected,
            chained.len()
        );
        Ok(())
    }

    fn check_sequence_numbers(&self) -> Result<(), Violation> {
        let mut programming: Vec<WriteSeq> = Vec::new();
        for ring in RINGS {
            for (unit, _) in self.ring(ring).occupied() {
                let u = self.ring(ring).unit(unit);
                if u.state == UnitState::Programming {
                    programming.push(u.sequence);
                }
            }
        }
        programming.sort_unstable();
        let unfinished: Vec<WriteSeq> = self.sequencer.unfinished().collect();
        require!(
            programming == unfinished,
            Buffer,
            "unfinished sequence numbers = units programming",
            Subject::Part,
            format_args!("{programming:?}"),
            format_args!("{unfinished:?}")
        );
        Ok(())
    }

    /// A unit, for tests that break an invariant.
    #[cfg(test)]
    pub(crate) fn break_unit(&mut self, id: super::UnitId) -> &mut super::BufferUnit {
        self.unit_mut(id)
    }

    /// Breaks the end of a chunk's chain, or all of it.
    #[cfg(test)]
    pub(crate) fn break_chain(&mut self, chunk: ChunkId, all: bool) {
        let chain = &mut self.chains[chunk.index()];
        chain.last = None;
        chain.first = chain.first.filter(|_| !all);
    }

    /// Breaks the sequence numbers: assigns one to no unit.
    #[cfg(test)]
    pub(crate) fn break_sequence(&mut self) {
        self.sequencer.assign();
    }
}
