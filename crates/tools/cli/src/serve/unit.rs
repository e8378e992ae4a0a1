//! [`ServedUnit`]: a served path, or a drive without one; its parts before its servers exist, and its
//! end.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use block::notify::CompletionPolicy;
use block::{BlockDevice, BlockLayer};
use event::RealClock;
use nbd::{Endpoint, NbdServer};
use scenario::Beneath;
use stack::{
    CoreQueues, DriveSnapshot, DriveThreadState, SnapshotCell, SnapshotSource, stores_data,
    target_layers,
};

use super::ftl_control::CoreTargets;
use super::observed_device::{FtlCell, FtlSnapshot, ObservedDevice};
use super::observer::{Meter, MeterDrive, Observer};
use super::plan::NbdPlan;
use super::prepared::PreparedHost;
use super::service::ServedDrive;
use super::threads::{LocalDrives, Threads};
use super::{LiveStats, ServeError};

/// A path or a drive to which clients can connect.
#[derive(Clone, Debug)]
pub struct Served {
    /// Name of the path or drive.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// The NBD endpoints, with the ports that the system chose.
    pub endpoints: Vec<Endpoint>,
    /// Name of the export, if clients select it by that.
    pub export: Option<String>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether data that was written can be read.
    pub stores_data: bool,
}

/// Result of a server's thread.
pub(super) struct ServerThreadResult {
    pub(super) result: io::Result<()>,
    pub(super) device: CoreQueues,
    /// The drives that this thread polled.
    pub(super) drives: LocalDrives,
}

/// A served path, or a drive without one.
pub(super) struct ServedUnit {
    pub(super) served: Served,
    pub(super) observer: Arc<Observer>,
    /// The previous reading.
    pub(super) previous: Option<LiveStats>,
    /// The drives among the served ones.
    pub(super) drives: Vec<usize>,
    /// The drive, target or set that the path is over; `None` for a drive without NBD.
    pub(super) over: Option<Beneath>,
    /// The targets of each core; empty for a drive without NBD.
    pub(super) cores: Vec<CoreTargets>,
    /// The server of each core; empty for a drive without NBD.
    pub(super) servers: Vec<JoinHandle<ServerThreadResult>>,
    /// Number of its group.
    pub(super) group: usize,
    /// Index of the host; `None` for a drive without NBD.
    pub(super) host: Option<usize>,
    /// How the servers learn of completions; `None` for the default.
    pub(super) completion: Option<CompletionPolicy>,
}

impl ServedUnit {
    /// Returns the unit of a drive whose hosts are all in other processes.
    pub(super) fn without_host(
        position: usize,
        drive: &ServedDrive,
        meter: MeterDrive,
        clock: RealClock,
        bytes: u64,
    ) -> ServedUnit {
        let name = drive.plan.config.name.clone();
        let meter = Meter {
            name: name.clone(),
            drives: vec![meter],
            endpoints: Vec::new(),
            clock,
            started: clock.now(),
            nbd: None,
            ftl_at_start: None,
            shards_at_start: Vec::new(),
            block_layer: None,
            is_shared: true,
        };
        let drives = vec![drive.snapshots.clone()];
        let observer = Observer { meter, servers: Vec::new(), drives };
        let served = Served {
            name,
            bytes,
            endpoints: Vec::new(),
            export: None,
            read_only: false,
            stores_data: stores_data(&drive.plan),
        };
        ServedUnit {
            served,
            observer: Arc::new(observer),
            previous: None,
            drives: vec![position],
            over: None,
            cores: Vec::new(),
            servers: Vec::new(),
            group: drive.group,
            host: None,
            completion: None,
        }
    }
}

/// Options of a path's unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnitOptions {
    pub(super) clock: RealClock,
    /// Whether clients select its export by the name.
    pub(super) is_named: bool,
    /// Whether clients can have queues of their own.
    pub(super) is_shared: bool,
}

/// A path whose servers do not exist yet.
pub(super) struct PendingPath {
    /// Index of the host.
    pub(super) host: usize,
    pub(super) plan: NbdPlan,
    pub(super) drives: Vec<usize>,
    pub(super) group: usize,
    pub(super) bytes: u64,
    /// Number of targets and shards that the device of each server shows.
    pub(super) targets: Vec<usize>,
    pub(super) cells: Vec<FtlCell>,
    pub(super) ftl_at_start: Option<FtlSnapshot>,
    pub(super) block_layer: Option<(&'static str, BlockLayer)>,
}

impl PendingPath {
    /// Splits a host into what its servers own and the rest, and starts the interrupt context of its
    /// device, if it has one.
    ///
    /// # Errors
    /// [`ServeError::Threads`].
    pub(super) fn new(
        host: usize,
        prepared: PreparedHost,
        group: usize,
        threads: Threads,
        clock: RealClock,
    ) -> Result<(PendingPath, Vec<ObservedDevice>), ServeError> {
        let PreparedHost { plan, mut drives, mut device, .. } = prepared;
        // A set may have several targets of one drive.
        drives.sort_unstable();
        drives.dedup();
        device.start_handler(clock).map_err(ServeError::Threads)?;
        let bytes = device.limits().bytes();
        let ftl_at_start = FtlSnapshot::read(&mut device);
        let layer = device.block_layer();
        let block_layer = layer.map(|layer| (layer.kind(), layer.counters().clone()));
        let mut devices = match threads {
            Threads::One => vec![device],
            Threads::Several => device.split(),
        };
        let targets = devices.iter_mut().map(target_layers::target_count).collect();
        let cells: Vec<FtlCell> = devices.iter().map(|_| SnapshotCell::new()).collect();
        let observed = devices.into_iter().zip(&cells);
        let completion = plan.path.config.completion;
        let observed = observed
            .map(|(device, cell)| ObservedDevice::new(device, cell.clone(), completion))
            .collect();
        let path = PendingPath {
            host,
            plan,
            drives,
            group,
            bytes,
            targets,
            cells,
            ftl_at_start,
            block_layer,
        };
        Ok((path, observed))
    }

