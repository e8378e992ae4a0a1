//! [`DriveService`]: serves one drive, from the start of its threads to the synced image.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::{io, thread};

use block::{BlockDevice, BlockLayer};
use controller::Controller;
use event::{IdlePolicy, RealClock, RealRunner, StopHandle, Waker};
use ftl::FtlStats;
use media::MediaConfig;
use nbd::{Endpoint, NbdConfig, NbdServer, NbdStatsReader};
use scenario::{DriveSpec, HostTarget};
use share_server::{OwnerCalls, StatsSource};
use stack::{
    BlockLayerCounts, DriveSnapshot, DriveThreadState, ShardCounts, SnapshotCell, Stack,
    target_layers,
};
use time::{Component, Nanos};

use super::observed_device::{FtlSnapshot, ObservedDevice};
use super::{ActivityCounts, LiveStats, ServeError, host_disk};

/// Distribution of a drive's work over threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threads {
    /// Server and drive share a thread.
    One,
    /// Server and drive have a thread each.
    Two,
}

impl Threads {
    /// Returns the requested number of threads, or as many as there are cores for, beside one for
    /// the clients.
    pub(super) fn choose(asked: Option<u8>, drives: usize) -> Threads {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        match asked {
            Some(1) => Threads::One,
            Some(_) => Threads::Two,
            None if cores > 2 * drives => Threads::Two,
            None => Threads::One,
        }
    }
}

impl DriveThread {
    fn start(
        name: Builder,
        runner: RealRunner,
        mut live: DriveThreadState,
        bell: ExitNotifier,
    ) -> Result<DriveThread, ServeError> {
        let stopper = runner.stop_handle();
        let handle = name.spawn(move || {
            let _bell = bell;
            let result = runner.run(&mut live);
            (result, live)
        });
        Ok(DriveThread { stopper, handle: handle.map_err(ServeError::Threads)? })
    }
}

/// Options of serving a drive over NBD.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceOptions {
    pub(super) threads: Threads,
    /// Whether clients can have queues of their own in addition to NBD.
    pub(super) is_shared: bool,
    /// Whether other machines may connect over NBD.
    pub(super) allow_remote: bool,
}

/// Result of the server's thread.
struct ServerThreadResult {
    result: io::Result<()>,
    device: ObservedDevice,
    /// The drive, if this thread polled it.
    drive: Option<DriveThreadState>,
}

/// The drive's own thread.
struct DriveThread {
    stopper: StopHandle,
    handle: JoinHandle<(io::Result<()>, DriveThreadState)>,
}

