//! Opens, closes and duplicates descriptors.

use exec_proto::CallOp;
use libc::{c_char, c_int, c_uint, c_ulong, mode_t};

use crate::namespace::paths::{PathTarget, ResolvedPath, resolve};
use crate::session::{Slot, call};
use crate::{
    Errno, descriptors::fd_table, descriptors::streams, fail, gate, libc_fns, mmap::mappings,
    start, unsupported,
};

/// Applies the process's `umask(2)` to a mode. No call only reads the mask.
pub(crate) fn masked(mode: mode_t) -> u64 {
    // SAFETY: sets the mask and restores it. A file that another thread creates in between is
    // accessible to its owner only.
    unsafe {
        let mask = libc::umask(0o077);
        libc::umask(mask);
        (mode & !mask & 0o7777).into()
    }
}

/// Opens a file of the volume; the descriptor is a socket that represents the file.
pub(crate) fn open_on_volume(
    base: u64,
    path: &[u8],
    flags: c_int,
    mode: mode_t,
) -> Result<c_int, Errno> {
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return Err(unsupported("open", path, "O_TMPFILE is not supported on a volume"));
    }
    let socket = start::connect(true)?;
    let opened = || {
        if !fd_table::is_in_range(socket) {
            return Err(libc::EMFILE);
        }
        let number = start::socket_number(socket).ok_or(libc::EIO)?;
        let slot = Slot::claim()?;
        slot.put(0, path)?;
        let creates = flags & libc::O_CREAT != 0;
        let mode = if creates { masked(mode) } else { 0 };
        // SAFETY: these calls cannot fail.
        let owner = unsafe { u64::from(libc::geteuid()) | u64::from(libc::getegid()) << 32 };
        let flags = (flags & !libc::O_CLOEXEC) as u64;
        slot.call(CallOp::Open, base, [flags, mode, number, owner], path.len())?;
        Ok(number)
    };
    // SAFETY: a descriptor of this library.
    unsafe {
        match opened() {
            Ok(number) => {
                if flags & libc::O_CLOEXEC == 0 {
                    libc_fns::fcntl()(socket, libc::F_SETFD, 0);
                }
                fd_table::set(socket, number);
                Ok(socket)
            }
            Err(errno) => {
                gate::close(socket);
                Err(errno)
            }
        }
    }
}

unsafe fn open_any(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let mut buffer = ResolvedPath::new();
    let exclusive = libc::O_CREAT | libc::O_EXCL;
    let follow = flags & libc::O_NOFOLLOW == 0 && flags & exclusive != exclusive;
    let opened = match resolve(dirfd, path, follow, &mut buffer) {
        Ok(PathTarget::Host(dirfd, path)) => return libc_fns::openat()(dirfd, path, flags, mode),
        Ok(PathTarget::Volume(base)) => open_on_volume(base, buffer.bytes(), flags, mode),
        Err(errno) => Err(errno),
    };
    opened.unwrap_or_else(fail)
}

/// Prepares a close: the process releases its locks of the file, as POSIX demands.
pub(crate) fn before_close(fd: c_int) {
    // SAFETY: the C library's stream variables.
    unsafe { streams::flush(fd) };
    if let Some(handle) = fd_table::clear(fd) {
        // Ignored if the service has ended.
        let _ = call(CallOp::Release, handle, [0; 4]);
    }
}

/// Makes a duplicate represent the same open file.
fn after_dup(from: c_int, to: c_int) -> c_int {
    if to >= 0 && to != from {
        match fd_table::handle(from) {
            Some(_) if !fd_table::is_in_range(to) => {
                // SAFETY: the duplicate is new and not known to the program.
                unsafe { gate::close(to) };
                return fail(libc::EMFILE);
            }
            handle => fd_table::set(to, handle.unwrap_or(0)),
        }
        // SAFETY: the C library's stream variables.
        unsafe { streams::replace_standard(to) };
    }
    to
}

