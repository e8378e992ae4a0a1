//! [`CompletionHandler`]: the context of an interrupt, in real time.
//!
//! The handler has an endpoint of the block layer, as each core that submits. It sleeps until the
//! hardware queue raises its vector, or until the device beneath must be polled. Then it fetches all
//! completions, sends each to its submitter and wakes it, and issues what waited for a tag
//! ([HIOPS14 §3.3], non-blocking I/O and lazy processing).

use std::io;
use std::thread::JoinHandle;

use event::{IdlePolicy, RealClock, RealRunner, StopHandle};
use time::Nanos;

use super::CompletionMethod;
use crate::BlockDevice;

/// The thread of an interrupt context. Dropping it stops and joins the thread; submitters then fetch
/// for themselves.
#[derive(Debug)]
pub struct CompletionHandler {
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
    method: CompletionMethod,
}

impl CompletionHandler {
    /// Starts the thread with its endpoint of the block layer. No other endpoint may have a waker
    /// yet. `clock` is that of the submitters.
    ///
    /// # Errors
    /// The thread or an eventfd cannot be created.
    pub fn start(
        mut endpoint: impl BlockDevice + Send + 'static,
        method: CompletionMethod,
        clock: RealClock,
    ) -> io::Result<CompletionHandler> {
        let idle = IdlePolicy { spin_time: Nanos::ZERO, ..IdlePolicy::default() };
        let runner = RealRunner::new(clock, idle)?;
        endpoint.set_waker(runner.waker());
        let stop = runner.stop_handle();
        let named = std::thread::Builder::new().name("interrupt".into());
        let thread = named.spawn(move || {
            // It fails only where the eventfd cannot be waited for; submitters notice that the
            // thread has ended.
            let _ = runner.run(&mut endpoint);
        })?;
        Ok(CompletionHandler { stop, thread: Some(thread), method })
    }

    /// Returns whether submitters leave all fetching to this context.
    #[inline]
    pub(crate) fn fetches_alone(&self) -> bool {
        self.method != CompletionMethod::Coop
            && self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for CompletionHandler {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            // The thread has reported a panic itself.
            let _ = thread.join();
        }
    }
}
