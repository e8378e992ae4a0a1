//! File attributes: `stat` and its family, permissions and times, and volume statistics.

use exec_proto::{CallOp, StatReply};
use libc::{AT_FDCWD, c_char, c_int, c_uint, c_ulong, mode_t, timespec};

use crate::namespace::path_calls::path_call;
use crate::namespace::paths::{PathTarget, ResolvedPath, resolve};
use crate::session::Slot;
use crate::{Errno, descriptors::fd_table, fail, libc_fns, status};

/// Device number of the volume's files; it belongs to no block device.
const DEVICE: u64 = 0x51_0000_0001;
const BLOCK: u64 = 4096;

/// Decodes a reply of `len` bytes; another length is that of a service of another version.
fn read_stat_reply(slot: &Slot, len: i64) -> Result<StatReply, Errno> {
    if len != StatReply::BYTES as i64 {
        return Err(libc::EPROTO);
    }
    let mut bytes = [0; StatReply::BYTES];
    slot.get(0, &mut bytes);
    Ok(StatReply::decode(&bytes))
}

/// Returns the attributes of an open file.
pub(crate) fn stat_handle(handle: u64) -> Result<StatReply, Errno> {
    let slot = Slot::claim()?;
    let len = slot.call(CallOp::Stat, handle, [0; 4], 0)?;
    read_stat_reply(&slot, len)
}

/// Returns the attributes of the file at a path.
pub(crate) fn stat_path(base: u64, path: &ResolvedPath) -> Result<StatReply, Errno> {
    let slot = Slot::claim()?;
    slot.put(0, path.bytes())?;
    let len = slot.call(CallOp::Stat, base, [0; 4], path.bytes().len())?;
    read_stat_reply(&slot, len)
}

fn mode_of(facts: &StatReply) -> u32 {
    facts.mode | if facts.directory { libc::S_IFDIR } else { libc::S_IFREG }
}

fn size_of(facts: &StatReply) -> u64 {
    if facts.directory { BLOCK } else { facts.size }
}

const SECOND: i64 = 1_000_000_000;

unsafe fn fill_stat(to: *mut libc::stat, facts: &StatReply) {
    let mut stat: libc::stat = std::mem::zeroed();
    stat.st_dev = DEVICE;
    stat.st_ino = facts.ino;
    stat.st_mode = mode_of(facts);
    stat.st_nlink = facts.links as _;
    (stat.st_uid, stat.st_gid) = (facts.uid, facts.gid);
    stat.st_size = size_of(facts) as i64;
    stat.st_blksize = BLOCK as _;
    stat.st_blocks = (facts.blocks * (BLOCK / 512)) as i64;
    let [access, modify, change, _] = facts.times;
    (stat.st_atime, stat.st_atime_nsec) = (access.div_euclid(SECOND), access.rem_euclid(SECOND));
    (stat.st_mtime, stat.st_mtime_nsec) = (modify.div_euclid(SECOND), modify.rem_euclid(SECOND));
    (stat.st_ctime, stat.st_ctime_nsec) = (change.div_euclid(SECOND), change.rem_euclid(SECOND));
    to.write(stat);
}

/// `STATX_WRITE_ATOMIC` and `STATX_ATTR_WRITE_ATOMIC` of Linux 6.11.
const STATX_WRITE_ATOMIC: c_uint = 0x1_0000;
const STATX_ATTR_WRITE_ATOMIC: u64 = 0x40_0000;

/// Reports the atomic writes of a regular file, if they are requested.
fn fill_atomic_writes(stat: &mut libc::statx, facts: &StatReply, mask: c_uint) {
    if mask & STATX_WRITE_ATOMIC == 0 || facts.directory {
        return;
    }
    stat.stx_mask |= STATX_WRITE_ATOMIC;
    stat.stx_attributes_mask |= STATX_ATTR_WRITE_ATOMIC;
    if facts.atomic_max > 0 {
        stat.stx_attributes |= STATX_ATTR_WRITE_ATOMIC;
        stat.stx_atomic_write_unit_min = BLOCK as u32;
        stat.stx_atomic_write_unit_max = facts.atomic_max;
        stat.stx_atomic_write_segments_max = 1;
    }
}

