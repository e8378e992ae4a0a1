//! [`FilterInstaller`]: installs the filter in a child process, and takes its listener over.
//!
//! The kernel gives the descriptor of the listener to the child, which cannot send it: its calls
//! stop already. The child tells its number in shared memory, and the parent copies the descriptor
//! (`pidfd_getfd(2)`). The child's own copy is closed when it executes the program.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mem::SharedRegion;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::futex;

use crate::filter::filter;
use crate::listener::Listener;

/// Bytes of the memory shared with the child.
const HANDSHAKE_BYTES: usize = 4096;
/// Offset of the word with the state.
const STATE: usize = 0;
/// Offset of the word with the child's process number.
const PROCESS: usize = 4;
/// The child has not installed the filter yet.
const WAITING: u32 = 0;
/// The child will not install the filter.
const CANCELLED: u32 = u32::MAX;

/// Installs the filter in the child that a [`Command`] starts.
#[derive(Clone, Debug)]
pub struct FilterInstaller {
    handshake: Arc<SharedRegion>,
}

impl FilterInstaller {
    /// Creates an installer for one child.
    ///
    /// # Errors
    /// If the system has no memory; `Unsupported` on machines other than x86-64, whose calls the
    /// table does not describe.
    pub fn new() -> io::Result<FilterInstaller> {
        if !cfg!(target_arch = "x86_64") {
            let text = "the table of system calls is that of x86-64";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        Ok(FilterInstaller { handshake: SharedRegion::memfd(HANDSHAKE_BYTES)? })
    }

    /// Makes the command install the filter before it executes the program, which stops until the
    /// supervisor answers. The program is killed when the thread that has started it ends: without a
    /// supervisor, not even a thread of it could exit. Another thread must call [`listener`](FilterInstaller::listener)
    /// meanwhile. The command fails if the kernel refuses the filter.
    pub fn prepare(&self, command: &mut Command) {
        let program: Vec<libc::sock_filter> = filter()
            .iter()
            .map(|one| libc::sock_filter {
                code: one.code,
                jt: one.if_true,
                jf: one.if_false,
                k: one.operand,
            })
            .collect();
        let handshake = self.handshake.clone();
        let install = move || {
            let (state, process) = (handshake.atomic_u32(STATE), handshake.atomic_u32(PROCESS));
            let listener = install(&program)?;
            process.store(std::process::id(), Ordering::Relaxed);
            state.store(listener.unsigned_abs() + 1, Ordering::Release);
            wake(state);
            Ok(())
        };
        // SAFETY: the closure runs between `fork` and `exec`. It allocates nothing, takes no lock,
        // and makes system calls only; the memory that it writes is shared.
        unsafe { command.pre_exec(install) };
    }

    /// Waits until the child has installed the filter, and returns its listener; `None` after
    /// [`cancel`](FilterInstaller::cancel).
    ///
    /// # Errors
    /// If this process may not copy the child's descriptor.
    pub fn listener(&self) -> io::Result<Option<Listener>> {
        let state = self.handshake.atomic_u32(STATE);
        let number = loop {
            match state.load(Ordering::Acquire) {
                // Whether woken or interrupted, the word is read again.
                WAITING => drop(futex::wait(state, futex::Flags::empty(), WAITING, None)),
                CANCELLED => return Ok(None),
                number => break number - 1,
            }
        };
        let process = self.handshake.atomic_u32(PROCESS).load(Ordering::Relaxed);
        let process = i32::try_from(process).ok().and_then(Pid::from_raw);
        let process = process.ok_or_else(|| io::Error::other("a process without a number"))?;
        let child = pidfd_open(process, PidfdFlags::empty())?;
        let number = i32::try_from(number).map_err(io::Error::other)?;
        Ok(Some(Listener::new(pidfd_getfd(&child, number, PidfdGetfdFlags::empty())?)))
    }

    /// Ends the wait for a child that could not be started.
    pub fn cancel(&self) {
        let state = self.handshake.atomic_u32(STATE);
        let (set, unset) = (Ordering::AcqRel, Ordering::Relaxed);
        if state.compare_exchange(WAITING, CANCELLED, set, unset).is_ok() {
            let _ = futex::wake(state, futex::Flags::empty(), 1);
        }
    }
}

/// Installs the filter in this process, and returns the descriptor of its listener.
fn install(program: &[libc::sock_filter]) -> io::Result<i32> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the filter, which outlives both calls, and does not change it.
    let listener = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) != 0
        {
            return Err(io::Error::last_os_error());
        }
        // A signal that does not end the process does not interrupt a call that the supervisor has
        // received (Linux 5.19): a program does not expect `EINTR` from `close(2)`.
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let killable = flags | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        match libc::syscall(libc::SYS_seccomp, mode, killable, &raw const filter) {
            -1 => libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter),
            listener => listener,
        }
    };
    match i32::try_from(listener) {
        Ok(listener) if listener >= 0 => Ok(listener),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Wakes the thread that waits for a word in another process.
fn wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call. A failed wake-up cannot be handled.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}
