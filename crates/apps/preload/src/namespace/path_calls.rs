//! Creating, renaming and removing names, and the working directory.

use std::ffi::CStr;

use exec_proto::CallOp;
use libc::{AT_FDCWD, c_char, c_int, c_uint, mode_t, size_t};

use crate::descriptors::open::masked;
use crate::namespace::paths::{PathTarget, ResolvedPath, cwd, open_path, resolve, set_cwd};
use crate::session::Slot;
use crate::{
    Errno, descriptors::fd_table, fail, libc_fns, namespace::stat, start, status, unsupported,
};

/// Makes a call with one path.
pub(crate) fn path_call(
    op: CallOp,
    base: u64,
    path: &ResolvedPath,
    args: [u64; 4],
) -> Result<i64, Errno> {
    let slot = Slot::claim()?;
    slot.put(0, path.bytes())?;
    slot.call(op, base, args, path.bytes().len())
}

unsafe fn rename_any(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
    flags: c_uint,
) -> Result<c_int, Errno> {
    let (mut first, mut second) = (ResolvedPath::new(), ResolvedPath::new());
    let old = resolve(from_dir, from, false, &mut first)?;
    let new = resolve(to_dir, to, false, &mut second)?;
    match (old, new) {
        (PathTarget::Host(from_dir, from), PathTarget::Host(to_dir, to)) => {
            Ok(libc_fns::renameat2()(from_dir, from, to_dir, to, flags))
        }
        (PathTarget::Volume(base), PathTarget::Volume(other)) => {
            let slot = Slot::claim()?;
            let (one, two) = (first.bytes(), second.bytes());
            slot.put(0, one)?;
            slot.put(one.len(), two)?;
            let args = [one.len() as u64, other, flags.into(), 0];
            slot.call(CallOp::Rename, base, args, one.len() + two.len())?;
            Ok(0)
        }
        _ => Err(libc::EXDEV),
    }
}

unsafe fn unlink_any(dirfd: c_int, path: *const c_char, flags: c_int) -> Result<c_int, Errno> {
    let mut buffer = ResolvedPath::new();
    match resolve(dirfd, path, false, &mut buffer)? {
        PathTarget::Host(dirfd, path) => Ok(libc_fns::unlinkat()(dirfd, path, flags)),
        PathTarget::Volume(base) => {
            let directory = flags & libc::AT_REMOVEDIR != 0;
            let op = if directory { CallOp::RemoveDirectory } else { CallOp::Unlink };
            path_call(op, base, &buffer, [0; 4]).map(|_| 0)
        }
    }
}

unsafe fn mkdir_any(dirfd: c_int, path: *const c_char, mode: mode_t) -> Result<c_int, Errno> {
    let mut buffer = ResolvedPath::new();
    match resolve(dirfd, path, false, &mut buffer)? {
        PathTarget::Host(dirfd, path) => Ok(libc_fns::mkdirat()(dirfd, path, mode)),
        PathTarget::Volume(base) => {
            let (uid, gid) = (libc::geteuid().into(), libc::getegid().into());
            path_call(CallOp::MakeDirectory, base, &buffer, [masked(mode), uid, gid, 0]).map(|_| 0)
        }
    }
}

/// Refuses a call that would create an object that volumes do not support.
unsafe fn refuse_call(
    call: &str,
    dirfd: c_int,
    path: *const c_char,
    why: &str,
    real: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    let mut buffer = ResolvedPath::new();
    match resolve(dirfd, path, false, &mut buffer) {
        Ok(PathTarget::Host(dirfd, path)) => real(dirfd, path),
        Ok(PathTarget::Volume(_)) => fail(unsupported(call, CStr::from_ptr(path).to_bytes(), why)),
        Err(errno) => fail(errno),
    }
}

const NO_LINKS: &str = "a volume has no links";
const NO_NODES: &str = "a volume has files and directories only";

unsafe fn link_any(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    let mut buffer = ResolvedPath::new();
    match resolve(from_dir, from, flags & libc::AT_SYMLINK_FOLLOW != 0, &mut buffer) {
        Ok(PathTarget::Host(from_dir, from)) => {
            let real = |dirfd, path| libc_fns::linkat()(from_dir, from, dirfd, path, flags);
            refuse_call("link", to_dir, to, NO_LINKS, real)
        }
        Ok(PathTarget::Volume(_)) => {
            fail(unsupported("link", CStr::from_ptr(from).to_bytes(), NO_LINKS))
        }
        Err(errno) => fail(errno),
    }
}

