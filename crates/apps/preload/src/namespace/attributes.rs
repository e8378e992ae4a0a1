//! Extended attributes, which a volume does not support: calls by path fail with `ENOTSUP`, as on
//! file systems without them, and print no diagnostic.

use libc::{AT_FDCWD, c_char, c_void, size_t, ssize_t};

use crate::namespace::paths::{PathTarget, ResolvedPath, resolve};
use crate::{fail, libc_fns};

/// Returns whether a path leads to the volume; errors are left to the C library.
unsafe fn is_on_volume(path: *const c_char, follow: bool) -> bool {
    matches!(resolve(AT_FDCWD, path, follow, &mut ResolvedPath::new()), Ok(PathTarget::Volume(_)))
}

interpose! {
    fn [getxattr] (path: *const c_char, name: *const c_char, to: *mut c_void, len: size_t) -> ssize_t {
        if is_on_volume(path, true) {
            return fail(libc::ENOTSUP) as ssize_t;
        }
        libc_fns::getxattr()(path, name, to, len)
    }
    fn [lgetxattr] (path: *const c_char, name: *const c_char, to: *mut c_void, len: size_t) -> ssize_t {
        if is_on_volume(path, false) {
            return fail(libc::ENOTSUP) as ssize_t;
        }
        libc_fns::lgetxattr()(path, name, to, len)
    }
    fn [listxattr] (path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
        if is_on_volume(path, true) {
            return fail(libc::ENOTSUP) as ssize_t;
        }
        libc_fns::listxattr()(path, to, len)
    }
    fn [llistxattr] (path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
        if is_on_volume(path, false) {
            return fail(libc::ENOTSUP) as ssize_t;
        }
        libc_fns::llistxattr()(path, to, len)
    }
}
