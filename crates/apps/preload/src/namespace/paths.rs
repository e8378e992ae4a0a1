//! Decides which paths lead to the volume.
//!
//! A path is resolved component by component until it reaches the mount point: symbolic links of
//! the host are followed, and `..` goes up. The remainder is a path on the volume. The volume has
//! no symbolic links, so `a/..` cancels out there; a `..` out of the volume leads to the host. A
//! path that never reaches the mount point is passed to the C library unchanged.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use exec_proto::CallOp;
use libc::{c_char, c_int};

use crate::session::Slot;
use crate::{Errno, descriptors::fd_table, libc_fns, start};

/// Maximum bytes of a path, including its NUL.
const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;
/// Maximum symbolic links of a path (`path_resolution(7)`).
const LINKS_MAX: u32 = 40;

/// A path under construction.
pub(crate) struct ResolvedPath {
    bytes: [u8; PATH_BYTES_MAX],
    len: usize,
}

impl ResolvedPath {
    pub(crate) const fn new() -> ResolvedPath {
        ResolvedPath { bytes: [0; PATH_BYTES_MAX], len: 0 }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns a pointer to the path, terminated by NUL.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    fn set(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.len = 0;
        self.push(bytes)
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let end = self.len + bytes.len();
        if end >= PATH_BYTES_MAX {
            return Err(libc::ENAMETOOLONG);
        }
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.bytes[end] = 0;
        self.len = end;
        Ok(())
    }

    fn push_name(&mut self, name: &[u8]) -> Result<(), Errno> {
        self.push(b"/")?;
        self.push(name)
    }

    /// Removes the last component.
    fn pop(&mut self) {
        self.len = self.bytes().iter().rposition(|b| *b == b'/').unwrap_or(0);
        self.bytes[self.len] = 0;
    }
}

/// Target of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathTarget {
    /// The host: the arguments for the C library.
    Host(c_int, *const c_char),
    /// The volume: relative to an open directory or the root (0); the path is in the buffer.
    Volume(u64),
}

/// The working directory, if it is on the volume. Earlier values are never freed, because a thread
/// may be reading one.
static CWD: AtomicPtr<Vec<u8>> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the path of the working directory on the volume.
pub(crate) fn cwd() -> Option<&'static [u8]> {
    // SAFETY: null, or a vector that is never freed.
    unsafe { CWD.load(Ordering::Acquire).as_ref() }.map(|path| &path[..])
}

/// Sets the working directory to a path on the volume, or to the host.
pub(crate) fn set_cwd(path: Option<&[u8]>) {
    let new = path.map_or(std::ptr::null_mut(), |p| Box::into_raw(Box::new(p.to_vec())));
    CWD.store(new, Ordering::Release);
    let name = exec_proto::ENV_CWD;
    // SAFETY: the C library locks the environment. Programs started by `exec` read the variable.
    unsafe {
        match path.map(|p| std::ffi::CString::new([b"/", p].concat())) {
            Some(Ok(path)) => libc::setenv(c_name(name).as_ptr().cast(), path.as_ptr(), 1),
            _ => libc::unsetenv(c_name(name).as_ptr().cast()),
        };
    }
}

fn c_name(name: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

/// Restores the working directory from before `exec`.
pub(crate) fn restore_cwd(path: &[u8]) {
    let path = path.strip_prefix(b"/").unwrap_or(path).to_vec();
    CWD.store(Box::into_raw(Box::new(path)), Ordering::Release);
}

/// Resolves `path` relative to `dirfd`. `follow` says whether a symbolic link in the last component
/// is followed.
///
/// # Errors
/// If the path is too long, has too many links, or the working directory cannot be determined.
///
/// # Safety
/// `path` is terminated by NUL, or null.
pub(crate) unsafe fn resolve(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    out: &mut ResolvedPath,
) -> Result<PathTarget, Errno> {
    let host = PathTarget::Host(dirfd, path);
    let Some(at) = start::mount_point() else { return Ok(host) };
    if path.is_null() {
        return Ok(host);
    }
    let given = CStr::from_ptr(path).to_bytes();
    let mut todo = ResolvedPath::new();
    let mut virtual_base = false;
    match given.first() {
        None if fd_table::handle(dirfd).is_some() => return Err(libc::ENOENT),
        None => return Ok(host),
        Some(b'/') => todo.set(given)?,
        Some(_) if dirfd == libc::AT_FDCWD => {
            if let Some(cwd) = cwd() {
                virtual_base = true;
                todo.set(at)?;
                todo.push_name(cwd)?;
            } else {
                // The system call, because the C library's function may allocate.
                let len = libc::syscall(libc::SYS_getcwd, todo.bytes.as_mut_ptr(), PATH_BYTES_MAX);
                if len <= 1 || todo.bytes[0] != b'/' {
                    return Ok(host);
                }
                todo.len = len as usize - 1;
            }
            todo.push_name(given)?;
        }
        Some(_) => match fd_table::handle(dirfd) {
            Some(handle) if !given.split(|b| *b == b'/').any(|name| name == b"..") => {
                out.set(given)?;
                return Ok(PathTarget::Volume(handle));
            }
            Some(handle) => {
                virtual_base = true;
                todo.set(at)?;
                todo.push(b"/")?;
                open_path(handle, &mut todo)?;
                todo.push_name(given)?;
            }
            None => {
                if !link_of_descriptor(dirfd, &mut todo) {
                    return Ok(host);
                }
                todo.push_name(given)?;
            }
        },
    }
    match walk(at, &mut todo, follow, out)? {
        WalkResult::Volume => return Ok(PathTarget::Volume(0)),
        // The host has no such path.
        WalkResult::HostViaVolume => virtual_base = true,
        WalkResult::Host => {}
    }
    if virtual_base {
        if out.len == 0 {
            out.set(b"/")?;
        }
        return Ok(PathTarget::Host(libc::AT_FDCWD, out.as_ptr()));
    }
    Ok(host)
}

/// Appends the path of an open directory on the volume.
pub(crate) fn open_path(handle: u64, to: &mut ResolvedPath) -> Result<(), Errno> {
    let slot = Slot::claim()?;
    let len = slot.call(CallOp::Path, handle, [0; 4], 0)? as usize;
    let mut path = [0; PATH_BYTES_MAX];
    let path = path.get_mut(..len).ok_or(libc::ENAMETOOLONG)?;
    slot.get(0, path);
    to.push(path)
}

/// Reads the path of a host descriptor.
fn link_of_descriptor(fd: c_int, to: &mut ResolvedPath) -> bool {
    let mut name = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0u8; 11];
    let (mut at, mut rest) = (digits.len(), fd.max(0));
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    name[14..14 + digits.len() - at].copy_from_slice(&digits[at..]);
    // SAFETY: the name is terminated by NUL, and the length is that of the buffer.
    let len = unsafe {
        libc_fns::readlinkat()(
            libc::AT_FDCWD,
            name.as_ptr().cast(),
            to.bytes.as_mut_ptr().cast(),
            PATH_BYTES_MAX - 1,
        )
    };
    if len <= 0 || to.bytes[0] != b'/' {
        return false;
    }
    to.len = len as usize;
    true
}

