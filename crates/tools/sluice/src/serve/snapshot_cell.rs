//! [`SnapshotCell`]: lets one thread read state that another owns, on request (ARCHITECTURE.md,
//! R4).
//!
//! A reader sets a request flag and waits. The owner checks the flag once per poll, and stores a
//! copy if it is set. The owner's path has no lock and no shared counter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::serve::share::OwnerCalls;
use block::{BlockDevice, Completion, Limits, QueueFull, Request};
use clock::{Component, Nanos, RealClock, Waker};
use drive::{CommandTimes, Controller, DriveStats, LatenessRecord};
use ftl::FtlStats;
use ring::AddressSpace;

use crate::stack::{ShardCounts, StackDevice};

/// Maximum time for the owner to answer; then the reader uses the previous answer.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_millis(200);
/// Interval at which a reader checks for the answer.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A copy of state that another thread owns, made on request.
#[derive(Debug)]
pub(crate) struct SnapshotCell<T> {
    requested: AtomicBool,
    latest: Mutex<Option<T>>,
}

impl<T: Clone> SnapshotCell<T> {
    pub(crate) fn new() -> Arc<SnapshotCell<T>> {
        Arc::new(SnapshotCell { requested: AtomicBool::new(false), latest: Mutex::new(None) })
    }

    /// Publishes the result of `copy` if a reader has requested it. Called by the owner.
    #[inline]
    fn publish_if_requested(&self, copy: impl FnOnce() -> T) {
        if self.requested.load(Ordering::Relaxed) {
            self.publish(copy());
        }
    }

    #[cold]
    fn publish(&self, value: T) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        self.requested.store(false, Ordering::Release);
    }

    /// Requests a copy: wakes the owner through `waker` and waits for up to [`SNAPSHOT_TIMEOUT`].
    /// Returns `None` if the owner has never answered.
    pub(crate) fn request(&self, waker: &Waker) -> Option<T> {
        self.requested.store(true, Ordering::Release);
        waker.wake();
        let mut left = SNAPSHOT_TIMEOUT;
        while self.requested.load(Ordering::Acquire) && !left.is_zero() {
            std::thread::sleep(POLL_INTERVAL);
            left = left.saturating_sub(POLL_INTERVAL);
        }
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Snapshot of a drive.
#[derive(Clone, Debug)]
pub(crate) struct DriveSnapshot {
    /// Counters of the drive.
    pub(crate) stats: DriveStats,
    /// Lateness of its completions.
    pub(super) late: LatenessRecord,
    /// Latencies of its commands, if it is shared.
    pub(super) times: Option<CommandTimes>,
    /// Number of in-flight I/O commands.
    pub(super) outstanding: usize,
    /// Number of attached hosts.
    pub(super) hosts: usize,
}

impl DriveSnapshot {
    pub(super) fn new(drive: &Controller) -> DriveSnapshot {
        DriveSnapshot {
            stats: drive.stats(),
            late: drive.lateness().clone(),
            times: drive.command_times().cloned(),
            outstanding: drive.outstanding(),
            hosts: drive.host_count(),
        }
    }
}

/// A drive in real time that publishes snapshots.
#[derive(Debug)]
pub(crate) struct DriveThreadState {
    pub(crate) drive: Controller,
    clock: RealClock,
    cell: Arc<SnapshotCell<DriveSnapshot>>,
    owner_calls: OwnerCallsGuard,
}

/// Closes the calls when the owner of the drive ends, in any way.
#[derive(Debug)]
struct OwnerCallsGuard(Arc<OwnerCalls>);

impl Drop for OwnerCallsGuard {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl DriveThreadState {
    pub(crate) fn new(
        drive: Controller,
        clock: RealClock,
        cell: Arc<SnapshotCell<DriveSnapshot>>,
    ) -> DriveThreadState {
        DriveThreadState { drive, clock, cell, owner_calls: OwnerCallsGuard(OwnerCalls::new()) }
    }

    /// Returns the queue of calls from other threads.
    pub(super) fn owner_calls(&self) -> Arc<OwnerCalls> {
        self.owner_calls.0.clone()
    }
}

impl Component for DriveThreadState {
    /// The current time of the drive is that of the poll, not the last clock reading of its runner.
    /// Otherwise a command submitted in between would start and complete too early
    /// (ARCHITECTURE.md, R6).
    #[inline]
    fn poll(&mut self, _: Nanos) -> bool {
        let mut moved = self.owner_calls.0.run_pending(&mut self.drive);
        moved |= self.drive.poll(self.clock.now());
        self.cell.publish_if_requested(|| DriveSnapshot::new(&self.drive));
        moved
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.drive.deadline()
    }
}

/// Snapshot of an FTL.
#[derive(Clone, Debug)]
pub(super) struct FtlSnapshot {
    /// Counters of all shards, summed.
    pub(super) stats: FtlStats,
    pub(super) free_lines: f64,
    /// Empty without shards.
    pub(super) shards: Vec<ShardCounts>,
}

/// A device that publishes snapshots of its FTL, if that is in the host.
#[derive(Debug)]
pub(super) struct ObservedDevice {
    pub(super) device: StackDevice,
    cell: Arc<SnapshotCell<Option<FtlSnapshot>>>,
}

impl ObservedDevice {
    pub(super) fn new(
        device: StackDevice,
        cell: Arc<SnapshotCell<Option<FtlSnapshot>>>,
    ) -> ObservedDevice {
        ObservedDevice { device, cell }
    }

    /// Makes an FTL in the host write a checkpoint on its drive.
    pub(super) fn checkpoint(&mut self, live: &mut DriveThreadState) {
        let now = live.clock.now();
        self.device.checkpoint(now, &mut live.drive);
    }

    pub(super) fn snapshot(&self) -> Option<FtlSnapshot> {
        let (stats, free_lines) = self.device.ftl_snapshot()?;
        Some(FtlSnapshot { stats, free_lines, shards: self.device.shard_counts() })
    }
}

impl Component for ObservedDevice {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        self.cell.publish_if_requested(|| self.snapshot());
        self.device.poll(now)
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}

impl BlockDevice for ObservedDevice {
    #[inline]
    fn limits(&self) -> &Limits {
        self.device.limits()
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.device.submit(now, request)
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        self.device.reap()
    }

    fn memory(&self) -> &AddressSpace {
        self.device.memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        self.device.set_waker(waker);
    }
}
