//! Reads, writes, and syncs. Transfers longer than a slot's data are split.

use exec_proto::{CallOp, posted};
use libc::{c_int, c_long, c_uint, c_void, iovec, off_t, size_t, ssize_t};

use crate::session::{Slot, call, post_sync};
use crate::{
    Errno, count, descriptors::fd_table, descriptors::streams, fail, gate, libc_fns, status,
};

/// Maximum bytes of one call, as on Linux.
const BYTES_MAX: usize = 0x7fff_f000;

/// Offset of a transfer.
#[derive(Clone, Copy)]
pub(crate) enum FileOffset {
    /// The open file's offset.
    Current,
    /// An explicit offset.
    At(off_t),
}

impl FileOffset {
    /// Returns the offset this many bytes later.
    fn advanced_by(self, bytes: usize) -> FileOffset {
        match self {
            FileOffset::Current => FileOffset::Current,
            FileOffset::At(at) => FileOffset::At(at.wrapping_add(bytes as off_t)),
        }
    }
}

/// Reads into several buffers in order.
pub(crate) unsafe fn read_into(
    handle: u64,
    parts: impl Iterator<Item = (*mut u8, usize)>,
    from: FileOffset,
) -> Result<i64, Errno> {
    let slot = Slot::claim()?;
    let mut total = 0usize;
    for (to, len) in parts {
        let mut done = 0;
        while done < len {
            let want = (len - done).min(exec_proto::DATA_BYTES).min(BYTES_MAX - total);
            let read = match from {
                FileOffset::Current => slot.call(CallOp::Read, handle, [0; 4], want),
                FileOffset::At(at) => {
                    let at = (at as u64).wrapping_add(total as u64);
                    slot.call(CallOp::ReadAt, handle, [at, 0, 0, 0], want)
                }
            };
            let got = match read {
                Ok(got) => (got as usize).min(want),
                Err(errno) if total == 0 => return Err(errno),
                Err(_) => return Ok(total as i64),
            };
            std::ptr::copy_nonoverlapping(slot.data(), to.add(done), got);
            (done, total) = (done + got, total + got);
            if got < want || want == 0 {
                return Ok(total as i64);
            }
        }
    }
    if total == 0 {
        // A read of no bytes checks that the file is readable.
        let (op, at) = match from {
            FileOffset::Current => (CallOp::Read, 0),
            FileOffset::At(at) => (CallOp::ReadAt, at as u64),
        };
        slot.call(op, handle, [at, 0, 0, 0], 0)?;
    }
    Ok(total as i64)
}

/// Writes several buffers in order.
pub(crate) unsafe fn write_from(
    fd: c_int,
    handle: u64,
    parts: impl Iterator<Item = (*const u8, usize)>,
    from: FileOffset,
) -> Result<i64, Errno> {
    let mut slot = Slot::claim()?;
    let (mut total, mut filled) = (0usize, 0usize);
    for (bytes, len) in parts {
        let mut taken = 0;
        while taken < len && total + filled < BYTES_MAX {
            let part =
                (len - taken).min(exec_proto::DATA_BYTES - filled).min(BYTES_MAX - total - filled);
            std::ptr::copy_nonoverlapping(bytes.add(taken), slot.data().add(filled), part);
            (taken, filled) = (taken + part, filled + part);
            if filled == exec_proto::DATA_BYTES {
                match write_slot(slot, (fd, handle), from.advanced_by(total), filled) {
                    Ok(done) => total += done,
                    Err(errno) if total == 0 => return Err(errno),
                    Err(_) => return Ok(total as i64),
                }
                if !total.is_multiple_of(exec_proto::DATA_BYTES) {
                    return Ok(total as i64);
                }
                let Ok(next) = Slot::claim() else { return Ok(total as i64) };
                (slot, filled) = (next, 0);
            }
        }
    }
    if filled > 0 || total == 0 {
        match write_slot(slot, (fd, handle), from.advanced_by(total), filled) {
            Ok(done) => total += done,
            Err(errno) if total == 0 => return Err(errno),
            Err(_) => {}
        }
    }
    Ok(total as i64)
}

