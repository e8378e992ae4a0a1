//! [`ConnectionManager`]: how processes come to the service, and how it hears that they, or what they opened, are gone.
//!
//! Two kinds of connections come to one socket. A process without a session sends the token and gets two
//! memory files, its slots and the bell. A socket that has a name of its own (`unix(7)`, autobind) is to stand
//! for an open file; the call that opens the file names it.
//!
//! The service's thread takes part only without waiting. A thread of the door's waits for all these descriptors, and
//! for the device while the service sleeps, and rings the bell. The service then makes a system call to hear what
//! came to the door, and not before somebody came.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use clock::{Nanos, Parker, Waker};
use ring::SharedRegion;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use rustix::process::{PidfdFlags, pidfd_open};
use rustix::thread::futex;

/// Where a service is: what goes into the environment of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The abstract name of its socket.
    pub name: String,
    /// What a process must know to be let in: [`slots::TOKEN`] hexadecimal digits. The name of the socket can be
    /// read by everybody on the machine, the environment by the program's user only.
    pub token: String,
}

impl Address {
    /// As the value of [`slots::ENV_SERVICE`].
    pub fn environment(&self) -> String {
        format!("{} {}", self.name, self.token)
    }
}

/// What has happened at the door.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// A process wants a session.
    Hello { stream: UnixStream, process: u32, pidfd: OwnedFd },
    /// The last copy of what stands for an open file may be closed.
    FileClosed(u64),
    /// The process of a session has ended.
    ProcessExited(usize),
}

/// A process's connections at most that have said nothing yet, and its sockets that no call has named: who does that is
/// gone after some microseconds. Of more, some lose theirs.
const PENDING_SOCKETS_MAX: usize = 64;

/// Connections that something is to come of, each with the process that it is of.
type PendingSockets = BTreeMap<u64, (i32, UnixStream)>;

/// Adds one; a process that has too many loses another one of its own.
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
    /// Sockets that no call has named yet.
    unclaimed_sockets: PendingSockets,
    listener_thread: Option<JoinHandle<()>>,
    shared: Arc<ListenerShared>,
    stopper: UnixStream,
    /// Kept, so that `stopper` can be written to.
    _stopped: UnixStream,
}

/// What the service's thread and the door's share.
#[derive(Debug)]
struct ListenerShared {
    /// Woken by the device, while the service sleeps.
    parker: Parker,
    /// Somebody came to the door, and the service has not heard it.
    event_pending: AtomicBool,
    stop: AtomicBool,
}

