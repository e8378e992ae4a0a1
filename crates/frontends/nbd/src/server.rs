//! [`NbdServer`]: a server thread. It owns a device and its clients; it polls the device and the sockets, spins
//! while there is work, and sleeps otherwise.
//!
//! An export has one server, or several: one per queue of a device. The servers of exports that
//! share a listener are a group ([`group`](crate::group)).
//!
//! One iteration: poll the sockets, serve the ready clients, poll the device, reap its completions,
//! and send each client's replies in one call. While the device is busy, sockets are polled once
//! per [`SOCKET_POLL_INTERVAL`], because that is a system call.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{BlockDevice, Limits};
use event::{IdlePolicy, IdleWait, Parker, RealClock, Waker};
use mem::RegisterError;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use time::{Component, Nanos};

use crate::NbdConfig;
use crate::connection::{Connection, ConnectionId, Connections, Phase, WorkQueues};
use crate::endpoint::{Endpoint, EndpointBindError};
use crate::export::listen::{ListenerSet, NbdExport, payload_bytes_max};
use crate::export::{Export, ExportList};
use crate::group::GroupMember;
use crate::in_flight::InFlightRequests;
use crate::pool::{PayloadPool, SIZE_CLASSES};
use crate::protocol::wire::STRING_BYTES_MAX;
use crate::socket_set::{LISTENER, SocketSet};
use crate::stats::{Counters, NbdStats, NbdStatsReader};

