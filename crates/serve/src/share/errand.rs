//! [`Errands`]: how the control thread has something done by the thread that owns a drive (rule R4).
//! The owner looks at one flag per poll, and has no lock on its path while nobody wants anything.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clock::Waker;
use drive::Drive;

type Errand = Box<dyn FnOnce(&mut Drive) + Send>;

/// How long a drive's thread may take: it looks between two commands.
const PATIENCE: Duration = Duration::from_secs(20);

/// What others want of a drive, carried out by who owns it.
#[derive(Default)]
pub struct Errands {
    wanted: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    errands: VecDeque<Errand>,
    closed: bool,
}

/// Nobody polls the drive any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the drive is being shut down")]
pub struct DriveGone;

impl fmt::Debug for Errands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Errands").finish_non_exhaustive()
    }
}

impl Errands {
    /// Nothing to do yet.
    pub fn new() -> Arc<Errands> {
        Arc::default()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner's side, with each poll. Returns whether there was something to do.
    #[inline]
    pub fn carry_out(&self, drive: &mut Drive) -> bool {
        self.wanted.load(Ordering::Relaxed) && self.do_all(drive)
    }

    #[cold]
    fn do_all(&self, drive: &mut Drive) -> bool {
        let mut moved = false;
        loop {
            let errand = {
                let mut queue = self.queue();
                let errand = queue.errands.pop_front();
                self.wanted.store(!queue.errands.is_empty(), Ordering::Relaxed);
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
        queue.errands.clear();
    }

    /// Has something done, by the owner, whom `waker` wakes, and waits until it is.
    ///
    /// # Errors
    /// [`DriveGone`].
    pub fn ask<T: Send + 'static>(
        &self,
        waker: &Waker,
        what: impl FnOnce(&mut Drive) -> T + Send + 'static,
    ) -> Result<T, DriveGone> {
        let (answer, answers) = sync_channel(1);
        {
            let mut queue = self.queue();
            if queue.closed {
                return Err(DriveGone);
            }
            queue.errands.push_back(Box::new(move |drive| {
                // Who has given up needs no answer.
                let _ = answer.send(what(drive));
            }));
            self.wanted.store(true, Ordering::Relaxed);
        }
        waker.wake();
        answers.recv_timeout(PATIENCE).map_err(|_| DriveGone)
    }
}
