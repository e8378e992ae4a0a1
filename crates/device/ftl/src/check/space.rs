//! Invariants of chunks and lines, and of the programs under way on them.

use super::{Subject, Violation, require, require_eq};
use crate::Ftl;
use crate::buffer::unit_id::UnitId;
use crate::buffer::write_ring::UnitState;
use crate::ftl::{GC, HOST};
use crate::space::lines::{Footer, LineState, NONE};

impl Ftl {
    pub(super) fn check_space(&self) -> Result<(), Violation> {
        self.space.lines.check()?;
        self.check_ownership()?;
        self.check_open_lines()?;
        self.check_programs()?;
        self.check_line_metadata()
    }

    /// Every chunk that can be used is free, in a line, or the journal's.
    fn check_ownership(&self) -> Result<(), Violation> {
        let mut owned = vec![false; self.space.lines.chunks.len()];
        for chunk in self.durability.journal().chunks().chain(self.space.lines.free_list()) {
            let twice = std::mem::replace(&mut owned[chunk as usize], true);
            require!(!twice, Space, "a chunk has one owner", Subject::Chunk(chunk), 1, 2);
        }
        for (chunk, (c, &line)) in
            (0..).zip(self.space.lines.chunks.iter().zip(&self.space.lines.line_of))
        {
            let others = u32::from(owned[chunk as usize]) + u32::from(line != NONE);
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
        for open in self.space.open_lines.iter().flatten().chain(&self.space.finishing) {
            let subject = Subject::Line(open.line);
            require!(!seen.contains(&open.line), Space, "a line is open once", subject, 1, 2);
            seen.push(open.line);
            open.check(&self.env.geometry)?;
            let line = &self.space.lines.lines[open.line as usize];
            require!(
                line.state == LineState::Open && !line.fully_mapped,
                Space,
                "an open line takes write units",
                subject,
                "Open, units left",
                format_args!("{:?}, fully mapped: {}", line.state, line.fully_mapped)
            );
            let members: Vec<u32> = open.members.iter().map(|m| m.chunk).collect();
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
                let c = &self.space.lines.chunks[member.chunk as usize];
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
        for ahead in &self.space.open_lines {
            require!(
                ahead.iter().all(|open| open.free_units > 0),
                Space,
                "a full line is not open",
                Subject::Part,
                "write units left",
                0
            );
        }
        let open =
            self.space.lines.lines.iter().filter(|l| l.state == LineState::Open && !l.fully_mapped);
        require_eq!(
            Space,
            "a line that is not full is open",
            Subject::Part,
            open.count(),
            seen.len()
        );
        Ok(())
    }

    /// The counters of programs under way, and where those write.
    fn check_programs(&self) -> Result<(), Violation> {
        let mut on_pu = vec![0u32; self.env.geometry.pus as usize];
        let mut on_line = vec![0u32; self.space.lines.lines.len()];
        let mut program = |chunk: u32, sector: u32, subject| {
            let line = self.space.lines.line_of[chunk as usize];
            require!(
                line != NONE,
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
            on_pu[self.env.geometry.pu_of(chunk) as usize] += 1;
            on_line[line as usize] += 1;
            Ok(())
        };
        for ring in [HOST, GC] {
            for (unit, _) in self.buffer.ring(ring).occupied() {
                let u = self.buffer.ring(ring).unit(unit);
                if u.state == UnitState::Programming
                    && !self.buffer.redispatch().contains(UnitId::new(ring, unit))
                {
                    program(u.chunk, u.sector, Subject::Unit(ring, unit))?;
                }
            }
        }
        for pad in self.space.programs.pads() {
            program(pad.chunk, pad.sector, Subject::Chunk(pad.chunk))?;
        }
        for (chunk, sector) in self.space.line_meta_writer.in_flight() {
            program(chunk, sector, Subject::Chunk(chunk))?;
        }
        // A unit that is redispatched keeps the line that it is in open.
        for ring in [HOST, GC] {
            for (unit, _) in self.buffer.ring(ring).occupied() {
                let from = self.buffer.ring(ring).unit(unit).redispatch_from;
                if from != NONE {
                    on_line[from as usize] += 1;
                }
            }
        }
        self.space.programs.check(&self.env.geometry, &on_pu)?;
        for (id, (line, &expected)) in (0..).zip(self.space.lines.lines.iter().zip(&on_line)) {
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

    fn check_line_metadata(&self) -> Result<(), Violation> {
        for (line, outstanding) in self.space.line_meta_writer.footers_in_flight() {
            let l = &self.space.lines.lines[line as usize];
            require!(
                l.footer == Footer::Writing && l.state == LineState::Open,
                Space,
                "a footer is written to a line that is full",
                Subject::Line(line),
                "Writing, Open",
                format_args!("{:?}, {:?}", l.footer, l.state)
            );
            require_eq!(
                Space,
                "write units of a footer in flight",
                Subject::Line(line),
                l.programs_in_flight,
                outstanding
            );
        }
        for &line in &self.space.lines.footer_due {
            let l = &self.space.lines.lines[line as usize];
            require!(
                l.footer == Footer::Writing && l.programs_in_flight == 0,
                Space,
                "a line waits for its footer when its programs have ended",
                Subject::Line(line),
                "Writing, 0",
                format_args!("{:?}, {}", l.footer, l.programs_in_flight)
            );
        }
        Ok(())
    }
}
