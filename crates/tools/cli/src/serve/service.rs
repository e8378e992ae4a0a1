//! [`Services`]: the served paths and drives, from the start of their threads to the synced images.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use controller::Controller;
use event::{RealClock, RealRunner, ThreadUse, Waker};
use nbd::{NbdConfig, NbdError, NbdExport, NbdServer};
use scenario::{DriveSpec, Scenario};
use share_server::{
    FaultInjector, FtlControl, NamespaceControl, OwnerChannel, RuleControl, StatsSource,
};
use stack::{
    DevicePort, DriveSnapshot, DriveThreadState, SimulatedDevice, SnapshotCell, SnapshotSource,
};

use super::drive_access::target_rules::named_rules;
use super::drive_access::{named_injectors, named_namespaces};
use super::ftl_control::named_ftls;
use super::observed_device::ObservedDevice;
use super::observer::MeterDrive;
use super::plan::describe;
use super::prepared::{Prepared, PreparedDrive};
use super::threads::{DriveThread, ExitNotifier, Layout, LocalDrives, server_idle_policy};
use super::unit::{PendingPath, Served, ServedUnit, ServerThreadResult, UnitEnd, UnitOptions};
use super::{LiveStats, ServeError, ServeEvent, host_disk};

/// Options of serving.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceOptions {
    /// Number of threads as requested; see [`super::ServeOptions::threads`].
    pub(super) threads: Option<u8>,
    /// Whether other machines may connect over NBD.
    pub(super) allow_remote: bool,
    /// Whether exports with an equal endpoint share a listener.
    pub(super) shares_listeners: bool,
}

/// A served drive, or an AHCI controller with its drives.
pub(super) struct ServedDrive {
    /// Index in the scenario; of the first drive of a controller.
    pub(super) index: usize,
    pub(super) plan: DriveSpec,
    pub(super) owner: OwnerChannel<Controller>,
    pub(super) snapshots: SnapshotSource<DriveSnapshot>,
    /// Its own thread; `None` if a server polls it.
    pub(super) thread: Option<DriveThread>,
    /// Number of its group.
    pub(super) group: usize,
}

impl ServedDrive {
    /// Returns whether its thread has ended.
    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.handle.is_finished())
    }
}

/// The served paths and drives.
pub(super) struct Services {
    drives: Vec<ServedDrive>,
    units: Vec<ServedUnit>,
    /// Access to the settings of each FTL, by the name of the drive or target.
    ftls: Vec<(String, FtlControl)>,
    /// Injectors of faults, by the name of the drive.
    injectors: Vec<(String, FaultInjector)>,
    /// Access to namespaces, by the name of the drive.
    namespaces: Vec<(String, NamespaceControl)>,
    /// Access to rules, those of a target with rules too, by the name of the drive.
    rules: Vec<(String, RuleControl)>,
    stop: Arc<AtomicBool>,
    /// The ports of the hosts, which keep devices of this machine open.
    _ports: Vec<DevicePort>,
}

/// The parts of the drives while the threads are prepared; one entry of each list per drive, except
/// the last two.
struct DriveParts {
    served: Vec<ServedDrive>,
    meters: Vec<MeterDrive>,
    bytes: Vec<u64>,
    shared: Vec<bool>,
    /// The drives with threads of their own.
    threads: Vec<(usize, RealRunner, DriveThreadState)>,
    /// The drives that the first server of each host polls.
    local: Vec<LocalDrives>,
}

impl DriveParts {
    fn new(servers: &[Vec<NbdServer<ObservedDevice>>]) -> DriveParts {
        DriveParts {
            served: Vec::new(),
            meters: Vec::new(),
            bytes: Vec::new(),
            shared: Vec::new(),
            threads: Vec::new(),
            local: servers.iter().map(|_| LocalDrives::default()).collect(),
        }
    }

