//! [`Subsystem::open`] and [`Subsystem::register`]: what is on a drive.
//!
//! | the window of the partition table | elsewhere | the drive |
//! |---|---|---|
//! | erased or bad | erased or bad | is blank |
//! | erased or bad | data | is somebody's who keeps no table: refused |
//! | no frames of a journal, or another's | | is somebody else's: refused |
//! | frames, but no whole snapshot | erased or bad | was cut while it was registered: blank |
//! | frames, but no whole snapshot | data | has lost its table: refused |
//! | a table | | is registered |
//!
//! A drive is looked at without writing anything. Flash with paired pages needs padding before the
//! last frames can be read; therefore a table that is closed in order ends with the mark *closed*, and
//! frames of nothing behind it that take the place of padding. Only a table without that mark, which a
//! power cut leaves, is padded when it is opened.
//!
//! Why a mark that is the last thing seen can be trusted, though frames behind it may be unseen: who
//! opens a closed table for writing first writes the mark *opened*, and frames of nothing behind it. As
//! long as those are not durable nothing has changed; once they are, *opened* is seen.

use clock::{Component, Nanos};
use driver::DriveInfo;
use ftl::Shape;
use ftl::journal::{Journal, JournalError};
use nvme::{ChunkDescriptor, ChunkState};
use rng::Rng;

use super::flash::{CoreFlash, Purpose};
use super::reading::{CLOSED, OPENED, Reading};
use super::subsystem::Medium;
use super::turn::name_of;
use super::{ChunkUse, CoreConfig, CoreError, Pool, Reserve, Subsystem, Table, TableError, Uid};
use crate::vector::{Addresses, VectorQueue};