/// Result of a walk.
enum WalkResult {
    /// The volume.
    Volume,
    /// The host, through the volume.
    HostViaVolume,
    /// The host.
    Host,
}

/// Walks the absolute path `todo`; the resulting path on the volume, or on the host, is in `out`.
fn walk(
    at: &[u8],
    todo: &mut ResolvedPath,
    follow: bool,
    out: &mut ResolvedPath,
) -> Result<WalkResult, Errno> {
    let mut host = WalkResult::Host;
    out.set(b"")?;
    let mut links = 0;
    let mut next = 0;
    loop {
        while next < todo.len && todo.bytes[next] == b'/' {
            next += 1;
        }
        if next == todo.len {
            return Ok(host);
        }
        let end =
            todo.bytes()[next..].iter().position(|b| *b == b'/').map_or(todo.len, |n| next + n);
        let name = &todo.bytes[next..end];
        match name {
            b"." => {}
            b".." => out.pop(),
            name => out.push_name(name)?,
        }
        let named = !matches!(name, b"." | b"..");
        next = end;
        if out.bytes() == at {
            match strip_mount_point(&todo.bytes[next..todo.len], out)? {
                None => return Ok(WalkResult::Volume),
                Some(left) => {
                    host = WalkResult::HostViaVolume;
                    next += left;
                    out.set(at)?;
                    out.pop();
                    continue;
                }
            }
        }
        // Links in these depend on the process, and do not lead to the volume.
        if matches!(out.bytes(), b"/proc" | b"/sys" | b"/dev") {
            out.push(&todo.bytes[next..todo.len])?;
            return Ok(host);
        }
        let last = todo.bytes[next..todo.len].iter().all(|b| *b == b'/');
        let slash = next < todo.len;
        if !named || last && !follow && !slash {
            continue;
        }
        let mut link = [0u8; PATH_BYTES_MAX];
        // SAFETY: the path is terminated by NUL, the length is that of the buffer, and `errno` is
        // restored.
        let len = unsafe {
            let errno = *libc::__errno_location();
            let len = libc_fns::readlinkat()(
                libc::AT_FDCWD,
                out.as_ptr(),
                link.as_mut_ptr().cast(),
                PATH_BYTES_MAX - 1,
            );
            *libc::__errno_location() = errno;
            len
        };
        if len <= 0 {
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(libc::ELOOP);
        }
        let link = &link[..len as usize];
        out.pop();
        if link[0] == b'/' {
            out.set(b"")?;
        }
        let mut path = ResolvedPath::new();
        path.set(link)?;
        path.push(&todo.bytes[next..todo.len])?;
        todo.set(path.bytes())?;
        next = 0;
    }
}

/// Puts the remainder of a path below the mount point into `out`. If it leaves the volume, returns
/// the length of the part that leads to the mount point's parent.
fn strip_mount_point(rest: &[u8], out: &mut ResolvedPath) -> Result<Option<usize>, Errno> {
    out.set(b"")?;
    let mut at = 0;
    while at < rest.len() {
        let end = rest[at..].iter().position(|b| *b == b'/').map_or(rest.len(), |n| at + n);
        match &rest[at..end] {
            b"" | b"." => {}
            b".." if out.len == 0 => return Ok(Some(end)),
            b".." => out.pop(),
            name => out.push_name(name)?,
        }
        at = end + 1;
    }
    if out.len > 0 && (rest.ends_with(b"/") || rest.ends_with(b"/.")) {
        out.push(b"/")?;
    }
    Ok(None)
}
