//! [`ConnectionManager`]: connections of client processes, and notification of their end.
//!
//! Two kinds of connections arrive at one socket. A process without a session sends the token and
//! receives two memory files: its slots and the doorbell. A socket with an autobind name
//! (`unix(7)`) will represent an open file; the call that opens the file names it.
//!
//! # Concurrency
//!
//! The service's thread never blocks here. The listener thread waits for all these descriptors, and
//! for the device while the service sleeps, and rings the doorbell. The service makes a system call
//! for connection events only after the listener has flagged one.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use event::{Parker, Waker};
use mem::SharedRegion;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use rustix::process::{PidfdFlags, pidfd_open};
use rustix::thread::futex;
use time::Nanos;

/// Address of a service, passed in the environment of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAddress {
    /// The abstract name of its socket.
    pub name: String,
    /// Secret that a process must send: [`exec_proto::TOKEN_BYTES`] hexadecimal digits. Every user of
    /// the machine can read the name of the socket; only the program's user can read its
    /// environment.
    pub token: String,
}

impl ServiceAddress {
    /// Returns the value of [`exec_proto::ENV_SERVICE`].
    pub fn environment(&self) -> String {
        format!("{} {}", self.name, self.token)
    }
}

/// A connection event.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// A process requests a session.
    Hello { stream: UnixStream, process: u32, pidfd: OwnedFd },
    /// The last descriptor of an open file may have been closed.
    FileClosed(u64),
    /// The process of a session has ended.
    ProcessExited(usize),
}

/// Maximum number of a process's connections without a handshake, and of its unclaimed sockets.
/// Both normally last microseconds. A process that exceeds the limit loses some of its own.
const PENDING_SOCKETS_MAX: usize = 64;

/// Pending connections, each with its process id.
type PendingSockets = BTreeMap<u64, (i32, UnixStream)>;

/// Adds a connection; if its process has too many, drops another one of that process.
fn add_pending(waiting: &mut PendingSockets, number: u64, process: i32, stream: UnixStream) {
    let own = |(_, (of, _)): &(&u64, &(i32, UnixStream))| *of == process;
    if waiting.len() >= PENDING_SOCKETS_MAX
        && waiting.iter().filter(own).count() >= PENDING_SOCKETS_MAX
        && let Some((&first, _)) = waiting.iter().find(own)
    {
        waiting.remove(&first);
    }
    waiting.insert(number, (process, stream));
}

const LISTENER: u64 = 0;
const HANDSHAKE: u64 = 1;
const FILE: u64 = 2;
const SESSION: u64 = 3;
const STOP: u64 = 4;

fn tag(kind: u64, number: u64) -> epoll::EventData {
    epoll::EventData::new_u64(kind << 56 | number)
}

pub(crate) struct ConnectionManager {
    listener: UnixListener,
    token: String,
    events: Arc<OwnedFd>,
    buffer: Vec<epoll::Event>,
    /// Processes that have not sent their token yet.
    pending_handshakes: PendingSockets,
    next_handshake: u64,
    /// Sockets that no call has claimed yet.
    unclaimed_sockets: PendingSockets,
    listener_thread: Option<JoinHandle<()>>,
    shared: Arc<ListenerShared>,
    stopper: UnixStream,
    /// Kept open, so that writing to `stopper` works.
    _stopped: UnixStream,
}

/// State shared by the service's thread and the listener thread.
#[derive(Debug)]
struct ListenerShared {
    /// Woken by the device while the service sleeps.
    parker: Parker,
    /// An event is pending that the service has not processed.
    event_pending: AtomicBool,
    stop: AtomicBool,
}

impl ListenerShared {
    /// Waits for events until the manager is dropped.
    fn listen(&self, events: &OwnedFd, bell: &SharedRegion) {
        while !self.stop.load(Ordering::Acquire) {
            // EINTR is harmless: the service polls anyway. The device's wakeup is consumed here and
            // passed on by the doorbell.
            let _ = self.parker.park(&[events.as_fd()], Nanos::MAX);
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let knocks = poll(&mut [PollFd::new(events, PollFlags::IN)], Some(&now)) != Ok(0);
            if knocks {
                self.event_pending.store(true, Ordering::SeqCst);
            }
            ring_doorbell(bell);
            // Wait until the service has processed the events.
            while knocks
                && self.event_pending.load(Ordering::SeqCst)
                && !self.stop.load(Ordering::Acquire)
            {
                thread::park();
            }
        }
    }
}

