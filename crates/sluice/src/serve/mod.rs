//! `sluice serve`: the drives of a scenario in front of other people's programs, in real time.
//!
//! | file | noun |
//! |---|---|
//! | [`error`](ServeError) | why drives cannot be served, or could not be to the end |
//! | `host_disk` | whether the host's disk under an image is full |
//! | `image` | whether a drive is new, and so to be preconditioned |
//! | `service` | one drive being served: its threads, from the first client to the synced image |
//! | `pane` | how one thread looks at what another owns, without a lock on the data path |
//! | `signals` | SIGINT and SIGTERM |
//! | `sharing` | what `--socket` shares: partitions and rules |
//! | [`user`] | users, as people write them |
//! | [`interval`] | what a drive has done in an interval: the status line, and its JSON |
//! | [`reading`](Reading) | what a drive has done until now: as a line, a summary, JSON |
//!
//! # Threads
//!
//! Each drive has a thread for its NBD server and the host's side of the stack, and, where the
//! machine has the cores, one for the drive itself, which stands for other hardware. They meet at the
//! queue pair: a doorbell wakes the drive's thread, a completion wakes the server's through its
//! interrupt vector. On one thread the server polls the drive. The thread that called only waits for
//! signals and prints. With `--socket` there is one thread more for all drives, which gives clients
//! their queues ([`::serve::share`]); a drive without NBD has its own thread and no other.
//!
//! # The end
//!
//! The first SIGINT or SIGTERM stops the servers: requests under way are answered, the device is
//! flushed, the drive is shut down and its image synced. A second one ends the process at once, which
//! for a drive with an image is a power cut: what was flushed is there.

mod error;
mod host_disk;
pub mod interval;
mod live_stats;
mod precondition_marker;
mod service;
mod sharing;
mod signals;
mod snapshot_cell;
#[cfg(test)]
mod tests;
pub mod user;

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::serve::nbd::Endpoint;
use ::serve::share::{
    AclFile, Partition, ShareConfig, ShareError, ShareLimits, ShareServer, SharedDrive,
};
use clock::{Nanos, Parker, RealClock, VirtualRunner};
use direct::remote::ResourceName;
use drive::Controller;

pub use error::ServeError;
pub use live_stats::{ActivityCounts, LiveStats, to_json};
pub(crate) use precondition_marker::{PreconditionMarker, is_fresh};
pub use precondition_marker::{image, stores_data, with_overlay};
pub(crate) use signals::Signals;
pub(crate) use snapshot_cell::{DriveSnapshot, DriveThreadState, SnapshotCell};

use crate::scenario::{DriveSpec, Scenario};
use crate::stack::{Stack, StackError, precondition};
use service::{Service, ServiceOptions, Threads};
use sharing::Sharing;

/// How a scenario is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Where to listen; see [`endpoints_of`] for several drives.
    pub nbd: Vec<Endpoint>,
    /// Whether to listen at addresses that other machines can reach.
    pub allow_remote: bool,
    /// Where to share the drives between processes, or to answer administrators.
    pub socket: Option<SocketOptions>,
    /// Threads per drive, 1 or 2; `None` for what the machine has cores for.
    pub threads: Option<u8>,
    /// How often [`Event::Stats`] is told; `None` for never.
    pub stats_interval: Option<Duration>,
}

/// The socket at which drives are shared between processes, or only administrated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Its path.
    pub path: PathBuf,
    /// Whether drives are shared there; otherwise administrators see what they do, and that is all.
    pub is_shared: bool,
    /// Its permissions.
    pub mode: u32,
    /// Where rules are kept that administrators set; without, they end with the server.
    pub acl: Option<PathBuf>,
}

