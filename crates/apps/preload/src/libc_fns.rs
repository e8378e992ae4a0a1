//! The C library's own functions (`dlsym(3)`, `RTLD_NEXT`). All are resolved when the library is
//! loaded, so that signal handlers need not resolve any.

use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    DIR, FILE, c_char, c_int, c_long, c_uint, c_ulong, c_void, iovec, mode_t, off_t, size_t,
    ssize_t,
};

fn find(cell: &AtomicPtr<c_void>, name: &std::ffi::CStr) -> *mut c_void {
    let found = cell.load(Ordering::Relaxed);
    if !found.is_null() {
        return found;
    }
    // SAFETY: the name is terminated by NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // The C library lacks the function, so the program cannot continue. SAFETY: ends the
        // process.
        unsafe { libc::abort() };
    }
    cell.store(found, Ordering::Relaxed);
    found
}

macro_rules! reals {
    ($($name:ident: $type:ty;)+) => {
        $(
            pub(crate) fn $name() -> $type {
                static CELL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                const NAME: &str = concat!(stringify!($name), "\0");
                let name = match std::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                // SAFETY: the C library's function of this name has this type.
                unsafe { std::mem::transmute::<*mut c_void, $type>(find(&CELL, name)) }
            }
        )+

        /// Resolves all functions.
        pub(crate) fn find_all() {
            $( let _ = $name(); )+
        }
    };
}

type Path = *const c_char;
type Bytes = *const c_void;
type Space = *mut c_void;

