//! The journal, which is read first: without padding it, to see whose it is, then all of it.

use clock::Nanos;

use super::job::JobKind;
use super::{Found, Job, Phase, Recovery, RecoveryError, words};
use crate::ftl::owned;
use crate::journal::{ChunkFound, JournalFlash, JournalMedia, Recovered};
use crate::snapshot::{Opened, Snapshot, Unusable};
use crate::{Layout, NewFtlError, Shape};

/// The journal's way to the flash: jobs.
pub(super) struct Jobs<'a> {
    pub(super) shape: Shape,
    pub(super) jobs: &'a mut Vec<Job>,
    pub(super) data: &'a [u8],
}

impl JournalFlash for Jobs<'_> {
    fn program(&mut self, _now: Nanos, op: u32, chunk: u32, sector: u32, bytes: &[u8]) {
        let (count, bytes) = (self.shape.unit, bytes.to_vec());
        self.jobs.push(Job::pad(JobKind::Journal(op), chunk, sector, count, bytes));
    }

    fn erase(&mut self, _now: Nanos, _op: u32, _chunk: u32) {
        // A recovery erases nothing: the journal does, once it goes on.
    }
}

impl JournalMedia for Jobs<'_> {
    fn read(&mut self, _now: Nanos, op: u32, chunk: u32, sector: u32, sectors: u32) {
        let psn = self.shape.first_psn(chunk) + sector;
        self.jobs.push(Job::read(JobKind::Journal(op), psn, sectors, true));
    }

    fn data(&mut self, _op: u32, out: &mut [u8]) {
        let n = out.len().min(self.data.len());
        out[..n].copy_from_slice(&self.data[..n]);
    }
}

impl Recovery {
    /// The journal has been looked at, without padding: if it is not refused, it is read.
    pub(super) fn looked(&mut self, found: Recovered) {
        let Some(journal) = self.next.take() else { return };
        if let Some(Err(e)) = found.snapshot.as_ref().map(|bytes| self.take_snapshot(bytes)) {
            self.error = Some(e);
        }
        self.phase = Phase::Journal(journal);
    }

    /// The journal has been read.
    pub(super) fn begin(&mut self, recovered: Recovered) {
        self.journal = Some(recovered.journal);
        let usable = match &recovered.snapshot {
            Some(bytes) => self.take_snapshot(bytes),
            None => Ok(None),
        };
        match usable {
            Ok(snapshot) => self.snapshot = snapshot,
            Err(e) => {
                self.error = Some(e);
                return;
            }
        }
        self.all = self.snapshot.is_none() || recovered.truncated;
        if self.given.is_some() {
            return self.begin_with_map(&recovered.records);
        }
        if !self.all {
            let opened = recovered.records.iter().map(|r| Opened::decode(r, &self.shape));
            match opened.collect::<Option<Vec<Opened>>>() {
                Some(opened) => self.lines = self.lines_with(opened),
                None => self.all = true,
            }
        }
        self.stats.from_checkpoint = !self.all;
        if self.all {
            return self.read_everything();
        }
        self.phase = Phase::Pad;
        self.cursor = (0, 0);
        self.choose_what_to_read();
    }

    pub(super) fn take_snapshot(
        &mut self,
        bytes: &[u8],
    ) -> Result<Option<Snapshot>, RecoveryError> {
        let Some(counted) = Snapshot::counted(bytes) else { return Ok(None) };
        let layout = Layout::of(&self.shape, &self.config, owned(&self.seen.found), counted);
        let layout = layout.map_err(NewFtlError::from)?;
        match Snapshot::decode(bytes, &self.shape, &layout) {
            Ok(snapshot) => {
                (self.counted, self.layout) = (counted, layout);
                self.words = words(&layout);
                Ok(Some(snapshot))
            }
            Err(Unusable::Garbled) => Ok(None),
            Err(Unusable::Changed(changed)) => Err(RecoveryError::Changed(changed)),
        }
    }
}

/// What of a chunk of the journal can be read as it is.
pub(super) fn without_padding(shape: &Shape, found: ChunkFound) -> ChunkFound {
    match found {
        ChunkFound::Written(n) if n < shape.sectors && shape.pair > 0 => {
            ChunkFound::Closed(n.saturating_sub(shape.pair_units() * shape.unit))
        }
        found => found,
    }
}

pub(super) fn journal_chunk(shape: &Shape, found: Found) -> ChunkFound {
    match found {
        Found::Free => ChunkFound::Free,
        Found::Open(n) if n.is_multiple_of(shape.unit) => ChunkFound::Written(n),
        Found::Closed(n) if n == shape.sectors => ChunkFound::Written(n),
        // Nothing that this layer writes ends inside a write unit.
        Found::Open(n) | Found::Closed(n) => ChunkFound::Closed(n - n % shape.unit),
        Found::Failing(n) => ChunkFound::Failed(n - n % shape.unit),
        Found::Bad | Found::Foreign => ChunkFound::Bad,
    }
}
