//! [`SharedQueueHandler`]: the interrupt context of a path with `lazy` or `coop`, as a handler of the
//! machine.
//!
//! The context has an endpoint of the block layer. An interrupt of the hardware queue starts it on its
//! hardware thread: it fetches all completions, sends each to its submitter and wakes that one, as
//! [`block::notify::CompletionHandler`] does in real time. It runs until the threads have ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use block::notify::CompletionHandler;
use block::{BlockDevice, SubmitterStats};
use event::Waker;
use machine::TaskId;
use stack::{CoreQueues, StackBlockLayer};
use time::Component;

/// Completions that the context has taken from the hardware queue, and that no submitter has reaped
/// yet: taking them is the context's work.
#[derive(Debug, Default)]
pub(super) struct TakenEvents(AtomicU64);

impl TakenEvents {
    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Removes one. Returns whether there was one.
    pub(super) fn remove(&self) -> bool {
        let less = |count: u64| count.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// The interrupt context of a path.
#[derive(Clone)]
pub(super) struct SharedQueueHandler {
    /// The context, as submitters see it.
    handler: Arc<CompletionHandler>,
    /// Its endpoint; `None` after the run. A task that has not ended is never dropped, so that the
    /// endpoint is not a part of it.
    endpoint: Arc<Mutex<Option<CoreQueues>>>,
    /// Counters of the endpoint.
    stats: Arc<SubmitterStats>,
    pub(super) taken: Arc<TakenEvents>,
}

impl SharedQueueHandler {
    /// Takes the context of `device`, whose block layer is `layer`. `raise` starts its handler.
    /// Returns `None` if the device has none.
    pub(super) fn take(
        device: &mut CoreQueues,
        layer: &StackBlockLayer,
        raise: Waker,
    ) -> Option<SharedQueueHandler> {
        let (handler, mut endpoint) = device.take_handler()?;
        // The endpoint is the last one of the block layer.
        let stats = layer.counters().submitters().last()?.clone();
        // The hardware queue gets the waker of the first endpoint that has one.
        endpoint.set_waker(raise);
        let (endpoint, taken) = (Arc::new(Mutex::new(Some(endpoint))), Arc::default());
        Some(SharedQueueHandler { handler, endpoint, stats, taken })
    }

    /// The body of the handler.
    pub(super) fn run(&self) {
        loop {
            let mut endpoint = self.endpoint.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(endpoint) = &mut *endpoint {
                let before = self.stats.reaped_for_others.get();
                while endpoint.poll(machine::now()) {
                    machine::doorbell();
                }
                let taken = self.stats.reaped_for_others.get() - before;
                machine::work(block::Step::Event, u32::try_from(taken).unwrap_or(u32::MAX));
                self.taken.add(taken);
            }
            drop(endpoint);
            machine::notify();
            machine::park();
        }
    }

    /// Ends the context after the run: the queues fetch completions themselves.
    pub(super) fn end(&self) {
        self.handler.end();
        *self.endpoint.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Returns a waker that wakes the thread in `cell`, once there is one.
pub(super) fn waking(cell: Arc<OnceLock<TaskId>>) -> std::io::Result<Waker> {
    Waker::calling(move || {
        if let Some(thread) = cell.get() {
            machine::unpark(*thread);
        }
    })
}
