//! [`Service`]: one drive being served, from its threads' start to the synced image.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::{io, thread};

use ::serve::nbd::{Endpoint, NbdConfig, NbdServer, NbdStatsReader};
use ::serve::share::{Errands, StatsSource};
use block::{BlockLayer, Device};
use clock::{Component, Idle, Nanos, RealClock, RealRunner, Stopper, Waker};
use drive::Drive;
use ftl::FtlStats;
use media::MediaConfig;

use super::pane::{DriveSnapshot, FtlView, LiveDrive, Pane, SeenDevice};
use super::{LiveCounts, Reading, ServeError, host_disk};
use crate::scenario::{DrivePlan, Target};
use crate::sim::LayerCounts;
use crate::stack::{ShardCounts, Stack};

/// The interrupt vector of the host's queue pair; vector 0 is the admin queue's.
pub(super) const VECTOR: u16 = 1;

/// How a drive's work is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threads {
    /// Server and drive take turns.
    One,
    /// Each has its own.
    Two,
}

impl Threads {
    /// What was asked for, or what there are cores for beside one for the clients.
    pub(super) fn of(asked: Option<u8>, drives: usize) -> Threads {
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
        mut live: LiveDrive,
        bell: Bell,
    ) -> Result<DriveThread, ServeError> {
        let stopper = runner.stopper();
        let handle = name.spawn(move || {
            let _bell = bell;
            let result = runner.run(&mut live);
            (result, live)
        });
        Ok(DriveThread { stopper, handle: handle.map_err(ServeError::Threads)? })
    }
}

/// How a drive is served over NBD.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceOptions {
    pub(super) threads: Threads,
    /// Whether clients get queues of their own beside NBD's.
    pub(super) shared: bool,
    /// Whether NBD may be reached from other machines.
    pub(super) allow_remote: bool,
}

/// What the server's thread gives back.
struct ServerEnd {
    result: io::Result<()>,
    device: SeenDevice,
    /// The drive, if it was polled on this thread.
    drive: Option<LiveDrive>,
}

/// The drive's own thread.
struct DriveThread {
    stopper: Stopper,
    handle: JoinHandle<(io::Result<()>, LiveDrive)>,
}