unsafe fn readlink_any(dirfd: c_int, path: *const c_char, to: *mut c_char, len: size_t) -> isize {
    let mut buffer = ResolvedPath::new();
    let errno = match resolve(dirfd, path, false, &mut buffer) {
        Ok(PathTarget::Host(dirfd, path)) => return libc_fns::readlinkat()(dirfd, path, to, len),
        // Volumes have no symbolic links, so an existing file is not one.
        Ok(PathTarget::Volume(base)) => {
            stat::stat_path(base, &buffer).err().unwrap_or(libc::EINVAL)
        }
        Err(errno) => errno,
    };
    fail(errno) as isize
}

/// Returns a path on the volume without redundant slashes and dots.
fn normalize(path: &[u8]) -> Vec<u8> {
    let names: Vec<&[u8]> =
        path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    names.join(&b'/')
}

unsafe fn chdir_any(path: *const c_char) -> Result<c_int, Errno> {
    let mut buffer = ResolvedPath::new();
    match resolve(AT_FDCWD, path, true, &mut buffer)? {
        PathTarget::Host(_, path) => {
            let result = libc_fns::chdir()(path);
            if result == 0 && cwd().is_some() {
                set_cwd(None);
            }
            Ok(result)
        }
        PathTarget::Volume(base) => {
            if !stat::stat_path(base, &buffer)?.directory {
                return Err(libc::ENOTDIR);
            }
            set_cwd(Some(&normalize(buffer.bytes())));
            Ok(0)
        }
    }
}

/// Returns an absolute path below the mount point, in the program's buffer or in allocated memory,
/// as the C library does.
unsafe fn copy_path_out(path: &[u8], to: *mut c_char, room: Option<size_t>) -> *mut c_char {
    let at = start::mount_point().unwrap_or_default();
    let path = if path.is_empty() { at.to_vec() } else { [at, b"/", path].concat() };
    let null = std::ptr::null_mut();
    let to = match (to.is_null(), room) {
        (_, Some(room)) if room > 0 && room <= path.len() => {
            fail(libc::ERANGE);
            return null;
        }
        (false, Some(0)) => {
            fail(libc::EINVAL);
            return null;
        }
        (true, room) => libc::malloc(room.unwrap_or(0).max(path.len() + 1)).cast(),
        (false, _) => to,
    };
    if !to.is_null() {
        std::ptr::copy_nonoverlapping(path.as_ptr(), to.cast(), path.len());
        *to.add(path.len()) = 0;
    }
    to
}

unsafe fn realpath_any(path: *const c_char, to: *mut c_char) -> *mut c_char {
    let mut buffer = ResolvedPath::new();
    let found = match resolve(AT_FDCWD, path, true, &mut buffer) {
        Ok(PathTarget::Host(_, path)) => return libc_fns::realpath()(path, to),
        Ok(PathTarget::Volume(base)) => stat::stat_path(base, &buffer),
        Err(errno) => Err(errno),
    };
    match found {
        Ok(_) => copy_path_out(&normalize(buffer.bytes()), to, None),
        Err(errno) => {
            fail(errno);
            std::ptr::null_mut()
        }
    }
}

fn int_result(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(fail)
}