    /// Adds a drive of a group, which the first server of the host `polling` polls, or else a thread
    /// of its own. `beneath` has the drives and ports of each host.
    fn add(
        &mut self,
        prepared: PreparedDrive,
        (layout, group, polling): (&Layout, usize, Option<usize>),
        beneath: &[(Vec<usize>, Vec<DevicePort>)],
        servers: &[Vec<NbdServer<ObservedDevice>>],
        clock: RealClock,
    ) -> Result<(), ServeError> {
        let PreparedDrive { specs, mut drive, is_shared } = prepared;
        let (index, plan) = specs[0].clone();
        if let (true, Some(drive)) = (is_shared, drive.nvme_mut()) {
            drive.record_command_times();
        }
        let position = self.served.len();
        let users = beneath.iter().filter(|(own, _)| own.contains(&position)).count();
        let (is_own, ftl_at_start) = (users <= 1, drive.ftl().map(|ftl| *ftl.stats()));
        self.meters.push(MeterDrive { drives: specs, is_own, ftl_at_start });
        let sectors = drive.nvme().map_or(0, Controller::sectors);
        self.bytes.push(sectors * u64::from(plan.sector_bytes()));
        self.shared.push(is_shared);
        let cell = SnapshotCell::new();
        let server = polling.and_then(|host| Some((host, servers[host].first()?)));
        let thread_use = match server {
            Some(_) => ThreadUse::Shared,
            None => ThreadUse::OneComponent,
        };
        let live = DriveThreadState::new(drive, clock, cell.clone(), thread_use);
        let (waker, owner) = match server {
            Some((host, server)) => {
                let waker = server.waker();
                let owner = live.owner_channel(waker.clone());
                self.local[host].0.push((position, live));
                (waker, owner)
            }
            None => {
                let runner = RealRunner::new(clock, layout.idle).map_err(ServeError::Threads)?;
                let waker = runner.waker();
                let owner = live.owner_channel(waker.clone());
                self.threads.push((position, runner, live));
                (waker, owner)
            }
        };
        for (host, (own, ports)) in beneath.iter().enumerate() {
            for (_, port) in own.iter().zip(ports).filter(|(drive, _)| **drive == position) {
                // The thread that polls the drive polls it after its own doorbells anyway.
                match polling == Some(host) {
                    true => port.set_drive_polled_by_host(),
                    false => port.set_drive_waker(waker.clone()).map_err(ServeError::Threads)?,
                }
            }
        }
        let snapshots = SnapshotSource { cell, waker };
        self.served.push(ServedDrive { index, plan, owner, snapshots, thread: None, group });
        Ok(())
    }
}

/// Creates the servers of each export.
fn listen(
    exports: Vec<NbdExport<ObservedDevice>>,
    shares_listeners: bool,
) -> Result<Vec<Vec<NbdServer<ObservedDevice>>>, ServeError> {
    if shares_listeners {
        return NbdServer::exports(exports).map_err(ServeError::Exports);
    }
    let mut groups = Vec::with_capacity(exports.len());
    for export in exports {
        let drive = export.config.name.clone();
        let made = NbdServer::exports(vec![export])
            .and_then(|mut made| made.pop().ok_or(NbdError::NoDevice));
        groups.push(made.map_err(|source| ServeError::Nbd { drive, source })?);
    }
    Ok(groups)
}

