//! [`Pane`]: how one thread looks at what another owns (rule R4). Who looks asks and waits; the owner
//! looks at one flag per poll, and makes a copy when asked. Its path has no lock and no counter that
//! is shared.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::serve::share::Errands;
use block::{Busy, Completion, Device, Limits, Request};
use clock::{Component, Nanos, RealClock, Waker};
use drive::{CommandTimes, Drive, DriveStats, LatenessRecord};
use ftl::FtlStats;
use ring::AddressSpace;

use crate::stack::{ShardCounts, StackDevice};

/// How long an owner may take to answer; the answer before is good enough then.
const PATIENCE: Duration = Duration::from_millis(200);
/// Between two looks whether it has.
const STEP: Duration = Duration::from_millis(1);

/// A copy of something that another thread owns, made on request.
#[derive(Debug)]
pub(crate) struct Pane<T> {
    wanted: AtomicBool,
    latest: Mutex<Option<T>>,
}

impl<T: Clone> Pane<T> {
    pub(crate) fn new() -> Arc<Pane<T>> {
        Arc::new(Pane { wanted: AtomicBool::new(false), latest: Mutex::new(None) })
    }

    /// The owner's side: `copy` is called if somebody wants to look.
    #[inline]
    fn offer(&self, copy: impl FnOnce() -> T) {
        if self.wanted.load(Ordering::Relaxed) {
            self.publish(copy());
        }
    }

    #[cold]
    fn publish(&self, value: T) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        self.wanted.store(false, Ordering::Release);
    }

    /// Looks: asks the owner, whom `waker` wakes, and waits for a moment. `None` if it has never
    /// answered.
    pub(crate) fn look(&self, waker: &Waker) -> Option<T> {
        self.wanted.store(true, Ordering::Release);
        waker.wake();
        let mut left = PATIENCE;
        while self.wanted.load(Ordering::Acquire) && !left.is_zero() {
            std::thread::sleep(STEP);
            left = left.saturating_sub(STEP);
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
    pub(super) fn of(drive: &Drive) -> DriveSnapshot {
        DriveSnapshot {
            stats: drive.stats(),
            late: drive.lateness().clone(),
            times: drive.command_times().cloned(),
            outstanding: drive.outstanding(),
            hosts: drive.hosts(),
        }
    }
}

/// A drive in real time, seen through a pane.
#[derive(Debug)]
pub(crate) struct LiveDrive {
    pub(crate) drive: Drive,
    clock: RealClock,
    pane: Arc<Pane<DriveSnapshot>>,
    errands: OwnersEnd,
}

/// Closes when the drive's owner goes, however it goes.
#[derive(Debug)]
struct OwnersEnd(Arc<Errands>);

impl Drop for OwnersEnd {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl LiveDrive {
    pub(crate) fn new(drive: Drive, clock: RealClock, pane: Arc<Pane<DriveSnapshot>>) -> LiveDrive {
        LiveDrive { drive, clock, pane, errands: OwnersEnd(Errands::new()) }
    }

    /// What others want of the drive.
    pub(super) fn errands(&self) -> Arc<Errands> {
        self.errands.0.clone()
    }
}

impl Component for LiveDrive {
    /// The drive's present is when it is polled, not when its runner last looked at the clock: a
    /// command that was submitted in between would start, and end, too early (rule R6).
    #[inline]
    fn poll(&mut self, _: Nanos) -> bool {
        let mut moved = self.errands.0.carry_out(&mut self.drive);
        moved |= self.drive.poll(self.clock.now());
        self.pane.offer(|| DriveSnapshot::of(&self.drive));
        moved
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.drive.deadline()
    }
}

/// What can be seen of a translation layer.
#[derive(Clone, Debug)]
pub(super) struct FtlView {
    /// Of all shards together.
    pub(super) stats: FtlStats,
    pub(super) free_lines: f64,
    /// None without shards.
    pub(super) shards: Vec<ShardCounts>,
}

/// A device, whose translation layer is seen through a pane if it is on the host's side.
#[derive(Debug)]
pub(super) struct SeenDevice {
    pub(super) device: StackDevice,
    pane: Arc<Pane<Option<FtlView>>>,
}

impl SeenDevice {
    pub(super) fn new(device: StackDevice, pane: Arc<Pane<Option<FtlView>>>) -> SeenDevice {
        SeenDevice { device, pane }
    }

    /// Has a translation layer on the host make a checkpoint on its drive.
    pub(super) fn checkpoint(&mut self, live: &mut LiveDrive) {
        let now = live.clock.now();
        self.device.checkpoint(now, &mut live.drive);
    }

    pub(super) fn view(&self) -> Option<FtlView> {
        let (stats, free_lines) = self.device.ftl_view()?;
        Some(FtlView { stats, free_lines, shards: self.device.shard_counts() })
    }
}

impl Component for SeenDevice {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        self.pane.offer(|| self.view());
        self.device.poll(now)
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}

impl Device for SeenDevice {
    #[inline]
    fn limits(&self) -> &Limits {
        self.device.limits()
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
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
