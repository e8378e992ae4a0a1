//! Invariants of chunks and lines alone.

use super::Space;
use super::lines::{Footer, LineState};
use super::open_line::OpenLine;
use crate::check::{Subject, Violation, require, require_eq};

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

    /// Open lines, and the one that is being finished.
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

    /// A line, to be broken.
    #[cfg(test)]
    pub(crate) fn break_line(&mut self, which: impl Fn(&super::Line) -> bool) -> &mut super::Line {
        self.lines.lines.iter_mut().find(|line| which(line)).expect("such a line")
    }

    /// The line table, to be broken.
    #[cfg(test)]
    pub(crate) fn break_table(&mut self) -> &mut super::LineTable {
        &mut self.lines
    }

    /// Open lines, to be broken.
    #[cfg(test)]
    pub(crate) fn break_open(&mut self) -> impl Iterator<Item = &mut OpenLine> {
        self.open_lines.iter_mut().flatten()
    }

    /// Counts a program that is not there.
    #[cfg(test)]
    pub(crate) fn break_programs(&mut self, pu: Option<usize>) {
        self.programs.break_count(pu);
    }
}