unsafe fn fill_statx(to: *mut libc::statx, facts: &StatReply, mask: c_uint) {
    let mut stat: libc::statx = std::mem::zeroed();
    stat.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    stat.stx_blksize = BLOCK as u32;
    stat.stx_nlink = facts.links;
    (stat.stx_uid, stat.stx_gid) = (facts.uid, facts.gid);
    stat.stx_mode = mode_of(facts) as u16;
    stat.stx_ino = facts.ino;
    stat.stx_size = size_of(facts);
    stat.stx_blocks = facts.blocks * (BLOCK / 512);
    let [access, modify, change, birth] = facts.times;
    let places =
        [&mut stat.stx_atime, &mut stat.stx_mtime, &mut stat.stx_ctime, &mut stat.stx_btime];
    for (place, time) in places.into_iter().zip([access, modify, change, birth]) {
        place.tv_sec = time.div_euclid(SECOND);
        place.tv_nsec = time.rem_euclid(SECOND) as u32;
    }
    stat.stx_dev_major = libc::major(DEVICE) as u32;
    stat.stx_dev_minor = libc::minor(DEVICE) as u32;
    fill_atomic_writes(&mut stat, facts, mask);
    to.write(stat);
}

/// Target of a call: an open file, a path on the volume, or the host.
enum CallTarget {
    Handle(u64),
    Path(u64),
    Host(c_int, *const c_char),
}

unsafe fn call_target(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    buffer: &mut ResolvedPath,
) -> Result<CallTarget, Errno> {
    let empty = path.is_null() || *path == 0;
    if empty && flags & libc::AT_EMPTY_PATH != 0 {
        return Ok(
            fd_table::handle(dirfd).map_or(CallTarget::Host(dirfd, path), CallTarget::Handle)
        );
    }
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    Ok(match resolve(dirfd, path, follow, buffer)? {
        PathTarget::Host(dirfd, path) => CallTarget::Host(dirfd, path),
        PathTarget::Volume(base) => CallTarget::Path(base),
    })
}

unsafe fn stat_any(dirfd: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
    let mut buffer = ResolvedPath::new();
    let found = match call_target(dirfd, path, flags, &mut buffer) {
        Ok(CallTarget::Host(dirfd, path)) => return libc_fns::fstatat()(dirfd, path, to, flags),
        Ok(CallTarget::Handle(handle)) => stat_handle(handle),
        Ok(CallTarget::Path(base)) => stat_path(base, &buffer),
        Err(errno) => Err(errno),
    };
    match found {
        Ok(facts) => {
            fill_stat(to, &facts);
            0
        }
        Err(errno) => fail(errno),
    }
}

unsafe fn access_any(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    let mut buffer = ResolvedPath::new();
    let found = match call_target(dirfd, path, flags, &mut buffer) {
        Ok(CallTarget::Host(dirfd, path)) => {
            return libc_fns::faccessat()(dirfd, path, mode, flags);
        }
        Ok(CallTarget::Handle(handle)) => stat_handle(handle),
        Ok(CallTarget::Path(base)) => stat_path(base, &buffer),
        Err(errno) => Err(errno),
    };
    match found {
        // Permissions are stored, not enforced, except that a file without any execute bit cannot
        // be executed.
        Ok(facts) if mode & libc::X_OK != 0 && !facts.directory && facts.mode & 0o111 == 0 => {
            fail(libc::EACCES)
        }
        Ok(_) => 0,
        Err(errno) => fail(errno),
    }
}

/// Changes attributes of a call's target.
unsafe fn set_attr(
    (dirfd, path, flags): (c_int, *const c_char, c_int),
    args: [u64; 4],
    real: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    let mut buffer = ResolvedPath::new();
    match call_target(dirfd, path, flags, &mut buffer) {
        Ok(CallTarget::Host(dirfd, path)) => real(dirfd, path),
        Ok(CallTarget::Handle(handle)) => {
            status(crate::session::call(CallOp::SetAttr, handle, args))
        }
        Ok(CallTarget::Path(base)) => status(path_call(CallOp::SetAttr, base, &buffer, args)),
        Err(errno) => fail(errno),
    }
}

fn mode_change(mode: mode_t) -> [u64; 4] {
    [exec_proto::CHANGE_MODE, mode.into(), 0, 0]
}

fn owner_change(uid: c_uint, gid: c_uint) -> [u64; 4] {
    [exec_proto::CHANGE_OWNER, uid.into(), gid.into(), 0]
}

unsafe fn times_change(times: *const timespec) -> [u64; 4] {
    let word = |time: &timespec| match time.tv_nsec {
        libc::UTIME_NOW => exec_proto::TIME_NOW,
        libc::UTIME_OMIT => exec_proto::TIME_STAYS,
        nanos => (time.tv_sec.saturating_mul(SECOND).saturating_add(nanos)) as u64,
    };
    if times.is_null() {
        return [exec_proto::CHANGE_TIMES, 0, exec_proto::TIME_NOW, exec_proto::TIME_NOW];
    }
    [exec_proto::CHANGE_TIMES, 0, word(&*times), word(&*times.add(1))]
}

