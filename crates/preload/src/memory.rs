//! `mmap` of files of the volume: a copy of what is there when it is mapped, as private and read-only mappings
//! may be.

use libc::{c_int, c_void, off_t, size_t};

use crate::data::{From, read_into};
use crate::{fail, real, streams, table};

unsafe fn map(
    at: *mut c_void,
    len: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let handle = match table::handle(fd) {
        Some(handle) if flags & libc::MAP_ANONYMOUS == 0 => handle,
        _ => return real::mmap()(at, len, access, flags, fd, offset),
    };
    let failed = |errno| {
        fail(errno);
        libc::MAP_FAILED
    };
    let shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    if shared && access & libc::PROT_WRITE != 0 {
        return failed(streams::no_shared_writes(fd));
    }
    if offset < 0 || offset % 4096 != 0 {
        return failed(libc::EINVAL);
    }
    let flags = flags & !libc::MAP_TYPE | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let base = real::mmap()(at, len, writable, flags, -1, 0);
    if base == libc::MAP_FAILED {
        return base;
    }
    let read = read_into(handle, std::iter::once((base.cast(), len)), From::At(offset));
    let outcome = match read {
        Ok(_) if access == writable || libc::mprotect(base, len, access) == 0 => Ok(()),
        Ok(_) => Err(*libc::__errno_location()),
        Err(errno) => Err(errno),
    };
    match outcome {
        Ok(()) => base,
        Err(errno) => {
            libc::munmap(base, len);
            failed(errno)
        }
    }
}

interpose! {
    fn [mmap mmap64]
        (at: *mut c_void, len: size_t, access: c_int, flags: c_int, fd: c_int, offset: off_t)
        -> *mut c_void {
        map(at, len, access, flags, fd, offset)
    }
}