impl std::fmt::Debug for ConnectionManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("unnamed", &self.unclaimed_sockets).finish_non_exhaustive()
    }
}

impl ConnectionManager {
    pub(crate) fn open(
        address: &ServiceAddress,
        bell: Arc<SharedRegion>,
    ) -> io::Result<ConnectionManager> {
        let name = SocketAddr::from_abstract_name(&address.name)?;
        let listener = UnixListener::bind_addr(&name)?;
        listener.set_nonblocking(true)?;
        let events = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&events, &listener, tag(LISTENER, 0), epoll::EventFlags::IN)?;
        let (stopper, stopped) = UnixStream::pair()?;
        epoll::add(&events, &stopped, tag(STOP, 0), epoll::EventFlags::IN)?;
        let (knocked, stop) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared =
            Arc::new(ListenerShared { parker: Parker::new()?, event_pending: knocked, stop });
        let (theirs, ears) = (events.clone(), shared.clone());
        let listen = move || ears.listen(&theirs, &bell);
        let ears = thread::Builder::new().name("sluice-door".into()).spawn(listen)?;
        Ok(ConnectionManager {
            listener,
            token: address.token.clone(),
            events,
            buffer: Vec::with_capacity(64),
            pending_handshakes: BTreeMap::new(),
            next_handshake: 0,
            unclaimed_sockets: BTreeMap::new(),
            listener_thread: Some(ears),
            shared,
            stopper,
            _stopped: stopped,
        })
    }

    /// Returns the waker for the device: it wakes the listener thread, which rings the doorbell.
    pub(crate) fn waker(&self) -> Waker {
        self.shared.parker.waker()
    }

    /// Prepares for the service's sleep: device wakeups ring the doorbell from now on. The service
    /// must poll the device once more after this call.
    pub(crate) fn on_park(&self) {
        self.shared.parker.prepare();
    }

    /// Ends the preparation: the service polls the device itself again.
    pub(crate) fn on_unpark(&self) {
        self.shared.parker.unpark();
    }

    /// Returns whether an unprocessed event is flagged. A very recent event may not be flagged yet;
    /// only [`drain_events`](ConnectionManager::drain_events) is exact.
    pub(crate) fn has_pending_event(&self) -> bool {
        self.shared.event_pending.load(Ordering::SeqCst)
    }

    /// Collects the events that have occurred; never blocks.
    pub(crate) fn drain_events(&mut self, heard: &mut Vec<ConnectionEvent>) -> io::Result<()> {
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = std::mem::take(&mut self.buffer);
        let waited =
            epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut events), Some(&now));
        match waited {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events.drain(..) {
            let number = event.data.u64() & ((1 << 56) - 1);
            match event.data.u64() >> 56 {
                // Without a free descriptor, the connection is accepted later.
                LISTENER => drop(self.accept()),
                HANDSHAKE => self.finish_handshake(number, heard),
                FILE => {
                    // Drop an unclaimed socket that was closed. Its number may have belonged to an
                    // earlier open file, which this event then refers to.
                    let closed = |mut end: &UnixStream| matches!(end.read(&mut [0]), Ok(0));
                    match self.unclaimed_sockets.get(&number) {
                        Some((_, end)) if closed(end) => {
                            drop(self.unclaimed_sockets.remove(&number))
                        }
                        _ => heard.push(ConnectionEvent::FileClosed(number)),
                    }
                }
                SESSION => heard.push(ConnectionEvent::ProcessExited(number as usize)),
                // The owner drops the service.
                STOP => {}
                kind => panic!("connections: an event of unknown kind {kind}"),
            }
        }
        self.buffer = events;
        if self.shared.event_pending.swap(false, Ordering::SeqCst)
            && let Some(ears) = &self.listener_thread
        {
            ears.thread().unpark();
        }
        Ok(())
    }

    /// Accepts all waiting connections that are permitted.
    ///
    /// # Errors
    /// If no descriptor is left for a connection, which then keeps waiting.
    fn accept(&mut self) -> io::Result<()> {
        loop {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The peer has disconnected already.
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(e) => return Err(e),
            };
            // Every user of the machine sees the socket's name, so check the peer's user. A program
            // of root may have changed its user.
            let own = rustix::process::geteuid();
            let Ok(peer) = sockopt::socket_peercred(&stream) else { continue };
            if !own.is_root() && peer.uid != own || stream.set_nonblocking(true).is_err() {
                continue;
            }
            let process = peer.pid.as_raw_nonzero().get();
            let hung_up = epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
            match from.as_abstract_name().and_then(parse_socket_number) {
                Some(number) => {
                    if epoll::add(&self.events, &stream, tag(FILE, number), hung_up).is_ok() {
                        add_pending(&mut self.unclaimed_sockets, number, process, stream);
                    }
                }
                None => {
                    self.next_handshake += 1;
                    let number = self.next_handshake;
                    let comes = epoll::EventFlags::IN;
                    if epoll::add(&self.events, &stream, tag(HANDSHAKE, number), comes).is_ok() {
                        add_pending(&mut self.pending_handshakes, number, process, stream);
                    }
                }
            }
        }
    }

    fn finish_handshake(&mut self, number: u64, heard: &mut Vec<ConnectionEvent>) {
        let Some((_, mut stream)) = self.pending_handshakes.remove(&number) else { return };
        let mut said = [0; exec_proto::TOKEN_BYTES];
        // The token is small enough to arrive in one piece; a shorter message is rejected.
        let known = matches!(stream.read(&mut said), Ok(len) if len == said.len())
            && said == self.token.as_bytes();
        let Ok(peer) = sockopt::socket_peercred(&stream) else { return };
        if !known {
            return;
        }
        // A process that has ended already needs no session.
        if let Ok(pidfd) = pidfd_open(peer.pid, PidfdFlags::empty()) {
            let process = peer.pid.as_raw_nonzero().get() as u32;
            heard.push(ConnectionEvent::Hello { stream, process, pidfd });
        }
    }

    /// Watches for the end of a session's process.
    pub(crate) fn watch_process(&self, session: usize, pidfd: &OwnedFd) -> io::Result<()> {
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        Ok(epoll::add(&self.events, pidfd, tag(SESSION, session as u64), once)?)
    }

    /// Claims the socket with a number to represent an open file. The other end becomes readable,
    /// as files are for `poll(2)`.
    ///
    /// # Errors
    /// `ENFILE` without a free descriptor, `EINVAL` if no such socket exists.
    pub(crate) fn claim(&mut self, number: u64) -> Result<UnixStream, Errno> {
        let mut stream = self.take_socket(number)?;
        stream.write_all(&[0]).map_err(|_| Errno::INVAL)?;
        // Data written to the socket by calls that the library does not intercept fails instead of
        // being lost.
        stream.shutdown(std::net::Shutdown::Read).map_err(|_| Errno::INVAL)?;
        Ok(stream)
    }

    /// Takes the socket with a number, unchanged.
    ///
    /// # Errors
    /// As for [`claim`](ConnectionManager::claim).
    pub(crate) fn take_socket(&mut self, number: u64) -> Result<UnixStream, Errno> {
        if !self.unclaimed_sockets.contains_key(&number) {
            self.accept().map_err(|_| Errno::NFILE)?;
        }
        self.unclaimed_sockets.remove(&number).map(|(_, stream)| stream).ok_or(Errno::INVAL)
    }

    /// Drops the socket of a file that could not be opened.
    pub(crate) fn drop_socket(&mut self, number: u64) {
        self.unclaimed_sockets.remove(&number);
    }
}

