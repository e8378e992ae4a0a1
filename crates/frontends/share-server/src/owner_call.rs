//! [`OwnerCalls`]: functions that the control thread sends to the thread that owns a drive (ARCHITECTURE.md, R4).
//! The owner checks one flag per poll; it takes a lock only when a call is pending.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use controller::Controller;
use event::Waker;

type OwnerCall = Box<dyn FnOnce(&mut Controller) + Send>;

/// Timeout of a call. The owner runs it between two commands.
const OWNER_CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Calls to a drive, executed by its owner thread.
#[derive(Default)]
pub struct OwnerCalls {
    pending: AtomicBool,
    queue: Mutex<OwnerCallQueue>,
}

#[derive(Default)]
struct OwnerCallQueue {
    calls: VecDeque<OwnerCall>,
    closed: bool,
}

/// The drive is no longer polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the drive is being shut down")]
pub struct DriveStopped;

impl fmt::Debug for OwnerCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Errands").finish_non_exhaustive()
    }
}

impl OwnerCalls {
    /// Creates an empty queue of calls.
    pub fn new() -> Arc<OwnerCalls> {
        Arc::default()
    }

    fn queue(&self) -> MutexGuard<'_, OwnerCallQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs pending calls; called by the owner at each poll. Returns whether there were any.
    #[inline]
    pub fn run_pending(&self, drive: &mut Controller) -> bool {
        self.pending.load(Ordering::Relaxed) && self.drain(drive)
    }

    #[cold]
    fn drain(&self, drive: &mut Controller) -> bool {
        let mut moved = false;
        loop {
            let errand = {
                let mut queue = self.queue();
                let errand = queue.calls.pop_front();
                self.pending.store(!queue.calls.is_empty(), Ordering::Relaxed);
                errand
            };
            let Some(errand) = errand else { return moved };
            errand(drive);
            moved = true;
        }
    }

    /// Closes the queue when the owner ends: pending and later calls fail.
    pub fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        queue.calls.clear();
    }

    /// Runs a function on the owner thread, which `waker` wakes, and waits for its result.
    ///
    /// # Errors
    /// [`DriveStopped`].
    pub fn call<T: Send + 'static>(
        &self,
        waker: &Waker,
        what: impl FnOnce(&mut Controller) -> T + Send + 'static,
    ) -> Result<T, DriveStopped> {
        let (answer, answers) = sync_channel(1);
        {
            let mut queue = self.queue();
            if queue.closed {
                return Err(DriveStopped);
            }
            queue.calls.push_back(Box::new(move |drive| {
                // The caller may have timed out.
                let _ = answer.send(what(drive));
            }));
            self.pending.store(true, Ordering::Relaxed);
        }
        waker.wake();
        answers.recv_timeout(OWNER_CALL_TIMEOUT).map_err(|_| DriveStopped)
    }
}
