//! Completion of volume operations: replies, file offsets, open files.

use block::BlockDevice;
use rustix::io::Errno;
use volume::{Error, Ino, OpResult, VolumeOp};

use crate::Service;
use crate::locks::LockOwner;
use crate::open_files::{OpenFile, flags as f};
use crate::pending_calls::PendingCall;
use crate::service::StartResult;
use crate::service::pipeline::calls::negative_errno;
use crate::service::pipeline::posted_writes::PostedWrite;

/// Action after an operation has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnComplete {
    /// Reply 0.
    Answer,
    /// Reply the number of bytes.
    Bytes,
    /// Reply the number of bytes of a write.
    Written(u64),
    /// Reply the number of bytes, and advance the open file's offset.
    Advance { handle: u64, writes: bool },
    /// Reply the number of bytes written before, which are durable now.
    Synced(u32),
    /// The file was created and is open: the numbered socket represents it.
    Created { number: u64, flags: u64 },
    /// A file that is open was truncated.
    Truncated { number: u64, flags: u64, ino: Ino },
    /// A posted write, which has no reply.
    PostedWrite(PostedWrite),
}

impl OnComplete {
    pub(crate) fn is_posted_write(self) -> bool {
        matches!(self, OnComplete::PostedWrite(_))
    }
}

impl<D: BlockDevice> Service<D> {
    pub(crate) fn on_op_complete(&mut self, id: u64, result: Result<OpResult, Error>) {
        let pending = self.calls.pending.remove(id);
        let PendingCall { from, on_complete: then, mapping_update: effect } = pending
            .unwrap_or_else(|| panic!("calls: operation {id} completes, and no call waits for it"));
        let number = |error: Error| -i64::from(error.errno());
        let result = result.map_err(number).and_then(|outcome| {
            let (region, at) =
                (&self.sessions[from.session].region, exec_proto::data_offset(from.slot));
            let followed = self.shared_mappings.apply(effect, outcome, region, at);
            // The volume has the data, but the mapping's memory file does not: it is out of memory.
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
            && self.syncs_writes(file)
        {
            let data_only = file.flags & f::SYNC != f::SYNC;
            let sync = VolumeOp::Sync { ino: file.ino, data_only };
            // The write has completed, so a request is free for the sync.
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
                // The service had opened it.
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

    /// Makes a socket represent an opened inode, and returns the reply to the open call.
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
                // No descriptor represents it, so the service closes it.
                let _ = self.volume.close(ino);
                return -i64::from(errno.raw_os_error());
            }
        };
        // If the number was in use, the previous file's socket is closed already.
        if let Some(before) = self.files.remove(&number) {
            self.close_file(number, &before);
        }
        self.count_opened();
        let file = OpenFile { directory, ..OpenFile::new(ino, flags & !f::OPENING, end) };
        self.files.insert(number, file);
        self.close_if_unused(number);
        directory.into()
    }

    /// Closes an open file without descriptors; if a call still uses it, closes it after that call.
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
        // A failed volume cannot close a file; ignore it.
        let _ = self.volume.close(file.ino);
        if file.is_mapping {
            self.on_unmapped(file.ino);
        }
    }
}
