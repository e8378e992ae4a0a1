//! [`LineMetaScan`]: lines that are known by what they say of themselves (LightNVM paper section 4.2.2: "the
//! last page of all available blocks" first).
//!
//! A line whose chunks are all fully written, and as many as a line has, may have last metadata: a few
//! sectors with data stand for the out-of-band bytes of all of it. What cannot be read, or is not this
//! line's, makes nothing worse: then its out-of-band bytes are read.
//!
//! When there is no snapshot, first metadata says which chunks are a line, and the line opened last
//! has a chunk that several name. A chunk may have been erased and written in another line since, one
//! without metadata: so one sector of each is compared with what the list says of it.

use super::op::RecoveryOpPurpose;
use super::{ChunkReport, OPS_PER_BATCH_MAX, Phase, Recovery, RecoveryOp};
use crate::Oob;
use crate::durability::snapshot::LineEntry;
use crate::space::line_meta::{LineFooter, LineHeader, footer_unit_location, header_bytes};

/// Reads of last metadata that are handed out at a time at most: their contents are kept until a line
/// has all of its.
const FOOTER_READS_MAX: usize = 64;

/// A line whose last metadata is being read or checked.
#[derive(Debug)]
struct FooterCandidate {
    line: usize,
    bytes: Vec<u8>,
    /// Reads that have not been reported.
    remaining: u32,
    valid: bool,
    /// The footer, if it is to be checked.
    footer: Option<LineFooter>,
}

/// Lines' metadata while it is read.
#[derive(Debug, Default)]
pub(super) struct LineMetaScan {
    headers: Vec<LineHeader>,
    /// The chunk or the line to go on with.
    next: usize,
    candidates: Vec<FooterCandidate>,
}

impl Recovery {
    /// Everything is to be read: first what first metadata can be found.
    pub(super) fn start_full_scan(&mut self) {
        self.full_scan = true;
        self.lines = self.single_chunk_lines();
        self.line_metas = LineMetaScan::default();
        self.readonly_probe = true;
        self.phase = Phase::LineHeaders;
    }

    /// Whether a chunk is fully written.
    fn is_full(&self, chunk: u32) -> bool {
        self.observations.chunk_reports[chunk as usize]
            == ChunkReport::Closed(self.geometry.sectors_per_chunk)
    }

    pub(super) fn header_ops(&mut self, jobs: &mut Vec<RecoveryOp>) {
        let size = u64::from(self.geometry.sector_bytes.max(1));
        let count = header_bytes(self.plan.active_pus).div_ceil(size) as u32;
        while jobs.len() < OPS_PER_BATCH_MAX && self.plan.line_metadata_units > 0 {
            let Some(line) = self.lines.get(self.line_metas.next) else { break };
            self.line_metas.next += 1;
            let chunk = line.chunks[0];
            if self.is_full(chunk) {
                let psn = self.geometry.first_sector_of(chunk);
                jobs.push(RecoveryOp::read(
                    RecoveryOpPurpose::LineHeader { chunk },
                    psn,
                    count,
                    true,
                ));
            }
        }
        if jobs.is_empty() {
            self.lines_from_headers();
            self.queue_line_scans();
            (self.phase, self.line_metas) = (Phase::LineFooters, LineMetaScan::default());
        }
    }

    pub(super) fn import_header(&mut self, chunk: u32, bytes: Option<&[u8]>) {
        let (owner, active) = (self.plan.journal.config.owner, self.plan.active_pus);
        let first = bytes.and_then(|b| LineHeader::decode(&self.geometry, owner, active, b));
        self.line_metas.headers.extend(first.filter(|f| f.members.first() == Some(&chunk)));
    }

    /// Makes lines of the chunks that first metadata names, youngest line first; the others stay lines
    /// of one chunk.
    fn lines_from_headers(&mut self) {
        let mut firsts = std::mem::take(&mut self.line_metas.headers);
        firsts.sort_unstable_by_key(|f| (f.identity.open_seq, f.members.first().copied()));
        let mut taken = vec![false; self.geometry.total_chunks() as usize];
        let mut lines = Vec::new();
        for first in firsts.into_iter().rev() {
            let free = |c: &u32| self.is_full(*c) && !self.journal_chunks.contains(c);
            let whole = first.members.iter().all(|c| free(c) && !taken[*c as usize]);
            if !whole {
                continue;
            }
            let mut twice = false;
            for chunk in &first.members {
                twice |= std::mem::replace(&mut taken[*chunk as usize], true);
            }
            if twice {
                first.members.iter().for_each(|c| taken[*c as usize] = false);
                continue;
            }
            let stream = first.identity.stream;
            let chunks = first.members;
            lines.push(LineEntry {
                stream,
                open: true,
                has_footer: false,
                max_seq: u64::MAX,
                chunks,
            });
        }
        lines.reverse();
        self.lines.retain(|l| !taken[l.chunks[0] as usize]);
        self.stats.lines_found = lines.len() as u64;
        self.lines.append(&mut lines);
    }

