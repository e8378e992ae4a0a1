//! `vfork`, and running programs that are on the volume.
//!
//! A forked process shares no slots with its parent; module [`session`](crate::session) ensures
//! that for `fork` and similar calls. After `vfork` a child shares all memory, so its closes would
//! change its parent's table. It therefore gets memory of its own, which POSIX permits.

use std::ffi::CStr;

use libc::{c_char, c_int, pid_t};

use crate::namespace::paths::{PathTarget, ResolvedPath, cwd, resolve};
use crate::{fail, libc_fns, unsupported};

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Returns an environment with the working directory, whatever environment the program passes:
/// shells build their own. The second part points into the first.
unsafe fn with_cwd(given: *const *const c_char) -> (Vec<u8>, Vec<*const c_char>) {
    let mut all = Vec::new();
    let mut next = given;
    let name = exec_proto::ENV_CWD.as_bytes();
    while !next.is_null() && !(*next).is_null() {
        let variable = CStr::from_ptr(*next).to_bytes();
        if !variable.strip_prefix(name).is_some_and(|rest| rest.starts_with(b"=")) {
            all.push(*next);
        }
        next = next.add(1);
    }
    let mut own = Vec::new();
    if let Some(cwd) = cwd() {
        own = [name, b"=/", cwd, b"\0"].concat();
        all.push(own.as_ptr().cast());
    }
    all.push(std::ptr::null());
    (own, all)
}

unsafe fn exec(
    path: *const c_char,
    args: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let mut buffer = ResolvedPath::new();
    match resolve(libc::AT_FDCWD, path, true, &mut buffer) {
        Ok(PathTarget::Host(_, path)) => {
            let (_cwd, environment) = with_cwd(environment);
            libc_fns::execve()(path, args, environment.as_ptr())
        }
        Ok(PathTarget::Volume(_)) => {
            let path = CStr::from_ptr(path).to_bytes();
            fail(unsupported("execve", path, "programs cannot be run from a volume"))
        }
        Err(errno) => fail(errno),
    }
}

interpose! {
    fn [vfork] () -> pid_t {
        libc_fns::fork()()
    }
    fn [execve]
        (path: *const c_char, args: *const *const c_char, environment: *const *const c_char)
        -> c_int {
        exec(path, args, environment)
    }
    fn [execv] (path: *const c_char, args: *const *const c_char) -> c_int {
        exec(path, args, environ)
    }
    fn [execvp] (name: *const c_char, args: *const *const c_char) -> c_int {
        if CStr::from_ptr(name).to_bytes().contains(&b'/') {
            return exec(name, args, environ);
        }
        libc_fns::execvp()(name, args)
    }
}
