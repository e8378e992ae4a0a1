//! What becomes of requests that have ended: answers, offsets, open files.

use block::BlockDevice;
use rustix::io::Errno;
use store::{Error, Ino, Op, OpResult};

use crate::Service;
use crate::calls::negative_errno;
use crate::locks::LockOwner;
use crate::open_files::{OpenFile, flags as f};
use crate::pending_calls::PendingCall;
use crate::posted_writes::PostedWrite;
use crate::service::StartResult;

/// What is to be done when a request has ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnComplete {
    /// Answer 0.
    Answer,
    /// Answer with the bytes.
    Bytes,
    /// The same, of a write.
    Written(u64),
    /// Answer with the bytes; the open file's offset is behind them.
    Advance { handle: u64, writes: bool },
    /// Answer with the bytes that were written before, and are durable now.
    Synced(u32),
    /// A file was made, and is open: the socket with the number is to stand for it.
    Created { number: u64, flags: u64 },
    /// A file that is open was cut off.
    Truncated { number: u64, flags: u64, ino: Ino },
    /// Nobody waits for it.
    PostedWrite(PostedWrite),
}

impl OnComplete {
    pub(crate) fn is_posted_write(self) -> bool {
        matches!(self, OnComplete::PostedWrite(_))
    }
}

impl<D: BlockDevice> Service<D> {
    pub(crate) fn on_op_complete(&mut self, id: u64, result: Result<OpResult, Error>) {
        let Some(PendingCall { from, on_complete: then, mapping_update: effect }) =
            self.pending_calls.remove(id)
        else {
            return;
        };
        let number = |error: Error| -i64::from(error.errno());
        let result = result.map_err(number).and_then(|outcome| {
            let (region, at) = (&self.sessions[from.session].region, slots::data_offset(from.slot));
            let followed = self.shared_mappings.apply(effect, outcome, region, at);
            // The store has it, and who maps the file does not: it has no memory for it.
            followed.map_err(|_| negative_errno(Errno::NOMEM)).map(|()| outcome)
        });
        if let OnComplete::PostedWrite(left) = then {
            return self.on_posted_write_complete(from, left, result);
        }
        if let OnComplete::Advance { handle, .. } = then
            && let Some(file) = self.files.get_mut(&handle)
        {
            file.busy = false;
            if let Ok(OpResult::Bytes { offset, len }) = result {
                file.offset = offset + u64::from(len);
            }
        }
        if let OnComplete::Written(handle) | OnComplete::Advance { handle, writes: true } = then
            && let Ok(OpResult::Bytes { len, .. }) = result
            && let Some(file) = self.files.get(&handle)
            && file.flags & f::SYNC != 0
        {
            let data_only = file.flags & f::SYNC != f::SYNC;
            let sync = Op::Sync { ino: file.ino, data_only };
            // There is room for it: the write has ended.
            if self.submit_op(from, sync, OnComplete::Synced(len)) == StartResult::Pending {
                return;
            }
        }
        let answer = match (then, result) {
            (OnComplete::Created { number, flags }, Ok(OpResult::Inode(ino))) => {
                self.register_open_file(number, ino, false, flags)
            }
            (OnComplete::Truncated { number, flags, ino }, Ok(_)) => {
                self.register_open_file(number, ino, false, flags)
            }
            (OnComplete::Truncated { number, ino, .. }, Err(answer)) => {
                self.connections.drop_socket(number);
                // It was open, by ourselves.
                let _ = self.volume.close(ino);
                answer
            }
            (OnComplete::Created { number, .. }, Err(answer)) => {
                self.connections.drop_socket(number);
                answer
            }
            (OnComplete::Synced(len), Ok(_)) => len.into(),
            (
                OnComplete::Written(handle) | OnComplete::Advance { handle, writes: true },
                Ok(OpResult::Bytes { offset, len }),
            ) => i64::from(len) + self.grant_posting(from, handle, offset),
            (OnComplete::Bytes | OnComplete::Advance { .. }, Ok(OpResult::Bytes { len, .. })) => {
                len.into()
            }
            (_, Ok(_)) => 0,
            (_, Err(answer)) => answer,
        };
        self.complete_call(from, answer);
        if let OnComplete::Advance { handle, .. } = then
            && self.files.get(&handle).is_some_and(|file| file.hung_up)
        {
            self.close_if_unused(handle);
        }
    }

    /// A socket stands for an inode that has been opened, from now on; the answer to who opened it.
    pub(crate) fn register_open_file(
        &mut self,
        number: u64,
        ino: Ino,
        directory: bool,
        flags: u64,
    ) -> i64 {
        let end = match self.connections.claim(number) {
            Ok(end) => end,
            Err(errno) => {
                // Nothing would ever close it.
                let _ = self.volume.close(ino);
                return -i64::from(errno.raw_os_error());
            }
        };
        // A number that was another's is that one's no more.
        if let Some(before) = self.files.remove(&number) {
            self.close_file(number, &before);
        }
        self.count_opened();
        let file = OpenFile { directory, ..OpenFile::new(ino, flags & !f::OPENING, end) };
        self.files.insert(number, file);
        self.close_if_unused(number);
        directory.into()
    }

    /// Closes an open file of which no descriptor is left; one that a call uses when that has ended.
    pub(crate) fn close_if_unused(&mut self, number: u64) {
        let Some(file) = self.files.get_mut(&number) else { return };
        file.hung_up = file.is_used();
        if !file.hung_up
            && file.is_closed()
            && let Some(file) = self.files.remove(&number)
        {
            self.close_file(number, &file);
        }
    }

    pub(crate) fn close_file(&mut self, number: u64, file: &OpenFile) {
        self.locks.release_all(LockOwner::OpenFile(number));
        self.locks.release_all(LockOwner::Flock(number));
        if file.posted_write_error.is_some() {
            self.count_writeback_failure();
        }
        // It was open; a store that has failed has nothing to close.
        let _ = self.volume.close(file.ino);
        if file.is_mapping {
            self.on_unmapped(file.ino);
        }
    }
}
