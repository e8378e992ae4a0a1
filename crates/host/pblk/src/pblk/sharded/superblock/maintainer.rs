//! [`SuperblockMaintainer`]: maintains the superblock while the device is in use.
//!
//! Owned by the first shard; its commands use that shard's queue, after all other commands.
//!
//! Invariants:
//! - One command is in flight at a time, and a pass reads at most one sector of each location.
//! - A pass starts every [`repeat_after`](lnvm::ScrubConfig::repeat_after) of the
//!   scrub, or when the drive reports that a location is hard to read.
//! - A new generation is written if a copy was hard to read or unreadable, and after
//!   [`PASSES_PER_REWRITE`] passes. Each location is erased at most once per pass.

use nvme::ChunkId;
use time::Nanos;

use super::buffer::SuperblockBuffer;
use super::writer::{CommandOutcome, SuperblockWriter};
use crate::invariants::{PblkViolation, require};
use crate::pblk::vector_backend::VectorBackend;
use ocssd::vector::VectorCompletion;

/// Number of passes after which a new generation is written in any case; not every drive reports
/// high ECC.
const PASSES_PER_REWRITE: u32 = 16;

/// Minimum interval between passes that the drive's events cause.
const REPORTED_PASS_INTERVAL_MIN: Nanos = Nanos::from_secs(60);

/// State of a sharded device's superblock, and counters since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuperblockHealth {
    /// Newest generation.
    pub generation: u64,
    /// Number of copies of the newest generation that were readable when last read.
    pub copies: u32,
    /// Copies of the newest generation that became unreadable.
    pub copies_lost: u64,
    /// Completed passes that read all copies.
    pub scrub_passes: u64,
    /// Sectors read.
    pub reads: u64,
    /// Generations written.
    pub rewrites: u64,
    /// Rewrites that were due but had no free location.
    pub rewrites_blocked: u64,
    /// Chunks erased.
    pub erases: u64,
    /// Commands that failed.
    pub failures: u64,
}

/// Reads and rewrites the superblock.
#[derive(Debug)]
pub(crate) struct SuperblockMaintainer {
    writer: SuperblockWriter,
    buffer: SuperblockBuffer,
    /// Whether a command is in flight.
    command_in_flight: bool,
    /// Whether a pass is in progress.
    pass_running: bool,
    /// Whether the drive has reported a location.
    error_reported: bool,
    /// Passes since the last rewrite.
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

    /// Starts a pass now, and another one every `pause`; stops passes for [`Nanos::MAX`].
    pub(crate) fn set_interval(&mut self, pause: Nanos) {
        self.pass_interval = pause.max(Nanos(1));
        self.next_pass = if pause == Nanos::MAX { Nanos::MAX } else { Nanos::ZERO };
    }

    /// Returns whether a chunk is one of the superblock's locations.
    pub(crate) fn contains(&self, chunk: ChunkId) -> bool {
        self.writer.slots.iter().any(|p| p.chunk == chunk)
    }

    /// Records a report that a location is hard to read or unreadable.
    pub(crate) fn report_error(&mut self) {
        self.error_reported = true;
        let soon = self.last_pass.map_or(Nanos::ZERO, |last| last + REPORTED_PASS_INTERVAL_MIN);
        self.next_pass = self.next_pass.min(soon);
    }

    /// Returns the state of the superblock.
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

    /// Handles the completion of the command in flight.
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

    /// Checks the writer and the pass.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check_invariants(&self) -> Result<(), PblkViolation> {
        self.writer.check_invariants()?;
        let command = self.writer.next_command();
        require!(
            !self.command_in_flight || command.is_some(),
            Superblock,
            "the writer waits for the command in flight",
            "the writer",
            "a command",
            command
        );
        let (passes, of) = (self.passes_since_rewrite, PASSES_PER_REWRITE);
        let name = "passes without a rewrite";
        require!(passes < of, Superblock, name, "the pass", format_args!("less than {of}"), passes);
        Ok(())
    }

    /// Advances the pass or the rewrite.
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

    /// Finishes a pass: rewrites the superblock or completes its copies.
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

    /// Returns when a poll is needed. While a command is in flight or waits for a queue entry, that
    /// is the next completion, so the deadline is never.
    pub(crate) fn deadline(&self) -> Nanos {
        if self.command_in_flight || self.pass_running || self.writer.next_command().is_some() {
            Nanos::MAX
        } else {
            self.next_pass
        }
    }

    /// Returns whether a poll is needed now.
    #[inline]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        !self.command_in_flight
            && (now >= self.next_pass || self.pass_running || self.writer.next_command().is_some())
    }
}