/// Parts of a reading that do not belong to the threads.
struct Meter {
    plan: DriveSpec,
    endpoints: Vec<Endpoint>,
    clock: RealClock,
    started: Nanos,
    /// `None` for a drive without NBD.
    nbd: Option<NbdStatsReader>,
    /// FTL counters at the start, to exclude preconditioning.
    ftl_at_start: Option<FtlStats>,
    shards_at_start: Vec<ShardCounts>,
    /// Queue model and block layer; any thread may read its counters.
    block_layer: Option<(&'static str, BlockLayer)>,
    /// Whether clients can have queues of their own.
    is_shared: bool,
}

/// Reads the statistics of a served drive from any thread.
struct Observer {
    meter: Meter,
    server_waker: Waker,
    drive_waker: Waker,
    drive_cell: Arc<SnapshotCell<DriveSnapshot>>,
    ftl_cell: Arc<SnapshotCell<Option<FtlSnapshot>>>,
}

impl Observer {
    /// Returns a reading that is at most a fifth of a second old; `None` if the drive has never
    /// answered.
    fn read(&self) -> Option<LiveStats> {
        let drive = self.drive_cell.request(&self.drive_waker)?;
        let view = match &self.meter.nbd {
            Some(_) => self.ftl_cell.request(&self.server_waker).flatten(),
            None => None,
        };
        Some(self.meter.live_stats(drive, view))
    }
}

/// A served drive.
pub(super) struct DriveService {
    bytes: u64,
    observer: Arc<Observer>,
    stop: Arc<AtomicBool>,
    owner_calls: Arc<OwnerCalls>,
    /// The previous reading.
    previous: Option<LiveStats>,
    /// `None` for a drive without NBD.
    server: Option<JoinHandle<ServerThreadResult>>,
    drive: Option<DriveThread>,
}

/// Wakes the waker when a thread ends, in any way.
struct ExitNotifier(Waker);

impl Drop for ExitNotifier {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// Stands in for a drive that has a thread of its own.
struct NoLocalDrive;

impl Component for NoLocalDrive {
    #[inline]
    fn poll(&mut self, _: Nanos) -> bool {
        false
    }
    #[inline]
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}

impl DriveService {
    /// Listens and starts the threads. `ended` is woken when one of them ends.
    ///
    /// # Errors
    /// [`ServeError`]; all listeners are closed then.
    pub(super) fn start(
        plan: &DriveSpec,
        mut stack: Stack,
        endpoints: &[Endpoint],
        options: ServiceOptions,
        clock: RealClock,
        ended: Waker,
    ) -> Result<DriveService, ServeError> {
        let ftl_before = stack.ftl_stats();
        let shards_before = target_layers::shard_counts(&mut stack.device);
        let Stack { drive, device, port, .. } = stack;
        let (drive_pane, ftl_pane) = (SnapshotCell::new(), SnapshotCell::new());
        let bytes = device.limits().bytes();
        let layer = device.block_layer().map(|layer| (layer.kind(), layer.counters().clone()));
        let config = NbdConfig {
            name: plan.config.name.clone(),
            description: describe(plan),
            allow_remote: options.allow_remote,
            ..NbdConfig::default()
        };
        let device = ObservedDevice::new(device, ftl_pane.clone());
        let mut server = NbdServer::new(device, endpoints, config)
            .map_err(|source| ServeError::Nbd { drive: plan.config.name.clone(), source })?;
        let mut live = DriveThreadState::new(drive, clock, drive_pane.clone());
        if options.is_shared {
            live.drive.record_command_times();
        }
        let errands = live.owner_calls();
        let stop = Arc::new(AtomicBool::new(false));
        let endpoints = server.endpoints().to_vec();
        let (server_waker, nbd) = (server.waker(), server.stats_reader());
        let bell = ExitNotifier(ended.clone());
        let told = stop.clone();
        let run = move |with: &mut dyn Component| {
            let result = server.run(clock, IdlePolicy::default(), with, &told);
            (result, server)
        };
        let name = |what: &str| Builder::new().name(format!("{what} {}", plan.config.name));
        let (handle, drive, drive_waker);
        match options.threads {
            Threads::One => {
                drive_waker = server_waker.clone();
                drive = None;
                handle = name("nbd").spawn(move || {
                    let _bell = bell;
                    let (result, server) = run(&mut live);
                    ServerThreadResult { result, device: server.into_device(), drive: Some(live) }
                });
            }
            Threads::Two => {
                let runner =
                    RealRunner::new(clock, IdlePolicy::default()).map_err(ServeError::Threads)?;
                port.set_drive_waker(runner.waker()).map_err(ServeError::Threads)?;
                drive_waker = runner.waker();
                drive = Some(DriveThread::start(name("drive"), runner, live, ExitNotifier(ended))?);
                handle = name("nbd").spawn(move || {
                    let _bell = bell;
                    let (result, server) = run(&mut NoLocalDrive);
                    ServerThreadResult { result, device: server.into_device(), drive: None }
                });
            }
        }
        let (plan, started) = (plan.clone(), clock.now());
        let (nbd, shared) = (Some(nbd), options.is_shared);
        let meter = Meter {
            plan,
            endpoints,
            clock,
            started,
            nbd,
            ftl_at_start: ftl_before,
            shards_at_start: shards_before,
            block_layer: layer,
            is_shared: shared,
        };
        let observer = Observer {
            meter,
            server_waker,
            drive_waker,
            drive_cell: drive_pane,
            ftl_cell: ftl_pane,
        };
        Ok(DriveService {
            bytes,
            observer: Arc::new(observer),
            stop,
            owner_calls: errands,
            previous: None,
            server: Some(handle.map_err(ServeError::Threads)?),
            drive,
        })
    }

