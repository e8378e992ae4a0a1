//! [`Observer`]: reads the statistics of a served drive from any thread; [`Meter`]: what such a reading needs that
//! does not belong to the drive's threads.

use std::sync::Arc;

use block::BlockLayer;
use event::{RealClock, Waker};
use ftl::FtlStats;
use nbd::{Endpoint, NbdStatsReader};
use scenario::DriveSpec;
use stack::{BlockLayerCounts, DriveSnapshot, ShardCounts, SnapshotCell};
use time::Nanos;

use super::observed_device::{FtlSnapshot, FtlSource};
use super::{ActivityCounts, LiveStats};

/// Parts of a reading that do not belong to the threads.
pub(super) struct Meter {
    pub(super) plan: DriveSpec,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) clock: RealClock,
    pub(super) started: Nanos,
    /// `None` for a drive without NBD.
    pub(super) nbd: Option<NbdStatsReader>,
    /// FTL counters at the start, to exclude preconditioning.
    pub(super) ftl_at_start: Option<FtlStats>,
    pub(super) shards_at_start: Vec<ShardCounts>,
    /// Queue model and block layer; any thread may read its counters.
    pub(super) block_layer: Option<(&'static str, BlockLayer)>,
    /// Whether clients can have queues of their own.
    pub(super) is_shared: bool,
}

/// Reads the statistics of a served drive from any thread.
pub(super) struct Observer {
    pub(super) meter: Meter,
    /// The FTL of each server's device; empty for a drive without NBD.
    pub(super) servers: Vec<FtlSource>,
    pub(super) drive_waker: Waker,
    pub(super) drive_cell: Arc<SnapshotCell<DriveSnapshot>>,
}

impl Observer {
    /// Returns a reading that is at most a fifth of a second old; `None` if the drive has never
    /// answered.
    pub(super) fn read(&self) -> Option<LiveStats> {
        let drive = self.drive_cell.request(&self.drive_waker)?;
        let view = FtlSnapshot::sum(SnapshotCell::request_all(&self.servers).unwrap_or_default());
        Some(self.meter.live_stats(drive, view))
    }

    /// Wakes every server.
    pub(super) fn wake_servers(&self) {
        self.servers.iter().for_each(|server| server.waker.wake());
    }
}

impl Meter {
    /// Returns the reading of a drive at this instant; `view` is that of an FTL in the host.
    pub(super) fn live_stats(
        &self,
        snapshot: DriveSnapshot,
        view: Option<FtlSnapshot>,
    ) -> LiveStats {
        let DriveSnapshot { stats: mut drive, late, times, outstanding, hosts } = snapshot;
        let of_drive = || {
            let (stats, free_lines) = drive.ftl.zip(drive.free_lines)?;
            Some(FtlSnapshot { stats, free_lines, shards: Vec::new() })
        };
        let view = view.or_else(of_drive);
        let stats = view.as_ref().map(|v| v.stats);
        let ftl = match (stats, self.ftl_at_start) {
            (Some(stats), Some(before)) => Some(stats.since(&before)),
            (stats, _) => stats,
        };
        let shards = view.as_ref().map_or(&[][..], |v| &v.shards).iter();
        let shards = shards.zip(&self.shards_at_start).map(|(now, then)| now.since(then)).collect();
        // Each number appears once: the FTL's counters are beside the drive's, on whichever side it
        // runs.
        (drive.ftl, drive.free_lines) = (None, None);
        let now = self.clock.now();
        let layer = self.block_layer.as_ref();
        let nbd = self.nbd.as_ref();
        // The server's own host is not a client.
        let clients = hosts.saturating_sub(usize::from(nbd.is_some()));
        let live = ActivityCounts {
            nbd: nbd.map(|nbd| nbd.activity(now)).unwrap_or_default(),
            late,
            times,
            outstanding: outstanding as u64,
            socket_clients: self.is_shared.then(|| u32::try_from(clients).unwrap_or(u32::MAX)),
        };
        LiveStats {
            plan: self.plan.clone(),
            endpoints: self.endpoints.clone(),
            elapsed: now.since(self.started),
            nbd: nbd.map(NbdStatsReader::snapshot).unwrap_or_default(),
            nbd_by_core: nbd.map(NbdStatsReader::snapshots).unwrap_or_default(),
            drive,
            ftl,
            free_lines: view.map(|v| v.free_lines),
            block_layer: layer.map(|(kind, layer)| BlockLayerCounts::from_layer(layer, kind, now)),
            shards,
            activity: live,
        }
    }
}