    /// Returns the path with its servers' parts.
    pub(super) fn into_unit(
        self,
        servers: &[NbdServer<ObservedDevice>],
        drives: &[ServedDrive],
        meters: Vec<MeterDrive>,
        options: UnitOptions,
    ) -> ServedUnit {
        let UnitOptions { clock, is_named, is_shared } = options;
        let PendingPath {
            host,
            plan,
            drives: own,
            group,
            bytes,
            targets,
            cells,
            ftl_at_start,
            block_layer,
        } = self;
        let endpoints = servers.first().map_or(&[][..], NbdServer::endpoints).to_vec();
        let completion = plan.path.config.completion;
        let served = Served {
            name: plan.path.name.clone(),
            bytes,
            endpoints: endpoints.clone(),
            export: is_named.then_some(plan.name),
            read_only: plan.read_only,
            stores_data: meters.iter().flat_map(|m| &m.drives).all(|(_, plan)| stores_data(plan)),
        };
        let owners = servers.iter().map(|server| server.device().owner_channel(server.waker()));
        let cores = owners.zip(targets).map(|(owner, targets)| CoreTargets { owner, targets });
        let cores = cores.collect();
        let over = Some(plan.path.over);
        let wakers = servers.iter().map(NbdServer::waker);
        let sources = cells.into_iter().zip(wakers);
        let meter = Meter {
            name: plan.path.name,
            drives: meters,
            endpoints,
            clock,
            started: clock.now(),
            nbd: servers.first().map(NbdServer::stats_reader),
            ftl_at_start: ftl_at_start.as_ref().map(|view| view.stats),
            shards_at_start: ftl_at_start.map(|view| view.shards).unwrap_or_default(),
            block_layer,
            is_shared,
        };
        let observer = Observer {
            meter,
            servers: sources.map(|(cell, waker)| SnapshotSource { cell, waker }).collect(),
            drives: own.iter().map(|drive| drives[*drive].snapshots.clone()).collect(),
        };
        ServedUnit {
            served,
            observer: Arc::new(observer),
            previous: None,
            drives: own,
            over,
            cores,
            servers: Vec::new(),
            group,
            host: Some(host),
            completion,
        }
    }
}

/// The end of a unit's servers.
pub(super) struct UnitEnd {
    /// The first error of a server.
    pub(super) result: io::Result<()>,
    /// The device of each server.
    pub(super) devices: Vec<CoreQueues>,
    /// Whether a thread has failed.
    pub(super) is_lost: bool,
}

impl UnitEnd {
    /// Takes the last reading, and writes the checkpoints of targets. Returns no reading if a thread
    /// has failed.
    pub(super) fn close(
        self,
        unit: &ServedUnit,
        live: &mut [Option<DriveThreadState>],
    ) -> (Option<LiveStats>, io::Result<()>) {
        let UnitEnd { result, devices, is_lost } = self;
        let mut device = CoreQueues::join(devices);
        let beneath: Option<Vec<&DriveThreadState>> =
            unit.drives.iter().map(|drive| live[*drive].as_ref()).collect();
        let Some(beneath) = beneath.filter(|_| !is_lost) else { return (None, result) };
        let view = device.as_mut().and_then(FtlSnapshot::read);
        let snapshots = beneath.iter().map(|live| DriveSnapshot::new(&live.drive)).collect();
        let reading = unit.observer.meter.live_stats(snapshots, view);
        let now = beneath.first().map(|live| live.now());
        if let (Some(device), Some(now), Ok(())) = (&mut device, now, &result)
            && beneath.iter().any(|live| live.drive.stores_data())
        {
            let own = live.iter_mut().enumerate().filter(|(i, _)| unit.drives.contains(i));
            let mut own: Vec<_> =
                own.filter_map(|(_, live)| live.as_mut().map(|live| &mut live.drive)).collect();
            target_layers::checkpoint(device, now, &mut own);
        }
        // The host's side is dropped here, before the drives: it may refer to their memory.
        (Some(reading), result)
    }
}
