//! What each call asks of the store. Error numbers are those of Linux's manual pages for the call.
//!
//! Paths come normalized (no `..`), relative to an open directory or the root; the volume has no symbolic
//! links, so nothing leads out of it.

use block::Device;
use rustix::io::Errno;
use slots::{Call, Facts, Op as CallOp, entry};
use store::{Access, Changes, Error, Ino, Kind, Name, Op, Time};

use crate::Service;
use crate::ends::Then;
use crate::locks::{Lock, Owner};
use crate::open_files::{OpenFile, flags as f};
use crate::service::{Begun, From};

/// An error number, as an answer has it.
pub(crate) fn no(errno: Errno) -> i64 {
    -i64::from(errno.raw_os_error())
}

fn wrong(error: Error) -> i64 {
    -i64::from(error.errno())
}

type Answered<T> = Result<T, i64>;

/// `fallocate(2)`: the size stays.
const KEEP_SIZE: u64 = 1;
/// `fallocate(2)`: give blocks back.
const PUNCH_HOLE: u64 = 2;
/// `renameat2(2)`: nothing may have the new name.
const NO_REPLACE: u64 = 1;

impl<D: Device> Service<D> {
    /// Begins what a call is for. Nothing has changed if the answer is [`Begun::Later`].
    pub(crate) fn begin(&mut self, from: From, call: &Call) -> Begun {
        self.begun(from, call).unwrap_or_else(Begun::Answer)
    }

    fn begun(&mut self, from: From, call: &Call) -> Answered<Begun> {
        let Call { op, handle, args: [a, b, c, d], len } = *call;
        let then = Then::Answer;
        let asked = match op {
            CallOp::Open => return self.open(from, call),
            CallOp::Read | CallOp::ReadAt => return self.read(from, call),
            CallOp::Write | CallOp::WriteAt => return self.write(from, call),
            CallOp::Seek => return self.seek(handle, a as i64, b).map(Begun::Answer),
            CallOp::Stat => return self.stat(from, call).map(Begun::Answer),
            CallOp::List => return self.list(from, handle, a).map(Begun::Answer),
            CallOp::Statfs => return Ok(Begun::Answer(self.statfs(from))),
            CallOp::Path => return self.path_of(from, handle).map(Begun::Answer),
            CallOp::Lock => return self.lock(from, call).map(Begun::Answer),
            CallOp::Flock => return self.flock(handle, a).map(Begun::Answer),
            CallOp::Flags => return Ok(Begun::Answer(self.file(handle)?.flags as i64)),
            CallOp::SetFlags => {
                let file = self.files.get_mut(&handle).ok_or(no(Errno::BADF))?;
                file.flags = file.flags & !f::SETTABLE | a & f::SETTABLE;
                return Ok(Begun::Answer(0));
            }
            CallOp::Closed => {
                if let Some(file) = self.files.get(&handle) {
                    let owner = Owner::Process(self.sessions[from.session].process);
                    self.locks.clear(file.ino, owner, (0, u64::MAX));
                }
                return Ok(Begun::Answer(0));
            }
            CallOp::Map => return self.map(from, call),
            CallOp::Sync => {
                let file = self.files.get_mut(&handle).ok_or(no(Errno::BADF))?;
                if let Some(error) = file.error.take() {
                    return Err(error);
                }
                let (ino, data_only) = (file.ino, a != 0);
                if self.is_written_by_mappings(ino) {
                    return Ok(self.sync_mapped(from, ino, data_only, (b, c)));
                }
                Op::Sync { ino, data_only }
            }
            CallOp::SyncAll if !self.images.is_empty() => return Ok(self.sync_all_mapped(from)),
            CallOp::SyncAll => Op::SyncAll,
            CallOp::Truncate => {
                let file = self.file(handle)?;
                if !file.writable() || (a as i64) < 0 {
                    return Err(no(Errno::INVAL));
                }
                Op::Truncate { ino: file.ino, size: a }
            }
            CallOp::TruncatePath => {
                let ino = self.at(from, handle, len)?;
                self.not_directory(ino)?;
                if (a as i64) < 0 {
                    return Err(no(Errno::INVAL));
                }
                Op::Truncate { ino, size: a }
            }
            CallOp::Allocate => {
                let file = self.file(handle)?;
                if !file.writable() {
                    return Err(no(Errno::BADF));
                }
                let (ino, offset, len) = (file.ino, b, c);
                if (offset as i64) < 0 || (len as i64) <= 0 {
                    return Err(no(Errno::INVAL));
                }
                match a {
                    0 | KEEP_SIZE => Op::Allocate { ino, offset, len, keep_size: a != 0 },
                    mode if mode == KEEP_SIZE | PUNCH_HOLE => Op::Punch { ino, offset, len },
                    _ => return Err(no(Errno::OPNOTSUPP)),
                }
            }
            CallOp::Rename => {
                let first = usize::try_from(a).map_err(|_| no(Errno::INVAL))?;
                if first > len || c & !NO_REPLACE != 0 {
                    return Err(no(Errno::INVAL));
                }
                let (dir, name) = self.named(from, handle, (0, first))?;
                let (to, new) = self.named(from, b, (first, len - first))?;
                Op::Rename { from: dir, name, to, new, replace: c & NO_REPLACE == 0 }
            }
            CallOp::Unlink => {
                let (dir, name) = self.named(from, handle, (0, len))?;
                Op::Unlink { dir, name }
            }
            CallOp::RemoveDirectory => {
                let (dir, name) = self.named(from, handle, (0, len))?;
                Op::RemoveDirectory { dir, name }
            }
            CallOp::MakeDirectory => {
                if self.at(from, handle, len).is_ok() {
                    return Err(no(Errno::EXIST));
                }
                let (dir, name) = self.named(from, handle, (0, len))?;
                Op::MakeDirectory { dir, name, access: access(a, (b, c)) }
            }
            CallOp::Change => {
                let ino = self.at(from, handle, len)?;
                Op::Change { ino, changes: self.changes((a, b, c, d)) }
            }
        };
        Ok(self.ask(from, asked, then))
    }

