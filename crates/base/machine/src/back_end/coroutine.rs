//! [`Coroutine`]: a task with a stack of its own on the engine's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};

use generator::{Generator, Gn};

use super::{Body, Resumed, panic_message};
use crate::engine::EngineError;

pub(crate) struct Coroutine {
    /// `None` after the end. A coroutine that has not ended is never dropped: its frames may hold
    /// locks.
    coroutine: Option<Generator<'static, (), ()>>,
}

impl Coroutine {
    pub(super) fn new(
        name: &str,
        stack_bytes: usize,
        body: Body,
    ) -> Result<Coroutine, EngineError> {
        // An even number of words: the library does not fill the stack to measure its use.
        let words = stack_bytes.div_ceil(16) * 2;
        let coroutine = catch_unwind(AssertUnwindSafe(|| Gn::<()>::new_opt(words, body)));
        let mut coroutine = coroutine
            .map_err(|_| EngineError::Spawn { task: name.to_owned(), what: "memory".to_owned() })?;
        // The library keeps the panic of a coroutine that has local data, and `co_yield_with`
        // suspends it. It does not access the data.
        coroutine.set_local_data(std::ptr::dangling_mut());
        Ok(Coroutine { coroutine: Some(coroutine) })
    }

    pub(super) fn resume(&mut self) -> Resumed {
        let Some(coroutine) = &mut self.coroutine else { return Resumed::Ended };
        coroutine.resume();
        if let Some(error) = coroutine.get_panic_data() {
            if let Some(generator::Error::StackErr) = error.downcast_ref() {
                std::mem::forget(self.coroutine.take());
                return Resumed::StackOverflow;
            }
            self.coroutine = None;
            return Resumed::Panicked(panic_message(&*error));
        }
        if coroutine.is_done() {
            self.coroutine = None;
            return Resumed::Ended;
        }
        Resumed::Suspended
    }
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        std::mem::forget(self.coroutine.take());
    }
}

pub(super) fn suspend() {
    generator::co_yield_with(());
}
