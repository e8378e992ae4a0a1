//! [`ChunkScan`]: pads open chunks, and reads the out-of-band bytes of lines.
//!
//! A *probe* first reads only what is readable without padding, so that foreign data is refused before
//! anything is written.

use super::op::RecoveryOpPurpose;
use super::{ChunkReport, OPS_PER_BATCH_MAX, RecoveryOp};
use crate::FlashGeometry;
use crate::check::{Subject, Violation, require};
use crate::ids::ToIndex;
use nvme::ChunkId;

/// A chunk to be scanned.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedChunk {
    pub(super) chunk: ChunkId,
    /// Sectors that were written before padding.
    pub(super) written: u32,
}

/// The chunks that are padded and read, in the order in which they are read.
///
/// Invariant: what a probe has read of a chunk is written.
#[derive(Debug)]
pub(super) struct ChunkScan {
    queue: Vec<QueuedChunk>,
    /// The next index in the queue, and the next sector there.
    next: usize,
    sector: u32,
    /// Whether only units readable without padding are read.
    is_probe: bool,
    /// By chunk, the end of the sectors that a probe has read.
    probed_to: Vec<u32>,
}

impl ChunkScan {
    /// Creates an empty scan of flash with `total_chunks` chunks.
    pub(super) fn new(total_chunks: u32) -> ChunkScan {
        ChunkScan {
            queue: Vec::new(),
            next: 0,
            sector: 0,
            is_probe: false,
            probed_to: vec![0; total_chunks.index()],
        }
    }

    /// Replaces the queue.
    pub(super) fn set_queue(&mut self, chunks: impl Iterator<Item = QueuedChunk>) {
        self.queue.clear();
        self.queue.extend(chunks);
    }

    /// Removes the chunks that need not be read.
    pub(super) fn remove(&mut self, is_known: &[bool]) {
        self.queue.retain(|queued| !is_known[queued.chunk.index()]);
    }

    /// Restarts with the first chunk.
    pub(super) fn rewind(&mut self) {
        (self.next, self.sector) = (0, 0);
    }

    /// Sets whether only units readable without padding are read.
    pub(super) fn set_probe(&mut self, is_probe: bool) {
        self.is_probe = is_probe;
    }

    /// Clears what the probe has read, so that all is read again.
    pub(super) fn forget_probe(&mut self) {
        self.probed_to.fill(0);
    }

    /// Ends a probe. Returns whether there was one, and padding follows.
    pub(super) fn end_probe(&mut self) -> bool {
        if self.is_probe {
            self.is_probe = false;
            self.rewind();
            return true;
        }
        false
    }

    /// Adds the operations that pad open chunks, so that their paired pages are programmed. If there are
    /// none left, the scan is rewound.
    pub(super) fn pad_ops(
        &mut self,
        geometry: &FlashGeometry,
        reports: &[ChunkReport],
        ops: &mut Vec<RecoveryOp>,
    ) {
        let (unit, pair) = (geometry.ws_opt, geometry.mw_cunits.next_multiple_of(geometry.ws_opt));
        while self.next < self.queue.len() && ops.len() < OPS_PER_BATCH_MAX {
            let QueuedChunk { chunk, written } = self.queue[self.next];
            self.next += 1;
            if !matches!(reports[chunk.index()], ChunkReport::Open(_)) || written == 0 {
                continue;
            }
            let target = written.next_multiple_of(unit).saturating_add(pair);
            let target = target.min(geometry.sectors_per_chunk);
            let mut at = written;
            while at < target {
                let count = unit - at % unit;
                let purpose = RecoveryOpPurpose::Pad { chunk, end: at + count };
                ops.push(RecoveryOp::pad(purpose, chunk, at, count, Vec::new()));
                at += count;
            }
        }
        if ops.is_empty() {
            self.rewind();
        }
    }

    /// Adds the next reads of out-of-band bytes.
    pub(super) fn oob_ops(
        &mut self,
        geometry: &FlashGeometry,
        reports: &[ChunkReport],
        ops: &mut Vec<RecoveryOp>,
    ) {
        while ops.len() < OPS_PER_BATCH_MAX {
            let Some(&QueuedChunk { chunk, written }) = self.queue.get(self.next) else { break };
            let probed_to = &mut self.probed_to[chunk.index()];
            let end = match reports[chunk.index()] {
                ChunkReport::Open(_) if self.is_probe => {
                    let readable = written.saturating_sub(geometry.mw_cunits);
                    readable - readable % geometry.ws_opt
                }
                _ => written,
            };
            let at = self.sector.max(*probed_to);
            if at >= end {
                if self.is_probe {
                    *probed_to = end;
                }
                (self.next, self.sector) = (self.next + 1, 0);
                continue;
            }
            let (phys, count) = (geometry.first_sector_of(chunk) + at, (end - at).min(64));
            ops.push(RecoveryOp::read(RecoveryOpPurpose::Oob { phys, count }, phys, count, false));
            self.sector = at + count;
        }
    }

    /// Checks that what a probe has read is written.
    pub(super) fn check_invariants(&self, reports: &[ChunkReport]) -> Result<(), Violation> {
        for ((chunk, &to), report) in (0..).map(ChunkId).zip(&self.probed_to).zip(reports) {
            let is_lost = matches!(report, ChunkReport::Bad | ChunkReport::NotOwned);
            require!(
                is_lost || to <= report.written_sectors(),
                Recovery,
                "a probe has read what is written",
                Subject::Chunk(chunk),
                format_args!("at most {}", report.written_sectors()),
                to
            );
        }
        Ok(())
    }

    /// Breaks the invariant: a probe has read a sector of a free chunk.
    #[cfg(test)]
    pub(super) fn break_probe(&mut self) {
        self.probed_to[0] = 1;
    }
}
