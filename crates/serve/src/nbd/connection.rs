//! [`Connection`]: one client: its socket, what has arrived, what waits to be sent, and how far it
//! has got. [`Connections`] gives each a name that is never used again while anyone remembers it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use clock::Nanos;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::command::{Command, RequestError};
use super::handshake::{Handshake, NegotiatedSession};
use super::pool::{PayloadBuffer, PayloadPool, SIZE_CLASSES, SMALL_BYTES_MAX};
use super::send_queue::SendQueue;
use super::wire::REQUEST_BYTES;

/// Bytes that are read ahead of what is understood; untouched pages cost nothing.
/// Half of it has room for a header and a small payload, which waits here until it is complete:
/// a client that stops in the middle holds no payload memory.
const RECV_BUFFER_BYTES: usize = 160 << 10;
const _: () = assert!(RECV_BUFFER_BYTES / 2 >= REQUEST_BYTES + SMALL_BYTES_MAX as usize);

/// A connection's slot and how often it was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// Handshake, then transmission.
#[derive(Debug)]
pub(super) enum Phase {
    Handshake(Handshake),
    Transmission(NegotiatedSession),
}

/// A payload that is arriving.
#[derive(Debug)]
pub(super) enum IncomingPayload {
    Nothing,
    /// Of a write that will be executed.
    Payload {
        command: Command,
        buffer: PayloadBuffer,
        received: usize,
    },
    /// Of a write that was refused; the answer follows the last byte.
    Skip {
        remaining: usize,
        cookie: u64,
        error: RequestError,
    },
}

/// Bytes that have arrived and are not understood yet.
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

    /// Room at the end: at least half of the inbox if what is in it is less than that.
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
    /// There may be something to read.
    pub(super) readable: bool,
    /// The client has closed its side, or all: reading goes on to the end.
    pub(super) hung_up: bool,
    /// Nothing more will arrive.
    pub(super) eof: bool,
    /// Nobody reads what is sent.
    pub(super) send_closed: bool,
    /// The client has said that it goes.
    pub(super) said_disconnect: bool,
    /// No further request is taken, since when; it closes when everything is answered.
    pub(super) closing_since: Option<Nanos>,
    /// It stands in the line of those to be served, or to be sent to.
    pub(super) in_ready: bool,
    pub(super) in_dirty: bool,
    /// The socket was full; epoll tells when it is not.
    pub(super) awaits_writable: bool,
    /// A request is not taken up because something must happen first.
    pub(super) blocked: bool,
    /// It stands in the pool's line, or has come to its head.
    pub(super) awaits_memory: bool,
    pub(super) granted_buffer: Option<PayloadBuffer>,
    /// Requests under way.
    pub(super) in_flight: usize,
    /// Payload memory of its requests under way, by area of the pool.
    pub(super) payload_bytes: [usize; SIZE_CLASSES],
    pub(super) since: Nanos,
    /// Bytes in and out, ever; and how many it was at some time, to judge its pace.
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

    /// Whether everything is answered and it may close.
    pub(super) fn is_finished(&self) -> bool {
        self.closing_since.is_some()
            && self.in_flight == 0
            && (self.send_closed || self.send_queue.is_empty())
    }

    /// Whether it holds payload memory that only the client's reading or writing sets free.
    pub(super) fn is_holding_pool_memory(&self) -> bool {
        self.send_queue.pooled() > 0 || matches!(self.incoming, IncomingPayload::Payload { .. })
    }

    /// Reads once from the socket, straight to where the bytes belong. Whether anything moved.
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
                // Reset by the client: what it has not read it never will.
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
        // A stream that gave less than was asked for is empty, and says when it is not any more;
        // of its end it has told already.
        self.readable = n == want || self.hung_up;
        true
    }

    /// Moves what the inbox has of an arriving payload to where it belongs.
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

    /// Gives back all payload memory that is not with the device.
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

    /// Takes a connection out to work on it; [`put`](Connections::put) it back.
    pub(super) fn take(&mut self, id: ConnectionId) -> Option<Box<Connection>> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation { None } else { slot.connection.take() }
    }

    pub(super) fn put(&mut self, connection: Box<Connection>) {
        let slot = connection.id.slot as usize;
        self.slots[slot].connection = Some(connection);
    }

    /// Forgets a connection that was taken out; its name means nobody from now on.
    pub(super) fn retire(&mut self, connection: Box<Connection>) {
        let slot = &mut self.slots[connection.id.slot as usize];
        // Names are 31 bits in an epoll token; two billion clients later they repeat.
        slot.generation = (slot.generation + 1) & 0x7fff_ffff;
        self.free.push(connection.id.slot);
        self.open_count -= 1;
    }

    /// The names of all clients.
    pub(super) fn ids(&self) -> Vec<ConnectionId> {
        self.slots.iter().filter_map(|s| s.connection.as_ref().map(|c| c.id)).collect()
    }
}
