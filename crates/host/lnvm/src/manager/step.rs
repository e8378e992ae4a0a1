//! One iteration of the [`MediaManager`]: completions, records, erases, scrub.

use ftl::journal::JournalError;
use nvme::ChunkId;
use time::{Component, Nanos};

use super::TableState;
use super::io::{CommandPurpose, ManagerCompletion};
use crate::{EraseOutcome, MediaManager, MediaManagerError, Scrubber, WearInfo};

impl MediaManager {
    fn set_failure(&mut self, error: MediaManagerError) {
        self.failure.get_or_insert(error);
    }

    fn fail_journal(&mut self, source: JournalError) {
        let drive = self.serial.clone();
        self.set_failure(MediaManagerError::Journal { drive, source });
    }

    /// Starts a generation of the journal with the current table, which includes all records made
    /// so far, popped or not.
    pub(super) fn take_snapshot(&mut self) {
        let TableState::Open(journal) = &mut self.table_state else { return };
        match journal.snapshot(self.allocator.table().snapshot()) {
            Ok(position) => {
                while self.allocator.pop_record().is_some() {}
                self.durability.add(position, self.allocator.records_made());
                self.close_mark.is_needed = true;
            }
            Err(JournalError::SnapshotInProgress { .. }) => {}
            Err(error) => self.fail_journal(error),
        }
    }

    /// Moves records from the allocator to the journal.
    fn append_records(&mut self) {
        let taken = || self.allocator.records_made() - self.allocator.pending_record_count() as u64;
        let urgent = self.allocator.records_awaited() > taken()
            || self.allocator.pending_record_count() >= 32;
        let TableState::Open(journal) = &mut self.table_state else { return };
        if journal.needs_snapshot() && !self.close_mark.is_being_written {
            return self.take_snapshot();
        }
        if !urgent {
            return;
        }
        while let Some(record) = self.allocator.peek_record() {
            match journal.append(&record.encode()) {
                Ok(_) => {
                    self.allocator.pop_record();
                    self.close_mark.is_needed = true;
                }
                // The remaining records are in the snapshot, or wait for the one in progress.
                Err(JournalError::SnapshotNeeded { .. }) if journal.is_snapshot_in_progress() => {
                    break;
                }
                Err(JournalError::SnapshotNeeded { .. } | JournalError::RecordTooLarge { .. }) => {
                    return self.take_snapshot();
                }
                Err(error) => return self.fail_journal(error),
            }
        }
        let position = journal.flush();
        let records = self.allocator.records_made() - self.allocator.pending_record_count() as u64;
        self.durability.add(position, records);
    }

    /// Rewrites the table on other chunks of its window when this is due: flash loses data in time,
    /// and no target scrubs those chunks.
    fn rewrite_table(&mut self, now: Nanos) {
        let scrub = self
            .config
            .scrub
            .filter(|_| self.scrubber.is_some() && !self.close_mark.is_being_written);
        if let Some(scrub) =
            scrub.filter(|s| s.sectors_per_sec > 0 && now >= self.scrub_progress.next_table_rewrite)
        {
            self.scrub_progress.next_table_rewrite = now + scrub.repeat_after.max(Nanos(1));
            self.take_snapshot();
        }
    }

    /// Returns the time of the next rewrite of the table.
    fn table_rewrite_deadline(&self) -> Nanos {
        let open = matches!(self.table_state, TableState::Open(_)) && self.failure.is_none();
        let renews = self.config.scrub.is_some_and(|s| s.sectors_per_sec > 0);
        if open && renews && self.scrubber.is_some() {
            self.scrub_progress.next_table_rewrite
        } else {
            Nanos::MAX
        }
    }

    /// Appends all records made so far, awaited or not.
    pub(super) fn append_all_records(&mut self) {
        self.allocator.await_all();
        self.append_records();
    }

    fn advance_durable(&mut self) {
        let TableState::Open(journal) = &self.table_state else { return };
        let durable = journal.durable();
        while let Some(records) = self.durability.advance(durable) {
            self.allocator.on_durable(records);
        }
        if let Some(error) = journal.failed() {
            self.fail_journal(error);
        }
    }

