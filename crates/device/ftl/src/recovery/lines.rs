//! Lines after power was lost: as the journal knows them, and what has become of their chunks.

use super::Recovery;
use crate::durability::snapshot::{LineEntry, LineOpened};

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
}
