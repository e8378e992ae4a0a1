//! [`DriveThreadGuard`]: owns the threads of a device's drives and shuts them down.
//! [`DriveStatsReader`]: reads the counters of such drives.
//!
//! Guarantee: when the guard has been dropped, the threads have ended, the host's targets are
//! flushed and have written a checkpoint, the drives' write buffers are on their media, and their
//! images are synced.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{Builder, JoinHandle};

use controller::DriveStats;
use event::{AllowedCpus, IdlePolicy, RealClock, RealRunner, StopHandle, ThreadUse};
use stack::{
    DevicePort, DriveSnapshot, DriveThreadState, EmulatedDevice, SnapshotCell, SnapshotSource,
};

use super::CloseError;
use super::target_queue::TargetQueues;

/// A device to start a thread for, and the parts of it that hosts in this process share.
#[derive(Debug)]
pub(super) struct PoweredDevice {
    /// The device.
    pub(super) device: EmulatedDevice,
    /// The part of it that each host shares.
    pub(super) ports: Vec<DevicePort>,
}

/// Owns the threads of a device's drives; shuts the drives down when dropped.
#[derive(Debug)]
pub(super) struct DriveThreadGuard {
    clock: RealClock,
    threads: Vec<DriveThread>,
    /// The host's side of the drives, which is closed before them; nothing if the owners of queues
    /// have deleted them.
    target: Option<Arc<TargetQueues>>,
    close_errors: Option<Sender<CloseError>>,
    /// Devices of this machine, which are closed after the host's side.
    real: Vec<DevicePort>,
}

/// The thread of one drive.
#[derive(Debug)]
struct DriveThread {
    name: String,
    stopper: StopHandle,
    thread: JoinHandle<(io::Result<()>, DriveThreadState)>,
}

/// Reads the counters of a device's drives from any thread. It costs a drive's thread one load per
/// iteration.
#[derive(Clone, Debug, Default)]
pub struct DriveStatsReader {
    cells: Vec<SnapshotSource<DriveSnapshot>>,
}

impl DriveStatsReader {
    /// Returns the current counters of the drive, at most a fifth of a second old; of the first one
    /// of a set. `None` if the drive has never answered.
    pub fn stats(&self) -> Option<DriveStats> {
        self.all_stats()?.into_iter().next().map(|(_, stats)| stats)
    }

    /// Returns the name and the current counters of each emulated drive, as
    /// [`stats`](DriveStatsReader::stats) does. `None` if one of them has never answered.
    pub fn all_stats(&self) -> Option<Vec<(String, DriveStats)>> {
        let snapshots = SnapshotCell::request_all(&self.cells)?;
        Some(snapshots.into_iter().flat_map(|seen| seen.drives).collect())
    }
}

impl DriveThreadGuard {
    /// Starts the threads of the drives. All of them are pinned to `core`, if it is given.
    ///
    /// # Errors
    /// The error of the operating system, if it provides no thread or no descriptor.
    pub(super) fn start(
        drives: Vec<PoweredDevice>,
        clock: RealClock,
        core: Option<usize>,
        target: Option<Arc<TargetQueues>>,
        closed: Option<Sender<CloseError>>,
    ) -> io::Result<(DriveThreadGuard, DriveStatsReader)> {
        let mut view = DriveStatsReader::default();
        // After an error the guard ends the threads that have started.
        let threads = Vec::with_capacity(drives.len());
        let mut guard =
            DriveThreadGuard { clock, threads, target, close_errors: closed, real: Vec::new() };
        for PoweredDevice { device: drive, ports } in drives {
            if let EmulatedDevice::Real(_) = drive {
                // It works by itself, and is open as long as its queues.
                guard.real.extend(ports);
                continue;
            }
            let runner = RealRunner::new(clock, IdlePolicy::default())?;
            for port in &ports {
                port.set_drive_waker(runner.waker())?;
            }
            let (stopper, cell) = (runner.stop_handle(), SnapshotCell::new());
            view.cells.push(SnapshotSource { cell: cell.clone(), waker: runner.waker() });
            let name = drive.name().to_owned();
            let mut live = DriveThreadState::new(drive, clock, cell, ThreadUse::OneComponent);
            let thread = Builder::new().name(format!("drive {name}")).spawn(move || {
                if let Some(core) = core {
                    AllowedCpus::allowed().pin(core);
                }
                let ran = runner.run(&mut live);
                (ran, live)
            })?;
            guard.threads.push(DriveThread { name, stopper, thread });
        }
        Ok((guard, view))
    }

    fn close(&mut self) -> Result<(), CloseError> {
        let threads = std::mem::take(&mut self.threads);
        threads.iter().for_each(|thread| thread.stopper.stop());
        let (mut live, mut first) = (Vec::new(), Ok(()));
        for DriveThread { name, thread, .. } in threads {
            let ended = match thread.join() {
                Ok((ran, drive)) => {
                    live.push(drive);
                    ran.map_err(|source| CloseError::Thread { drive: name, source })
                }
                Err(_) => Err(CloseError::Panicked { drive: name }),
            };
            first = first.and(ended);
        }
        // A target whose drive is lost cannot be flushed. The other drives are shut down in any
        // case, to save as much data as possible.
        let lost = matches!(first, Err(CloseError::Panicked { .. }));
        if let (Some(queues), false) = (self.target.take(), lost) {
            first = first.and(queues.close(&mut live, self.clock));
        }
        for drive in live {
            let name = drive.drive.name().to_owned();
            let down = drive.drive.shut_down();
            first = first.and(down.map_err(|source| CloseError::ShutDown { drive: name, source }));
        }
        first
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