    /// Starts the thread of a drive that has no host in this process. `ended` is woken when the
    /// thread ends.
    ///
    /// # Errors
    /// [`ServeError`].
    pub(super) fn start_without_host(
        plan: &DriveSpec,
        drive: Controller,
        clock: RealClock,
        ended: Waker,
    ) -> Result<DriveService, ServeError> {
        let stats = drive.stats();
        let (drive_pane, ftl_pane) = (SnapshotCell::new(), SnapshotCell::new());
        let sector_bytes = match &plan.config.media {
            MediaConfig::Nand(nand) => nand.geometry.sector_bytes,
            MediaConfig::Pcm(pcm) => pcm.sector_bytes,
            MediaConfig::Null { sector_bytes, .. } => *sector_bytes,
        };
        let bytes = drive.sectors() * u64::from(sector_bytes);
        let mut live = DriveThreadState::new(drive, clock, drive_pane.clone());
        live.drive.record_command_times();
        let errands = live.owner_calls();
        let runner = RealRunner::new(clock, IdlePolicy::default()).map_err(ServeError::Threads)?;
        let waker = runner.waker();
        let name = Builder::new().name(format!("drive {}", plan.config.name));
        let drive = Some(DriveThread::start(name, runner, live, ExitNotifier(ended))?);
        let meter = Meter {
            plan: plan.clone(),
            endpoints: Vec::new(),
            clock,
            started: clock.now(),
            nbd: None,
            ftl_at_start: stats.ftl,
            shards_at_start: Vec::new(),
            block_layer: None,
            is_shared: true,
        };
        let (server_waker, drive_waker) = (waker.clone(), waker);
        let observer = Observer {
            meter,
            server_waker,
            drive_waker,
            drive_cell: drive_pane,
            ftl_cell: ftl_pane,
        };
        Ok(DriveService {
            bytes,
            observer: Arc::new(observer),
            stop: Arc::new(AtomicBool::new(false)),
            owner_calls: errands,
            previous: None,
            server: None,
            drive,
        })
    }

    /// Returns the calls to the drive's thread, and the waker for it.
    pub(super) fn owner_channel(&self) -> (Arc<OwnerCalls>, Waker) {
        (self.owner_calls.clone(), self.observer.drive_waker.clone())
    }

    /// Returns the size of the export in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the endpoints, with the ports that the system chose.
    pub(super) fn endpoints(&self) -> &[Endpoint] {
        &self.observer.meter.endpoints
    }

    /// Returns whether a thread has ended without a stop request.
    pub(super) fn has_ended(&self) -> bool {
        self.server.as_ref().is_some_and(JoinHandle::is_finished)
            || self.drive.as_ref().is_some_and(|d| d.handle.is_finished())
    }

    /// Returns the name of the drive.
    pub(super) fn name(&self) -> &str {
        &self.observer.meter.plan.config.name
    }

    /// Takes a reading and passes it on with the previous one. Returns a message if requests have
    /// failed since then because the host's disk is full.
    pub(super) fn read(
        &mut self,
        tell: impl FnOnce(&LiveStats, Option<&LiveStats>),
    ) -> Option<String> {
        let now = self.observer.read()?;
        tell(&now, self.previous.as_ref());
        let failed = now.interval(self.previous.as_ref()).requests.errors > 0;
        self.previous = Some(now);
        failed.then(|| host_disk::disk_full_message(&self.observer.meter.plan)).flatten()
    }

    /// Stops accepting requests from clients.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.observer.server_waker.wake();
    }

    /// Returns the source of statistics for administrators; each of them has intervals of its own.
    pub(super) fn stats(&self) -> StatsSource {
        let observer = self.observer.clone();
        StatsSource::new(move || {
            let (observer, mut last) = (observer.clone(), None);
            Box::new(move || {
                let now = observer.read()?;
                let interval = now.interval(last.as_ref());
                last = Some(now);
                Some(interval)
            })
        })
    }