/// Writes bytes that are in a slot: posts the write if permitted, otherwise waits.
fn write_slot(
    slot: Slot,
    (fd, handle): (c_int, u64),
    from: FileOffset,
    len: usize,
) -> Result<usize, Errno> {
    let at = match from {
        FileOffset::Current => None,
        FileOffset::At(at) => Some(at as u64),
    };
    let slot = match fd_table::can_post(fd, handle) && len > 0 {
        false => slot,
        true => match slot.post_write(handle, at, len) {
            Ok(()) => return Ok(len),
            Err(slot) => slot,
        },
    };
    let answer = match at {
        None => slot.call(CallOp::Write, handle, [0; 4], len),
        Some(at) => slot.call(CallOp::WriteAt, handle, [at, 0, 0, 0], len),
    }?;
    if answer & posted::MAY_POST != 0 {
        fd_table::allow_posting(fd, handle);
    }
    Ok(((answer & !posted::MAY_POST) as usize).min(len))
}

unsafe fn readv_any(handle: u64, parts: *const iovec, len: c_int, from: FileOffset) -> ssize_t {
    let Some(parts) = vector(parts, len) else { return fail(libc::EINVAL) as ssize_t };
    let parts = parts.iter().map(|part| (part.iov_base.cast(), part.iov_len));
    count(read_into(handle, parts, from))
}

unsafe fn writev_any(
    fd: c_int,
    handle: u64,
    parts: *const iovec,
    len: c_int,
    from: FileOffset,
) -> ssize_t {
    let Some(parts) = vector(parts, len) else { return fail(libc::EINVAL) as ssize_t };
    let parts = parts.iter().map(|part| (part.iov_base.cast_const().cast(), part.iov_len));
    count(write_from(fd, handle, parts, from))
}

unsafe fn vector<'a>(parts: *const iovec, len: c_int) -> Option<&'a [iovec]> {
    match len {
        0 => Some(&[]),
        1..=1024 => Some(std::slice::from_raw_parts(parts, len as usize)),
        _ => None,
    }
}

/// Flags of `preadv2(2)` and `pwritev2(2)` that have no effect here: high priority, no wait.
const FLAGS_IGNORED: c_int = 1 | 8;
/// Flag of `pwritev2(2)`: the write must be kept whole (Linux 6.11).
const RWF_ATOMIC: c_int = 0x40;

unsafe fn vector2(at: off_t, flags: c_int) -> Result<FileOffset, Errno> {
    match flags & !FLAGS_IGNORED {
        0 if at == -1 => Ok(FileOffset::Current),
        0 => Ok(FileOffset::At(at)),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// Writes with `RWF_ATOMIC`; the service checks the length and the offset.
unsafe fn write_atomic(
    fd: c_int,
    handle: u64,
    parts: *const iovec,
    len: c_int,
    from: FileOffset,
) -> Result<i64, Errno> {
    let parts = vector(parts, len).ok_or(libc::EINVAL)?;
    let bytes = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.iov_len));
    if bytes == 0 {
        return write_from(fd, handle, std::iter::empty(), from);
    }
    let at = match from {
        FileOffset::Current => exec_proto::CURRENT_OFFSET,
        FileOffset::At(at) if at < 0 => return Err(libc::EINVAL),
        FileOffset::At(at) => at as u64,
    };
    let slot = Slot::claim()?;
    let filled = match parts {
        [part] if bytes <= exec_proto::DATA_BYTES => {
            std::ptr::copy_nonoverlapping(part.iov_base.cast_const().cast(), slot.data(), bytes);
            bytes
        }
        _ => 0,
    };
    let args = [at, bytes as u64, parts.len() as u64, 0];
    let answer = slot.call(CallOp::WriteAtomic, handle, args, filled)?;
    Ok(answer & !posted::MAY_POST)
}

/// Syncs a file or the volume.
fn sync_volume(op: CallOp, handle: u64, args: [u64; 4]) -> c_int {
    if post_sync() { 0 } else { status(call(op, handle, args)) }
}

