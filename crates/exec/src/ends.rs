//! What becomes of requests that have ended: answers, offsets, open files.

use block::Device;
use rustix::io::Errno;
use store::{Error, Ino, Op, Outcome};

use crate::Service;
use crate::calls::no;
use crate::left::Left;
use crate::locks::Owner;
use crate::open_files::{OpenFile, flags as f};
use crate::service::Begun;
use crate::under_way::Asked;

/// What is to be done when a request has ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
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
    CutOff { number: u64, flags: u64, ino: Ino },
    /// Nobody waits for it.
    Left(Left),
}

impl Then {
    pub(crate) fn is_left(self) -> bool {
        matches!(self, Then::Left(_))
    }
}

impl<D: Device> Service<D> {
    pub(crate) fn ended(&mut self, id: u64, result: Result<Outcome, Error>) {
        let Some(Asked { from, then, effect }) = self.under_way.take(id) else { return };
        let number = |error: Error| -i64::from(error.errno());
        let result = result.map_err(number).and_then(|outcome| {
            let (region, at) = (&self.sessions[from.session].region, slots::data(from.slot));
            let followed = self.images.follow(effect, outcome, region, at);
            // The store has it, and who maps the file does not: it has no memory for it.
            followed.map_err(|_| no(Errno::NOMEM)).map(|()| outcome)
        });
        if let Then::Left(left) = then {
            return self.left_ended(from, left, result);
        }
        if let Then::Advance { handle, .. } = then
            && let Some(file) = self.files.get_mut(&handle)
        {
            file.busy = false;
            if let Ok(Outcome::Bytes { offset, len }) = result {
                file.offset = offset + u64::from(len);
            }
        }
        if let Then::Written(handle) | Then::Advance { handle, writes: true } = then
            && let Ok(Outcome::Bytes { len, .. }) = result
            && let Some(file) = self.files.get(&handle)
            && file.flags & f::SYNC != 0
        {
            let data_only = file.flags & f::SYNC != f::SYNC;
            let sync = Op::Sync { ino: file.ino, data_only };
            // There is room for it: the write has ended.
            if self.ask(from, sync, Then::Synced(len)) == Begun::UnderWay {
                return;
            }
        }
        let answer = match (then, result) {
            (Then::Created { number, flags }, Ok(Outcome::Inode(ino))) => {
                self.opened(number, ino, false, flags)
            }
            (Then::CutOff { number, flags, ino }, Ok(_)) => self.opened(number, ino, false, flags),
            (Then::CutOff { number, ino, .. }, Err(answer)) => {
                self.door.refuse(number);
                // It was open, by ourselves.
                let _ = self.store.close(ino);
                answer
            }
            (Then::Created { number, .. }, Err(answer)) => {
                self.door.refuse(number);
                answer
            }
            (Then::Synced(len), Ok(_)) => len.into(),
            (
                Then::Written(handle) | Then::Advance { handle, writes: true },
                Ok(Outcome::Bytes { offset, len }),
            ) => i64::from(len) + self.may_leave(from, handle, offset),
            (Then::Bytes | Then::Advance { .. }, Ok(Outcome::Bytes { len, .. })) => len.into(),
            (_, Ok(_)) => 0,
            (_, Err(answer)) => answer,
        };
        self.answer(from, answer);
        if let Then::Advance { handle, .. } = then
            && self.files.get(&handle).is_some_and(|file| file.hung_up)
        {
            self.close_if_gone(handle);
        }
    }

    /// A socket stands for an inode that has been opened, from now on; the answer to who opened it.
    pub(crate) fn opened(&mut self, number: u64, ino: Ino, directory: bool, flags: u64) -> i64 {
        let end = match self.door.claim(number) {
            Ok(end) => end,
            Err(errno) => {
                // Nothing would ever close it.
                let _ = self.store.close(ino);
                return -i64::from(errno.raw_os_error());
            }
        };
        // A number that was another's is that one's no more.
        if let Some(before) = self.files.remove(&number) {
            self.gone(number, &before);
        }
        self.count_opened();
        let file = OpenFile { directory, ..OpenFile::new(ino, flags & !f::OPENING, end) };
        self.files.insert(number, file);
        self.close_if_gone(number);
        directory.into()
    }

    /// Closes an open file of which no descriptor is left; one that a call uses when that has ended.
    pub(crate) fn close_if_gone(&mut self, number: u64) {
        let Some(file) = self.files.get_mut(&number) else { return };
        file.hung_up = file.is_used();
        if !file.hung_up
            && file.is_closed()
            && let Some(file) = self.files.remove(&number)
        {
            self.gone(number, &file);
        }
    }

    pub(crate) fn gone(&mut self, number: u64, file: &OpenFile) {
        self.locks.gone(Owner::OpenFile(number));
        self.locks.gone(Owner::Whole(number));
        if file.error.is_some() {
            self.count_lost();
        }
        // It was open; a store that has failed has nothing to close.
        let _ = self.store.close(file.ino);
        if file.mapping {
            self.unmapped(file.ino);
        }
    }
}
