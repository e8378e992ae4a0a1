//! Real-time service of a scenario's drives for other programs (`sluice serve`).
//!
//! # Threads
//!
//! Each drive has a thread for the NBD server of each core of its stack, with that core's queue, and
//! a thread for the drive itself, which stands for other hardware. A stack has a core per core of
//! its block layer, or else per shard of its target. The threads meet at the queue pairs: a doorbell
//! wakes the drive's thread, and a completion wakes a server's through its interrupt vector. Queues
//! that share a lock or a shard wake each other's threads. A stack with one core has one thread on a
//! machine without enough cores, and every stack with `--threads 1`: a server that polls the drive
//! and all queues, and submits on the first. The calling thread only waits for signals and prints.
//! With `--socket`, one more thread for all drives gives clients their queues ([`share_server`]). A
//! drive without NBD has only its own thread.
//!
//! # Shutdown
//!
//! The first SIGINT or SIGTERM stops the servers: in-flight requests are completed, the device is
//! flushed, the drive is shut down and its image synced. A second signal ends the process
//! immediately. For a drive with an image, that is a power cut: flushed data is safe.

mod error;
mod host_disk;
pub mod interval;
mod live_stats;
mod observed_device;
mod observer;
mod service;
mod sharing;
mod signals;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use controller::Controller;
use event::{Parker, RealClock};
use nbd::Endpoint;
use scenario::choice::Impossible;
use scenario::{Beneath, DriveKind, DriveSpec, PathSpec, Scenario};
use share_proto::ResourceName;
use share_server::{
    AclFile, Partition, ShareConfig, ShareError, ShareLimits, ShareServer, SharedDrive,
};
use stack::{
    DevicePort, HOST_VECTOR, JobTarget, Notification, PoweredDevice, PrepareEvent, PreparedPath,
    Stack, StackError, prepare_drive, prepare_path,
};
use time::Nanos;

pub use error::ServeError;
pub use live_stats::{ActivityCounts, LiveStats, to_json};
pub(crate) use signals::Signals;

use service::{DriveService, ServedDrive, ServiceOptions, Threads};
use sharing::PartitionTableBuilder;

/// Options of serving a scenario.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// NBD endpoints to listen on; see [`endpoints_of`] for several drives.
    pub nbd: Vec<Endpoint>,
    /// Whether to listen on addresses that other machines can reach.
    pub allow_remote: bool,
    /// Socket for sharing the drives between processes, or for administration only.
    pub socket: Option<SocketOptions>,
    /// 1 for one thread per drive; 2 for a thread of the drive and one for the NBD server of each
    /// core; `None` chooses by the cores of the scenario and of the machine.
    pub threads: Option<u8>,
    /// Interval of [`ServeEvent::Stats`]; `None` for never.
    pub stats_interval: Option<Duration>,
}

/// Socket at which drives are shared between processes, or only administrated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Path of the socket.
    pub path: PathBuf,
    /// Whether drives are shared; otherwise the socket only provides statistics to administrators.
    pub is_shared: bool,
    /// Permissions of the socket.
    pub mode: u32,
    /// File that stores access rules set by administrators. Without it, these rules are lost when
    /// the server ends.
    pub acl: Option<PathBuf>,
}

