//! Lines after power was lost: as the journal knows them, and what has become of their chunks.

use super::{Found, Recovery};
use crate::ftl::USER;
use crate::lines::{LineState, NONE};
use crate::open_line::OpenLine;
use crate::snapshot::{LineEntry, Opened};
use crate::{Ftl, Location};

impl Recovery {
    /// Every chunk that has something in it as a line of its own.
    pub(super) fn every_chunk(&self) -> Vec<LineEntry> {
        let reserved = |chunk: &u32| self.reserved.contains(chunk);
        let chunks = (0..self.shape.total_chunks()).filter(|c| !reserved(c));
        chunks
            .filter(|c| self.seen.found[*c as usize].written() > 0)
            .map(|c| LineEntry {
                stream: 0,
                open: true,
                last: false,
                newest: u64::MAX,
                chunks: vec![c],
            })
            .collect()
    }

    /// The snapshot's lines, and those opened since: a chunk is in the one that was opened last.
    pub(super) fn lines_with(&self, opened: Vec<Opened>) -> Vec<LineEntry> {
        let mut lines = self.snapshot.as_ref().map(|s| s.lines.clone()).unwrap_or_default();
        lines.extend(opened.into_iter().map(|o| LineEntry {
            stream: o.stream,
            open: true,
            last: false,
            newest: u64::MAX,
            chunks: o.chunks,
        }));
        let mut taken = vec![false; self.shape.total_chunks() as usize];
        for line in lines.iter_mut().rev() {
            line.chunks.retain(|c| !std::mem::replace(&mut taken[*c as usize], true));
        }
        lines.retain(|l| !l.chunks.is_empty());
        lines
    }

    /// The chunks of lines in which a unit may be numbered from the base on.
    pub(super) fn choose_what_to_read(&mut self) {
        let base = self.base();
        self.to_read.clear();
        self.stats.lines_read = 0;
        for line in &self.lines {
            if line.open || line.newest >= base {
                self.stats.lines_read += 1;
                let written =
                    line.chunks.iter().map(|c| (*c, self.seen.found[*c as usize].written()));
                self.to_read.extend(written.filter(|(_, written)| *written > 0));
            }
        }
    }

    /// Gives the layer its lines and free chunks.
    pub(super) fn adopt_lines(&self, ftl: &mut Ftl) {
        let shape = self.shape;
        let mut valid = vec![0u32; shape.total_chunks() as usize];
        // Of a map in frames, what the pages say is counted later.
        let counts = self.layout.map_frames > 0;
        let first = if counts { self.layout.logical } else { 0 };
        for lba in first..self.layout.logical + self.layout.meta {
            if let Location::Flash(psn) = ftl.map.get(lba) {
                valid[shape.chunk_of(psn) as usize] += 1;
            }
        }
        let mut known = vec![false; shape.total_chunks() as usize];
        for &chunk in &self.reserved {
            known[chunk as usize] = true;
        }
        let mut open_chunks = Vec::new();
        for line in &self.lines {
            for &chunk in &line.chunks {
                known[chunk as usize] = true;
                let bad = matches!(self.seen.found[chunk as usize], Found::Bad | Found::Foreign);
                ftl.lines.chunks[chunk as usize].bad = bad;
            }
            let found = |chunk: &u32| self.seen.found[*chunk as usize];
            let mut members: Vec<(u32, u32)> = Vec::new();
            for chunk in &line.chunks {
                match found(chunk) {
                    Found::Free | Found::Open(0) => ftl.lines.add_free(*chunk),
                    Found::Open(next) if next < shape.sectors => open_chunks.push((*chunk, next)),
                    Found::Open(n) | Found::Closed(n) | Found::Failing(n) => {
                        members.push((*chunk, n))
                    }
                    // What is in it cannot be read; those who ask for it are told so.
                    Found::Bad | Found::Foreign if counts || valid[*chunk as usize] > 0 => {
                        members.push((*chunk, shape.sectors));
                    }
                    Found::Bad | Found::Foreign => {}
                }
            }
            if members.is_empty() {
                continue;
            }
            let id = ftl.lines.adopt(&members, LineState::Open);
            let mut sum = 0;
            for &(chunk, written) in &members {
                ftl.lines.chunks[chunk as usize].persisted = written;
                sum += valid[chunk as usize];
                let (c, l) =
                    (&mut ftl.lines.chunks[chunk as usize], &mut ftl.lines.lines[id as usize]);
                match found(&chunk) {
                    Found::Failing(_) => (c.bad, l.hurt) = (true, true),
                    // What there was to lose is lost: no hurry.
                    Found::Bad | Found::Foreign => {
                        (c.bad, c.offline, l.refresh) = (true, true, true);
                    }
                    Found::Free | Found::Open(_) | Found::Closed(_) => {}
                }
            }
            let l = &mut ftl.lines.lines[id as usize];
            (l.valid, l.full, l.stream) = (sum, true, line.stream);
            l.newest = line.newest.min(ftl.issued.next());
            // Of a map in frames what was in a chunk that has gone is known by it, too.
            let whole = |f: Found| f == Found::Closed(shape.sectors) || counts && f == Found::Bad;
            let full = members.len() == self.layout.active as usize
                && members.iter().all(|(c, _)| whole(found(c)));
            if line.last && full && self.layout.line_meta > 0 {
                ftl.lines.has_last(id);
            }
            ftl.lines.close_if_done(id);
        }
        for chunk in (0..shape.total_chunks()).filter(|c| !known[*c as usize]) {
            match self.seen.found[chunk as usize] {
                Found::Free | Found::Open(0) => ftl.lines.add_free(chunk),
                Found::Bad if valid[chunk as usize] > 0 => {
                    let id = ftl.lines.adopt(&[(chunk, shape.sectors)], LineState::Open);
                    let c = &mut ftl.lines.chunks[chunk as usize];
                    (c.persisted, c.bad, c.offline) = (shape.sectors, true, true);
                    let l = &mut ftl.lines.lines[id as usize];
                    (l.valid, l.full, l.refresh) = (valid[chunk as usize], true, true);
                    ftl.lines.close_if_done(id);
                }
                Found::Bad | Found::Foreign => ftl.lines.chunks[chunk as usize].bad = true,
                Found::Open(n) | Found::Closed(n) | Found::Failing(n) => {
                    // Of no line: its erase was cut short, or it was never used.
                    let id = ftl.lines.adopt(&[(chunk, shape.sectors)], LineState::Open);
                    ftl.lines.chunks[chunk as usize].persisted = n;
                    let l = &mut ftl.lines.lines[id as usize];
                    (l.valid, l.full) = (valid[chunk as usize], true);
                    if let Found::Failing(_) = self.seen.found[chunk as usize] {
                        ftl.lines.chunks[chunk as usize].bad = true;
                        l.hurt = true;
                    }
                    ftl.lines.close_if_done(id);
                }
            }
        }
        // Chunks that were being written go on being written, as lines of the users' stream.
        for members in open_chunks.chunks(self.layout.active as usize) {
            let id = ftl.lines.adopt(members, LineState::Open);
            for &(chunk, next) in members {
                ftl.lines.chunks[chunk as usize].persisted = next;
                ftl.lines.lines[id as usize].valid += valid[chunk as usize];
                debug_assert_eq!(ftl.lines.chunks[chunk as usize].first, NONE);
            }
            ftl.lines.lines[id as usize].newest = ftl.issued.next();
            let open = OpenLine::over(&shape, id, members);
            ftl.open[USER].push(open);
        }
    }
}