pub(crate) unsafe fn duplicate(fd: c_int, command: c_int, least: c_ulong) -> c_int {
    after_dup(fd, libc_fns::fcntl()(fd, command, least))
}

interpose! {
    fn [open open64] (path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_any(libc::AT_FDCWD, path, flags, mode)
    }
    fn [__open_2 __open64_2] (path: *const c_char, flags: c_int) -> c_int {
        open_any(libc::AT_FDCWD, path, flags, 0)
    }
    fn [openat openat64] (dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_any(dirfd, path, flags, mode)
    }
    fn [__openat_2 __openat64_2] (dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_any(dirfd, path, flags, 0)
    }
    fn [creat creat64] (path: *const c_char, mode: mode_t) -> c_int {
        open_any(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }
    fn [close] (fd: c_int) -> c_int {
        if mappings::is_mapping_ref(fd) {
            return fail(libc::EBADF);
        }
        let is_on_volume = fd_table::handle(fd).is_some();
        before_close(fd);
        if is_on_volume {
            return gate::close(fd);
        }
        let arguments = [fd.into(), 0, 0, 0, 0, 0];
        gate::output(libc::SYS_close, arguments, || libc_fns::close()(fd).into()) as c_int
    }
    fn [close_range] (first: c_uint, last: c_uint, flags: c_int) -> c_int {
        // Neither with CLOSE_RANGE_CLOEXEC nor with unknown flags.
        if flags & !2 == 0 && first <= last {
            fd_table::descriptors_within(first, last).for_each(before_close);
        }
        let max = c_int::MAX as c_uint;
        // No descriptor exceeds c_int::MAX, and mapping references have FD_CLOEXEC anyway.
        if first > last || first > max || flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 {
            return libc_fns::close_range()(first, last, flags);
        }
        let mut result = 0;
        mappings::ranges_between_mapping_refs(first as c_int, last.min(max) as c_int, |first, last| {
            if libc_fns::close_range()(first as c_uint, last as c_uint, flags) != 0 {
                result = -1;
            }
        });
        result
    }
    fn [closefrom] (first: c_int) -> () {
        fd_table::descriptors_within(first.max(0) as c_uint, c_uint::MAX).for_each(before_close);
        // Ranges before each mapping reference; the last range is open-ended.
        mappings::ranges_between_mapping_refs(first.max(0), c_int::MAX, |first, last| match last {
            c_int::MAX => libc_fns::closefrom()(first),
            last => {
                libc_fns::close_range()(first as c_uint, last as c_uint, 0);
            }
        });
    }
    fn [dup] (fd: c_int) -> c_int {
        after_dup(fd, libc_fns::dup()(fd))
    }
    fn [dup2] (fd: c_int, to: c_int) -> c_int {
        if fd == to {
            return libc_fns::dup2()(fd, to);
        }
        replacing(fd, to, || {
            // As the descriptors differ, it is `dup2`, which aarch64 does not have.
            let arguments = [fd.into(), to.into(), 0, 0, 0, 0];
            gate::output(libc::SYS_dup3, arguments, || libc_fns::dup2()(fd, to).into()) as c_int
        })
    }
    fn [dup3] (fd: c_int, to: c_int, flags: c_int) -> c_int {
        replacing(fd, to, || {
            let arguments = [fd.into(), to.into(), flags.into(), 0, 0, 0];
            let stopped = || libc_fns::dup3()(fd, to, flags).into();
            gate::output(libc::SYS_dup3, arguments, stopped) as c_int
        })
    }
}

/// Duplicates onto another descriptor, which is closed.
unsafe fn replacing(fd: c_int, to: c_int, copy: impl FnOnce() -> c_int) -> c_int {
    if fd != to
        && let Err(errno) = mappings::relocate_mapping_ref(to)
    {
        return fail(errno);
    }
    if fd_table::handle(to).is_some() && libc_fns::fcntl()(fd, libc::F_GETFD, 0) >= 0 {
        before_close(to);
    }
    after_dup(fd, copy())
}
