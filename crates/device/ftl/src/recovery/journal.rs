//! [`JournalReader`]: reads the journal first: without padding it, to identify its owner, and then the rest,
//! which only padding makes readable.

use std::collections::BTreeMap;

use nvme::{ChunkId, PhysSector, Status};
use time::Nanos;

use super::op::RecoveryOpPurpose;
use super::{ChunkReport, RecoveryError, RecoveryOp, RecoveryStats};
use crate::FlashGeometry;
use crate::durability::journal::{
    FoundJournalChunk, JournalChunkReport, JournalConfig, JournalError, JournalFlash, JournalMedia,
    JournalRecovery, Recovered,
};
use crate::ids::ToIndex;

/// Sectors of the journal that have been read, by flat number. No sector is read twice: not a header
/// before its frame, nor after padding what was read before it.
type JournalContents = BTreeMap<PhysSector, Box<[u8]>>;

/// A read of the journal with a known result: its operation, and the contents.
type JournalRead = (u32, Vec<u8>);

/// The journal's access to the flash: recovery operations, except for known contents.
struct JournalOps<'a> {
    geometry: FlashGeometry,
    ops: &'a mut Vec<RecoveryOp>,
    data: &'a [u8],
    contents: &'a JournalContents,
    reads: Vec<JournalRead>,
}

impl<'a> JournalOps<'a> {
    fn new(
        geometry: FlashGeometry,
        ops: &'a mut Vec<RecoveryOp>,
        contents: &'a JournalContents,
    ) -> JournalOps<'a> {
        JournalOps { geometry, ops, data: &[], contents, reads: Vec::new() }
    }
}

impl JournalFlash for JournalOps<'_> {
    fn program(&mut self, _now: Nanos, op: u32, chunk: ChunkId, sector: u32, bytes: &[u8]) {
        let (count, bytes) = (self.geometry.ws_opt, bytes.to_vec());
        self.ops.push(RecoveryOp::pad(
            RecoveryOpPurpose::Journal { op, first: 0 },
            chunk,
            sector,
            count,
            bytes,
        ));
    }

    fn erase(&mut self, _now: Nanos, _op: u32, _chunk: ChunkId) {
        // A recovery erases nothing: the journal does so when it continues.
    }
}

