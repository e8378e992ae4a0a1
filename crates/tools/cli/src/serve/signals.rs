//! [`Signals`]: SIGINT and SIGTERM. The first signal is reported, the second ends the process
//! immediately.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Exit code of a process that ended before it completed its task.
const SECOND_SIGNAL_EXIT_CODE: i32 = 1;

/// Whether the process received a signal; its descriptor becomes readable then.
#[derive(Debug)]
pub(crate) struct Signals {
    received: Arc<AtomicBool>,
    pipe: UnixStream,
}

impl Signals {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(crate) fn catch() -> io::Result<Signals> {
        let received = Arc::new(AtomicBool::new(false));
        let (pipe, end) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the first signal finds the flag cleared, the second finds it set.
            flag::register_conditional_shutdown(signal, SECOND_SIGNAL_EXIT_CODE, received.clone())?;
            flag::register(signal, received.clone())?;
            low_level::pipe::register(signal, end.try_clone()?)?;
        }
        Ok(Signals { received, pipe })
    }

    pub(crate) fn is_received(&self) -> bool {
        self.received.load(Ordering::Relaxed)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
