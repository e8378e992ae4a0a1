//! The journal, which is read first: without padding it, to see whose it is, then what only padding makes
//! readable.

use std::collections::BTreeMap;

use time::Nanos;

use super::op::RecoveryOpPurpose;
use super::{ChunkReport, Phase, Recovery, RecoveryError, RecoveryOp, l2p_table};
use crate::durability::journal::{JournalChunkReport, JournalFlash, JournalMedia, Recovered};
use crate::durability::snapshot::{LineOpened, Snapshot, SnapshotError};
use crate::ftl::owned_chunks;
use crate::{CapacityPlan, FlashGeometry, NewFtlError};

/// Contents of sectors of the journal that have been read, by flat number: nothing is read twice, neither
/// a header that was looked at before its frame, nor what was read before the journal was padded.
pub(super) type JournalContents = BTreeMap<u32, Box<[u8]>>;

/// A journal read with known result: its operation, and the contents.
type JournalRead = (u32, Vec<u8>);

/// The journal's way to the flash: jobs, but for what is known.
pub(super) struct JournalOps<'a> {
    pub(super) geometry: FlashGeometry,
    pub(super) ops: &'a mut Vec<RecoveryOp>,
    pub(super) data: &'a [u8],
    pub(super) contents: &'a JournalContents,
    pub(super) reads: Vec<JournalRead>,
}

impl<'a> JournalOps<'a> {
    pub(super) fn new(
        geometry: FlashGeometry,
        ops: &'a mut Vec<RecoveryOp>,
        contents: &'a JournalContents,
    ) -> JournalOps<'a> {
        JournalOps { geometry, ops, data: &[], contents, reads: Vec::new() }
    }
}

impl JournalFlash for JournalOps<'_> {
    fn program(&mut self, _now: Nanos, op: u32, chunk: u32, sector: u32, bytes: &[u8]) {
        let (count, bytes) = (self.geometry.ws_opt, bytes.to_vec());
        self.ops.push(RecoveryOp::pad(
            RecoveryOpPurpose::Journal { op, first: 0 },
            chunk,
            sector,
            count,
            bytes,
        ));
    }

    fn erase(&mut self, _now: Nanos, _op: u32, _chunk: u32) {
        // A recovery erases nothing: the journal does, once it goes on.
    }
}

impl JournalMedia for JournalOps<'_> {
    fn read(&mut self, _now: Nanos, op: u32, chunk: u32, sector: u32, sectors: u32) {
        let psn = self.geometry.first_sector_of(chunk) + sector;
        let known: Option<Vec<&[u8]>> =
            (psn..psn + sectors).map(|psn| self.contents.get(&psn).map(|b| &**b)).collect();
        match known {
            Some(known) => self.reads.push((op, known.concat())),
            None => {
                let first = psn;
                self.ops.push(RecoveryOp::read(
                    RecoveryOpPurpose::Journal { op, first },
                    psn,
                    sectors,
                    true,
                ));
            }
        }
    }

    fn read_data(&mut self, _op: u32, out: &mut [u8]) {
        let n = out.len().min(self.data.len());
        out[..n].copy_from_slice(&self.data[..n]);
    }
}

impl Recovery {
    /// Reads the journal as far as that goes now.
    pub(super) fn journal_ops(&mut self, jobs: &mut Vec<RecoveryOp>) {
        let Phase::Journal(journal) = &mut self.phase else { return };
        let ended = loop {
            let mut way = JournalOps::new(self.geometry, jobs, &self.journal_contents);
            journal.kick(Nanos::ZERO, &mut way);
            let reads = std::mem::take(&mut way.reads);
            if reads.is_empty() {
                break journal.finish();
            }
            for (op, data) in reads {
                let way = &mut JournalOps {
                    data: &data,
                    ..JournalOps::new(self.geometry, jobs, &self.journal_contents)
                };
                journal.read_done(op, 0, way);
            }
        };
        match ended {
            Some(Ok(recovered)) if self.journal_after_probe.is_some() => {
                self.on_journal_probed(recovered)
            }
            Some(Ok(recovered)) => self.on_journal_recovered(recovered),
            Some(Err(e)) => self.error = Some(RecoveryError::Journal(e)),
            None if jobs.is_empty() => self.error = Some(RecoveryError::Unfinished),
            None => {}
        }
    }