    pub(crate) fn file(&self, handle: u64) -> Answered<&OpenFile> {
        self.files.get(&handle).ok_or(no(Errno::BADF))
    }

    /// Where a path begins.
    fn base(&self, handle: u64) -> Answered<Ino> {
        match handle {
            0 => Ok(Ino::ROOT),
            _ => self.file(handle).map(|file| file.ino),
        }
    }

    /// Copies a path out of a slot.
    fn take_path(&mut self, from: From, (at, len): (usize, usize)) {
        self.path.resize(len, 0);
        let region = &self.sessions[from.session].region;
        region.read(slots::data(from.slot) + at, &mut self.path);
    }

    /// What a path leads to; without one, what is open.
    fn at(&mut self, from: From, handle: u64, len: usize) -> Answered<Ino> {
        self.take_path(from, (0, len));
        self.store.lookup(self.base(handle)?, &self.path).map_err(wrong)
    }

    fn not_directory(&self, ino: Ino) -> Answered<()> {
        let stat = self.store.stat(ino).map_err(wrong)?;
        if stat.kind == Kind::Directory { Err(no(Errno::ISDIR)) } else { Ok(()) }
    }

    /// The directory that a path's last name is in, and the name.
    fn named(&mut self, from: From, handle: u64, part: (usize, usize)) -> Answered<(Ino, Name)> {
        self.take_path(from, part);
        let base = self.base(handle)?;
        let path = &self.path[..];
        let end = path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
        let (path, directory) = (&path[..end], end < path.len());
        let begin = path.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
        if path[begin..].is_empty() {
            // The volume's root itself.
            return Err(no(Errno::BUSY));
        }
        let dir = self.store.lookup(base, &path[..begin]).map_err(wrong)?;
        let name = Name::new(&path[begin..]).map_err(wrong)?;
        if directory && let Ok(ino) = self.store.lookup(dir, name.as_bytes()) {
            let stat = self.store.stat(ino).map_err(wrong)?;
            if stat.kind != Kind::Directory {
                return Err(no(Errno::NOTDIR));
            }
        }
        Ok((dir, name))
    }

