//! [`DeviceL2pImport`]: recovery when the drive keeps the map. The map is taken from the drive and
//! checked against the chunks [Thesis15 ch. 6 §4.3].
//!
//! Recovery reads the journal, and the out-of-band bytes of sectors that may be lost. If the
//! journal is damaged, it reads the out-of-band bytes of all sectors to find the lost ones, and
//! sequence numbers continue far behind the largest. It also does so if the map is empty: with data
//! of the FTL on the media, the map was wiped.

use std::collections::BTreeSet;

use collections::BitSet;
use nvme::PhysSector;

use super::lines::RecoveredLines;
use super::op::RecoveryOpPurpose;
use super::recovered_map::RecoveredMap;
use super::{ChunkReport, OPS_PER_BATCH_MAX, RecoveryError, RecoveryOp, ScanObservations};
use crate::Oob;
use crate::durability::device_l2p::{DeviceL2p, SEQ_GAP_AFTER_DAMAGE};
use crate::durability::snapshot::Snapshot;
use crate::env::Env;
use crate::ids::{Lba, ToIndex, WriteSeq};

/// An entry of the drive's own map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceL2pEntry {
    /// The logical sector.
    pub lba: Lba,
    /// The flat physical sector that has its latest version.
    pub phys: PhysSector,
}

/// Entries of the drive's own map.
#[derive(Debug, Default)]
pub(super) struct DeviceL2pImport {
    entries: Vec<DeviceL2pEntry>,
    /// Sectors that may be lost, in the order in which they are read.
    maybe_lost: Vec<Lba>,
    /// The largest sequence number found.
    max_seq: WriteSeq,
    /// Whether the map has no entry, not even of a trim.
    blank: bool,
    /// Whether the journal does not say which sequence numbers are reserved.
    seqs_unknown: bool,
}

impl DeviceL2pImport {
    /// Wraps entries that have not been checked, of a map whose largest sequence number is
    /// `newest`.
    pub(super) fn new(entries: Vec<DeviceL2pEntry>, newest: WriteSeq) -> DeviceL2pImport {
        DeviceL2pImport {
            blank: entries.is_empty() && newest == WriteSeq(0),
            max_seq: newest,
            entries,
            ..DeviceL2pImport::default()
        }
    }

    /// Takes the sectors that may be lost from the journal that was read. Returns whether everything
    /// is to be scanned, which a damaged journal (`is_damaged`) also requires.
    pub(super) fn begin(
        &mut self,
        env: &Env,
        snapshot: Option<&Snapshot>,
        records: &[Vec<u8>],
        is_damaged: bool,
    ) -> bool {
        let known = |s| DeviceL2p::decode_maybe_lost(s, records, env.plan.logical);
        let suspects: Option<BTreeSet<Lba>> = snapshot.and_then(known);
        self.seqs_unknown = is_damaged || suspects.is_none();
        self.maybe_lost = suspects.into_iter().flatten().collect();
        // An empty map belongs to a target that has written nothing, or was wiped; the written
        // sectors show which.
        self.seqs_unknown || self.blank
    }

    /// Adds the reads of the sectors that may be lost.
    pub(super) fn read_ops(
        &mut self,
        env: &Env,
        observations: &ScanObservations,
        map: &RecoveredMap,
        ops: &mut Vec<RecoveryOp>,
    ) {
        while ops.len() < OPS_PER_BATCH_MAX {
            let Some(lba) = self.maybe_lost.pop() else { break };
            let bad = |phys| {
                let chunk = env.geometry.chunk_of(phys);
                observations.chunk_reports[chunk.index()] == ChunkReport::Bad
            };
            if let Some(phys) = map.get(lba).filter(|phys| !bad(*phys)) {
                let purpose = RecoveryOpPurpose::Oob { phys, count: 1 };
                ops.push(RecoveryOp::read(purpose, phys, 1, false));
            }
        }
    }

    /// Checks the map's entries: each must name a written sector that no other names. Bad chunks
    /// that they name become lines.
    ///
    /// # Errors
    /// [`RecoveryError::InvalidDeviceL2p`], [`RecoveryError::OtherLayout`].
    pub(super) fn import(
        &mut self,
        env: &Env,
        observations: &ScanObservations,
        lines: &mut RecoveredLines,
        map: &mut RecoveredMap,
    ) -> Result<(), RecoveryError> {
        let geometry = &env.geometry;
        let mut offline = BTreeSet::new();
        let mut named = BitSet::new(geometry.total_sectors().index());
        for DeviceL2pEntry { lba, phys } in std::mem::take(&mut self.entries) {
            let cannot = |what| Err(RecoveryError::InvalidDeviceL2p { lba, phys, what });
            if u64::from(phys.get()) >= geometry.total_sectors() {
                return cannot("there is no such sector");
            }
            if lba >= env.plan.host_end() {
                let sectors = env.plan.logical;
                return Err(RecoveryError::OtherLayout { phys, lba, sectors });
            }
            let chunk = geometry.chunk_of(phys);
            if lines.is_journal_chunk(chunk) {
                return cannot("that is the journal's");
            }
            let report = observations.chunk_reports[chunk.index()];
            match report {
                ChunkReport::NotOwned => return cannot("that is somebody else's"),
                // Reads of it fail, instead of returning zeros.
                ChunkReport::Bad => {}
                found if phys - geometry.first_sector_of(chunk) >= found.written_sectors() => {
                    return cannot("that was never written");
                }
                _ => {}
            }
            if !named.insert(phys.index()) {
                return cannot("another logical sector is there, too");
            }
            map.set(lba, phys);
            if report == ChunkReport::Bad {
                offline.insert(chunk);
            }
        }
        offline.into_iter().for_each(|chunk| lines.push_closed_chunk(chunk));
        Ok(())
    }

    /// Imports the out-of-band bytes of a readable sector that an FTL wrote.
    ///
    /// # Errors
    /// [`RecoveryError::DeviceL2pLost`].
    pub(super) fn import_oob(
        &mut self,
        env: &Env,
        phys: PhysSector,
        oob: Oob,
        map: &mut RecoveredMap,
    ) -> Result<(), RecoveryError> {
        self.max_seq = self.max_seq.max(oob.sequence);
        if let Some(lba) = oob.lba.filter(|lba| oob.poison && *lba < env.plan.host_end())
            && map.get(lba) == Some(phys)
        {
            map.add_poison(lba);
        }
        match oob.lba {
            Some(lba) if self.blank => Err(RecoveryError::DeviceL2pLost { lba, phys }),
            _ => Ok(()),
        }
    }

    /// Returns the first unused sequence number; the snapshot's base is `reserved`.
    pub(super) fn first_free_seq(&self, reserved: Option<WriteSeq>) -> WriteSeq {
        let reserved = reserved.unwrap_or(WriteSeq(1));
        if self.seqs_unknown {
            let newest = self.max_seq.max(reserved);
            return WriteSeq(newest.get().saturating_add(SEQ_GAP_AFTER_DAMAGE));
        }
        reserved
    }
}
