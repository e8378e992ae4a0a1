//! Invariants of the write buffer.

use std::collections::BTreeSet;

use super::{Subject, Violation, require, require_eq};
use crate::Ftl;
use crate::buffer::redispatch::QueuedUnit;
use crate::buffer::write_ring::UnitState;
use crate::ftl::pipeline::dispatch::split_unit_id;
use crate::ftl::{GC, HOST};
use crate::space::lines::NONE;

impl Ftl {
    pub(super) fn check_buffer(&self) -> Result<(), Violation> {
        for ring in [HOST, GC] {
            self.buffer.rings[ring].check(ring)?;
        }
        self.check_redispatch()?;
        self.check_chains()?;
        self.check_sequence_numbers()?;
        let filling: u32 = self.buffer.rings[GC]
            .occupied()
            .map(|(unit, _)| self.buffer.rings[GC].units[unit as usize].fills_pending)
            .sum();
        let reading = self.gc.sectors_being_read();
        require_eq!(
            Buffer,
            "fills pending = sectors being relocated",
            Subject::Ring(GC),
            reading,
            filling
        );
        let host: u32 = self.buffer.rings[HOST]
            .occupied()
            .map(|(unit, _)| self.buffer.rings[HOST].units[unit as usize].fills_pending)
            .sum();
        require_eq!(
            Buffer,
            "the host's data is there when it is admitted",
            Subject::Ring(HOST),
            0,
            host
        );
        Ok(())
    }

    /// The queue of units that are dispatched once more, and the counter of those that are on the media
    /// already.
    fn check_redispatch(&self) -> Result<(), Violation> {
        let mut queued = BTreeSet::new();
        for QueuedUnit { ring, unit } in self.buffer.redispatch.units() {
            let subject = Subject::Unit(ring, unit);
            require!(
                queued.insert((ring, unit)),
                Buffer,
                "a unit is queued for redispatch once",
                subject,
                1,
                2
            );
            let u = &self.buffer.rings[ring].units[unit as usize];
            let keeps_number = ring == HOST && u.redispatch_from == NONE;
            let expected = if keeps_number { UnitState::Programming } else { UnitState::Filling };
            require!(
                u.state == expected || ring == HOST && u.state == UnitState::Programming,
                Buffer,
                "a unit queued for redispatch is not on the media",
                subject,
                format_args!("{expected:?}"),
                format_args!("{:?}", u.state)
            );
        }
        let mut redispatched = 0;
        for ring in [HOST, GC] {
            for (unit, _) in self.buffer.rings[ring].occupied() {
                let u = &self.buffer.rings[ring].units[unit as usize];
                redispatched += u32::from(u.redispatch_from != NONE);
                if u.redispatch_from != NONE {
                    require!(
                        u.state < UnitState::Persisted,
                        Buffer,
                        "a redispatched unit that is durable is like any other",
                        Subject::Unit(ring, unit),
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
            self.buffer.redispatch.in_flight()
        );
        Ok(())
    }

    /// The list of units through each chunk.
    fn check_chains(&self) -> Result<(), Violation> {
        let mut chained = BTreeSet::new();
        for (chunk, c) in (0..).zip(&self.space.lines.chunks) {
            let (mut at, mut last, mut end) = (c.first, NONE, 0);
            while at != NONE {
                let (ring, unit) = split_unit_id(at);
                let subject = Subject::Unit(ring, unit);
                require!(
                    chained.insert(at),
                    Buffer,
                    "a unit is in one chunk's list",
                    subject,
                    1,
                    2
                );
                let u = &self.buffer.rings[ring].units[unit as usize];
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
                (end, last) = (u.sector + self.env.geometry.ws_opt, at);
                at = u.chain_next;
            }
            require_eq!(Buffer, "the end of a chunk's list", Subject::Chunk(chunk), last, c.last);
        }
        let mut expected = 0;
        for ring in [HOST, GC] {
            for (unit, _) in self.buffer.rings[ring].occupied() {
                let state = self.buffer.rings[ring].units[unit as usize].state;
                let has_place = matches!(state, UnitState::Programming | UnitState::Persisted);
                expected += usize::from(
                    has_place && !self.buffer.redispatch.contains(QueuedUnit { ring, unit }),
                );
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
        let mut programming: Vec<u64> = Vec::new();
        for ring in [HOST, GC] {
            for (unit, _) in self.buffer.rings[ring].occupied() {
                let u = &self.buffer.rings[ring].units[unit as usize];
                if u.state == UnitState::Programming {
                    programming.push(u.sequence);
                }
            }
        }
        programming.sort_unstable();
        let unfinished: Vec<u64> = self.buffer.sequencer.unfinished().collect();
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
}
