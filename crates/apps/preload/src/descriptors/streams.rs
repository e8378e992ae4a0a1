//! C streams (`fopen` and its family) over files of the volume: `fopencookie(3)` lets the C library
//! buffer, and `fileno` is implemented here.

use std::ffi::CStr;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicPtr, AtomicUsize, Ordering};

use exec_proto::CallOp;
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};

use crate::descriptors::data::{FileOffset, read_into, write_from};
use crate::descriptors::open::open_on_volume;
use crate::namespace::paths::{PathTarget, ResolvedPath, resolve};
use crate::session::call;
use crate::{Errno, count, descriptors::fd_table, fail, libc_fns, unsupported};

/// Maximum number of streams on the volume in a process.
const STREAMS_MAX: usize = 1024;

static FILES: [AtomicPtr<FILE>; STREAMS_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; STREAMS_MAX];
static DESCRIPTORS: [AtomicI32; STREAMS_MAX] = [const { AtomicI32::new(-1) }; STREAMS_MAX];
/// File offset of a stream that is being read, or [`UNKNOWN`]. `ftell` would ask the service each
/// time, and some programs call it for every line. The C library's own streams cache the offset as
/// well.
static OFFSETS: [AtomicI64; STREAMS_MAX] = [const { AtomicI64::new(UNKNOWN) }; STREAMS_MAX];
const UNKNOWN: i64 = -1;
/// The slot is in use, without a descriptor.
const NO_DESCRIPTOR: c_int = -2;
/// Slots that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

#[repr(C)]
struct Functions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

fn handle(cookie: *mut c_void) -> Result<u64, Errno> {
    let fd = DESCRIPTORS[cookie as usize].load(Ordering::Acquire);
    fd_table::handle(fd).ok_or(libc::EBADF)
}

unsafe extern "C" fn read(cookie: *mut c_void, to: *mut c_char, len: size_t) -> ssize_t {
    let parts = std::iter::once((to.cast(), len));
    let read = handle(cookie).and_then(|handle| read_into(handle, parts, FileOffset::Current));
    let offset = &OFFSETS[cookie as usize];
    match (offset.load(Ordering::Relaxed), &read) {
        (UNKNOWN, _) => {}
        (at, Ok(len)) => offset.store(at + len, Ordering::Relaxed),
        (_, Err(_)) => offset.store(UNKNOWN, Ordering::Relaxed),
    }
    count(read)
}

unsafe extern "C" fn write(cookie: *mut c_void, bytes: *const c_char, len: size_t) -> ssize_t {
    let parts = std::iter::once((bytes.cast(), len));
    // With O_APPEND the new offset is unknown.
    OFFSETS[cookie as usize].store(UNKNOWN, Ordering::Relaxed);
    let written = handle(cookie).and_then(|handle| {
        let fd = DESCRIPTORS[cookie as usize].load(Ordering::Acquire);
        write_from(fd, handle, parts, FileOffset::Current)
    });
    match written {
        Ok(done) => done as ssize_t,
        // The C library interprets 0 as an error here, and a negative number as a count.
        Err(errno) => {
            fail(errno);
            0
        }
    }
}

unsafe extern "C" fn seek(cookie: *mut c_void, to: *mut off64_t, whence: c_int) -> c_int {
    let offset = &OFFSETS[cookie as usize];
    let known = offset.load(Ordering::Relaxed);
    if (*to, whence) == (0, libc::SEEK_CUR) && known != UNKNOWN {
        *to = known;
        return 0;
    }
    offset.store(UNKNOWN, Ordering::Relaxed);
    let sought = handle(cookie)
        .and_then(|handle| call(CallOp::Seek, handle, [*to as u64, whence as u64, 0, 0]));
    match sought {
        Ok(at) => {
            offset.store(at, Ordering::Relaxed);
            *to = at;
            0
        }
        Err(errno) => fail(errno),
    }
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    let index = cookie as usize;
    let fd = DESCRIPTORS[index].swap(-1, Ordering::AcqRel);
    FILES[index].store(std::ptr::null_mut(), Ordering::Release);
    if fd < 0 { 0 } else { libc::close(fd) }
}

/// Returns the `O_*` flags of a mode.
fn flags(mode: &[u8]) -> Result<c_int, Errno> {
    let access = if mode.contains(&b'+') { libc::O_RDWR } else { libc::O_WRONLY };
    let flags = match mode.first() {
        Some(b'r') if mode.contains(&b'+') => libc::O_RDWR,
        Some(b'r') => libc::O_RDONLY,
        Some(b'w') => access | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => access | libc::O_CREAT | libc::O_APPEND,
        _ => return Err(libc::EINVAL),
    };
    let more = [(b'x', libc::O_EXCL), (b'e', libc::O_CLOEXEC)];
    Ok(more.iter().filter(|(c, _)| mode.contains(c)).fold(flags, |all, (_, flag)| all | flag))
}

/// Invalidates the cached offset after the open file's offset was changed by other means.
pub(crate) fn invalidate_offsets(fd: c_int) {
    for (offset, of) in OFFSETS.iter().zip(&DESCRIPTORS).take(USED.load(Ordering::Acquire)) {
        if of.load(Ordering::Relaxed) == fd {
            offset.store(UNKNOWN, Ordering::Relaxed);
        }
    }
}