/// What is told while drives are served.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A drive is being preconditioned: its name, and how far it is, from 0 to 1.
    Preconditioning(&'a str, f64),
    /// A drive has an image already, and is served with what is in it.
    ImageKept(&'a str),
    /// Clients can connect to a drive: what it is, bytes, and where.
    Ready(&'a DriveSpec, u64, &'a [Endpoint]),
    /// A part of a drive is shared, at this socket.
    Shared(&'a Partition, &'a Path),
    /// Administrators are answered at this socket, at which nothing is shared.
    Administrated(&'a Path),
    /// What a drive has done since the start; and at the reading before, if there is one.
    Stats(&'a LiveStats, Option<&'a LiveStats>),
    /// The host's disk under a drive's image is full: the drive's name, and what that means.
    HostDiskFull(&'a str, &'a str),
    /// A signal has come: requests under way are being finished.
    Stopping,
    /// A drive is served no more: all that it has done. Told also if it did not end in good order.
    Stopped(&'a LiveStats),
}

/// The endpoints of drive `index` of a scenario. One drive has them as given. Of several, each has
/// its own: a socket's path ends in the drive's name, and a TCP port is so much higher.
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
            // Port 0 lets the system choose, for every drive another.
            Endpoint::Tcp { host, port } if several && *port > 0 => {
                let next = u16::try_from(index).ok().and_then(|i| port.checked_add(i));
                let port = next.ok_or(ServeError::PortTooHigh { first: *port, index })?;
                Ok(Endpoint::Tcp { host: host.clone(), port })
            }
            _ => Ok(endpoint.clone()),
        })
        .collect()
}

/// Serves every drive of a scenario until a signal comes; returns what each has done, in the
/// scenario's order.
///
/// # Errors
/// [`ServeError`]. When something fails while drives are served, all others are still shut down in
/// order.
pub fn serve(
    scenario: &Scenario,
    options: &ServeOptions,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Vec<LiveStats>, ServeError> {
    if let Some(layer) = &scenario.path.block_layer
        && layer.cores() > 1
    {
        return Err(ServeError::Cores { cores: layer.cores() });
    }
    let mut endpoints = Vec::new();
    for index in 0..scenario.drives.len() {
        endpoints.push(endpoints_of(scenario, index, &options.nbd)?);
    }
    check_endpoints(scenario, &endpoints, options)?;
    let mut stacks = Vec::new();
    let mut prepared = Nanos::ZERO;
    let shares = options.socket.as_ref().is_some_and(|socket| socket.is_shared);
    let mut sharing = shares.then(Sharing::new);
    for (index, plan) in scenario.drives.iter().enumerate() {
        let (stack, at) = match &mut sharing {
            None => prepare(scenario, index, plan, tell)
                .map(|(stack, at)| (HostPlacement::ThisProcess(Box::new(stack)), at))?,
            Some(sharing) => {
                let nbd = !options.nbd.is_empty();
                prepare_shared(scenario, index, plan, (sharing, nbd), tell)?
            }
        };
        prepared = prepared.max(at);
        stacks.push(stack);
    }
    let with = ServiceOptions {
        threads: Threads::choose(options.threads, scenario.drives.len()),
        is_shared: shares,
        allow_remote: options.allow_remote,
    };
    // Real time goes on where preparing has left the drives' time.
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
                Service::start(plan, *stack, endpoints, with, clock, parker.waker())
            }
            HostPlacement::OtherProcesses(drive) => {
                Service::start_without_host(plan, *drive, clock, parker.waker())
            }
        };
        match started {
            Ok(service) => {
                tell(Event::Ready(plan, service.bytes(), service.endpoints()));
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
        // Without partitions, administrators are the only ones with anything to ask.
        let sharing = sharing.unwrap_or_else(Sharing::new);
        match share(scenario, socket, sharing, &services, tell) {
            Ok(server) => shared = Some(server),
            Err(error) => begun = Err(error),
        }
    }
    if begun.is_ok() {
        let every = options.stats_interval;
        begun = monitor(&mut services, &signals, &parker, clock, every, tell);
        tell(Event::Stopping);
    }
    // As long as there are drives that can let go of them.
    if let Some(server) = shared {
        server.stop();
    }
    for service in &services {
        service.stop();
    }
    // All of them, whatever becomes of the first.
    let mut readings = Vec::new();
    for service in services {
        let (reading, finished) = service.finish();
        if let Some(reading) = reading {
            tell(Event::Stopped(&reading));
            readings.push(reading);
        }
        begun = begun.and(finished);
    }
    begun.map(|()| readings)
}

/// Sees whether everything can be listened on, before drives are preconditioned, which takes its time.
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
        ::serve::share::check(&socket.path, socket.mode).map_err(ShareError::Listen)?;
    }
    Ok(())
}

