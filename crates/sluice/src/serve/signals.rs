//! [`Signals`]: SIGINT and SIGTERM. The first is told, the second ends the process at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Exit code of a process that did not finish what it was asked to.
const SECOND_SIGNAL_EXIT_CODE: i32 = 1;

/// Whether the process was asked to end; readable as a descriptor when it was.
#[derive(Debug)]
pub(crate) struct Signals {
    received: Arc<AtomicBool>,
    pipe: UnixStream,
}

impl Signals {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn catch() -> io::Result<Signals> {
        let received = Arc::new(AtomicBool::new(false));
        let (pipe, end) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag down, the second finds it up.
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
