//! [`OwnerCalls`]: functions that other threads send to the thread that owns a device
//! (ARCHITECTURE.md, R4). The owner checks one flag per poll; it takes a lock only when a call is
//! pending.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event::Waker;

type OwnerCall<D> = Box<dyn FnOnce(&mut D) + Send>;

/// Timeout of a call. The owner runs it between two commands.
const OWNER_CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Calls to a device of type `D`, executed by its owner thread. The queue is closed when the owner
/// drops it: pending and later calls fail.
pub struct OwnerCalls<D> {
    shared: Arc<CallQueue<D>>,
}

struct CallQueue<D> {
    pending: AtomicBool,
    state: Mutex<CallQueueState<D>>,
}

struct CallQueueState<D> {
    calls: VecDeque<OwnerCall<D>>,
    closed: bool,
}

/// The way of other threads to the owner of a device.
pub struct OwnerChannel<D> {
    queue: Arc<CallQueue<D>>,
    /// Wakes the owner thread.
    pub waker: Waker,
}

/// The device is no longer polled, or its thread has not answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the drive is being shut down")]
pub struct OwnerStopped;

impl<D> fmt::Debug for OwnerCalls<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerCalls").finish_non_exhaustive()
    }
}

impl<D> fmt::Debug for OwnerChannel<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnerChannel").finish_non_exhaustive()
    }
}

impl<D> Clone for OwnerChannel<D> {
    fn clone(&self) -> OwnerChannel<D> {
        OwnerChannel { queue: self.queue.clone(), waker: self.waker.clone() }
    }
}

impl<D> CallQueue<D> {
    fn lock(&self) -> MutexGuard<'_, CallQueueState<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D> Default for OwnerCalls<D> {
    fn default() -> OwnerCalls<D> {
        let state = Mutex::new(CallQueueState { calls: VecDeque::new(), closed: false });
        OwnerCalls { shared: Arc::new(CallQueue { pending: AtomicBool::new(false), state }) }
    }
}

impl<D> OwnerCalls<D> {
    /// Returns the channel for other threads; `waker` wakes the owner.
    pub fn channel(&self, waker: Waker) -> OwnerChannel<D> {
        OwnerChannel { queue: self.shared.clone(), waker }
    }

    /// Runs pending calls; called by the owner at each poll. Returns whether there were any.
    #[inline]
    pub fn run_pending(&self, device: &mut D) -> bool {
        self.shared.pending.load(Ordering::Relaxed) && self.drain(device)
    }

    #[cold]
    fn drain(&self, device: &mut D) -> bool {
        let mut moved = false;
        loop {
            let call = {
                let mut state = self.shared.lock();
                let call = state.calls.pop_front();
                self.shared.pending.store(!state.calls.is_empty(), Ordering::Relaxed);
                call
            };
            let Some(call) = call else { return moved };
            call(device);
            moved = true;
        }
    }
}

impl<D> Drop for OwnerCalls<D> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.calls.clear();
    }
}

impl<D> OwnerChannel<D> {
    /// Runs a function on the owner thread and waits for its result.
    ///
    /// # Errors
    /// [`OwnerStopped`].
    pub fn call<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut D) -> T + Send + 'static,
    ) -> Result<T, OwnerStopped> {
        let (answer, answers) = sync_channel(1);
        {
            let mut state = self.queue.lock();
            if state.closed {
                return Err(OwnerStopped);
            }
            state.calls.push_back(Box::new(move |device| {
                // The caller may have timed out.
                let _ = answer.send(what(device));
            }));
            self.queue.pending.store(true, Ordering::Relaxed);
        }
        self.waker.wake();
        answers.recv_timeout(OWNER_CALL_TIMEOUT).map_err(|_| OwnerStopped)
    }
}