impl ListenerShared {
    /// Listens until the door is closed.
    fn listen(&self, events: &OwnedFd, bell: &SharedRegion) {
        while !self.stop.load(Ordering::Acquire) {
            // Interrupted or not: the service looks. What the device said is forgotten here: the bell says it.
            let _ = self.parker.park(&[events.as_fd()], Nanos::MAX);
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let knocks = poll(&mut [PollFd::new(events, PollFlags::IN)], Some(&now)) != Ok(0);
            if knocks {
                self.event_pending.store(true, Ordering::SeqCst);
            }
            ring_doorbell(bell);
            // Until the service has heard.
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
        address: &Address,
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

    /// Whom the device is to wake: who waits at the door, and rings for the service.
    pub(crate) fn waker(&self) -> Waker {
        self.shared.parker.waker()
    }

    /// The service is about to sleep: from now on the device's word rings the bell. The service looks at the device
    /// once more after this.
    pub(crate) fn on_park(&self) {
        self.shared.parker.prepare();
    }

    /// The service looks at the device by itself again.
    pub(crate) fn on_unpark(&self) {
        self.shared.parker.unpark();
    }

    /// Whether somebody came and was not heard. A thread that has just come to the door may not have been noticed
    /// yet: only [`hear`](ConnectionManager::drain_events) knows.
    pub(crate) fn has_pending_event(&self) -> bool {
        self.shared.event_pending.load(Ordering::SeqCst)
    }

    /// What has happened; never waits.
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
                // Who finds no descriptor is let in when there is one again.
                LISTENER => drop(self.accept()),
                HANDSHAKE => self.finish_handshake(number, heard),
                FILE => {
                    // A socket that nobody has named is nobody's when it is closed. Its number may have been
                    // another's before, of which this tells.
                    let closed = |mut end: &UnixStream| matches!(end.read(&mut [0]), Ok(0));
                    match self.unclaimed_sockets.get(&number) {
                        Some((_, end)) if closed(end) => {
                            drop(self.unclaimed_sockets.remove(&number))
                        }
                        _ => heard.push(ConnectionEvent::FileClosed(number)),
                    }
                }
                SESSION => heard.push(ConnectionEvent::ProcessExited(number as usize)),
                _ => {}
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

    /// Lets everybody in who waits and may.
    ///
    /// # Errors
    /// No descriptor is left for one of them, who goes on waiting.
    fn accept(&mut self) -> io::Result<()> {
        loop {
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // They have left already.
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(e) => return Err(e),
            };
            // Everybody on the machine sees the socket's name. A program of root may have become another user.
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
        let mut said = [0; slots::TOKEN_BYTES];
        // Small enough to come as a whole; who sends less is not let in.
        let known = matches!(stream.read(&mut said), Ok(len) if len == said.len())
            && said == self.token.as_bytes();
        let Ok(peer) = sockopt::socket_peercred(&stream) else { return };
        if !known {
            return;
        }
        // Of a process that has ended already there is nothing to hear.
        if let Ok(pidfd) = pidfd_open(peer.pid, PidfdFlags::empty()) {
            let process = peer.pid.as_raw_nonzero().get() as u32;
            heard.push(ConnectionEvent::Hello { stream, process, pidfd });
        }
    }

    /// Hears when the process of a session ends.
    pub(crate) fn watch_process(&self, session: usize, pidfd: &OwnedFd) -> io::Result<()> {
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        Ok(epoll::add(&self.events, pidfd, tag(SESSION, session as u64), once)?)
    }

    /// The socket with a number, which is to stand for an open file from now on. Its other end is
    /// readable from then on, as files are for `poll(2)`.
    ///
    /// # Errors
    /// `ENFILE` without a descriptor for it, `EINVAL` if nobody has such a socket.
    pub(crate) fn claim(&mut self, number: u64) -> Result<UnixStream, Errno> {
        let mut stream = self.take_socket(number)?;
        stream.write_all(&[0]).map_err(|_| Errno::INVAL)?;
        // What is written to it behind the library's back fails, instead of being lost.
        stream.shutdown(std::net::Shutdown::Read).map_err(|_| Errno::INVAL)?;
        Ok(stream)
    }

    /// The socket with a number, as it came.
    ///
    /// # Errors
    /// As of [`claim`](ConnectionManager::claim).
    pub(crate) fn take_socket(&mut self, number: u64) -> Result<UnixStream, Errno> {
        if !self.unclaimed_sockets.contains_key(&number) {
            self.accept().map_err(|_| Errno::NFILE)?;
        }
        self.unclaimed_sockets.remove(&number).map(|(_, stream)| stream).ok_or(Errno::INVAL)
    }

    /// Forgets a socket that was to stand for a file which could not be opened.
    pub(crate) fn drop_socket(&mut self, number: u64) {
        self.unclaimed_sockets.remove(&number);
    }
}

impl Drop for ConnectionManager {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // It cannot be full: nobody else writes.
        let _ = self.stopper.write_all(&[0]);
        if let Some(ears) = self.listener_thread.take() {
            ears.thread().unpark();
            let _ = ears.join();
        }
    }
}

/// The number that an automatic name is, five hexadecimal digits; made one that is never 0.
fn parse_socket_number(name: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(name).ok().filter(|digits| digits.len() == 5)?;
    u64::from_str_radix(digits, 16).ok().map(|number| slots::FILE_HANDLE_BASE + number)
}

/// Wakes the service if it sleeps.
pub(crate) fn ring_doorbell(bell: &SharedRegion) {
    let word = bell.atomic_u32(slots::DOORBELL);
    if slots::slot_protocol::ring_doorbell(word, bell.atomic_u32(slots::SERVICE_PARKED)) {
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

/// Hands a process its memory.
pub(crate) fn send_memory(stream: &UnixStream, memory: [&SharedRegion; 2]) -> io::Result<()> {
    let none = || io::Error::other("memory that cannot be shared");
    let [slots, bell] = memory;
    let slots = slots.backing().ok_or_else(none)?;
    let bell = bell.backing().ok_or_else(none)?;
    let descriptors = [slots.as_fd(), bell.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let greeting = slots::MAGIC.to_le_bytes();
    sendmsg(stream, &[IoSlice::new(&greeting)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
