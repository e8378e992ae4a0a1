//! Sends to sockets: outputs that pass the gate while nothing is pending
//! ([`gate`](crate::gate)). Otherwise, and without a filter, the C library makes them.

use libc::{c_int, c_long, c_uint, c_void, size_t, sockaddr, socklen_t, ssize_t};

use crate::{gate, libc_fns};

/// The kernel reads the data later, so that the program's later changes would be sent. The
/// supervisor must see such a call.
const ZEROCOPY: c_int = libc::MSG_ZEROCOPY;

/// Makes a send, through the gate if its data is copied at once and nothing is pending.
unsafe fn output(
    number: c_long,
    flags: c_int,
    arguments: [c_long; 6],
    stopped: impl FnOnce() -> c_long,
) -> c_long {
    match flags & ZEROCOPY {
        0 => gate::output(number, arguments, stopped),
        _ => gate::stopped_output(stopped),
    }
}

interpose! {
    fn [send] (fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        let arguments = [fd.into(), bytes as c_long, len as c_long, flags.into(), 0, 0];
        let stopped = || libc_fns::send()(fd, bytes, len, flags) as c_long;
        output(libc::SYS_sendto, flags, arguments, stopped) as ssize_t
    }
    fn [sendto]
        (fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t)
        -> ssize_t {
        let arguments = [
            fd.into(), bytes as c_long, len as c_long, flags.into(), to as c_long, to_len.into(),
        ];
        let stopped = || libc_fns::sendto()(fd, bytes, len, flags, to, to_len) as c_long;
        output(libc::SYS_sendto, flags, arguments, stopped) as ssize_t
    }
    fn [sendmsg] (fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t {
        let arguments = [fd.into(), message as c_long, flags.into(), 0, 0, 0];
        let stopped = || libc_fns::sendmsg()(fd, message, flags) as c_long;
        output(libc::SYS_sendmsg, flags, arguments, stopped) as ssize_t
    }
    fn [sendmmsg] (fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int {
        let arguments = [fd.into(), messages as c_long, count.into(), flags.into(), 0, 0];
        let stopped = || libc_fns::sendmmsg()(fd, messages, count, flags) as c_long;
        output(libc::SYS_sendmmsg, flags, arguments, stopped) as c_int
    }
}
