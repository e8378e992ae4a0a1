//! Data of files in the journal: what is small and has to wait for a transaction anyway goes into it, and
//! its sync is one durable write.
//!
//! The blocks are written in place later, many at a time: when they are old, when frames or the journal's
//! space are needed. Until then their frames stay in memory, dirty or not. Whatever is written in place,
//! and newer than what the journal has, brings a record of its extent, after which the journal's data of
//! these blocks does not count (`docs/format/volume.md`, *Data in the journal*).

use crate::cached::bytes_within;
use crate::core::Core;
use crate::extents::{Extent, Place};
use crate::frames::{Frame, Span};
use crate::record::{DATA_BYTES, INODE_BYTES, Record};
use crate::tree::Node;
use crate::{BLOCK, Ino};

/// Blocks of which one sync puts data into the journal.
const LOG_BLOCKS: usize = 4;

/// What becomes of a file's dirty blocks that a sync waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logged {
    /// They are in the running transaction.
    Yes,
    /// They will be; something is in the way now.
    Later,
    /// They are to be written in place.
    No,
}

/// Blocks whose data goes into the journal.
#[derive(Debug, Default)]
struct Batch {
    blocks: [(u32, Span); LOG_BLOCKS],
    count: usize,
    /// Bytes of the records.
    bytes: usize,
    /// Those that have nothing there yet.
    fresh: usize,
    /// Some of them are on their way as they were before.
    writing: bool,
    /// They could not be read, or would be read as they were, without a transaction.
    needed: bool,
}

impl Core {
    /// Blocks that may wait to be written in place: each keeps a sector of the journal free.
    pub(crate) fn logged_max(&self) -> usize {
        (self.frames.len() / 4).min((self.ring.sectors / 8) as usize)
    }

    /// Puts what is dirty of a file into the running transaction, if it is little, and has to wait for one.
    pub(crate) fn log(&mut self, ino: Ino, data_only: bool) -> Logged {
        let Some(node) = self.tree.find(ino) else { return Logged::No };
        if node.live.wanted && node.live.urgent {
            return Logged::No;
        }
        let Some(batch) = self.batch(node) else { return Logged::No };
        let txn = if data_only { node.live.data_txn } else { node.live.txn };
        let needed = batch.needed || txn > self.durable || node.settled < node.size;
        let all = self.frames.logged + batch.fresh;
        if needed && all > self.logged_max() / 2 {
            // An error has been told, or will be, to whoever waits for what cannot be written.
            let _ = self.press();
        }
        if !needed || all > self.logged_max() || batch.bytes > self.txn_bytes / 2 {
            return Logged::No;
        }
        let bytes = batch.bytes + INODE_BYTES;
        if batch.writing || !self.admit_sectors(bytes, batch.fresh as u64) {
            return Logged::Later;
        }
        for (block, span) in &batch.blocks[..batch.count] {
            self.log_block(ino, *block, *span);
        }
        self.settle(ino);
        self.note(ino, true);
        self.moved = true;
        Logged::Yes
    }

    /// A file's dirty blocks; `None` if they are too many.
    fn batch(&self, node: &Node) -> Option<Batch> {
        let mut batch = Batch::default();
        for block in node.live.dirty.iter().copied() {
            let frame = self.frames.get(*node.live.frames.get(&block)?);
            if !frame.dirty {
                continue;
            }
            let span = self.span(frame, bytes_within(node.size, block) as usize)?;
            *batch.blocks.get_mut(batch.count)? = (block, span);
            batch.count += 1;
            batch.bytes += DATA_BYTES + (span.1 - span.0);
            batch.fresh += usize::from(frame.logged == 0);
            batch.writing |= frame.writing;
            let there = matches!(node.extents.find(block), Place::At(Extent { written: true, .. }));
            batch.needed |= frame.logged > 0 || !there;
        }
        Some(batch)
    }

    /// What the journal is told of a block that belongs to its file up to `end`: whole sectors, so that
    /// none of them is ever a part of what was and a part of what became of it.
    fn span(&self, frame: &Frame, end: usize) -> Option<Span> {
        let sector = self.ring.sector_bytes as usize;
        let Span(from, to) = frame.changed;
        let last = end.checked_sub(1)?;
        Some(Span(from.min(last) / sector * sector, to.next_multiple_of(sector).min(end)))
            .filter(|span| span.0 < span.1)
    }

    fn log_block(&mut self, ino: Ino, block: u32, span: Span) {
        let Some(id) = self.cached(ino, block) else { return };
        let mut bytes = [0; BLOCK];
        let bytes = &mut bytes[span.0..span.1];
        let (region, at) = self.frames.place(id, span.0);
        region.read(at, bytes);
        let offset = u64::from(block) * BLOCK as u64 + span.0 as u64;
        Record::Data { ino, offset, bytes }.encode(&mut self.txn.records);
        self.stats.logged_blocks += 1;
        self.stats.logged_bytes += bytes.len() as u64;
        let txn = self.txn.id;
        let Some(node) = self.tree.find_mut(ino) else { return };
        let frame = self.frames.get_mut(id);
        (frame.dirty, frame.changed) = (false, Span::default());
        frame.on_device = bytes_within(node.size, block);
        node.live.dirty.remove(block);
        if frame.logged == 0 {
            frame.logged = txn;
            self.frames.logged += 1;
            node.live.logged.insert(block);
        }
    }

    /// Sends blocks of which the journal has data from before transaction `below`, as far as there is
    /// room; whether none are left. Nobody who waits for the journal is waited for: neither for its space,
    /// which is kept for this, nor for those who will take blocks away.
    pub(crate) fn place(&mut self, below: u64) -> bool {
        if self.frames.logged == 0 {
            return true;
        }
        let mut all = true;
        for index in 0..self.frames.len() {
            let frame = *self.frames.at(index);
            let Some((ino, block)) = frame.owner else { continue };
            if !(1..below).contains(&frame.logged) {
                continue;
            }
            all = false;
            let held = self.tree.find(ino).is_none_or(|n| n.live.held);
            if !frame.writing && !held && !self.free_stages.is_empty() {
                self.send_run(ino, block);
            }
        }
        all
    }
}
