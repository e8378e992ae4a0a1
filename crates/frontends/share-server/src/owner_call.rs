//! [`OwnerCalls`]: functions that other threads send to the thread that owns a device
//! (ARCHITECTURE.md, R4). The owner checks one flag per poll; it takes a lock only when a call is
//! pending.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
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
    /// With the id of each call.
    calls: VecDeque<(u64, OwnerCall<D>)>,
    next_id: u64,
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
        let state =
            Mutex::new(CallQueueState { calls: VecDeque::new(), next_id: 0, closed: false });
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
            let Some((_, call)) = call else { return moved };
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
    /// [`OwnerStopped`]; the function has not run then, unless the owner has panicked in it.
    pub fn call<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut D) -> T + Send + 'static,
    ) -> Result<T, OwnerStopped> {
        self.call_within(OWNER_CALL_TIMEOUT, what)
    }

    fn call_within<T: Send + 'static>(
        &self,
        timeout: Duration,
        what: impl FnOnce(&mut D) -> T + Send + 'static,
    ) -> Result<T, OwnerStopped> {
        let (answer, answers) = sync_channel(1);
        let id = {
            let mut state = self.queue.lock();
            if state.closed {
                return Err(OwnerStopped);
            }
            let id = state.next_id;
            state.next_id += 1;
            // The caller receives until the call has run or was removed.
            let call = move |device: &mut D| drop(answer.send(what(device)));
            state.calls.push_back((id, Box::new(call)));
            self.queue.pending.store(true, Ordering::Relaxed);
            id
        };
        self.waker.wake();
        match answers.recv_timeout(timeout) {
            Err(RecvTimeoutError::Timeout) => {
                // The owner must not run it after the caller was told that it has not.
                self.queue.lock().calls.retain(|(other, _)| *other != id);
                // It may be running already.
                answers.recv().map_err(|_| OwnerStopped)
            }
            answer => answer.map_err(|_| OwnerStopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use event::Parker;

    use super::*;

    #[test]
    fn calls_run_in_order_on_the_owner() {
        let (owner, parker) = (OwnerCalls::<Vec<u32>>::default(), Parker::new().unwrap());
        let channel = owner.channel(parker.waker());
        let mut device = Vec::new();
        assert!(!owner.run_pending(&mut device), "nothing is pending");
        let caller = std::thread::spawn(move || {
            [1, 2, 3].map(|n| {
                channel.call(move |device| {
                    device.push(n);
                    device.len()
                })
            })
        });
        while device.len() < 3 {
            owner.run_pending(&mut device);
            std::thread::yield_now();
        }
        assert_eq!(caller.join().unwrap(), [Ok(1), Ok(2), Ok(3)]);
        assert_eq!(device, [1, 2, 3]);
    }

    #[test]
    fn a_call_that_was_reported_as_failed_does_not_run() {
        let (owner, parker) = (OwnerCalls::<u32>::default(), Parker::new().unwrap());
        let channel = owner.channel(parker.waker());
        let add = |device: &mut u32| *device += 1;
        // The owner does not poll in time.
        assert_eq!(channel.call_within(Duration::from_millis(1), add), Err(OwnerStopped));
        let mut device = 0;
        owner.run_pending(&mut device);
        assert_eq!(device, 0);
        // The owner ends while a call waits, and before the next one.
        let waiting = {
            let channel = channel.clone();
            std::thread::spawn(move || channel.call(add))
        };
        while owner.shared.lock().calls.is_empty() {
            std::thread::yield_now();
        }
        drop(owner);
        assert_eq!(waiting.join().unwrap(), Err(OwnerStopped));
        assert_eq!(channel.call(add), Err(OwnerStopped));
    }
}
