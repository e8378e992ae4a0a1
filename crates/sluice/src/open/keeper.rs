//! [`Keeper`]: the thread of a drive, and how it ends. [`DriveView`]: what such a drive has done.
//!
//! Guarantee: when the keeper is gone, so is the thread; what the host managed is flushed and has its
//! checkpoint, what the drive had in its buffer is on its media, and its image is synced.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{Builder, JoinHandle};

use clock::{Idle, RealClock, RealRunner, Stopper, Waker};
use drive::{Drive, DriveStats};
use lightnvm::ShardHandle;
use ring::Port;

use super::CloseError;
use super::ends::Ends;
use crate::bench::Cores;
use crate::serve::{DriveSnapshot, LiveDrive, Pane};
use crate::stack::StackDevice;

/// What of the drive is on the host's side, to be closed before it.
#[derive(Debug)]
pub(super) enum HostSide {
    /// Queues, which their owners have destroyed.
    Nothing,
    /// A target.
    Target(Arc<Ends<Box<StackDevice>>>),
    /// One in shards.
    Shards(Arc<Ends<ShardHandle>>),
}

/// The thread of a drive; when it is dropped the drive is shut down.
#[derive(Debug)]
pub(super) struct Keeper {
    name: String,
    clock: RealClock,
    stopper: Stopper,
    thread: Option<JoinHandle<(io::Result<()>, LiveDrive)>>,
    host: HostSide,
    closed: Option<Sender<CloseError>>,
}

/// A look at what a drive with a thread has done, from any other thread: the drive's own path has one
/// load for it.
#[derive(Clone, Debug)]
pub struct DriveView {
    pane: Arc<Pane<DriveSnapshot>>,
    waker: Waker,
}

impl DriveView {
    /// Its counters now, at most a fifth of a second old; `None` when the drive has never answered.
    pub fn stats(&self) -> Option<DriveStats> {
        self.pane.look(&self.waker).map(|seen| seen.stats)
    }
}

impl Keeper {
    /// Gives the drive its thread.
    ///
    /// # Errors
    /// What the system says: no thread, no descriptor.
    pub(super) fn start(
        drive: Drive,
        port: &Port,
        clock: RealClock,
        core: Option<usize>,
        host: HostSide,
        closed: Option<Sender<CloseError>>,
    ) -> io::Result<(Keeper, DriveView)> {
        let runner = RealRunner::new(clock, Idle::default())?;
        port.set_drive_waker(runner.waker())?;
        let (stopper, pane) = (runner.stopper(), Pane::new());
        let view = DriveView { pane: pane.clone(), waker: runner.waker() };
        let name = drive.config().name.clone();
        let mut live = LiveDrive::new(drive, clock, pane);
        let thread = Builder::new().name(format!("drive {name}")).spawn(move || {
            if let Some(core) = core {
                Cores::allowed().pin(core);
            }
            let ran = runner.run(&mut live);
            (ran, live)
        })?;
        Ok((Keeper { name, clock, stopper, thread: Some(thread), host, closed }, view))
    }

    fn close(&mut self) -> Result<(), CloseError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.stopper.stop();
        let drive = || self.name.clone();
        let (ran, mut live) = thread.join().map_err(|_| CloseError::Panicked { drive: drive() })?;
        let flushed = match &self.host {
            HostSide::Nothing => Ok(()),
            HostSide::Target(ends) => ends.close(&mut live, self.clock),
            HostSide::Shards(ends) => ends.close(&mut live, self.clock),
        };
        // In any case: what can be saved is.
        let down = live.drive.shut_down();
        ran.map_err(|source| CloseError::Thread { drive: drive(), source })?;
        flushed?;
        down.map_err(|source| CloseError::ShutDown { drive: drive(), source })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let (Err(error), Some(closed)) = (self.close(), &self.closed) {
            // Nobody listens any more: then nobody wants to know.
            let _ = closed.send(error);
        }
    }
}
