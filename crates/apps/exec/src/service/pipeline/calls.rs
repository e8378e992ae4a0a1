//! Translates calls into operations of the volume. Error numbers are those of the Linux manual page
//! of each call.
//!
//! Paths arrive normalized (no `..`), relative to an open directory or the root. The volume has no
//! symbolic links, so no path leaves it.

use block::BlockDevice;
use exec_proto::{Call, CallOp, StatReply, entry};
use rustix::io::Errno;
use volume::{BLOCK, Error, Ino, InodeKind, InodePermissions, Name, SetAttr, Time, VolumeOp};

use crate::Service;
use crate::locks::{LockOwner, LockedRange};
use crate::open_files::{OpenFile, flags as f};
use crate::service::pipeline::completion::OnComplete;
use crate::service::{CallId, StartResult};

/// Returns an error number as it appears in a reply.
pub(crate) fn negative_errno(errno: Errno) -> i64 {
    -i64::from(errno.raw_os_error())
}

fn store_errno(error: Error) -> i64 {
    -i64::from(error.errno())
}

type CallResult<T> = Result<T, i64>;

/// `fallocate(2)`: do not change the size.
const KEEP_SIZE: u64 = 1;
/// `fallocate(2)`: deallocate blocks.
const PUNCH_HOLE: u64 = 2;
/// `renameat2(2)`: fail if the new name exists.
const NO_REPLACE: u64 = 1;

impl<D: BlockDevice> Service<D> {
    /// Starts a call. If the result is [`StartResult::Retry`], nothing has changed.
    pub(crate) fn start_call(&mut self, from: CallId, call: &Call) -> StartResult {
        self.start_call_inner(from, call).unwrap_or_else(StartResult::Completed)
    }

