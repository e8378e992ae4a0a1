//! [`Connection`]: one client's socket, receive buffer, send queue and protocol state. [`Connections`] gives each
//! an id that is not reused while a reference to it may exist.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use collections::Slab;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use time::Nanos;

#[cfg(debug_assertions)]
use crate::invariants::{ServerViolation, require_eq};
use crate::pool::{PayloadBuffer, PayloadPool, SIZE_CLASSES, SMALL_BYTES_MAX};
use crate::protocol::command::{NbdCommand, RequestError};
use crate::protocol::handshake::{Handshake, NegotiatedSession};
use crate::protocol::wire::REQUEST_BYTES;
use crate::send_queue::SendQueue;

/// Size of the receive buffer; untouched pages cost nothing. Half of it holds a header and a small
/// payload, which stays here until it is complete. A client that stops in the middle thus holds no
/// pool memory.
const RECV_BUFFER_BYTES: usize = 160 << 10;
const _: () = assert!(RECV_BUFFER_BYTES / 2 >= REQUEST_BYTES + SMALL_BYTES_MAX as usize);

/// A connection's slot and the slot's generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} of slot {}", self.generation, self.slot)
    }
}

/// Protocol phase of a connection.
#[derive(Debug)]
pub(super) enum Phase {
    Handshake(Handshake),
    Transmission(NegotiatedSession),
}

/// A payload that is arriving.
#[derive(Debug)]
pub(super) enum IncomingPayload {
    Nothing,
    /// The payload of a write that will be executed.
    Payload {
        command: NbdCommand,
        buffer: PayloadBuffer,
        received: usize,
    },
    /// The payload of a refused write; the error reply follows the last byte.
    Skip {
        remaining: usize,
        cookie: u64,
        error: RequestError,
    },
}

