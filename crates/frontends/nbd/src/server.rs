//! [`NbdServer`]: the server thread. It owns the device and every client; it polls the device and the sockets,
//! spins while there is work, and sleeps otherwise.
//!
//! One iteration: poll the sockets, serve the ready clients, poll the device, reap its completions,
//! and send each client's replies in one call. While the device is busy, sockets are polled once
//! per [`SOCKET_POLL_INTERVAL`], because that is a system call.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{BlockDevice, Limits, Request};
use event::{IdlePolicy, IdleWait, Parker, RealClock, Waker};
use mem::RegisterError;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use time::{Component, Nanos};

use crate::NbdConfig;
use crate::connection::{Connection, ConnectionId, Connections, Phase, WorkQueues};
use crate::endpoint::{Endpoint, EndpointBindError, StreamListener};
use crate::export::Export;
use crate::in_flight::InFlightRequests;
use crate::pool::{PayloadPool, SIZE_CLASSES};
use crate::protocol::handshake::Handshake;
use crate::protocol::wire::{PAYLOAD_BYTES_MAX, STRING_BYTES_MAX};
use crate::stats::{Counters, NbdStats, NbdStatsReader};

/// Interval of socket polls while the device is busy.
const SOCKET_POLL_INTERVAL: Nanos = Nanos::from_micros(2);
/// Interval of timeout checks.
const TIMEOUT_SWEEP_INTERVAL: Nanos = Nanos::from_millis(100);
/// Bytes that a client must move within [`NbdConfig::stall_timeout`] while others wait for it.
const STALL_PROGRESS_BYTES: u64 = 1 << 20;
/// Limit of one client's small payloads, in the device and in its send queue.
const SMALL_CLIENT_BYTES_MAX: usize = 1 << 20;
/// Buffer through which payloads pass: large enough to make system calls rare, small enough to stay
/// in the second-level cache.
const SCRATCH_BYTES: usize = 256 << 10;
/// Maximum number of clients accepted, and of events handled, per iteration.
const ACCEPTS_PER_ITERATION: usize = 64;
const EVENTS_PER_ITERATION: usize = 128;
/// Marks the token of a listener; other tokens are connections.
const LISTENER: u64 = 1 << 63;

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    /// An endpoint cannot be listened on.
    #[error(transparent)]
    Bind(#[from] EndpointBindError),
    /// No endpoint was given.
    #[error("an NBD server needs at least one endpoint")]
    NoEndpoint,
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

/// Listeners, and the epoll set of all sockets.
#[derive(Debug)]
struct SocketSet {
    listeners: Vec<StreamListener>,
    endpoints: Vec<Endpoint>,
    epoll: OwnedFd,
    /// Listeners were removed from the epoll set because no descriptor was left for a client.
    accept_paused: bool,
}

impl SocketSet {
    fn new(epoll: OwnedFd, listeners: Vec<StreamListener>) -> io::Result<SocketSet> {
        let endpoints = listeners.iter().map(|l| l.endpoint().clone()).collect();
        let mut sockets = SocketSet { listeners, endpoints, epoll, accept_paused: true };
        sockets.resume_accept()?;
        Ok(sockets)
    }

    fn pause_accept(&mut self) -> io::Result<()> {
        for listener in &self.listeners {
            epoll::delete(&self.epoll, listener)?;
        }
        self.accept_paused = true;
        Ok(())
    }

    fn resume_accept(&mut self) -> io::Result<()> {
        for (i, listener) in self.listeners.iter().enumerate() {
            let token = EventData::new_u64(LISTENER | i as u64);
            epoll::add(&self.epoll, listener, token, EventFlags::IN)?;
        }
        self.accept_paused = false;
        Ok(())
    }

    /// Watches a client's socket. Edge-triggered: a client that is not read for lack of memory
    /// causes no events.
    fn watch(&self, c: &Connection) -> rustix::io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, c.as_fd(), token(c.id), flags)
    }

    /// Enables or disables notification when a client's socket becomes writable.
    fn await_writable(&self, c: &mut Connection, wanted: bool) {
        if c.output.awaits_writable == wanted {
            return;
        }
        let mut flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        if wanted {
            flags |= EventFlags::OUT;
        }
        // Modifying an existing watch allocates nothing and cannot fail. It also reports the
        // current state at once, so that no transition is missed.
        let _ = epoll::modify(&self.epoll, c.as_fd(), token(c.id), flags);
        c.output.awaits_writable = wanted;
    }
}

fn token(id: ConnectionId) -> EventData {
    EventData::new_u64(u64::from(id.generation) << 32 | u64::from(id.slot))
}

/// Serves one device to many clients. The [module](crate) documents the guarantees to clients.
pub struct NbdServer<D> {
    pub(super) device: D,
    pub(super) limits: Limits,
    pub(super) export: Export,
    pub(super) pool: PayloadPool<ConnectionId>,
    pub(super) client_limits: ClientLimits,
    pub(super) connections: Connections,
    pub(super) in_flight: InFlightRequests,
    pub(super) work: WorkQueues,
    pub(super) scratch: Box<[u8]>,
    pub(super) counters: Arc<Counters>,
    config: NbdConfig,
    sockets: SocketSet,
    parker: Parker,
    next_sweep: Nanos,
    stopping: bool,
}