reals! {
    open: unsafe extern "C" fn(Path, c_int, mode_t) -> c_int;
    openat: unsafe extern "C" fn(c_int, Path, c_int, mode_t) -> c_int;
    close: unsafe extern "C" fn(c_int) -> c_int;
    close_range: unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
    closefrom: unsafe extern "C" fn(c_int);
    dup: unsafe extern "C" fn(c_int) -> c_int;
    dup2: unsafe extern "C" fn(c_int, c_int) -> c_int;
    dup3: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    read: unsafe extern "C" fn(c_int, Space, size_t) -> ssize_t;
    write: unsafe extern "C" fn(c_int, Bytes, size_t) -> ssize_t;
    pread: unsafe extern "C" fn(c_int, Space, size_t, off_t) -> ssize_t;
    pwrite: unsafe extern "C" fn(c_int, Bytes, size_t, off_t) -> ssize_t;
    readv: unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
    writev: unsafe extern "C" fn(c_int, *const iovec, c_int) -> ssize_t;
    preadv: unsafe extern "C" fn(c_int, *const iovec, c_int, off_t) -> ssize_t;
    pwritev: unsafe extern "C" fn(c_int, *const iovec, c_int, off_t) -> ssize_t;
    preadv2: unsafe extern "C" fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;
    pwritev2: unsafe extern "C" fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t;
    lseek: unsafe extern "C" fn(c_int, off_t, c_int) -> off_t;
    fsync: unsafe extern "C" fn(c_int) -> c_int;
    fdatasync: unsafe extern "C" fn(c_int) -> c_int;
    sync_file_range: unsafe extern "C" fn(c_int, off_t, off_t, c_uint) -> c_int;
    syncfs: unsafe extern "C" fn(c_int) -> c_int;
    sync: unsafe extern "C" fn();
    ftruncate: unsafe extern "C" fn(c_int, off_t) -> c_int;
    truncate: unsafe extern "C" fn(Path, off_t) -> c_int;
    fallocate: unsafe extern "C" fn(c_int, c_int, off_t, off_t) -> c_int;
    posix_fallocate: unsafe extern "C" fn(c_int, off_t, off_t) -> c_int;
    posix_fadvise: unsafe extern "C" fn(c_int, off_t, off_t, c_int) -> c_int;
    readahead: unsafe extern "C" fn(c_int, off_t, size_t) -> ssize_t;
    send: unsafe extern "C" fn(c_int, Bytes, size_t, c_int) -> ssize_t;
    sendto: unsafe extern "C" fn(
        c_int, Bytes, size_t, c_int, *const libc::sockaddr, libc::socklen_t) -> ssize_t;
    sendmsg: unsafe extern "C" fn(c_int, *const libc::msghdr, c_int) -> ssize_t;
    sendmmsg: unsafe extern "C" fn(c_int, *mut libc::mmsghdr, c_uint, c_int) -> c_int;
    sendfile: unsafe extern "C" fn(c_int, c_int, *mut off_t, size_t) -> ssize_t;
    splice: unsafe extern "C" fn(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint) -> ssize_t;
    copy_file_range:
        unsafe extern "C" fn(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint) -> ssize_t;
    fcntl: unsafe extern "C" fn(c_int, c_int, c_ulong) -> c_int;
    ioctl: unsafe extern "C" fn(c_int, c_ulong, c_ulong) -> c_int;
    flock: unsafe extern "C" fn(c_int, c_int) -> c_int;
    renameat2: unsafe extern "C" fn(c_int, Path, c_int, Path, c_uint) -> c_int;
    unlinkat: unsafe extern "C" fn(c_int, Path, c_int) -> c_int;
    remove: unsafe extern "C" fn(Path) -> c_int;
    mkdirat: unsafe extern "C" fn(c_int, Path, mode_t) -> c_int;
    linkat: unsafe extern "C" fn(c_int, Path, c_int, Path, c_int) -> c_int;
    symlinkat: unsafe extern "C" fn(Path, c_int, Path) -> c_int;
    mknodat: unsafe extern "C" fn(c_int, Path, mode_t, libc::dev_t) -> c_int;
    readlinkat: unsafe extern "C" fn(c_int, Path, *mut c_char, size_t) -> ssize_t;
    fstatat: unsafe extern "C" fn(c_int, Path, *mut libc::stat, c_int) -> c_int;
    statx: unsafe extern "C" fn(c_int, Path, c_int, c_uint, *mut libc::statx) -> c_int;
    faccessat: unsafe extern "C" fn(c_int, Path, c_int, c_int) -> c_int;
    fchmod: unsafe extern "C" fn(c_int, mode_t) -> c_int;
    fchmodat: unsafe extern "C" fn(c_int, Path, mode_t, c_int) -> c_int;
    fchown: unsafe extern "C" fn(c_int, c_uint, c_uint) -> c_int;
    fchownat: unsafe extern "C" fn(c_int, Path, c_uint, c_uint, c_int) -> c_int;
    futimens: unsafe extern "C" fn(c_int, *const libc::timespec) -> c_int;
    utimensat: unsafe extern "C" fn(c_int, Path, *const libc::timespec, c_int) -> c_int;
    statfs: unsafe extern "C" fn(Path, *mut libc::statfs) -> c_int;
    fstatfs: unsafe extern "C" fn(c_int, *mut libc::statfs) -> c_int;
    statvfs: unsafe extern "C" fn(Path, *mut libc::statvfs) -> c_int;
    fstatvfs: unsafe extern "C" fn(c_int, *mut libc::statvfs) -> c_int;
    chdir: unsafe extern "C" fn(Path) -> c_int;
    fchdir: unsafe extern "C" fn(c_int) -> c_int;
    getcwd: unsafe extern "C" fn(*mut c_char, size_t) -> *mut c_char;
    realpath: unsafe extern "C" fn(Path, *mut c_char) -> *mut c_char;
    opendir: unsafe extern "C" fn(Path) -> *mut DIR;
    fdopendir: unsafe extern "C" fn(c_int) -> *mut DIR;
    readdir: unsafe extern "C" fn(*mut DIR) -> *mut libc::dirent;
    closedir: unsafe extern "C" fn(*mut DIR) -> c_int;
    rewinddir: unsafe extern "C" fn(*mut DIR);
    telldir: unsafe extern "C" fn(*mut DIR) -> c_long;
    seekdir: unsafe extern "C" fn(*mut DIR, c_long);
    dirfd: unsafe extern "C" fn(*mut DIR) -> c_int;
    fopen: unsafe extern "C" fn(Path, Path) -> *mut FILE;
    freopen: unsafe extern "C" fn(Path, Path, *mut FILE) -> *mut FILE;
    fdopen: unsafe extern "C" fn(c_int, Path) -> *mut FILE;
    fileno: unsafe extern "C" fn(*mut FILE) -> c_int;
    fclose: unsafe extern "C" fn(*mut FILE) -> c_int;
    mmap: unsafe extern "C" fn(Space, size_t, c_int, c_int, c_int, off_t) -> Space;
    munmap: unsafe extern "C" fn(Space, size_t) -> c_int;
    mremap: unsafe extern "C" fn(Space, size_t, size_t, c_int, Space) -> Space;
    mprotect: unsafe extern "C" fn(Space, size_t, c_int) -> c_int;
    madvise: unsafe extern "C" fn(Space, size_t, c_int) -> c_int;
    msync: unsafe extern "C" fn(Space, size_t, c_int) -> c_int;
    mkostemps: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
    mkdtemp: unsafe extern "C" fn(*mut c_char) -> *mut c_char;
    glob: unsafe extern "C" fn(Path, c_int, Bytes, Space) -> c_int;
    ftw: unsafe extern "C" fn(Path, Bytes, c_int) -> c_int;
    nftw: unsafe extern "C" fn(Path, Bytes, c_int, c_int) -> c_int;
    fts_open: unsafe extern "C" fn(*const Path, c_int, Bytes) -> Space;
    getxattr: unsafe extern "C" fn(Path, Path, Space, size_t) -> ssize_t;
    lgetxattr: unsafe extern "C" fn(Path, Path, Space, size_t) -> ssize_t;
    listxattr: unsafe extern "C" fn(Path, *mut c_char, size_t) -> ssize_t;
    llistxattr: unsafe extern "C" fn(Path, *mut c_char, size_t) -> ssize_t;
    execvp: unsafe extern "C" fn(Path, *const Path) -> c_int;
    fork: unsafe extern "C" fn() -> libc::pid_t;
    execve: unsafe extern "C" fn(Path, *const Path, *const Path) -> c_int;
}