impl Subsystem {
    /// Opens a drive to look at its partition table. Nothing is written, unless power was cut while
    /// it was last written. `report` describes all chunks, and is fresh. A blank drive can be opened:
    /// it [is not registered](Subsystem::is_registered).
    ///
    /// # Errors
    /// [`CoreError`]; nothing has changed on the media.
    pub fn open(
        info: &DriveInfo,
        report: &[ChunkDescriptor],
        queue: VectorQueue,
        now: Nanos,
        config: CoreConfig,
        pump: &mut dyn FnMut(),
    ) -> Result<Subsystem, CoreError> {
        let drive = info.serial.clone();
        let oc =
            info.open_channel.ok_or_else(|| CoreError::NotOpenChannel { drive: drive.clone() })?;
        let geometry = oc.geometry;
        let no_place = |why: String| CoreError::NoPlace { drive: drive.clone(), why };
        if info.max_sectors < geometry.ws_opt {
            let (most, unit) = (info.max_sectors, geometry.ws_opt);
            return Err(no_place(format!(
                "it transfers {most} sectors at a time, and writes {unit}"
            )));
        }
        let reserve = Reserve::of(&geometry).map_err(no_place)?;
        let total = geometry.total_chunks() as usize;
        let list = chunk_list(&reserve.chunks);
        let damaged =
            |source| CoreError::Damaged { drive: drive.clone(), chunks: list.clone(), source };
        if report.len() != total {
            return Err(damaged(TableError::Report { given: report.len(), chunks: total }));
        }
        let shape = Shape::of(&geometry);
        let mut flash = CoreFlash::new(queue, Addresses::new(shape, geometry, oc.format))?;
        let holds_data = |chunk: &u32| {
            let state = report[*chunk as usize].chunk_state();
            matches!(state, Some(ChunkState::Open | ChunkState::Closed))
        };
        let unfinished: Vec<u32> = reserve.chunks.iter().copied().filter(holds_data).collect();
        let elsewhere = || (0..total as u32).filter(|c| !reserve.contains(*c)).filter(holds_data);
        let mut found = None;
        if !unfinished.is_empty() {
            let reading =
                Reading { drive: &drive, chunks: &list, patience_polls: config.patience_polls };
            let mut window = reading.read(&mut flash, &reserve, report, total, now, pump)?;
            // Without padding the last frames are not seen; they may be all there are.
            if !window.marked && shape.pair > 0 {
                flash.dry = false;
                window = reading.read(&mut flash, &reserve, report, total, now, pump)?;
                found = window.table.map(|table| (table, Medium::Open(Box::new(window.journal))));
            } else {
                found = window.table.map(|table| (table, Medium::Found));
            }
        }
        let (table, medium) = match found {
            Some(found) => found,
            None => {
                if let Some(first) = elsewhere().next() {
                    let chunks = elsewhere().count() as u32;
                    if unfinished.is_empty() {
                        let first = flash.address(first, 0);
                        return Err(CoreError::NotBlank { drive, chunks, first });
                    }
                    let why = format!(
                        "nothing of it can be read, and {chunks} chunks hold data, the first at {}",
                        flash.address(first, 0)
                    );
                    return Err(CoreError::Lost { drive, chunks: list, why });
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
                (table, Medium::Blank { unfinished })
            }
        };
        let pool = Pool::new(table, report, config.rated_cycles, config.pool).map_err(damaged)?;
        Ok(Subsystem::assemble(
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

    /// Opens a drive whose chunks are to be used. A blank drive gets a partition table.
    ///
    /// # Errors
    /// [`CoreError`]. Of a drive that is refused nothing has changed on the media.
    pub fn register(
        info: &DriveInfo,
        report: &[ChunkDescriptor],
        queue: VectorQueue,
        now: Nanos,
        config: CoreConfig,
        pump: &mut dyn FnMut(),
    ) -> Result<Subsystem, CoreError> {
        let mut subsystem = Subsystem::open(info, report, queue, now, config, pump)?;
        subsystem.make_writable(pump)?;
        Ok(subsystem)
    }

    /// Opens the table for writing; a blank drive gets one.
    pub(super) fn make_writable(&mut self, pump: &mut dyn FnMut()) -> Result<(), CoreError> {
        match std::mem::replace(&mut self.medium, Medium::Found) {
            open @ Medium::Open(_) => {
                self.flash.dry = false;
                self.medium = open;
                Ok(())
            }
            Medium::Blank { unfinished } => {
                self.medium = Medium::Blank { unfinished: unfinished.clone() };
                self.lay_out(&unfinished, pump)
            }
            Medium::Found => {
                let list = chunk_list(&self.reserve.chunks);
                let (drive, total) = (self.drive.clone(), self.report.len());
                let patience_polls = self.config.patience_polls;
                let reading = Reading { drive: &drive, chunks: &list, patience_polls };
                self.flash.dry = false;
                let (reserve, report) = (&self.reserve, &self.report);
                let window = reading.read(&mut self.flash, reserve, report, total, self.now, pump);
                if window.is_err() {
                    self.flash.dry = true;
                }
                let window = window?;
                // What the pool has made of the table is not in it yet.
                let made = self.pool.made();
                let same = |t: &Table| {
                    (t.uid(), t.sequence() + made)
                        == (self.pool.table().uid(), self.pool.table().sequence())
                };
                if !window.table.as_ref().is_some_and(same) {
                    let why = "it reads differently than before".into();
                    return Err(CoreError::Lost { drive, chunks: list, why });
                }
                self.medium = Medium::Open(Box::new(window.journal));
                if self.flash.shape().pair > 0 {
                    self.write_mark(&OPENED, pump)?;
                    self.unmarked = true;
                }
                Ok(())
            }
        }
    }

    /// Makes the journal of a blank drive.
    fn lay_out(&mut self, unfinished: &[u32], pump: &mut dyn FnMut()) -> Result<(), CoreError> {
        let usable = |chunk: &u32| {
            let state = self.report[*chunk as usize].chunk_state();
            !matches!(state, None | Some(ChunkState::Offline))
        };
        let mut chunks: Vec<u32> = self.reserve.chunks.iter().copied().filter(usable).collect();
        let needed = self.reserve.needed;
        let too_few = |good: usize, of: usize, drive: &str| CoreError::NoPlace {
            drive: drive.into(),
            why: format!("of the {of} chunks of its window {good} are good, and it takes {needed}"),
        };
        if chunks.len() < needed as usize {
            return Err(too_few(chunks.len(), self.reserve.chunks.len(), &self.drive));
        }
        self.flash.dry = false;
        for chunk in unfinished {
            self.flash.clean(*chunk);
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
                    chunks.retain(|c| *c != chunk);
                } else if !ended.status.is_success() {
                    let (drive, status) = (self.drive.clone(), ended.status);
                    let address = self.flash.address(chunk, 0);
                    let command = name_of(Purpose::Clean);
                    return Err(CoreError::Command { drive, command, address, status });
                }
            }
            in_vain += 1;
            if in_vain > self.config.patience_polls {
                return Err(self.timeout());
            }
            pump();
        }
        let journal = Journal::create(self.flash.shape(), self.reserve.config, &chunks);
        let journal = journal.map_err(|source| match source {
            JournalError::TooFewChunks { .. } => {
                too_few(chunks.len(), self.reserve.chunks.len(), &self.drive)
            }
            source => CoreError::Journal { drive: self.drive.clone(), source },
        })?;
        self.medium = Medium::Open(Box::new(journal));
        self.take_snapshot();
        let made = self.pool.made();
        self.settle(pump, |s| s.durable() >= made && s.has_table())
    }

    /// Whether a snapshot of the table is durable.
    fn has_table(&self) -> bool {
        self.journal().is_some_and(|j| !j.snapshot_is_under_way() && j.stats().generations > 0)
    }

    /// Writes what is left to write and marks the table as closed, so that the next to look at the
    /// drive need not write anything.
    ///
    /// # Errors
    /// [`CoreError::Journal`], [`CoreError::Command`], [`CoreError::Timeout`].
    pub fn close(&mut self, pump: &mut dyn FnMut()) -> Result<(), CoreError> {
        if !matches!(self.medium, Medium::Open(_)) {
            return Ok(());
        }
        self.scrubber = None;
        // No erase is begun any more, and no snapshot unless there must be one.
        self.marking = true;
        let written = self.settle(pump, Subsystem::is_still).and_then(|()| {
            self.send_all();
            let made = self.pool.made();
            self.settle(pump, |s| s.durable() >= made && s.is_still())
        });
        self.marking = false;
        written?;
        if !self.unmarked {
            return Ok(());
        }
        self.write_mark(&CLOSED, pump)?;
        self.unmarked = false;
        Ok(())
    }

    /// Writes a mark, and as many frames behind it as it takes to read it.
    fn write_mark(&mut self, mark: &[u8], pump: &mut dyn FnMut()) -> Result<(), CoreError> {
        let shape = *self.flash.shape();
        let frames = 1 + shape.pair.div_ceil(shape.unit.max(1));
        self.settle(pump, Subsystem::is_still)?;
        'again: loop {
            for i in 0..frames {
                let Medium::Open(journal) = &mut self.medium else { return Ok(()) };
                match journal.append(if i == 0 { mark } else { &[] }) {
                    Ok(_) => {
                        journal.flush();
                    }
                    Err(JournalError::SnapshotNeeded { .. }) => {
                        // All frames must follow the mark in one generation.
                        self.take_snapshot();
                        self.settle(pump, Subsystem::is_still)?;
                        continue 'again;
                    }
                    Err(source) => {
                        return Err(CoreError::Journal { drive: self.drive.clone(), source });
                    }
                }
            }
            self.marking = true;
            let settled = self.settle(pump, Subsystem::is_still);
            self.marking = false;
            return settled;
        }
    }

    pub(super) fn timeout(&self) -> CoreError {
        CoreError::Timeout {
            drive: self.drive.clone(),
            outstanding: self.flash.outstanding(),
            polls: self.config.patience_polls,
        }
    }

    /// Polls until something holds.
    pub(super) fn settle(
        &mut self,
        pump: &mut dyn FnMut(),
        mut until: impl FnMut(&Subsystem) -> bool,
    ) -> Result<(), CoreError> {
        let mut in_vain = 0;
        loop {
            in_vain = if self.poll(self.now) { 0 } else { in_vain + 1 };
            if let Some(error) = self.failed.take() {
                // What is told once is remembered as well: nothing can be changed any more.
                self.failed = Some(CoreError::ReadOnly { drive: self.drive.clone() });
                return Err(error);
            }
            if until(self) {
                return Ok(());
            }
            if in_vain > self.config.patience_polls {
                return Err(self.timeout());
            }
            pump();
        }
    }
}

/// Chunks as people read them: `0-3,1067-1070`.
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

/// 128 random bits.
pub(super) fn random_uid(rng: &mut Rng) -> Uid {
    Uid(u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64()))
}
