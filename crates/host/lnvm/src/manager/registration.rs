//! [`MediaManager::open`] and [`MediaManager::register`]: detect the contents of a drive.
//!
//! | window of the partition table | other chunks | result |
//! |---|---|---|
//! | erased or bad | erased or bad | blank |
//! | erased or bad | data | rejected: data without a table |
//! | no journal frames, or another owner's | | rejected: foreign data |
//! | frames, but no complete snapshot | erased or bad | blank: registration was interrupted |
//! | frames, but no complete snapshot | data | rejected: the table is lost |
//! | a table | | registered |
//!
//! A drive is inspected without writes. Flash with paired pages needs padding before the last
//! frames are readable. Therefore a table that is closed cleanly ends with the mark *closed*,
//! followed by empty frames in place of padding. Only a table without that mark, which a power cut
//! leaves, is padded when it is opened.
//!
//! A *closed* mark that is the last visible record is reliable, although later frames may be
//! unreadable. The first writer after a close writes the mark *opened*, followed by empty frames,
//! before anything else. Until those frames are durable nothing has changed; once they are,
//! *opened* is visible.

use driver::ControllerInfo;
use ftl::journal::{Journal, JournalError};
use nvme::{ChunkDescriptor, ChunkId, ChunkState, FlashGeometry};
use rng::Rng;
use time::{Component, Nanos};

use super::TableState;
use super::io::{CommandPurpose, ManagerIo};
use super::step::command_name;
use super::table_probe::{CLOSED_MARK, OPENED_MARK, TableProbe};
use crate::{
    ChunkAllocator, ChunkUse, MediaManager, MediaManagerConfig, MediaManagerError, Table,
    TableError, TableWindow, Uid,
};
use ocssd::vector::{Addresses, VectorQueue};

impl MediaManager {
    /// Opens a drive to read its partition table. Nothing is written, unless power was cut during
    /// the last write. `report` must describe the current state of all chunks. A blank drive can be
    /// opened; it [is not registered](MediaManager::is_registered).
    ///
    /// # Errors
    /// [`MediaManagerError`]; nothing was changed on the media.
    pub fn open(
        info: &ControllerInfo,
        report: &[ChunkDescriptor],
        queue: VectorQueue,
        now: Nanos,
        config: MediaManagerConfig,
        progress: &mut dyn FnMut(),
    ) -> Result<MediaManager, MediaManagerError> {
        let drive = info.serial.clone();
        let oc = info
            .open_channel
            .ok_or_else(|| MediaManagerError::NotOpenChannel { drive: drive.clone() })?;
        let geometry = oc.geometry;
        let no_place = |why: String| MediaManagerError::NoTableWindow { drive: drive.clone(), why };
        if info.max_sectors < geometry.ws_opt {
            let (most, unit) = (info.max_sectors, geometry.ws_opt);
            return Err(no_place(format!(
                "it transfers {most} sectors at a time, and writes {unit}"
            )));
        }
        let reserve = TableWindow::new(&geometry).map_err(no_place)?;
        let total = geometry.total_chunks() as usize;
        let list = chunk_list(&reserve.chunks);
        let damaged = |source| MediaManagerError::TableDamaged {
            drive: drive.clone(),
            chunks: list.clone(),
            source,
        };
        if report.len() != total {
            return Err(damaged(TableError::ReportLength { given: report.len(), chunks: total }));
        }
        let shape = FlashGeometry::from_geometry(&geometry);
        let mut flash = ManagerIo::new(queue, Addresses::new(shape, geometry, oc.format))?;
        let holds_data = |chunk: &u32| {
            let state = report[*chunk as usize].chunk_state();
            matches!(state, Some(ChunkState::Open | ChunkState::Closed))
        };
        let unfinished: Vec<u32> = reserve.chunks.iter().copied().filter(holds_data).collect();
        let elsewhere = || (0..total as u32).filter(|c| !reserve.contains(*c)).filter(holds_data);
        let mut found = None;
        if !unfinished.is_empty() {
            let reading =
                TableProbe { drive: &drive, chunks: &list, poll_limit: config.poll_limit };
            let mut window = reading.read(&mut flash, &reserve, report, total, now, progress)?;
            // Without padding the last frames are unreadable; the table may consist of them only.
            if !window.closed_cleanly && shape.mw_cunits > 0 {
                flash.read_only = false;
                window = reading.read(&mut flash, &reserve, report, total, now, progress)?;
                found =
                    window.table.map(|table| (table, TableState::Open(Box::new(window.journal))));
            } else {
                found = window.table.map(|table| (table, TableState::Closed));
            }
        }
        let (table, medium) = match found {
            Some(found) => found,
            None => {
                if let Some(first) = elsewhere().next() {
                    let chunks = elsewhere().count() as u32;
                    if unfinished.is_empty() {
                        let first = flash.address(ChunkId(first), 0);
                        return Err(MediaManagerError::NotBlank { drive, chunks, first });
                    }
                    let why = format!(
                        "nothing of it can be read, and {chunks} chunks hold data, the first at {}",
                        flash.address(ChunkId(first), 0)
                    );
                    return Err(MediaManagerError::TableLost { drive, chunks: list, why });
                }
                let uid = random_uid(&mut Rng::new(config.seed));
                let state = |chunk: u32| {
                    let state = report[chunk as usize].chunk_state();
                    match state {
                        None | Some(ChunkState::Offline) => ChunkUse::FactoryBad,
                        Some(_) if reserve.contains(chunk) => ChunkUse::Reserved,
                        Some(_) => ChunkUse::Free,
                    }
                };
                let table = Table::new(&geometry, uid, state).map_err(damaged)?;
                (table, TableState::Blank { partial_chunks: unfinished })
            }
        };
        let pool = ChunkAllocator::new(table, report, config.rated_cycles, config.allocator)
            .map_err(damaged)?;
        Ok(MediaManager::assemble(
            drive,
            geometry,
            config,
            reserve,
            report.to_vec(),
            flash,
            medium,
            pool,
            now,
        ))
    }