/// Received bytes that have not been parsed.
#[derive(Debug)]
pub(super) struct RecvBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl RecvBuffer {
    fn new() -> RecvBuffer {
        RecvBuffer { bytes: vec![0; RECV_BUFFER_BYTES], start: 0, end: 0 }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Returns the free space at the end: at least half of the buffer if it is less than half full.
    fn free_space(&mut self) -> &mut [u8] {
        if self.bytes.len() - self.end < RECV_BUFFER_BYTES / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(super) struct InputState {
    /// The socket may be readable.
    pub(super) readable: bool,
    /// The client has shut down its side or the connection; reading continues until the end of the
    /// stream.
    pub(super) hung_up: bool,
    /// The end of the stream was reached.
    pub(super) eof: bool,
    /// A request waits for another event.
    pub(super) blocked: bool,
}

/// The sending side of a connection.
#[derive(Debug, Default)]
pub(super) struct OutputState {
    /// The client no longer reads.
    pub(super) closed: bool,
    /// The socket was full; epoll reports when it is writable.
    pub(super) awaits_writable: bool,
}

/// ConnectionProgress towards the end of a connection.
#[derive(Debug, Default)]
pub(super) struct ClosingState {
    /// The client sent a disconnect request.
    pub(super) said_disconnect: bool,
    /// Time since which no request is accepted; the connection closes when everything is answered.
    pub(super) since: Option<Nanos>,
}

/// The server's queues that contain a connection. [`WorkQueues`] changes them.
#[derive(Debug, Default)]
pub(super) struct QueuedFlags {
    ready: bool,
    dirty: bool,
}

/// Payload memory of a client.
#[derive(Debug, Default)]
pub(super) struct ClientMemory {
    /// The connection is in the pool's wait queue.
    is_awaited: bool,
    granted: Option<PayloadBuffer>,
    /// Memory of its requests in flight, by size class of the pool.
    in_device: [usize; SIZE_CLASSES],
}

impl ClientMemory {
    /// Returns whether the connection is in the pool's wait queue.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// Records that the connection entered the pool's wait queue.
    pub(super) fn begin_wait(&mut self) {
        self.is_awaited = true;
    }

    /// Records that the connection left the pool's wait queue.
    pub(super) fn end_wait(&mut self) {
        assert!(self.is_awaited, "nbd: a client was granted memory, and awaits none");
        self.is_awaited = false;
    }

    /// Keeps a buffer for the next request.
    pub(super) fn grant(&mut self, buffer: PayloadBuffer) {
        let before = self.granted.replace(buffer);
        assert!(before.is_none(), "nbd: a client was granted {before:?}, and another buffer");
    }

    pub(super) fn has_granted(&self) -> bool {
        self.granted.is_some()
    }

    pub(super) fn take_granted(&mut self) -> Option<PayloadBuffer> {
        self.granted.take()
    }

    /// Returns the bytes of requests in flight in a size class.
    pub(super) fn in_device(&self, size_class: usize) -> usize {
        self.in_device[size_class]
    }

    /// Records that a request with this buffer is in flight.
    pub(super) fn begin_request(&mut self, buffer: &PayloadBuffer) {
        self.in_device[buffer.size_class()] += buffer.footprint();
    }

    /// Records that the request with this buffer has ended.
    pub(super) fn end_request(&mut self, buffer: &PayloadBuffer) {
        let bytes = &mut self.in_device[buffer.size_class()];
        assert!(
            *bytes >= buffer.footprint(),
            "nbd: a request ends with {buffer:?}, and its client has {bytes} bytes in the device"
        );
        *bytes -= buffer.footprint();
    }
}

/// Bytes moved by a connection.
#[derive(Debug)]
pub(super) struct ConnectionProgress {
    pub(super) connected_at: Nanos,
    /// Total bytes received and sent.
    pub(super) bytes_moved: u64,
    /// A sample of `bytes_moved`, and its time.
    marked_at: Nanos,
    marked_bytes: u64,
}

impl ConnectionProgress {
    fn new(now: Nanos) -> ConnectionProgress {
        ConnectionProgress { connected_at: now, bytes_moved: 0, marked_at: now, marked_bytes: 0 }
    }

    /// Takes a sample.
    pub(super) fn mark(&mut self, now: Nanos) {
        (self.marked_at, self.marked_bytes) = (now, self.bytes_moved);
    }

    /// Returns the time since the last sample.
    pub(super) fn time_since_mark(&self, now: Nanos) -> Nanos {
        now.since(self.marked_at)
    }

    /// Returns the bytes moved since the last sample.
    pub(super) fn bytes_since_mark(&self) -> u64 {
        self.bytes_moved - self.marked_bytes
    }
}

/// Connections with work to be done.
#[derive(Debug, Default)]
pub(super) struct WorkQueues {
    /// Clients with input to be processed.
    ready: VecDeque<ConnectionId>,
    /// Clients with output to be sent.
    dirty: Vec<ConnectionId>,
}

impl WorkQueues {
    /// Queues a connection with input to be processed.
    pub(super) fn mark_ready(&mut self, c: &mut Connection) {
        if !std::mem::replace(&mut c.queued.ready, true) {
            self.ready.push_back(c.id);
        }
    }

    /// Queues a connection with output to be sent.
    pub(super) fn mark_dirty(&mut self, c: &mut Connection) {
        if !std::mem::replace(&mut c.queued.dirty, true) {
            self.dirty.push(c.id);
        }
    }

    pub(super) fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Takes the next connection with input; it may have been closed.
    pub(super) fn pop_ready(&mut self) -> Option<ConnectionId> {
        self.ready.pop_front()
    }

    pub(super) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes all connections with output; [`reuse`](WorkQueues::reuse) returns the memory.
    pub(super) fn take_dirty(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.dirty)
    }

    /// Checks that a connection is queued as its flags say.
    #[cfg(debug_assertions)]
    pub(super) fn check_invariants(&self, c: &Connection) -> Result<(), ServerViolation> {
        let ready = self.ready.iter().filter(|id| **id == c.id).count();
        let expected = usize::from(c.queued.ready);
        require_eq("queues", "a client with input is queued once", c.id, expected, ready)?;
        let dirty = self.dirty.iter().filter(|id| **id == c.id).count();
        let expected = usize::from(c.queued.dirty);
        require_eq("queues", "a client with output is queued once", c.id, expected, dirty)
    }

    /// Returns the memory of [`take_dirty`](WorkQueues::take_dirty).
    pub(super) fn reuse(&mut self, mut dirty: Vec<ConnectionId>) {
        debug_assert!(self.dirty.is_empty(), "nbd: {:?} have output after a send", self.dirty);
        dirty.clear();
        self.dirty = dirty;
    }
}

/// One client.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    fd: OwnedFd,
    /// Index of the listener that accepted it.
    pub(super) listener: usize,
    pub(super) phase: Phase,
    pub(super) recv_buffer: RecvBuffer,
    pub(super) send_queue: SendQueue,
    pub(super) incoming: IncomingPayload,
    pub(super) input: InputState,
    pub(super) output: OutputState,
    pub(super) closing: ClosingState,
    /// Membership in the server's queues.
    pub(super) queued: QueuedFlags,
    pub(super) memory: ClientMemory,
    /// Requests in flight.
    pub(super) in_flight: usize,
    pub(super) progress: ConnectionProgress,
}

impl Connection {
    pub(super) fn new(fd: OwnedFd, listener: usize, now: Nanos) -> Connection {
        Connection {
            id: ConnectionId::default(),
            fd,
            listener,
            phase: Phase::Handshake(Handshake::default()),
            recv_buffer: RecvBuffer::new(),
            send_queue: SendQueue::default(),
            incoming: IncomingPayload::Nothing,
            input: InputState { readable: true, hung_up: false, eof: false, blocked: false },
            output: OutputState::default(),
            closing: ClosingState::default(),
            queued: QueuedFlags::default(),
            memory: ClientMemory::default(),
            in_flight: 0,
            progress: ConnectionProgress::new(now),
        }
    }

