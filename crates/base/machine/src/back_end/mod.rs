//! [`BackEnd`]: the means by which the body of a task is suspended and continued.

mod coroutine;
mod thread;

use crate::engine::EngineError;

/// The means by which tasks run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackEnd {
    /// Each task is a coroutine of the thread that runs the engine.
    #[default]
    Coroutines,
    /// Each task is a thread of this machine; the engine lets one run at a time. For sanitizers and
    /// debuggers, which do not know coroutines.
    Threads,
}

/// The code of a task.
pub(crate) type Body = Box<dyn FnOnce() + Send>;

/// Result of a piece of a task's code.
#[derive(Debug)]
pub(crate) enum Resumed {
    /// The task waits.
    Suspended,
    /// The task has ended.
    Ended,
    /// The task has panicked.
    Panicked(String),
    /// The stack of the coroutine is too small.
    StackOverflow,
}

/// The context of a task.
pub(crate) enum TaskContext {
    Coroutine(coroutine::Coroutine),
    Thread(thread::TaskThread),
}

impl TaskContext {
    /// Returns the context of a task that has not begun.
    ///
    /// # Errors
    /// [`EngineError::Spawn`] if there is no memory or thread for it.
    pub(crate) fn new(
        back_end: BackEnd,
        name: &str,
        stack_bytes: usize,
        body: Body,
    ) -> Result<TaskContext, EngineError> {
        Ok(match back_end {
            BackEnd::Coroutines => {
                TaskContext::Coroutine(coroutine::Coroutine::new(name, stack_bytes, body)?)
            }
            BackEnd::Threads => {
                TaskContext::Thread(thread::TaskThread::new(name, stack_bytes, body)?)
            }
        })
    }

    /// Continues the task until it waits or ends.
    pub(crate) fn resume(&mut self) -> Resumed {
        match self {
            TaskContext::Coroutine(coroutine) => coroutine.resume(),
            TaskContext::Thread(thread) => thread.resume(),
        }
    }
}

/// Suspends the task that calls this, until it is resumed.
pub(crate) fn suspend() {
    if !thread::suspend() {
        coroutine::suspend();
    }
}

/// Returns the message of a panic.
fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}
