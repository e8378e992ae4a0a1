//! The journal, which is read first: without padding it, to see whose it is, then what only padding makes
//! readable.

use std::collections::BTreeMap;

use clock::Nanos;

use super::job::JobKind;
use super::{Found, Job, Phase, Recovery, RecoveryError, words};
use crate::ftl::owned;
use crate::journal::{ChunkFound, JournalFlash, JournalMedia, Recovered};
use crate::snapshot::{Opened, Snapshot, Unusable};
use crate::{Layout, NewFtlError, Shape};

/// Contents of sectors of the journal that have been read, by flat number: nothing is read twice, neither
/// a header that was looked at before its frame, nor what was read before the journal was padded.
pub(super) type Known = BTreeMap<u32, Box<[u8]>>;

/// A read of the journal of which everything is known: its operation, and the contents.
type KnownRead = (u32, Vec<u8>);

/// The journal's way to the flash: jobs, but for what is known.
pub(super) struct Jobs<'a> {
    pub(super) shape: Shape,
    pub(super) jobs: &'a mut Vec<Job>,
    pub(super) data: &'a [u8],
    pub(super) known: &'a Known,
    pub(super) reads: Vec<KnownRead>,
}

impl<'a> Jobs<'a> {
    pub(super) fn new(shape: Shape, jobs: &'a mut Vec<Job>, known: &'a Known) -> Jobs<'a> {
        Jobs { shape, jobs, data: &[], known, reads: Vec::new() }
    }
}

impl JournalFlash for Jobs<'_> {
    fn program(&mut self, _now: Nanos, op: u32, chunk: u32, sector: u32, bytes: &[u8]) {
        let (count, bytes) = (self.shape.unit, bytes.to_vec());
        self.jobs.push(Job::pad(JobKind::Journal { op, first: 0 }, chunk, sector, count, bytes));
    }

    fn erase(&mut self, _now: Nanos, _op: u32, _chunk: u32) {
        // A recovery erases nothing: the journal does, once it goes on.
    }
}

impl JournalMedia for Jobs<'_> {
    fn read(&mut self, _now: Nanos, op: u32, chunk: u32, sector: u32, sectors: u32) {
        let psn = self.shape.first_psn(chunk) + sector;
        let known: Option<Vec<&[u8]>> =
            (psn..psn + sectors).map(|psn| self.known.get(&psn).map(|b| &**b)).collect();
        match known {
            Some(known) => self.reads.push((op, known.concat())),
            None => {
                let first = psn;
                self.jobs.push(Job::read(JobKind::Journal { op, first }, psn, sectors, true));
            }
        }
    }

    fn data(&mut self, _op: u32, out: &mut [u8]) {
        let n = out.len().min(self.data.len());
        out[..n].copy_from_slice(&self.data[..n]);
    }
}

impl Recovery {
    /// Reads the journal as far as that goes now.
    pub(super) fn journal_jobs(&mut self, jobs: &mut Vec<Job>) {
        let Phase::Journal(journal) = &mut self.phase else { return };
        let ended = loop {
            let mut way = Jobs::new(self.shape, jobs, &self.known);
            journal.kick(Nanos::ZERO, &mut way);
            let reads = std::mem::take(&mut way.reads);
            if reads.is_empty() {
                break journal.finish();
            }
            for (op, data) in reads {
                let way = &mut Jobs { data: &data, ..Jobs::new(self.shape, jobs, &self.known) };
                journal.read_done(op, 0, way);
            }
        };
        match ended {
            Some(Ok(recovered)) if self.next.is_some() => self.looked(recovered),
            Some(Ok(recovered)) => self.begin(recovered),
            Some(Err(e)) => self.error = Some(RecoveryError::Journal(e)),
            None if jobs.is_empty() => self.error = Some(RecoveryError::Unfinished),
            None => {}
        }
    }

    /// A read of the journal has ended.
    pub(super) fn journal_read(&mut self, op: u32, first: u32, failed: u64, data: &[u8]) {
        let Phase::Journal(journal) = &mut self.phase else { return };
        let sectors = data.chunks_exact(self.shape.sector_bytes.max(1) as usize);
        self.stats.data_sectors += sectors.len() as u64;
        self.stats.journal_sectors += sectors.len() as u64;
        for (i, sector) in sectors.enumerate().filter(|(i, _)| failed >> i & 1 == 0) {
            self.known.insert(first + i as u32, sector.into());
        }
        let mut none = Vec::new();
        let way = &mut Jobs { data, ..Jobs::new(self.shape, &mut none, &self.known) };
        journal.read_done(op, failed, way);
    }

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
        self.known = Known::new();
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