    /// A read of the journal has ended.
    pub(super) fn journal_read(&mut self, op: u32, first: u32, failed: u64, data: &[u8]) {
        let Phase::Journal(journal) = &mut self.phase else { return };
        let sectors = data.chunks_exact(self.geometry.sector_bytes.max(1) as usize);
        self.stats.data_sectors += sectors.len() as u64;
        self.stats.journal_sectors += sectors.len() as u64;
        for (i, sector) in sectors.enumerate().filter(|(i, _)| failed >> i & 1 == 0) {
            self.journal_contents.insert(first + i as u32, sector.into());
        }
        let mut none = Vec::new();
        let way = &mut JournalOps {
            data,
            ..JournalOps::new(self.geometry, &mut none, &self.journal_contents)
        };
        journal.read_done(op, failed, way);
    }

    /// The journal has been looked at, without padding: if it is not refused, it is read.
    pub(super) fn on_journal_probed(&mut self, found: Recovered) {
        let Some(journal) = self.journal_after_probe.take() else { return };
        if let Some(Err(e)) = found.snapshot.as_ref().map(|bytes| self.import_snapshot(bytes)) {
            self.error = Some(e);
        }
        self.phase = Phase::Journal(journal);
    }

    /// The journal has been read.
    pub(super) fn on_journal_recovered(&mut self, recovered: Recovered) {
        self.journal = Some(recovered.journal);
        self.journal_contents = JournalContents::new();
        let usable = match &recovered.snapshot {
            Some(bytes) => self.import_snapshot(bytes),
            None => Ok(None),
        };
        match usable {
            Ok(snapshot) => self.snapshot = snapshot,
            Err(e) => {
                self.error = Some(e);
                return;
            }
        }
        self.full_scan = self.snapshot.is_none() || recovered.truncated;
        if self.device_l2p.is_some() {
            return self.begin_with_device_l2p(&recovered.records);
        }
        if !self.full_scan {
            let opened = recovered.records.iter().map(|r| LineOpened::decode(r, &self.geometry));
            match opened.collect::<Option<Vec<LineOpened>>>() {
                Some(opened) => self.lines = self.merge_opened_lines(opened),
                None => self.full_scan = true,
            }
        }
        self.stats.from_checkpoint = !self.full_scan;
        if self.full_scan {
            return self.start_full_scan();
        }
        self.phase = Phase::Pad;
        self.cursor = (0, 0);
        self.queue_line_scans();
    }

    pub(super) fn import_snapshot(
        &mut self,
        bytes: &[u8],
    ) -> Result<Option<Snapshot>, RecoveryError> {
        let Some(counted) = Snapshot::usable_chunks(bytes) else { return Ok(None) };
        let layout = CapacityPlan::new(
            &self.geometry,
            &self.config,
            owned_chunks(&self.observations.chunk_reports),
            counted,
        );
        let layout = layout.map_err(NewFtlError::from)?;
        match Snapshot::decode(bytes, &self.geometry, &layout) {
            Ok(snapshot) => {
                (self.usable_chunks, self.plan) = (counted, layout);
                self.l2p_entries = l2p_table(&layout);
                Ok(Some(snapshot))
            }
            Err(SnapshotError::Malformed) => Ok(None),
            Err(SnapshotError::ConfigMismatch(changed)) => {
                Err(RecoveryError::ConfigMismatch(changed))
            }
        }
    }
}

/// Returns the part of a journal chunk that can be read without padding.
pub(super) fn without_padding(
    shape: &FlashGeometry,
    found: JournalChunkReport,
) -> JournalChunkReport {
    match found {
        JournalChunkReport::Written(n) if n < shape.sectors_per_chunk && shape.mw_cunits > 0 => {
            JournalChunkReport::Closed(n.saturating_sub(shape.pair_units() * shape.ws_opt))
        }
        found => found,
    }
}

pub(super) fn journal_chunk_report(
    shape: &FlashGeometry,
    found: ChunkReport,
) -> JournalChunkReport {
    match found {
        ChunkReport::Free => JournalChunkReport::Free,
        ChunkReport::Open(n) if n.is_multiple_of(shape.ws_opt) => JournalChunkReport::Written(n),
        ChunkReport::Closed(n) if n == shape.sectors_per_chunk => JournalChunkReport::Written(n),
        // Nothing that this layer writes ends inside a write unit.
        ChunkReport::Open(n) | ChunkReport::Closed(n) => {
            JournalChunkReport::Closed(n - n % shape.ws_opt)
        }
        ChunkReport::ProgramFailed(n) => JournalChunkReport::Failed(n - n % shape.ws_opt),
        ChunkReport::Bad | ChunkReport::NotOwned => JournalChunkReport::Bad,
    }
}
