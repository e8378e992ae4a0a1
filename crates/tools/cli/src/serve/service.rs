//! [`DriveService`]: serves one drive, from the start of its threads to the synced image.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::{io, thread};

use block::BlockDevice;
use block::notify::{CompletionMethod, CompletionPolicy};
use controller::Controller;
use event::{IdlePolicy, RealClock, RealRunner, StopHandle, Waker};
use nbd::{Endpoint, NbdConfig, NbdServer};
use scenario::{DriveKind, DriveSpec, HostTarget};
use share_server::{OwnerCalls, StatsSource};
use stack::{
    CoreQueues, DevicePort, DriveSnapshot, DriveThreadState, EmulatedDevice, SimulatedDevice,
    SnapshotCell, SnapshotSource, Stack, target_layers,
};
use time::{Component, Nanos};

use super::observed_device::{FtlSnapshot, ObservedDevice};
use super::observer::{Meter, Observer};
use super::{LiveStats, ServeError, host_disk};

/// Distribution of a drive's work over threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threads {
    /// One server, with all queues of the device, and the drive share a thread. The server submits
    /// on the first core's queue and polls all.
    One,
    /// The drive has a thread, and each core of the device has one with a server.
    Several,
}

impl Threads {
    /// Returns the requested distribution. The default is one thread on a machine without cores for
    /// two per drive beside one for the clients, unless the device has several cores.
    pub(super) fn choose(asked: Option<u8>, drives: usize, cores: usize) -> Threads {
        let machine = thread::available_parallelism().map_or(1, usize::from);
        match asked {
            Some(1) => Threads::One,
            Some(_) => Threads::Several,
            None if cores > 1 || machine > 2 * drives => Threads::Several,
            None => Threads::One,
        }
    }
}

/// Returns the policy of the threads of `drives` drives with `cores` servers each. On a machine with
/// fewer cores than threads, a thread that spins keeps the one that it waits for from running.
fn idle_policy(threads: Threads, drives: usize, cores: usize) -> IdlePolicy {
    let machine = thread::available_parallelism().map_or(1, usize::from);
    match threads {
        Threads::Several if cores > 1 && drives * (cores + 1) > machine => {
            IdlePolicy { spin_time: Nanos::ZERO, ..IdlePolicy::default() }
        }
        _ => IdlePolicy::default(),
    }
}