    fn open(&mut self, from: From, call: &Call) -> Answered<Begun> {
        let Call { handle, args: [flags, mode, number, owner], len, .. } = *call;
        let begun = self.open_inner(from, handle, (flags, mode, number, owner), len);
        if begun.is_err() {
            self.door.refuse(number);
        }
        begun
    }

    fn open_inner(
        &mut self,
        from: From,
        handle: u64,
        (flags, mode, number, owner): (u64, u64, u64, u64),
        len: usize,
    ) -> Answered<Begun> {
        let creates = flags & f::CREATE != 0;
        match self.at(from, handle, len) {
            Ok(_) if creates && flags & f::EXCLUSIVE != 0 => Err(no(Errno::EXIST)),
            Ok(ino) => {
                let stat = self.store.stat(ino).map_err(wrong)?;
                if stat.kind == Kind::Directory {
                    if flags & f::ACCESS != 0 || creates {
                        return Err(no(Errno::ISDIR));
                    }
                    self.store.open(ino).map_err(wrong)?;
                    return Ok(Begun::Answer(self.opened(number, ino, true, flags)));
                }
                if flags & f::DIRECTORY != 0 {
                    return Err(no(Errno::NOTDIR));
                }
                self.store.open(ino).map_err(wrong)?;
                let cuts = flags & f::TRUNCATE != 0 && flags & f::ACCESS != 0 && stat.size > 0;
                if !cuts {
                    return Ok(Begun::Answer(self.opened(number, ino, false, flags)));
                }
                let then = Then::CutOff { number, flags, ino };
                let begun = self.ask(from, Op::Truncate { ino, size: 0 }, then);
                if begun == Begun::Later {
                    self.store.close(ino).map_err(wrong)?;
                }
                Ok(begun)
            }
            Err(error) if error == no(Errno::NOENT) && creates => {
                if self.path.ends_with(b"/") {
                    return Err(no(Errno::ISDIR));
                }
                let (dir, name) = self.named(from, handle, (0, len))?;
                let access = access(mode, (owner & u64::from(u32::MAX), owner >> 32));
                let asked = Op::Create { dir, name, access, exclusive: false, open: true };
                Ok(self.ask(from, asked, Then::Created { number, flags }))
            }
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, from: From, call: &Call) -> Answered<Begun> {
        let file = self.file(call.handle)?;
        if !file.readable() {
            return Err(no(Errno::BADF));
        }
        if file.directory {
            return Err(no(Errno::ISDIR));
        }
        let ino = file.ino;
        let data = self.sessions[from.session].buffer(from.slot, call.len);
        if call.op == CallOp::ReadAt {
            let offset = offset(call.args[0])?;
            return Ok(self.ask(from, Op::Read { ino, offset, data }, Then::Bytes));
        }
        if file.busy {
            return Ok(Begun::Later);
        }
        let op = Op::Read { ino, offset: file.offset, data };
        Ok(self.advance(from, call.handle, op, false))
    }

    fn write(&mut self, from: From, call: &Call) -> Answered<Begun> {
        let file = self.file(call.handle)?;
        if !file.writable() {
            return Err(no(Errno::BADF));
        }
        let (ino, appends) = (file.ino, file.flags & f::APPEND != 0);
        let data = self.sessions[from.session].buffer(from.slot, call.len);
        if call.op == CallOp::WriteAt {
            // With O_APPEND, Linux appends whatever the offset.
            let offset = offset(call.args[0])?;
            let op =
                if appends { Op::Append { ino, data } } else { Op::Write { ino, offset, data } };
            return Ok(self.ask(from, op, Then::Written(call.handle)));
        }
        if file.busy {
            return Ok(Begun::Later);
        }
        let offset = file.offset;
        let op = if appends { Op::Append { ino, data } } else { Op::Write { ino, offset, data } };
        Ok(self.advance(from, call.handle, op, true))
    }

    /// Asks for what moves an open file's offset.
    fn advance(&mut self, from: From, handle: u64, op: Op, writes: bool) -> Begun {
        let begun = self.ask(from, op, Then::Advance { handle, writes });
        if begun == Begun::UnderWay
            && let Some(file) = self.files.get_mut(&handle)
        {
            file.busy = true;
        }
        begun
    }

    fn seek(&mut self, handle: u64, to: i64, whence: u64) -> Answered<i64> {
        let ino = self.file(handle)?.ino;
        let size = self.store.stat(ino).map_err(wrong)?.size as i64;
        let file = self.files.get_mut(&handle).ok_or(no(Errno::BADF))?;
        let target = match whence {
            0 => Some(to),
            1 => (file.offset as i64).checked_add(to),
            2 => size.checked_add(to),
            // All of a file is data, and behind it is a hole (lseek(2) allows this).
            3 | 4 if to < 0 || to >= size => return Err(no(Errno::NXIO)),
            3 => Some(to),
            4 => Some(size),
            _ => None,
        };
        let target = target.filter(|t| *t >= 0).ok_or(no(Errno::INVAL))?;
        file.offset = target as u64;
        Ok(target)
    }

    fn stat(&mut self, from: From, call: &Call) -> Answered<i64> {
        let ino = self.at(from, call.handle, call.len)?;
        let stat = self.store.stat(ino).map_err(wrong)?;
        let times = stat.times;
        let facts = Facts {
            ino: ino.0,
            directory: stat.kind == Kind::Directory,
            mode: stat.access.mode & 0o7777,
            uid: stat.access.uid,
            gid: stat.access.gid,
            links: stat.links,
            size: stat.size,
            blocks: stat.blocks,
            times: [times.access.0, times.modify.0, times.change.0, times.birth.0],
        };
        self.put(from, 0, &facts.encode());
        Ok(Facts::BYTES as i64)
    }

    /// Puts a part of an answer into a slot.
    fn put(&self, from: From, at: usize, bytes: &[u8]) {
        self.sessions[from.session].region.write(slots::data(from.slot) + at, bytes);
    }

    fn list(&mut self, from: From, handle: u64, cookie: u64) -> Answered<i64> {
        let file = self.file(handle)?;
        let mut at = 0;
        for listed in self.store.list(file.ino, cookie).map_err(wrong)? {
            let name = listed.name;
            if at + entry::HEAD + name.len() > slots::DATA {
                break;
            }
            let directory = listed.kind == Kind::Directory;
            let head = entry::encode(listed.cookie, listed.ino.0, directory, name.len() as u8);
            self.put(from, at, &head);
            self.put(from, at + entry::HEAD, name);
            at += entry::HEAD + name.len();
        }
        Ok(at as i64)
    }

    fn statfs(&self, from: From) -> i64 {
        let has = self.store.statfs();
        let words = [has.block_bytes.into(), has.blocks, has.free, has.inodes, has.free_inodes];
        for (i, word) in words.iter().enumerate() {
            self.put(from, i * 8, &u64::to_le_bytes(*word));
        }
        (words.len() * 8) as i64
    }

    fn path_of(&self, from: From, handle: u64) -> Answered<i64> {
        let mut ino = self.base(handle)?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        while ino != Ino::ROOT {
            let parent = self.store.parent(ino).map_err(wrong)?;
            let mut entries = self.store.list(parent, 0).map_err(wrong)?;
            let name = entries.find(|e| e.ino == ino).ok_or(no(Errno::NOENT))?.name;
            names.push(name.to_vec());
            ino = parent;
        }
        names.reverse();
        let path = names.join(&b'/');
        if path.len() > slots::DATA {
            return Err(no(Errno::NAMETOOLONG));
        }
        self.put(from, 0, &path);
        Ok(path.len() as i64)
    }

    fn changes(&self, (what, b, c, d): (u64, u64, u64, u64)) -> Changes {
        let given = |number: u64| Some(number as u32).filter(|n| *n != u32::MAX);
        let instant = |time: u64| match time {
            slots::TIME_STAYS => None,
            slots::TIME_NOW => Some(self.time),
            time => Some(Time(time as i64)),
        };
        let mut changes = Changes::default();
        if what & slots::CHANGE_MODE != 0 {
            changes.mode = Some(b as u32 & 0o7777);
        }
        if what & slots::CHANGE_OWNER != 0 {
            (changes.uid, changes.gid) = (given(b), given(c));
        }
        if what & slots::CHANGE_TIMES != 0 {
            (changes.access, changes.modify) = (instant(c), instant(d));
        }
        changes
    }

    fn lock(&mut self, from: From, call: &Call) -> Answered<i64> {
        /// `l_type` of `fcntl(2)` on Linux.
        const TYPES: [i64; 3] = [0, 1, 2];
        let Call { handle, args: [how, kind, begin, len], .. } = *call;
        let file = self.file(handle)?;
        let owner = if how & slots::LOCK_OPEN_FILE != 0 {
            Owner::OpenFile(handle)
        } else {
            Owner::Process(self.sessions[from.session].process)
        };
        let end = match len {
            0 => u64::MAX,
            len => begin.checked_add(len).ok_or(no(Errno::OVERFLOW))?,
        };
        let wanted = Lock { ino: file.ino, owner, begin, end, write: kind as i64 == TYPES[1] };
        if how & slots::LOCK_GET != 0 {
            let (kind, begin, end, process) = match self.locks.conflict(&wanted) {
                None => (TYPES[2], 0, 0, 0),
                Some(other) => {
                    let process = match other.owner {
                        Owner::Process(process) => i64::from(process),
                        _ => -1,
                    };
                    (i64::from(other.write), other.begin, other.end, process)
                }
            };
            let len = if end == u64::MAX { 0 } else { end - begin };
            for (i, word) in [kind as u64, begin, len, process as u64].iter().enumerate() {
                self.put(from, i * 8, &word.to_le_bytes());
            }
            return Ok(0);
        }
        match kind as i64 {
            0 if !file.readable() => Err(no(Errno::BADF)),
            1 if !file.writable() => Err(no(Errno::BADF)),
            0 | 1 if self.locks.set(wanted) => Ok(0),
            0 | 1 => Err(no(Errno::AGAIN)),
            2 => {
                self.locks.clear(wanted.ino, owner, (begin, end));
                Ok(0)
            }
            _ => Err(no(Errno::INVAL)),
        }
    }

    fn flock(&mut self, handle: u64, operation: u64) -> Answered<i64> {
        /// Of `flock(2)`: shared, exclusive, unlock; whether it waits is the client's matter.
        const OPERATIONS: [u64; 3] = [1, 2, 8];
        let ino = self.file(handle)?.ino;
        let (owner, begin, end) = (Owner::Whole(handle), 0, u64::MAX);
        let write = operation == OPERATIONS[1];
        if operation == OPERATIONS[2] {
            self.locks.clear(ino, owner, (begin, end));
            return Ok(0);
        }
        if !OPERATIONS.contains(&operation) {
            return Err(no(Errno::INVAL));
        }
        if self.locks.set(Lock { ino, owner, begin, end, write }) {
            return Ok(0);
        }
        Err(no(Errno::AGAIN))
    }
}

fn access(mode: u64, (uid, gid): (u64, u64)) -> Access {
    Access { mode: mode as u32 & 0o7777, uid: uid as u32, gid: gid as u32 }
}

pub(crate) fn offset(offset: u64) -> Answered<u64> {
    if (offset as i64) < 0 { Err(no(Errno::INVAL)) } else { Ok(offset) }
}
