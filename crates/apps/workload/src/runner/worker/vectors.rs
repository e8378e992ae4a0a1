//! Commands on parallel units in a [`RunContext`]: the states of the chunks.
//!
//! A reset waits until the reads of its chunk have completed, those of other jobs as well.

use super::RunContext;
use crate::job::Direction;
use crate::runner::source::{IoKind, NextIo};

impl RunContext {
    /// Returns whether a pending command may be submitted: a reset must not overtake reads.
    pub(super) fn can_send_vector(&self, io: NextIo) -> bool {
        let is_reset = io.kind == IoKind::Transfer(Direction::Trim);
        !is_reset || self.chunks.as_ref().is_none_or(|chunks| !chunks.has_reads(io.lba))
    }

    /// Completes a command in the states of the chunks.
    pub(super) fn finish_vector(&mut self, io: NextIo, success: bool) {
        let Some(chunks) = &mut self.chunks else { return };
        match io.kind {
            IoKind::Transfer(Direction::Read) => chunks.end_read(io.lba),
            IoKind::Transfer(Direction::Write) => chunks.end_write(io.lba, io.sectors, success),
            IoKind::Transfer(Direction::Trim) => chunks.end_reset(io.lba, success),
            IoKind::Flush => {}
        }
    }
}
