//! `libsluice_preload.so`: takes the C library's calls over in a program under `sluice exec`, and answers those that
//! are about files below one directory from a Sluice volume. `docs/exec.md` says which, and how.
//!
//! Guarantees: a call about anything else goes to the C library with the arguments that it came with. A call
//! about the volume that is not supported fails with `ENOTSUP` and one line on standard error. Reads, writes and
//! syncs allocate nothing and take no lock, so that signal handlers may use them.
//!
//! | file | noun |
//! |---|---|
//! | `real` | the C library's functions, found behind this library's |
//! | `session` | the slots that this process shares with the service |
//! | `table` | which descriptors are the volume's |
//! | `paths` | which paths lead to the volume |
//! | `mappings` | what is mapped and shared, and what tells the service so |
//! | `start` | what is done when the library is loaded |
//! | `opening`, `data`, `control`, `names`, `facts`, `listing`, `streams`, `memory`, `processes`, `walks`, `attributes` | the calls |
//!
//! # Variadic functions
//!
//! `open`, `openat`, `fcntl` and `ioctl` are variadic in C. Here they have fixed parameters: by the calling
//! conventions of Linux on x86-64 (System V ABI 3.5.7) and aarch64 (AAPCS64 6.8.2) integers and pointers come in the
//! same registers either way, and one that the caller left out is a register with any value, which is looked
//! at only where the C function would look at it.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "every unsafe function here is a C function, whose pointers are its caller's word as they \
              are the C library's"
)]

/// Defines functions that take the place of the C library's; several names share one body.
macro_rules! interpose {
    ($(fn [$($name:ident)+] $args:tt -> $ret:ty $body:block)+) => { $($(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name $args -> $ret $body
    )+)+ };
}

mod attributes;
mod control;
mod data;
mod dirwalk;
mod fd_table;
mod libc_fns;
mod listing;
mod mappings;
mod memory;
mod open;
mod path_calls;
mod paths;
mod processes;
mod session;
mod start;
mod stat;
mod streams;

use libc::c_int;

/// How a call failed: an error number.
type Errno = c_int;

/// Sets `errno`, and returns what failing functions return.
fn fail(errno: Errno) -> c_int {
    // SAFETY: the C library's word of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Zero, or the failure.
fn status(result: Result<i64, Errno>) -> c_int {
    match result {
        Ok(_) => 0,
        Err(errno) => fail(errno),
    }
}

/// A count, or the failure.
fn count(result: Result<i64, Errno>) -> isize {
    match result {
        Ok(count) => count as isize,
        Err(errno) => fail(errno) as isize,
    }
}

/// What cannot be done: says so once per call, on standard error, and is the error number.
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
    // SAFETY: the line is there for the call. A line that cannot be written is not.
    unsafe { libc_fns::write()(2, line.as_ptr().cast(), len + 1) };
    libc::ENOTSUP
}

/// As [`unsupported`], of a descriptor.
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
