//! Writes that nobody waits for ([`slots::left`]): in which order they are done, what is reserved for them, and who
//! hears of their errors.
//!
//! What a thread left before it called, or before it told another thread, is to be done before what that one calls or
//! leaves. So calls are taken first and what is left second: of what was left before any of these calls nothing is missed.
//! And what is left is looked for twice: what the second look finds with a smaller number than something of the
//! first came before it, as far as anybody can tell.

use std::collections::VecDeque;

use block::Device;
use rustix::io::Errno;
use slots::{Call, Op as CallOp, hands, left};
use store::{BLOCK, Op, Outcome, Time};

use crate::Service;
use crate::calls::{no, offset};
use crate::ends::Then;
use crate::open_files::flags as f;
use crate::service::{Begun, From};

/// Of what a session may leave, how much must be free for it to be granted: as many times, and after that.
const PLENTY: u64 = 8;

/// One that the store has a request for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    handle: u64,
    len: u32,
    /// Blocks that were reserved for it.
    room: u64,
    /// The open file's offset is where it ends.
    moves: bool,
}

/// Those that the store has no request for yet.
#[derive(Debug, Default)]
pub(crate) struct LeftOnes {
    /// Found, with their tickets; something that came before may not have been.
    found: Vec<(u64, From, Option<Call>)>,
    /// In order.
    ready: VecDeque<(From, Option<Call>)>,
    /// Programs have been told to leave nothing.
    watched: bool,
}

impl<D: Device> Service<D> {
    /// Takes what was left, and begins it as far as it goes; whether there was anything.
    pub(crate) fn take_left(&mut self) -> bool {
        let mut found = std::mem::take(&mut self.left.found);
        self.look_for_left(&mut found);
        if let Some(last) = found.iter().map(|(ticket, ..)| *ticket).max() {
            self.look_for_left(&mut found);
            found.sort_unstable_by_key(|(ticket, ..)| *ticket);
            let ready = found.partition_point(|(ticket, ..)| *ticket <= last);
            self.left.ready.extend(found.drain(..ready).map(|(_, from, call)| (from, call)));
            self.left.found = found;
            self.begin_left();
            return true;
        }
        self.left.found = found;
        false
    }

    fn look_for_left(&mut self, found: &mut Vec<(u64, From, Option<Call>)>) {
        for (session, of) in self.sessions.iter_mut().enumerate() {
            let mut bits = of.left();
            while bits != 0 {
                let slot = bits.trailing_zeros() as usize;
                let writes = |call: &Call| matches!(call.op, CallOp::Write | CallOp::WriteAt);
                let call = of.call(slot).filter(writes);
                let ticket = call.map_or(0, |call| call.args[2]);
                found.push((ticket, From { session, slot }, call));
                bits &= bits - 1;
            }
        }
    }

    /// Begins what is ready, until one has to wait; whether anything was.
    pub(crate) fn begin_left(&mut self) -> bool {
        let mut moved = false;
        while let Some((from, call)) = self.left.ready.front().copied() {
            match call.map(|call| (call.handle, self.begin_one(from, &call))) {
                Some((_, Ok(Begun::Later))) => break,
                Some((_, Ok(_))) => {}
                Some((handle, Err(error))) => {
                    if let Some(file) = self.files.get_mut(&handle) {
                        file.error.get_or_insert(error);
                    }
                    self.free(from);
                }
                None => {
                    self.count_refused();
                    self.free(from);
                }
            }
            self.left.ready.pop_front();
            moved = true;
        }
        moved
    }

    fn begin_one(&mut self, from: From, call: &Call) -> Result<Begun, i64> {
        let Call { op, handle, args: [at, time, ..], len } = *call;
        let file = self.file(handle)?;
        if !file.writable() {
            return Err(no(Errno::BADF));
        }
        let moves = op == CallOp::Write;
        if moves && file.busy {
            return Ok(Begun::Later);
        }
        let (ino, appends) = (file.ino, file.flags & f::APPEND != 0);
        let at = if moves { file.offset } else { offset(at)? };
        let session = &self.sessions[from.session];
        let data = session.buffer(from.slot, len);
        // Who leaves what it has no room for may find that there is none.
        let room = Some(left::blocks(len)).filter(|room| *room <= session.room).unwrap_or(0);
        let time = Time((time as i64).min(self.time.0));
        let asked =
            if appends { Op::Append { ino, data } } else { Op::Write { ino, offset: at, data } };
        let left = Left { handle, len: data.len, room, moves: moves && appends };
        let begun = self.ask_with(from, asked, Then::Left(left), (time, room));
        if begun == Begun::UnderWay {
            self.sessions[from.session].room -= room;
            if let Some(file) = self.files.get_mut(&handle) {
                file.left += 1;
                // All of it will be written, so the next one need not wait.
                file.offset += if moves && !appends { len as u64 } else { 0 };
            }
        }
        Ok(begun)
    }

