//! [`ObservedDevice`]: the device of an NBD server, which publishes snapshots of its FTL.

use std::sync::Arc;

use block::BlockDevice;
use ftl::FtlStats;
use stack::{CoreQueues, DriveThreadState, ShardCounts, SnapshotCell, target_layers};
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
    fn read(device: &mut CoreQueues) -> Option<FtlSnapshot> {
        let (stats, free_lines) = target_layers::ftl_snapshot(device)?;
        Some(FtlSnapshot { stats, free_lines, shards: target_layers::shard_counts(device) })
    }
}

/// A device that publishes snapshots of its FTL, if that is in the host.
#[derive(Debug)]
pub(super) struct ObservedDevice {
    pub(super) device: CoreQueues,
    cell: Arc<SnapshotCell<Option<FtlSnapshot>>>,
}

impl ObservedDevice {
    pub(super) fn new(
        device: CoreQueues,
        cell: Arc<SnapshotCell<Option<FtlSnapshot>>>,
    ) -> ObservedDevice {
        ObservedDevice { device, cell }
    }

    /// Makes an FTL in the host write a checkpoint on its drive.
    pub(super) fn checkpoint(&mut self, live: &mut DriveThreadState) {
        let now = live.now();
        target_layers::checkpoint(&mut self.device, now, &mut live.drive);
    }

    pub(super) fn snapshot(&mut self) -> Option<FtlSnapshot> {
        FtlSnapshot::read(&mut self.device)
    }
}

impl Component for ObservedDevice {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        self.cell.publish_if_requested(|| FtlSnapshot::read(&mut self.device));
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