/// Builds the stack of a drive, with the block layer that is asked for, and brings it to its state;
/// returns the drive's instant.
fn prepare(
    scenario: &Scenario,
    index: usize,
    plan: &DriveSpec,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<(Stack, Nanos), ServeError> {
    let (stack, now) = prepare_drive(scenario, index, plan, tell)?;
    Ok((with_block_layer(scenario, stack, now)?, now))
}

fn with_block_layer(scenario: &Scenario, stack: Stack, now: Nanos) -> Result<Stack, ServeError> {
    match &scenario.path.block_layer {
        Some(layer) => Ok(stack.with_block_layer(layer, now, true)?),
        None => Ok(stack),
    }
}

/// Who is on the host's side of a drive in this process.
enum HostPlacement {
    /// A server.
    ThisProcess(Box<Stack>),
    /// Nobody: all hosts are in other processes.
    OtherProcesses(Box<Controller>),
}

/// As [`prepare`], of a drive that is shared: with NBD on a part of it, or on none.
fn prepare_shared(
    scenario: &Scenario,
    index: usize,
    plan: &DriveSpec,
    (sharing, nbd): (&mut Sharing, bool),
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<(HostPlacement, Nanos), ServeError> {
    if !nbd && !plan.is_block_device() {
        // Nobody manages its flash here, and so nobody fills it.
        let name = plan.config.name.clone();
        let drive = Controller::new(plan.config.clone())
            .map_err(|source| StackError::Drive { name, source })?;
        sharing.add(scenario, plan, &drive, false)?;
        return Ok((HostPlacement::OtherProcesses(Box::new(drive)), Nanos::ZERO));
    }
    let (stack, now) = prepare_drive(scenario, index, plan, tell)?;
    match sharing.add(scenario, plan, &stack.drive, nbd)? {
        Some(part) => {
            let stack = stack.confine_to_partition(part, Some(service::VECTOR))?;
            Ok((HostPlacement::ThisProcess(Box::new(with_block_layer(scenario, stack, now)?)), now))
        }
        None => {
            let Stack { mut drive, device, port, .. } = stack;
            drop(device);
            // It was attached above.
            let _ = drive.detach(&port);
            Ok((HostPlacement::OtherProcesses(Box::new(drive)), now))
        }
    }
}

/// Lets clients in.
fn share(
    scenario: &Scenario,
    socket: &SocketOptions,
    sharing: Sharing,
    services: &[Service],
    tell: &mut dyn FnMut(Event<'_>),
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
        tell(Event::Shared(partition, &socket.path));
    }
    if !socket.is_shared {
        tell(Event::Administrated(&socket.path));
    }
    Ok(server)
}

/// The same on the raw path.
pub(crate) fn prepare_drive(
    scenario: &Scenario,
    index: usize,
    plan: &DriveSpec,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<(Stack, Nanos), ServeError> {
    let name = &plan.config.name;
    let fresh = precondition_marker::is_fresh(plan);
    let stack = Stack::build(plan, Some(service::VECTOR))?;
    if scenario.precondition == Default::default() {
        return Ok((stack, Nanos::ZERO));
    }
    if !fresh {
        tell(Event::ImageKept(name));
        return Ok((stack, Nanos::ZERO));
    }
    tell(Event::Preconditioning(name, 0.0));
    let mark = precondition_marker::PreconditionMarker::set(plan)
        .map_err(|source| ServeError::PreconditionMarker { source })?;
    let mut runner = VirtualRunner::new();
    let seed = scenario.seed.wrapping_add(index as u64);
    let mut progress = |part| tell(Event::Preconditioning(name, part));
    let stack = precondition(stack, &scenario.precondition, &mut runner, seed, &mut progress)?;
    mark.remove().map_err(|source| ServeError::PreconditionMarker { source })?;
    Ok((stack, runner.now()))
}

/// Waits until a signal comes or a service ends by itself, and tells readings meanwhile.
fn monitor(
    services: &mut [Service],
    signals: &Signals,
    parker: &Parker,
    clock: RealClock,
    every: Option<Duration>,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<(), ServeError> {
    let every = every.map(|e| Nanos(u64::try_from(e.as_nanos()).unwrap_or(u64::MAX)));
    let mut next = every.map_or(Nanos::MAX, |e| clock.now() + e);
    loop {
        parker.prepare();
        if signals.is_received() || services.iter().any(Service::has_ended) {
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
                if let Some(why) = service.read(|now, before| tell(Event::Stats(now, before))) {
                    tell(Event::HostDiskFull(service.name(), &why));
                }
            }
        }
    }
}