/// Returns the volume's block size, blocks, free blocks, inodes and free inodes.
fn statfs_words() -> Result<[u64; 5], Errno> {
    let slot = Slot::claim()?;
    slot.call(CallOp::Statfs, 0, [0; 4], 0)?;
    let mut bytes = [0; 40];
    slot.get(0, &mut bytes);
    Ok(std::array::from_fn(|i| u64::from_le_bytes(std::array::from_fn(|b| bytes[i * 8 + b]))))
}

unsafe fn fill_statfs(to: *mut libc::statfs) -> c_int {
    match statfs_words() {
        Ok([block, blocks, free, inodes, free_inodes]) => {
            let mut fs: libc::statfs = std::mem::zeroed();
            fs.f_type = 0x736c_7531;
            (fs.f_bsize, fs.f_frsize) = (block as _, block as _);
            (fs.f_blocks, fs.f_bfree, fs.f_bavail) = (blocks, free, free);
            (fs.f_files, fs.f_ffree) = (inodes + free_inodes, free_inodes);
            fs.f_namelen = 255;
            to.write(fs);
            0
        }
        Err(errno) => fail(errno),
    }
}

unsafe fn fill_statvfs(to: *mut libc::statvfs) -> c_int {
    match statfs_words() {
        Ok([block, blocks, free, inodes, free_inodes]) => {
            let mut fs: libc::statvfs = std::mem::zeroed();
            (fs.f_bsize, fs.f_frsize) = (block as c_ulong, block as c_ulong);
            (fs.f_blocks, fs.f_bfree, fs.f_bavail) = (blocks, free, free);
            (fs.f_files, fs.f_ffree, fs.f_favail) =
                (inodes + free_inodes, free_inodes, free_inodes);
            fs.f_namemax = 255;
            to.write(fs);
            0
        }
        Err(errno) => fail(errno),
    }
}

/// Returns whether a path leads to an existing file on the volume.
unsafe fn on_volume(path: *const c_char) -> Result<bool, Errno> {
    let mut buffer = ResolvedPath::new();
    match resolve(AT_FDCWD, path, true, &mut buffer)? {
        PathTarget::Host(..) => Ok(false),
        PathTarget::Volume(base) => stat_path(base, &buffer).map(|_| true),
    }
}

const NO_FOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;
const EMPTY: *const c_char = c"".as_ptr();

