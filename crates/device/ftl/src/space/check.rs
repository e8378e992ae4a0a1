//! Invariants of chunks and lines alone.

use super::Space;
use super::lines::{Footer, LineState, LineTable};
use super::open_line::OpenLine;
use crate::check::{Subject, Violation, require, require_eq};
use crate::ids::{LineId, ToIndex};

impl Space {
    /// Checks the lists of chunks, the lines, and footers that are written.
    pub(crate) fn check_invariants(&self) -> Result<(), Violation> {
        self.lines.check()?;
        self.check_line_metadata()?;
        for ahead in &self.open_lines {
            require!(
                ahead.iter().all(|open| open.free_units > 0),
                Space,
                "a full line is not open",
                Subject::Part,
                "write units left",
                0
            );
        }
        Ok(())
    }

    /// Returns the open lines and the one that is being finished.
    pub(crate) fn all_open(&self) -> impl Iterator<Item = &OpenLine> {
        self.open_lines.iter().flatten().chain(&self.finishing)
    }

    fn check_line_metadata(&self) -> Result<(), Violation> {
        for (line, outstanding) in self.line_meta_writer.footers_in_flight() {
            let l = self.line(line);
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
        for &line in &self.lines.footer_due {
            let l = self.line(line);
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

    /// A line, for tests that break an invariant.
    #[cfg(test)]
    pub(crate) fn break_line(&mut self, which: impl Fn(&super::Line) -> bool) -> &mut super::Line {
        self.lines.lines.iter_mut().find(|line| which(line)).expect("such a line")
    }

    /// The line table, for tests that break an invariant.
    #[cfg(test)]
    pub(crate) fn break_table(&mut self) -> &mut super::LineTable {
        &mut self.lines
    }

    /// The open lines, for tests that break an invariant.
    #[cfg(test)]
    pub(crate) fn break_open(&mut self) -> impl Iterator<Item = &mut OpenLine> {
        self.open_lines.iter_mut().flatten()
    }

    /// Breaks the count of programs in flight.
    #[cfg(test)]
    pub(crate) fn break_programs(&mut self, pu: Option<usize>) {
        self.programs.break_count(pu);
    }
}

impl LineTable {
    /// Checks the lists of free chunks and the line table.
    pub(super) fn check(&self) -> Result<(), Violation> {
        self.free.check_invariants(&self.chunks)?;
        self.chunks.check_invariants()?;
        let mut free = vec![0; self.lines.len()];
        self.free_lines.iter().for_each(|id| free[id.index()] += 1);
        for (id, line) in LineId::all().zip(&self.lines) {
            let subject = Subject::Line(id);
            let is_free = line.state == LineState::Free;
            require_eq!(
                Space,
                "a line that is not in use is listed",
                subject,
                i32::from(is_free),
                free[id.index()]
            );
            require!(
                !is_free || line.chunks.is_empty(),
                Space,
                "a free line has no chunks",
                subject,
                0,
                line.chunks.len()
            );
            require!(
                line.state != LineState::Closed || line.valid_sectors <= line.sectors,
                Space,
                "a closed line has no more valid sectors than sectors",
                subject,
                format_args!("at most {}", line.sectors),
                line.valid_sectors
            );
            line.gate.check_invariants(id)?;
            // Chunks whose erase has completed may be in another line.
            let mut erased = 0;
            for (place, &chunk) in (0..).zip(&line.chunks) {
                if self.line_of(chunk) != id {
                    erased += 1;
                    require!(
                        line.gate.erasing() > 0,
                        Space,
                        "the chunks of a line name it",
                        Subject::Chunk(chunk),
                        id,
                        self.line_of(chunk)
                    );
                    continue;
                }
                let c = self.chunks.state(chunk);
                require_eq!(
                    Space,
                    "the place of a chunk in its line",
                    Subject::Chunk(chunk),
                    place,
                    c.member_index
                );
            }
            if line.gate.erasing() > 0 {
                require_eq!(
                    Space,
                    "chunks of a line being erased",
                    subject,
                    line.chunks.len() - erased,
                    line.gate.erasing().index()
                );
            }
        }
        for (chunk, line) in self.chunks.lines() {
            let has = line == LineId::NONE
                || self.lines.get(line.index()).is_some_and(|l| l.chunks.contains(&chunk));
            require!(
                has,
                Space,
                "a chunk is in the line that it names",
                Subject::Chunk(chunk),
                line,
                "none"
            );
        }
        Ok(())
    }
}
