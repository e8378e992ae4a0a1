//! A turn of the [`Subsystem`]: what has ended, what follows, what is begun.

use clock::{Component, Nanos};
use ftl::journal::JournalError;

use super::flash::{Ended, Purpose};
use super::subsystem::Medium;
use super::{CoreError, Erased, Scrubber, Subsystem, WearOf};

impl Subsystem {
    fn fail(&mut self, error: CoreError) {
        self.failed.get_or_insert(error);
    }

    fn journal_failed(&mut self, source: JournalError) {
        let drive = self.drive.clone();
        self.fail(CoreError::Journal { drive, source });
    }

    /// Begins a generation of the journal with the table as it is: all records made so far, taken or
    /// not, are in it.
    pub(super) fn take_snapshot(&mut self) {
        let Medium::Open(journal) = &mut self.medium else { return };
        match journal.snapshot(self.pool.table().snapshot()) {
            Ok(position) => {
                while self.pool.take_record().is_some() {}
                self.sent.push_back((position, self.pool.made()));
                self.unmarked = true;
            }
            Err(JournalError::SnapshotUnderWay { .. }) => {}
            Err(error) => self.journal_failed(error),
        }
    }

    /// Moves records from the pool to the journal.
    fn send_records(&mut self) {
        let taken = || self.pool.made() - self.pool.untaken() as u64;
        let urgent = self.pool.awaited() > taken() || self.pool.untaken() >= 32;
        let Medium::Open(journal) = &mut self.medium else { return };
        if journal.wants_snapshot() && !self.marking {
            return self.take_snapshot();
        }
        if !urgent {
            return;
        }
        while let Some(record) = self.pool.first_record() {
            match journal.append(&record.encode()) {
                Ok(_) => {
                    self.pool.take_record();
                    self.unmarked = true;
                }
                // What is left of the records is in the snapshot, or waits for the one under way.
                Err(JournalError::SnapshotNeeded { .. }) if journal.snapshot_is_under_way() => {
                    break;
                }
                Err(JournalError::SnapshotNeeded { .. } | JournalError::RecordTooLarge { .. }) => {
                    return self.take_snapshot();
                }
                Err(error) => return self.journal_failed(error),
            }
        }
        let position = journal.flush();
        self.sent.push_back((position, self.pool.made() - self.pool.untaken() as u64));
    }

    /// Writes the table anew, on other chunks of its window, when it is time for that: flash forgets, and
    /// nobody else looks after those chunks.
    fn renew_table(&mut self, now: Nanos) {
        let scrub = self.config.scrub.filter(|_| self.scrubber.is_some() && !self.marking);
        if let Some(scrub) = scrub.filter(|s| s.sectors_per_sec > 0 && now >= self.next_table) {
            self.next_table = now + scrub.repeat_after.max(Nanos(1));
            self.take_snapshot();
        }
    }

    /// When that is.
    fn table_due(&self) -> Nanos {
        let open = matches!(self.medium, Medium::Open(_)) && self.failed.is_none();
        let renews = self.config.scrub.is_some_and(|s| s.sectors_per_sec > 0);
        if open && renews && self.scrubber.is_some() { self.next_table } else { Nanos::MAX }
    }

    /// Has everything made so far written, whether somebody waits for it or not.
    pub(super) fn send_all(&mut self) {
        self.pool.await_all();
        self.send_records();
    }

    fn note_durable(&mut self) {
        let Medium::Open(journal) = &self.medium else { return };
        let durable = journal.durable();
        while let Some((_, records)) = self.sent.pop_front_if(|(at, _)| *at <= durable) {
            self.durable = self.durable.max(records);
            self.pool.durable(self.durable);
        }
        if let Some(error) = journal.failed().cloned() {
            self.journal_failed(error);
        }
    }

    fn ended(&mut self, ended: Ended) {
        let Ended { command, status, failed, high_ecc } = ended;
        let journal = match &mut self.medium {
            Medium::Open(journal) => Some(journal),
            _ => None,
        };
        if !status.is_success() && !status.is_media_error() {
            // Neither the journal nor a chunk is to blame.
            let address = self.flash.address(command.chunk, command.sector);
            let (drive, command) = (self.drive.clone(), name_of(command.purpose));
            return self.fail(CoreError::Command { drive, command, address, status });
        }
        match (command.purpose, journal) {
            (Purpose::Program(op), Some(journal)) => journal.program_done(op, status),
            (Purpose::Erase(op), Some(journal)) => journal.erase_done(op, status),
            // Only a recovery reads.
            (Purpose::Program(_) | Purpose::Erase(_) | Purpose::Read(_), _) => {}
            (Purpose::Clean, _) => {
                let how = if status.is_success() { Erased::Clean } else { Erased::Bad };
                if let Err(source) = self.pool.erase_done(command.chunk, how) {
                    let error = self.damaged(source);
                    self.fail(error);
                }
            }
            (Purpose::Scrub, _) => {
                if let (Some(read), Some(scrubber)) = (self.scrubbing.take(), &mut self.scrubber) {
                    scrubber.read_done(read, failed, high_ecc);
                }
            }
        }
    }

    /// The scrubber's next read.
    fn scrub(&mut self, now: Nanos) -> bool {
        let Some(scrubber) = &mut self.scrubber else { return false };
        let pool = &self.pool;
        let wear_of = |chunk: u32| WearOf {
            cycles: pool.wear().cycles(chunk),
            oldest_cycles: pool.oldest_on(pool.table().pu_of(chunk)),
        };
        let Some(read) = scrubber.next(now, &wear_of) else { return false };
        self.scrubbing = Some(read);
        self.flash.scrub(read.chunk, read.sector, read.sectors);
        true
    }
}

pub(super) fn name_of(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Program(_) => "Vector Chunk Write",
        Purpose::Erase(_) | Purpose::Clean => "Vector Chunk Reset",
        Purpose::Read(_) | Purpose::Scrub => "Vector Chunk Read",
    }
}

impl Component for Subsystem {
    fn poll(&mut self, now: Nanos) -> bool {
        self.now = now;
        let mut reaped = false;
        while let Some(ended) = self.flash.reap() {
            reaped = true;
            self.ended(ended);
        }
        self.note_durable();
        let look = !self.marking && (std::mem::take(&mut self.touched) | reaped);
        let mut moved = reaped;
        if self.failed.is_none() && matches!(self.medium, Medium::Open(_)) {
            // A chunk can only have become due by what was asked, or has ended.
            while let Some(chunk) = look.then(|| self.pool.next_erase()).flatten() {
                self.flash.clean(chunk);
                moved = true;
            }
            self.renew_table(now);
            self.send_records();
            if let Medium::Open(journal) = &mut self.medium {
                moved |= journal.kick(now, &mut self.flash);
            }
            self.note_durable();
        }
        if self.failed.is_none() {
            moved |= self.scrub(now);
        }
        moved | self.flash.ring(reaped)
    }

    fn deadline(&self) -> Nanos {
        let urgent = self.failed.is_none()
            && matches!(self.medium, Medium::Open(_))
            && self.pool.awaited() > self.pool.made() - self.pool.untaken() as u64;
        if urgent || self.touched {
            return Nanos::ZERO;
        }
        self.scrubber.as_ref().map_or(Nanos::MAX, Scrubber::deadline).min(self.table_due())
    }
}
