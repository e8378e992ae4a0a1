//! [`TaskThread`]: a task as a thread of this machine. The state of the engine passes from the
//! engine's thread to that of the task and back, so that one of them runs at a time.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::{Body, Resumed, panic_message};
use crate::engine::EngineError;
use crate::engine::world::{self, World};

/// The state of the engine, with the reason for which the task gives it back.
type Returned = (Box<World>, Resumed);

pub(crate) struct TaskThread {
    /// `None` if the thread has ended.
    start: Option<SyncSender<Box<World>>>,
    back: Receiver<Returned>,
}

/// The ends of the channels in the thread of a task.
struct TaskEnds {
    start: Receiver<Box<World>>,
    back: SyncSender<Returned>,
}

thread_local! {
    static ENDS: RefCell<Option<TaskEnds>> = const { RefCell::new(None) };
}

impl TaskThread {
    pub(super) fn new(
        name: &str,
        stack_bytes: usize,
        body: Body,
    ) -> Result<TaskThread, EngineError> {
        let (start, started) = sync_channel::<Box<World>>(1);
        let (give_back, back) = sync_channel(1);
        let run = move || {
            let Ok(state) = started.recv() else { return };
            world::put(state);
            ENDS.set(Some(TaskEnds { start: started, back: give_back.clone() }));
            let ended = match catch_unwind(AssertUnwindSafe(body)) {
                Ok(()) => Resumed::Ended,
                Err(payload) => Resumed::Panicked(panic_message(&*payload)),
            };
            if let Some(state) = world::take() {
                // The engine waits for it.
                let _ = give_back.send((state, ended));
            }
        };
        thread::Builder::new()
            .name(name.chars().take(15).collect())
            .stack_size(stack_bytes)
            .spawn(run)
            .map_err(|error| EngineError::Spawn {
                task: name.to_owned(),
                what: error.to_string(),
            })?;
        Ok(TaskThread { start: Some(start), back })
    }

    pub(super) fn resume(&mut self) -> Resumed {
        let Some(start) = &self.start else { return Resumed::Ended };
        let Some(state) = world::take() else { return Resumed::Ended };
        let sent = start.send(state);
        let (state, resumed) = match (sent, self.back.recv()) {
            (Ok(()), Ok(returned)) => returned,
            // The thread was killed from outside, with the state of the engine.
            _ => return Resumed::Panicked("the thread of the task is gone".to_owned()),
        };
        world::put(state);
        if !matches!(resumed, Resumed::Suspended) {
            self.start = None;
        }
        resumed
    }
}

/// Suspends the thread if it is that of a task. Returns whether it is.
pub(super) fn suspend() -> bool {
    let Some(ends) = ENDS.take() else { return false };
    let Some(state) = world::take() else { return true };
    let continued = match ends.back.send((state, Resumed::Suspended)) {
        Ok(()) => ends.start.recv(),
        Err(_) => Err(std::sync::mpsc::RecvError),
    };
    ENDS.set(Some(ends));
    match continued {
        Ok(state) => world::put(state),
        // The engine has ended before the task. Its frames may hold locks, so they stay.
        Err(_) => loop {
            thread::park();
        },
    }
    true
}
