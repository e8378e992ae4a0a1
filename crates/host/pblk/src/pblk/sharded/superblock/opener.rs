//! [`SuperblockOpener`]: reads and checks the superblock when the device is opened, and writes
//! missing copies.
//!
//! Invariant: another layout, and the data of a pblk without shards, are rejected before anything
//! is written or erased.

use ftl::ChunkReport;
use nvme::{ChunkId, Status};

use super::super::super::PblkError;
use super::super::{ShardedError, SuperblockError};
use super::buffer::SuperblockBuffer;
use super::maintainer::SuperblockMaintainer;
use super::writer::{CommandOutcome, SlotContent, SuperblockCommand, SuperblockWriter};
use super::{COPIES, LOCATIONS, ReadSuperblock, ShardSuperblock, UnshardedJournal};
use ocssd::vector::{Addresses, VectorQueue};

/// Number of polls without a completion after which the drive counts as failed.
const POLL_LIMIT: u64 = 30_000_000;

/// The superblock at each location, if there is one, and why another one is not supported.
type FoundCopies = ([Option<ReadSuperblock>; LOCATIONS], Option<SuperblockError>);

/// Executes superblock commands, one at a time.
pub(crate) struct SuperblockOpener<'a> {
    queue: &'a mut VectorQueue,
    addresses: &'a Addresses,
    progress: &'a mut dyn FnMut(),
    buffer: SuperblockBuffer,
}

/// A chunk for copies of the superblock, in the state that the drive reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuperblockLocation {
    pub(crate) chunk: ChunkId,
    pub(crate) report: ChunkReport,
}

