//! [`Observer`]: reads the statistics of a served path from any thread; [`Meter`]: what such a reading needs that
//! does not belong to the threads.

use block::BlockLayer;
use controller::DriveStats;
use event::RealClock;
use ftl::FtlStats;
use nbd::{Endpoint, NbdStatsReader};
use scenario::DriveSpec;
use stack::{BlockLayerCounts, DriveSnapshot, ShardCounts, SnapshotCell, SnapshotSource};
use time::Nanos;

use super::observed_device::{FtlSnapshot, FtlSource};
use super::{ActivityCounts, DriveReading, LiveStats};

/// A device beneath a path, for its readings: a drive, or an AHCI controller.
#[derive(Clone)]
pub(super) struct MeterDrive {
    /// Its drives beneath the path, each with its index in the scenario.
    pub(super) drives: Vec<(usize, DriveSpec)>,
    /// Whether no other path is over the drive.
    pub(super) is_own: bool,
    /// Counters of its FTL at the start, to exclude preconditioning.
    pub(super) ftl_at_start: Option<FtlStats>,
}

impl MeterDrive {
    /// Returns counters of the drive's FTL since the start, and its free lines.
    fn ftl(&self, snapshot: &DriveSnapshot) -> Option<FtlSnapshot> {
        let found = |(_, drive): &(String, DriveStats)| drive.ftl.zip(drive.free_lines);
        let (stats, free_lines) = snapshot.drives.iter().find_map(found)?;
        let stats = self.ftl_at_start.map_or(stats, |before| stats.since(&before));
        Some(FtlSnapshot { stats, free_lines, shards: Vec::new() })
    }
}

/// Parts of a reading that do not belong to the threads.
pub(super) struct Meter {
    /// Name of the path, or of a drive without one.
    pub(super) name: String,
    pub(super) drives: Vec<MeterDrive>,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) clock: RealClock,
    pub(super) started: Nanos,
    /// `None` for a drive without NBD.
    pub(super) nbd: Option<NbdStatsReader>,
    /// Counters at the start of the FTL in the host.
    pub(super) ftl_at_start: Option<FtlStats>,
    pub(super) shards_at_start: Vec<ShardCounts>,
    /// Queue model and block layer; any thread may read its counters.
    pub(super) block_layer: Option<(&'static str, BlockLayer)>,
    /// Whether clients can have queues of their own.
    pub(super) is_shared: bool,
}

/// Reads the statistics of a served path from any thread.
pub(super) struct Observer {
    pub(super) meter: Meter,
    /// The FTL of each server's device; empty for a drive without NBD.
    pub(super) servers: Vec<FtlSource>,
    /// The drives, in the order of the meter.
    pub(super) drives: Vec<SnapshotSource<DriveSnapshot>>,
}

impl Observer {
    /// Returns a reading that is at most two fifths of a second old; `None` if a drive has never
    /// answered.
    pub(super) fn read(&self) -> Option<LiveStats> {
        let drives = SnapshotCell::request_all(&self.drives)?;
        let view = FtlSnapshot::sum(SnapshotCell::request_all(&self.servers).unwrap_or_default());
        Some(self.meter.live_stats(drives, view))
    }

    /// Wakes every server.
    pub(super) fn wake_servers(&self) {
        self.servers.iter().for_each(|server| server.waker.wake());
    }
}

impl Meter {
    /// Returns the reading at this instant, with a snapshot of each drive; `view` is that of an FTL in
    /// the host.
    pub(super) fn live_stats(
        &self,
        snapshots: Vec<DriveSnapshot>,
        view: Option<FtlSnapshot>,
    ) -> LiveStats {
        let host = view.map(|mut view| {
            if let Some(before) = &self.ftl_at_start {
                view.stats = view.stats.since(before);
            }
            let shards = view.shards.iter().zip(&self.shards_at_start);
            view.shards = shards.map(|(now, then)| now.since(then)).collect();
            view
        });
        let mut of_drives = Vec::new();
        let mut late: Option<controller::LatenessRecord> = None;
        let mut doorbells: Option<controller::DoorbellRecord> = None;
        let (mut times, mut outstanding, mut hosts) = (None, 0, 0);
        let mut drives = Vec::with_capacity(self.drives.len());
        for (meter, snapshot) in self.drives.iter().zip(snapshots) {
            let ftl = meter.ftl(&snapshot);
            let mut shared_ftl = None;
            match meter.is_own {
                true => of_drives.push(ftl),
                false => shared_ftl = ftl.map(|ftl| (ftl.stats, ftl.free_lines)),
            }
            late = Some(match late {
                Some(late) => late.plus(&snapshot.late),
                None => snapshot.late,
            });
            doorbells = match (doorbells, snapshot.doorbells) {
                (Some(sum), Some(own)) => Some(sum.plus(&own)),
                (sum, own) => sum.or(own),
            };
            times = times.or(snapshot.times);
            outstanding += snapshot.outstanding as u64;
            hosts += snapshot.hosts;
            // Each number appears once: the FTL's counters are beside the drive's, on whichever side
            // it runs.
            for (name, mut stats) in snapshot.drives {
                let found = meter.drives.iter().find(|(_, plan)| plan.config.name == name);
                let Some((index, plan)) = found.cloned() else { continue };
                (stats.ftl, stats.free_lines) = (None, None);
                drives.push(DriveReading { index, plan, stats, shared_ftl });
            }
        }
        let ftl = host.or_else(|| FtlSnapshot::sum(of_drives));
        let now = self.clock.now();
        let layer = self.block_layer.as_ref();
        let nbd = self.nbd.as_ref();
        // The server's own host is not a client.
        let clients = hosts.saturating_sub(usize::from(nbd.is_some()));
        let live = ActivityCounts {
            nbd: nbd.map(|nbd| nbd.activity(now)).unwrap_or_default(),
            late,
            doorbells,
            times,
            outstanding,
            socket_clients: self.is_shared.then(|| u32::try_from(clients).unwrap_or(u32::MAX)),
        };
        LiveStats {
            name: self.name.clone(),
            drives,
            endpoints: self.endpoints.clone(),
            elapsed: now.since(self.started),
            nbd: nbd.map(NbdStatsReader::snapshot).unwrap_or_default(),
            nbd_by_core: nbd.map(NbdStatsReader::snapshots).unwrap_or_default(),
            ftl: ftl.as_ref().map(|view| view.stats),
            free_lines: ftl.as_ref().map(|view| view.free_lines),
            block_layer: layer.map(|(kind, layer)| BlockLayerCounts::from_layer(layer, kind, now)),
            shards: ftl.map(|view| view.shards).unwrap_or_default(),
            activity: live,
        }
    }
}