    fn start_call_inner(&mut self, from: CallId, call: &Call) -> CallResult<StartResult> {
        let Call { op, handle, args: [a, b, c, d], len } = *call;
        let then = OnComplete::Answer;
        let asked = match op {
            CallOp::Open => return self.open(from, call),
            CallOp::Read | CallOp::ReadAt => return self.read(from, call),
            CallOp::Write | CallOp::WriteAt => return self.write(from, call),
            CallOp::WriteAtomic => return self.write_atomic(from, call),
            CallOp::Seek => return self.seek(handle, a as i64, b).map(StartResult::Completed),
            CallOp::Stat => return self.stat(from, call).map(StartResult::Completed),
            CallOp::List => return self.list(from, handle, a).map(StartResult::Completed),
            CallOp::Statfs => return Ok(StartResult::Completed(self.statfs(from))),
            CallOp::Path => return self.path_of(from, handle).map(StartResult::Completed),
            CallOp::Lock => return self.lock(from, call).map(StartResult::Completed),
            CallOp::Flock => return self.flock(handle, a).map(StartResult::Completed),
            CallOp::Flags => return Ok(StartResult::Completed(self.file(handle)?.flags as i64)),
            CallOp::SetFlags => {
                let file = self.files.get_mut(&handle).ok_or(negative_errno(Errno::BADF))?;
                file.flags = file.flags & !f::SETTABLE | a & f::SETTABLE;
                return Ok(StartResult::Completed(0));
            }
            CallOp::Release => {
                if let Some(file) = self.files.get(&handle) {
                    let owner = LockOwner::Process(self.sessions[from.session].process);
                    self.locks.clear(file.ino, owner, 0..u64::MAX);
                }
                return Ok(StartResult::Completed(0));
            }
            CallOp::Mmap => return self.map(from, call),
            CallOp::Sync => {
                let file = self.files.get_mut(&handle).ok_or(negative_errno(Errno::BADF))?;
                if let Some(error) = file.posted_write_error.take() {
                    return Err(error);
                }
                let (ino, data_only) = (file.ino, a != 0);
                if self.is_written_by_mappings(ino) {
                    return Ok(self.sync_mapped(from, ino, data_only, b, c));
                }
                VolumeOp::Sync { ino, data_only }
            }
            CallOp::SyncAll if !self.shared_mappings.is_empty() => {
                return Ok(self.sync_all_mapped(from));
            }
            CallOp::SyncAll => VolumeOp::SyncAll,
            CallOp::Truncate => {
                let file = self.file(handle)?;
                if !file.writable() || (a as i64) < 0 {
                    return Err(negative_errno(Errno::INVAL));
                }
                VolumeOp::Truncate { ino: file.ino, size: a }
            }
            CallOp::TruncatePath => {
                let ino = self.resolve(from, handle, len)?;
                self.not_directory(ino)?;
                if (a as i64) < 0 {
                    return Err(negative_errno(Errno::INVAL));
                }
                VolumeOp::Truncate { ino, size: a }
            }
            CallOp::Allocate => {
                let file = self.file(handle)?;
                if !file.writable() {
                    return Err(negative_errno(Errno::BADF));
                }
                let (ino, offset, len) = (file.ino, b, c);
                if (offset as i64) < 0 || (len as i64) <= 0 {
                    return Err(negative_errno(Errno::INVAL));
                }
                match a {
                    0 | KEEP_SIZE => VolumeOp::Allocate { ino, offset, len, keep_size: a != 0 },
                    mode if mode == KEEP_SIZE | PUNCH_HOLE => VolumeOp::Punch { ino, offset, len },
                    _ => return Err(negative_errno(Errno::OPNOTSUPP)),
                }
            }
            CallOp::Rename => {
                let first = usize::try_from(a).map_err(|_| negative_errno(Errno::INVAL))?;
                if first > len || c & !NO_REPLACE != 0 {
                    return Err(negative_errno(Errno::INVAL));
                }
                let (dir, name) = self.resolve_parent(from, handle, (0, first))?;
                let (to, new) = self.resolve_parent(from, b, (first, len - first))?;
                VolumeOp::Rename { from: dir, name, to, new, replace: c & NO_REPLACE == 0 }
            }
            CallOp::Unlink => {
                let (dir, name) = self.resolve_parent(from, handle, (0, len))?;
                VolumeOp::Unlink { dir, name }
            }
            CallOp::RemoveDirectory => {
                let (dir, name) = self.resolve_parent(from, handle, (0, len))?;
                VolumeOp::RemoveDirectory { dir, name }
            }
            CallOp::MakeDirectory => {
                if self.resolve(from, handle, len).is_ok() {
                    return Err(negative_errno(Errno::EXIST));
                }
                let (dir, name) = self.resolve_parent(from, handle, (0, len))?;
                VolumeOp::MakeDirectory { dir, name, access: access(a, (b, c)) }
            }
            CallOp::SetAttr => {
                let ino = self.resolve(from, handle, len)?;
                VolumeOp::SetAttr { ino, changes: self.set_attr((a, b, c, d)) }
            }
        };
        Ok(self.submit_op(from, asked, then))
    }

    pub(crate) fn file(&self, handle: u64) -> CallResult<&OpenFile> {
        self.files.get(&handle).ok_or(negative_errno(Errno::BADF))
    }

    /// Returns the inode relative to which a path is resolved.
    fn base(&self, handle: u64) -> CallResult<Ino> {
        match handle {
            0 => Ok(Ino::ROOT),
            _ => self.file(handle).map(|file| file.ino),
        }
    }

    /// Copies a path out of a slot.
    fn copy_path(&mut self, from: CallId, (at, len): (usize, usize)) {
        self.scratch.path.resize(len, 0);
        let region = &self.sessions[from.session].region;
        region.read(exec_proto::data_offset(from.slot) + at, &mut self.scratch.path);
    }

    /// Resolves a path; an empty path means the open file.
    fn resolve(&mut self, from: CallId, handle: u64, len: usize) -> CallResult<Ino> {
        self.copy_path(from, (0, len));
        self.volume.lookup(self.base(handle)?, &self.scratch.path).map_err(store_errno)
    }

