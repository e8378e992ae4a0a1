//! [`Given`]: recovery when the drive keeps the map: it is taken as it is, and checked against the
//! chunks (thesis chapter 6, section 4.3: "on device bring up, the mapping table is loaded").
//!
//! Read are the journal and the out-of-band bytes of sectors that may be lost. If the journal is
//! damaged those of everything are, to find what is lost; numbers then go on far behind the largest.
//! They are, too, if the map knows of nothing: with data of the layer on the media it was wiped.

use std::collections::BTreeSet;

use super::op::RecoveryOpPurpose;
use super::{ChunkReport, OPS_PER_BATCH_MAX, Phase, Recovery, RecoveryError, RecoveryOp};
use crate::Oob;
use crate::durability::device_l2p::{DeviceL2p, SEQ_GAP_AFTER_DAMAGE};
use crate::durability::snapshot::LineEntry;

/// Entries of the drive's own map.
#[derive(Debug, Default)]
pub(super) struct DeviceL2pImport {
    /// Logical sectors, and where they are.
    entries: Vec<(u32, u32)>,
    /// Sectors that may be lost, in the order in which they are looked at.
    maybe_lost: Vec<u32>,
    /// The largest number that was seen.
    max_seq: u64,
    /// The map knows of nothing, not even of a trim.
    blank: bool,
    /// The journal does not tell which numbers were given away.
    seqs_unknown: bool,
}

impl DeviceL2pImport {
    /// Wraps entries that have not been checked, of a map whose largest sequence number is
    /// `newest`.
    pub(super) fn new(entries: Vec<(u32, u32)>, newest: u64) -> DeviceL2pImport {
        DeviceL2pImport {
            blank: entries.is_empty() && newest == 0,
            max_seq: newest,
            entries,
            ..DeviceL2pImport::default()
        }
    }
}

impl Recovery {
    /// The journal has been read.
    pub(super) fn begin_with_device_l2p(&mut self, records: &[Vec<u8>]) {
        let known = |s| DeviceL2p::decode_maybe_lost(s, records, self.plan.logical);
        let suspects: Option<BTreeSet<u32>> = self.snapshot.as_ref().and_then(known);
        self.full_scan |= suspects.is_none();
        if let Some(given) = &mut self.device_l2p {
            given.seqs_unknown = self.full_scan;
            // A map that knows of nothing is that of a target that has written nothing, or was wiped:
            // what is written tells.
            self.full_scan |= given.blank;
            given.maybe_lost = suspects.into_iter().flatten().collect();
        }
        self.stats.from_checkpoint = !self.full_scan;
        self.lines = self.lines_of_chunks();
        (self.readonly_probe, self.cursor) = (self.full_scan, (0, 0));
        self.phase = if self.full_scan { Phase::LineFooters } else { Phase::Pad };
        self.queue_line_scans();
        if !self.full_scan {
            // They are padded, not read.
            self.stats.lines_read = 0;
        }
        if let Err(e) = self.check_device_l2p() {
            self.error = Some(e);
        }
    }

    /// The chunks that have something in them, as lines as wide as those that will be written: to
    /// collect a narrow line costs as much padding as to collect a wide one, and gives less back.
    fn lines_of_chunks(&self) -> Vec<LineEntry> {
        let mut chunks: Vec<u32> =
            self.single_chunk_lines().into_iter().flat_map(|l| l.chunks).collect();
        // Those that may go on being written become lines of their own.
        let is_open =
            |c: u32| matches!(self.observations.chunk_reports[c as usize], ChunkReport::Open(_));
        let place = |c: u32| (is_open(c), c % self.geometry.chunks_per_pu, self.geometry.pu_of(c));
        chunks.sort_unstable_by_key(|c| place(*c));
        let line = |chunks: &[u32]| LineEntry {
            stream: 0,
            open: true,
            has_footer: false,
            max_seq: u64::MAX,
            chunks: chunks.to_vec(),
        };
        chunks.chunks(self.plan.active_pus as usize).map(line).collect()
    }