interpose! {
    fn [stat stat64] (path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_any(AT_FDCWD, path, to, 0)
    }
    fn [lstat lstat64] (path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_any(AT_FDCWD, path, to, NO_FOLLOW)
    }
    fn [fstat fstat64] (fd: c_int, to: *mut libc::stat) -> c_int {
        stat_any(fd, EMPTY, to, libc::AT_EMPTY_PATH)
    }
    fn [fstatat fstatat64]
        (dirfd: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
        stat_any(dirfd, path, to, flags)
    }
    fn [__xstat __xstat64] (_version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_any(AT_FDCWD, path, to, 0)
    }
    fn [__lxstat __lxstat64] (_version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int {
        stat_any(AT_FDCWD, path, to, NO_FOLLOW)
    }
    fn [__fxstat __fxstat64] (_version: c_int, fd: c_int, to: *mut libc::stat) -> c_int {
        stat_any(fd, EMPTY, to, libc::AT_EMPTY_PATH)
    }
    fn [__fxstatat __fxstatat64]
        (_version: c_int, dirfd: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int)
        -> c_int {
        stat_any(dirfd, path, to, flags)
    }
    fn [statx]
        (dirfd: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut libc::statx)
        -> c_int {
        let mut buffer = ResolvedPath::new();
        let found = match call_target(dirfd, path, flags, &mut buffer) {
            Ok(CallTarget::Host(dirfd, path)) => return libc_fns::statx()(dirfd, path, flags, mask, to),
            Ok(CallTarget::Handle(handle)) => stat_handle(handle),
            Ok(CallTarget::Path(base)) => stat_path(base, &buffer),
            Err(errno) => Err(errno),
        };
        match found {
            Ok(facts) => {
                fill_statx(to, &facts, mask);
                0
            }
            Err(errno) => fail(errno),
        }
    }
    fn [access] (path: *const c_char, mode: c_int) -> c_int {
        access_any(AT_FDCWD, path, mode, 0)
    }
    fn [euidaccess eaccess] (path: *const c_char, mode: c_int) -> c_int {
        access_any(AT_FDCWD, path, mode, libc::AT_EACCESS)
    }
    fn [faccessat] (dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        access_any(dirfd, path, mode, flags)
    }
    fn [chmod] (path: *const c_char, mode: mode_t) -> c_int {
        let real = |dirfd, path| libc_fns::fchmodat()(dirfd, path, mode, 0);
        set_attr((AT_FDCWD, path, 0), mode_change(mode), real)
    }
    fn [fchmod] (fd: c_int, mode: mode_t) -> c_int {
        let real = |fd, _| libc_fns::fchmod()(fd, mode);
        set_attr((fd, EMPTY, libc::AT_EMPTY_PATH), mode_change(mode), real)
    }
    fn [fchmodat] (dirfd: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        let real = |dirfd, path| libc_fns::fchmodat()(dirfd, path, mode, flags);
        set_attr((dirfd, path, flags), mode_change(mode), real)
    }
    fn [chown] (path: *const c_char, uid: c_uint, gid: c_uint) -> c_int {
        let real = |dirfd, path| libc_fns::fchownat()(dirfd, path, uid, gid, 0);
        set_attr((AT_FDCWD, path, 0), owner_change(uid, gid), real)
    }
    fn [lchown] (path: *const c_char, uid: c_uint, gid: c_uint) -> c_int {
        let real = |dirfd, path| libc_fns::fchownat()(dirfd, path, uid, gid, NO_FOLLOW);
        set_attr((AT_FDCWD, path, NO_FOLLOW), owner_change(uid, gid), real)
    }
    fn [fchown] (fd: c_int, uid: c_uint, gid: c_uint) -> c_int {
        let real = |fd, _| libc_fns::fchown()(fd, uid, gid);
        set_attr((fd, EMPTY, libc::AT_EMPTY_PATH), owner_change(uid, gid), real)
    }
    fn [fchownat]
        (dirfd: c_int, path: *const c_char, uid: c_uint, gid: c_uint, flags: c_int) -> c_int {
        let real = |dirfd, path| libc_fns::fchownat()(dirfd, path, uid, gid, flags);
        set_attr((dirfd, path, flags), owner_change(uid, gid), real)
    }
    fn [utimensat]
        (dirfd: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        let real = |dirfd, path| libc_fns::utimensat()(dirfd, path, times, flags);
        if path.is_null() && fd_table::handle(dirfd).is_some() {
            return futimens(dirfd, times);
        }
        set_attr((dirfd, path, flags), times_change(times), real)
    }
    fn [futimens] (fd: c_int, times: *const timespec) -> c_int {
        let real = |fd, _| libc_fns::futimens()(fd, times);
        set_attr((fd, EMPTY, libc::AT_EMPTY_PATH), times_change(times), real)
    }
    fn [utimes] (path: *const c_char, times: *const libc::timeval) -> c_int {
        let nanos = |time: &libc::timeval| timespec {
            tv_sec: time.tv_sec,
            tv_nsec: time.tv_usec * 1000,
        };
        if times.is_null() {
            return utimensat(AT_FDCWD, path, std::ptr::null(), 0);
        }
        let times = [nanos(&*times), nanos(&*times.add(1))];
        utimensat(AT_FDCWD, path, times.as_ptr(), 0)
    }
    fn [statfs statfs64] (path: *const c_char, to: *mut libc::statfs) -> c_int {
        match on_volume(path) {
            Ok(false) => libc_fns::statfs()(path, to),
            Ok(true) => fill_statfs(to),
            Err(errno) => fail(errno),
        }
    }
    fn [fstatfs fstatfs64] (fd: c_int, to: *mut libc::statfs) -> c_int {
        if fd_table::handle(fd).is_some() { fill_statfs(to) } else { libc_fns::fstatfs()(fd, to) }
    }
    fn [statvfs statvfs64] (path: *const c_char, to: *mut libc::statvfs) -> c_int {
        match on_volume(path) {
            Ok(false) => libc_fns::statvfs()(path, to),
            Ok(true) => fill_statvfs(to),
            Err(errno) => fail(errno),
        }
    }
    fn [fstatvfs fstatvfs64] (fd: c_int, to: *mut libc::statvfs) -> c_int {
        if fd_table::handle(fd).is_some() { fill_statvfs(to) } else { libc_fns::fstatvfs()(fd, to) }
    }
    fn [truncate truncate64] (path: *const c_char, size: libc::off_t) -> c_int {
        let mut buffer = ResolvedPath::new();
        match resolve(AT_FDCWD, path, true, &mut buffer) {
            Ok(PathTarget::Host(_, path)) => libc_fns::truncate()(path, size),
            Ok(PathTarget::Volume(base)) => {
                status(path_call(CallOp::TruncatePath, base, &buffer, [size as u64, 0, 0, 0]))
            }
            Err(errno) => fail(errno),
        }
    }
}
