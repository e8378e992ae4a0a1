//! [`SuperblockMaintainer`]: looks after the label while the device is used.
//!
//! Owned by the first shard, whose queue its commands go through, behind everything else. Guarantees: one
//! command at a time, no more than a sector of each place per round; a round per
//! [`repeat_after`](crate::core::ScrubConfig::repeat_after) of the patrol, or one at a time when the drive
//! tells that a place is hard to read; the label is written anew when a copy was hard to read or not to
//! be read, and after [`ROUNDS`] rounds, which is at most one erase of each place in a round.

use clock::Nanos;

use super::buffer::SuperblockBuffer;
use super::writer::{CommandOutcome, SuperblockWriter};
use crate::targets::pblk::vector_backend::VectorBackend;
use crate::vector::VectorCompletion;

/// Rounds after which the label is written anew, whatever the drive says of it: not every drive tells that
/// a read was hard.
const PASSES_PER_REWRITE: u32 = 16;

/// From one round to the next at least, if it is the drive that asks for it.
const REPORTED_PASS_INTERVAL_MIN: Nanos = Nanos::from_secs(60);

/// How the label of a sharded device is, and what was done about it since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuperblockHealth {
    /// The newest generation that there is.
    pub generation: u64,
    /// Copies of it that could be read last.
    pub copies: u32,
    /// Copies of the newest generation that could not be read any more.
    pub copies_lost: u64,
    /// Rounds in which all copies were read.
    pub scrub_passes: u64,
    /// Sectors read.
    pub reads: u64,
    /// Generations written.
    pub rewrites: u64,
    /// Times that a new generation was wanted and no place could be spared for it.
    pub rewrites_blocked: u64,
    /// Chunks erased.
    pub erases: u64,
    /// Commands that failed.
    pub failures: u64,
}

/// Looks after the label.
#[derive(Debug)]
pub(crate) struct SuperblockMaintainer {
    writer: SuperblockWriter,
    buffer: SuperblockBuffer,
    /// A command is under way.
    command_in_flight: bool,
    /// The copies are being read.
    pass_running: bool,
    /// The drive has told of one.
    error_reported: bool,
    /// Rounds since the label was written.
    passes_since_rewrite: u32,
    last_pass: Option<Nanos>,
    next_pass: Nanos,
    pass_interval: Nanos,
    health: SuperblockHealth,
}

impl SuperblockMaintainer {
    pub(super) fn new(writer: SuperblockWriter, buffer: SuperblockBuffer) -> SuperblockMaintainer {
        SuperblockMaintainer {
            writer,
            buffer,
            command_in_flight: false,
            pass_running: false,
            error_reported: false,
            passes_since_rewrite: 0,
            last_pass: None,
            next_pass: Nanos::MAX,
            pass_interval: Nanos::MAX,
            health: SuperblockHealth::default(),
        }
    }

    /// A round begins at once, and then every `pause`; none for [`Nanos::MAX`].
    pub(crate) fn set_interval(&mut self, pause: Nanos) {
        self.pass_interval = pause.max(Nanos(1));
        self.next_pass = if pause == Nanos::MAX { Nanos::MAX } else { Nanos::ZERO };
    }

    /// Whether a chunk is one of the label's places.
    pub(crate) fn contains(&self, chunk: u32) -> bool {
        self.writer.slots.iter().any(|p| p.chunk == chunk)
    }

    /// Something in one of the places is hard to read, or not to be read.
    pub(crate) fn report_error(&mut self) {
        self.error_reported = true;
        let soon = self.last_pass.map_or(Nanos::ZERO, |last| last + REPORTED_PASS_INTERVAL_MIN);
        self.next_pass = self.next_pass.min(soon);
    }

    /// How the label is.
    pub(crate) fn health(&self) -> SuperblockHealth {
        let counts = self.writer.counts;
        let generation = self.writer.generations().max().unwrap_or(0);
        let copies = self.writer.generations().filter(|found| *found == generation).count();
        SuperblockHealth {
            generation,
            copies: copies as u32,
            copies_lost: counts.copies_lost,
            reads: counts.reads,
            erases: counts.erases,
            failures: counts.failures,
            ..self.health
        }
    }

    /// The command that was under way has ended.
    pub(crate) fn on_command_complete(&mut self, ended: &VectorCompletion) {
        if !std::mem::take(&mut self.command_in_flight) {
            return;
        }
        let outcome = if ended.status.is_success() {
            let found = self.buffer.generation();
            if ended.high_ecc {
                CommandOutcome::HighEcc(found)
            } else {
                CommandOutcome::Success(found)
            }
        } else if ended.status.is_media_error() {
            CommandOutcome::MediaError
        } else {
            CommandOutcome::Rejected
        };
        self.writer.on_command_complete(outcome);
    }

    /// Goes on.
    #[cold]
    pub(crate) fn poll(&mut self, now: Nanos, flash: &mut VectorBackend) {
        while !self.command_in_flight {
            if let Some(command) = self.writer.next_command() {
                let sheet = &self.buffer;
                self.command_in_flight =
                    flash.submit_superblock_command(|queue, addresses, user| {
                        sheet.submit(queue, addresses, command, user)
                    });
                return;
            }
            if self.pass_running {
                self.pass_running = false;
                self.on_pass_complete();
            } else if now >= self.next_pass {
                self.next_pass = now + self.pass_interval;
                self.last_pass = Some(now);
                self.pass_running = true;
                self.health.scrub_passes += 1;
                self.writer.start_read();
            } else {
                return;
            }
        }
    }

    /// All copies were read.
    fn on_pass_complete(&mut self) {
        self.passes_since_rewrite += 1;
        let worn = self.writer.needs_rewrite | std::mem::take(&mut self.error_reported);
        if !worn && self.passes_since_rewrite < PASSES_PER_REWRITE {
            return self.writer.write_missing();
        }
        self.passes_since_rewrite = 0;
        if self.writer.start_generation() {
            self.health.rewrites += 1;
        } else {
            self.health.rewrites_blocked += 1;
            self.writer.write_missing();
        }
    }

    /// When a poll has something to do: while a command is under way, or waits for room in the queue,
    /// when one has ended.
    pub(crate) fn deadline(&self) -> Nanos {
        if self.command_in_flight || self.pass_running || self.writer.next_command().is_some() {
            Nanos::MAX
        } else {
            self.next_pass
        }
    }

    /// Whether a poll has something to do now.
    #[inline]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        !self.command_in_flight
            && (now >= self.next_pass || self.pass_running || self.writer.next_command().is_some())
    }
}
