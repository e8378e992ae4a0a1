//! [`CompletionHandler`]: the context of an interrupt, in real time or on a modeled machine.
//!
//! The handler has an endpoint of the block layer, as each core that submits. It sleeps until the
//! hardware queue raises its vector, or until the device beneath must be polled. Then it fetches all
//! completions, sends each to its submitter and wakes it, and issues what waited for a tag
//! ([HIOPS14 §3.3], non-blocking I/O and lazy processing).
//!
//! On a modeled machine the machine runs the context ([`CompletionHandler::elsewhere`]).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use event::{IdlePolicy, RealClock, RealRunner, StopHandle};
use time::Nanos;

use super::CompletionMethod;
use crate::BlockDevice;

/// An interrupt context. Dropping it stops and joins its thread, if it has one; submitters then
/// fetch for themselves.
#[derive(Debug)]
pub struct CompletionHandler {
    context: HandlerContext,
    method: CompletionMethod,
}

/// The means by which the context runs.
#[derive(Debug)]
enum HandlerContext {
    Thread {
        stop: StopHandle,
        thread: Option<JoinHandle<()>>,
    },
    /// The owner of the endpoint runs it.
    Elsewhere {
        has_ended: AtomicBool,
    },
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
        Ok(CompletionHandler {
            context: HandlerContext::Thread { stop, thread: Some(thread) },
            method,
        })
    }

    /// Returns a context that has no thread here. The caller has its endpoint of the block layer,
    /// polls it at interrupts, and calls [`end`](CompletionHandler::end) when it no longer does.
    pub fn elsewhere(method: CompletionMethod) -> CompletionHandler {
        let context = HandlerContext::Elsewhere { has_ended: AtomicBool::new(false) };
        CompletionHandler { context, method }
    }

    /// Ends a context [`elsewhere`](CompletionHandler::elsewhere): submitters fetch for themselves
    /// from now on. Has no effect on a thread.
    pub fn end(&self) {
        if let HandlerContext::Elsewhere { has_ended } = &self.context {
            has_ended.store(true, Ordering::Release);
        }
    }

    /// Returns whether submitters leave all fetching to this context.
    #[inline]
    pub(crate) fn fetches_alone(&self) -> bool {
        if self.method == CompletionMethod::Coop {
            return false;
        }
        match &self.context {
            HandlerContext::Thread { thread, .. } => {
                thread.as_ref().is_some_and(|thread| !thread.is_finished())
            }
            HandlerContext::Elsewhere { has_ended } => !has_ended.load(Ordering::Acquire),
        }
    }
}

impl Drop for CompletionHandler {
    fn drop(&mut self) {
        let HandlerContext::Thread { stop, thread } = &mut self.context else { return };
        stop.stop();
        if let Some(thread) = thread.take() {
            // The thread has reported a panic itself.
            let _ = thread.join();
        }
    }
}
