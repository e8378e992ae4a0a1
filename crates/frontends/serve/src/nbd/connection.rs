//! [`Connection`]: one client's socket, receive buffer, send queue and protocol state. [`Connections`] gives each
//! an id that is not reused while a reference to it may exist.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use clock::Nanos;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::command::{Command, RequestError};
use super::handshake::{Handshake, NegotiatedSession};
use super::pool::{PayloadBuffer, PayloadPool, SIZE_CLASSES, SMALL_BYTES_MAX};
use super::send_queue::SendQueue;
use super::wire::REQUEST_BYTES;

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
        command: Command,
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

/// One client.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    fd: OwnedFd,
    pub(super) phase: Phase,
    pub(super) recv_buffer: RecvBuffer,
    pub(super) send_queue: SendQueue,
    pub(super) incoming: IncomingPayload,
    /// The socket may be readable.
    pub(super) readable: bool,
    /// The client has shut down its side or the connection; reading continues until the end of the
    /// stream.
    pub(super) hung_up: bool,
    /// The end of the stream was reached.
    pub(super) eof: bool,
    /// The client no longer reads.
    pub(super) send_closed: bool,
    /// The client sent a disconnect request.
    pub(super) said_disconnect: bool,
    /// Time since which no request is accepted; the connection closes when everything is answered.
    pub(super) closing_since: Option<Nanos>,
    /// Whether the connection is in the ready queue, and in the dirty list.
    pub(super) in_ready: bool,
    pub(super) in_dirty: bool,
    /// The socket was full; epoll reports when it is writable.
    pub(super) awaits_writable: bool,
    /// A request waits for another event.
    pub(super) blocked: bool,
    /// The connection is in the pool's wait queue, or was granted memory.
    pub(super) awaits_memory: bool,
    pub(super) granted_buffer: Option<PayloadBuffer>,
    /// Requests in flight.
    pub(super) in_flight: usize,
    /// Payload memory of its requests in flight, by size class of the pool.
    pub(super) payload_bytes: [usize; SIZE_CLASSES],
    pub(super) since: Nanos,
    /// Total bytes received and sent; and a sample of it, to measure progress.
    pub(super) bytes_moved: u64,
    pub(super) progress_mark: (Nanos, u64),
}

impl Connection {
    fn new(id: ConnectionId, fd: OwnedFd, now: Nanos) -> Connection {
        Connection {
            id,
            fd,
            phase: Phase::Handshake(Handshake::default()),
            recv_buffer: RecvBuffer::new(),
            send_queue: SendQueue::default(),
            incoming: IncomingPayload::Nothing,
            readable: true,
            hung_up: false,
            eof: false,
            send_closed: false,
            said_disconnect: false,
            closing_since: None,
            in_ready: false,
            in_dirty: false,
            awaits_writable: false,
            blocked: false,
            awaits_memory: false,
            granted_buffer: None,
            in_flight: 0,
            payload_bytes: [0; SIZE_CLASSES],
            since: now,
            bytes_moved: 0,
            progress_mark: (now, 0),
        }
    }

    /// Returns whether everything is answered, so that the connection may close.
    pub(super) fn is_finished(&self) -> bool {
        self.closing_since.is_some()
            && self.in_flight == 0
            && (self.send_closed || self.send_queue.is_empty())
    }

    /// Returns whether it holds pool memory that only the client's progress can free.
    pub(super) fn is_holding_pool_memory(&self) -> bool {
        self.send_queue.pooled() > 0 || matches!(self.incoming, IncomingPayload::Payload { .. })
    }

    /// Reads once from the socket, directly to the bytes' destination. Returns whether it made
    /// progress.
    pub(super) fn receive<W: Copy>(&mut self, pool: &PayloadPool<W>, scratch: &mut [u8]) -> bool {
        if !self.readable || self.eof || self.closing_since.is_some() {
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
                    self.readable = false;
                    return false;
                }
                // The client reset the connection, and will not read any reply.
                Err(_) => {
                    self.send_closed = true;
                    break 0;
                }
            }
        };
        if n == 0 {
            self.eof = true;
            self.readable = false;
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
        self.bytes_moved += n as u64;
        // A short read means that the socket is empty; epoll reports new data. After a hangup, no
        // further event follows, so reading continues.
        self.readable = n == want || self.hung_up;
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
        if let Some(buffer) = self.granted_buffer.take() {
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
    slots: Vec<ConnectionSlot>,
    free: Vec<u32>,
    open_count: usize,
}

impl Connections {
    pub(super) fn open_count(&self) -> usize {
        self.open_count
    }

    pub(super) fn insert(&mut self, fd: OwnedFd, now: Nanos) -> &mut Connection {
        self.open_count += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(ConnectionSlot::default());
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        let id = ConnectionId { slot, generation: entry.generation };
        entry.connection.insert(Box::new(Connection::new(id, fd, now)))
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation { None } else { slot.connection.as_deref_mut() }
    }

    pub(super) fn contains(&self, id: ConnectionId) -> bool {
        self.slots
            .get(id.slot as usize)
            .is_some_and(|s| s.generation == id.generation && s.connection.is_some())
    }

    /// Takes a connection out of the table for processing; [`put`](Connections::put) returns it.
    pub(super) fn take(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation { None } else { slot.connection.take() }
    }

    pub(super) fn put(&mut self, connection: Box<Connection>) {
        let slot = connection.id.slot as usize;
        self.slots[slot].connection = Some(connection);
    }

    /// Removes a connection that was taken out; its id becomes invalid.
    pub(super) fn retire(&mut self, connection: Box<Connection>) {
        let slot = &mut self.slots[connection.id.slot as usize];
        // Generations have 31 bits in an epoll token, so they repeat after two billion clients.
        slot.generation = (slot.generation + 1) & 0x7fff_ffff;
        self.free.push(connection.id.slot);
        self.open_count -= 1;
    }

    /// Returns the ids of all clients.
    pub(super) fn ids(&self) -> Vec<ConnectionId> {
        self.slots.iter().filter_map(|s| s.connection.as_ref().map(|c| c.id)).collect()
    }
}
