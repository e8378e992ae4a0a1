//! What changes which blocks a file has: truncating, reserving, punching holes.
//!
//! Blocks are taken away only when nothing of the file is at the device, so that nobody who gets them
//! afterwards is read or overwritten by what was sent before.

use crate::cached::Found;
use crate::core::{Active, Core, Progress, Step, Stepped};
use crate::extents::{Extent, Place};
use crate::frames::Span;
use crate::record::{EXTENT_BYTES, INODE_BYTES, Record, TO_THE_END};
use crate::{BLOCK, Error, FILE_BYTES_MAX, Ino, Outcome};

/// The first block that begins at or behind a byte.
fn block_behind(byte: u64) -> u32 {
    byte.div_ceil(BLOCK as u64) as u32
}

impl Core {
    /// Waits until nothing of the file is at the device, and lets nothing begin.
    fn quiet(&mut self, ino: Ino) -> Result<bool, Error> {
        let node = self.tree.get_mut(ino)?;
        node.live.gate = true;
        Ok(node.live.io == 0)
    }

    /// Takes blocks of a file away, from `from` to `to`. They are free when that is durable.
    pub(crate) fn take_away(&mut self, ino: Ino, from: u32, to: u32) {
        let logged = self.forget(ino, from, to);
        let count = if to == TO_THE_END { TO_THE_END } else { to - from };
        let before = self.txn.frees.len();
        let frees = &mut self.txn.frees;
        self.tree.unmap(ino, from, count, |start, count| frees.push((start, count)));
        if self.txn.frees.len() > before || logged {
            Record::Unmap { ino, at: from, count }.encode(&mut self.txn.records);
            self.note(ino, true);
        }
    }

    pub(crate) fn truncate(
        &mut self,
        slot: u32,
        active: &mut Active,
        ino: Ino,
        size: u64,
    ) -> Stepped {
        if active.progress == Progress::Start {
            if size > FILE_BYTES_MAX {
                return Err(Error::TooLarge);
            }
            if !self.begin_change(slot, active, ino)? {
                return Ok(Step::Wait);
            }
            active.progress = Progress::Changing;
        }
        if !self.admit(4 * INODE_BYTES) {
            return Ok(Step::Wait);
        }
        let old = self.tree.get(ino)?.size;
        if size < old {
            if !self.quiet(ino)? {
                return Ok(Step::Wait);
            }
            self.take_away(ino, block_behind(size), TO_THE_END);
            let (block, within) = ((size / BLOCK as u64) as u32, (size % BLOCK as u64) as usize);
            if let Some(frame) = self.cached(ino, block).filter(|_| within > 0) {
                self.frames.zero(frame, within, BLOCK);
                let state = self.frames.get_mut(frame);
                state.on_device = state.on_device.min(within as u32);
            }
        } else if size > old && !self.zero_tail(active, ino)? {
            return Ok(Step::Wait);
        }
        let node = self.tree.get_mut(ino)?;
        node.size = size;
        node.settled = node.settled.min(size);
        (node.times.modify, node.times.change) = (active.time, active.time);
        self.settle(ino);
        self.note(ino, size != old);
        Ok(Step::Done(Outcome::Done))
    }

    pub(crate) fn punch(
        &mut self,
        slot: u32,
        active: &mut Active,
        ino: Ino,
        offset: u64,
        len: u64,
    ) -> Stepped {
        if active.progress == Progress::Start {
            if len == 0 {
                return Err(Error::Invalid("a range of no bytes"));
            }
            if !self.begin_change(slot, active, ino)? {
                return Ok(Step::Wait);
            }
            // A hole in the middle of an extent makes two of it.
            if !self.has_metadata_room(EXTENT_BYTES) {
                return Err(Error::NoMetadataSpace);
            }
            active.progress = Progress::Changing;
        }
        if !self.admit(4 * INODE_BYTES) {
            return Ok(Step::Wait);
        }
        let size = self.tree.get(ino)?.size;
        let end = offset.saturating_add(len).min(FILE_BYTES_MAX);
        let seen = end.min(size);
        let (first, last) = (block_behind(offset), (end / BLOCK as u64) as u32);
        for (from, to) in ragged(offset, seen).skip(active.zeroed) {
            let block = (from / BLOCK as u64) as u32;
            let begin = u64::from(block) * BLOCK as u64;
            if !self.zero_part(active, ino, block, (from - begin, to - begin))? {
                return Ok(Step::Wait);
            }
            active.zeroed += 1;
        }
        // The size's last block goes as a whole if everything of it that there is does.
        let last = if end >= size { last.max(block_behind(seen)) } else { last };
        if first < last {
            if !self.quiet(ino)? {
                return Ok(Step::Wait);
            }
            self.take_away(ino, first, last);
        }
        self.settle(ino);
        let node = self.tree.get_mut(ino)?;
        (node.times.modify, node.times.change) = (active.time, active.time);
        self.note(ino, true);
        Ok(Step::Done(Outcome::Done))
    }

