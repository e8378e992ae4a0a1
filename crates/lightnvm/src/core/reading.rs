//! [`Reading`]: what the window of a drive's partition table holds.

use clock::Nanos;
use ftl::journal::{ChunkFound, Journal, JournalError, JournalRecovery, Recovered};
use nvme::{ChunkDescriptor, ChunkState};

use super::flash::{CoreFlash, Purpose};
use super::turn::name_of;
use super::{CoreError, Record, Reserve, Table, TableError};

/// The journal's record that says that the table was closed in order, and the one that says that
/// it was opened again. A record of no bytes says nothing. No [`Record`] begins so.
pub(super) const CLOSED: [u8; 1] = [0];
pub(super) const OPENED: [u8; 1] = [0x80];

/// A look at a drive: its name, its window for messages, and the patience to have with it.
pub(super) struct Reading<'a> {
    pub(super) drive: &'a str,
    pub(super) chunks: &'a str,
    pub(super) patience_polls: u64,
}

/// What the window of a drive holds.
pub(super) struct Window {
    pub(super) table: Option<Table>,
    /// Whether the last record is the mark.
    pub(super) marked: bool,
    pub(super) journal: Journal,
}

impl Reading<'_> {
    /// What the window holds.
    pub(super) fn read(
        &self,
        flash: &mut CoreFlash,
        reserve: &Reserve,
        report: &[ChunkDescriptor],
        total: usize,
        now: Nanos,
        pump: &mut dyn FnMut(),
    ) -> Result<Window, CoreError> {
        let drive = || self.drive.to_owned();
        let recovered = match self.recover(flash, reserve, report, now, pump)? {
            Ok(recovered) => recovered,
            Err(
                source @ (JournalError::NotAJournal { .. }
                | JournalError::Foreign { .. }
                | JournalError::Version { .. }
                | JournalError::WritePointer { .. }),
            ) => return Err(CoreError::Foreign { drive: drive(), source }),
            Err(source) => return Err(CoreError::Journal { drive: drive(), source }),
        };
        let Recovered { snapshot, records, truncated, journal, .. } = recovered;
        let chunks = self.chunks.to_owned();
        if truncated && flash.dry && flash.shape().pair > 0 {
            // What is missing may be what cannot be read without padding.
            return Ok(Window { table: None, marked: false, journal });
        }
        if truncated {
            let why = format!("frames after the first {} records cannot be read", records.len());
            return Err(CoreError::Lost { drive: drive(), chunks, why });
        }
        let damaged =
            |source| CoreError::Damaged { drive: drive(), chunks: chunks.clone(), source };
        let Some(snapshot) = snapshot else {
            // Its first snapshot was not finished.
            return Ok(Window { table: None, marked: false, journal });
        };
        let mut table = Table::load(&snapshot, flash.geometry()).map_err(damaged)?;
        let mut marked = false;
        for (i, bytes) in records.iter().enumerate().filter(|(_, bytes)| !bytes.is_empty()) {
            marked = **bytes == CLOSED;
            if !marked && **bytes != OPENED {
                let none = TableError::Record { record: i, bytes: bytes.len() };
                let record = Record::decode(bytes, total as u32).ok_or(none).map_err(damaged)?;
                table.apply(&record).map_err(damaged)?;
            }
        }
        Ok(Window { table: Some(table), marked, journal })
    }

    fn recover(
        &self,
        flash: &mut CoreFlash,
        reserve: &Reserve,
        report: &[ChunkDescriptor],
        now: Nanos,
        pump: &mut dyn FnMut(),
    ) -> Result<Result<Recovered, JournalError>, CoreError> {
        let found: Vec<(u32, ChunkFound)> = reserve
            .chunks
            .iter()
            .map(|chunk| (*chunk, found(&report[*chunk as usize], flash.shape().sectors)))
            .collect();
        let mut recovery = match JournalRecovery::new(flash.shape(), reserve.config, &found) {
            Ok(recovery) => recovery,
            Err(error) => return Ok(Err(error)),
        };
        let (mut in_vain, mut reaped) = (0, false);
        loop {
            let moved = recovery.kick(now, flash);
            let rang = flash.ring(reaped);
            if let Some(result) = recovery.finish() {
                return Ok(result);
            }
            reaped = false;
            while let Some(ended) = flash.reap() {
                reaped = true;
                let (command, status) = (ended.command, ended.status);
                if !status.is_success() && !status.is_media_error() {
                    return Err(CoreError::Command {
                        drive: self.drive.to_owned(),
                        command: name_of(command.purpose),
                        address: flash.address(command.chunk, command.sector),
                        status,
                    });
                }
                match command.purpose {
                    Purpose::Program(op) => recovery.program_done(op, status),
                    Purpose::Read(op) => recovery.read_done(op, ended.failed, flash),
                    Purpose::Erase(_) | Purpose::Clean | Purpose::Scrub => {}
                }
            }
            in_vain = if moved || rang || reaped { 0 } else { in_vain + 1 };
            if in_vain > self.patience_polls {
                return Err(CoreError::Timeout {
                    drive: self.drive.to_owned(),
                    outstanding: flash.outstanding(),
                    polls: in_vain,
                });
            }
            pump();
        }
    }
}

/// What a report says of a chunk of the journal.
fn found(d: &ChunkDescriptor, sectors: u32) -> ChunkFound {
    let written = u32::try_from(d.wp.get()).unwrap_or(u32::MAX);
    match d.chunk_state() {
        Some(ChunkState::Free) => ChunkFound::Free,
        Some(ChunkState::Open) => ChunkFound::Written(written),
        Some(ChunkState::Closed) if written == sectors => ChunkFound::Closed(sectors),
        Some(ChunkState::Closed) => ChunkFound::Failed(written),
        Some(ChunkState::Offline) | None => ChunkFound::Bad,
    }
}
