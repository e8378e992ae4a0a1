//! [`DriveThreadGuard`]: the thread of a drive, and how it ends. [`DriveStatsReader`]: what such a drive has done.
//!
//! Guarantee: when the keeper is gone, so is the thread; what the host managed is flushed and has its
//! checkpoint, what the drive had in its buffer is on its media, and its image is synced.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{Builder, JoinHandle};

use clock::{IdlePolicy, RealClock, RealRunner, StopHandle, Waker};
use drive::{Controller, DriveStats};
use lightnvm::ShardHandle;
use ring::Port;

use super::CloseError;
use super::target_queue::TargetQueues;
use crate::bench::AllowedCpus;
use crate::serve::{DriveSnapshot, DriveThreadState, SnapshotCell};
use crate::stack::StackDevice;

/// What of the drive is on the host's side, to be closed before it.
#[derive(Debug)]
pub(super) enum TargetBinding {
    /// Queues, which their owners have destroyed.
    Nothing,
    /// A target.
    Target(Arc<TargetQueues<Box<StackDevice>>>),
    /// One in shards.
    Shards(Arc<TargetQueues<ShardHandle>>),
}

/// The thread of a drive; when it is dropped the drive is shut down.
#[derive(Debug)]
pub(super) struct DriveThreadGuard {
    name: String,
    clock: RealClock,
    stopper: StopHandle,
    thread: Option<JoinHandle<(io::Result<()>, DriveThreadState)>>,
    target: TargetBinding,
    close_errors: Option<Sender<CloseError>>,
}

/// A look at what a drive with a thread has done, from any other thread: the drive's own path has one
/// load for it.
#[derive(Clone, Debug)]
pub struct DriveStatsReader {
    cell: Arc<SnapshotCell<DriveSnapshot>>,
    waker: Waker,
}

impl DriveStatsReader {
    /// Its counters now, at most a fifth of a second old; `None` when the drive has never answered.
    pub fn stats(&self) -> Option<DriveStats> {
        self.cell.request(&self.waker).map(|seen| seen.stats)
    }
}

impl DriveThreadGuard {
    /// Gives the drive its thread.
    ///
    /// # Errors
    /// What the system says: no thread, no descriptor.
    pub(super) fn start(
        drive: Controller,
        port: &Port,
        clock: RealClock,
        core: Option<usize>,
        host: TargetBinding,
        closed: Option<Sender<CloseError>>,
    ) -> io::Result<(DriveThreadGuard, DriveStatsReader)> {
        let runner = RealRunner::new(clock, IdlePolicy::default())?;
        port.set_drive_waker(runner.waker())?;
        let (stopper, pane) = (runner.stop_handle(), SnapshotCell::new());
        let view = DriveStatsReader { cell: pane.clone(), waker: runner.waker() };
        let name = drive.config().name.clone();
        let mut live = DriveThreadState::new(drive, clock, pane);
        let thread = Builder::new().name(format!("drive {name}")).spawn(move || {
            if let Some(core) = core {
                AllowedCpus::allowed().pin(core);
            }
            let ran = runner.run(&mut live);
            (ran, live)
        })?;
        Ok((
            DriveThreadGuard {
                name,
                clock,
                stopper,
                thread: Some(thread),
                target: host,
                close_errors: closed,
            },
            view,
        ))
    }

    fn close(&mut self) -> Result<(), CloseError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.stopper.stop();
        let drive = || self.name.clone();
        let (ran, mut live) = thread.join().map_err(|_| CloseError::Panicked { drive: drive() })?;
        let flushed = match &self.target {
            TargetBinding::Nothing => Ok(()),
            TargetBinding::Target(ends) => ends.close(&mut live, self.clock),
            TargetBinding::Shards(ends) => ends.close(&mut live, self.clock),
        };
        // In any case: what can be saved is.
        let down = live.drive.shut_down();
        ran.map_err(|source| CloseError::Thread { drive: drive(), source })?;
        flushed?;
        down.map_err(|source| CloseError::ShutDown { drive: drive(), source })
    }
}

impl Drop for DriveThreadGuard {
    fn drop(&mut self) {
        if let (Err(error), Some(closed)) = (self.close(), &self.close_errors) {
            // Nobody listens any more: then nobody wants to know.
            let _ = closed.send(error);
        }
    }
}