/// Parts of a reading that are not the threads'.
struct Meter {
    plan: DrivePlan,
    endpoints: Vec<Endpoint>,
    clock: RealClock,
    started: Nanos,
    /// None of a drive that is only shared.
    nbd: Option<NbdStatsReader>,
    /// Of the translation layer at the start: preconditioning is not what clients did.
    ftl_before: Option<FtlStats>,
    shards_before: Vec<ShardCounts>,
    /// The block layer and what it is called, for its counters, which anybody may read.
    layer: Option<(&'static str, BlockLayer)>,
    /// Whether clients get queues of their own.
    shared: bool,
}

/// Reads what a drive being served has done, from any thread.
struct Observer {
    meter: Meter,
    server_waker: Waker,
    drive_waker: Waker,
    drive_pane: Arc<Pane<DriveSnapshot>>,
    ftl_pane: Arc<Pane<Option<FtlView>>>,
}

impl Observer {
    /// A reading, at most a fifth of a second old; `None` if the drive has never answered.
    fn read(&self) -> Option<Reading> {
        let drive = self.drive_pane.look(&self.drive_waker)?;
        let view = match &self.meter.nbd {
            Some(_) => self.ftl_pane.look(&self.server_waker).flatten(),
            None => None,
        };
        Some(self.meter.reading(drive, view))
    }
}

/// One drive being served.
pub(super) struct Service {
    bytes: u64,
    observer: Arc<Observer>,
    stop: Arc<AtomicBool>,
    errands: Arc<Errands>,
    /// The reading before.
    last: Option<Reading>,
    /// None of a drive that is only shared.
    server: Option<JoinHandle<ServerEnd>>,
    drive: Option<DriveThread>,
}

/// Rings when a thread ends, however it ends.
struct Bell(Waker);

impl Drop for Bell {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// In place of a drive that has a thread of its own.
struct Elsewhere;

impl Component for Elsewhere {
    #[inline]
    fn poll(&mut self, _: Nanos) -> bool {
        false
    }
    #[inline]
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}

impl Service {
    /// Listens, and starts the threads. `ended` is woken when one of them ends.
    ///
    /// # Errors
    /// [`ServeError`]; nothing is left listening then.
    pub(super) fn start(
        plan: &DrivePlan,
        stack: Stack,
        endpoints: &[Endpoint],
        options: ServiceOptions,
        clock: RealClock,
        ended: Waker,
    ) -> Result<Service, ServeError> {
        let ftl_before = stack.ftl_stats();
        let shards_before = stack.device.shard_counts();
        let Stack { drive, device, port, .. } = stack;
        let (drive_pane, ftl_pane) = (Pane::new(), Pane::new());
        let bytes = device.limits().bytes();
        let layer = device.cores().map(|cores| (cores.kind(), cores.layer().clone()));
        let config = NbdConfig {
            name: plan.config.name.clone(),
            description: describe(plan),
            allow_remote: options.allow_remote,
            ..NbdConfig::default()
        };
        let device = SeenDevice::new(device, ftl_pane.clone());
        let mut server = NbdServer::new(device, endpoints, config)
            .map_err(|source| ServeError::Nbd { drive: plan.config.name.clone(), source })?;
        let mut live = LiveDrive::new(drive, clock, drive_pane.clone());
        if options.shared {
            live.drive.time_commands();
        }
        let errands = live.errands();
        let stop = Arc::new(AtomicBool::new(false));
        let endpoints = server.endpoints().to_vec();
        let (server_waker, nbd) = (server.waker(), server.stats_reader());
        let bell = Bell(ended.clone());
        let told = stop.clone();
        let run = move |with: &mut dyn Component| {
            let result = server.run(clock, Idle::default(), with, &told);
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
                    ServerEnd { result, device: server.into_device(), drive: Some(live) }
                });
            }
            Threads::Two => {
                let runner =
                    RealRunner::new(clock, Idle::default()).map_err(ServeError::Threads)?;
                port.set_drive_waker(runner.waker()).map_err(ServeError::Threads)?;
                drive_waker = runner.waker();
                drive = Some(DriveThread::start(name("drive"), runner, live, Bell(ended))?);
                handle = name("nbd").spawn(move || {
                    let _bell = bell;
                    let (result, server) = run(&mut Elsewhere);
                    ServerEnd { result, device: server.into_device(), drive: None }
                });
            }
        }
        let (plan, started) = (plan.clone(), clock.now());
        let (nbd, shared) = (Some(nbd), options.shared);
        let meter = Meter {
            plan,
            endpoints,
            clock,
            started,
            nbd,
            ftl_before,
            shards_before,
            layer,
            shared,
        };
        let observer = Observer { meter, server_waker, drive_waker, drive_pane, ftl_pane };
        Ok(Service {
            bytes,
            observer: Arc::new(observer),
            stop,
            errands,
            last: None,
            server: Some(handle.map_err(ServeError::Threads)?),
            drive,
        })
    }

    /// Starts the thread of a drive that is only shared: nobody in this process uses it. `ended` is
    /// woken when the thread ends.
    ///
    /// # Errors
    /// [`ServeError`].
    pub(super) fn start_bare(
        plan: &DrivePlan,
        drive: Drive,
        clock: RealClock,
        ended: Waker,
    ) -> Result<Service, ServeError> {
        let stats = drive.stats();
        let (drive_pane, ftl_pane) = (Pane::new(), Pane::new());
        let sector_bytes = match &plan.config.media {
            MediaConfig::Nand(nand) => nand.geometry.sector_bytes,
            MediaConfig::Pcm(pcm) => pcm.sector_bytes,
            MediaConfig::Null { sector_bytes, .. } => *sector_bytes,
        };
        let bytes = drive.sectors() * u64::from(sector_bytes);
        let mut live = LiveDrive::new(drive, clock, drive_pane.clone());
        live.drive.time_commands();
        let errands = live.errands();
        let runner = RealRunner::new(clock, Idle::default()).map_err(ServeError::Threads)?;
        let waker = runner.waker();
        let name = Builder::new().name(format!("drive {}", plan.config.name));
        let drive = Some(DriveThread::start(name, runner, live, Bell(ended))?);
        let meter = Meter {
            plan: plan.clone(),
            endpoints: Vec::new(),
            clock,
            started: clock.now(),
            nbd: None,
            ftl_before: stats.ftl,
            shards_before: Vec::new(),
            layer: None,
            shared: true,
        };
        let (server_waker, drive_waker) = (waker.clone(), waker);
        let observer = Observer { meter, server_waker, drive_waker, drive_pane, ftl_pane };
        Ok(Service {
            bytes,
            observer: Arc::new(observer),
            stop: Arc::new(AtomicBool::new(false)),
            errands,
            last: None,
            server: None,
            drive,
        })
    }

    /// How others reach the drive: what its thread is asked, and how it is woken.
    pub(super) fn door(&self) -> (Arc<Errands>, Waker) {
        (self.errands.clone(), self.observer.drive_waker.clone())
    }

    /// Bytes of the export.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it listens, with the ports that the system chose.
    pub(super) fn endpoints(&self) -> &[Endpoint] {
        &self.observer.meter.endpoints
    }

    /// Whether a thread has ended without being told to.
    pub(super) fn has_ended(&self) -> bool {
        self.server.as_ref().is_some_and(JoinHandle::is_finished)
            || self.drive.as_ref().is_some_and(|d| d.handle.is_finished())
    }

    /// What the drive is called.
    pub(super) fn name(&self) -> &str {
        &self.observer.meter.plan.config.name
    }

    /// Looks at what has been done, and passes it on with the reading before, if there is one. Returns why
    /// requests have failed since then, if that is the host's disk.
    pub(super) fn read(&mut self, tell: impl FnOnce(&Reading, Option<&Reading>)) -> Option<String> {
        let now = self.observer.read()?;
        tell(&now, self.last.as_ref());
        let failed = now.interval(self.last.as_ref()).requests.errors > 0;
        self.last = Some(now);
        failed.then(|| host_disk::full(&self.observer.meter.plan)).flatten()
    }

    /// Takes nothing new from clients.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.observer.server_waker.wake();
    }

    /// What administrators are told of the drive: each of them intervals of its own.
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

    /// Waits until what was under way is answered and flushed, and shuts the drive down. Returns what it
    /// has done, unless its threads have failed, and how it ended: after an error, what clients were
    /// promised may not be durable.
    pub(super) fn finish(self) -> (Option<Reading>, Result<(), ServeError>) {
        let Service { observer, server, drive, .. } = self;
        match End::wait(&observer.meter, server, drive) {
            Err(error) => (None, Err(error)),
            Ok(end) => {
                let (reading, finished) = end.shut_down(&observer.meter);
                (Some(reading), finished)
            }
        }
    }
}