impl Drop for ConnectionManager {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // The socket cannot be full: this is its only write.
        let _ = self.stopper.write_all(&[0]);
        if let Some(ears) = self.listener_thread.take() {
            ears.thread().unpark();
            let _ = ears.join();
        }
    }
}

/// Parses an autobind name of five hexadecimal digits into a handle, which is never 0.
fn parse_socket_number(name: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(name).ok().filter(|digits| digits.len() == 5)?;
    u64::from_str_radix(digits, 16).ok().map(|number| exec_proto::FILE_HANDLE_BASE + number)
}

/// Rings the doorbell, and wakes the service if it sleeps.
pub(crate) fn ring_doorbell(bell: &SharedRegion) {
    let word = bell.atomic_u32(exec_proto::DOORBELL);
    if exec_proto::slot_protocol::ring_doorbell(word, bell.atomic_u32(exec_proto::SERVICE_PARKED)) {
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

/// Sends a process the descriptors of its memory.
pub(crate) fn send_memory(stream: &UnixStream, memory: [&SharedRegion; 2]) -> io::Result<()> {
    let none = || io::Error::other("memory that cannot be shared");
    let [slots, bell] = memory;
    let slots = slots.backing().ok_or_else(none)?;
    let bell = bell.backing().ok_or_else(none)?;
    let descriptors = [slots.as_fd(), bell.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let greeting = exec_proto::MAGIC.to_le_bytes();
    sendmsg(stream, &[IoSlice::new(&greeting)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
