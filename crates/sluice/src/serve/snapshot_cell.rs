//! [`SnapshotCell`]: how one thread looks at what another owns (rule R4). Who looks asks and waits; the owner
//! looks at one flag per poll, and makes a copy when asked. Its path has no lock and no counter that
//! is shared.

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

/// How long an owner may take to answer; the answer before is good enough then.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_millis(200);
/// Between two looks whether it has.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A copy of something that another thread owns, made on request.
#[derive(Debug)]
pub(crate) struct SnapshotCell<T> {
    requested: AtomicBool,
    latest: Mutex<Option<T>>,
}

impl<T: Clone> SnapshotCell<T> {
    pub(crate) fn new() -> Arc<SnapshotCell<T>> {
        Arc::new(SnapshotCell { requested: AtomicBool::new(false), latest: Mutex::new(None) })
    }

    /// The owner's side: `copy` is called if somebody wants to look.
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

    /// Looks: asks the owner, whom `waker` wakes, and waits for a moment. `None` if it has never
    /// answered.
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

/// What can be seen of a drive.
#[derive(Clone, Debug)]
pub(crate) struct DriveSnapshot {
    /// Its counters.
    pub(crate) stats: DriveStats,
    /// How late its completions were.
    pub(super) late: LatenessRecord,
    /// How long its commands took, if it is shared.
    pub(super) times: Option<CommandTimes>,
    /// I/O commands under way.
    pub(super) outstanding: usize,
    /// Hosts attached.
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

/// A drive in real time, seen through a pane.
#[derive(Debug)]
pub(crate) struct DriveThreadState {
    pub(crate) drive: Controller,
    clock: RealClock,
    cell: Arc<SnapshotCell<DriveSnapshot>>,
    owner_calls: OwnerCallsGuard,
}

/// Closes when the drive's owner goes, however it goes.
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

    /// What others want of the drive.
    pub(super) fn owner_calls(&self) -> Arc<OwnerCalls> {
        self.owner_calls.0.clone()
    }
}

impl Component for DriveThreadState {
    /// The drive's present is when it is polled, not when its runner last looked at the clock: a
    /// command that was submitted in between would start, and end, too early (rule R6).
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

/// What can be seen of a translation layer.
#[derive(Clone, Debug)]
pub(super) struct FtlSnapshot {
    /// Of all shards together.
    pub(super) stats: FtlStats,
    pub(super) free_lines: f64,
    /// None without shards.
    pub(super) shards: Vec<ShardCounts>,
}

/// A device, whose translation layer is seen through a pane if it is on the host's side.
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

    /// Has a translation layer on the host make a checkpoint on its drive.
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