/// What the threads of a service have given back.
struct End {
    /// How the server ended.
    result: io::Result<()>,
    device: Option<SeenDevice>,
    live: LiveDrive,
}

impl End {
    /// Waits for the threads.
    fn wait(
        meter: &Meter,
        server: Option<JoinHandle<ServerEnd>>,
        drive: Option<DriveThread>,
    ) -> Result<End, ServeError> {
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
            Some(ServerEnd { result, device, drive }) => (result, Some(device), drive),
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
        Ok(End { result, device, live })
    }

    fn shut_down(self, meter: &Meter) -> (Reading, Result<(), ServeError>) {
        let End { result, mut device, mut live } = self;
        let view = device.as_ref().and_then(SeenDevice::view);
        let reading = meter.reading(DriveSnapshot::of(&live.drive), view);
        if let Some(device) = &mut device
            && result.is_ok()
            && live.drive.keeps_data()
        {
            device.checkpoint(&mut live);
        }
        // The host's side goes first: it may still point into the drive's memory.
        drop(device);
        let down = live.drive.shut_down();
        let name = || meter.plan.config.name.clone();
        let finished = match (result, down) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(source), _) => {
                let full = host_disk::full(&meter.plan);
                let why = full.map(|full| format!("; {full}")).unwrap_or_default();
                Err(ServeError::Server { drive: name(), source, why })
            }
            (Ok(()), Err(source)) => Err(ServeError::ShutDown { drive: name(), source }),
        };
        (reading, finished)
    }
}

impl Meter {
    fn reading(&self, snapshot: DriveSnapshot, view: Option<FtlView>) -> Reading {
        let DriveSnapshot { stats: mut drive, late, times, outstanding, hosts } = snapshot;
        let of_drive = || {
            let (stats, free_lines) = drive.ftl.zip(drive.free_lines)?;
            Some(FtlView { stats, free_lines, shards: Vec::new() })
        };
        let view = view.or_else(of_drive);
        let stats = view.as_ref().map(|v| v.stats);
        let ftl = match (stats, self.ftl_before) {
            (Some(stats), Some(before)) => Some(stats.since(&before)),
            (stats, _) => stats,
        };
        let shards = view.as_ref().map_or(&[][..], |v| &v.shards).iter();
        let shards = shards.zip(&self.shards_before).map(|(now, then)| now.since(then)).collect();
        // One place for each number: the layer's are beside the drive's, whichever side it is on.
        (drive.ftl, drive.free_lines) = (None, None);
        let now = self.clock.now();
        let layer = self.layer.as_ref();
        let nbd = self.nbd.as_ref();
        // The server's own host is none of the clients'.
        let clients = hosts.saturating_sub(usize::from(nbd.is_some()));
        let live = LiveCounts {
            nbd: nbd.map(|nbd| nbd.activity(now)).unwrap_or_default(),
            late,
            times,
            outstanding: outstanding as u64,
            socket_clients: self.shared.then(|| u32::try_from(clients).unwrap_or(u32::MAX)),
        };
        Reading {
            plan: self.plan.clone(),
            endpoints: self.endpoints.clone(),
            elapsed: now.since(self.started),
            nbd: nbd.map(NbdStatsReader::snapshot).unwrap_or_default(),
            drive,
            ftl,
            free_lines: view.map(|v| v.free_lines),
            layer: layer.map(|(kind, layer)| LayerCounts::of(layer, kind, now)),
            shards,
            live,
        }
    }
}

/// What the export is, for `nbdinfo`.
fn describe(plan: &DrivePlan) -> String {
    let by = match &plan.target {
        Target::Pblk(_) => "its flash managed by pblk on the host",
        Target::Rrpc(_) => "its flash managed by rrpc on the host",
        Target::None => "managed by itself",
        Target::Named(named) => &format!("target {} of its partition table", named.name),
    };
    match &plan.preset {
        Some(preset) => format!("an emulated drive from the preset {preset}, {by}"),
        None => format!("an emulated drive, {by}"),
    }
}