impl<'a> SuperblockOpener<'a> {
    pub(crate) fn new(
        wanted: ShardSuperblock,
        queue: &'a mut VectorQueue,
        addresses: &'a Addresses,
        progress: &'a mut dyn FnMut(),
    ) -> Result<SuperblockOpener<'a>, ShardedError> {
        let space = queue.port().memory();
        let sheet = SuperblockBuffer::new(wanted, addresses.shape(), addresses.oob_bytes(), space);
        Ok(SuperblockOpener { buffer: sheet.map_err(PblkError::from)?, queue, addresses, progress })
    }

    /// Ensures that the drive has the requested layout. `found` are the superblock's locations;
    /// `written` is the number of chunks that the shards have written; `unsharded` is where a pblk
    /// without shards has its journal. Returns the maintainer of the superblock.
    ///
    /// # Errors
    /// [`SuperblockError`]; [`PblkError::Command`] and [`PblkError::Timeout`].
    pub(crate) fn open(
        mut self,
        found: &[SuperblockLocation; LOCATIONS],
        written: u32,
        unsharded: Option<&UnshardedJournal>,
    ) -> Result<SuperblockMaintainer, ShardedError> {
        let mut scribe =
            SuperblockWriter::new(self.addresses.shape(), found.map(|location| location.chunk));
        for (slot, SuperblockLocation { report, .. }) in scribe.slots.iter_mut().zip(found) {
            slot.content = match report {
                ChunkReport::Free => SlotContent::Erased,
                ChunkReport::Bad | ChunkReport::NotOwned => SlotContent::Dead,
                ChunkReport::ProgramFailed(_) => SlotContent::NeedsErase,
                ChunkReport::Open(_) | ChunkReport::Closed(_) => SlotContent::Unreadable,
            };
        }
        let (labels, mut refused) = self.read_copies(found, scribe.units())?;
        let wanted = self.buffer.superblock();
        let newest = labels.iter().flatten().map(|(_, generation)| *generation).max();
        for (place, read) in scribe.slots.iter_mut().zip(&labels) {
            match *read {
                Some((label, generation)) if label == wanted => {
                    place.content = SlotContent::Valid(generation);
                }
                // Older generations with another layout are obsolete.
                Some((label, generation)) if Some(generation) == newest => {
                    refused = label.check(wanted).err();
                }
                _ => {}
            }
        }
        if newest.is_none()
            && refused.is_none()
            && let Some(journal) = unsharded
            && self.finds_journal(journal, scribe.units())?
        {
            let wanted_shards = wanted.shards.into();
            return Err(SuperblockError::Unsharded { wanted_shards }.into());
        }
        scribe.generation = newest.unwrap_or(1);
        if written > 0 {
            if let Some(error) = refused {
                return Err(error.into());
            }
            if scribe.copies() == 0 {
                let error = SuperblockError::Missing { chunks: written, locations: LOCATIONS };
                return Err(error.into());
            }
        } else if refused.is_some() || scribe.copies() < COPIES {
            // The drive counts as new: the contents of all locations may be erased.
            for at in 0..LOCATIONS {
                let chunk = scribe.slots[at].chunk;
                let held = &mut scribe.slots[at].content;
                if !matches!(*held, SlotContent::Erased | SlotContent::Dead) {
                    let erased = self.run_command(SuperblockCommand::Erase { chunk })?
                        != CommandOutcome::MediaError;
                    *held = if erased { SlotContent::Erased } else { SlotContent::Dead };
                }
            }
            scribe.generation = newest.map_or(1, |n| n.saturating_add(1));
        }
        scribe.write_missing();
        while let Some(command) = scribe.next_command() {
            let outcome = self.run_command(command)?;
            scribe.on_command_complete(outcome);
        }
        if scribe.copies() == 0 {
            return Err(SuperblockError::Unwritable { locations: LOCATIONS }.into());
        }
        Ok(SuperblockMaintainer::new(scribe, self.buffer))
    }

    /// Returns the number of shards in the newest readable superblock; `None` if there is none.
    /// Nothing is written.
    ///
    /// # Errors
    /// [`PblkError::Command`] and [`PblkError::Timeout`].
    pub(crate) fn find_shards(
        mut self,
        found: &[SuperblockLocation; LOCATIONS],
    ) -> Result<Option<u32>, ShardedError> {
        let chunks = found.map(|location| location.chunk);
        let units = SuperblockWriter::new(self.addresses.shape(), chunks).units();
        let (labels, _) = self.read_copies(found, units)?;
        let newest = labels.iter().flatten().max_by_key(|(_, generation)| *generation);
        Ok(newest.map(|(superblock, _)| superblock.shards.into()))
    }

    /// Reads the superblock at every readable location, and the last error of one that is not
    /// supported. `units` are the write units of a copy.
    fn read_copies(
        &mut self,
        found: &[SuperblockLocation; LOCATIONS],
        units: u32,
    ) -> Result<FoundCopies, ShardedError> {
        let mut copies = [None; LOCATIONS];
        let mut refused = None;
        for (copy, SuperblockLocation { chunk, report }) in copies.iter_mut().zip(found) {
            if self.is_readable(*report, units) {
                match self.read_copy(*chunk)? {
                    Some(Ok(read)) => *copy = Some(read),
                    Some(Err(e)) => refused = Some(e),
                    None => {}
                }
            }
        }
        Ok((copies, refused))
    }

    /// Returns whether a chunk begins with a frame of the journal of a pblk without shards.
    fn finds_journal(
        &mut self,
        journal: &UnshardedJournal,
        units: u32,
    ) -> Result<bool, ShardedError> {
        for SuperblockLocation { chunk, report } in &journal.chunks {
            if self.is_readable(*report, units)
                && self.run_command(SuperblockCommand::Read { chunk: *chunk })?
                    != CommandOutcome::MediaError
                && journal.owns(&self.buffer.read_bytes())
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_readable(&self, state: ChunkReport, units: u32) -> bool {
        match state {
            ChunkReport::Open(written) => written >= units * self.addresses.shape().ws_opt,
            ChunkReport::Closed(written) | ChunkReport::ProgramFailed(written) => written > 0,
            _ => false,
        }
    }

    fn read_copy(
        &mut self,
        chunk: ChunkId,
    ) -> Result<Option<Result<ReadSuperblock, SuperblockError>>, ShardedError> {
        let outcome = self.run_command(SuperblockCommand::Read { chunk })?;
        Ok(if outcome == CommandOutcome::MediaError { None } else { self.buffer.decode() })
    }

    /// Executes a command and waits for it. A media error is not an error.
    fn run_command(&mut self, command: SuperblockCommand) -> Result<CommandOutcome, ShardedError> {
        let (name, chunk) = match command {
            SuperblockCommand::Read { chunk } => ("Vector Chunk Read", chunk),
            SuperblockCommand::Erase { chunk } => ("Vector Chunk Reset", chunk),
            SuperblockCommand::Program { chunk, .. } => ("Vector Chunk Write", chunk),
        };
        let address = self.addresses.components(self.addresses.shape().first_sector_of(chunk));
        let failed = |status| PblkError::Command { command: name, address, status };
        if !self.buffer.submit(self.queue, self.addresses, command, 0) {
            return Err(failed(Status::NOT_READY).into());
        }
        self.queue.ring(true);
        for _ in 0..POLL_LIMIT {
            if let Some(done) = self.queue.reap() {
                self.queue.ring(true);
                return match done.status {
                    s if s.is_success() => Ok(CommandOutcome::Success(self.buffer.generation())),
                    s if s.is_media_error() => Ok(CommandOutcome::MediaError),
                    s => Err(failed(s).into()),
                };
            }
            (self.progress)();
        }
        let outstanding = self.queue.outstanding();
        Err(PblkError::Timeout { outstanding, polls: POLL_LIMIT }.into())
    }
}
