//! Buffered data on its way to the device.
//!
//! Dirty frames that are neighbours in the file go together, through a staging buffer: they may change
//! again while that is written. Blocks are chosen only now, so that what was appended bit by bit lies in
//! one piece; the file has them once they are written, and not before.

use block::Op as DeviceOp;
use clock::Nanos;
use nvme::Status;
use ring::Region;

use crate::cached::bytes_within;
use crate::core::{Core, RUN_BYTES, STAGE_BLOCKS, What};
use crate::extents::{Extent, Place};
use crate::frames::Span;
use crate::record::Record;
use crate::{BLOCK, Error, Ino};

/// Blocks that are waited for and go out durable by themselves, instead of with a flush.
const URGENT_BLOCKS: usize = 16;

/// Blocks of a file on their way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    ino: Ino,
    extent: Extent,
    /// The file did not have them; it had, but not written.
    new: bool,
    unwritten: bool,
    stage: u32,
    /// How long the file was when they were sent.
    size: u64,
    durable: bool,
}

impl Core {
    /// An inode's dirty frames are to be written; `urgent` if somebody waits for them.
    pub(crate) fn want(&mut self, ino: Ino, urgent: bool) {
        let Some(node) = self.tree.find_mut(ino) else { return };
        if node.live.held || node.live.is_placed() {
            return;
        }
        node.live.urgent |= urgent;
        if !std::mem::replace(&mut node.live.wanted, true) {
            self.wanted.push_back(ino);
        }
    }

    /// Frames are needed: the oldest dirty ones are written. An error if none of them can be.
    pub(crate) fn press(&mut self) -> Result<(), Error> {
        let held = |core: &Core, ino| core.tree.find(ino).is_none_or(|n| n.live.held);
        let oldest = self.aging.iter().map(|(_, ino)| *ino).find(|ino| !held(self, *ino));
        match oldest {
            Some(ino) => self.want(ino, false),
            None if self.flights.idle() && self.frames.dirty > 0 => {
                return Err(Error::Io { status: self.last_error });
            }
            None => {}
        }
        Ok(())
    }

    /// Wants what is old, or too much.
    pub(crate) fn age(&mut self) {
        for _ in 0..=self.aging.len() {
            let Some((since, ino)) = self.aging.front().copied() else { return };
            let Some(node) = self.tree.find_mut(ino) else {
                self.aging.pop_front();
                continue;
            };
            if node.live.is_placed() {
                node.live.listed = false;
                self.aging.pop_front();
                continue;
            }
            let old = since + self.options.age <= self.now;
            if !old && self.frames.dirty <= self.frames.len() / 2 {
                break;
            }
            if old {
                // Another time, and after an error another try.
                node.live.held = false;
                self.aging.pop_front();
                self.aging.push_back((self.now, ino));
                self.want(ino, false);
                continue;
            }
            if node.live.wanted || node.live.held {
                break;
            }
            self.want(ino, false);
        }
    }

    /// When something will be old.
    pub(crate) fn aging_deadline(&self) -> Nanos {
        let data = self.aging.front().map(|(since, _)| *since + self.options.age);
        data.unwrap_or(Nanos::MAX)
    }

    /// Sends what is wanted, as far as there is room.
    pub(crate) fn write_back(&mut self) {
        for _ in 0..self.wanted.len() {
            let Some(ino) = self.wanted.pop_front() else { return };
            if !self.write_inode(ino) {
                self.wanted.push_back(ino);
                continue;
            }
            if let Some(node) = self.tree.find_mut(ino) {
                (node.live.wanted, node.live.urgent) = (false, false);
            }
        }
    }

    /// Sends an inode's dirty frames; `false` if some are left that could go later.
    fn write_inode(&mut self, ino: Ino) -> bool {
        let mut from = 0;
        loop {
            let Some(node) = self.tree.find(ino) else { return true };
            if node.live.held {
                return true;
            }
            let frame = |block: &u32| node.live.frames.get(block).map(|id| self.frames.get(*id));
            let ready = |b: &u32| frame(b).is_some_and(|f| f.is_needed() && !f.writing);
            let dirty = node.live.dirty.from(from).copied().find(ready);
            // Nobody waits for what is durable in the journal.
            let logged = node.live.logged.from(from).copied().find(ready);
            let logged = logged.filter(|_| !node.live.urgent);
            let Some(first) = dirty.into_iter().chain(logged).min() else {
                // What was changed while it is on its way has to wait for that.
                return !node.live.dirty.iter().any(|b| frame(b).is_some_and(|f| f.dirty));
            };
            if node.live.gate || self.free_stages.is_empty() || !self.admit(RUN_BYTES) {
                return false;
            }
            match self.send_run(ino, first) {
                Some(end) => from = end,
                None => return false,
            }
        }
    }