/// Creates a stream over a descriptor of the volume.
unsafe fn stream(fd: c_int, mode: *const c_char) -> Result<*mut FILE, Errno> {
    let free = |i: &usize| {
        let place = &DESCRIPTORS[*i];
        place.compare_exchange(-1, fd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let index = (0..STREAMS_MAX).find(free).ok_or(libc::EMFILE)?;
    USED.fetch_max(index + 1, Ordering::AcqRel);
    OFFSETS[index].store(UNKNOWN, Ordering::Relaxed);
    let functions =
        Functions { read: Some(read), write: Some(write), seek: Some(seek), close: Some(close) };
    let file = fopencookie(index as *mut c_void, mode, functions);
    if file.is_null() {
        DESCRIPTORS[index].store(-1, Ordering::Release);
        return Err(libc::ENOMEM);
    }
    FILES[index].store(file, Ordering::Release);
    Ok(file)
}

fn null(errno: Errno) -> *mut FILE {
    fail(errno);
    std::ptr::null_mut()
}

unsafe fn open_stream(
    base: u64,
    path: &ResolvedPath,
    mode: *const c_char,
) -> Result<*mut FILE, Errno> {
    let fd = open_on_volume(base, path.bytes(), flags(CStr::from_ptr(mode).to_bytes())?, 0o666)?;
    stream(fd, mode).inspect_err(|_| {
        libc::close(fd);
    })
}

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// The C library's standard streams, while replaced.
static HOST: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];

/// Replaces a standard stream if its descriptor belongs to the volume now, or restores it. The C
/// library's own stream would write to the descriptor directly.
pub(crate) unsafe fn replace_standard(fd: c_int) {
    let (variable, mode) = match fd {
        0 => (&raw mut stdin, c"r"),
        1 => (&raw mut stdout, c"w"),
        2 => (&raw mut stderr, c"w"),
        _ => return,
    };
    let host = HOST[fd as usize].load(Ordering::Acquire);
    if fd_table::handle(fd).is_none() {
        if !host.is_null() {
            let ours = std::mem::replace(&mut *variable, host);
            // The stream was flushed when its descriptor was released, which may be in use for
            // another file now.
            if let Some(index) = index(ours) {
                DESCRIPTORS[index].store(NO_DESCRIPTOR, Ordering::Release);
                libc::fclose(ours);
            }
            HOST[fd as usize].store(std::ptr::null_mut(), Ordering::Release);
        }
        return;
    }
    if !host.is_null() {
        return;
    }
    if let Ok(file) = stream(fd, mode.as_ptr()) {
        HOST[fd as usize].store(*variable, Ordering::Release);
        if fd == 2 {
            libc::setvbuf(file, std::ptr::null_mut(), libc::_IONBF, 0);
        }
        *variable = file;
    }
}

/// Flushes a replaced standard stream before its descriptor is released.
pub(crate) unsafe fn flush(fd: c_int) {
    if (0..3).contains(&fd) && !HOST[fd as usize].load(Ordering::Acquire).is_null() {
        match fd {
            1 => libc::fflush(stdout),
            2 => libc::fflush(stderr),
            _ => 0,
        };
    }
}

fn index(file: *mut FILE) -> Option<usize> {
    let used = USED.load(Ordering::Acquire);
    FILES[..used].iter().position(|f| f.load(Ordering::Acquire) == file)
}

fn descriptor(file: *mut FILE) -> Option<c_int> {
    Some(DESCRIPTORS[index(file)?].load(Ordering::Acquire))
}

interpose! {
    fn [fopen fopen64] (path: *const c_char, mode: *const c_char) -> *mut FILE {
        let mut buffer = ResolvedPath::new();
        match resolve(libc::AT_FDCWD, path, true, &mut buffer) {
            Ok(PathTarget::Host(_, path)) => libc_fns::fopen()(path, mode),
            Ok(PathTarget::Volume(base)) => open_stream(base, &buffer, mode).unwrap_or_else(null),
            Err(errno) => null(errno),
        }
    }
    fn [freopen freopen64] (path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
        let mut buffer = ResolvedPath::new();
        let ours = !file.is_null() && descriptor(file).is_some();
        match resolve(libc::AT_FDCWD, path, true, &mut buffer) {
            Ok(PathTarget::Host(_, path)) if !ours => libc_fns::freopen()(path, mode, file),
            Ok(PathTarget::Host(..)) => null(unsupported("freopen", b"a stream", "it is on a volume")),
            Ok(PathTarget::Volume(_)) => {
                let path = CStr::from_ptr(path).to_bytes();
                null(unsupported("freopen", path, "streams cannot be moved to a volume"))
            }
            Err(errno) => null(errno),
        }
    }
    fn [fdopen] (fd: c_int, mode: *const c_char) -> *mut FILE {
        if fd_table::handle(fd).is_none() {
            return libc_fns::fdopen()(fd, mode);
        }
        stream(fd, mode).unwrap_or_else(null)
    }
    fn [fileno fileno_unlocked] (file: *mut FILE) -> c_int {
        match descriptor(file) {
            Some(fd) => fd,
            None => libc_fns::fileno()(file),
        }
    }
}