/// Interval of socket polls while the device is busy.
const SOCKET_POLL_INTERVAL: Nanos = Nanos::from_micros(2);
/// Interval of timeout checks.
pub(super) const TIMEOUT_SWEEP_INTERVAL: Nanos = Nanos::from_millis(100);
/// Bytes that a client must move within [`NbdConfig::stall_timeout`] while others wait for it.
const STALL_PROGRESS_BYTES: u64 = 1 << 20;
/// Limit of one client's small payloads, in the device and in its send queue.
const SMALL_CLIENT_BYTES_MAX: usize = 1 << 20;
/// Buffer through which payloads pass: large enough to make system calls rare, small enough to stay
/// in the second-level cache.
const SCRATCH_BYTES: usize = 256 << 10;
/// Maximum number of events handled per iteration.
const EVENTS_PER_ITERATION: usize = 128;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// An endpoint cannot be listened on.
    #[error(transparent)]
    Bind(#[from] EndpointBindError),
    /// No endpoint was given.
    #[error("an NBD server needs at least one endpoint")]
    NoEndpoint,
    /// No device was given.
    #[error("an NBD server needs at least one device")]
    NoDevice,
    /// Two exports at one endpoint have one name.
    #[error("{endpoint} has two exports named \"{name}\"; clients select an export by its name")]
    DuplicateName {
        /// The endpoint.
        endpoint: Endpoint,
        /// The name.
        name: String,
    },
    /// The devices of a group differ, so that they are not queues of one device.
    #[error("queue {queue} of the exported device has other limits than queue 0")]
    Queues {
        /// Index of the first device that differs.
        queue: usize,
    },
    /// The device's sectors cannot be a minimum block size (NBD "Block size constraints").
    #[error("NBD needs sectors of a power of two from 1 to 65536 bytes, not {0}")]
    SectorSize(u32),
    /// Name or description is too long (NBD "Conventions").
    #[error("the export's {what} has {bytes} bytes; at most {STRING_BYTES_MAX} are allowed")]
    TooLong {
        /// `name` or `description`.
        what: &'static str,
        /// Bytes.
        bytes: usize,
    },
    /// The payload memory could not be registered.
    #[error("cannot register the payload memory: {0}")]
    Register(#[from] RegisterError),
    /// A system call failed.
    #[error("cannot start the NBD server: {0}")]
    Io(#[from] io::Error),
}

/// Limits of one client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientLimits {
    /// Maximum payload memory of each size class.
    pub(super) bytes_max: [usize; SIZE_CLASSES],
    /// Maximum requests in flight.
    pub(super) in_flight_max: usize,
}

/// The parts of a server that its group has made.
struct ServerParts {
    group: GroupMember,
    exports: ExportList,
    parker: Parker,
    counters: Arc<Counters>,
}

/// Serves a device, or one queue of a device, to many clients. The [module](crate) documents the
/// guarantees to clients.
pub struct NbdServer<D> {
    pub(super) device: D,
    pub(super) limits: Limits,
    pub(super) exports: ExportList,
    pub(super) pool: PayloadPool<ConnectionId>,
    pub(super) client_limits: ClientLimits,
    pub(super) connections: Connections,
    pub(super) in_flight: InFlightRequests,
    pub(super) work: WorkQueues,
    pub(super) scratch: Box<[u8]>,
    pub(super) counters: Arc<Counters>,
    pub(super) group: GroupMember,
    pub(super) parker: Parker,
    pub(super) config: NbdConfig,
    pub(super) sockets: SocketSet,
    pub(super) next_sweep: Nanos,
}

impl<D> fmt::Debug for NbdServer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NbdServer")
            .field("endpoints", &self.sockets.endpoints)
            .field("export", self.exports.own())
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl<D: BlockDevice> NbdServer<D> {
    /// Listens on `endpoints` and prepares `device`: registers the payload memory and sets the
    /// waker. Clients can connect from now on; [`run`](NbdServer::run) serves them.
    ///
    /// # Errors
    /// [`NbdError`]; nothing is left listening then.
    pub fn new(
        device: D,
        endpoints: &[Endpoint],
        config: NbdConfig,
    ) -> Result<NbdServer<D>, NbdError> {
        NbdServer::group(vec![device], endpoints, config)?.pop().ok_or(NbdError::NoDevice)
    }

    /// Creates the servers of one export, one per queue of a device, as [`new`](NbdServer::new)
    /// does for a single one. Each [runs](NbdServer::run) on a thread of its own.
    ///
    /// The first server listens, and gives each client to the server with the fewest open
    /// connections, of equals to the first. `devices` are queues of one device: a flush on any of
    /// them makes durable every write that had completed on any of them when it was submitted. The
    /// server announces that to clients (`CAN_MULTI_CONN`).
    ///
    /// # Errors
    /// [`NbdError`]; nothing is left listening then.
    pub fn group(
        devices: Vec<D>,
        endpoints: &[Endpoint],
        config: NbdConfig,
    ) -> Result<Vec<NbdServer<D>>, NbdError> {
        let export = NbdExport { devices, endpoints: endpoints.to_vec(), config, end_group: 0 };
        NbdServer::exports(vec![export])?.pop().ok_or(NbdError::NoDevice)
    }

    /// Creates the servers of several exports, each as [`group`](NbdServer::group) does, in the
    /// order of the exports. All of them have one `stop` when they [run](NbdServer::run).
    ///
    /// # Errors
    /// [`NbdError`]; nothing is left listening then.
    pub fn exports(exports: Vec<NbdExport<D>>) -> Result<Vec<Vec<NbdServer<D>>>, NbdError> {
        for export in &exports {
            export.check()?;
        }
        let mut listeners = ListenerSet::bind(&exports)?;
        let mut properties = Vec::with_capacity(exports.len());
        for NbdExport { devices, config, .. } in &exports {
            let device = devices.first().ok_or(NbdError::NoDevice)?;
            properties.push(Export::new(device.limits(), config, payload_bytes_max(config)));
        }
        let lists = ExportList::group(properties, std::mem::take(&mut listeners.exports));
        let (mut parkers, mut counters) = (Vec::new(), Vec::new());
        for NbdExport { devices, .. } in &exports {
            let mut of_export = Vec::with_capacity(devices.len());
            for _ in devices {
                of_export.push(Parker::new()?);
            }
            parkers.push(of_export);
            counters.push(devices.iter().map(|_| Arc::default()).collect::<Vec<Arc<Counters>>>());
        }
        let stats: Vec<_> = counters.iter().map(|each| NbdStatsReader::new(each)).collect();
        let places = exports.iter().zip(&parkers).enumerate().flat_map(|(i, (export, parkers))| {
            parkers.iter().map(move |parker| (parker.waker(), i, export.end_group))
        });
        let mut members = GroupMember::group(places, &stats).into_iter();
        let mut groups = Vec::with_capacity(exports.len());
        for (index, export) in exports.into_iter().enumerate() {
            let mut servers = Vec::with_capacity(export.devices.len());
            let each = parkers.remove(0).into_iter().zip(counters.remove(0));
            let mut listening = std::mem::take(&mut listeners.own[index]);
            for (mut device, (parker, counters)) in export.devices.into_iter().zip(each) {
                device.set_waker(parker.waker());
                let listening = std::mem::take(&mut listening);
                let sockets = SocketSet::new(listening, listeners.endpoints[index].clone())?;
                // As many as there are devices.
                let group = members.next().ok_or(NbdError::NoDevice)?;
                let parts = ServerParts { group, exports: lists[index].clone(), parker, counters };
                servers.push(NbdServer::from_parts(device, parts, sockets, export.config.clone())?);
            }
            groups.push(servers);
        }
        Ok(groups)
    }

    /// Creates one server and registers its payload memory.
    fn from_parts(
        device: D,
        parts: ServerParts,
        sockets: SocketSet,
        config: NbdConfig,
    ) -> Result<NbdServer<D>, NbdError> {
        let limits = *device.limits();
        let quarter = PayloadPool::<ConnectionId>::quarter_bytes(config.pool_bytes);
        let (region, base) = device.memory().allocate_registered(4 * quarter)?;
        let ServerParts { group, exports, parker, counters } = parts;
        Ok(NbdServer {
            exports,
            limits,
            device,
            pool: PayloadPool::new(region, base),
            client_limits: ClientLimits {
                bytes_max: [SMALL_CLIENT_BYTES_MAX.min(quarter / 4), quarter / 4, usize::MAX],
                in_flight_max: config.in_flight_max.max(1),
            },
            connections: Connections::default(),
            in_flight: InFlightRequests::default(),
            work: WorkQueues::default(),
            scratch: vec![0; SCRATCH_BYTES].into(),
            counters,
            group,
            parker,
            config,
            sockets,
            next_sweep: Nanos::ZERO,
        })
    }

    /// Returns the endpoints in the order given, with the ports that the system chose.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.sockets.endpoints
    }

    /// Returns the waker of [`run`](NbdServer::run), to be used after setting `stop`.
    pub fn waker(&self) -> Waker {
        self.parker.waker()
    }

    /// Returns the counters of the export: the sums over the servers of its group.
    pub fn stats(&self) -> NbdStats {
        self.group.stats().snapshot()
    }

    /// Returns a reader of the export's counters for other threads.
    pub fn stats_reader(&self) -> NbdStatsReader {
        self.group.stats().clone()
    }

    /// Returns the device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device, after [`run`](NbdServer::run) has returned.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Serves until `stop` is set. Then accepts no more requests, completes those in flight, closes
    /// all connections, and flushes the device. `with` is polled on the same thread: the drive
    /// behind the device if it has no thread of its own, or a component that does nothing.
    ///
    /// After setting `stop`, [wake](NbdServer::waker) the server or interrupt its thread with a
    /// signal. A stopped server no longer listens and cannot be run again.
    ///
    /// All servers of a group have the same `stop`, and each must be woken. A server whose sockets
    /// fail sets it and wakes the others. Each returns when all of its end group have flushed or were
    /// dropped.
    ///
    /// # Errors
    /// The first of: those of `epoll_wait(2)`, `epoll_ctl(2)` and `ppoll(2)`, and the status of the
    /// last flush if it failed. After such a failure, acknowledged writes may not be durable.
    pub fn run(
        &mut self,
        clock: RealClock,
        idle: IdlePolicy,
        with: &mut dyn Component,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        let served = self.serve_clients(clock, idle, with, stop);
        if served.is_err() {
            stop.store(true, Ordering::Relaxed);
            self.group.wake_others();
            self.abandon_clients(clock, with);
        }
        let ended = self.end_run(clock, idle, with);
        served.and(ended)
    }

    /// Serves until `stop` is set and every connection is closed.
    fn serve_clients(
        &mut self,
        clock: RealClock,
        idle: IdlePolicy,
        with: &mut dyn Component,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        let mut wait = IdleWait::new(idle);
        let mut sockets_at = Nanos::ZERO;
        loop {
            let now = clock.now();
            if !self.is_stopping() && stop.load(Ordering::Relaxed) {
                self.begin_stop(now);
            }
            let mut moved = false;
            if now >= sockets_at {
                moved |= self.poll_sockets(now)?;
                sockets_at =
                    if self.in_flight.is_empty() { now } else { now + SOCKET_POLL_INTERVAL };
            }
            moved |= self.poll_once(now, clock, with);
            if now >= self.next_sweep {
                self.sweep(now)?;
            }
            if self.is_stopping() && self.connections.open_count() == 0 && self.in_flight.is_empty()
            {
                return Ok(());
            }
            if moved {
                wait.reset();
                continue;
            }
            if wait.must_spin(now, || self.device.deadline().min(with.deadline())) {
                std::hint::spin_loop();
                continue;
            }
            self.parker.prepare();
            if self.poll_once(clock.now(), clock, with)
                || (!self.is_stopping() && stop.load(Ordering::Relaxed))
            {
                self.parker.unpark();
                wait.reset();
                continue;
            }
            let now = clock.now();
            let deadline = self.device.deadline().min(with.deadline());
            let mut timeout = wait.park_timeout(now, deadline);
            if self.needs_sweeping() {
                timeout = timeout.min(self.next_sweep.since(now));
            }
            // An epoll descriptor is readable when it has events. Sleeping in ppoll(2) instead of
            // epoll_wait(2) gives a timeout in nanoseconds instead of milliseconds.
            self.parker.park(&[self.sockets.epoll.as_fd()], timeout)?;
            sockets_at = Nanos::ZERO;
            wait.reset();
        }
    }

    /// Does all work that does not need the sockets polled.
    pub(super) fn poll_once(
        &mut self,
        now: Nanos,
        clock: RealClock,
        with: &mut dyn Component,
    ) -> bool {
        let mut moved = self.group.has_assigned() && self.admit_assigned(now);
        // Clients that become ready again meanwhile wait for the next iteration.
        for _ in 0..self.work.ready_len() {
            let Some(id) = self.work.pop_ready() else {
                break;
            };
            moved |= self.serve(id, now);
        }
        moved |= self.in_flight.has_backlog() && self.retry_backlog(now);
        moved |= self.device.poll(now);
        moved |= with.poll(now);
        moved |= self.reap(now, clock);
        moved |= self.work.has_dirty() && self.send();
        if self.pool.has_waiters() {
            moved |= self.grant_memory();
        }
        self.counters.memory_bytes.set(self.pool.in_use());
        moved | (self.work.ready_len() > 0)
    }

    /// Polls epoll for socket events.
    fn poll_sockets(&mut self, now: Nanos) -> io::Result<bool> {
        let mut room = [const { MaybeUninit::uninit() }; EVENTS_PER_ITERATION];
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        let events = match epoll::wait(&self.sockets.epoll, &mut room, Some(&no_wait)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(false),
            Err(e) => return Err(e.into()),
        };
        for event in &*events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token & LISTENER != 0 {
                self.accept((token & !LISTENER) as usize, now)?;
            } else {
                self.on_socket_event(
                    ConnectionId { slot: token as u32, generation: (token >> 32) as u32 },
                    flags,
                );
            }
        }
        Ok(!events.is_empty())
    }

    /// Records a client's socket events.
    fn on_socket_event(&mut self, id: ConnectionId, flags: EventFlags) {
        let Some(c) = self.connections.get_mut(id) else {
            return;
        };
        let gone = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        if flags.intersects(EventFlags::IN | gone) {
            c.input.readable = true;
            c.input.hung_up |= flags.intersects(gone);
            self.work.mark_ready(c);
        }
        if flags.intersects(EventFlags::OUT | gone) {
            self.work.mark_dirty(c);
        }
    }

    /// Enables or disables notification when a client's socket becomes writable.
    pub(super) fn await_writable(&self, c: &mut Connection, wanted: bool) {
        self.sockets.await_writable(c, wanted);
    }

    /// Returns whether timeouts must be checked.
    fn needs_sweeping(&self) -> bool {
        // Tracking idle clients is not worth its cost: check ten times a second while any client is
        // connected.
        self.sockets.accept_paused || self.is_stopping() || self.connections.open_count() > 0
    }

    /// Drops clients that exceeded a timeout.
    fn sweep(&mut self, now: Nanos) -> io::Result<()> {
        #[cfg(debug_assertions)]
        if let Err(violation) = self.check_invariants() {
            panic!("nbd: {violation}");
        }
        self.next_sweep = now + TIMEOUT_SWEEP_INTERVAL;
        if self.sockets.accept_paused && !self.is_stopping() {
            self.sockets.resume_accept()?;
        }
        let short = self.pool.has_waiters();
        for id in self.connections.ids() {
            let Some(c) = self.connections.get_mut(id) else {
                continue;
            };
            let mut why = None;
            if matches!(c.phase, Phase::Handshake(_))
                && now.since(c.progress.connected_at) >= self.config.handshake_timeout
            {
                why = Some("the handshake took too long");
            }
            if let Some(since) = &mut c.closing.since {
                if c.in_flight > 0 {
                    // Time that requests spend in the device does not count against the client.
                    *since = now;
                } else if now.since(*since) >= self.config.linger {
                    why = Some("replies were not taken");
                }
            }
            if !short || !c.is_holding_pool_memory() {
                c.progress.mark(now);
            } else if c.progress.time_since_mark(now) >= self.config.stall_timeout {
                if c.progress.bytes_since_mark() < STALL_PROGRESS_BYTES {
                    why = Some("held memory that others wait for");
                }
                c.progress.mark(now);
            }
            if let Some(why) = why
                && let Some(c) = self.connections.take(id)
            {
                self.drop_client(c, why);
            }
        }
        if short {
            self.grant_memory();
        }
        Ok(())
    }

    /// Returns whether the server is stopping.
    pub(super) fn is_stopping(&self) -> bool {
        self.group.is_stopping()
    }

    /// Stops accepting connections and requests.
    pub(super) fn begin_stop(&mut self, now: Nanos) {
        self.group.begin_stop();
        self.sockets.listeners.clear();
        for id in self.connections.ids() {
            let Some(c) = self.connections.get_mut(id) else {
                continue;
            };
            c.closing.since.get_or_insert(now);
            self.work.mark_ready(c);
        }
    }
}
