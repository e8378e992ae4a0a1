//! [`Listener`]: the supervisor's end of a filter.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

/// A call that the filter has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppedCall {
    /// Identifies the call.
    pub id: u64,
    /// The thread that made it, as a number of the supervisor's namespace.
    pub thread: u32,
    /// Number of the system call.
    pub number: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
}

/// Receives stopped calls and answers them. A descriptor of it is readable while a call waits to be
/// received, and hangs up when no process has the filter any more.
#[derive(Debug)]
pub struct Listener {
    descriptor: OwnedFd,
}

/// Words of the buffer for a call; a later kernel may write more than its structure of today.
const CALL_WORDS: usize = 32;
/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP` (Linux 6.6): a stopped thread and its supervisor take turns
/// on one CPU.
const SYNC_WAKE_UP: u64 = 1;

impl Listener {
    pub(crate) fn new(descriptor: OwnedFd) -> Listener {
        Listener { descriptor }
    }

    /// Tells the kernel that the supervisor and a stopped thread do not run at the same time, which
    /// makes the exchange of both faster. Returns whether the kernel supports it (Linux 6.6).
    pub fn set_synchronous(&self) -> bool {
        // SAFETY: the descriptor is open; the argument is a number.
        let set = unsafe {
            let command = libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS;
            libc::ioctl(self.descriptor.as_raw_fd(), command, SYNC_WAKE_UP)
        };
        set == 0
    }

    /// Receives a call; waits if there is none. Returns `None` if its thread has ended meanwhile.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn receive(&self) -> io::Result<Option<StoppedCall>> {
        // The kernel demands zeros.
        let mut words = [0u64; CALL_WORDS];
        // SAFETY: the buffer is longer than `struct seccomp_notif` and aligned as it is.
        let received = unsafe {
            let command = libc::SECCOMP_IOCTL_NOTIF_RECV;
            libc::ioctl(self.descriptor.as_raw_fd(), command, words.as_mut_ptr())
        };
        if received != 0 {
            let error = io::Error::last_os_error();
            let gone = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR));
            return if gone { Ok(None) } else { Err(error) };
        }
        // `struct seccomp_notif`: id, thread and flags, then number and architecture, instruction,
        // arguments.
        let [id, thread, call, _, a, b, c, d, e, f, ..] = words;
        let number = call & u64::from(u32::MAX);
        Ok(Some(StoppedCall { id, thread: thread as u32, number, arguments: [a, b, c, d, e, f] }))
    }

    /// Lets the call go: the kernel executes it. A call whose thread has ended is ignored.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn allow(&self, id: u64) -> io::Result<()> {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        self.answer(libc::seccomp_notif_resp { id, val: 0, error: 0, flags }).map(drop)
    }

    /// Has the call return a value, although the kernel does not execute it. Returns whether its
    /// thread received the value; otherwise it has ended, or was interrupted and makes the call
    /// again.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn complete(&self, id: u64, value: i64) -> io::Result<bool> {
        self.answer(libc::seccomp_notif_resp { id, val: value, error: 0, flags: 0 })
    }

    /// Has the call fail with an error number. A call whose thread has ended is ignored.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn fail(&self, id: u64, errno: i32) -> io::Result<()> {
        self.answer(libc::seccomp_notif_resp { id, val: 0, error: -errno, flags: 0 }).map(drop)
    }

    /// Returns whether the thread of a call still waits for the answer.
    pub fn is_valid(&self, id: u64) -> bool {
        // SAFETY: the number outlives the call.
        let valid = unsafe {
            let command = libc::SECCOMP_IOCTL_NOTIF_ID_VALID;
            libc::ioctl(self.descriptor.as_raw_fd(), command, &raw const id)
        };
        valid == 0
    }

    /// Returns whether the thread of the call received the answer.
    fn answer(&self, answer: libc::seccomp_notif_resp) -> io::Result<bool> {
        loop {
            // SAFETY: the answer outlives the call.
            let sent = unsafe {
                let command = libc::SECCOMP_IOCTL_NOTIF_SEND;
                libc::ioctl(self.descriptor.as_raw_fd(), command, &raw const answer)
            };
            if sent == 0 {
                return Ok(true);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // The thread was interrupted or has ended.
                Some(libc::ENOENT) => return Ok(false),
                Some(libc::EINTR) => {}
                _ => return Err(error),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
