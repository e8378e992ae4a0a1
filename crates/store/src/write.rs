//! Writing and appending: into frames. One request at a time changes a file, so that what is appended is
//! in one piece.

use crate::cached::Found;
use crate::core::{Active, Core, Progress, Step, Stepped};
use crate::frames::Span;
use crate::record::INODE_BYTES;
use crate::{BLOCK, Buffer, Error, FILE_BYTES_MAX, Ino, Outcome};

impl Core {
    /// Makes a request the one that changes its file; `false` while there is another one.
    pub(crate) fn begin_change(
        &mut self,
        slot: u32,
        active: &mut Active,
        ino: Ino,
    ) -> Result<bool, Error> {
        self.tree.file(ino)?;
        let node = self.hold(active, ino)?;
        if node.live.writer.is_some_and(|w| w != slot) {
            return Ok(false);
        }
        node.live.writer = Some(slot);
        Ok(true)
    }

    pub(crate) fn write(
        &mut self,
        slot: u32,
        active: &mut Active,
        ino: Ino,
        offset: Option<u64>,
        data: Buffer,
    ) -> Stepped {
        if active.progress == Progress::Start {
            if !self.begin_change(slot, active, ino)? {
                return Ok(Step::Wait);
            }
            let offset = offset.unwrap_or(self.tree.get(ino)?.size);
            let len = u64::from(data.len);
            if offset.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
                return Err(Error::TooLarge);
            }
            if len == 0 {
                return Ok(Step::Done(Outcome::Bytes { offset, len: 0 }));
            }
            self.find(data.at, len)?;
            active.progress = Progress::Write { offset, done: 0 };
        }
        let Progress::Write { offset, mut done } = active.progress else {
            return Err(Error::Invalid("a write that is none"));
        };
        let result = self.write_on(active, ino, offset, data, &mut done);
        active.progress = Progress::Write { offset, done };
        match result {
            // What was written is written.
            Err(Error::BadAddress) | Ok(()) if done == data.len => {}
            Err(_) if done > 0 => {}
            Err(error) => return Err(error),
            Ok(()) => return Ok(Step::Wait),
        }
        Ok(Step::Done(Outcome::Bytes { offset, len: done }))
    }

    /// Writes as far as it goes now.
    fn write_on(
        &mut self,
        active: &mut Active,
        ino: Ino,
        offset: u64,
        data: Buffer,
        done: &mut u32,
    ) -> Result<(), Error> {
        while *done < data.len {
            if !self.admit(2 * INODE_BYTES) {
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
            let frame = match self.block_for_change(active, ino, block, len == BLOCK)? {
                Found::There(frame) => frame,
                Found::Wait => return Ok(()),
            };
            self.copy_in(frame, within, data.at.offset((*done).into()), len)?;
            // Zeros before it that become part of the file are changed as well.
            let begin = u64::from(block) * BLOCK as u64;
            let end = size.saturating_sub(begin).min(within as u64) as usize;
            self.dirtied(ino, block, frame, Span(end.min(within), within + len));
            *done += len as u32;
            let node = self.tree.get_mut(ino)?;
            node.size = node.size.max(at + len as u64);
            (node.times.modify, node.times.change) = (active.time, active.time);
            self.note(ino, false);
            self.moved = true;
        }
        Ok(())
    }
}