    /// Reads last metadata, instead of the out-of-band bytes of the lines that have it.
    pub(super) fn footer_ops(&mut self, jobs: &mut Vec<RecoveryOp>) {
        self.check_ops(jobs);
        let units = LineFooter::units(&self.plan);
        let base = self.base_seq();
        while jobs.len() < FOOTER_READS_MAX && units > 0 && self.device_l2p.is_none() {
            let at = self.line_metas.next;
            let Some(line) = self.lines.get_mut(at) else { break };
            self.line_metas.next += 1;
            if !line.open && line.max_seq < base {
                continue;
            }
            line.has_footer = false;
            let chunks = &self.lines[at].chunks;
            let active = self.plan.active_pus;
            if chunks.len() != active as usize || !chunks.iter().all(|c| self.is_full(*c)) {
                continue;
            }
            let candidate = self.line_metas.candidates.len() as u32;
            for piece in 0..units {
                let (member, sector) = footer_unit_location(&self.geometry, active, units, piece);
                let psn = self.geometry.first_sector_of(chunks[member as usize]) + sector;
                let kind = RecoveryOpPurpose::LineFooter { candidate, unit_index: piece };
                jobs.push(RecoveryOp::read(kind, psn, self.geometry.ws_opt, true));
            }
            let unit_bytes = self.geometry.ws_opt as usize * self.geometry.sector_bytes as usize;
            let bytes = vec![0; units as usize * unit_bytes];
            let candidate =
                FooterCandidate { line: at, bytes, remaining: units, valid: true, footer: None };
            self.line_metas.candidates.push(candidate);
        }
        if jobs.is_empty() {
            let known = |l: &LineEntry| l.has_footer && (l.open || l.max_seq >= base);
            let read: Vec<u32> =
                self.lines.iter().filter(|l| known(l)).flat_map(|l| l.chunks.clone()).collect();
            let mut is_known = vec![false; self.geometry.total_chunks() as usize];
            read.iter().for_each(|c| is_known[*c as usize] = true);
            self.scan_queue.retain(|(chunk, _)| !is_known[*chunk as usize]);
            let by_metadata = self.lines.iter().filter(|l| known(l)).count() as u64;
            self.stats.lines_by_metadata = by_metadata;
            self.stats.lines_by_oob = self.stats.lines_read.saturating_sub(by_metadata);
            (self.phase, self.cursor) = (Phase::OobScan, (0, 0));
        }
    }

    pub(super) fn import_footer_unit(
        &mut self,
        candidate: u32,
        piece: u32,
        failed: bool,
        data: &[u8],
    ) {
        let Some(c) = self.line_metas.candidates.get_mut(candidate as usize) else { return };
        let unit_bytes = self.geometry.ws_opt as usize * self.geometry.sector_bytes as usize;
        let at = piece as usize * unit_bytes;
        match c.bytes.get_mut(at..at + unit_bytes) {
            Some(to) if !failed && data.len() >= unit_bytes => {
                to.copy_from_slice(&data[..unit_bytes]);
            }
            _ => c.valid = false,
        }
        c.remaining = c.remaining.saturating_sub(1);
        if c.remaining > 0 {
            return;
        }
        let (line, bytes) = (c.line, std::mem::take(&mut c.bytes));
        let chunks = &self.lines[line].chunks;
        let last =
            LineFooter::decode(&self.geometry, self.plan.journal.config.owner, chunks, &bytes);
        let last = last.filter(|_| c.valid);
        if self.full_scan {
            c.footer = last;
        } else if let Some(last) = last {
            self.import_footer(line, &last);
        }
    }

    /// Has the lines checked whose chunks nothing else vouches for.
    fn check_ops(&mut self, jobs: &mut Vec<RecoveryOp>) {
        let mut candidates = std::mem::take(&mut self.line_metas.candidates);
        // Of each chunk the first write unit that is noted.
        let noted = |c: &FooterCandidate| -> Option<Vec<u32>> {
            let list = &c.footer.as_ref()?.p2l;
            let of = |member| {
                let mut sectors =
                    (0..self.geometry.sectors_per_chunk).step_by(self.geometry.ws_opt as usize);
                sectors.find(|s| list.oob(member, *s).is_some())
            };
            (0..self.plan.active_pus).map(of).collect()
        };
        candidates.retain(|c| noted(c).is_some());
        for (candidate, c) in (0..).zip(&mut candidates) {
            let members = noted(c).into_iter().flatten().zip(&self.lines[c.line].chunks);
            for (member, (sector, &chunk)) in (0..).zip(members) {
                let psn = self.geometry.first_sector_of(chunk) + sector;
                jobs.push(RecoveryOp::read(
                    RecoveryOpPurpose::Check { candidate, member, psn },
                    psn,
                    1,
                    false,
                ));
                c.remaining += 1;
            }
        }
        self.line_metas.candidates = candidates;
    }

    pub(super) fn check_footer(&mut self, candidate: u32, member: u32, psn: u32, oob: Option<Oob>) {
        let Some(c) = self.line_metas.candidates.get_mut(candidate as usize) else { return };
        let says = c
            .footer
            .as_ref()
            .and_then(|l| l.p2l.oob(member, psn % self.geometry.sectors_per_chunk));
        c.valid &= oob.is_some() && says == oob;
        c.remaining = c.remaining.saturating_sub(1);
        if c.remaining == 0 {
            let (sound, line, last) = (c.valid, c.line, c.footer.take());
            if let Some(last) = last.filter(|_| sound) {
                self.import_footer(line, &last);
            }
        }
    }

    /// Takes what a line says as if its out-of-band bytes had been read.
    fn import_footer(&mut self, line: usize, last: &LineFooter) {
        let chunks = self.lines[line].chunks.clone();
        for (member, chunk) in (0..).zip(chunks) {
            let first_psn = self.geometry.first_sector_of(chunk);
            for sector in 0..self.geometry.sectors_per_chunk {
                if let Some(oob) = last.p2l.oob(member, sector) {
                    self.import_sector(first_psn + sector, Some(Some(oob)));
                }
            }
        }
        self.lines[line].has_footer = true;
    }
}