    /// Opens a drive for use by targets. A blank drive gets a partition table.
    ///
    /// # Errors
    /// [`MediaManagerError`]. Nothing was changed on the media of a rejected drive.
    pub fn register(
        info: &ControllerInfo,
        report: &[ChunkDescriptor],
        queue: VectorQueue,
        now: Nanos,
        config: MediaManagerConfig,
        progress: &mut dyn FnMut(),
    ) -> Result<MediaManager, MediaManagerError> {
        let mut subsystem = MediaManager::open(info, report, queue, now, config, progress)?;
        subsystem.make_writable(progress)?;
        Ok(subsystem)
    }

    /// Opens the table for writing; a blank drive gets a table.
    pub(super) fn make_writable(
        &mut self,
        progress: &mut dyn FnMut(),
    ) -> Result<(), MediaManagerError> {
        match std::mem::replace(&mut self.table_state, TableState::Closed) {
            open @ TableState::Open(_) => {
                self.flash.read_only = false;
                self.table_state = open;
                Ok(())
            }
            TableState::Blank { partial_chunks: unfinished } => {
                self.table_state = TableState::Blank { partial_chunks: unfinished.clone() };
                self.create_journal(&unfinished, progress)
            }
            TableState::Closed => {
                let list = chunk_list(&self.table_window.chunks);
                let (drive, total) = (self.serial.clone(), self.report.len());
                let patience_polls = self.config.poll_limit;
                let reading =
                    TableProbe { drive: &drive, chunks: &list, poll_limit: patience_polls };
                self.flash.read_only = false;
                let (reserve, report) = (&self.table_window, &self.report);
                let window =
                    reading.read(&mut self.flash, reserve, report, total, self.now, progress);
                if window.is_err() {
                    self.flash.read_only = true;
                }
                let window = window?;
                // Records made by the allocator since the table was read are not in it.
                let made = self.allocator.records_made();
                let same = |t: &Table| {
                    (t.uid(), t.sequence() + made)
                        == (self.allocator.table().uid(), self.allocator.table().sequence())
                };
                if !window.table.as_ref().is_some_and(same) {
                    let why = "it reads differently than before".into();
                    return Err(MediaManagerError::TableLost { drive, chunks: list, why });
                }
                self.table_state = TableState::Open(Box::new(window.journal));
                if self.flash.shape().mw_cunits > 0 {
                    self.write_mark(&OPENED_MARK, progress)?;
                    self.close_mark.is_needed = true;
                }
                Ok(())
            }
        }
    }

    /// Creates the journal of a blank drive.
    fn create_journal(
        &mut self,
        unfinished: &[u32],
        progress: &mut dyn FnMut(),
    ) -> Result<(), MediaManagerError> {
        let usable = |chunk: &u32| {
            let state = self.report[*chunk as usize].chunk_state();
            !matches!(state, None | Some(ChunkState::Offline))
        };
        let mut chunks: Vec<u32> =
            self.table_window.chunks.iter().copied().filter(usable).collect();
        let needed = self.table_window.chunks_needed;
        let too_few = |good: usize, of: usize, drive: &str| MediaManagerError::NoTableWindow {
            drive: drive.into(),
            why: format!("of the {of} chunks of its window {good} are good, and it takes {needed}"),
        };
        if chunks.len() < needed as usize {
            return Err(too_few(chunks.len(), self.table_window.chunks.len(), &self.serial));
        }
        self.flash.read_only = false;
        for chunk in unfinished {
            self.flash.erase_dirty(ChunkId(*chunk));
        }
        let mut in_vain = 0;
        let mut reaped = false;
        while !self.flash.is_idle() || reaped {
            self.flash.ring(reaped);
            reaped = false;
            while let Some(ended) = self.flash.reap() {
                (reaped, in_vain) = (true, 0);
                let chunk = ended.command.chunk;
                if ended.status.is_media_error() {
                    chunks.retain(|c| *c != chunk.get());
                } else if !ended.status.is_success() {
                    let (drive, status) = (self.serial.clone(), ended.status);
                    let address = self.flash.address(chunk, 0);
                    let command = command_name(CommandPurpose::EraseDirty);
                    return Err(MediaManagerError::Command { drive, command, address, status });
                }
            }
            in_vain += 1;
            if in_vain > self.config.poll_limit {
                return Err(self.timeout_error());
            }
            progress();
        }
        let chunks: Vec<ChunkId> = chunks.into_iter().map(ChunkId).collect();
        let journal = Journal::create(self.flash.shape(), self.table_window.config, &chunks);
        let journal = journal.map_err(|source| match source {
            JournalError::TooFewChunks { .. } => {
                too_few(chunks.len(), self.table_window.chunks.len(), &self.serial)
            }
            source => MediaManagerError::Journal { drive: self.serial.clone(), source },
        })?;
        self.table_state = TableState::Open(Box::new(journal));
        self.take_snapshot();
        let made = self.allocator.records_made();
        self.poll_until(progress, |s| s.durable_records() >= made && s.has_table())
    }

