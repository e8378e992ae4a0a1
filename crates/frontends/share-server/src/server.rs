//! [`ShareServer`]: the control thread, which accepts clients, handles their messages, and closes connections.
//!
//! # Guarantees
//!
//! - The thread sleeps while no client sends a message.
//! - A client can make it process one message at a time, interleaved with other clients', and can
//!   neither block nor stop it.
//! - A client's resources are released as soon as its process ends, however it ends.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use controller::Controller;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::RecvFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use share_proto::socket::{self, ReceivedPacket};
use share_proto::{Code, IntervalStats, Message, ProtocolError, ResourceName};
use transport::Port;

use super::acl::{AclError, AclFile};
use super::client::{ClientConnection, Peer};
use super::fault_injector::NamedFaultInjector;
use super::ftl_control::NamedFtl;
use super::listener::{ListenError, PacketListener};
use super::namespace_control::NamedNamespaces;
use super::owner_call::OwnerChannel;
use super::partition_table::PartitionTable;
use super::rule_control::NamedRules;

/// A shared drive, and how to reach its owner thread.
#[derive(Clone, Debug)]
pub struct SharedDrive {
    /// Name of the drive.
    pub name: ResourceName,
    /// Calls to the owner thread.
    pub owner: OwnerChannel<Controller>,
    /// Maximum number of I/O queues of a host.
    pub io_queues: u16,
    /// Whether hosts initialize the drive by its registers.
    pub has_registers: bool,
}

/// The parts of a server that its sockets give access to.
#[derive(Debug, Default)]
pub struct ServedParts {
    /// The shared drives.
    pub drives: Vec<SharedDrive>,
    /// The statistics for administrators.
    pub stats: Vec<NamedStats>,
    /// The drives and targets whose settings administrators may change.
    pub ftls: Vec<NamedFtl>,
    /// The drives into which administrators may inject faults.
    pub injectors: Vec<NamedFaultInjector>,
    /// The drives whose namespaces administrators may change.
    pub namespaces: Vec<NamedNamespaces>,
    /// The drives whose rules administrators may replace.
    pub rules: Vec<NamedRules>,
}

/// A served drive or path whose statistics administrators can read.
#[derive(Clone, Debug)]
pub struct NamedStats {
    /// Name of the drive or path.
    pub name: ResourceName,
    /// Its statistics.
    pub source: StatsSource,
}

/// Returns the statistics of a drive or path since its previous call, or since it is served. Returns
/// `None` if the threads do not answer.
pub type StatsFollower = Box<dyn FnMut() -> Option<IntervalStats> + Send>;

/// Creates a [`StatsFollower`] for each connection that requests statistics.
#[derive(Clone)]
pub struct StatsSource(Arc<dyn Fn() -> StatsFollower + Send + Sync>);

impl StatsSource {
    /// Creates a source from a function that creates followers. The control thread calls them and
    /// waits.
    pub fn new(source: impl Fn() -> StatsFollower + Send + Sync + 'static) -> StatsSource {
        StatsSource(Arc::new(source))
    }

    /// Returns a follower whose first interval begins when the drive began to be served.
    pub(super) fn follow(&self) -> StatsFollower {
        (self.0)()
    }
}

impl fmt::Debug for StatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatsSource").finish_non_exhaustive()
    }
}

/// Limits of the resources that clients can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum number of connections per user.
    pub connections_per_user: usize,
    /// Maximum number of registered regions per connection.
    pub regions: usize,
    /// Maximum bytes of registered memory per connection.
    pub bytes: u64,
    /// Maximum bytes of registered memory per user.
    pub bytes_per_user: u64,
}

impl Default for ShareLimits {
    /// 1024 connections, 256 per user; 64 regions, 256 MiB per connection, 1 GiB per user.
    fn default() -> ShareLimits {
        ShareLimits {
            connections: 1024,
            connections_per_user: 256,
            regions: 64,
            bytes: 256 << 20,
            bytes_per_user: 1 << 30,
        }
    }
}

/// Configuration of sharing.
#[derive(Clone, Debug)]
pub struct ShareConfig {
    /// The socket.
    pub path: PathBuf,
    /// Permissions of the socket, which decide who may connect.
    pub mode: u32,
    /// Limits of clients.
    pub limits: ShareLimits,
    /// File for rules that administrators set; without it, they are lost when the server ends.
    pub acl_file: Option<AclFile>,
}

/// Why drives cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// The socket cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The rules file cannot be used.
    #[error(transparent)]
    Acl(#[from] AclError),
    /// A system call failed.
    #[error("cannot run the control thread: {0}")]
    Io(#[from] io::Error),
}

/// Treatment of a connection after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterReply {
    Keep,
    Close,
}

/// State of the control thread.
#[derive(Debug)]
pub(super) struct ControlThread {
    pub(super) table: PartitionTable,
    pub(super) parts: ServedParts,
    pub(super) limits: ShareLimits,
    pub(super) acl_file: Option<AclFile>,
    epoll: OwnedFd,
    listener: PacketListener,
    /// By connection id; 0 and 1 are the listener and the wakeup descriptor.
    pub(super) connections: BTreeMap<u64, ClientConnection>,
    next_client: u64,
    stop: Arc<AtomicBool>,
    wakeup_fd: Arc<OwnedFd>,
}