    pub(crate) fn left_ended(&mut self, from: From, left: Left, result: Result<Outcome, i64>) {
        let Left { handle, len, room, moves } = left;
        let mut hung_up = false;
        if let Some(file) = self.files.get_mut(&handle) {
            file.left -= 1;
            match result {
                Ok(Outcome::Bytes { offset, len: written }) if written == len => {
                    file.offset = if moves { offset + u64::from(len) } else { file.offset };
                }
                Ok(_) => drop(file.error.get_or_insert(no(Errno::NOSPC))),
                Err(error) => drop(file.error.get_or_insert(error)),
            }
            hung_up = file.hung_up;
        }
        self.free(from);
        if room > 0 && !self.sessions[from.session].is_over() && self.store.reserve(room) {
            self.sessions[from.session].grant(room);
        }
        if hung_up {
            self.close_if_gone(handle);
        }
    }

    /// What is added to the answer of a write that has ended there.
    pub(crate) fn may_leave(&mut self, from: From, handle: u64, offset: u64) -> i64 {
        let synced = self.files.get(&handle).is_none_or(|file| file.flags & f::SYNC != 0);
        if synced || offset >= left::END_MAX {
            return 0;
        }
        let session = &mut self.sessions[from.session];
        if session.room == 0
            && self.store.has_room(PLENTY * left::ROOM_MAX)
            && self.store.reserve(left::ROOM_MAX)
        {
            session.grant(left::ROOM_MAX);
        }
        left::MAY_LEAVE
    }

    /// Whether a call would come before something that was left before it.
    pub(crate) fn waits_for_left(&self, call: &Call) -> bool {
        if !self.left.ready.is_empty() {
            return true;
        }
        match call.op {
            CallOp::Flags | CallOp::SetFlags | CallOp::Closed | CallOp::Lock | CallOp::Flock => {
                false
            }
            CallOp::Read
            | CallOp::ReadAt
            | CallOp::Write
            | CallOp::WriteAt
            | CallOp::Seek
            | CallOp::Sync
            | CallOp::Truncate
            | CallOp::Allocate
            | CallOp::Map => {
                let file = self.files.get(&call.handle);
                file.is_some_and(|file| self.under_way.has_left(Some(file.ino)))
            }
            _ => self.under_way.has_left(None),
        }
    }

    /// Takes what is reserved back when these calls may need it.
    pub(crate) fn make_room(&mut self, posted: &[(From, Option<Call>)]) {
        let needs = |call: &Call| match call.op {
            CallOp::Allocate => call.args[2] / BLOCK as u64 + 1,
            _ => left::blocks(call.len),
        };
        let needed = posted.iter().filter_map(|(_, call)| call.as_ref()).map(needs);
        let needed = needed.fold(left::ROOM_MAX, u64::saturating_add);
        if !self.store.has_room(needed) {
            for session in &mut self.sessions {
                self.store.unreserve(session.revoke());
            }
        }
    }

    /// A session's process is gone: what is reserved for it is not, when nothing of it is under way.
    pub(crate) fn take_room_back(&mut self, session: usize) {
        if self.sessions[session].is_over() {
            self.store.unreserve(self.sessions[session].revoke());
        }
    }

    /// Has programs leave nothing, because somebody is about to see bytes without asking; whether what was left
    /// has begun.
    pub(crate) fn watches(&mut self) -> bool {
        if !self.left.watched {
            self.left.watched = true;
            hands::watch(self.bell.half_word(slots::WATCHED));
            self.take_left();
        }
        self.left.ready.is_empty()
    }

    /// Lets them again when nobody does.
    pub(crate) fn watch_no_more(&mut self) {
        if self.left.watched && self.images.is_empty() && self.passes.is_empty() {
            self.left.watched = false;
            let word = self.bell.half_word(slots::WATCHED);
            word.store(0, std::sync::atomic::Ordering::Relaxed);
        }
    }
}