    /// Forgets the queues and the epoll set of the server that had the connection.
    pub(super) fn leave_server(&mut self) {
        self.queued = QueuedFlags::default();
        self.output.awaits_writable = false;
        // Bytes may have arrived while it was watched by no server.
        self.input.readable = !self.input.eof;
    }

    /// Records that the connection was taken from the ready queue.
    pub(super) fn leave_ready(&mut self) {
        self.queued.ready = false;
    }

    /// Records that the connection was taken from the dirty list.
    pub(super) fn leave_dirty(&mut self) {
        self.queued.dirty = false;
    }

    /// Returns whether input must be processed again after another event.
    pub(super) fn awaits_event(&self) -> bool {
        self.input.blocked || self.closing.since.is_some()
    }

    /// Returns whether everything is answered, so that the connection may close.
    pub(super) fn is_finished(&self) -> bool {
        self.closing.since.is_some()
            && self.in_flight == 0
            && (self.output.closed || self.send_queue.is_empty())
    }

    /// Returns whether it holds pool memory that only the client's progress can free.
    pub(super) fn is_holding_pool_memory(&self) -> bool {
        self.send_queue.pooled() > 0 || matches!(self.incoming, IncomingPayload::Payload { .. })
    }

    /// Reads once from the socket, directly to the bytes' destination. Returns whether it made
    /// progress.
    pub(super) fn receive<W: Copy>(&mut self, pool: &PayloadPool<W>, scratch: &mut [u8]) -> bool {
        if !self.input.readable || self.input.eof || self.closing.since.is_some() {
            return false;
        }
        let into = match &self.incoming {
            IncomingPayload::Nothing => self.recv_buffer.free_space(),
            IncomingPayload::Payload { command, received: got, .. } => {
                let want = (command.length as usize - got).min(scratch.len());
                &mut scratch[..want]
            }
            IncomingPayload::Skip { remaining: left, .. } => {
                let want = (*left).min(scratch.len());
                &mut scratch[..want]
            }
        };
        let want = into.len();
        if want == 0 {
            return false;
        }
        let n = loop {
            match rustix::net::recv(&self.fd, &mut *into, RecvFlags::DONTWAIT) {
                Ok((n, _)) => break n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.input.readable = false;
                    return false;
                }
                // The client reset the connection, and will not read any reply.
                Err(_) => {
                    self.output.closed = true;
                    break 0;
                }
            }
        };
        if n == 0 {
            self.input.eof = true;
            self.input.readable = false;
            return true;
        }
        match &mut self.incoming {
            IncomingPayload::Nothing => self.recv_buffer.end += n,
            IncomingPayload::Payload { buffer, received: got, .. } => {
                pool.write(buffer, *got, &scratch[..n]);
                *got += n;
            }
            IncomingPayload::Skip { remaining: left, .. } => *left -= n,
        }
        self.progress.bytes_moved += n as u64;
        // A short read means that the socket is empty; epoll reports new data. After a hangup, no
        // further event follows, so reading continues.
        self.input.readable = n == want || self.input.hung_up;
        true
    }

