//! Real-time service of a scenario's drives for other programs (`sluice serve`).
//!
//! # Threads
//!
//! Each path has a thread for the NBD server of each core, with that core's queue, and each drive has
//! a thread, which stands for other hardware. A path has a core per core of its block layer, or else
//! per shard of its target; without named paths, each drive has one. The threads meet at the queue
//! pairs: a doorbell wakes the drive's thread, and a completion wakes a server's through its
//! interrupt vector. Queues that share a lock or a shard wake each other's threads. A path with one
//! core has one thread with its drives on a machine without enough cores, and every path with
//! `--threads 1`: a server that polls the drives and all queues, and submits on the first; of several
//! paths over one drive, the first polls it. The calling thread only waits for signals and prints.
//! Each socket has one more thread, which gives clients their queues ([`share_server`]). A drive
//! without NBD has only its own thread.
//!
//! # Shutdown
//!
//! The first SIGINT or SIGTERM stops the servers: in-flight requests are completed, the device is
//! flushed, the drive is shut down and its image synced. A second signal ends the process
//! immediately. For a drive with an image, that is a power cut: flushed data is safe.

mod drive_access;
mod error;
mod ftl_control;
mod host_disk;
mod observed_device;
mod observer;
mod plan;
mod prepared;
mod service;
mod sharing;
mod signals;
mod stats;
#[cfg(test)]
mod tests;
mod threads;
mod unit;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use event::{Parker, RealClock};
use nbd::Endpoint;
use scenario::Scenario;
use scenario::choice::Impossible;
use share_proto::ResourceName;
use share_server::{
    AclFile, NamedFaultInjector, NamedFtl, NamedNamespaces, NamedRules, NamedStats, Partition,
    ServedParts, ShareConfig, ShareLimits, ShareServer, SharedDrive,
};
use stack::{PrepareEvent, StateUse};
use time::Nanos;

pub use error::ServeError;
pub use plan::NBD_PATHS_MAX;
pub(crate) use signals::Signals;
pub use stats::{ActivityCounts, DriveReading, LiveStats, interval, to_json};
pub use unit::Served;

use plan::{ServePlan, SocketPlan};
use prepared::Prepared;
use service::{ServiceOptions, Services};
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
    /// Whether drives are shared; otherwise the socket is for administrators only: statistics, and
    /// settings of FTLs.
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
    /// How a drive came to its state, if states are kept.
    State(&'a str, &'a StateUse),
    /// Clients can connect to a path or a drive.
    Ready(&'a Served),
    /// NBD cannot serve this path, for this reason; other paths are served.
    NotServed(&'a str, &'a Impossible),
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
            PrepareEvent::State(name, used) => ServeEvent::State(name, used),
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

/// Serves the paths and drives of a scenario until a signal arrives; returns the statistics of each
/// path, and of each drive without a path, in the order of the scenario.
///
/// # Errors
/// [`ServeError`]. If a drive fails, all others are still shut down cleanly.
pub fn serve(
    scenario: &Scenario,
    options: &ServeOptions,
    tell: &mut dyn FnMut(ServeEvent<'_>),
) -> Result<Vec<LiveStats>, ServeError> {
    let plan = ServePlan::new(scenario, options)?;
    for (path, why) in &plan.unserved {
        tell(ServeEvent::NotServed(path, why));
    }
    let mut prepared = Prepared::new(scenario, &plan, tell)?;
    let tables = std::mem::take(&mut prepared.tables);
    // Real time continues from the drives' time after preconditioning.
    let clock = RealClock::starting_at(prepared.now);
    while clock.now() < prepared.now {
        std::thread::sleep(Duration::from_nanos(prepared.now.since(clock.now()).0));
    }
    let signals = Signals::catch().map_err(ServeError::Signals)?;
    let parker = Parker::new().map_err(ServeError::Threads)?;
    let with = ServiceOptions {
        threads: options.threads,
        allow_remote: options.allow_remote,
        shares_listeners: plan.shares_listeners,
    };
    let mut services = Services::start(scenario, prepared, with, clock, &parker.waker())?;
    for served in services.served() {
        tell(ServeEvent::Ready(served));
    }
    let mut begun = Ok(());
    let mut sockets = Vec::new();
    for (SocketPlan { options, drives }, table) in plan.sockets.iter().zip(tables) {
        match share(scenario, (options, drives), table, &services, tell) {
            Ok(server) => sockets.push(server),
            Err(error) => {
                begun = Err(error);
                break;
            }
        }
    }
    if begun.is_ok() {
        let every = options.stats_interval;
        begun = monitor(&mut services, &signals, &parker, clock, every, tell);
        tell(ServeEvent::Stopping);
    }
    // Stop the sockets while the drives still exist to detach their clients.
    for server in sockets {
        server.stop();
    }
    services.stop();
    // Finish all drives, even if one of them fails.
    let (readings, finished) = services.finish();
    for reading in &readings {
        tell(ServeEvent::Stopped(reading));
    }
    begun.and(finished).map(|()| readings)
}

/// Accepts clients at a socket.
fn share(
    scenario: &Scenario,
    (socket, indices): (&SocketOptions, &[usize]),
    sharing: PartitionTableBuilder,
    services: &Services,
    tell: &mut dyn FnMut(ServeEvent<'_>),
) -> Result<ShareServer, ServeError> {
    let resource = |name: &str| {
        let refused = |e: share_proto::NameError| ServeError::Share {
            drive: name.to_owned(),
            why: e.to_string(),
        };
        ResourceName::new(name).map_err(refused)
    };
    let mut parts = ServedParts::default();
    for (index, owner) in services.owner_channels() {
        if indices.contains(&index) {
            let config = &scenario.drives[index].config;
            let (name, io_queues) = (resource(&config.name)?, config.controller.max_io_queues);
            let has_registers = config.controller.registers.is_some();
            parts.drives.push(SharedDrive { name, owner, io_queues, has_registers });
        }
    }
    for (name, source) in services.stats() {
        parts.stats.push(NamedStats { name: resource(&name)?, source });
    }
    for (name, control) in services.ftls() {
        parts.ftls.push(NamedFtl { name: resource(name)?, control: control.clone() });
    }
    for (name, injector) in services.injectors() {
        let (name, injector) = (resource(name)?, injector.clone());
        parts.injectors.push(NamedFaultInjector { name, injector });
    }
    for (name, control) in services.namespaces() {
        let (name, control) = (resource(name)?, control.clone());
        parts.namespaces.push(NamedNamespaces { name, control });
    }
    for (name, control) in services.rules() {
        parts.rules.push(NamedRules { name: resource(name)?, control: control.clone() });
    }
    let config = ShareConfig {
        path: socket.path.clone(),
        mode: socket.mode,
        limits: ShareLimits::default(),
        acl_file: socket.acl.clone().map(AclFile::new),
    };
    let partitions = sharing.table.partitions().to_vec();
    let server = ShareServer::start(&config, sharing.table, parts)?;
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
    services: &mut Services,
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
        if signals.is_received() || services.has_ended() {
            parker.unpark();
            return Ok(());
        }
        let timeout = if next == Nanos::MAX { next } else { next.since(clock.now()) };
        parker.park(&[signals.as_fd()], timeout).map_err(ServeError::Threads)?;
        if let Some(every) = every
            && clock.now() >= next
        {
            next = clock.now() + every;
            services.read(tell);
        }
    }
}