impl JournalMedia for JournalOps<'_> {
    fn read(&mut self, _now: Nanos, op: u32, chunk: ChunkId, sector: u32, sectors: u32) {
        let phys = self.geometry.first_sector_of(chunk) + sector;
        let known: Option<Vec<&[u8]>> =
            phys.run(sectors).map(|phys| self.contents.get(&phys).map(|b| &**b)).collect();
        match known {
            Some(known) => self.reads.push((op, known.concat())),
            None => {
                let first = phys;
                self.ops.push(RecoveryOp::read(
                    RecoveryOpPurpose::Journal { op, first: first.get() },
                    phys,
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

/// A step of reading the journal.
#[derive(Debug)]
pub(super) enum JournalStep {
    /// The added operations are to be executed.
    Ops,
    /// The probe is complete: everything that is readable without padding has been read. Unless the data is
    /// refused, the recovery goes on.
    Probed(Recovered),
    /// The journal has been read.
    Complete(Recovered),
}

/// Reads the journal: first without padding it, if padding makes more of it readable.
///
/// Invariants: nothing is read twice; nothing is padded before what can be read without that has been read.
#[derive(Debug)]
pub(super) struct JournalReader {
    recovery: JournalRecovery,
    /// The recovery that pads, while the one that does not is in progress.
    after_probe: Option<Box<JournalRecovery>>,
    contents: JournalContents,
}

impl JournalReader {
    /// Creates a reader of the journal on these chunks.
    ///
    /// # Errors
    /// As [`JournalRecovery::new`].
    pub(super) fn new(
        geometry: &FlashGeometry,
        config: JournalConfig,
        chunks: &[FoundJournalChunk],
    ) -> Result<JournalReader, JournalError> {
        // The probe excludes units that are readable only after padding, so it pads nothing.
        let as_is: Vec<FoundJournalChunk> = chunks
            .iter()
            .map(|c| FoundJournalChunk { report: without_padding(geometry, c.report), ..*c })
            .collect();
        let mut recovery = JournalRecovery::new(geometry, config, chunks)?;
        let mut after_probe = None;
        if as_is != chunks {
            let probe = JournalRecovery::new(geometry, config, &as_is)?;
            after_probe = Some(Box::new(std::mem::replace(&mut recovery, probe)));
        }
        Ok(JournalReader { recovery, after_probe, contents: JournalContents::new() })
    }

    /// Continues the read of the journal, and adds the operations to be executed.
    ///
    /// # Errors
    /// [`RecoveryError::Journal`], [`RecoveryError::Unfinished`].
    pub(super) fn step(
        &mut self,
        geometry: FlashGeometry,
        ops: &mut Vec<RecoveryOp>,
    ) -> Result<JournalStep, RecoveryError> {
        let ended = loop {
            let mut flash = JournalOps::new(geometry, ops, &self.contents);
            self.recovery.kick(Nanos::ZERO, &mut flash);
            let reads = std::mem::take(&mut flash.reads);
            if reads.is_empty() {
                break self.recovery.finish();
            }
            for (op, data) in reads {
                let flash = JournalOps::new(geometry, ops, &self.contents);
                self.recovery.read_done(op, 0, &mut JournalOps { data: &data, ..flash });
            }
        };
        match ended {
            Some(Ok(recovered)) if self.after_probe.is_some() => Ok(JournalStep::Probed(recovered)),
            Some(Ok(recovered)) => Ok(JournalStep::Complete(recovered)),
            Some(Err(e)) => Err(RecoveryError::Journal(e)),
            None if ops.is_empty() => Err(RecoveryError::Unfinished),
            None => Ok(JournalStep::Ops),
        }
    }

    /// Continues after a probe that was not refused, with padding.
    pub(super) fn end_probe(&mut self) {
        if let Some(recovery) = self.after_probe.take() {
            self.recovery = *recovery;
        }
    }

    /// Reports the end of a program of padding.
    pub(super) fn program_done(&mut self, op: u32, status: Status) {
        self.recovery.program_done(op, status);
    }

    /// Reports the end of a read.
    pub(super) fn read_done(
        &mut self,
        geometry: FlashGeometry,
        read: JournalReadDone<'_>,
        stats: &mut RecoveryStats,
    ) {
        let JournalReadDone { op, first, failed, data } = read;
        let sectors = data.chunks_exact(geometry.sector_bytes.max(1).index());
        stats.data_sectors += sectors.len() as u64;
        stats.journal_sectors += sectors.len() as u64;
        for (i, (phys, sector)) in (first..).zip(sectors).enumerate() {
            if failed >> i & 1 == 0 {
                self.contents.insert(PhysSector(phys), sector.into());
            }
        }
        let mut none = Vec::new();
        let flash = JournalOps::new(geometry, &mut none, &self.contents);
        self.recovery.read_done(op, failed, &mut JournalOps { data, ..flash });
    }
}

/// A completed read of the journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct JournalReadDone<'a> {
    pub(super) op: u32,
    /// The first physical sector.
    pub(super) first: u32,
    /// Bit `i` stands for the `i`-th sector, which could not be read.
    pub(super) failed: u64,
    pub(super) data: &'a [u8],
}

/// Returns the part of a journal chunk that can be read without padding.
fn without_padding(shape: &FlashGeometry, found: JournalChunkReport) -> JournalChunkReport {
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
        // The FTL's writes never end inside a write unit.
        ChunkReport::Open(n) | ChunkReport::Closed(n) => {
            JournalChunkReport::Closed(n - n % shape.ws_opt)
        }
        ChunkReport::ProgramFailed(n) => JournalChunkReport::Failed(n - n % shape.ws_opt),
        ChunkReport::Bad | ChunkReport::NotOwned => JournalChunkReport::Bad,
    }
}