    /// Returns whether a snapshot of the table is durable.
    fn has_table(&self) -> bool {
        self.journal().is_some_and(|j| !j.is_snapshot_in_progress() && j.stats().generations > 0)
    }

    /// Writes pending records and marks the table as closed, so that the next open need not write.
    ///
    /// # Errors
    /// [`MediaManagerError::Journal`], [`MediaManagerError::Command`],
    /// [`MediaManagerError::Timeout`].
    pub fn close(&mut self, progress: &mut dyn FnMut()) -> Result<(), MediaManagerError> {
        if !matches!(self.table_state, TableState::Open(_)) {
            return Ok(());
        }
        self.scrubber = None;
        // From here on no erase is started, and no snapshot unless it is required.
        self.close_mark.is_being_written = true;
        let written = self.poll_until(progress, MediaManager::is_quiescent).and_then(|()| {
            self.append_all_records();
            let made = self.allocator.records_made();
            self.poll_until(progress, |s| s.durable_records() >= made && s.is_quiescent())
        });
        self.close_mark.is_being_written = false;
        written?;
        if !self.close_mark.is_needed {
            return Ok(());
        }
        self.write_mark(&CLOSED_MARK, progress)?;
        self.close_mark.is_needed = false;
        Ok(())
    }

    /// Writes a mark, and the empty frames that make it readable.
    fn write_mark(
        &mut self,
        mark: &[u8],
        progress: &mut dyn FnMut(),
    ) -> Result<(), MediaManagerError> {
        let shape = *self.flash.shape();
        let frames = 1 + shape.mw_cunits.div_ceil(shape.ws_opt.max(1));
        self.poll_until(progress, MediaManager::is_quiescent)?;
        'again: loop {
            for i in 0..frames {
                let TableState::Open(journal) = &mut self.table_state else { return Ok(()) };
                match journal.append(if i == 0 { mark } else { &[] }) {
                    Ok(_) => {
                        journal.flush();
                    }
                    Err(JournalError::SnapshotNeeded { .. }) => {
                        // All frames must follow the mark in one generation.
                        self.take_snapshot();
                        self.poll_until(progress, MediaManager::is_quiescent)?;
                        continue 'again;
                    }
                    Err(source) => {
                        return Err(MediaManagerError::Journal {
                            drive: self.serial.clone(),
                            source,
                        });
                    }
                }
            }
            self.close_mark.is_being_written = true;
            let settled = self.poll_until(progress, MediaManager::is_quiescent);
            self.close_mark.is_being_written = false;
            return settled;
        }
    }

    pub(super) fn timeout_error(&self) -> MediaManagerError {
        MediaManagerError::Timeout {
            drive: self.serial.clone(),
            outstanding: self.flash.outstanding(),
            polls: self.config.poll_limit,
        }
    }

    /// Polls until a condition holds.
    pub(super) fn poll_until(
        &mut self,
        progress: &mut dyn FnMut(),
        mut until: impl FnMut(&MediaManager) -> bool,
    ) -> Result<(), MediaManagerError> {
        let mut in_vain = 0;
        loop {
            in_vain = if self.poll(self.now) { 0 } else { in_vain + 1 };
            if let Some(error) = self.failure.take() {
                // The error is returned once; later calls return `ReadOnly`, because no changes are
                // possible.
                self.failure = Some(MediaManagerError::ReadOnly { drive: self.serial.clone() });
                return Err(error);
            }
            if until(self) {
                return Ok(());
            }
            if in_vain > self.config.poll_limit {
                return Err(self.timeout_error());
            }
            progress();
        }
    }
}

/// Formats chunk indexes, as in `0-3,1067-1070`.
pub(super) fn chunk_list(chunks: &[u32]) -> String {
    let mut out = String::new();
    let mut rest = chunks;
    while let Some(first) = rest.first() {
        let len = (1..rest.len()).find(|i| rest[*i] != first + *i as u32).unwrap_or(rest.len());
        let gap = if out.is_empty() { "" } else { "," };
        out += &match len {
            1 => format!("{gap}{first}"),
            _ => format!("{gap}{first}-{}", rest[len - 1]),
        };
        rest = &rest[len..];
    }
    out
}

/// Returns 128 random bits.
pub(super) fn random_uid(rng: &mut Rng) -> Uid {
    Uid(u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()))
}
