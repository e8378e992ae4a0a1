//! [`OwnerCalls`]: how the control thread has something done by the thread that owns a drive (rule R4).
//! The owner looks at one flag per poll, and has no lock on its path while nobody wants anything.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clock::Waker;
use drive::Controller;

type OwnerCall = Box<dyn FnOnce(&mut Controller) + Send>;

/// How long a drive's thread may take: it looks between two commands.
const OWNER_CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// What others want of a drive, carried out by who owns it.
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

/// Nobody polls the drive any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the drive is being shut down")]
pub struct DriveStopped;

impl fmt::Debug for OwnerCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Errands").finish_non_exhaustive()
    }
}

impl OwnerCalls {
    /// Nothing to do yet.
    pub fn new() -> Arc<OwnerCalls> {
        Arc::default()
    }

    fn queue(&self) -> MutexGuard<'_, OwnerCallQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner's side, with each poll. Returns whether there was something to do.
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

    /// The owner goes: who waits is told, and nobody waits from now on.
    pub fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        queue.calls.clear();
    }

    /// Has something done, by the owner, whom `waker` wakes, and waits until it is.
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
                // Who has given up needs no answer.
                let _ = answer.send(what(drive));
            }));
            self.pending.store(true, Ordering::Relaxed);
        }
        waker.wake();
        answers.recv_timeout(OWNER_CALL_TIMEOUT).map_err(|_| DriveStopped)
    }
}
