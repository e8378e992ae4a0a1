//! [`TableProbe`]: reads the window of a drive's partition table.

use ftl::journal::{
    FoundJournalChunk, Journal, JournalChunkReport, JournalError, JournalRecovery, Recovered,
};
use nvme::{ChunkDescriptor, ChunkId, ChunkState};
use time::Nanos;

use super::io::{CommandPurpose, ManagerIo};
use super::step::command_name;
use crate::{MediaManagerError, Table, TableError, TableRecord, TableWindow};

/// Journal records that mark the table as closed cleanly, and as opened again. An empty record has
/// no meaning. No [`TableRecord`](crate::TableRecord) begins with these bytes.
pub(super) const CLOSED_MARK: [u8; 1] = [0];
pub(super) const OPENED_MARK: [u8; 1] = [0x80];

/// Parameters of a probe: serial number, the window for messages, and the poll limit.
pub(super) struct TableProbe<'a> {
    pub(super) drive: &'a str,
    pub(super) chunks: &'a str,
    pub(super) poll_limit: u64,
}

/// The contents of the window.
pub(super) struct WindowState {
    pub(super) table: Option<Table>,
    /// Whether the last record is the *closed* mark.
    pub(super) closed_cleanly: bool,
    pub(super) journal: Journal,
}

impl TableProbe<'_> {
    /// Reads the window.
    pub(super) fn read(
        &self,
        flash: &mut ManagerIo,
        reserve: &TableWindow,
        report: &[ChunkDescriptor],
        total: usize,
        now: Nanos,
        progress: &mut dyn FnMut(),
    ) -> Result<WindowState, MediaManagerError> {
        let drive = || self.drive.to_owned();
        let recovered = match self.recover(flash, reserve, report, now, progress)? {
            Ok(recovered) => recovered,
            Err(
                source @ (JournalError::NotAJournal { .. }
                | JournalError::Foreign { .. }
                | JournalError::Version { .. }
                | JournalError::WritePointer { .. }),
            ) => return Err(MediaManagerError::Foreign { drive: drive(), source }),
            Err(source) => return Err(MediaManagerError::Journal { drive: drive(), source }),
        };
        let Recovered { snapshot, records, truncated, journal, .. } = recovered;
        let chunks = self.chunks.to_owned();
        if truncated && flash.read_only && flash.shape().mw_cunits > 0 {
            // The missing frames may be those that are unreadable without padding.
            return Ok(WindowState { table: None, closed_cleanly: false, journal });
        }
        if truncated {
            let why = format!("frames after the first {} records cannot be read", records.len());
            return Err(MediaManagerError::TableLost { drive: drive(), chunks, why });
        }
        let damaged = |source| MediaManagerError::TableDamaged {
            drive: drive(),
            chunks: chunks.clone(),
            source,
        };
        let Some(snapshot) = snapshot else {
            // The first snapshot was not completed.
            return Ok(WindowState { table: None, closed_cleanly: false, journal });
        };
        let mut table = Table::load(&snapshot, flash.geometry()).map_err(damaged)?;
        let mut marked = false;
        for (i, bytes) in records.iter().enumerate().filter(|(_, bytes)| !bytes.is_empty()) {
            marked = **bytes == CLOSED_MARK;
            if !marked && **bytes != OPENED_MARK {
                let none = TableError::Record { record: i, bytes: bytes.len() };
                let record =
                    TableRecord::decode(bytes, total as u32).ok_or(none).map_err(damaged)?;
                table.apply(&record).map_err(damaged)?;
            }
        }
        Ok(WindowState { table: Some(table), closed_cleanly: marked, journal })
    }

    fn recover(
        &self,
        flash: &mut ManagerIo,
        reserve: &TableWindow,
        report: &[ChunkDescriptor],
        now: Nanos,
        progress: &mut dyn FnMut(),
    ) -> Result<Result<Recovered, JournalError>, MediaManagerError> {
        let found: Vec<FoundJournalChunk> = reserve
            .chunks
            .iter()
            .map(|&chunk| {
                let sectors = flash.shape().sectors_per_chunk;
                let report = journal_chunk_state(&report[chunk as usize], sectors);
                FoundJournalChunk { chunk: ChunkId(chunk), report }
            })
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
                    return Err(MediaManagerError::Command {
                        drive: self.drive.to_owned(),
                        command: command_name(command.purpose),
                        address: flash.address(command.chunk, command.sector),
                        status,
                    });
                }
                match command.purpose {
                    CommandPurpose::Program(op) => recovery.program_done(op, status),
                    CommandPurpose::Read(op) => recovery.read_done(op, ended.failed, flash),
                    CommandPurpose::Erase(_)
                    | CommandPurpose::EraseDirty
                    | CommandPurpose::Scrub => {}
                }
            }
            in_vain = if moved || rang || reaped { 0 } else { in_vain + 1 };
            if in_vain > self.poll_limit {
                return Err(MediaManagerError::Timeout {
                    drive: self.drive.to_owned(),
                    outstanding: flash.outstanding(),
                    polls: in_vain,
                });
            }
            progress();
        }
    }
}

/// Converts a chunk descriptor to the report of a journal chunk.
fn journal_chunk_state(d: &ChunkDescriptor, sectors: u32) -> JournalChunkReport {
    let written = u32::try_from(d.wp.get()).unwrap_or(u32::MAX);
    match d.chunk_state() {
        Some(ChunkState::Free) => JournalChunkReport::Free,
        Some(ChunkState::Open) => JournalChunkReport::Written(written),
        Some(ChunkState::Closed) if written == sectors => JournalChunkReport::Closed(sectors),
        Some(ChunkState::Closed) => JournalChunkReport::Failed(written),
        Some(ChunkState::Offline) | None => JournalChunkReport::Bad,
    }
}