    fn not_directory(&self, ino: Ino) -> CallResult<()> {
        let stat = self.volume.stat(ino).map_err(store_errno)?;
        if stat.kind == InodeKind::Directory { Err(negative_errno(Errno::ISDIR)) } else { Ok(()) }
    }

    /// Resolves the directory of a path's last component, and returns it with the name.
    fn resolve_parent(
        &mut self,
        from: CallId,
        handle: u64,
        part: (usize, usize),
    ) -> CallResult<(Ino, Name)> {
        self.copy_path(from, part);
        let base = self.base(handle)?;
        let path = &self.scratch.path[..];
        let end = path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
        let (path, directory) = (&path[..end], end < path.len());
        let begin = path.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
        if path[begin..].is_empty() {
            // The path is the root of the volume.
            return Err(negative_errno(Errno::BUSY));
        }
        let dir = self.volume.lookup(base, &path[..begin]).map_err(store_errno)?;
        let name = Name::new(&path[begin..]).map_err(store_errno)?;
        if directory && let Ok(ino) = self.volume.lookup(dir, name.as_bytes()) {
            let stat = self.volume.stat(ino).map_err(store_errno)?;
            if stat.kind != InodeKind::Directory {
                return Err(negative_errno(Errno::NOTDIR));
            }
        }
        Ok((dir, name))
    }

    fn open(&mut self, from: CallId, call: &Call) -> CallResult<StartResult> {
        let Call { handle, args: [flags, mode, number, owner], len, .. } = *call;
        let begun = self.open_inner(from, handle, (flags, mode, number, owner), len);
        if begun.is_err() {
            self.connections.drop_socket(number);
        }
        begun
    }

