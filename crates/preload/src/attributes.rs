//! Extended attributes, which a volume does not have: asked for by path they are `ENOTSUP`, as on file systems
//! without them, and nothing is said.

use libc::{AT_FDCWD, c_char, c_void, size_t, ssize_t};

use crate::paths::{Path, Place, place};
use crate::{fail, real};

/// Whether a path leads to the volume; an error is the C library's to find.
unsafe fn none(path: *const c_char, follow: bool) -> bool {
    matches!(place(AT_FDCWD, path, follow, &mut Path::new()), Ok(Place::Volume(_)))
}

interpose! {
    fn [getxattr] (path: *const c_char, name: *const c_char, to: *mut c_void, len: size_t) -> ssize_t {
        if none(path, true) {
            return fail(libc::ENOTSUP) as ssize_t;
        }
        real::getxattr()(path, name, to, len)
    }
    fn [lgetxattr] (path: *const c_char, name: *const c_char, to: *mut c_void, len: size_t) -> ssize_t {
        if none(path, false) {
            return fail(libc::ENOTSUP) as ssize_t;
        }
        real::lgetxattr()(path, name, to, len)
    }
    fn [listxattr] (path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
        if none(path, true) {
            return fail(libc::ENOTSUP) as ssize_t;
        }
        real::listxattr()(path, to, len)
    }
    fn [llistxattr] (path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
        if none(path, false) {
            return fail(libc::ENOTSUP) as ssize_t;
        }
        real::llistxattr()(path, to, len)
    }
}