interpose! {
    fn [rename] (from: *const c_char, to: *const c_char) -> c_int {
        int_result(rename_any(AT_FDCWD, from, AT_FDCWD, to, 0))
    }
    fn [renameat] (from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int {
        int_result(rename_any(from_dir, from, to_dir, to, 0))
    }
    fn [renameat2]
        (from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint)
        -> c_int {
        int_result(rename_any(from_dir, from, to_dir, to, flags))
    }
    fn [unlink] (path: *const c_char) -> c_int {
        int_result(unlink_any(AT_FDCWD, path, 0))
    }
    fn [unlinkat] (dirfd: c_int, path: *const c_char, flags: c_int) -> c_int {
        int_result(unlink_any(dirfd, path, flags))
    }
    fn [rmdir] (path: *const c_char) -> c_int {
        int_result(unlink_any(AT_FDCWD, path, libc::AT_REMOVEDIR))
    }
    fn [remove] (path: *const c_char) -> c_int {
        let mut buffer = ResolvedPath::new();
        match resolve(AT_FDCWD, path, false, &mut buffer) {
            Ok(PathTarget::Host(_, path)) => libc_fns::remove()(path),
            Ok(PathTarget::Volume(base)) => match path_call(CallOp::Unlink, base, &buffer, [0; 4]) {
                Err(libc::EISDIR) => status(path_call(CallOp::RemoveDirectory, base, &buffer, [0; 4])),
                result => status(result),
            },
            Err(errno) => fail(errno),
        }
    }
    fn [mkdir] (path: *const c_char, mode: mode_t) -> c_int {
        int_result(mkdir_any(AT_FDCWD, path, mode))
    }
    fn [mkdirat] (dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        int_result(mkdir_any(dirfd, path, mode))
    }
    fn [link] (from: *const c_char, to: *const c_char) -> c_int {
        link_any(AT_FDCWD, from, AT_FDCWD, to, 0)
    }
    fn [linkat]
        (from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int)
        -> c_int {
        link_any(from_dir, from, to_dir, to, flags)
    }
    fn [symlink] (target: *const c_char, path: *const c_char) -> c_int {
        let real = |dirfd, path| libc_fns::symlinkat()(target, dirfd, path);
        refuse_call("symlink", AT_FDCWD, path, NO_LINKS, real)
    }
    fn [symlinkat] (target: *const c_char, dirfd: c_int, path: *const c_char) -> c_int {
        let real = |dirfd, path| libc_fns::symlinkat()(target, dirfd, path);
        refuse_call("symlinkat", dirfd, path, NO_LINKS, real)
    }
    fn [mkfifo] (path: *const c_char, mode: mode_t) -> c_int {
        let real = |dirfd, path| libc_fns::mknodat()(dirfd, path, mode | libc::S_IFIFO, 0);
        refuse_call("mkfifo", AT_FDCWD, path, NO_NODES, real)
    }
    fn [mkfifoat] (dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int {
        let real = |dirfd, path| libc_fns::mknodat()(dirfd, path, mode | libc::S_IFIFO, 0);
        refuse_call("mkfifoat", dirfd, path, NO_NODES, real)
    }
    fn [mknod] (path: *const c_char, mode: mode_t, device: libc::dev_t) -> c_int {
        let real = |dirfd, path| libc_fns::mknodat()(dirfd, path, mode, device);
        refuse_call("mknod", AT_FDCWD, path, NO_NODES, real)
    }
    fn [mknodat] (dirfd: c_int, path: *const c_char, mode: mode_t, device: libc::dev_t) -> c_int {
        let real = |dirfd, path| libc_fns::mknodat()(dirfd, path, mode, device);
        refuse_call("mknodat", dirfd, path, NO_NODES, real)
    }
    fn [readlink] (path: *const c_char, to: *mut c_char, len: size_t) -> isize {
        readlink_any(AT_FDCWD, path, to, len)
    }
    fn [readlinkat] (dirfd: c_int, path: *const c_char, to: *mut c_char, len: size_t) -> isize {
        readlink_any(dirfd, path, to, len)
    }
    fn [chdir] (path: *const c_char) -> c_int {
        int_result(chdir_any(path))
    }
    fn [fchdir] (fd: c_int) -> c_int {
        let Some(handle) = fd_table::handle(fd) else {
            let result = libc_fns::fchdir()(fd);
            if result == 0 && cwd().is_some() {
                set_cwd(None);
            }
            return result;
        };
        let mut path = ResolvedPath::new();
        let facts = stat::stat_handle(handle);
        match facts.and_then(|facts| open_path(handle, &mut path).map(|()| facts)) {
            Ok(facts) if !facts.directory => fail(libc::ENOTDIR),
            Ok(_) => {
                set_cwd(Some(path.bytes()));
                0
            }
            Err(errno) => fail(errno),
        }
    }
    fn [getcwd] (to: *mut c_char, len: size_t) -> *mut c_char {
        match cwd() {
            None => libc_fns::getcwd()(to, len),
            Some(path) => copy_path_out(path, to, Some(len)),
        }
    }
    fn [get_current_dir_name] () -> *mut c_char {
        getcwd(std::ptr::null_mut(), 0)
    }
    fn [realpath] (path: *const c_char, to: *mut c_char) -> *mut c_char {
        realpath_any(path, to)
    }
    fn [__realpath_chk] (path: *const c_char, to: *mut c_char, _room: size_t) -> *mut c_char {
        realpath_any(path, to)
    }
    fn [canonicalize_file_name] (path: *const c_char) -> *mut c_char {
        realpath_any(path, std::ptr::null_mut())
    }
}