    fn open_inner(
        &mut self,
        from: CallId,
        handle: u64,
        (flags, mode, number, owner): (u64, u64, u64, u64),
        len: usize,
    ) -> CallResult<StartResult> {
        let creates = flags & f::CREATE != 0;
        match self.resolve(from, handle, len) {
            Ok(_) if creates && flags & f::EXCLUSIVE != 0 => Err(negative_errno(Errno::EXIST)),
            Ok(ino) => {
                let stat = self.volume.stat(ino).map_err(store_errno)?;
                if stat.kind == InodeKind::Directory {
                    if flags & f::ACCESS != 0 || creates {
                        return Err(negative_errno(Errno::ISDIR));
                    }
                    self.volume.open(ino).map_err(store_errno)?;
                    return Ok(StartResult::Completed(
                        self.register_open_file(number, ino, true, flags),
                    ));
                }
                if flags & f::DIRECTORY != 0 {
                    return Err(negative_errno(Errno::NOTDIR));
                }
                self.volume.open(ino).map_err(store_errno)?;
                let cuts = flags & f::TRUNCATE != 0 && flags & f::ACCESS != 0 && stat.size > 0;
                if !cuts {
                    return Ok(StartResult::Completed(
                        self.register_open_file(number, ino, false, flags),
                    ));
                }
                let then = OnComplete::Truncated { number, flags, ino };
                let begun = self.submit_op(from, VolumeOp::Truncate { ino, size: 0 }, then);
                if begun == StartResult::Retry {
                    self.volume.close(ino).map_err(store_errno)?;
                }
                Ok(begun)
            }
            Err(error) if error == negative_errno(Errno::NOENT) && creates => {
                if self.scratch.path.ends_with(b"/") {
                    return Err(negative_errno(Errno::ISDIR));
                }
                let (dir, name) = self.resolve_parent(from, handle, (0, len))?;
                let access = access(mode, (owner & u64::from(u32::MAX), owner >> 32));
                let asked = VolumeOp::Create { dir, name, access, exclusive: false, open: true };
                Ok(self.submit_op(from, asked, OnComplete::Created { number, flags }))
            }
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, from: CallId, call: &Call) -> CallResult<StartResult> {
        let file = self.file(call.handle)?;
        if !file.readable() {
            return Err(negative_errno(Errno::BADF));
        }
        if file.directory {
            return Err(negative_errno(Errno::ISDIR));
        }
        let ino = file.ino;
        let data = self.sessions[from.session].buffer(from.slot, call.len);
        if call.op == CallOp::ReadAt {
            let offset = offset(call.args[0])?;
            return Ok(self.submit_op(
                from,
                VolumeOp::Read { ino, offset, data },
                OnComplete::Bytes,
            ));
        }
        if file.busy {
            return Ok(StartResult::Retry);
        }
        let op = VolumeOp::Read { ino, offset: file.offset, data };
        Ok(self.start_at_offset(from, call.handle, op, false))
    }

    fn write(&mut self, from: CallId, call: &Call) -> CallResult<StartResult> {
        let file = self.file(call.handle)?;
        if !file.writable() {
            return Err(negative_errno(Errno::BADF));
        }
        let (ino, appends) = (file.ino, file.flags & f::APPEND != 0);
        let data = self.sessions[from.session].buffer(from.slot, call.len);
        if call.op == CallOp::WriteAt {
            // With O_APPEND, Linux appends whatever the offset.
            let offset = offset(call.args[0])?;
            let op = if appends {
                VolumeOp::Append { ino, data }
            } else {
                VolumeOp::Write { ino, offset, data }
            };
            return Ok(self.submit_op(from, op, OnComplete::Written(call.handle)));
        }
        if file.busy {
            return Ok(StartResult::Retry);
        }
        let offset = file.offset;
        let op = if appends {
            VolumeOp::Append { ino, data }
        } else {
            VolumeOp::Write { ino, offset, data }
        };
        Ok(self.start_at_offset(from, call.handle, op, true))
    }

    /// Writes with `RWF_ATOMIC`. The volume keeps every such write whole, with the flag or without;
    /// the flag has Linux's checks, in Linux's order (`generic_atomic_write_valid`).
    fn write_atomic(&mut self, from: CallId, call: &Call) -> CallResult<StartResult> {
        let Call { handle, args: [at, bytes, buffers, _], len, .. } = *call;
        let file = self.file(handle)?;
        if !file.writable() {
            return Err(negative_errno(Errno::BADF));
        }
        let max = u64::from(self.volume.atomic_write_bytes_max());
        if max == 0 {
            return Err(negative_errno(Errno::OPNOTSUPP));
        }
        let has_length = (BLOCK as u64..=max).contains(&bytes) && bytes.is_power_of_two();
        if !has_length || buffers != 1 || len as u64 != bytes {
            return Err(negative_errno(Errno::INVAL));
        }
        let is_current = at == exec_proto::CURRENT_OFFSET;
        if is_current && file.busy {
            return Ok(StartResult::Retry);
        }
        let offset = if is_current { file.offset } else { offset(at)? };
        // An append goes to the end of the file, which need not be aligned when the write is executed.
        let appends = file.flags & f::APPEND != 0;
        if appends || !offset.is_multiple_of(bytes) {
            return Err(negative_errno(Errno::INVAL));
        }
        if file.flags & f::DIRECT == 0 {
            return Err(negative_errno(Errno::OPNOTSUPP));
        }
        let ino = file.ino;
        let data = self.sessions[from.session].buffer(from.slot, len);
        let op = VolumeOp::Write { ino, offset, data };
        if is_current {
            return Ok(self.start_at_offset(from, handle, op, true));
        }
        Ok(self.submit_op(from, op, OnComplete::Written(handle)))
    }

    /// Submits an operation that uses and advances an open file's offset.
    fn start_at_offset(
        &mut self,
        from: CallId,
        handle: u64,
        op: VolumeOp,
        writes: bool,
    ) -> StartResult {
        let begun = self.submit_op(from, op, OnComplete::Advance { handle, writes });
        if begun == StartResult::Pending
            && let Some(file) = self.files.get_mut(&handle)
        {
            file.busy = true;
        }
        begun
    }

    fn seek(&mut self, handle: u64, to: i64, whence: u64) -> CallResult<i64> {
        let ino = self.file(handle)?.ino;
        let size = self.volume.stat(ino).map_err(store_errno)?.size as i64;
        let file = self.files.get_mut(&handle).ok_or(negative_errno(Errno::BADF))?;
        let target = match whence {
            0 => Some(to),
            1 => (file.offset as i64).checked_add(to),
            2 => size.checked_add(to),
            // A file is reported as all data, followed by a hole at its end (lseek(2) permits
            // this).
            3 | 4 if to < 0 || to >= size => return Err(negative_errno(Errno::NXIO)),
            3 => Some(to),
            4 => Some(size),
            _ => None,
        };
        let target = target.filter(|t| *t >= 0).ok_or(negative_errno(Errno::INVAL))?;
        file.offset = target as u64;
        Ok(target)
    }

    fn stat(&mut self, from: CallId, call: &Call) -> CallResult<i64> {
        let ino = self.resolve(from, call.handle, call.len)?;
        let stat = self.volume.stat(ino).map_err(store_errno)?;
        let times = stat.times;
        let directory = stat.kind == InodeKind::Directory;
        let atomic_max = if directory { 0 } else { self.volume.atomic_write_bytes_max() };
        let facts = StatReply {
            ino: ino.0,
            directory,
            mode: stat.access.mode & 0o7777,
            uid: stat.access.uid,
            gid: stat.access.gid,
            links: stat.links,
            size: stat.size,
            blocks: stat.blocks,
            times: [times.access.0, times.modify.0, times.change.0, times.birth.0],
            atomic_max,
        };
        self.write_reply(from, 0, &facts.encode());
        Ok(StatReply::BYTES as i64)
    }

    /// Writes a part of a reply into a slot.
    fn write_reply(&self, from: CallId, at: usize, bytes: &[u8]) {
        self.sessions[from.session].region.write(exec_proto::data_offset(from.slot) + at, bytes);
    }

    fn list(&mut self, from: CallId, handle: u64, cookie: u64) -> CallResult<i64> {
        let file = self.file(handle)?;
        let mut at = 0;
        for listed in self.volume.list(file.ino, cookie).map_err(store_errno)? {
            let name = listed.name;
            if at + entry::HEAD_BYTES + name.len() > exec_proto::DATA_BYTES {
                break;
            }
            let directory = listed.kind == InodeKind::Directory;
            let head = entry::encode(listed.cookie, listed.ino.0, directory, name.len() as u8);
            self.write_reply(from, at, &head);
            self.write_reply(from, at + entry::HEAD_BYTES, name);
            at += entry::HEAD_BYTES + name.len();
        }
        Ok(at as i64)
    }

    fn statfs(&self, from: CallId) -> i64 {
        let has = self.volume.statfs();
        let words = [has.block_bytes.into(), has.blocks, has.free, has.inodes, has.free_inodes];
        for (i, word) in words.iter().enumerate() {
            self.write_reply(from, i * 8, &u64::to_le_bytes(*word));
        }
        (words.len() * 8) as i64
    }

    fn path_of(&self, from: CallId, handle: u64) -> CallResult<i64> {
        let mut ino = self.base(handle)?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        while ino != Ino::ROOT {
            let parent = self.volume.parent(ino).map_err(store_errno)?;
            let mut entries = self.volume.list(parent, 0).map_err(store_errno)?;
            let name = entries.find(|e| e.ino == ino).ok_or(negative_errno(Errno::NOENT))?.name;
            names.push(name.to_vec());
            ino = parent;
        }
        names.reverse();
        let path = names.join(&b'/');
        if path.len() > exec_proto::DATA_BYTES {
            return Err(negative_errno(Errno::NAMETOOLONG));
        }
        self.write_reply(from, 0, &path);
        Ok(path.len() as i64)
    }

    fn set_attr(&self, (what, b, c, d): (u64, u64, u64, u64)) -> SetAttr {
        let given = |number: u64| Some(number as u32).filter(|n| *n != u32::MAX);
        let instant = |time: u64| match time {
            exec_proto::TIME_STAYS => None,
            exec_proto::TIME_NOW => Some(self.clock.time),
            time => Some(Time(time as i64)),
        };
        let mut changes = SetAttr::default();
        if what & exec_proto::CHANGE_MODE != 0 {
            changes.mode = Some(b as u32 & 0o7777);
        }
        if what & exec_proto::CHANGE_OWNER != 0 {
            (changes.uid, changes.gid) = (given(b), given(c));
        }
        if what & exec_proto::CHANGE_TIMES != 0 {
            (changes.access, changes.modify) = (instant(c), instant(d));
        }
        changes
    }

    fn lock(&mut self, from: CallId, call: &Call) -> CallResult<i64> {
        /// `l_type` of `fcntl(2)` on Linux.
        const TYPES: [i64; 3] = [0, 1, 2];
        let Call { handle, args: [how, kind, begin, len], .. } = *call;
        let file = self.file(handle)?;
        let owner = if how & exec_proto::LOCK_OPEN_FILE != 0 {
            LockOwner::OpenFile(handle)
        } else {
            LockOwner::Process(self.sessions[from.session].process)
        };
        let end = match len {
            0 => u64::MAX,
            len => begin.checked_add(len).ok_or(negative_errno(Errno::OVERFLOW))?,
        };
        let wanted =
            LockedRange { ino: file.ino, owner, begin, end, write: kind as i64 == TYPES[1] };
        if how & exec_proto::LOCK_GET != 0 {
            let (kind, begin, end, process) = match self.locks.conflict(&wanted) {
                None => (TYPES[2], 0, 0, 0),
                Some(other) => {
                    let process = match other.owner {
                        LockOwner::Process(process) => i64::from(process),
                        _ => -1,
                    };
                    (i64::from(other.write), other.begin, other.end, process)
                }
            };
            let len = if end == u64::MAX { 0 } else { end - begin };
            for (i, word) in [kind as u64, begin, len, process as u64].iter().enumerate() {
                self.write_reply(from, i * 8, &word.to_le_bytes());
            }
            return Ok(0);
        }
        match kind as i64 {
            0 if !file.readable() => Err(negative_errno(Errno::BADF)),
            1 if !file.writable() => Err(negative_errno(Errno::BADF)),
            0 | 1 if self.locks.set(wanted) => Ok(0),
            0 | 1 => Err(negative_errno(Errno::AGAIN)),
            2 => {
                self.locks.clear(wanted.ino, owner, begin..end);
                Ok(0)
            }
            _ => Err(negative_errno(Errno::INVAL)),
        }
    }

    fn flock(&mut self, handle: u64, operation: u64) -> CallResult<i64> {
        /// `flock(2)`: shared, exclusive, unlock. The client does the waiting.
        const OPERATIONS: [u64; 3] = [1, 2, 8];
        let ino = self.file(handle)?.ino;
        let (owner, begin, end) = (LockOwner::Flock(handle), 0, u64::MAX);
        let write = operation == OPERATIONS[1];
        if operation == OPERATIONS[2] {
            self.locks.clear(ino, owner, begin..end);
            return Ok(0);
        }
        if !OPERATIONS.contains(&operation) {
            return Err(negative_errno(Errno::INVAL));
        }
        if self.locks.set(LockedRange { ino, owner, begin, end, write }) {
            return Ok(0);
        }
        Err(negative_errno(Errno::AGAIN))
    }
}

fn access(mode: u64, (uid, gid): (u64, u64)) -> InodePermissions {
    InodePermissions { mode: mode as u32 & 0o7777, uid: uid as u32, gid: gid as u32 }
}

pub(crate) fn offset(offset: u64) -> CallResult<u64> {
    if (offset as i64) < 0 { Err(negative_errno(Errno::INVAL)) } else { Ok(offset) }
}
