//! [`ShareServer`]: the control thread, which accepts clients, reads what they ask, and lets go of them.
//!
//! Guarantees: it sleeps while nobody asks anything; a client can make it do one message's work at a
//! time, in turns with the others', and can neither block nor end it; what a client had is given back
//! as soon as its process has ended, however it has.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use clock::Waker;
use direct::remote::socket::{self, ReceivedPacket};
use direct::remote::{Code, IntervalStats, Message, ProtocolError, ResourceName};
use ring::Port;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::RecvFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::acl::{AclError, AclFile};
use super::client::{ClientConnection, Peer};
use super::listener::{ListenError, Listener};
use super::owner_call::OwnerCalls;
use super::partition_table::PartitionTable;

/// A drive that is shared, and how to reach who owns it.
#[derive(Clone, Debug)]
pub struct SharedDrive {
    /// What it is called.
    pub name: ResourceName,
    /// What its thread is asked.
    pub owner_calls: Arc<OwnerCalls>,
    /// Wakes that thread.
    pub waker: Waker,
    /// I/O queues of a host at most.
    pub io_queues: u16,
    /// What the drive does; `None` if that is not observed.
    pub stats: Option<StatsSource>,
}

/// What a drive has done since it was asked before, or since it is served; `None` when its threads do not
/// answer.
pub type StatsFollower = Box<dyn FnMut() -> Option<IntervalStats> + Send>;

/// Makes a [`StatsFollower`] for each connection that asks.
#[derive(Clone)]
pub struct StatsSource(Arc<dyn Fn() -> StatsFollower + Send + Sync>);

impl StatsSource {
    /// Of what makes followers. They are called on the control thread, which waits for them.
    pub fn new(source: impl Fn() -> StatsFollower + Send + Sync + 'static) -> StatsSource {
        StatsSource(Arc::new(source))
    }

    /// A follower whose first interval begins when the drive began to be served.
    pub(super) fn follow(&self) -> StatsFollower {
        (self.0)()
    }
}

impl fmt::Debug for StatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatsSource").finish_non_exhaustive()
    }
}

/// What clients may take of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    /// Connections of all users together.
    pub connections: usize,
    /// Connections of one user.
    pub connections_per_user: usize,
    /// Regions of memory that a connection may register.
    pub regions: usize,
    /// Bytes of memory that a connection may register.
    pub bytes: u64,
    /// Bytes of memory that one user's connections may register together.
    pub bytes_per_user: u64,
}

impl Default for ShareLimits {
    /// 1024 connections, 256 of a user; 64 regions of 256 MiB together, 1 GiB of a user.
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

/// How drives are shared.
#[derive(Clone, Debug)]
pub struct ShareConfig {
    /// The socket.
    pub path: PathBuf,
    /// Its permissions: who may connect at all.
    pub mode: u32,
    /// What clients may take.
    pub limits: ShareLimits,
    /// Where rules are kept that administrators set; without, they end with the server.
    pub acl_file: Option<AclFile>,
}

/// Drives cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The file of rules.
    #[error(transparent)]
    Acl(#[from] AclError),
    /// The system refuses.
    #[error("cannot run the control thread: {0}")]
    Io(#[from] io::Error),
}

/// What becomes of a connection after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterReply {
    Keep,
    Close,
}

/// The control thread's.
#[derive(Debug)]
pub(super) struct ControlThread {
    pub(super) table: PartitionTable,
    pub(super) drives: Vec<SharedDrive>,
    pub(super) limits: ShareLimits,
    pub(super) acl_file: Option<AclFile>,
    epoll: OwnedFd,
    listener: Listener,
    /// By number; 0 and 1 are the listener's and the bell's.
    pub(super) connections: BTreeMap<u64, ClientConnection>,
    next_client: u64,
    stop: Arc<AtomicBool>,
    wakeup_fd: Arc<OwnedFd>,
}

/// Drives being shared, until dropped or stopped.
#[derive(Debug)]
pub struct ShareServer {
    stop: Arc<AtomicBool>,
    wakeup_fd: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

const LISTENER: u64 = 0;
const WAKEUP: u64 = 1;
/// Messages that are looked at before the next are asked for.
const EVENTS: usize = 64;
/// Descriptors of a client's message.
const DESCRIPTORS: usize = 1;

impl ShareServer {
    /// Reads the rules that are kept, if any are, in place of the table's; listens, and starts the thread.
    ///
    /// # Errors
    /// [`ShareError`]; nothing is left listening then.
    pub fn start(
        config: &ShareConfig,
        mut table: PartitionTable,
        drives: Vec<SharedDrive>,
    ) -> Result<ShareServer, ShareError> {
        if let Some(rules) = &config.acl_file {
            rules.load_or_create(&mut table)?;
        }
        // Each client takes a dozen descriptors; the hard limit is the administrator's word.
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // Where it is refused, clients are refused earlier.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let listener = Listener::bind(&config.path, config.mode)?;
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
            drives,
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

    /// Tells every client that the server stops, and lets go of them.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        self.stop.store(true, Ordering::Release);
        // A full counter rings as well.
        let _ = rustix::io::write(&*self.wakeup_fd, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has let go of everything, too.
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

    /// Accepts who waits, one per turn.
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
            self.connections.insert(token, connection);
        }
    }

    /// One message of a client.
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
                    direct::remote::WireError::Version { .. } => Code::Version,
                    _ => Code::Malformed,
                };
                self.disconnect(client, Some(ProtocolError::new(code, error.to_string())));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(ReceivedPacket::Closed) | Err(_) => self.disconnect(client, None),
        }
    }

    /// Ends a connection. The drive lets go of it first: nothing is written to its memory from when
    /// it hears of the end.
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
        if let Some(drive) = self.drives.get(drive) {
            // A drive that is being shut down lets go of everybody.
            let _ = drive.owner_calls.call(&drive.waker, move |drive| drive.detach(&port).is_ok());
        }
    }
}
