//! Lines whose data is relocated for refresh or wear leveling, and changes of chunks.

use crate::ChosenLine;
use crate::ids::LineId;
use crate::space::lines::{LineState, LineTable};
use nvme::ChunkId;
use serde::{Deserialize, Serialize};

/// Change of a chunk, for the component that scrubs closed chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChunkEvent {
    /// The chunk takes no more writes; `sectors` of it are written.
    Closed {
        /// The chunk.
        chunk: ChunkId,
        /// Sectors from its first one on.
        sectors: u32,
    },
    /// The chunk has no valid data any more, or is offline.
    Emptied {
        /// The chunk.
        chunk: ChunkId,
    },
}

impl LineTable {
    /// Requests the refresh of a line. Returns whether it was not requested before.
    pub(crate) fn request_refresh(&mut self, chosen: ChosenLine) -> bool {
        let line = &mut self.lines[chosen.line.index()];
        if line.degraded || line.refresh_requested {
            return false;
        }
        match line.state {
            LineState::Open | LineState::Closed => {
                line.refresh_requested = true;
                self.refresh_queue.push_back(chosen);
            }
            LineState::Free | LineState::Victim | LineState::Draining => return false,
        }
        true
    }

    /// Removes and returns the line that has waited longest to be refreshed: a closed or an open
    /// one.
    pub(crate) fn pop_refresh(&mut self) -> Option<ChosenLine> {
        // Some have been reclaimed meanwhile.
        while let Some(chosen) = self.refresh_queue.pop_front() {
            let line = &mut self.lines[chosen.line.index()];
            if !std::mem::take(&mut line.refresh_requested) {
                continue;
            }
            match line.state {
                // The line is about to close, and is refreshed then.
                LineState::Open if line.fully_mapped => line.refresh_requested = true,
                LineState::Open | LineState::Closed => return Some(chosen),
                LineState::Free | LineState::Victim | LineState::Draining => {}
            }
        }
        None
    }

    /// Returns the least worn closed line that is `age` closings old and whose chunks were erased
    /// more than `spread` times less than the most worn chunk.
    pub(crate) fn cold_line(&self, spread: u32, age: u64) -> Option<LineId> {
        let cold = |l: &&(LineId, &crate::space::lines::Line)| {
            l.1.state == LineState::Closed
                && l.1.valid_sectors > 0
                && !l.1.degraded
                && !l.1.refresh_requested
                && self.closed_total - l.1.close_index >= age
        };
        let closed = LineId::all().zip(&self.lines);
        let closed: Option<(u32, u64, LineId)> = closed
            .filter(|l| cold(&l))
            .map(|(id, l)| (self.mean_wear(id), l.close_index, id))
            .min();
        let (wear, _, id) = closed?;
        (self.chunks.wear_max().saturating_sub(wear) > spread).then_some(id)
    }

    pub(crate) fn subscribe_chunk_events(&mut self) {
        self.chunk_events.get_or_insert_default();
        for id in LineId::all().take(self.lines.len()) {
            if self.line(id).state == LineState::Closed {
                self.emit_closed(id);
            }
        }
    }

    /// Reports the chunks of a line as closed.
    pub(crate) fn emit_closed(&mut self, id: LineId) {
        let Some(changes) = &mut self.chunk_events else { return };
        for &chunk in &self.lines[id.index()].chunks {
            let c = self.chunks.state(chunk);
            if c.write_pointer > 0 && !c.offline {
                changes.push_back(ChunkEvent::Closed { chunk, sectors: c.write_pointer });
            }
        }
    }

    /// Records that the data found in an open line when it was scanned has been relocated.
    pub(crate) fn emit_swept(&mut self, id: LineId) {
        for i in 0..self.lines[id.index()].chunks.len() {
            self.emit_emptied(self.lines[id.index()].chunks[i]);
        }
        if self.lines[id.index()].state == LineState::Closed {
            self.emit_closed(id);
        }
    }

    /// Emits that a chunk is empty.
    pub(crate) fn emit_emptied(&mut self, chunk: ChunkId) {
        if let Some(changes) = &mut self.chunk_events {
            changes.push_back(ChunkEvent::Emptied { chunk });
        }
    }
}