/// An event while drives are served.
#[derive(Clone, Copy, Debug)]
pub enum ServeEvent<'a> {
    /// A drive is being preconditioned: its name, and the progress from 0 to 1.
    Preconditioning(&'a str, f64),
    /// A drive has an image already and is served with its contents.
    ImageKept(&'a str),
    /// Clients can connect to a drive: its plan, its size in bytes, and its endpoints.
    Ready(&'a DriveSpec, u64, &'a [Endpoint]),
    /// A partition of a drive is shared at this socket.
    Shared(&'a Partition, &'a Path),
    /// This socket is only for administration.
    Administrated(&'a Path),
    /// Statistics of a drive since the start, and the previous reading if there is one.
    Stats(&'a LiveStats, Option<&'a LiveStats>),
    /// The host's disk under a drive's image is full: the drive's name, and a message.
    HostDiskFull(&'a str, &'a str),
    /// A signal has arrived; in-flight requests are being completed.
    Stopping,
    /// A drive is no longer served, with its final statistics. Also sent if its shutdown failed.
    Stopped(&'a LiveStats),
}

impl<'a> From<PrepareEvent<'a>> for ServeEvent<'a> {
    fn from(event: PrepareEvent<'a>) -> ServeEvent<'a> {
        match event {
            PrepareEvent::Preconditioning(name, part) => ServeEvent::Preconditioning(name, part),
            PrepareEvent::ImageKept(name) => ServeEvent::ImageKept(name),
        }
    }
}

/// Returns the endpoints of drive `index` of a scenario.
///
/// A single drive has the endpoints as given. Each of several drives has its own: the drive's name
/// is appended to a socket's path, and its index is added to a TCP port.
///
/// # Errors
/// [`ServeError::PortTooHigh`].
pub fn endpoints_of(
    scenario: &Scenario,
    index: usize,
    given: &[Endpoint],
) -> Result<Vec<Endpoint>, ServeError> {
    let several = scenario.drives.len() > 1;
    let name = &scenario.drives[index].config.name;
    given
        .iter()
        .map(|endpoint| match endpoint {
            Endpoint::Unix(path) if several => {
                let mut path = path.clone().into_os_string();
                path.push(".");
                path.push(name);
                Ok(Endpoint::Unix(path.into()))
            }
            // With port 0, the system chooses a port for each drive.
            Endpoint::Tcp { host, port } if several && *port > 0 => {
                let next = u16::try_from(index).ok().and_then(|i| port.checked_add(i));
                let port = next.ok_or(ServeError::PortTooHigh { first: *port, index })?;
                Ok(Endpoint::Tcp { host: host.clone(), port })
            }
            _ => Ok(endpoint.clone()),
        })
        .collect()
}

/// Serves every drive of a scenario until a signal arrives; returns their statistics in the order
/// of the scenario.
///
/// # Errors
/// [`ServeError`]. If a drive fails, all others are still shut down cleanly.
pub fn serve(
    scenario: &Scenario,
    options: &ServeOptions,
    tell: &mut dyn FnMut(ServeEvent<'_>),
) -> Result<Vec<LiveStats>, ServeError> {
    let mut endpoints = Vec::new();
    for index in 0..scenario.drives.len() {
        endpoints.push(endpoints_of(scenario, index, &options.nbd)?);
    }
    check_endpoints(scenario, &endpoints, options)?;
    let mut stacks = Vec::new();
    let mut prepared = Nanos::ZERO;
    let shares = options.socket.as_ref().is_some_and(|socket| socket.is_shared);
    let mut sharing = shares.then(PartitionTableBuilder::new);
    for (index, plan) in scenario.drives.iter().enumerate() {
        let (stack, at) = match &mut sharing {
            None => prepare_alone(scenario, index, plan, tell)
                .map(|(served, at)| (HostPlacement::ThisProcess(Box::new(served)), at))?,
            Some(sharing) => {
                let nbd = !options.nbd.is_empty();
                prepare_shared(scenario, index, plan, (sharing, nbd), tell)?
            }
        };
        prepared = prepared.max(at);
        stacks.push(stack);
    }
    // Real time continues from the drives' time after preconditioning.
    let clock = RealClock::starting_at(prepared);
    while clock.now() < prepared {
        std::thread::sleep(Duration::from_nanos(prepared.since(clock.now()).0));
    }
    let signals = Signals::catch().map_err(ServeError::Signals)?;
    let parker = Parker::new().map_err(ServeError::Threads)?;
    let mut services = Vec::new();
    let mut begun = Ok(());
    for ((plan, stack), endpoints) in scenario.drives.iter().zip(stacks).zip(&endpoints) {
        let started = match stack {
            HostPlacement::ThisProcess(stack) => {
                let (drives, cores) = (scenario.drives.len(), stack.device.cores());
                let with = ServiceOptions {
                    threads: Threads::choose(options.threads, drives, cores),
                    drives,
                    is_shared: shares,
                    allow_remote: options.allow_remote,
                    completion: scenario.path.completion,
                };
                DriveService::start(plan, *stack, endpoints, with, clock, parker.waker())
            }
            HostPlacement::OtherProcesses(drive) => {
                DriveService::start_without_host(plan, *drive, clock, parker.waker())
            }
        };
        match started {
            Ok(service) => {
                tell(ServeEvent::Ready(plan, service.bytes(), service.endpoints()));
                services.push(service);
            }
            Err(error) => {
                begun = Err(error);
                break;
            }
        }
    }
    let mut shared = None;
    if let (Ok(()), Some(socket)) = (&begun, &options.socket) {
        // Without partitions, the socket serves administrators only.
        let sharing = sharing.unwrap_or_else(PartitionTableBuilder::new);
        match share(scenario, socket, sharing, &services, tell) {
            Ok(server) => shared = Some(server),
            Err(error) => begun = Err(error),
        }
    }
    if begun.is_ok() {
        let every = options.stats_interval;
        begun = monitor(&mut services, &signals, &parker, clock, every, tell);
        tell(ServeEvent::Stopping);
    }
    // Stop the socket while the drives still exist to detach its clients.
    if let Some(server) = shared {
        server.stop();
    }
    for service in &services {
        service.stop();
    }
    // Finish all drives, even if one of them fails.
    let mut readings = Vec::new();
    for service in services {
        let (reading, finished) = service.finish();
        if let Some(reading) = reading {
            tell(ServeEvent::Stopped(&reading));
            readings.push(reading);
        }
        begun = begun.and(finished);
    }
    begun.map(|()| readings)
}

/// Checks that all endpoints can be listened on, before the drives are preconditioned, which takes
/// time.
fn check_endpoints(
    scenario: &Scenario,
    endpoints: &[Vec<Endpoint>],
    options: &ServeOptions,
) -> Result<(), ServeError> {
    let mut taken = BTreeSet::new();
    for (plan, endpoints) in scenario.drives.iter().zip(endpoints) {
        for endpoint in endpoints {
            let any_port = matches!(endpoint, Endpoint::Tcp { port: 0, .. });
            if !any_port && !taken.insert(endpoint.to_string()) {
                return Err(ServeError::DuplicateEndpoint { endpoint: endpoint.clone() });
            }
            endpoint.check(options.allow_remote).map_err(|source| ServeError::Nbd {
                drive: plan.config.name.clone(),
                source: source.into(),
            })?;
        }
    }
    if let Some(socket) = &options.socket {
        if taken.contains(&Endpoint::Unix(socket.path.clone()).to_string()) {
            return Err(ServeError::DuplicateEndpoint {
                endpoint: Endpoint::Unix(socket.path.clone()),
            });
        }
        share_server::check(&socket.path, socket.mode).map_err(ShareError::Listen)?;
    }
    Ok(())
}

/// Builds the stack of a drive with the configured block layer and preconditions it; returns the
/// drive's current time.
fn prepare(
    scenario: &Scenario,
    index: usize,
    plan: &DriveSpec,
    tell: &mut dyn FnMut(ServeEvent<'_>),
) -> Result<(Stack, Nanos), ServeError> {
    let (stack, now) = prepare_drive(scenario, index, plan, &mut |event| tell(event.into()))?;
    Ok((with_block_layer(scenario, stack, now)?, now))
}

/// Prepares a drive that has its only host in this process; returns the drive's current time.
fn prepare_alone(
    scenario: &Scenario,
    index: usize,
    plan: &DriveSpec,
    tell: &mut dyn FnMut(ServeEvent<'_>),
) -> Result<(ServedDrive, Nanos), ServeError> {
    if plan.kind == DriveKind::Nvme {
        let (stack, now) = prepare(scenario, index, plan, tell)?;
        return Ok((stack.into(), now));
    }
    let (name, config) = (plan.config.name.clone(), scenario.path.clone());
    let alone = PathSpec { name, over: Beneath::Drive(index), config };
    let alone = scenario.reduced_to(&alone);
    let PreparedPath { mut devices, path, now } =
        prepare_path(&alone, &mut |event| tell(event.into()))?;
    match (devices.pop(), path.ports.into_iter().next(), path.device) {
        (Some(PoweredDevice { device: drive, .. }), Some(port), JobTarget::Blocks(device)) => {
            Ok((ServedDrive { drive, device, port }, now))
        }
        _ => Err(StackError::NoPath { file: scenario.file.clone() }.into()),
    }
}

fn with_block_layer(scenario: &Scenario, stack: Stack, now: Nanos) -> Result<Stack, ServeError> {
    match &scenario.path.block_layer {
        Some(layer) => {
            let notification = Notification::Real(scenario.path.completion);
            Ok(stack.with_block_layer(layer, now, notification)?)
        }
        None => Ok(stack),
    }
}

/// Location of a drive's hosts.
enum HostPlacement {
    /// A server in this process.
    ThisProcess(Box<ServedDrive>),
    /// All hosts are in other processes.
    OtherProcesses(Box<Controller>),
}

/// Prepares a shared drive as [`prepare`] does, with NBD on a partition of it, or without NBD.
fn prepare_shared(
    scenario: &Scenario,
    index: usize,
    plan: &DriveSpec,
    (sharing, nbd): (&mut PartitionTableBuilder, bool),
    tell: &mut dyn FnMut(ServeEvent<'_>),
) -> Result<(HostPlacement, Nanos), ServeError> {
    let shared = "sharing a drive between processes (`--socket`)";
    Impossible::check_nvme(plan, shared).map_err(StackError::from)?;
    if !nbd && !plan.is_block_device() {
        // No FTL in this process manages the flash, so it cannot be preconditioned.
        let name = plan.config.name.clone();
        let drive = Controller::new(plan.config.clone())
            .map_err(|source| StackError::Drive { name, source })?;
        sharing.add(scenario, plan, &drive, false)?;
        return Ok((HostPlacement::OtherProcesses(Box::new(drive)), Nanos::ZERO));
    }
    let (stack, now) = prepare_drive(scenario, index, plan, &mut |event| tell(event.into()))?;
    match sharing.add(scenario, plan, &stack.drive, nbd)? {
        Some(part) => {
            let stack = stack.confine_to_partition(part, Some(HOST_VECTOR))?;
            let stack = with_block_layer(scenario, stack, now)?;
            Ok((HostPlacement::ThisProcess(Box::new(stack.into())), now))
        }
        None => {
            let Stack { mut drive, device, port, .. } = stack;
            drop(device);
            // The port was attached above, so this succeeds.
            if let DevicePort::Nvme(port) = port {
                let _ = drive.detach(&port);
            }
            Ok((HostPlacement::OtherProcesses(Box::new(drive)), now))
        }
    }
}

/// Accepts clients.
fn share(
    scenario: &Scenario,
    socket: &SocketOptions,
    sharing: PartitionTableBuilder,
    services: &[DriveService],
    tell: &mut dyn FnMut(ServeEvent<'_>),
) -> Result<ShareServer, ServeError> {
    let mut drives = Vec::new();
    for (plan, service) in scenario.drives.iter().zip(services) {
        let (errands, waker) = service.owner_channel();
        let drive = plan.config.name.clone();
        let name = ResourceName::new(&drive)
            .map_err(|e| ServeError::Share { drive, why: e.to_string() })?;
        let io_queues = plan.config.controller.max_io_queues;
        let stats = Some(service.stats());
        drives.push(SharedDrive { name, owner_calls: errands, waker, io_queues, stats });
    }
    let config = ShareConfig {
        path: socket.path.clone(),
        mode: socket.mode,
        limits: ShareLimits::default(),
        acl_file: socket.acl.clone().map(AclFile::new),
    };
    let partitions = sharing.table.partitions().to_vec();
    let server = ShareServer::start(&config, sharing.table, drives)?;
    for partition in &partitions {
        tell(ServeEvent::Shared(partition, &socket.path));
    }
    if !socket.is_shared {
        tell(ServeEvent::Administrated(&socket.path));
    }
    Ok(server)
}

/// Waits until a signal arrives or a service ends by itself; reports statistics meanwhile.
fn monitor(
    services: &mut [DriveService],
    signals: &Signals,
    parker: &Parker,
    clock: RealClock,
    every: Option<Duration>,
    tell: &mut dyn FnMut(ServeEvent<'_>),
) -> Result<(), ServeError> {
    let every = every.map(|e| Nanos(u64::try_from(e.as_nanos()).unwrap_or(u64::MAX)));
    let mut next = every.map_or(Nanos::MAX, |e| clock.now() + e);
    loop {
        parker.prepare();
        if signals.is_received() || services.iter().any(DriveService::has_ended) {
            parker.unpark();
            return Ok(());
        }
        let timeout = if next == Nanos::MAX { next } else { next.since(clock.now()) };
        parker.park(&[signals.as_fd()], timeout).map_err(ServeError::Threads)?;
        if let Some(every) = every
            && clock.now() >= next
        {
            next = clock.now() + every;
            for service in &mut *services {
                if let Some(why) = service.read(|now, before| tell(ServeEvent::Stats(now, before)))
                {
                    tell(ServeEvent::HostDiskFull(service.name(), &why));
                }
            }
        }
    }
}
