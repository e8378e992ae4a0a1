//! [`Metas`]: lines that are known by what they say of themselves (LightNVM paper section 4.2.2: "the
//! last page of all available blocks" first).
//!
//! A line whose chunks are all fully written, and as many as a line has, may have last metadata: a few
//! sectors with data stand for the out-of-band bytes of all of it. What cannot be read, or is not this
//! line's, makes nothing worse: then its out-of-band bytes are read.
//!
//! When there is no snapshot, first metadata says which chunks are a line, and the line opened last
//! has a chunk that several name. A chunk may have been erased and written in another line since, one
//! without metadata: so one sector of each is compared with what the list says of it.

use super::job::JobKind;
use super::{BATCH, Found, Job, Phase, Recovery};
use crate::line_meta::{FirstMeta, LastMeta, first_bytes, place_of_last};
use crate::snapshot::LineEntry;
use crate::{Layout, Oob};

/// Reads of last metadata that are handed out at a time at most: their contents are kept until a line
/// has all of its.
const PIECES: usize = 64;

/// A line whose last metadata is being read or checked.
#[derive(Debug)]
struct Candidate {
    line: usize,
    bytes: Vec<u8>,
    /// Reads that have not been reported.
    left: u32,
    sound: bool,
    /// What it says, if it is to be checked.
    last: Option<LastMeta>,
}

/// Lines' metadata while it is read.
#[derive(Debug, Default)]
pub(super) struct Metas {
    firsts: Vec<FirstMeta>,
    /// The chunk or the line to go on with.
    next: usize,
    candidates: Vec<Candidate>,
}

impl Recovery {
    /// Everything is to be read: first what first metadata can be found.
    pub(super) fn read_everything(&mut self) {
        self.all = true;
        self.lines = self.every_chunk();
        self.metas = Metas::default();
        self.looking = true;
        self.phase = Phase::Firsts;
    }

    /// Whether a chunk is fully written.
    fn is_full(&self, chunk: u32) -> bool {
        self.seen.found[chunk as usize] == Found::Closed(self.shape.sectors)
    }

    pub(super) fn first_jobs(&mut self, jobs: &mut Vec<Job>) {
        let size = u64::from(self.shape.sector_bytes.max(1));
        let count = first_bytes(self.layout.active).div_ceil(size) as u32;
        while jobs.len() < BATCH && self.layout.line_meta > 0 {
            let Some(line) = self.lines.get(self.metas.next) else { break };
            self.metas.next += 1;
            let chunk = line.chunks[0];
            if self.is_full(chunk) {
                let psn = self.shape.first_psn(chunk);
                jobs.push(Job::read(JobKind::First { chunk }, psn, count, true));
            }
        }
        if jobs.is_empty() {
            self.lines_by_firsts();
            self.choose_what_to_read();
            (self.phase, self.metas) = (Phase::Lasts, Metas::default());
        }
    }

    pub(super) fn first(&mut self, chunk: u32, bytes: Option<&[u8]>) {
        let Layout { owner, active, .. } = self.layout;
        let first = bytes.and_then(|b| FirstMeta::decode(&self.shape, owner, active, b));
        self.metas.firsts.extend(first.filter(|f| f.members.first() == Some(&chunk)));
    }

    /// Makes lines of the chunks that first metadata names, youngest line first; the others stay lines
    /// of one chunk.
    fn lines_by_firsts(&mut self) {
        let mut firsts = std::mem::take(&mut self.metas.firsts);
        firsts.sort_unstable_by_key(|f| (f.name.opening, f.members.first().copied()));
        let mut taken = vec![false; self.shape.total_chunks() as usize];
        let mut lines = Vec::new();
        for first in firsts.into_iter().rev() {
            let free = |c: &u32| self.is_full(*c) && !self.reserved.contains(c);
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
            let stream = first.name.stream;
            let chunks = first.members;
            lines.push(LineEntry { stream, open: true, last: false, newest: u64::MAX, chunks });
        }
        lines.reverse();
        self.lines.retain(|l| !taken[l.chunks[0] as usize]);
        self.stats.lines_found = lines.len() as u64;
        self.lines.append(&mut lines);
    }