impl<D> fmt::Debug for NbdServer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NbdServer")
            .field("endpoints", &self.sockets.endpoints)
            .field("export", &self.export)
            .field("stopping", &self.stopping)
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
        mut device: D,
        endpoints: &[Endpoint],
        config: NbdConfig,
    ) -> Result<NbdServer<D>, NbdError> {
        let limits = *device.limits();
        if !limits.sector_bytes.is_power_of_two() || limits.sector_bytes > 1 << 16 {
            return Err(NbdError::SectorSize(limits.sector_bytes));
        }
        for (what, text) in [("name", &config.name), ("description", &config.description)] {
            if text.len() > STRING_BYTES_MAX {
                return Err(NbdError::TooLong { what, bytes: text.len() });
            }
        }
        if endpoints.is_empty() {
            return Err(NbdError::NoEndpoint);
        }
        let quarter = PayloadPool::<ConnectionId>::quarter_bytes(config.pool_bytes);
        let payload_max = (2 * quarter).min(PAYLOAD_BYTES_MAX as usize) as u32;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let mut listeners = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            listeners.push(StreamListener::bind(endpoint, config.allow_remote)?);
        }
        let (region, base) = device.memory().allocate_registered(4 * quarter)?;
        let parker = Parker::new()?;
        device.set_waker(parker.waker());
        let sockets = SocketSet::new(epoll, listeners)?;
        Ok(NbdServer {
            export: Export::new(&limits, &config, payload_max),
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
            counters: Arc::default(),
            config,
            sockets,
            parker,
            next_sweep: Nanos::ZERO,
            stopping: false,
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

    /// Returns the counters.
    pub fn stats(&self) -> NbdStats {
        self.stats_reader().snapshot()
    }

    /// Returns a reader of the counters for other threads.
    pub fn stats_reader(&self) -> NbdStatsReader {
        NbdStatsReader::new(&self.counters)
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
    /// # Errors
    /// Those of `epoll_wait(2)`, `epoll_ctl(2)` and `ppoll(2)`, and the status of the last flush if
    /// it failed. After such a failure, acknowledged writes may not be durable.
    pub fn run(
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
            if !self.stopping && stop.load(Ordering::Relaxed) {
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
            if self.stopping && self.connections.open_count() == 0 && self.in_flight.is_empty() {
                return self.finish_run(clock, with);
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
                || (!self.stopping && stop.load(Ordering::Relaxed))
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
    fn poll_once(&mut self, now: Nanos, clock: RealClock, with: &mut dyn Component) -> bool {
        let mut moved = false;
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

    /// Accepts waiting clients.
    fn accept(&mut self, listener: usize, now: Nanos) -> io::Result<()> {
        for _ in 0..ACCEPTS_PER_ITERATION {
            let Some(from) = self.sockets.listeners.get(listener) else {
                return Ok(());
            };
            let fd = match from.accept() {
                Ok(fd) => fd,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    tracing::warn!("no descriptor is left for another NBD client");
                    self.sockets.pause_accept()?;
                    self.next_sweep = now + TIMEOUT_SWEEP_INTERVAL;
                    return Ok(());
                }
                // No client waits, or it has disconnected already.
                Err(_) => return Ok(()),
            };
            if self.connections.open_count() >= self.config.connections_max {
                self.counters.connections_refused.add(1);
                let open = self.connections.open_count();
                tracing::warn!(open, "NBD client refused: too many connections");
                continue;
            }
            self.counters.connections.add(1);
            let c = self.connections.insert(fd, now);
            let id = c.id;
            tracing::info!(client = ?id, "NBD client connected");
            c.send_queue.append(|out| out.extend_from_slice(&Handshake::greeting()));
            if self.sockets.watch(c).is_err() {
                // Out of kernel memory for the watch: this client cannot be served.
                if let Some(c) = self.connections.take(id) {
                    self.drop_client(c, "epoll_ctl failed");
                }
                continue;
            }
            self.work.mark_dirty(c);
            self.work.mark_ready(c);
            self.counters.connections_open.set(self.connections.open_count() as u64);
        }
        Ok(())
    }

    /// Enables or disables notification when a client's socket becomes writable.
    pub(super) fn await_writable(&self, c: &mut Connection, wanted: bool) {
        self.sockets.await_writable(c, wanted);
    }

    /// Returns whether timeouts must be checked.
    fn needs_sweeping(&self) -> bool {
        // Tracking idle clients is not worth its cost: check ten times a second while any client is
        // connected.
        self.sockets.accept_paused || self.stopping || self.connections.open_count() > 0
    }

    /// Drops clients that exceeded a timeout.
    fn sweep(&mut self, now: Nanos) -> io::Result<()> {
        #[cfg(debug_assertions)]
        if let Err(violation) = self.check_invariants() {
            panic!("nbd: {violation}");
        }
        self.next_sweep = now + TIMEOUT_SWEEP_INTERVAL;
        if self.sockets.accept_paused && !self.stopping {
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
        self.stopping
    }

    /// Stops accepting connections and requests.
    fn begin_stop(&mut self, now: Nanos) {
        self.stopping = true;
        self.sockets.listeners.clear();
        for id in self.connections.ids() {
            let Some(c) = self.connections.get_mut(id) else {
                continue;
            };
            c.closing.since.get_or_insert(now);
            self.work.mark_ready(c);
        }
    }

    /// Flushes the device at the end.
    fn finish_run(&mut self, clock: RealClock, with: &mut dyn Component) -> io::Result<()> {
        let mut asked = false;
        loop {
            let now = clock.now();
            asked = asked || self.device.submit(now, Request::flush(u64::MAX)).is_ok();
            self.device.poll(now);
            with.poll(now);
            if let Some(completion) = self.device.reap() {
                self.counters.memory_bytes.set(self.pool.in_use());
                if completion.status.is_success() {
                    return Ok(());
                }
                let why = format!("the last flush failed: {}", completion.status);
                return Err(io::Error::other(why));
            }
            std::hint::spin_loop();
        }
    }
}