    /// Looks at what may be lost: at what can be read without padding, and, when all chunks have been
    /// padded, at the rest.
    pub(super) fn device_l2p_ops(&mut self, jobs: &mut Vec<RecoveryOp>) {
        if self.full_scan {
            self.oob_ops(jobs);
        }
        let Some(given) = &mut self.device_l2p else { return };
        while jobs.len() < OPS_PER_BATCH_MAX && !self.full_scan {
            let Some(lba) = given.maybe_lost.pop() else { break };
            if let Some(psn) = self.l2p_entries[lba as usize].checked_sub(1)
                && !matches!(
                    self.observations.chunk_reports[self.geometry.chunk_of(psn) as usize],
                    ChunkReport::Bad
                )
            {
                jobs.push(RecoveryOp::read(
                    RecoveryOpPurpose::Oob { psn, count: 1 },
                    psn,
                    1,
                    false,
                ));
            }
        }
        if jobs.is_empty() {
            if self.full_scan && self.refuse_foreign() || self.end_probe() {
                return;
            }
            self.phase = Phase::Done;
        }
    }

    /// Checks the map's entries: each must name a sector of its own that has been written.
    fn check_device_l2p(&mut self) -> Result<(), RecoveryError> {
        let Some(given) = &mut self.device_l2p else { return Ok(()) };
        let mut offline = BTreeSet::new();
        let mut named = vec![0u64; (self.geometry.total_sectors() as usize).div_ceil(64)];
        for (lba, psn) in std::mem::take(&mut given.entries) {
            let cannot = |what| Err(RecoveryError::InvalidDeviceL2p { lba, psn, what });
            if u64::from(psn) >= self.geometry.total_sectors() {
                return cannot("there is no such sector");
            }
            if lba >= self.plan.logical {
                let sectors = self.plan.logical;
                return Err(RecoveryError::OtherLayout { psn, lba, sectors });
            }
            let chunk = self.geometry.chunk_of(psn);
            if self.journal_chunks.contains(&chunk) {
                return cannot("that is the journal's");
            }
            match self.observations.chunk_reports[chunk as usize] {
                ChunkReport::NotOwned => return cannot("that is somebody else's"),
                // Reads of it fail, which is better than to find nothing.
                ChunkReport::Bad => {}
                found if psn - self.geometry.first_sector_of(chunk) >= found.written_sectors() => {
                    return cannot("that was never written");
                }
                _ => {}
            }
            let (word, bit) = (&mut named[psn as usize / 64], 1 << (psn % 64));
            if *word & bit != 0 {
                return cannot("another logical sector is there, too");
            }
            *word |= bit;
            self.l2p_entries[lba as usize] = psn + 1;
            if self.observations.chunk_reports[chunk as usize] == ChunkReport::Bad {
                offline.insert(chunk);
            }
        }
        let line = |c| LineEntry {
            stream: 0,
            open: false,
            has_footer: false,
            max_seq: 0,
            chunks: vec![c],
        };
        self.lines.extend(offline.into_iter().map(line));
        Ok(())
    }

    /// The out-of-band bytes of a sector that could be read.
    pub(super) fn import_device_l2p_oob(&mut self, psn: u32, oob: Option<Oob>) {
        let Some(oob) = oob else {
            self.foreign_evidence = (self.foreign_evidence.0 + 1, self.foreign_evidence.1.min(psn));
            return;
        };
        self.has_own_data = true;
        if let Some(given) = &mut self.device_l2p {
            given.max_seq = given.max_seq.max(oob.sequence);
            if let (true, Some(lba)) = (given.blank, oob.lba) {
                self.error = Some(RecoveryError::DeviceL2pLost { lba, psn });
            }
        }
        if let Some(lba) = oob.lba.filter(|lba| oob.poison && *lba < self.plan.logical)
            && self.l2p_entries[lba as usize] == psn + 1
        {
            self.poison.push(lba);
        }
    }

    /// The first number that is free, if the drive keeps the map.
    pub(super) fn first_free_seq(&self) -> Option<u64> {
        let given = self.device_l2p.as_ref()?;
        let reserved = self.snapshot.as_ref().map_or(1, |s| s.base_seq);
        let behind = if given.seqs_unknown {
            given.max_seq.max(reserved).saturating_add(SEQ_GAP_AFTER_DAMAGE)
        } else {
            0
        };
        Some(reserved.max(behind))
    }
}