    /// Moves payload bytes from the receive buffer to their destination.
    pub(super) fn move_payload<W: Copy>(&mut self, pool: &PayloadPool<W>) {
        let bytes = self.recv_buffer.as_slice();
        let n = match &mut self.incoming {
            IncomingPayload::Nothing => 0,
            IncomingPayload::Payload { command, buffer, received: got } => {
                let n = (command.length as usize - *got).min(bytes.len());
                pool.write(buffer, *got, &bytes[..n]);
                *got += n;
                n
            }
            IncomingPayload::Skip { remaining: left, .. } => {
                let n = (*left).min(bytes.len());
                *left -= n;
                n
            }
        };
        self.recv_buffer.consume(n);
    }

    /// Frees all pool memory that is not in use by the device.
    pub(super) fn release<W: Copy>(&mut self, pool: &mut PayloadPool<W>) {
        self.send_queue.clear(pool);
        if let Some(buffer) = self.memory.take_granted() {
            pool.free(buffer);
        }
        if let IncomingPayload::Payload { buffer, .. } =
            std::mem::replace(&mut self.incoming, IncomingPayload::Nothing)
        {
            pool.free(buffer);
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[derive(Debug, Default)]
struct ConnectionSlot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// All clients.
#[derive(Debug, Default)]
pub(super) struct Connections {
    slots: Slab<ConnectionSlot>,
    open_count: usize,
}

impl Connections {
    pub(super) fn open_count(&self) -> usize {
        self.open_count
    }

    /// Inserts a new connection, or one that another server has retired.
    pub(super) fn insert(&mut self, mut connection: Box<Connection>) -> &mut Connection {
        self.open_count += 1;
        let slot = self.slots.take_or_push(ConnectionSlot::default);
        let entry = &mut self.slots[slot];
        connection.id = ConnectionId { slot, generation: entry.generation };
        entry.connection.insert(connection)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(id.slot)?;
        if slot.generation != id.generation { None } else { slot.connection.as_deref_mut() }
    }

    pub(super) fn contains(&self, id: ConnectionId) -> bool {
        self.slots
            .get(id.slot)
            .is_some_and(|s| s.generation == id.generation && s.connection.is_some())
    }

    /// Takes a connection out of the table for processing; [`put`](Connections::put) returns it.
    pub(super) fn take(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        let slot = self.slots.get_mut(id.slot)?;
        if slot.generation != id.generation { None } else { slot.connection.take() }
    }

    pub(super) fn put(&mut self, connection: Box<Connection>) {
        let slot = connection.id.slot;
        self.slots[slot].connection = Some(connection);
    }

    /// Removes a connection that was taken out; its id becomes invalid.
    pub(super) fn retire(&mut self, connection: &Connection) {
        let slot = &mut self.slots[connection.id.slot];
        // Generations have 31 bits in an epoll token, so they repeat after two billion clients.
        slot.generation = (slot.generation + 1) & 0x7fff_ffff;
        self.slots.release(connection.id.slot);
        self.open_count -= 1;
    }

    /// Returns all clients.
    #[cfg(debug_assertions)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().filter_map(|slot| slot.connection.as_deref())
    }

    #[cfg(debug_assertions)]
    pub(super) fn check_invariants(&self) -> Result<(), ServerViolation> {
        let open = self.iter().count();
        require_eq("connections", "open connections", "all slots", open, self.open_count)?;
        let used = self.slots.in_use();
        require_eq("connections", "a slot is free or has a client", "all slots", used, open)
    }

    /// Returns the ids of all clients.
    pub(super) fn ids(&self) -> Vec<ConnectionId> {
        self.slots.iter().filter_map(|s| s.connection.as_ref().map(|c| c.id)).collect()
    }
}