interpose! {
    fn [read] (fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
        match fd_table::handle(fd) {
            None => libc_fns::read()(fd, to, len),
            Some(handle) => {
                count(read_into(handle, std::iter::once((to.cast(), len)), FileOffset::Current))
            }
        }
    }
    fn [__read_chk] (fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        if len > room {
            libc::abort();
        }
        read(fd, to, len)
    }
    fn [pread pread64] (fd: c_int, to: *mut c_void, len: size_t, at: off_t) -> ssize_t {
        match fd_table::handle(fd) {
            None => libc_fns::pread()(fd, to, len, at),
            Some(_) if at < 0 => fail(libc::EINVAL) as ssize_t,
            Some(handle) => {
                count(read_into(handle, std::iter::once((to.cast(), len)), FileOffset::At(at)))
            }
        }
    }
    fn [__pread_chk __pread64_chk]
        (fd: c_int, to: *mut c_void, len: size_t, at: off_t, room: size_t) -> ssize_t {
        if len > room {
            libc::abort();
        }
        pread(fd, to, len, at)
    }
    fn [write] (fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
        match fd_table::handle(fd) {
            None => {
                let arguments = [fd.into(), bytes as c_long, len as c_long, 0, 0, 0];
                let stopped = || libc_fns::write()(fd, bytes, len) as c_long;
                gate::output(libc::SYS_write, arguments, stopped) as ssize_t
            }
            Some(handle) => {
                let parts = std::iter::once((bytes.cast(), len));
                count(write_from(fd, handle, parts, FileOffset::Current))
            }
        }
    }
    fn [pwrite pwrite64] (fd: c_int, bytes: *const c_void, len: size_t, at: off_t) -> ssize_t {
        match fd_table::handle(fd) {
            None => libc_fns::pwrite()(fd, bytes, len, at),
            Some(_) if at < 0 => fail(libc::EINVAL) as ssize_t,
            Some(handle) => {
                let parts = std::iter::once((bytes.cast(), len));
                count(write_from(fd, handle, parts, FileOffset::At(at)))
            }
        }
    }
    fn [readv] (fd: c_int, parts: *const iovec, len: c_int) -> ssize_t {
        match fd_table::handle(fd) {
            None => libc_fns::readv()(fd, parts, len),
            Some(handle) => readv_any(handle, parts, len, FileOffset::Current),
        }
    }
    fn [writev] (fd: c_int, parts: *const iovec, len: c_int) -> ssize_t {
        match fd_table::handle(fd) {
            None => {
                let arguments = [fd.into(), parts as c_long, len.into(), 0, 0, 0];
                let stopped = || libc_fns::writev()(fd, parts, len) as c_long;
                gate::output(libc::SYS_writev, arguments, stopped) as ssize_t
            }
            Some(handle) => writev_any(fd, handle, parts, len, FileOffset::Current),
        }
    }
    fn [preadv preadv64] (fd: c_int, parts: *const iovec, len: c_int, at: off_t) -> ssize_t {
        match fd_table::handle(fd) {
            None => libc_fns::preadv()(fd, parts, len, at),
            Some(_) if at < 0 => fail(libc::EINVAL) as ssize_t,
            Some(handle) => readv_any(handle, parts, len, FileOffset::At(at)),
        }
    }
    fn [pwritev pwritev64] (fd: c_int, parts: *const iovec, len: c_int, at: off_t) -> ssize_t {
        match fd_table::handle(fd) {
            None => libc_fns::pwritev()(fd, parts, len, at),
            Some(_) if at < 0 => fail(libc::EINVAL) as ssize_t,
            Some(handle) => writev_any(fd, handle, parts, len, FileOffset::At(at)),
        }
    }
    fn [preadv2 preadv64v2]
        (fd: c_int, parts: *const iovec, len: c_int, at: off_t, flags: c_int) -> ssize_t {
        match (fd_table::handle(fd), vector2(at, flags)) {
            (None, _) => libc_fns::preadv2()(fd, parts, len, at, flags),
            (_, Err(errno)) => fail(errno) as ssize_t,
            (Some(handle), Ok(from)) => readv_any(handle, parts, len, from),
        }
    }
    fn [pwritev2 pwritev64v2]
        (fd: c_int, parts: *const iovec, len: c_int, at: off_t, flags: c_int) -> ssize_t {
        match (fd_table::handle(fd), vector2(at, flags & !RWF_ATOMIC)) {
            (None, _) => libc_fns::pwritev2()(fd, parts, len, at, flags),
            (_, Err(errno)) => fail(errno) as ssize_t,
            (Some(handle), Ok(from)) if flags & RWF_ATOMIC != 0 => {
                count(write_atomic(fd, handle, parts, len, from))
            }
            (Some(handle), Ok(from)) => writev_any(fd, handle, parts, len, from),
        }
    }
    fn [lseek lseek64] (fd: c_int, to: off_t, whence: c_int) -> off_t {
        match fd_table::handle(fd) {
            None => libc_fns::lseek()(fd, to, whence),
            Some(handle) => {
                streams::invalidate_offsets(fd);
                count(call(CallOp::Seek, handle, [to as u64, whence as u64, 0, 0])) as off_t
            }
        }
    }
    fn [fsync] (fd: c_int) -> c_int {
        match fd_table::handle(fd) {
            None => libc_fns::fsync()(fd),
            Some(handle) => sync_volume(CallOp::Sync, handle, [0; 4]),
        }
    }
    fn [fdatasync] (fd: c_int) -> c_int {
        match fd_table::handle(fd) {
            None => libc_fns::fdatasync()(fd),
            Some(handle) => sync_volume(CallOp::Sync, handle, [1, 0, 0, 0]),
        }
    }
    fn [sync_file_range] (fd: c_int, at: off_t, len: off_t, flags: c_uint) -> c_int {
        match fd_table::handle(fd) {
            None => libc_fns::sync_file_range()(fd, at, len, flags),
            // Syncs the whole file, which is more than requested.
            Some(handle) if flags & 4 != 0 => sync_volume(CallOp::Sync, handle, [1, 0, 0, 0]),
            // Starting or awaiting writeback guarantees nothing, so nothing is done.
            Some(_) => 0,
        }
    }
    fn [syncfs] (fd: c_int) -> c_int {
        match fd_table::handle(fd) {
            None => libc_fns::syncfs()(fd),
            Some(_) => sync_volume(CallOp::SyncAll, 0, [0; 4]),
        }
    }
    fn [sync] () -> () {
        if crate::start::mount_point().is_some() {
            // `sync(2)` cannot fail.
            let _ = sync_volume(CallOp::SyncAll, 0, [0; 4]);
        }
        gate::sync();
    }
    fn [ftruncate ftruncate64] (fd: c_int, size: off_t) -> c_int {
        match fd_table::handle(fd) {
            None => libc_fns::ftruncate()(fd, size),
            Some(handle) => status(call(CallOp::Truncate, handle, [size as u64, 0, 0, 0])),
        }
    }
    fn [fallocate fallocate64] (fd: c_int, mode: c_int, at: off_t, len: off_t) -> c_int {
        match fd_table::handle(fd) {
            None => libc_fns::fallocate()(fd, mode, at, len),
            Some(handle) => {
                status(call(CallOp::Allocate, handle, [mode as u64, at as u64, len as u64, 0]))
            }
        }
    }
    fn [posix_fallocate posix_fallocate64] (fd: c_int, at: off_t, len: off_t) -> c_int {
        match fd_table::handle(fd) {
            None => libc_fns::posix_fallocate()(fd, at, len),
            Some(handle) => {
                call(CallOp::Allocate, handle, [0, at as u64, len as u64, 0]).err().unwrap_or(0)
            }
        }
    }
    fn [posix_fadvise posix_fadvise64] (fd: c_int, at: off_t, len: off_t, advice: c_int) -> c_int {
        match fd_table::handle(fd) {
            None => libc_fns::posix_fadvise()(fd, at, len, advice),
            Some(_) => 0,
        }
    }
    fn [readahead] (fd: c_int, at: off_t, len: size_t) -> ssize_t {
        match fd_table::handle(fd) {
            None => libc_fns::readahead()(fd, at, len),
            Some(_) => 0,
        }
    }
    fn [sendfile sendfile64] (to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t {
        if fd_table::handle(to).or(fd_table::handle(from)).is_some() {
            // Callers fall back to read and write.
            return fail(libc::EINVAL) as ssize_t;
        }
        libc_fns::sendfile()(to, from, at, len)
    }
    fn [splice] (from: c_int, at: *mut off_t, to: c_int, there: *mut off_t, len: size_t, flags: c_uint)
        -> ssize_t {
        if fd_table::handle(to).or(fd_table::handle(from)).is_some() {
            return fail(libc::EINVAL) as ssize_t;
        }
        libc_fns::splice()(from, at, to, there, len, flags)
    }
    fn [copy_file_range]
        (from: c_int, at: *mut off_t, to: c_int, there: *mut off_t, len: size_t, flags: c_uint)
        -> ssize_t {
        if fd_table::handle(to).or(fd_table::handle(from)).is_some() {
            return fail(libc::EXDEV) as ssize_t;
        }
        libc_fns::copy_file_range()(from, at, to, there, len, flags)
    }
}
