//! Padding of open chunks, and the out-of-band bytes of what lines hold.

use nvme::Status;

use super::job::JobKind;
use super::{BATCH, Found, Job, Metas, Phase, Recovery, RecoveryError};
use crate::Oob;

impl Recovery {
    /// Pads chunks that were being written.
    pub(super) fn pad_jobs(&mut self, jobs: &mut Vec<Job>) {
        let shape = self.shape;
        let (unit, pair) = (shape.unit, shape.pair.next_multiple_of(shape.unit));
        while self.cursor.0 < self.to_read.len() && jobs.len() < BATCH {
            let (chunk, written) = self.to_read[self.cursor.0];
            self.cursor.0 += 1;
            if !matches!(self.seen.found[chunk as usize], Found::Open(_)) || written == 0 {
                continue;
            }
            let target = written.next_multiple_of(unit).saturating_add(pair).min(shape.sectors);
            let mut at = written;
            while at < target {
                let count = unit - at % unit;
                let kind = JobKind::Pad { chunk, end: at + count };
                jobs.push(Job::pad(kind, chunk, at, count, Vec::new()));
                at += count;
            }
        }
        if jobs.is_empty() {
            self.cursor = (0, 0);
            if self.all {
                self.phase = Phase::Copies;
            } else {
                (self.phase, self.metas) = (Phase::Lasts, Metas::default());
            }
        }
    }

    pub(super) fn padded(&mut self, chunk: u32, end: u32, status: Status) {
        let found = &mut self.seen.found[chunk as usize];
        let written = found.written();
        *found = match *found {
            Found::Open(n) if status.is_success() => Found::Open(n.max(end)),
            // One before it that is told of behind it.
            Found::Failing(n) if status.is_success() => Found::Failing(n.max(end)),
            Found::Open(n) => Found::Failing(n),
            _ => return,
        };
        // Whatever was there before the chunk was erased is not.
        let first_psn = self.shape.first_psn(chunk);
        for sector in written..found.written() {
            self.seen.names.note(&self.shape, first_psn + sector, None);
        }
    }

    pub(super) fn copy_jobs(&mut self, jobs: &mut Vec<Job>) {
        if self.given.is_some() {
            return self.map_jobs(jobs);
        }
        self.oob_jobs(jobs);
        if jobs.is_empty() && !self.refuse_foreign() && !self.end_look() {
            self.find_pages();
            if self.layout.map_frames == 0 && !self.lost_pages.is_empty() {
                return self.start_over();
            }
            // Of a map in frames the pages are read when they are needed.
            let pages = if self.layout.map_frames > 0 { Phase::Done } else { Phase::Pages };
            (self.phase, self.cursor) = (pages, (0, 0));
        }
    }

    /// Reads the out-of-band bytes of all chunks that are to be read, as far as that goes now.
    pub(super) fn oob_jobs(&mut self, jobs: &mut Vec<Job>) {
        while jobs.len() < BATCH {
            let Some(&(chunk, written)) = self.to_read.get(self.cursor.0) else { break };
            let looked_at = &mut self.looked_at[chunk as usize];
            let end = match self.seen.found[chunk as usize] {
                Found::Open(_) if self.looking => {
                    let readable = written.saturating_sub(self.shape.pair);
                    readable - readable % self.shape.unit
                }
                _ => written,
            };
            let at = self.cursor.1.max(*looked_at);
            if at >= end {
                if self.looking {
                    *looked_at = end;
                }
                self.cursor = (self.cursor.0 + 1, 0);
                continue;
            }
            let (psn, count) = (self.shape.first_psn(chunk) + at, (end - at).min(64));
            jobs.push(Job::read(JobKind::Copies { psn, count }, psn, count, false));
            self.cursor.1 = at + count;
        }
    }

    /// Whether all that could be read is no layer's.
    pub(super) fn refuse_foreign(&mut self) -> bool {
        if let (false, (sectors @ 1.., first)) = (self.ours, self.foreign) {
            self.error = Some(RecoveryError::Foreign { sectors, first });
        }
        self.error.is_some()
    }

    /// After what can be read without padding comes what cannot. Says whether that is to come.
    pub(super) fn end_look(&mut self) -> bool {
        if self.looking {
            (self.looking, self.phase, self.cursor) = (false, Phase::Pad, (0, 0));
            return true;
        }
        false
    }

    /// A sector: `None` for one that cannot be read, `Some(None)` for one that is not a layer's.
    pub(super) fn sector(&mut self, psn: u32, found: Option<Option<Oob>>) {
        let Some(oob) = found else {
            self.seen.unreadable.insert(psn);
            return;
        };
        if self.given.is_some() {
            return self.label(psn, oob);
        }
        let Some(oob) = oob else {
            self.foreign = (self.foreign.0 + 1, self.foreign.1.min(psn));
            return;
        };
        self.ours = true;
        self.seen.names.note(&self.shape, psn, oob.lba);
        let sectors = self.layout.logical + self.layout.meta;
        match oob.lba {
            Some(lba) if lba >= sectors => {
                let error = RecoveryError::OtherLayout { psn, lba, sectors };
                self.error.get_or_insert(error);
            }
            // What is older than the base is in the map's pages, or was overwritten.
            Some(_) if oob.sequence < self.base() => {}
            Some(lba) => self.copies.add(lba, psn, oob),
            None => {}
        }
    }
}
