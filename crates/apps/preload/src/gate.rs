//! The gate of the filter of system calls under `sluice exec --speculate`
//! ([`exec_proto::gate`]).
//!
//! The library makes two kinds of calls through the gate: its own calls to the service, which no one
//! else can observe, and outputs of the program while every acknowledged sync is durable and the
//! outbox is empty. All other outputs stop in the filter, until the supervisor lets them go.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use exec_proto::gate;
use libc::{c_int, c_long, c_void, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::libc_fns;

/// Whether the program has the filter and the page is mapped.
static IS_ACTIVE: AtomicBool = AtomicBool::new(false);
/// The doorbell's memory, which all sessions share. A forked process keeps the mapping.
static DOORBELL: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// The function in the page: number and arguments of a call.
type Gate = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// Maps the page; called once, when the library is loaded. Without the page the library works, and
/// all its calls stop in the filter.
#[cfg(target_arch = "x86_64")]
pub(crate) fn prepare() {
    if std::env::var_os(gate::ENV_FILTER).is_none() {
        return;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let wanted = gate::ADDRESS as *mut c_void;
    // SAFETY: a new mapping that replaces none; the code fits into it.
    unsafe {
        let page = libc_fns::mmap()(wanted, gate::PAGE_BYTES, access, flags, -1, 0);
        if page != wanted {
            return;
        }
        std::ptr::copy_nonoverlapping(gate::CODE.as_ptr(), page.cast(), gate::CODE.len());
        if libc_fns::mprotect()(page, gate::PAGE_BYTES, libc::PROT_READ | libc::PROT_EXEC) != 0 {
            return;
        }
    }
    IS_ACTIVE.store(true, Ordering::Release);
}

/// There is no filter on this machine.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn prepare() {}

/// Remembers the doorbell's memory.
pub(crate) fn set_doorbell(doorbell: *mut u8) {
    DOORBELL.store(doorbell, Ordering::Release);
}

/// Returns the gate if the program has the filter.
fn active() -> Option<Gate> {
    if !IS_ACTIVE.load(Ordering::Acquire) {
        return None;
    }
    // SAFETY: the page has a function of this type, and is never unmapped.
    Some(unsafe { std::mem::transmute::<usize, Gate>(gate::ADDRESS) })
}

/// Returns the gate if every acknowledged sync is durable and the outbox is empty, and counts an
/// output.
///
/// **Order.** An output of this thread, or one that it knows to have returned, is in the outbox or
/// was sent. If it is in the outbox, the supervisor had counted it before it answered the call, so
/// that this thread sees the count. If this thread sees no count, the supervisor had sent it before.
/// So an output through the gate never overtakes one in the outbox, and the order of the three loads
/// does not matter.
fn passable() -> Option<Gate> {
    let gate = active()?;
    let doorbell = DOORBELL.load(Ordering::Acquire);
    if doorbell.is_null() {
        return None;
    }
    // SAFETY: within the doorbell's mapping, which is never unmapped; aligned; shared words are
    // atomics.
    let word = |at: usize| unsafe { AtomicU64::from_ptr(doorbell.add(at).cast()) };
    let acknowledged = word(gate::ACKNOWLEDGED).load(Ordering::Acquire);
    if word(gate::DURABLE).load(Ordering::Acquire) < acknowledged {
        return None;
    }
    if word(gate::BUFFERED).load(Ordering::Acquire) != 0 {
        return None;
    }
    word(gate::PASSED).fetch_add(1, Ordering::Relaxed);
    Some(gate)
}

/// Makes a call and sets `errno` as the C library does.
unsafe fn through(gate: Gate, number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    match gate(number, a, b, c, d, e, f) {
        error @ -4095..=-1 => {
            *libc::__errno_location() = -error as c_int;
            -1
        }
        result => result,
    }
}

/// Makes an output of the program: through the gate if nothing is pending, else by `stopped`, a
/// function of the C library, so that it stops.
pub(crate) unsafe fn output(
    number: c_long,
    arguments: [c_long; 6],
    stopped: impl FnOnce() -> c_long,
) -> c_long {
    match passable() {
        Some(gate) => through(gate, number, arguments),
        None => stopped_output(stopped),
    }
}

/// Makes an output of the program that stops. The process [ends](end_unsupervised) if it fails
/// because there is no supervisor any more.
pub(crate) unsafe fn stopped_output(stopped: impl FnOnce() -> c_long) -> c_long {
    let result = stopped();
    // The kernel's answer without a supervisor, but a file system may answer so, too.
    if result == -1 && *libc::__errno_location() == libc::ENOSYS {
        end_unsupervised();
    }
    result
}

/// Kills this process if it has the filter, and the supervisor has gone: no output of it can ever be
/// seen, so that its peers would wait for it, and neither the process nor a thread of it can exit.
/// Otherwise preserves `errno`.
pub(crate) unsafe fn end_unsupervised() {
    let errno = *libc::__errno_location();
    if active().is_some() && !is_supervised() {
        let _ = own(libc::SYS_kill, [libc::getpid().into(), libc::SIGKILL.into(), 0, 0, 0, 0]);
    }
    *libc::__errno_location() = errno;
}

/// Returns whether stopped calls are answered: closing no descriptor stops, too.
unsafe fn is_supervised() -> bool {
    libc_fns::close()(-1) == -1 && *libc::__errno_location() != libc::ENOSYS
}

/// Makes a call of the library itself, whose effect is part of the session: it does not stop.
unsafe fn own(number: c_long, arguments: [c_long; 6]) -> Option<c_long> {
    active().map(|gate| through(gate, number, arguments))
}

/// Closes a descriptor of the library, or one of the volume.
pub(crate) unsafe fn close(fd: c_int) -> c_int {
    match own(libc::SYS_close, [fd.into(), 0, 0, 0, 0, 0]) {
        Some(result) => result as c_int,
        None => libc_fns::close()(fd),
    }
}

/// Connects a socket of the library to the service.
pub(crate) unsafe fn connect(socket: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    match own(libc::SYS_connect, [socket.into(), to as c_long, len.into(), 0, 0, 0]) {
        Some(result) => result as c_int,
        None => libc::connect(socket, to, len),
    }
}

/// Gives a socket of the library a name.
pub(crate) unsafe fn bind(socket: c_int, name: *const sockaddr, len: socklen_t) -> c_int {
    match own(libc::SYS_bind, [socket.into(), name as c_long, len.into(), 0, 0, 0]) {
        Some(result) => result as c_int,
        None => libc::bind(socket, name, len),
    }
}

/// Sends bytes to the service.
pub(crate) unsafe fn send(
    socket: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    let arguments = [socket.into(), bytes as c_long, len as c_long, flags.into(), 0, 0];
    match own(libc::SYS_sendto, arguments) {
        Some(result) => result as ssize_t,
        None => libc::send(socket, bytes, len, flags),
    }
}

/// Maps memory of the service.
pub(crate) unsafe fn mmap(
    at: *mut c_void,
    len: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let arguments = [at as c_long, len as c_long, access.into(), flags.into(), fd.into(), offset];
    match own(libc::SYS_mmap, arguments) {
        Some(result) => result as *mut c_void,
        None => libc_fns::mmap()(at, len, access, flags, fd, offset),
    }
}

/// Makes the files of the host durable: no output.
pub(crate) unsafe fn sync() {
    if own(libc::SYS_sync, [0; 6]).is_none() {
        libc_fns::sync()();
    }
}