impl Services {
    /// Listens and starts the threads. `ended` is woken when one of them ends.
    ///
    /// # Errors
    /// [`ServeError`]; all listeners are closed then, and drives whose threads have started are shut
    /// down.
    pub(super) fn start(
        scenario: &Scenario,
        prepared: Prepared,
        options: ServiceOptions,
        clock: RealClock,
        ended: &Waker,
    ) -> Result<Services, ServeError> {
        let Prepared { drives, hosts, .. } = prepared;
        let layout = Layout::new(&hosts, drives.len(), options.threads);
        let beneath: Vec<_> =
            hosts.iter().map(|host| (host.drives.clone(), host.ports.clone())).collect();
        let (mut pending, mut exports) = (Vec::new(), Vec::new());
        for (index, host) in hosts.into_iter().enumerate() {
            let (group, threads) = (layout.group_of_host[index], layout.threads[index]);
            let (path, devices) = PendingPath::new(index, host, group, threads, clock)?;
            let config = NbdConfig {
                name: path.plan.name.clone(),
                description: describe(scenario, &path.plan.path),
                read_only: path.plan.read_only,
                allow_remote: options.allow_remote,
                ..NbdConfig::default()
            };
            let (endpoints, end_group) = (path.plan.endpoints.clone(), path.group);
            exports.push(NbdExport { devices, endpoints, config, end_group });
            pending.push(path);
        }
        let servers = listen(exports, options.shares_listeners)?;
        let mut parts = DriveParts::new(&servers);
        for (position, prepared) in drives.into_iter().enumerate() {
            let polling = layout.polling_host(position);
            let group = layout.group_of_drive[position];
            parts.add(prepared, (&layout, group, polling), &beneath, &servers, clock)?;
        }
        let DriveParts { served, meters, bytes, shared, threads, local } = parts;
        let mut units = Vec::new();
        for (path, servers) in pending.into_iter().zip(&servers) {
            let own = scenario.members(path.plan.path.over);
            let own: Vec<usize> = own.iter().map(|member| scenario.drive_of(*member)).collect();
            let of_path = path.drives.iter().map(|drive| {
                let mut meter = meters[*drive].clone();
                meter.drives.retain(|(index, _)| own.contains(index));
                meter
            });
            let of_path = of_path.collect();
            let is_shared = path.drives.iter().any(|drive| shared[*drive]);
            let is_named = options.shares_listeners;
            let with = UnitOptions { clock, is_named, is_shared };
            units.push(path.into_unit(servers, &served, of_path, with));
        }
        let has_host = |drive: &usize| beneath.iter().any(|(own, _)| own.contains(drive));
        for drive in (0..served.len()).filter(|drive| !has_host(drive)) {
            units.push(ServedUnit::without_host(
                drive,
                &served[drive],
                meters[drive].clone(),
                clock,
                bytes[drive],
            ));
        }
        if scenario.composition.is_empty() {
            units.sort_by_key(|unit| unit.drives.first().map(|drive| served[*drive].index));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let ports = beneath.into_iter().flat_map(|(_, ports)| ports).collect();
        let ftls = named_ftls(scenario, &served, &units);
        let injectors = named_injectors(&served, clock);
        let namespaces = named_namespaces(&served, clock);
        let rules = named_rules(scenario, &served, &units, clock);
        let mut services = Services {
            drives: served,
            units,
            ftls,
            injectors,
            namespaces,
            rules,
            stop,
            _ports: ports,
        };
        match services.spawn(threads, servers, local, (clock, &layout, ended)) {
            Ok(()) => Ok(services),
            Err(error) => {
                services.stop();
                let _ = services.finish();
                Err(error)
            }
        }
    }

    /// Starts the threads of drives and servers.
    ///
    /// # Errors
    /// [`ServeError::Threads`]; some threads may have started.
    fn spawn(
        &mut self,
        threads: Vec<(usize, RealRunner, DriveThreadState)>,
        servers: Vec<Vec<NbdServer<ObservedDevice>>>,
        local: Vec<LocalDrives>,
        (clock, layout, ended): (RealClock, &Layout, &Waker),
    ) -> Result<(), ServeError> {
        for (position, runner, live) in threads {
            let name = self.drives[position].plan.config.name.clone();
            let bell = ExitNotifier(ended.clone());
            self.drives[position].thread = Some(DriveThread::start(&name, runner, live, bell)?);
        }
        let idle = layout.idle;
        for (host, (servers, local)) in servers.into_iter().zip(local).enumerate() {
            let mut local = Some(local);
            // The units may be in another order than the hosts.
            let Some(unit) = self.units.iter_mut().find(|unit| unit.host == Some(host)) else {
                continue;
            };
            for (core, mut server) in servers.into_iter().enumerate() {
                let (stop, bell) = (self.stop.clone(), ExitNotifier(ended.clone()));
                let mut drives = local.take().unwrap_or_default();
                let idle = server_idle_policy(unit.completion, idle);
                let run = move || {
                    let _bell = bell;
                    let result = server.run(clock, idle, &mut drives, &stop);
                    let device = server.into_device().into_device();
                    ServerThreadResult { result, device, drives }
                };
                let name = format!("nbd{core} {}", unit.served.name);
                let handle = Builder::new().name(name).spawn(run).map_err(ServeError::Threads)?;
                unit.servers.push(handle);
            }
        }
        Ok(())
    }

    /// Returns the paths and drives to which clients can connect.
    pub(super) fn served(&self) -> impl Iterator<Item = &Served> {
        self.units.iter().map(|unit| &unit.served)
    }

    /// Returns the index of each drive in the scenario, and the channel to the thread that polls it.
    pub(super) fn owner_channels(&self) -> impl Iterator<Item = (usize, OwnerChannel<Controller>)> {
        self.drives.iter().map(|drive| (drive.index, drive.owner.clone()))
    }

    /// Returns the name of each drive and target, and the access to the settings of its FTL.
    pub(super) fn ftls(&self) -> impl Iterator<Item = (&str, &FtlControl)> {
        self.ftls.iter().map(|(name, control)| (name.as_str(), control))
    }

    /// Returns the name of each emulated NVMe drive, and the injector of its faults.
    pub(super) fn injectors(&self) -> impl Iterator<Item = (&str, &FaultInjector)> {
        self.injectors.iter().map(|(name, injector)| (name.as_str(), injector))
    }

    /// Returns the name of each emulated NVMe drive, and the access to its rules or those of its target.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&str, &RuleControl)> {
        self.rules.iter().map(|(name, control)| (name.as_str(), control))
    }