    /// Reads last metadata, instead of the out-of-band bytes of the lines that have it.
    pub(super) fn last_jobs(&mut self, jobs: &mut Vec<Job>) {
        self.check_jobs(jobs);
        let units = LastMeta::units(&self.layout);
        let base = self.base();
        while jobs.len() < PIECES && units > 0 && self.given.is_none() {
            let at = self.metas.next;
            let Some(line) = self.lines.get_mut(at) else { break };
            self.metas.next += 1;
            if !line.open && line.newest < base {
                continue;
            }
            line.last = false;
            let chunks = &self.lines[at].chunks;
            let active = self.layout.active;
            if chunks.len() != active as usize || !chunks.iter().all(|c| self.is_full(*c)) {
                continue;
            }
            let candidate = self.metas.candidates.len() as u32;
            for piece in 0..units {
                let (member, sector) = place_of_last(&self.shape, active, units, piece);
                let psn = self.shape.first_psn(chunks[member as usize]) + sector;
                let kind = JobKind::Last { candidate, piece };
                jobs.push(Job::read(kind, psn, self.shape.unit, true));
            }
            let unit_bytes = self.shape.unit as usize * self.shape.sector_bytes as usize;
            let bytes = vec![0; units as usize * unit_bytes];
            let candidate = Candidate { line: at, bytes, left: units, sound: true, last: None };
            self.metas.candidates.push(candidate);
        }
        if jobs.is_empty() {
            let known = |l: &LineEntry| l.last && (l.open || l.newest >= base);
            let read: Vec<u32> =
                self.lines.iter().filter(|l| known(l)).flat_map(|l| l.chunks.clone()).collect();
            let mut is_known = vec![false; self.shape.total_chunks() as usize];
            read.iter().for_each(|c| is_known[*c as usize] = true);
            self.to_read.retain(|(chunk, _)| !is_known[*chunk as usize]);
            let by_metadata = self.lines.iter().filter(|l| known(l)).count() as u64;
            self.stats.lines_by_metadata = by_metadata;
            self.stats.lines_by_oob = self.stats.lines_read.saturating_sub(by_metadata);
            (self.phase, self.cursor) = (Phase::Copies, (0, 0));
        }
    }

    pub(super) fn last_piece(&mut self, candidate: u32, piece: u32, failed: bool, data: &[u8]) {
        let Some(c) = self.metas.candidates.get_mut(candidate as usize) else { return };
        let unit_bytes = self.shape.unit as usize * self.shape.sector_bytes as usize;
        let at = piece as usize * unit_bytes;
        match c.bytes.get_mut(at..at + unit_bytes) {
            Some(to) if !failed && data.len() >= unit_bytes => {
                to.copy_from_slice(&data[..unit_bytes]);
            }
            _ => c.sound = false,
        }
        c.left = c.left.saturating_sub(1);
        if c.left > 0 {
            return;
        }
        let (line, bytes) = (c.line, std::mem::take(&mut c.bytes));
        let chunks = &self.lines[line].chunks;
        let last = LastMeta::decode(&self.shape, self.layout.owner, chunks, &bytes);
        let last = last.filter(|_| c.sound);
        if self.all {
            c.last = last;
        } else if let Some(last) = last {
            self.learn(line, &last);
        }
    }

    /// Has the lines checked whose chunks nothing else vouches for.
    fn check_jobs(&mut self, jobs: &mut Vec<Job>) {
        let mut candidates = std::mem::take(&mut self.metas.candidates);
        // Of each chunk the first write unit that is noted.
        let noted = |c: &Candidate| -> Option<Vec<u32>> {
            let list = &c.last.as_ref()?.list;
            let of = |member| {
                let mut sectors = (0..self.shape.sectors).step_by(self.shape.unit as usize);
                sectors.find(|s| list.oob(member, *s).is_some())
            };
            (0..self.layout.active).map(of).collect()
        };
        candidates.retain(|c| noted(c).is_some());
        for (candidate, c) in (0..).zip(&mut candidates) {
            let members = noted(c).into_iter().flatten().zip(&self.lines[c.line].chunks);
            for (member, (sector, &chunk)) in (0..).zip(members) {
                let psn = self.shape.first_psn(chunk) + sector;
                jobs.push(Job::read(JobKind::Check { candidate, member, psn }, psn, 1, false));
                c.left += 1;
            }
        }
        self.metas.candidates = candidates;
    }

    pub(super) fn check(&mut self, candidate: u32, member: u32, psn: u32, oob: Option<Oob>) {
        let Some(c) = self.metas.candidates.get_mut(candidate as usize) else { return };
        let says = c.last.as_ref().and_then(|l| l.list.oob(member, psn % self.shape.sectors));
        c.sound &= oob.is_some() && says == oob;
        c.left = c.left.saturating_sub(1);
        if c.left == 0 {
            let (sound, line, last) = (c.sound, c.line, c.last.take());
            if let Some(last) = last.filter(|_| sound) {
                self.learn(line, &last);
            }
        }
    }

    /// Takes what a line says as if its out-of-band bytes had been read.
    fn learn(&mut self, line: usize, last: &LastMeta) {
        let chunks = self.lines[line].chunks.clone();
        for (member, chunk) in (0..).zip(chunks) {
            let first_psn = self.shape.first_psn(chunk);
            for sector in 0..self.shape.sectors {
                if let Some(oob) = last.list.oob(member, sector) {
                    self.sector(first_psn + sector, Some(Some(oob)));
                }
            }
        }
        self.lines[line].last = true;
    }
}
