//! [`ObservedDevice`]: the device of an NBD server, which publishes snapshots of its FTL.

use std::sync::Arc;

use block::BlockDevice;
use ftl::FtlStats;
use stack::{DriveThreadState, ShardCounts, SnapshotCell, StackDevice};
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
        let now = live.now();
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
    block::delegate_block_device!(self => self.device);
}
