//! Writes and appends, into pages. One request at a time changes a file, so that appended data is
//! contiguous.

use std::ops::Range;

use crate::on_media::record::INODE_BYTES;
use crate::parts::page_cache::ByteRange;
use crate::parts::requests::{ActiveRequest, OpSlot, OpState};
use crate::pipeline::page_lookup::LookupResult;
use crate::pipeline::{Core, OpStep, StepResult};
use crate::{BLOCK, Error, Ino, OpResult, RequestBuffer};

impl Core {
    /// Makes a request its file's writer; returns `false` while there is another one.
    pub(super) fn begin_change(
        &mut self,
        slot: OpSlot,
        active: &mut ActiveRequest,
        ino: Ino,
    ) -> Result<bool, Error> {
        self.tree.file(ino)?;
        let node = self.pin_inode(active, ino)?;
        Ok(node.state.users.begin_change(slot))
    }

    pub(super) fn write(
        &mut self,
        slot: OpSlot,
        active: &mut ActiveRequest,
        ino: Ino,
        offset: Option<u64>,
        data: RequestBuffer,
    ) -> StepResult {
        if active.state == OpState::Start {
            if !self.begin_change(slot, active, ino)? {
                return Ok(OpStep::Wait);
            }
            let offset = offset.unwrap_or(self.tree.get(ino)?.size);
            let len = u64::from(data.len);
            if offset.checked_add(len).is_none_or(|end| end > self.file_bytes_max()) {
                return Err(Error::TooLarge);
            }
            if len == 0 {
                return Ok(OpStep::Done(OpResult::Bytes { offset, len: 0 }));
            }
            self.requests.resolve(data.iova, len)?;
            active.state = OpState::Write { offset, done: 0 };
        }
        let OpState::Write { offset, mut done } = active.state else {
            unreachable!("requests: a write in state {:?}", active.state);
        };
        let result = self.step_write(active, ino, offset, data, &mut done);
        active.state = OpState::Write { offset, done };
        match result {
            // A partial write succeeds with the bytes written.
            Err(Error::BadAddress) | Ok(()) if done == data.len => {}
            Err(_) if done > 0 => {}
            Err(error) => return Err(error),
            Ok(()) => return Ok(OpStep::Wait),
        }
        Ok(OpStep::Done(OpResult::Bytes { offset, len: done }))
    }

    /// Writes as far as possible now.
    fn step_write(
        &mut self,
        active: &mut ActiveRequest,
        ino: Ino,
        offset: u64,
        data: RequestBuffer,
        done: &mut u32,
    ) -> Result<(), Error> {
        while *done < data.len {
            if !self.ensure_journal_space(2 * INODE_BYTES) {
                return Ok(());
            }
            let at = offset + u64::from(*done);
            let size = self.tree.get(ino)?.size;
            let tail = size / BLOCK as u64;
            if at > size && at / BLOCK as u64 != tail && !self.zero_tail(active, ino)? {
                return Ok(());
            }
            let end = offset + u64::from(data.len);
            let (block, within) = ((at / BLOCK as u64) as u32, (at % BLOCK as u64) as usize);
            let whole = self.whole_blocks(at, end);
            if whole > 0 {
                if !self.write_whole(active, ino, block..block + whole, data, *done)? {
                    return Ok(());
                }
                *done += whole * BLOCK as u32;
                continue;
            }
            let len = (BLOCK - within).min((data.len - *done) as usize);
            let frame = match self.page_for_write(active, ino, block, len == BLOCK)? {
                LookupResult::Ready(frame) => frame,
                LookupResult::Wait => return Ok(()),
            };
            self.copy_in(frame, within, data.iova.offset((*done).into()), len)?;
            // Preceding zeros that become part of the file have changed as well.
            let begin = u64::from(block) * BLOCK as u64;
            let end = size.saturating_sub(begin).min(within as u64) as usize;
            self.mark_dirty(ino, block, frame, ByteRange(end.min(within), within + len));
            *done += len as u32;
            self.extend_file(active, ino, at + len as u64)?;
        }
        Ok(())
    }

    /// Records a change up to byte `end` of a file.
    fn extend_file(&mut self, active: &ActiveRequest, ino: Ino, end: u64) -> Result<(), Error> {
        let node = self.tree.get_mut(ino)?;
        node.size = node.size.max(end);
        (node.times.modify, node.times.change) = (active.time, active.time);
        self.add_inode_to_txn(ino, false);
        self.made_progress = true;
        Ok(())
    }

    /// Writes whole blocks at once; returns `false` while that must wait. They are the request's
    /// data from byte `from` on.
    fn write_whole(
        &mut self,
        active: &mut ActiveRequest,
        ino: Ino,
        blocks: Range<u32>,
        data: RequestBuffer,
        from: u32,
    ) -> Result<bool, Error> {
        let count = blocks.len() as u32;
        self.requests.resolve(data.iova.offset(from.into()), u64::from(count) * BLOCK as u64)?;
        let is_failed = active.failed.is_some();
        if !is_failed && !self.can_write_whole(active, ino, blocks.start, count)? {
            return Ok(false);
        }
        for (i, block) in (0..).zip(blocks.clone()) {
            let frame = match self.page_for_write(active, ino, block, true)? {
                LookupResult::Ready(frame) => frame,
                LookupResult::Wait if i == 0 => return Ok(false),
                LookupResult::Wait => {
                    panic!("pages: block {block} of {ino} must wait after others were changed")
                }
            };
            self.copy_in(frame, 0, data.iova.offset((from + i * BLOCK as u32).into()), BLOCK)?;
            self.mark_dirty(ino, block, frame, ByteRange::ALL);
            self.page_cache.mark_whole(frame, block + 1 < blocks.end);
        }
        self.extend_file(active, ino, u64::from(blocks.end) * BLOCK as u64)?;
        Ok(true)
    }
}
