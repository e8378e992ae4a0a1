//! Lines after power was lost: as the journal knows them, and what has become of their chunks.

use super::{ChunkReport, Recovery};
use crate::durability::snapshot::{LineEntry, LineOpened};
use crate::ftl::HOST;
use crate::space::lines::LineState;
use crate::space::open_line::OpenLine;
use crate::{Ftl, L2pEntry};

impl Recovery {
    /// Every chunk that has something in it as a line of its own.
    pub(super) fn single_chunk_lines(&self) -> Vec<LineEntry> {
        let reserved = |chunk: &u32| self.journal_chunks.contains(chunk);
        let chunks = (0..self.geometry.total_chunks()).filter(|c| !reserved(c));
        chunks
            .filter(|c| self.observations.chunk_reports[*c as usize].written_sectors() > 0)
            .map(|c| LineEntry {
                stream: 0,
                open: true,
                has_footer: false,
                max_seq: u64::MAX,
                chunks: vec![c],
            })
            .collect()
    }

    /// The snapshot's lines, and those opened since: a chunk is in the one that was opened last.
    pub(super) fn merge_opened_lines(&self, opened: Vec<LineOpened>) -> Vec<LineEntry> {
        let mut lines = self.snapshot.as_ref().map(|s| s.lines.clone()).unwrap_or_default();
        lines.extend(opened.into_iter().map(|o| LineEntry {
            stream: o.stream,
            open: true,
            has_footer: false,
            max_seq: u64::MAX,
            chunks: o.chunks,
        }));
        let mut taken = vec![false; self.geometry.total_chunks() as usize];
        for line in lines.iter_mut().rev() {
            line.chunks.retain(|c| !std::mem::replace(&mut taken[*c as usize], true));
        }
        lines.retain(|l| !l.chunks.is_empty());
        lines
    }

    /// The chunks of lines in which a unit may be numbered from the base on.
    pub(super) fn queue_line_scans(&mut self) {
        let base = self.base_seq();
        self.scan_queue.clear();
        self.stats.lines_read = 0;
        for line in &self.lines {
            if line.open || line.max_seq >= base {
                self.stats.lines_read += 1;
                let written = line
                    .chunks
                    .iter()
                    .map(|c| (*c, self.observations.chunk_reports[*c as usize].written_sectors()));
                self.scan_queue.extend(written.filter(|(_, written)| *written > 0));
            }
        }
    }

