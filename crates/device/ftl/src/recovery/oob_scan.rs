//! Padding of open chunks, and the out-of-band bytes of what lines hold.

use nvme::Status;

use super::op::RecoveryOpPurpose;
use super::{
    ChunkReport, LineMetaScan, OPS_PER_BATCH_MAX, Phase, Recovery, RecoveryError, RecoveryOp,
};
use crate::Oob;

impl Recovery {
    /// Pads chunks that were being written.
    pub(super) fn pad_ops(&mut self, jobs: &mut Vec<RecoveryOp>) {
        let shape = self.geometry;
        let (unit, pair) = (shape.ws_opt, shape.mw_cunits.next_multiple_of(shape.ws_opt));
        while self.cursor.0 < self.scan_queue.len() && jobs.len() < OPS_PER_BATCH_MAX {
            let (chunk, written) = self.scan_queue[self.cursor.0];
            self.cursor.0 += 1;
            if !matches!(self.observations.chunk_reports[chunk as usize], ChunkReport::Open(_))
                || written == 0
            {
                continue;
            }
            let target =
                written.next_multiple_of(unit).saturating_add(pair).min(shape.sectors_per_chunk);
            let mut at = written;
            while at < target {
                let count = unit - at % unit;
                let kind = RecoveryOpPurpose::Pad { chunk, end: at + count };
                jobs.push(RecoveryOp::pad(kind, chunk, at, count, Vec::new()));
                at += count;
            }
        }
        if jobs.is_empty() {
            self.cursor = (0, 0);
            if self.full_scan {
                self.phase = Phase::OobScan;
            } else {
                (self.phase, self.line_metas) = (Phase::LineFooters, LineMetaScan::default());
            }
        }
    }

    pub(super) fn on_padded(&mut self, chunk: u32, end: u32, status: Status) {
        let found = &mut self.observations.chunk_reports[chunk as usize];
        let written = found.written_sectors();
        *found = match *found {
            ChunkReport::Open(n) if status.is_success() => ChunkReport::Open(n.max(end)),
            // One before it that is told of behind it.
            ChunkReport::ProgramFailed(n) if status.is_success() => {
                ChunkReport::ProgramFailed(n.max(end))
            }
            ChunkReport::Open(n) => ChunkReport::ProgramFailed(n),
            _ => return,
        };
        // Whatever was there before the chunk was erased is not.
        let first_psn = self.geometry.first_sector_of(chunk);
        for sector in written..found.written_sectors() {
            self.observations.observed_lbas.record(&self.geometry, first_psn + sector, None);
        }
    }

    pub(super) fn oob_phase_ops(&mut self, jobs: &mut Vec<RecoveryOp>) {
        if self.device_l2p.is_some() {
            return self.device_l2p_ops(jobs);
        }
        self.oob_ops(jobs);
        if jobs.is_empty() && !self.refuse_foreign() && !self.end_probe() {
            self.find_pages();
            if self.plan.map_cache.frames == 0 && !self.lost_pages.is_empty() {
                return self.restart_full_scan();
            }
            // Of a map in frames the pages are read when they are needed.
            let pages = if self.plan.map_cache.frames > 0 { Phase::Done } else { Phase::MapPages };
            (self.phase, self.cursor) = (pages, (0, 0));
        }
    }

    /// Reads the out-of-band bytes of all chunks that are to be read, as far as that goes now.
    pub(super) fn oob_ops(&mut self, jobs: &mut Vec<RecoveryOp>) {
        while jobs.len() < OPS_PER_BATCH_MAX {
            let Some(&(chunk, written)) = self.scan_queue.get(self.cursor.0) else { break };
            let looked_at = &mut self.probed_to[chunk as usize];
            let end = match self.observations.chunk_reports[chunk as usize] {
                ChunkReport::Open(_) if self.readonly_probe => {
                    let readable = written.saturating_sub(self.geometry.mw_cunits);
                    readable - readable % self.geometry.ws_opt
                }
                _ => written,
            };
            let at = self.cursor.1.max(*looked_at);
            if at >= end {
                if self.readonly_probe {
                    *looked_at = end;
                }
                self.cursor = (self.cursor.0 + 1, 0);
                continue;
            }
            let (psn, count) = (self.geometry.first_sector_of(chunk) + at, (end - at).min(64));
            jobs.push(RecoveryOp::read(RecoveryOpPurpose::Oob { psn, count }, psn, count, false));
            self.cursor.1 = at + count;
        }
    }

    /// Whether all that could be read is no layer's.
    pub(super) fn refuse_foreign(&mut self) -> bool {
        if let (false, (sectors @ 1.., first)) = (self.has_own_data, self.foreign_evidence) {
            self.error = Some(RecoveryError::Foreign { sectors, first });
        }
        self.error.is_some()
    }

    /// After what can be read without padding comes what cannot. Says whether that is to come.
    pub(super) fn end_probe(&mut self) -> bool {
        if self.readonly_probe {
            (self.readonly_probe, self.phase, self.cursor) = (false, Phase::Pad, (0, 0));
            return true;
        }
        false
    }

    /// A sector: `None` for one that cannot be read, `Some(None)` for one that is not a layer's.
    pub(super) fn import_sector(&mut self, psn: u32, found: Option<Option<Oob>>) {
        let Some(oob) = found else {
            self.observations.unreadable.insert(psn);
            return;
        };
        if self.device_l2p.is_some() {
            return self.import_device_l2p_oob(psn, oob);
        }
        let Some(oob) = oob else {
            self.foreign_evidence = (self.foreign_evidence.0 + 1, self.foreign_evidence.1.min(psn));
            return;
        };
        self.has_own_data = true;
        self.observations.observed_lbas.record(&self.geometry, psn, oob.lba);
        let sectors = self.plan.logical + self.plan.map_pages;
        match oob.lba {
            Some(lba) if lba >= sectors => {
                let error = RecoveryError::OtherLayout { psn, lba, sectors };
                self.error.get_or_insert(error);
            }
            // What is older than the base is in the map's pages, or was overwritten.
            Some(_) if oob.sequence < self.base_seq() => {}
            Some(lba) => self.copies.add(lba, psn, oob),
            None => {}
        }
    }
}
