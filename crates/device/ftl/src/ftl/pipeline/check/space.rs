//! Invariants of chunks and lines, and of the programs under way on them.

use crate::Ftl;
use crate::buffer::write_ring::UnitState;
use crate::check::{Subject, Violation, require, require_eq};
use crate::ftl::RINGS;
use crate::ids::{LineId, ToIndex};
use crate::space::lines::LineState;
use nvme::ChunkId;

impl Ftl {
    pub(super) fn check_space(&self) -> Result<(), Violation> {
        self.space.check_invariants()?;
        self.check_ownership()?;
        self.check_open_lines()?;
        self.check_programs()
    }

    /// Checks that every usable chunk is free, in a line, or reserved for the journal.
    fn check_ownership(&self) -> Result<(), Violation> {
        let mut owned = vec![false; self.env.geometry.total_chunks().index()];
        for chunk in self.durability.journal().chunks().chain(self.space.table().free_list()) {
            let twice = std::mem::replace(&mut owned[chunk.index()], true);
            require!(!twice, Space, "a chunk has one owner", Subject::Chunk(chunk), 1, 2);
        }
        for chunk in self.env.geometry.chunks() {
            let (c, line) = (self.space.chunk(chunk), self.space.line_of(chunk));
            let others = u32::from(owned[chunk.index()]) + u32::from(line != LineId::NONE);
            require!(
                others == 1 || others == 0 && c.bad,
                Space,
                "a chunk has one owner",
                Subject::Chunk(chunk),
                1,
                others
            );
        }
        Ok(())
    }

    fn check_open_lines(&self) -> Result<(), Violation> {
        let mut seen = Vec::new();
        for open in self.space.all_open() {
            let subject = Subject::Line(open.line);
            require!(!seen.contains(&open.line), Space, "a line is open once", subject, 1, 2);
            seen.push(open.line);
            open.check(&self.env.geometry)?;
            let line = self.space.line(open.line);
            require!(
                line.state == LineState::Open && !line.fully_mapped,
                Space,
                "an open line takes write units",
                subject,
                "Open, units left",
                format_args!("{:?}, fully mapped: {}", line.state, line.fully_mapped)
            );
            let members: Vec<ChunkId> = open.members.iter().map(|m| m.chunk).collect();
            require!(
                members == line.chunks,
                Space,
                "the members of an open line are its chunks",
                subject,
                format_args!("{:?}", line.chunks),
                format_args!("{members:?}")
            );
            let is_recorded = open.recorded_lsn <= self.durability.journal().durable();
            for member in &open.members {
                let c = self.space.chunk(member.chunk);
                let subject = Subject::Chunk(member.chunk);
                require!(
                    c.write_pointer <= member.next,
                    Space,
                    "what is programmed has been placed",
                    subject,
                    format_args!("at most {}", member.next),
                    c.write_pointer
                );
                require!(
                    is_recorded
                        || self.buffer.first_on(member.chunk).is_none() && c.write_pointer == 0,
                    Space,
                    "a line takes units when its record is durable",
                    subject,
                    0,
                    c.write_pointer
                );
            }
        }
        let open = self
            .space
            .table()
            .iter()
            .filter(|(_, l)| l.state == LineState::Open && !l.fully_mapped);
        require_eq!(
            Space,
            "a line that is not full is open",
            Subject::Part,
            open.count(),
            seen.len()
        );
        require_eq!(
            Space,
            "free units of all open lines",
            Subject::Part,
            self.space.count_open_units(),
            self.space.open_units()
        );
        Ok(())
    }

    /// Compares the counters of programs in flight with the units that are programmed.
    fn check_programs(&self) -> Result<(), Violation> {
        let mut on_pu = vec![0u32; self.env.geometry.pus.index()];
        let mut on_line = vec![0u32; self.space.table().len()];
        let mut program = |chunk: ChunkId, sector: u32, subject| {
            let line = self.space.line_of(chunk);
            require!(
                line != LineId::NONE,
                Space,
                "a program writes into a line",
                subject,
                "a line",
                "none"
            );
            require!(
                sector + self.env.geometry.ws_opt <= self.env.geometry.sectors_per_chunk
                    && sector.is_multiple_of(self.env.geometry.ws_opt),
                Space,
                "a program writes a whole write unit of its chunk",
                subject,
                format_args!("in {} sectors", self.env.geometry.sectors_per_chunk),
                sector
            );
            on_pu[self.env.geometry.pu_of(chunk).index()] += 1;
            on_line[line.index()] += 1;
            Ok(())
        };
        for ring in RINGS {
            for (unit, _) in self.buffer.ring(ring).occupied() {
                let u = self.buffer.ring(ring).unit(unit);
                if u.state == UnitState::Programming && !self.buffer.redispatch().contains(unit) {
                    program(u.chunk, u.sector, Subject::Unit(unit))?;
                }
            }
        }
        for pad in self.space.programs().pads() {
            program(pad.chunk, pad.sector, Subject::Chunk(pad.chunk))?;
        }
        for (chunk, sector) in self.space.metadata().in_flight() {
            program(chunk, sector, Subject::Chunk(chunk))?;
        }
        // A redispatched unit keeps its former line open.
        for ring in RINGS {
            for (unit, _) in self.buffer.ring(ring).occupied() {
                let from = self.buffer.ring(ring).unit(unit).redispatch_from;
                if from != LineId::NONE {
                    on_line[from.index()] += 1;
                }
            }
        }
        self.space.programs().check(&self.env.geometry, &on_pu)?;
        for (id, (line, &expected)) in
            self.space.table().iter().zip(&on_line).map(|((id, line), n)| (id, (line, n)))
        {
            let subject = Subject::Line(id);
            require_eq!(
                Space,
                "programs in flight per line",
                subject,
                expected,
                line.programs_in_flight
            );
            require!(
                expected == 0 || line.state == LineState::Open,
                Space,
                "a line with programs in flight is open",
                subject,
                "Open",
                format_args!("{:?}", line.state)
            );
        }
        Ok(())
    }
}
