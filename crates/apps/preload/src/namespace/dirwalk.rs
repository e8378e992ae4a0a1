//! Functions in which the C library itself reads directories. They are refused on the volume,
//! because they would see the empty directory of the host. Temporary files are implemented here.

use std::ffi::CStr;

use exec_proto::CallOp;
use libc::{AT_FDCWD, c_char, c_int, c_void};

use crate::descriptors::open::{masked, open_on_volume};
use crate::namespace::path_calls::path_call;
use crate::namespace::paths::{PathTarget, ResolvedPath, resolve};
use crate::{Errno, fail, libc_fns, status, unsupported};

const NOT_SUPPORTED_REASON: &str =
    "the C library does not see volumes: list directories with readdir";

/// Returns whether a path leads to the volume; errors are left to the C library.
unsafe fn is_on_volume(path: *const c_char) -> bool {
    matches!(resolve(AT_FDCWD, path, true, &mut ResolvedPath::new()), Ok(PathTarget::Volume(_)))
}

unsafe fn refuse(call: &str, path: *const c_char) -> c_int {
    fail(unsupported(call, CStr::from_ptr(path).to_bytes(), NOT_SUPPORTED_REASON))
}

/// Maximum attempts to find an unused name.
const ATTEMPTS: u32 = 1000;

/// Replaces the six `X` before the last `suffix` bytes, until `make` finds the name unused.
unsafe fn temporary(
    template: *mut c_char,
    suffix: c_int,
    mut make: impl FnMut(u64, &ResolvedPath) -> Result<c_int, Errno>,
) -> Option<Result<c_int, Errno>> {
    let mut buffer = ResolvedPath::new();
    if !matches!(resolve(AT_FDCWD, template, false, &mut buffer), Ok(PathTarget::Volume(_))) {
        return None;
    }
    let len = libc::strlen(template);
    let suffix = usize::try_from(suffix).ok();
    let Some(at) = suffix.and_then(|s| len.checked_sub(s)?.checked_sub(6)) else {
        return Some(Err(libc::EINVAL));
    };
    let letters = std::slice::from_raw_parts_mut(template.add(at).cast::<u8>(), 6);
    if letters != b"XXXXXX" {
        return Some(Err(libc::EINVAL));
    }
    for _ in 0..ATTEMPTS {
        let mut random = [0u8; 6];
        if libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) != 6 {
            return Some(Err(libc::EIO));
        }
        for (to, number) in letters.iter_mut().zip(random) {
            *to = b"abcdefghijklmnopqrstuvwxyz012345"[usize::from(number % 32)];
        }
        let made = match resolve(AT_FDCWD, template, false, &mut buffer) {
            Ok(PathTarget::Volume(base)) => make(base, &buffer),
            Ok(PathTarget::Host(..)) => Err(libc::EINVAL),
            Err(errno) => Err(errno),
        };
        if made != Err(libc::EEXIST) {
            return Some(made);
        }
    }
    Some(Err(libc::EEXIST))
}

unsafe fn temporary_file(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    let make = |base, path: &ResolvedPath| open_on_volume(base, path.bytes(), flags, 0o600);
    match temporary(template, suffix, make) {
        None => libc_fns::mkostemps()(template, suffix, flags & !libc::O_EXCL & !libc::O_CREAT),
        Some(made) => made.unwrap_or_else(fail),
    }
}

interpose! {
    fn [mkstemp mkstemp64] (template: *mut c_char) -> c_int {
        temporary_file(template, 0, 0)
    }
    fn [mkostemp mkostemp64] (template: *mut c_char, flags: c_int) -> c_int {
        temporary_file(template, 0, flags)
    }
    fn [mkstemps mkstemps64] (template: *mut c_char, suffix: c_int) -> c_int {
        temporary_file(template, suffix, 0)
    }
    fn [mkostemps mkostemps64] (template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        temporary_file(template, suffix, flags)
    }
    fn [mkdtemp] (template: *mut c_char) -> *mut c_char {
        let make = |base, path: &ResolvedPath| {
            let (uid, gid) = (libc::geteuid().into(), libc::getegid().into());
            path_call(CallOp::MakeDirectory, base, path, [masked(0o700), uid, gid, 0]).map(|_| 0)
        };
        match temporary(template, 0, make) {
            None => libc_fns::mkdtemp()(template),
            Some(made) if status(made.map(i64::from)) == 0 => template,
            Some(_) => std::ptr::null_mut(),
        }
    }
    fn [glob glob64]
        (pattern: *const c_char, flags: c_int, error: *const c_void, found: *mut c_void) -> c_int {
        if is_on_volume(pattern) {
            refuse("glob", pattern);
            return libc::GLOB_ABORTED;
        }
        libc_fns::glob()(pattern, flags, error, found)
    }
    fn [ftw ftw64] (path: *const c_char, each: *const c_void, open: c_int) -> c_int {
        if is_on_volume(path) { refuse("ftw", path) } else { libc_fns::ftw()(path, each, open) }
    }
    fn [nftw nftw64] (path: *const c_char, each: *const c_void, open: c_int, flags: c_int) -> c_int {
        if is_on_volume(path) { refuse("nftw", path) } else { libc_fns::nftw()(path, each, open, flags) }
    }
    fn [fts_open fts64_open]
        (paths: *const *const c_char, options: c_int, compare: *const c_void) -> *mut c_void {
        let mut next = paths;
        while !(*next).is_null() {
            if is_on_volume(*next) {
                refuse("fts_open", *next);
                return std::ptr::null_mut();
            }
            next = next.add(1);
        }
        libc_fns::fts_open()(paths, options, compare)
    }
}