    /// Completes and flushes in-flight requests and shuts the drive down.
    ///
    /// Returns the statistics, unless the threads have failed, and the result. After an error,
    /// acknowledged flushes may not be durable.
    pub(super) fn finish(self) -> (Option<LiveStats>, Result<(), ServeError>) {
        let DriveService { observer, server, drive, .. } = self;
        match ServiceResult::join(&observer.meter, server, drive) {
            Err(error) => (None, Err(error)),
            Ok(end) => {
                let (reading, finished) = end.shut_down(&observer.meter);
                (Some(reading), finished)
            }
        }
    }
}

/// Result of the threads of a service.
struct ServiceResult {
    /// Result of the server.
    result: io::Result<()>,
    device: Option<ObservedDevice>,
    live: DriveThreadState,
}

impl ServiceResult {
    /// Waits for the threads.
    fn join(
        meter: &Meter,
        server: Option<JoinHandle<ServerThreadResult>>,
        drive: Option<DriveThread>,
    ) -> Result<ServiceResult, ServeError> {
        let name = || meter.plan.config.name.clone();
        let panicked = |thread| ServeError::Panicked { drive: name(), thread };
        if let Some(thread) = &drive
            && thread.handle.is_finished()
        {
            // Without its drive the server would wait forever.
            return Err(panicked("the drive's thread"));
        }
        let server =
            server.map(|server| server.join().map_err(|_| panicked("the server's thread")));
        let (result, device, on_server) = match server.transpose()? {
            Some(ServerThreadResult { result, device, drive }) => (result, Some(device), drive),
            None => (Ok(()), None, None),
        };
        let on_own = match drive {
            Some(thread) => {
                thread.stopper.stop();
                let (ran, live) =
                    thread.handle.join().map_err(|_| panicked("the drive's thread"))?;
                ran.map_err(ServeError::Threads)?;
                Some(live)
            }
            None => None,
        };
        let live = on_server.or(on_own).ok_or_else(|| panicked("every thread"))?;
        Ok(ServiceResult { result, device, live })
    }

    fn shut_down(self, meter: &Meter) -> (LiveStats, Result<(), ServeError>) {
        let ServiceResult { result, mut device, mut live } = self;
        let view = device.as_mut().and_then(ObservedDevice::snapshot);
        let reading = meter.live_stats(DriveSnapshot::new(&live.drive), view);
        if let Some(device) = &mut device
            && result.is_ok()
            && live.drive.stores_data()
        {
            device.checkpoint(&mut live);
        }
        // Drop the host's side first: it may still refer to the drive's memory.
        drop(device);
        let down = live.drive.shut_down();
        let name = || meter.plan.config.name.clone();
        let finished = match (result, down) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(source), _) => {
                let full = host_disk::disk_full_message(&meter.plan);
                let why = full.map(|full| format!("; {full}")).unwrap_or_default();
                Err(ServeError::Server { drive: name(), source, why })
            }
            (Ok(()), Err(source)) => Err(ServeError::ShutDown { drive: name(), source }),
        };
        (reading, finished)
    }
}

impl Meter {
    fn live_stats(&self, snapshot: DriveSnapshot, view: Option<FtlSnapshot>) -> LiveStats {
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
            drive,
            ftl,
            free_lines: view.map(|v| v.free_lines),
            block_layer: layer.map(|(kind, layer)| BlockLayerCounts::from_layer(layer, kind, now)),
            shards,
            activity: live,
        }
    }
}

/// Returns the description of the export for `nbdinfo`.
fn describe(plan: &DriveSpec) -> String {
    let by = match &plan.target {
        HostTarget::Pblk(_) => "its flash managed by pblk on the host",
        HostTarget::Rrpc(_) => "its flash managed by rrpc on the host",
        HostTarget::None => "managed by itself",
        HostTarget::Named(named) => &format!("target {} of its partition table", named.name),
    };
    match &plan.preset {
        Some(preset) => format!("an emulated drive from the preset {preset}, {by}"),
        None => format!("an emulated drive, {by}"),
    }
}
