//! `fcntl`, locks and `ioctl`.

use exec_proto::CallOp;
use libc::{c_int, c_ulong};

use crate::descriptors::open::duplicate;
use crate::session::{Slot, call};
use crate::{Errno, descriptors::fd_table, fail, libc_fns, status, unsupported_fd};

/// Initial and maximum pause between attempts to take a lock.
const LOCK_RETRY_NANOS: (i64, i64) = (100_000, 10_000_000);

/// Retries until the attempt succeeds, fails otherwise than by a conflict, or a signal was handled.
fn retry_until_done(mut attempt: impl FnMut() -> Result<i64, Errno>) -> Result<i64, Errno> {
    let mut pause = LOCK_RETRY_NANOS.0;
    loop {
        match attempt() {
            Err(libc::EAGAIN) => {}
            result => return result,
        }
        let time = libc::timespec { tv_sec: 0, tv_nsec: pause };
        // SAFETY: a time on the stack.
        if unsafe { libc::nanosleep(&time, std::ptr::null_mut()) } != 0 {
            return Err(libc::EINTR);
        }
        pause = (pause * 2).min(LOCK_RETRY_NANOS.1);
    }
}

/// Returns the first byte and the length of a record lock.
unsafe fn range(handle: u64, lock: &libc::flock) -> Result<(u64, u64), Errno> {
    let base = match c_int::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => call(CallOp::Seek, handle, [0, libc::SEEK_CUR as u64, 0, 0])?,
        libc::SEEK_END => crate::namespace::stat::stat_handle(handle)?.size as i64,
        _ => return Err(libc::EINVAL),
    };
    let begin = base.checked_add(lock.l_start).ok_or(libc::EOVERFLOW)?;
    let (begin, len) = match lock.l_len {
        len @ 0.. => (begin, len),
        len => (begin.checked_add(len).ok_or(libc::EINVAL)?, -len),
    };
    if begin < 0 { Err(libc::EINVAL) } else { Ok((begin as u64, len as u64)) }
}

unsafe fn record_lock(handle: u64, command: c_int, lock: *mut libc::flock) -> Result<i64, Errno> {
    let lock = lock.as_mut().ok_or(libc::EFAULT)?;
    let open_file = matches!(command, libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK);
    if open_file && lock.l_pid != 0 {
        return Err(libc::EINVAL);
    }
    let owner = if open_file { exec_proto::LOCK_OPEN_FILE } else { 0 };
    let (begin, len) = range(handle, lock)?;
    let kind = lock.l_type as u64;
    if matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
        let slot = Slot::claim()?;
        slot.call(CallOp::Lock, handle, [exec_proto::LOCK_GET | owner, kind, begin, len], 0)?;
        let mut bytes = [0; 32];
        slot.get(0, &mut bytes);
        let word = |i: usize| i64::from_le_bytes(std::array::from_fn(|b| bytes[i * 8 + b]));
        lock.l_type = word(0) as _;
        if c_int::from(lock.l_type) != libc::F_UNLCK {
            lock.l_whence = libc::SEEK_SET as _;
            (lock.l_start, lock.l_len, lock.l_pid) = (word(1), word(2), word(3) as _);
        }
        return Ok(0);
    }
    let attempt = || call(CallOp::Lock, handle, [exec_proto::LOCK_SET | owner, kind, begin, len]);
    if matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW) {
        return retry_until_done(attempt);
    }
    attempt()
}

unsafe fn control(fd: c_int, handle: u64, command: c_int, argument: c_ulong) -> c_int {
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicate(fd, command, argument),
        // Descriptor flags belong to the kernel.
        libc::F_GETFD | libc::F_SETFD => libc_fns::fcntl()(fd, command, argument),
        libc::F_GETFL => match call(CallOp::Flags, handle, [0; 4]) {
            Ok(flags) => flags as c_int,
            Err(errno) => fail(errno),
        },
        libc::F_SETFL => status(call(CallOp::SetFlags, handle, [argument, 0, 0, 0])),
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => status(record_lock(handle, command, argument as *mut libc::flock)),
        // Write-lifetime hints (F_GET_RW_HINT to F_SET_FILE_RW_HINT) are not stored.
        1035..=1038 => fail(libc::EINVAL),
        _ => fail(unsupported_fd("fcntl", fd, "this command is not supported on a volume")),
    }
}

interpose! {
    fn [fcntl fcntl64] (fd: c_int, command: c_int, argument: c_ulong) -> c_int {
        match fd_table::handle(fd) {
            None => libc_fns::fcntl()(fd, command, argument),
            Some(handle) => control(fd, handle, command, argument),
        }
    }
    fn [lockf lockf64] (fd: c_int, command: c_int, len: libc::off_t) -> c_int {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_whence, lock.l_len) = (libc::SEEK_CUR as _, len);
        lock.l_type = if command == libc::F_ULOCK { libc::F_UNLCK } else { libc::F_WRLCK } as _;
        let lock = (&raw mut lock) as c_ulong;
        match command {
            libc::F_LOCK => fcntl(fd, libc::F_SETLKW, lock),
            libc::F_TLOCK | libc::F_ULOCK => fcntl(fd, libc::F_SETLK, lock),
            libc::F_TEST => {
                if fcntl(fd, libc::F_GETLK, lock) != 0 {
                    return -1;
                }
                let found = &*(lock as *const libc::flock);
                if c_int::from(found.l_type) == libc::F_UNLCK { 0 } else { fail(libc::EACCES) }
            }
            _ => fail(libc::EINVAL),
        }
    }
    fn [flock] (fd: c_int, operation: c_int) -> c_int {
        let Some(handle) = fd_table::handle(fd) else { return libc_fns::flock()(fd, operation) };
        let kind = (operation & !libc::LOCK_NB) as u64;
        let attempt = || call(CallOp::Flock, handle, [kind, 0, 0, 0]);
        if operation & libc::LOCK_NB != 0 { status(attempt()) } else { status(retry_until_done(attempt)) }
    }
    fn [ioctl] (fd: c_int, request: c_ulong, argument: c_ulong) -> c_int {
        match (fd_table::handle(fd), request) {
            // FIOCLEX, FIONCLEX: handled by the kernel.
            (Some(_), 0x5450 | 0x5451) | (None, _) => libc_fns::ioctl()(fd, request, argument),
            (Some(_), _) => fail(libc::ENOTTY),
        }
    }
}
