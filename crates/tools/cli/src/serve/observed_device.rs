//! [`ObservedDevice`]: the device of an NBD server, which publishes snapshots of its FTL and runs calls
//! of other threads.

use std::sync::Arc;

use block::BlockDevice;
use block::notify::CompletionPolicy;
use event::Waker;
use ftl::FtlStats;
use share_server::{OwnerCalls, OwnerChannel};
use stack::{CoreQueues, ShardCounts, SnapshotCell, SnapshotSource, target_layers};
use time::{Component, Nanos};

/// Snapshot of an FTL.
#[derive(Clone, Debug)]
pub(super) struct FtlSnapshot {
    /// Counters of all shards, summed.
    pub(super) stats: FtlStats,
    pub(super) free_lines: f64,
    /// Empty without shards.
    pub(super) shards: Vec<ShardCounts>,
}

impl FtlSnapshot {
    /// Returns the snapshot of the targets that `device` shows; `None` if it shows none.
    pub(super) fn read(device: &mut CoreQueues) -> Option<FtlSnapshot> {
        let (stats, free_lines) = target_layers::ftl_snapshot(device)?;
        Some(FtlSnapshot { stats, free_lines, shards: target_layers::shard_counts(device) })
    }

    /// Returns the sums over the cores of a drive; `None` if none shows a target. Each target is
    /// shown by one core.
    pub(super) fn sum(cores: impl IntoIterator<Item = Option<FtlSnapshot>>) -> Option<FtlSnapshot> {
        cores.into_iter().flatten().reduce(|mut sum, core| {
            sum.stats = sum.stats.plus(&core.stats);
            sum.free_lines += core.free_lines;
            sum.shards.extend(core.shards);
            sum
        })
    }
}

/// The cell in which a server publishes the snapshot of its device.
pub(super) type FtlCell = Arc<SnapshotCell<Option<FtlSnapshot>>>;

/// The cell of a server, and the server's waker.
pub(super) type FtlSource = SnapshotSource<Option<FtlSnapshot>>;

/// A device that publishes snapshots of its FTL, if that is in the host, and runs the calls of other
/// threads to it.
#[derive(Debug)]
pub(super) struct ObservedDevice {
    device: CoreQueues,
    cell: FtlCell,
    calls: OwnerCalls<CoreQueues>,
    /// Whether completions do not wake the server, which polls for them.
    masks_waker: bool,
}

impl ObservedDevice {
    /// Returns the device of a server that learns of completions by `completion`.
    pub(super) fn new(
        device: CoreQueues,
        cell: FtlCell,
        completion: Option<CompletionPolicy>,
    ) -> ObservedDevice {
        let masks_waker = completion.is_some_and(|policy| !policy.method.uses_interrupts());
        ObservedDevice { device, cell, calls: OwnerCalls::default(), masks_waker }
    }

    /// Returns the channel by which other threads call functions on the server's, which `waker`
    /// wakes.
    pub(super) fn owner_channel(&self, waker: Waker) -> OwnerChannel<CoreQueues> {
        self.calls.channel(waker)
    }

    pub(super) fn into_device(self) -> CoreQueues {
        self.device
    }
}

impl Component for ObservedDevice {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        self.cell.publish_if_requested(|| FtlSnapshot::read(&mut self.device));
        self.calls.run_pending(&mut self.device) | self.device.poll(now)
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}

impl BlockDevice for ObservedDevice {
    block::delegate_block_device!(
        self => self.device;
        limits, submit, reap, memory, can_wake, enable_sharing, can_wait, wait_for_event,
        visit_layers
    );

    fn set_waker(&mut self, waker: Waker) {
        if !self.masks_waker {
            self.device.set_waker(waker);
        }
    }
}
