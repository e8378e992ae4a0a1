//! [`DriveThreadGuard`]: owns the thread of a drive and shuts it down. [`DriveStatsReader`]: reads
//! the counters of such a drive.
//!
//! Guarantee: when the guard has been dropped, the thread has ended, the host's target is flushed
//! and has written a checkpoint, the drive's write buffer is on its media, and its image is synced.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{Builder, JoinHandle};

use controller::{Controller, DriveStats};
use event::{AllowedCpus, IdlePolicy, RealClock, RealRunner, StopHandle, Waker};
use stack::{DriveSnapshot, DriveThreadState, SnapshotCell};
use transport::Port;

use super::CloseError;
use super::target_queue::TargetQueues;

/// Owns the thread of a drive; shuts the drive down when dropped.
#[derive(Debug)]
pub(super) struct DriveThreadGuard {
    name: String,
    clock: RealClock,
    stopper: StopHandle,
    thread: Option<JoinHandle<(io::Result<()>, DriveThreadState)>>,
    /// The host's side of the drive, which is closed before it; nothing if the owners of queues
    /// have deleted them.
    target: Option<Arc<TargetQueues>>,
    close_errors: Option<Sender<CloseError>>,
}

/// Reads the counters of a drive from any thread. It costs the drive's thread one load per
/// iteration.
#[derive(Clone, Debug)]
pub struct DriveStatsReader {
    cell: Arc<SnapshotCell<DriveSnapshot>>,
    waker: Waker,
}

impl DriveStatsReader {
    /// Returns the current counters, at most a fifth of a second old; `None` if the drive has never
    /// answered.
    pub fn stats(&self) -> Option<DriveStats> {
        self.cell.request(&self.waker).map(|seen| seen.stats)
    }
}

impl DriveThreadGuard {
    /// Starts the thread of the drive.
    ///
    /// # Errors
    /// The error of the operating system, if it provides no thread or no descriptor.
    pub(super) fn start(
        drive: Controller,
        port: &Port,
        clock: RealClock,
        core: Option<usize>,
        target: Option<Arc<TargetQueues>>,
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
                target,
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
        let target = self.target.as_ref();
        let flushed = target.map_or(Ok(()), |queues| queues.close(&mut live, self.clock));
        // Shut down in any case, to save as much data as possible.
        let down = live.drive.shut_down();
        ran.map_err(|source| CloseError::Thread { drive: drive(), source })?;
        flushed?;
        down.map_err(|source| CloseError::ShutDown { drive: drive(), source })
    }
}

impl Drop for DriveThreadGuard {
    fn drop(&mut self) {
        if let (Err(error), Some(closed)) = (self.close(), &self.close_errors) {
            // The receiver may have been dropped if the caller ignores errors.
            let _ = closed.send(error);
        }
    }
}
