//! Writes and appends, into pages. One request at a time changes a file, so that appended data is
//! contiguous.

use crate::on_media::record::INODE_BYTES;
use crate::parts::page_cache::ByteRange;
use crate::parts::requests::{ActiveRequest, OpSlot, OpState};
use crate::pipeline::page_lookup::LookupResult;
use crate::pipeline::{Core, OpStep, StepResult};
use crate::{BLOCK, Error, FILE_BYTES_MAX, Ino, OpResult, RequestBuffer};

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
            if offset.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
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
            let (block, within) = ((at / BLOCK as u64) as u32, (at % BLOCK as u64) as usize);
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
            let node = self.tree.get_mut(ino)?;
            node.size = node.size.max(at + len as u64);
            (node.times.modify, node.times.change) = (active.time, active.time);
            self.add_inode_to_txn(ino, false);
            self.made_progress = true;
        }
        Ok(())
    }
}