    /// Returns the name of each emulated NVMe drive, and the access to its namespaces.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = (&str, &NamespaceControl)> {
        self.namespaces.iter().map(|(name, control)| (name.as_str(), control))
    }

    /// Returns whether a thread has ended without a stop request.
    pub(super) fn has_ended(&self) -> bool {
        let servers = self.units.iter().flat_map(|unit| &unit.servers);
        servers.into_iter().any(JoinHandle::is_finished)
            || self.drives.iter().any(ServedDrive::has_ended)
    }

    /// Takes a reading of each path and passes it on with the previous one; also tells if requests
    /// have failed since then because the host's disk is full.
    pub(super) fn read(&mut self, tell: &mut dyn FnMut(ServeEvent<'_>)) {
        for unit in &mut self.units {
            let Some(now) = unit.observer.read() else { continue };
            tell(ServeEvent::Stats(&now, unit.previous.as_ref()));
            let failed = now.interval(unit.previous.as_ref()).requests.errors > 0;
            unit.previous = Some(now);
            let full = unit.drives.iter().map(|drive| &self.drives[*drive].plan);
            let full = full.filter(|_| failed).find_map(host_disk::disk_full_message);
            if let Some(why) = full {
                tell(ServeEvent::HostDiskFull(&unit.served.name, &why));
            }
        }
    }

    /// Stops accepting requests from clients.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        for unit in &self.units {
            unit.observer.wake_servers();
        }
    }

    /// Returns the name of each path and drive and the source of its statistics for administrators;
    /// each of them has intervals of its own.
    pub(super) fn stats(&self) -> impl Iterator<Item = (String, StatsSource)> {
        self.units.iter().map(|unit| {
            let observer = unit.observer.clone();
            let source = StatsSource::new(move || {
                let (observer, mut last) = (observer.clone(), None);
                Box::new(move || {
                    let now = observer.read()?;
                    let interval = now.interval(last.as_ref());
                    last = Some(now);
                    Some(interval)
                })
            });
            (unit.served.name.clone(), source)
        })
    }

    /// Completes and flushes in-flight requests and shuts the drives down.
    ///
    /// Returns the statistics, except of paths whose threads have failed, and the first error. After
    /// an error, acknowledged flushes may not be durable.
    pub(super) fn finish(self) -> (Vec<LiveStats>, Result<(), ServeError>) {
        let Services { mut drives, units, .. } = self;
        let mut first = Ok(());
        // Without its drive a server would wait forever.
        let mut lost: Vec<usize> =
            drives.iter().filter(|drive| drive.has_ended()).map(|drive| drive.group).collect();
        let mut live: Vec<Option<DriveThreadState>> = drives.iter().map(|_| None).collect();
        let mut ended = Vec::with_capacity(units.len());
        for mut unit in units {
            let mut end = UnitEnd { result: Ok(()), devices: Vec::new(), is_lost: false };
            if lost.contains(&unit.group) {
                end.is_lost = true;
                ended.push((unit, end));
                continue;
            }
            // A server that panicked keeps no other from its end: wait for all.
            for server in unit.servers.drain(..) {
                match server.join() {
                    Ok(ServerThreadResult { result, device, drives }) => {
                        end.result = end.result.and(result);
                        end.devices.push(device);
                        for (position, drive) in drives.0 {
                            live[position] = Some(drive);
                        }
                    }
                    Err(_) => {
                        let (drive, thread) = (unit.served.name.clone(), "the server's thread");
                        first = first.and(Err(ServeError::Panicked { drive, thread }));
                        end.is_lost = true;
                        // It may have polled the drives of the group.
                        if unit.host == Some(unit.group) {
                            lost.push(unit.group);
                        }
                    }
                }
            }
            ended.push((unit, end));
        }
        for (position, drive) in drives.iter_mut().enumerate() {
            let Some(DriveThread { stopper, handle }) = drive.thread.take() else { continue };
            stopper.stop();
            match handle.join() {
                Ok((ran, state)) => {
                    first = first.and(ran.map_err(ServeError::Threads));
                    live[position] = Some(state);
                }
                Err(_) => {
                    let drive = drive.plan.config.name.clone();
                    let thread = "the drive's thread";
                    first = first.and(Err(ServeError::Panicked { drive, thread }));
                }
            }
        }
        let mut readings = Vec::with_capacity(ended.len());
        for (unit, end) in ended {
            let (reading, result) = end.close(&unit, &mut live);
            readings.extend(reading);
            let plans = unit.drives.iter().map(|drive| &drives[*drive].plan);
            first = first.and(result.map_err(|source| {
                let full = plans.clone().find_map(host_disk::disk_full_message);
                let why = full.map(|full| format!("; {full}")).unwrap_or_default();
                ServeError::Server { drive: unit.served.name.clone(), source, why }
            }));
        }
        for live in live.into_iter().flatten() {
            let name = live.drive.name().to_owned();
            let down = live.drive.shut_down();
            first = first.and(down.map_err(|source| ServeError::ShutDown { drive: name, source }));
        }
        (readings, first)
    }
}