    /// Gives the layer its lines and free chunks.
    pub(super) fn build_lines(&self, ftl: &mut Ftl) {
        let shape = self.geometry;
        let mut valid = vec![0u32; shape.total_chunks() as usize];
        // Of a map in frames, what the pages say is counted later.
        let counts = self.plan.map_frames > 0;
        let first = if counts { self.plan.logical } else { 0 };
        for lba in first..self.plan.logical + self.plan.map_pages {
            if let L2pEntry::Flash(psn) = ftl.mapping.get(lba) {
                valid[shape.chunk_of(psn) as usize] += 1;
            }
        }
        let mut known = vec![false; shape.total_chunks() as usize];
        for &chunk in &self.journal_chunks {
            known[chunk as usize] = true;
        }
        let mut open_chunks = Vec::new();
        for line in &self.lines {
            for &chunk in &line.chunks {
                known[chunk as usize] = true;
                let bad = matches!(
                    self.observations.chunk_reports[chunk as usize],
                    ChunkReport::Bad | ChunkReport::NotOwned
                );
                ftl.space.table_to_restore().chunks[chunk as usize].bad = bad;
            }
            let found = |chunk: &u32| self.observations.chunk_reports[*chunk as usize];
            let mut members: Vec<(u32, u32)> = Vec::new();
            for chunk in &line.chunks {
                match found(chunk) {
                    ChunkReport::Free | ChunkReport::Open(0) => {
                        ftl.space.table_to_restore().add_free(*chunk)
                    }
                    ChunkReport::Open(next) if next < shape.sectors_per_chunk => {
                        open_chunks.push((*chunk, next))
                    }
                    ChunkReport::Open(n)
                    | ChunkReport::Closed(n)
                    | ChunkReport::ProgramFailed(n) => members.push((*chunk, n)),
                    // What is in it cannot be read; those who ask for it are told so.
                    ChunkReport::Bad | ChunkReport::NotOwned
                        if counts || valid[*chunk as usize] > 0 =>
                    {
                        members.push((*chunk, shape.sectors_per_chunk));
                    }
                    ChunkReport::Bad | ChunkReport::NotOwned => {}
                }
            }
            if members.is_empty() {
                continue;
            }
            let id = ftl.space.table_to_restore().insert(&members, LineState::Open);
            let mut sum = 0;
            for &(chunk, written) in &members {
                ftl.space.table_to_restore().chunks[chunk as usize].write_pointer = written;
                sum += valid[chunk as usize];
                let table = ftl.space.table_to_restore();
                let (c, l) = (&mut table.chunks[chunk as usize], &mut table.lines[id as usize]);
                match found(&chunk) {
                    ChunkReport::ProgramFailed(_) => (c.bad, l.degraded) = (true, true),
                    // What there was to lose is lost: no hurry.
                    ChunkReport::Bad | ChunkReport::NotOwned => {
                        (c.bad, c.offline, l.refresh_requested) = (true, true, true);
                    }
                    ChunkReport::Free | ChunkReport::Open(_) | ChunkReport::Closed(_) => {}
                }
            }
            let l = &mut ftl.space.table_to_restore().lines[id as usize];
            (l.valid_sectors, l.fully_mapped, l.stream) = (sum, true, line.stream);
            l.max_seq = line.max_seq.min(ftl.buffer.next_seq());
            // Of a map in frames what was in a chunk that has gone is known by it, too.
            let whole = |f: ChunkReport| {
                f == ChunkReport::Closed(shape.sectors_per_chunk) || counts && f == ChunkReport::Bad
            };
            let full = members.len() == self.plan.active_pus as usize
                && members.iter().all(|(c, _)| whole(found(c)));
            if line.has_footer && full && self.plan.line_metadata_units > 0 {
                ftl.space.table_to_restore().mark_footer_valid(id);
            }
            ftl.close_if_done(id);
        }
        for chunk in (0..shape.total_chunks()).filter(|c| !known[*c as usize]) {
            match self.observations.chunk_reports[chunk as usize] {
                ChunkReport::Free | ChunkReport::Open(0) => {
                    ftl.space.table_to_restore().add_free(chunk)
                }
                ChunkReport::Bad if valid[chunk as usize] > 0 => {
                    let id = ftl
                        .space
                        .table_to_restore()
                        .insert(&[(chunk, shape.sectors_per_chunk)], LineState::Open);
                    let c = &mut ftl.space.table_to_restore().chunks[chunk as usize];
                    (c.write_pointer, c.bad, c.offline) = (shape.sectors_per_chunk, true, true);
                    let table = ftl.space.table_to_restore();
                    let l = &mut table.lines[id as usize];
                    (l.valid_sectors, l.fully_mapped, l.refresh_requested) =
                        (valid[chunk as usize], true, true);
                    ftl.close_if_done(id);
                }
                ChunkReport::Bad | ChunkReport::NotOwned => {
                    ftl.space.table_to_restore().chunks[chunk as usize].bad = true
                }
                ChunkReport::Open(n) | ChunkReport::Closed(n) | ChunkReport::ProgramFailed(n) => {
                    // Of no line: its erase was cut short, or it was never used.
                    let id = ftl
                        .space
                        .table_to_restore()
                        .insert(&[(chunk, shape.sectors_per_chunk)], LineState::Open);
                    ftl.space.table_to_restore().chunks[chunk as usize].write_pointer = n;
                    let table = ftl.space.table_to_restore();
                    let l = &mut table.lines[id as usize];
                    (l.valid_sectors, l.fully_mapped) = (valid[chunk as usize], true);
                    if let ChunkReport::ProgramFailed(_) =
                        self.observations.chunk_reports[chunk as usize]
                    {
                        table.chunks[chunk as usize].bad = true;
                        l.degraded = true;
                    }
                    ftl.close_if_done(id);
                }
            }
        }
        // Chunks that were being written go on being written, as lines of the users' stream.
        for members in open_chunks.chunks(self.plan.active_pus as usize) {
            let id = ftl.space.table_to_restore().insert(members, LineState::Open);
            for &(chunk, next) in members {
                ftl.space.table_to_restore().chunks[chunk as usize].write_pointer = next;
                ftl.space.table_to_restore().lines[id as usize].valid_sectors +=
                    valid[chunk as usize];
            }
            ftl.space.table_to_restore().lines[id as usize].max_seq = ftl.buffer.next_seq();
            let open = OpenLine::new(&shape, id, members);
            ftl.space.add_open_line(HOST, open, None);
        }
    }
}
