//! Drives in real time: [`DriveThreadState`] is a drive on the thread that owns it, and a
//! [`SnapshotCell`] lets another thread read its state on request (ARCHITECTURE.md, R4).
//!
//! A reader sets a request flag and waits. The owner checks the flag once per poll, and stores a
//! copy if it is set. The owner's path has no lock and no shared counter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use controller::{CommandTimes, Controller, DoorbellRecord, DriveStats, LatenessRecord};
use event::{RealClock, ThreadGapMeter, ThreadUse, Waker, thread_cpu_time};
use share_server::{OwnerCalls, OwnerChannel};
use time::{Component, Nanos};
use transport::DrivePolls;

use super::EmulatedDevice;

/// Maximum time for the owner to answer; then the reader uses the previous answer.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_millis(200);
/// Interval at which a reader checks for the answer.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A copy of state that another thread owns, made on request.
#[derive(Debug)]
pub struct SnapshotCell<T> {
    requested: AtomicBool,
    latest: Mutex<Option<T>>,
}

/// A cell, and the waker of its owner.
#[derive(Clone, Debug)]
pub struct SnapshotSource<T> {
    /// The cell.
    pub cell: Arc<SnapshotCell<T>>,
    /// Wakes the owner.
    pub waker: Waker,
}

impl<T: Clone> SnapshotCell<T> {
    /// Returns a cell without a copy.
    pub fn new() -> Arc<SnapshotCell<T>> {
        Arc::new(SnapshotCell { requested: AtomicBool::new(false), latest: Mutex::new(None) })
    }

    /// Returns whether a reader has requested a copy.
    #[inline]
    fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Publishes the result of `copy` if a reader has requested it. Called by the owner.
    #[inline]
    pub fn publish_if_requested(&self, copy: impl FnOnce() -> T) {
        if self.is_requested() {
            self.publish(copy());
        }
    }

    #[cold]
    fn publish(&self, value: T) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        self.requested.store(false, Ordering::Release);
    }

    /// Requests a copy: wakes the owner through `waker` and waits for up to a fifth of a
    /// second. Returns `None` if the owner has never answered.
    pub fn request(&self, waker: &Waker) -> Option<T> {
        self.ask(waker);
        let mut left = SNAPSHOT_TIMEOUT;
        self.answer(&mut left)
    }

    /// Requests a copy from each owner, as [`request`](SnapshotCell::request) does. The
    /// owners answer at the same time, within a fifth of a second for all. Returns `None` if one has
    /// never answered.
    pub fn request_all(sources: &[SnapshotSource<T>]) -> Option<Vec<T>> {
        sources.iter().for_each(|source| source.cell.ask(&source.waker));
        let mut left = SNAPSHOT_TIMEOUT;
        sources.iter().map(|source| source.cell.answer(&mut left)).collect()
    }

    fn ask(&self, waker: &Waker) {
        self.requested.store(true, Ordering::Release);
        waker.wake();
    }

    /// Waits for the answer, at most for `left`, which is reduced by the wait.
    fn answer(&self, left: &mut Duration) -> Option<T> {
        while self.requested.load(Ordering::Acquire) && !left.is_zero() {
            std::thread::sleep(POLL_INTERVAL);
            *left = left.saturating_sub(POLL_INTERVAL);
        }
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Snapshot of a drive, or of an AHCI controller with its drives.
#[derive(Clone, Debug)]
pub struct DriveSnapshot {
    /// Name and counters of each drive of the device; several at an AHCI controller.
    pub drives: Vec<(String, DriveStats)>,
    /// Lateness of its completions.
    pub late: LatenessRecord,
    /// Waits of its doorbells, if they are measured.
    pub doorbells: Option<DoorbellRecord>,
    /// Latencies of its commands, if it is shared.
    pub times: Option<CommandTimes>,
    /// Number of in-flight I/O commands.
    pub outstanding: usize,
    /// Number of attached hosts.
    pub hosts: usize,
}

impl DriveSnapshot {
    /// Returns the current state of a device.
    pub fn new(drive: &EmulatedDevice) -> DriveSnapshot {
        DriveSnapshot {
            drives: drive.drives(),
            late: drive.lateness(),
            doorbells: drive.nvme().and_then(Controller::doorbell_waits).cloned(),
            times: drive.nvme().and_then(Controller::command_times).cloned(),
            outstanding: drive.outstanding(),
            hosts: drive.nvme().map_or(1, Controller::host_count),
        }
    }
}

/// A drive in real time that publishes snapshots.
#[derive(Debug)]
pub struct DriveThreadState {
    /// The drive.
    pub drive: EmulatedDevice,
    clock: RealClock,
    cell: Arc<SnapshotCell<DriveSnapshot>>,
    owner_calls: OwnerCalls<Controller>,
    gaps: ThreadGapMeter,
}

impl DriveThreadState {
    /// Returns the state of a drive in the time of `clock`, which publishes snapshots in `cell`. The
    /// waits of its doorbells are measured from now on.
    /// `thread_use` says whether other components are polled on its thread.
    pub fn new(
        drive: impl Into<EmulatedDevice>,
        clock: RealClock,
        cell: Arc<SnapshotCell<DriveSnapshot>>,
        thread_use: ThreadUse,
    ) -> DriveThreadState {
        let (mut drive, owner_calls) = (drive.into(), OwnerCalls::default());
        if let EmulatedDevice::Nvme(drive) = &mut drive {
            drive.measure_doorbells(DrivePolls::new(clock));
        }
        let gaps = ThreadGapMeter::new(thread_use, thread_cpu_time);
        DriveThreadState { drive, clock, cell, owner_calls, gaps }
    }

    /// Returns the current time of the drive.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Returns the channel by which other threads call functions on this one, which `waker` wakes.
    pub fn owner_channel(&self, waker: Waker) -> OwnerChannel<Controller> {
        self.owner_calls.channel(waker)
    }
}

impl Component for DriveThreadState {
    /// The current time of the drive is that of the poll, not the last clock reading of its runner.
    /// Otherwise a command submitted in between would start and complete too early
    /// (ARCHITECTURE.md, R6).
    #[inline]
    fn poll(&mut self, _: Nanos) -> bool {
        let mut moved = match &mut self.drive {
            EmulatedDevice::Nvme(drive) => self.owner_calls.run_pending(drive),
            EmulatedDevice::Ahci(_) | EmulatedDevice::Real(_) => false,
        };
        if moved {
            self.gaps.poll_ends(true);
        }
        let now = self.clock.now();
        if let Some(gap) = self.gaps.poll_begins(now) {
            self.drive.record_thread_gap(gap.from, gap.to);
        }
        moved |= match &mut self.drive {
            EmulatedDevice::Nvme(drive) => drive.poll_in_real_time(now, || self.clock.now()),
            other => other.poll(now),
        };
        self.gaps.poll_ends(moved | self.cell.is_requested());
        self.cell.publish_if_requested(|| DriveSnapshot::new(&self.drive));
        moved
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.drive.deadline()
    }
}