    fn on_completion(&mut self, ended: ManagerCompletion) {
        let ManagerCompletion { command, status, failed, high_ecc } = ended;
        let journal = match &mut self.table_state {
            TableState::Open(journal) => Some(journal),
            _ => None,
        };
        if !status.is_success() && !status.is_media_error() {
            // The failure is caused neither by the journal nor by a chunk.
            let address = self.flash.address(command.chunk, command.sector);
            let (drive, command) = (self.serial.clone(), command_name(command.purpose));
            return self.set_failure(MediaManagerError::Command {
                drive,
                command,
                address,
                status,
            });
        }
        match (command.purpose, journal) {
            (CommandPurpose::Program(op), Some(journal)) => journal.program_done(op, status),
            (CommandPurpose::Erase(op), Some(journal)) => journal.erase_done(op, status),
            // Only recovery reads.
            (
                CommandPurpose::Program(_) | CommandPurpose::Erase(_) | CommandPurpose::Read(_),
                _,
            ) => {}
            (CommandPurpose::EraseDirty, _) => {
                let how =
                    if status.is_success() { EraseOutcome::Erased } else { EraseOutcome::Bad };
                if let Err(source) = self.allocator.erase_done(command.chunk.get(), how) {
                    let error = self.damaged_error(source);
                    self.set_failure(error);
                }
            }
            (CommandPurpose::Scrub, _) => {
                if let (Some(read), Some(scrubber)) =
                    (self.scrub_progress.read.take(), &mut self.scrubber)
                {
                    scrubber.read_done(read, failed, high_ecc);
                }
            }
        }
    }

    /// Submits the scrubber's next read.
    fn step_scrub(&mut self, now: Nanos) -> bool {
        let Some(scrubber) = &mut self.scrubber else { return false };
        let pool = &self.allocator;
        let wear_of = |chunk: u32| WearInfo {
            cycles: pool.wear().cycles(chunk),
            pu_cycles_max: pool.cycles_max_on(pool.table().pu_of(chunk)),
        };
        let Some(read) = scrubber.next_read(now, &wear_of) else { return false };
        self.scrub_progress.read = Some(read);
        self.flash.scrub_read(ChunkId(read.chunk), read.sector, read.sectors);
        true
    }
}

pub(super) fn command_name(purpose: CommandPurpose) -> &'static str {
    match purpose {
        CommandPurpose::Program(_) => "Vector Chunk Write",
        CommandPurpose::Erase(_) | CommandPurpose::EraseDirty => "Vector Chunk Reset",
        CommandPurpose::Read(_) | CommandPurpose::Scrub => "Vector Chunk Read",
    }
}

impl Component for MediaManager {
    fn poll(&mut self, now: Nanos) -> bool {
        self.now = now;
        let mut reaped = false;
        while let Some(ended) = self.flash.reap() {
            reaped = true;
            self.on_completion(ended);
        }
        self.advance_durable();
        let look =
            !self.close_mark.is_being_written && (std::mem::take(&mut self.has_new_work) | reaped);
        let mut moved = reaped;
        if self.failure.is_none() && matches!(self.table_state, TableState::Open(_)) {
            // A chunk becomes due only by a request or a completion.
            while let Some(chunk) = look.then(|| self.allocator.next_erase()).flatten() {
                self.flash.erase_dirty(ChunkId(chunk));
                moved = true;
            }
            self.rewrite_table(now);
            self.append_records();
            if let TableState::Open(journal) = &mut self.table_state {
                moved |= journal.kick(now, &mut self.flash);
            }
            self.advance_durable();
        }
        if self.failure.is_none() {
            moved |= self.step_scrub(now);
        }
        moved | self.flash.ring(reaped)
    }

    fn deadline(&self) -> Nanos {
        let urgent = self.failure.is_none()
            && matches!(self.table_state, TableState::Open(_))
            && self.allocator.records_awaited()
                > self.allocator.records_made() - self.allocator.pending_record_count() as u64;
        if urgent || self.has_new_work {
            return Nanos::ZERO;
        }
        self.scrubber
            .as_ref()
            .map_or(Nanos::MAX, Scrubber::deadline)
            .min(self.table_rewrite_deadline())
    }
}