    /// Sends a run that begins with a block that is not in place, and returns where it ends.
    pub(crate) fn send_run(&mut self, ino: Ino, first: u32) -> Option<u32> {
        let node = self.tree.find(ino)?;
        let ready = |block: u32| {
            let id = node.live.frames.get(&block)?;
            let frame = self.frames.get(*id);
            (frame.is_needed() && !frame.writing).then_some(*id)
        };
        let mut count = 1;
        while count < STAGE_BLOCKS && ready(first + count).is_some() {
            count += 1;
        }
        let durable = self.volatile && node.live.urgent && node.live.dirty.len() <= URGENT_BLOCKS;
        let (size, goal) = (node.size, node.extents.goal(first));
        let place = node.extents.find(first);
        let (extent, new) = match place {
            Place::At(extent) => (Extent { count: count.min(extent.count), ..extent }, false),
            Place::Hole { count: hole } => {
                let (phys, count) = self.space.take(goal, count.min(hole))?;
                (Extent { at: first, count, phys, written: true }, true)
            }
        };
        let unwritten = !extent.written;
        let stage = self.free_stages.pop()?;
        for i in 0..extent.count {
            let id = self.cached(ino, first + i)?;
            let (from, offset) = self.frames.place(id, 0);
            let to = (stage * STAGE_BLOCKS + i) as usize * BLOCK;
            Region::copy(from, offset, &self.stages, to, BLOCK);
            let frame = self.frames.get_mut(id);
            frame.sent_seq = if frame.dirty { frame.seq } else { u64::MAX };
            (frame.dirty, frame.writing, frame.changed) = (false, true, Span::default());
            if std::mem::take(&mut frame.promised) {
                self.space.release(1);
            }
        }
        let extent = Extent { written: true, ..extent };
        let run = Run { ino, extent, new, unwritten, stage, size, durable };
        self.tree.find_mut(ino)?.live.io += 1;
        self.coming += RUN_BYTES;
        let at = self.stages_at.offset(u64::from(stage * STAGE_BLOCKS) * BLOCK as u64);
        let blocks = (extent.phys, extent.count);
        self.flights.blocks(What::Run(run), DeviceOp::Write, blocks, at, durable);
        self.stats.data_bytes += u64::from(extent.count) * BLOCK as u64;
        self.stats.data_commands += 1;
        self.moved = true;
        Some(extent.end())
    }

    pub(crate) fn run_ended(&mut self, run: Run, status: Status) {
        let Run { ino, extent, new, unwritten, stage, size, durable } = run;
        self.free_stages.push(stage);
        self.coming -= RUN_BYTES;
        let failed = !status.is_success();
        let mut logged = false;
        for block in extent.at..extent.end() {
            logged |= self.frame_ended(ino, block, (new, failed), size);
        }
        if failed && new {
            // The blocks are free again, and promised again to those that are still dirty.
            self.space.give(extent.phys, extent.count);
            let promised = self.space.promise(extent.count.into());
            debug_assert!(promised, "blocks that were just given back");
        }
        if !failed && self.volatile && !durable {
            self.writes += 1;
        }
        let writes = self.writes;
        let Some(node) = self.tree.find_mut(ino) else { return };
        node.live.io -= 1;
        if failed {
            (node.live.held, node.live.urgent) = (true, false);
            node.live.errors += 1;
            self.errors += 1;
            self.last_error = status;
            if logged && self.journal_needs_room() {
                self.wedge(status);
            }
            return;
        }
        if self.volatile && !durable {
            node.live.unflushed = writes;
        }
        let settled = node.settled;
        self.settle(ino);
        let grown = self.tree.find(ino).is_some_and(|n| n.settled != settled);
        if new || unwritten {
            self.tree.map(ino, extent);
        }
        // What the journal has of these blocks is old from here on.
        if new || unwritten || logged {
            Record::Map { ino, extent }.encode(&mut self.txn.records);
        }
        if new || unwritten || logged || grown {
            self.note(ino, true);
        }
    }

    /// Returns whether the journal has, or had, data of the block.
    fn frame_ended(
        &mut self,
        ino: Ino,
        block: u32,
        (new, failed): (bool, bool),
        size: u64,
    ) -> bool {
        let Some(id) = self.cached(ino, block) else { return false };
        let frame = self.frames.get_mut(id);
        frame.writing = false;
        let logged = frame.logged > 0;
        if failed {
            frame.promised = new;
            // Unless it was in the journal as it was sent.
            if frame.sent_seq < u64::MAX {
                frame.changed = Span::ALL;
                if !std::mem::replace(&mut frame.dirty, true) {
                    frame.seq = frame.sent_seq;
                }
            }
            return logged;
        }
        frame.on_device = bytes_within(size, block);
        frame.logged = 0;
        let dirty = frame.dirty;
        self.frames.logged -= usize::from(logged);
        self.frames.dirty -= usize::from(!dirty);
        if let Some(node) = self.tree.find_mut(ino) {
            node.live.logged.remove(block);
            if !dirty {
                node.live.dirty.remove(block);
            }
        }
        logged
    }
}