/// Returns the policy of a server's thread that notices completions by `completion`. The default is
/// to poll while there is work, as `hybrid`.
fn server_idle_policy(completion: Option<CompletionPolicy>, default: IdlePolicy) -> IdlePolicy {
    let Some(CompletionPolicy { method, poll_interval }) = completion else { return default };
    match (method, poll_interval) {
        (CompletionMethod::Poll, None) => IdlePolicy { spin_time: Nanos::MAX, ..default },
        (CompletionMethod::Poll, Some(interval)) => {
            IdlePolicy { spin_time: Nanos::ZERO, poll_interval: interval, ..default }
        }
        (CompletionMethod::Hybrid, _) => default,
        (CompletionMethod::Interrupt | CompletionMethod::Lazy | CompletionMethod::Coop, _) => {
            IdlePolicy { spin_time: Nanos::ZERO, ..default }
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
    /// Number of drives that are served.
    pub(super) drives: usize,
    /// Whether clients can have queues of their own in addition to NBD.
    pub(super) is_shared: bool,
    /// Whether other machines may connect over NBD.
    pub(super) allow_remote: bool,
    /// How completions are noticed; `None` for the default.
    pub(super) completion: Option<CompletionPolicy>,
}

/// Result of a server's thread.
struct ServerThreadResult {
    result: io::Result<()>,
    device: CoreQueues,
    /// The drive, if this thread polled it.
    drive: Option<DriveThreadState>,
}

/// The drive's own thread.
struct DriveThread {
    stopper: StopHandle,
    handle: JoinHandle<(io::Result<()>, DriveThreadState)>,
}

/// A drive to serve, with the device of its host in this process.
pub(super) struct ServedDrive {
    pub(super) drive: EmulatedDevice,
    pub(super) device: CoreQueues,
    pub(super) port: DevicePort,
}

impl From<Stack> for ServedDrive {
    fn from(stack: Stack) -> ServedDrive {
        let Stack { drive, device, port, .. } = stack;
        ServedDrive { drive: drive.into(), device, port }
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
    /// The server of each core; empty for a drive without NBD.
    servers: Vec<JoinHandle<ServerThreadResult>>,
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
        served: ServedDrive,
        endpoints: &[Endpoint],
        options: ServiceOptions,
        clock: RealClock,
        ended: Waker,
    ) -> Result<DriveService, ServeError> {
        let ServedDrive { drive, mut device, port } = served;
        device.start_handler(clock).map_err(ServeError::Threads)?;
        let in_host = target_layers::ftl_snapshot(&mut device).map(|(stats, _)| stats);
        let ftl_at_start = in_host.or_else(|| drive.ftl().map(|ftl| *ftl.stats()));
        let shards_at_start = target_layers::shard_counts(&mut device);
        let bytes = device.limits().bytes();
        let block_layer =
            device.block_layer().map(|layer| (layer.kind(), layer.counters().clone()));
        let config = NbdConfig {
            name: plan.config.name.clone(),
            description: describe(plan),
            allow_remote: options.allow_remote,
            ..NbdConfig::default()
        };
        let idle = idle_policy(options.threads, options.drives, device.cores());
        let devices = match options.threads {
            Threads::One => vec![device],
            Threads::Several => device.split(),
        };
        let cells: Vec<_> = devices.iter().map(|_| SnapshotCell::new()).collect();
        let observed = devices.into_iter().zip(&cells);
        let observed = observed
            .map(|(device, cell)| ObservedDevice::new(device, cell.clone(), options.completion));
        let servers = NbdServer::group(observed.collect(), endpoints, config)
            .map_err(|source| ServeError::Nbd { drive: plan.config.name.clone(), source })?;
        // A group has at least one server.
        let endpoints = servers.first().map_or(&[][..], NbdServer::endpoints).to_vec();
        let nbd = servers.first().map(NbdServer::stats_reader);
        let wakers: Vec<Waker> = servers.iter().map(NbdServer::waker).collect();
        let drive_cell = SnapshotCell::new();
        let mut live = DriveThreadState::new(drive, clock, drive_cell.clone());
        if let (true, Some(drive)) = (options.is_shared, live.drive.nvme_mut()) {
            drive.record_command_times();
        }
        let owner_calls = live.owner_calls();
        let stop = Arc::new(AtomicBool::new(false));
        let (drive_waker, drive, local) = match options.threads {
            Threads::One => (wakers[0].clone(), None, Some(live)),
            Threads::Several => {
                let runner = RealRunner::new(clock, idle).map_err(ServeError::Threads)?;
                port.set_drive_waker(runner.waker()).map_err(ServeError::Threads)?;
                let waker = runner.waker();
                let name = Builder::new().name(format!("drive {}", plan.config.name));
                let thread = DriveThread::start(name, runner, live, ExitNotifier(ended.clone()))?;
                (waker, Some(thread), None)
            }
        };
        let sources = cells.into_iter().zip(wakers);
        let sources = sources.map(|(cell, waker)| SnapshotSource { cell, waker }).collect();
        let observer = Arc::new(Observer {
            meter: Meter {
                plan: plan.clone(),
                endpoints,
                clock,
                started: clock.now(),
                nbd,
                ftl_at_start,
                shards_at_start,
                block_layer,
                is_shared: options.is_shared,
            },
            servers: sources,
            drive_waker,
            drive_cell,
        });
        let mut service = DriveService {
            bytes,
            observer,
            stop,
            owner_calls,
            previous: None,
            servers: Vec::new(),
            drive,
        };
        let idle = server_idle_policy(options.completion, idle);
        service.start_servers(servers, local, idle, &ended)?;
        Ok(service)
    }

    /// Starts the threads of the servers. The first polls the drive, if that has no thread.
    ///
    /// # Errors
    /// [`ServeError::Threads`]; servers that were started stop.
    fn start_servers(
        &mut self,
        servers: Vec<NbdServer<ObservedDevice>>,
        mut drive: Option<DriveThreadState>,
        idle: IdlePolicy,
        ended: &Waker,
    ) -> Result<(), ServeError> {
        let clock = self.observer.meter.clock;
        for (core, mut server) in servers.into_iter().enumerate() {
            let (stop, mut drive) = (self.stop.clone(), drive.take());
            let bell = ExitNotifier(ended.clone());
            let run = move || {
                let _bell = bell;
                let result = {
                    let mut elsewhere = NoLocalDrive;
                    let with: &mut dyn Component = match &mut drive {
                        Some(drive) => drive,
                        None => &mut elsewhere,
                    };
                    server.run(clock, idle, with, &stop)
                };
                let device = server.into_device().into_device();
                ServerThreadResult { result, device, drive }
            };
            match Builder::new().name(format!("nbd{core} {}", self.name())).spawn(run) {
                Ok(handle) => self.servers.push(handle),
                Err(source) => {
                    self.stop();
                    return Err(ServeError::Threads(source));
                }
            }
        }
        Ok(())
    }

    /// Starts the thread of a drive that has no host in this process. `ended` is woken when the
    /// thread ends.
    ///
    /// # Errors
    /// [`ServeError`].
    pub(super) fn start_without_host(
        plan: &DriveSpec,
        mut drive: Controller,
        clock: RealClock,
        ended: Waker,
    ) -> Result<DriveService, ServeError> {
        let stats = drive.stats();
        let drive_cell = SnapshotCell::new();
        let bytes = drive.sectors() * u64::from(plan.sector_bytes());
        drive.record_command_times();
        let live = DriveThreadState::new(drive, clock, drive_cell.clone());
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
        let observer = Observer { meter, servers: Vec::new(), drive_waker: waker, drive_cell };
        Ok(DriveService {
            bytes,
            observer: Arc::new(observer),
            stop: Arc::new(AtomicBool::new(false)),
            owner_calls: errands,
            previous: None,
            servers: Vec::new(),
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
        self.servers.iter().any(JoinHandle::is_finished)
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
        self.observer.wake_servers();
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
        let DriveService { observer, servers, drive, .. } = self;
        match ServiceResult::join(&observer.meter, servers, drive) {
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
    /// The first error of a server.
    result: io::Result<()>,
    /// The device with the queues of all servers.
    device: Option<CoreQueues>,
    live: DriveThreadState,
}

impl ServiceResult {
    /// Waits for the threads.
    fn join(
        meter: &Meter,
        servers: Vec<JoinHandle<ServerThreadResult>>,
        drive: Option<DriveThread>,
    ) -> Result<ServiceResult, ServeError> {
        let name = || meter.plan.config.name.clone();
        let panicked = |thread| ServeError::Panicked { drive: name(), thread };
        if let Some(thread) = &drive
            && thread.handle.is_finished()
        {
            // Without its drive a server would wait forever.
            return Err(panicked("the drive's thread"));
        }
        let (mut result, mut devices, mut on_server) = (Ok(()), Vec::new(), None);
        // A server that panicked keeps no other from its end: wait for all.
        let servers: Vec<_> = servers.into_iter().map(JoinHandle::join).collect();
        for server in servers {
            let one = server.map_err(|_| panicked("the server's thread"))?;
            result = result.and(one.result);
            devices.push(one.device);
            on_server = on_server.or(one.drive);
        }
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
        Ok(ServiceResult { result, device: CoreQueues::join(devices), live })
    }

    fn shut_down(self, meter: &Meter) -> (LiveStats, Result<(), ServeError>) {
        let ServiceResult { result, mut device, mut live } = self;
        let view = device.as_mut().and_then(FtlSnapshot::read);
        let reading = meter.live_stats(DriveSnapshot::new(&live.drive), view);
        if let Some(device) = &mut device
            && result.is_ok()
            && live.drive.stores_data()
        {
            target_layers::checkpoint(device, live.now(), &mut live.drive);
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

/// Returns the description of the export for `nbdinfo`.
fn describe(plan: &DriveSpec) -> String {
    let by = match &plan.target {
        HostTarget::Pblk(_) => "its flash managed by pblk on the host",
        HostTarget::Rrpc(_) => "its flash managed by rrpc on the host",
        HostTarget::None => "managed by itself",
        HostTarget::Named(named) => &format!("target {} of its partition table", named.name),
    };
    match &plan.kind {
        DriveKind::Nvme => {}
        DriveKind::Ahci(_) => return "an emulated SATA drive at an AHCI controller".into(),
        DriveKind::File(file) => return format!("{} of this machine", file.path.display()),
        DriveKind::Kernel(kernel) => return format!("{} of this machine", kernel.path.display()),
        DriveKind::Pci(pci) => return format!("the controller {} of this machine", pci.address),
    }
    match &plan.preset {
        Some(preset) => format!("an emulated drive from the preset {preset}, {by}"),
        None => format!("an emulated drive, {by}"),
    }
}