    /// Makes a part of a block zeros; `false` while that waits.
    fn zero_part(
        &mut self,
        active: &mut Active,
        ino: Ino,
        block: u32,
        (from, to): (u64, u64),
    ) -> Result<bool, Error> {
        let node = self.tree.get(ino)?;
        let written = matches!(node.extents.find(block), Place::At(Extent { written: true, .. }));
        if !written && !node.live.frames.contains_key(&block) {
            return Ok(true);
        }
        match self.block_for_change(active, ino, block, false)? {
            Found::There(frame) => {
                let span = Span(from as usize, to as usize);
                self.frames.zero(frame, span.0, span.1);
                self.dirtied(ino, block, frame, span);
                Ok(true)
            }
            Found::Wait => Ok(false),
        }
    }

    pub(crate) fn allocate(
        &mut self,
        slot: u32,
        active: &mut Active,
        ino: Ino,
        (offset, len): (u64, u64),
        keep_size: bool,
    ) -> Stepped {
        if active.progress == Progress::Start {
            let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
            let end = end.ok_or(Error::TooLarge)?;
            if len == 0 {
                return Err(Error::Invalid("a range of no bytes"));
            }
            if !self.begin_change(slot, active, ino)? {
                return Ok(Step::Wait);
            }
            let first = (offset / BLOCK as u64) as u32;
            let need = self.holes(ino, first, block_behind(end))?;
            if !self.space.promise(need) {
                return if self.frees_coming() { Ok(Step::Wait) } else { Err(Error::NoSpace) };
            }
            active.progress = Progress::Allocate { next: first, promised: need };
        }
        let Progress::Allocate { mut next, mut promised } = active.progress else {
            return Err(Error::Invalid("an allocation that is none"));
        };
        let end = offset + len;
        let result = self.allocate_on(active, ino, (&mut next, block_behind(end)), &mut promised);
        active.progress = Progress::Allocate { next, promised };
        match result {
            Ok(true) => {}
            Ok(false) => return Ok(Step::Wait),
            Err(error) => {
                self.space.release(promised);
                return Err(error);
            }
        }
        if !keep_size && end > self.tree.get(ino)?.size {
            match self.zero_tail(active, ino) {
                Ok(true) => {}
                Ok(false) => return Ok(Step::Wait),
                Err(error) => {
                    self.space.release(promised);
                    return Err(error);
                }
            }
            self.tree.get_mut(ino)?.size = end;
            self.settle(ino);
        }
        self.space.release(promised);
        let node = self.tree.get_mut(ino)?;
        node.times.change = active.time;
        self.note(ino, true);
        Ok(Step::Done(Outcome::Done))
    }

    /// Blocks of a range that the file does not have.
    fn holes(&self, ino: Ino, mut at: u32, end: u32) -> Result<u64, Error> {
        let node = self.tree.get(ino)?;
        let mut holes = 0;
        for extent in node.extents.from(at).take_while(|e| e.at < end) {
            holes += u64::from(extent.at.saturating_sub(at));
            at = extent.end();
        }
        Ok(holes + u64::from(end.saturating_sub(at)))
    }

    fn allocate_on(
        &mut self,
        active: &mut Active,
        ino: Ino,
        (next, end): (&mut u32, u32),
        promised: &mut u64,
    ) -> Result<bool, Error> {
        while *next < end {
            if !self.admit(2 * INODE_BYTES + EXTENT_BYTES) {
                return Ok(false);
            }
            if !self.has_metadata_room(EXTENT_BYTES) {
                return Err(Error::NoMetadataSpace);
            }
            let node = self.tree.get(ino)?;
            let count = match node.extents.find(*next) {
                Place::At(extent) => {
                    *next = extent.end();
                    continue;
                }
                Place::Hole { count } => count.min(end - *next),
            };
            // A run on its way to the device has its blocks, which are not in the map yet.
            if node.live.io > 0 {
                return Ok(false);
            }
            let goal = node.extents.goal(*next);
            let Some((phys, count)) = self.space.take(goal, count) else {
                return Err(Error::NoSpace);
            };
            self.space.release(count.into());
            *promised = promised.saturating_sub(count.into());
            let extent = Extent { at: *next, count, phys, written: false };
            self.tree.map(ino, extent);
            Record::Map { ino, extent }.encode(&mut self.txn.records);
            self.note(ino, true);
            self.tree.get_mut(ino)?.times.change = active.time;
            *next += count;
        }
        Ok(true)
    }
}

/// The parts of a range that are not whole blocks.
fn ragged(from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
    let block = BLOCK as u64;
    let head_end = from.next_multiple_of(block).min(to);
    let tail = (to / block * block).max(head_end);
    [(from, head_end), (tail, to)].into_iter().filter(|(a, b)| a < b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ragged_parts_are_what_is_left_of_whole_blocks() {
        let parts = |from, to| ragged(from, to).collect::<Vec<_>>();
        assert_eq!(parts(0, 8192), []);
        assert_eq!(parts(10, 20), [(10, 20)]);
        assert_eq!(parts(10, 4096), [(10, 4096)]);
        assert_eq!(parts(10, 9000), [(10, 4096), (8192, 9000)]);
        assert_eq!(parts(4096, 4100), [(4096, 4100)]);
        assert_eq!(parts(50, 20), []);
    }
}
