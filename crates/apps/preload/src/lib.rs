//! `libsluice_preload.so`: interposes C library functions in a program under `sluice exec`, and
//! serves calls about files below one directory from a Sluice volume. docs/exec.md lists the
//! functions.
//!
//! # Guarantees
//!
//! - Any other call goes to the C library with its original arguments.
//! - A call about the volume that is not supported fails with `ENOTSUP` and prints one line on
//!   standard error.
//! - Reads, writes and syncs allocate no memory and take no lock, so that signal handlers may use
//!   them.
//!
//! # Variadic functions
//!
//! `open`, `openat`, `fcntl` and `ioctl` are variadic in C. Here they have fixed parameters. The
//! calling conventions of Linux on x86-64 (System V ABI 3.5.7) and aarch64 (AAPCS64 6.8.2) pass
//! integers and pointers in the same registers either way. An argument that the caller omitted is a
//! register with an arbitrary value, which is read only where the C function would read it.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "every unsafe function here is a C function, whose pointers are its caller's word as they \
              are the C library's"
)]

/// Defines functions that replace those of the C library; several names may share one body.
macro_rules! interpose {
    ($(fn [$($name:ident)+] $args:tt -> $ret:ty $body:block)+) => { $($(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name $args -> $ret $body
    )+)+ };
}

mod descriptors;
mod gate;
mod libc_fns;
mod mmap;
mod namespace;
mod processes;
mod session;
mod start;

use libc::c_int;

/// Error number of a failed call.
type Errno = c_int;

/// Sets `errno` and returns -1.
fn fail(errno: Errno) -> c_int {
    // SAFETY: `errno` of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Converts a result into 0 or -1 with `errno`.
fn status(result: Result<i64, Errno>) -> c_int {
    match result {
        Ok(_) => 0,
        Err(errno) => fail(errno),
    }
}

/// Converts a result into a count or -1 with `errno`.
fn count(result: Result<i64, Errno>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(errno) => fail(errno) as isize,
    }
}

/// Reports an unsupported call on standard error, once per call, and returns its error number.
fn unsupported(call: &str, what: &[u8], why: &str) -> Errno {
    let mut line = [0u8; 512];
    let mut len = 0;
    for part in [b"sluice exec: ", call.as_bytes(), b": ", what, b": ", why.as_bytes()] {
        let room = line.len() - 1 - len;
        let part = &part[..part.len().min(room)];
        line[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    line[len] = b'\n';
    // SAFETY: the line outlives the call. A failed write is ignored.
    unsafe { libc_fns::write()(2, line.as_ptr().cast(), len + 1) };
    libc::ENOTSUP
}

/// Reports an unsupported call on a descriptor, as [`unsupported`] does.
fn unsupported_fd(call: &str, fd: c_int, why: &str) -> Errno {
    let mut text = *b"descriptor 0000000000";
    let mut rest = fd.max(0);
    for digit in text[11..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let zeros = text[11..20].iter().take_while(|d| **d == b'0').count();
    text.copy_within(11 + zeros.., 11);
    unsupported(call, &text[..21 - zeros], why)
}