/// A running server; dropping or stopping it closes all connections.
#[derive(Debug)]
pub struct ShareServer {
    stop: Arc<AtomicBool>,
    wakeup_fd: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

const LISTENER: u64 = 0;
const WAKEUP: u64 = 1;
/// Maximum number of events per `epoll_wait(2)`.
const EVENTS: usize = 64;
/// Maximum number of descriptors in a client's message.
const DESCRIPTORS: usize = 1;

impl ShareServer {
    /// Loads the rules file, if configured, into the table; listens, and starts the thread.
    ///
    /// # Errors
    /// [`ShareError`]; nothing is left listening then.
    pub fn start(
        config: &ShareConfig,
        mut table: PartitionTable,
        parts: ServedParts,
    ) -> Result<ShareServer, ShareError> {
        if let Some(rules) = &config.acl_file {
            rules.load_or_create(&mut table)?;
        }
        // Each client needs about a dozen descriptors; raise the soft limit to the hard limit.
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // If that fails, clients are refused earlier.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let listener = PacketListener::bind(&config.path, config.mode)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(io::Error::from)?);
        let watch = |fd: &dyn std::os::fd::AsFd, token| {
            let added = epoll::add(&epoll, fd.as_fd(), EventData::new_u64(token), EventFlags::IN);
            added.map_err(io::Error::from)
        };
        watch(&listener, LISTENER)?;
        watch(&*bell, WAKEUP)?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut control = ControlThread {
            table,
            parts,
            limits: config.limits,
            acl_file: config.acl_file.clone(),
            epoll,
            listener,
            connections: BTreeMap::new(),
            next_client: WAKEUP + 1,
            stop: stop.clone(),
            wakeup_fd: bell.clone(),
        };
        let thread = std::thread::Builder::new().name("share".into());
        let thread = Some(thread.spawn(move || control.run())?);
        Ok(ShareServer { stop, wakeup_fd: bell, thread })
    }

    /// Stops the server: notifies every client and closes its connection.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        self.stop.store(true, Ordering::Release);
        // A full counter wakes the thread as well.
        let _ = rustix::io::write(&*self.wakeup_fd, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has released everything, too.
            let _ = thread.join();
        }
    }
}

impl Drop for ShareServer {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl ControlThread {
    fn run(&mut self) {
        let mut events = [const { std::mem::MaybeUninit::<Event>::uninit() }; EVENTS];
        while !self.stop.load(Ordering::Acquire) {
            let found = match epoll::wait(&self.epoll, &mut events, None) {
                Ok((found, _)) => found,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!("the control thread cannot sleep, and ends: {error}");
                    break;
                }
            };
            for event in found {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    WAKEUP => drop(rustix::io::read(&*self.wakeup_fd, &mut [0; 8])),
                    client => self.receive(client),
                }
            }
        }
        let stopping = ProtocolError::new(Code::Stopping, "the server is shutting down");
        let all: Vec<_> = self.connections.keys().copied().collect();
        for client in all {
            self.disconnect(client, Some(stopping.clone()));
        }
    }

    /// Accepts one waiting client per iteration.
    fn accept(&mut self) {
        let Some(socket) = self.listener.accept() else { return };
        let Some(peer) = Peer::from_socket(&socket) else { return };
        let connection = ClientConnection::new(socket, peer);
        let of_user = self.connections.values().filter(|c| c.peer.uid == peer.uid).count();
        let ShareLimits { connections, connections_per_user, .. } = self.limits;
        let refused = if self.connections.len() >= connections {
            Some(format!("{connections} connections are open, and no more are possible"))
        } else if of_user >= connections_per_user {
            let uid = peer.uid;
            Some(format!("uid {uid} has {of_user} connections open, and may have no more"))
        } else {
            None
        };
        if let Some(text) = refused {
            tracing::warn!(pid = peer.pid, uid = peer.uid, "client refused: {text}");
            connection.send(
                0,
                Message::Disconnect(ProtocolError::new(Code::Connections, text)),
                &[],
            );
            return;
        }
        let token = self.next_client;
        let data = EventData::new_u64(token);
        if epoll::add(&self.epoll, connection.socket(), data, EventFlags::IN).is_ok() {
            self.next_client += 1;
            tracing::info!(client = token, pid = peer.pid, uid = peer.uid, "client connected");
            self.connections.insert(token, connection);
        }
    }

    /// Receives and handles one message of a client.
    fn receive(&mut self, client: u64) {
        let Some(connection) = self.connections.get(&client) else { return };
        match socket::receive(connection.socket(), DESCRIPTORS, RecvFlags::DONTWAIT) {
            Ok(ReceivedPacket::Packet(packet, descriptors)) => {
                if self.handle_message(client, packet, descriptors) == AfterReply::Close {
                    self.disconnect(client, None);
                }
            }
            Ok(ReceivedPacket::Malformed(error)) => {
                let code = match error {
                    share_proto::WireError::Version { .. } => Code::Version,
                    _ => Code::Malformed,
                };
                self.disconnect(client, Some(ProtocolError::new(code, error.to_string())));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(ReceivedPacket::Closed) | Err(_) => self.disconnect(client, None),
        }
    }

    /// Closes a connection. The drive detaches its port first: it does not write to the client's
    /// memory after the client is told of the end.
    pub(super) fn disconnect(&mut self, client: u64, why: Option<ProtocolError>) {
        let Some(mut connection) = self.connections.remove(&client) else { return };
        if let Some(open) = connection.device.take() {
            self.detach(open.drive, open.port);
        }
        if let Some(why) = why {
            connection.send(0, Message::Disconnect(why), &[]);
        }
    }

    pub(super) fn detach(&self, drive: usize, port: Arc<Port>) {
        if let Some(drive) = self.parts.drives.get(drive) {
            // A drive that is shutting down detaches every port.
            let _ = drive.owner.call(move |drive| drive.detach(&port).is_ok());
        }
    }
}
