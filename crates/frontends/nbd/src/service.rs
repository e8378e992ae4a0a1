//! Per-client processing: accept, read, parse, submit, reply, close. Nothing here blocks.

use std::io;

use block::{BlockDevice, Extent};
use event::RealClock;
use mem::PAGE_BYTES;
use rustix::io::Errno;
use time::Nanos;

use crate::connection::{Connection, ConnectionId, IncomingPayload, Phase};
use crate::group::AssignedClient;
use crate::in_flight::{DeviceBuffer, InFlightRequest};
use crate::pool::{PayloadBuffer, PayloadPool, SMALL_BYTES_MAX};
use crate::protocol::command::{CommandAction, NbdCommand};
use crate::protocol::handshake::{Handshake, HandshakeStep};
use crate::protocol::reply;
use crate::protocol::wire::{PAYLOAD_BYTES_MAX, REQUEST_BYTES, RequestHeader, command};
use crate::send_queue::SendResult;
use crate::server::{NbdServer, TIMEOUT_SWEEP_INTERVAL};

/// Maximum number of clients accepted per iteration.
const ACCEPTS_PER_ITERATION: usize = 64;

/// Result of parsing the next message.
enum Parsed {
    /// A message was processed; parse again.
    Message,
    /// More bytes are needed.
    NeedMore,
    /// Another event must happen first: a completion, free memory, or space in the send queue.
    Blocked,
    /// The client has selected an export of another server.
    MoveTo(usize),
    /// The client violated the protocol.
    Violation(&'static str),
}

impl<D: BlockDevice> NbdServer<D> {
    /// Accepts waiting clients.
    pub(super) fn accept(&mut self, listener: usize, now: Nanos) -> io::Result<()> {
        for _ in 0..ACCEPTS_PER_ITERATION {
            let Some((listener, from)) = self.sockets.listeners.get(listener) else {
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
            // The limit of each export holds when a client selects it.
            let exports = self.exports.at(*listener);
            let open: usize = exports.at.iter().map(|one| self.group.clients_of(*one)).sum();
            if open >= self.config.connections_max.saturating_mul(exports.len()) {
                self.counters.connections_refused.add(1);
                tracing::warn!(open, "NBD client refused: too many connections");
                continue;
            }
            let client = AssignedClient::Arrived(fd, *listener);
            if let Some(client) = self.group.assign(client, self.group.export()) {
                self.admit(client, now);
            }
        }
        Ok(())
    }

    /// Admits the clients that the acceptor has assigned to this server.
    #[cold]
    pub(super) fn admit_assigned(&mut self, now: Nanos) -> bool {
        for client in self.group.take_assigned() {
            self.admit(client, now);
        }
        true
    }

    /// Greets a client that was assigned to this server, unless another server has done so; closes
    /// it if the server is stopping.
    fn admit(&mut self, client: AssignedClient, now: Nanos) {
        if self.is_stopping() {
            drop(client);
            self.group.on_closed();
            return;
        }
        self.counters.connections.add(1);
        let c = match client {
            AssignedClient::Arrived(fd, listener) => {
                let c = self.connections.insert(Box::new(Connection::new(fd, listener, now)));
                c.send_queue.append(|out| out.extend_from_slice(&Handshake::greeting()));
                c
            }
            AssignedClient::Negotiated(connection) => self.connections.insert(connection),
        };
        let id = c.id;
        tracing::info!(client = ?id, "NBD client connected");
        if self.sockets.watch(c).is_err() {
            // Out of kernel memory for the watch: this client cannot be served.
            if let Some(c) = self.connections.take(id) {
                self.drop_client(c, "epoll_ctl failed");
            }
            return;
        }
        self.work.mark_dirty(c);
        self.work.mark_ready(c);
        self.counters.connections_open.set(self.connections.open_count() as u64);
    }

    /// Gives a client that has selected another export to a server of that export.
    fn move_client(&mut self, mut c: Box<Connection>, export: usize) {
        if self.sockets.unwatch(&c).is_err() {
            return self.drop_client(c, "epoll_ctl failed");
        }
        self.connections.retire(&c);
        self.counters.connections_open.set(self.connections.open_count() as u64);
        // The other server counts it.
        self.counters.connections.add(u64::MAX);
        self.group.on_closed();
        c.leave_server();
        if let Some(client) = self.group.assign(AssignedClient::Negotiated(c), export) {
            // The servers of the export have ended.
            drop(client);
            self.group.on_closed();
        }
    }

    /// Reads once from a client and processes its messages as far as possible. Returns whether it
    /// made progress.
    pub(super) fn serve(&mut self, id: ConnectionId, now: Nanos) -> bool {
        let Some(mut c) = self.connections.take(id) else {
            return false;
        };
        c.leave_ready();
        let mut moved = c.receive(&self.pool, &mut self.scratch);
        let parsed = loop {
            match self.parse(&mut c, now) {
                Parsed::Message => moved = true,
                other => break other,
            }
        };
        c.input.blocked = matches!(parsed, Parsed::Blocked);
        match parsed {
            Parsed::Violation(why) => {
                self.drop_client(c, why);
                return true;
            }
            Parsed::MoveTo(export) => {
                self.move_client(c, export);
                return true;
            }
            Parsed::NeedMore if c.input.eof && c.closing.since.is_none() => {
                c.closing.since = Some(now);
            }
            Parsed::NeedMore if c.input.readable => self.work.mark_ready(&mut c),
            _ => {}
        }
        if c.closing.since.is_some() && self.finish_closing(&mut c) {
            self.close(c);
            return true;
        }
        self.connections.put(c);
        moved
    }

    /// Cancels what a closing client will never finish. Returns whether the connection may close.
    fn finish_closing(&mut self, c: &mut Connection) -> bool {
        if let IncomingPayload::Payload { buffer, .. } =
            std::mem::replace(&mut c.incoming, IncomingPayload::Nothing)
        {
            self.pool.free(buffer);
        }
        if let Some(buffer) = c.memory.take_granted() {
            self.pool.free(buffer);
        }
        c.is_finished()
    }

    /// Parses one message from the receive buffer.
    fn parse(&mut self, c: &mut Connection, now: Nanos) -> Parsed {
        // Granted memory is used at once: it must not wait for the client to read replies.
        if c.closing.since.is_some() || (c.send_queue.is_full() && !c.memory.has_granted()) {
            return Parsed::Blocked;
        }
        match &mut c.phase {
            Phase::Handshake(handshake) => {
                let mut step = HandshakeStep::NeedMore;
                let exports = self.exports.at(c.listener);
                c.send_queue.append(|out| {
                    step = handshake.step(c.recv_buffer.as_slice(), exports, out);
                });
                let (session, selected) = (handshake.session(), handshake.selected());
                match step {
                    HandshakeStep::NeedMore => return Parsed::NeedMore,
                    HandshakeStep::Violation(why) => return Parsed::Violation(why),
                    HandshakeStep::Consumed(n) => c.recv_buffer.consume(n),
                    HandshakeStep::Transmission(n) => {
                        c.recv_buffer.consume(n);
                        c.phase = Phase::Transmission(session);
                        let moves = selected != self.group.export();
                        let open = self.group.clients_of(selected) + usize::from(moves);
                        if open > self.exports.get(selected).connections_max {
                            self.counters.connections_refused.add(1);
                            return Parsed::Violation("too many connections");
                        }
                        if moves {
                            return Parsed::MoveTo(selected);
                        }
                    }
                    HandshakeStep::Abort(n) => {
                        c.recv_buffer.consume(n);
                        c.closing.said_disconnect = true;
                        c.closing.since = Some(now);
                    }
                }
                self.work.mark_dirty(c);
                Parsed::Message
            }
            Phase::Transmission(_) => self.parse_transmission(c, now),
        }
    }

    fn parse_transmission(&mut self, c: &mut Connection, now: Nanos) -> Parsed {
        let Phase::Transmission(session) = c.phase else {
            return Parsed::Blocked;
        };
        if !matches!(c.incoming, IncomingPayload::Nothing) {
            return self.parse_payload(c, session.structured, now);
        }
        if c.in_flight >= self.client_limits.in_flight_max {
            return Parsed::Blocked;
        }
        let Some(first) = c.recv_buffer.as_slice().first_chunk::<REQUEST_BYTES>() else {
            return Parsed::NeedMore;
        };
        let Some(header) = RequestHeader::parse(first) else {
            return Parsed::Violation("bad request magic");
        };
        if header.kind == command::DISC {
            c.recv_buffer.consume(c.recv_buffer.as_slice().len());
            c.closing.said_disconnect = true;
            c.closing.since = Some(now);
            return Parsed::Blocked;
        }
        let command = match NbdCommand::check(&header, self.exports.own(), session) {
            Ok(command) => command,
            Err(refusal) => {
                if header.kind == command::WRITE && header.length > PAYLOAD_BYTES_MAX {
                    return Parsed::Violation("a write payload over 32 MiB");
                }
                self.counters.errors_refused.add(1);
                c.recv_buffer.consume(REQUEST_BYTES);
                let cookie = header.cookie;
                if header.kind == command::WRITE && header.length > 0 {
                    let left = header.length as usize;
                    c.incoming = IncomingPayload::Skip { remaining: left, cookie, error: refusal };
                } else {
                    let structured = session.structured;
                    c.send_queue
                        .append(|out| reply::request_error(out, structured, cookie, refusal));
                    self.work.mark_dirty(c);
                }
                return Parsed::Message;
            }
        };
        let payload = command.length as usize;
        let inline = command.action == CommandAction::Write && command.length <= SMALL_BYTES_MAX;
        if inline && c.recv_buffer.as_slice().len() < REQUEST_BYTES + payload {
            return Parsed::NeedMore;
        }
        let buffer = match command.action {
            action if action.has_payload() => match self.buffer(c, command.length) {
                Some(buffer) => Some(buffer),
                None => return Parsed::Blocked,
            },
            CommandAction::BlockStatus { .. } => match self.buffer(c, PAGE_BYTES as u32) {
                Some(buffer) => Some(buffer),
                None => return Parsed::Blocked,
            },
            _ => None,
        };
        c.recv_buffer.consume(REQUEST_BYTES);
        match (buffer, command.action) {
            (Some(buffer), CommandAction::Write) if inline => {
                self.pool.write(&buffer, 0, &c.recv_buffer.as_slice()[..payload]);
                c.recv_buffer.consume(payload);
                self.start_request(c, command, session.structured, Some(buffer), now);
            }
            (Some(buffer), CommandAction::Write) => {
                c.incoming = IncomingPayload::Payload { command, buffer, received: 0 };
            }
            (buffer, _) => self.start_request(c, command, session.structured, buffer, now),
        }
        Parsed::Message
    }

    /// Continues to receive a payload.
    fn parse_payload(&mut self, c: &mut Connection, structured: bool, now: Nanos) -> Parsed {
        c.move_payload(&self.pool);
        match std::mem::replace(&mut c.incoming, IncomingPayload::Nothing) {
            IncomingPayload::Payload { command, buffer, received: got }
                if got == command.length as usize =>
            {
                self.start_request(c, command, structured, Some(buffer), now);
            }
            IncomingPayload::Skip { remaining: 0, cookie, error: refusal } => {
                c.send_queue.append(|out| reply::request_error(out, structured, cookie, refusal));
                self.work.mark_dirty(c);
            }
            unfinished => {
                c.incoming = unfinished;
                return Parsed::NeedMore;
            }
        }
        Parsed::Message
    }

    /// Allocates payload memory for the next request; if there is none, queues the client for it.
    fn buffer(&mut self, c: &mut Connection, len: u32) -> Option<PayloadBuffer> {
        if let Some(buffer) = c.memory.take_granted() {
            return Some(buffer);
        }
        if c.memory.is_awaited() {
            return None;
        }
        let area = PayloadPool::<ConnectionId>::size_class_for(len);
        let elsewhere = if area == 0 { c.send_queue.copied() } else { c.send_queue.pooled() };
        let held = c.memory.in_device(area) + elsewhere;
        if held > 0 && held + len as usize > self.client_limits.bytes_max[area] {
            // The client's own completions and reads free this memory, so it does not enter the
            // queue.
            return None;
        }
        let buffer = self.pool.alloc(len);
        if buffer.is_none() {
            self.counters.memory_waits.add(1);
            self.pool.wait(c.id, len);
            c.memory.begin_wait();
        }
        buffer
    }

    /// Starts a checked request.
    fn start_request(
        &mut self,
        c: &mut Connection,
        command: NbdCommand,
        structured: bool,
        buffer: Option<PayloadBuffer>,
        now: Nanos,
    ) {
        let count = match command.action {
            CommandAction::Read => &self.counters.reads,
            CommandAction::Write => &self.counters.writes,
            CommandAction::Flush => &self.counters.flushes,
            CommandAction::Trim => &self.counters.trims,
            CommandAction::WriteZeroes { .. } => &self.counters.write_zeroes,
            CommandAction::BlockStatus { .. } => &self.counters.block_statuses,
        };
        count.add(1);
        self.counters.activity.begin(now);
        c.in_flight += 1;
        if let Some(buffer) = &buffer {
            c.memory.begin_request(buffer);
        }
        let buffer = buffer.map(|buffer| {
            let iova = self.pool.iova(&buffer);
            DeviceBuffer { buffer, iova }
        });
        let flight = InFlightRequest::new(c.id, command, structured, buffer, &self.limits, now);
        let slot = self.in_flight.insert(flight);
        // Requests in the backlog go first.
        if self.in_flight.has_backlog() || !self.advance(slot, now) {
            self.in_flight.enqueue(slot);
        }
    }

    /// Issues due fragments of a request. Returns whether the device accepted all of them.
    fn advance(&mut self, slot: u32, now: Nanos) -> bool {
        let flight = self.in_flight.get_mut(slot);
        while let Some(request) = flight.next_fragment(slot, &self.limits) {
            if self.device.submit(now, request).is_err() {
                return false;
            }
            flight.on_fragment_issued(&request);
        }
        true
    }

    /// Issues the requests of the backlog.
    pub(super) fn retry_backlog(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(slot) = self.in_flight.first_queued() {
            if !self.advance(slot, now) {
                break;
            }
            self.in_flight.dequeue();
            moved = true;
        }
        moved
    }

    /// Reaps the device's completions. The clock is read at most once, and only if there are any. A
    /// device that completes within the iteration gets its latency from that reading.
    pub(super) fn reap(&mut self, now: Nanos, clock: RealClock) -> bool {
        let mut moved = false;
        let mut ended = None;
        while let Some(completion) = self.device.reap() {
            moved = true;
            let slot = completion.tag as u32;
            let flight = self.in_flight.get_mut(slot);
            let pool = &self.pool;
            flight.on_fragment_complete(&completion, &self.limits, |buffer, count| {
                let mut page = [0; PAGE_BYTES];
                pool.read(buffer, 0, &mut page);
                let entries = page.as_chunks::<{ Extent::BYTES }>().0;
                entries.iter().take(count as usize).map(|e| Extent::decode(*e)).collect()
            });
            if !self.connections.contains(flight.client) {
                flight.abandon();
            }
            if flight.is_complete() {
                let ended = *ended.get_or_insert_with(|| clock.now());
                self.finish(slot, ended);
            } else if !self.in_flight.is_queued(slot) && !self.advance(slot, now) {
                self.in_flight.enqueue(slot);
            }
        }
        moved
    }

    /// Answers a request whose last fragment has completed.
    fn finish(&mut self, slot: u32, now: Nanos) {
        let mut flight = self.in_flight.remove(slot);
        self.counters.activity.end(now, flight.command.action, flight.received_at);
        let buffer = flight.buffer.take();
        let error =
            flight.error.and_then(|s| Some((s, reply::error_code_for(s, flight.command.action)?)));
        if error.is_some() {
            self.counters.errors_device.add(1);
        }
        let client = self.connections.get_mut(flight.client);
        let command = &flight.command;
        if error.is_none() {
            let bytes = u64::from(command.length);
            match command.action {
                CommandAction::Read => self.counters.bytes_read.add(bytes),
                CommandAction::Write => self.counters.bytes_written.add(bytes),
                CommandAction::Trim => self.counters.bytes_trimmed.add(bytes),
                CommandAction::WriteZeroes { .. } => self.counters.bytes_zeroed.add(bytes),
                CommandAction::Flush | CommandAction::BlockStatus { .. } => {}
            }
        }
        let Some(c) = client else {
            self.counters.replies_discarded.add(1);
            if let Some(buffer) = buffer {
                self.pool.free(buffer);
            }
            return;
        };
        c.in_flight -= 1;
        if let Some(buffer) = &buffer {
            c.memory.end_request(buffer);
        }
        let (structured, cookie) = (flight.structured, command.cookie);
        let mut spent = buffer;
        if c.output.closed {
            self.counters.replies_discarded.add(1);
        } else {
            match (error, command.action) {
                (Some((status, code)), _) => {
                    let text = format!("{status}, {} bytes at {}", command.length, command.offset);
                    c.send_queue.append(|out| reply::error(out, structured, cookie, code, &text));
                }
                (None, CommandAction::Read) => {
                    let (offset, length) = (command.offset, command.length);
                    c.send_queue.append(|out| {
                        reply::data_header(out, structured, cookie, offset, length);
                    });
                    if let Some(buffer) = spent.take() {
                        spent = c.send_queue.append_payload(&self.pool, buffer, length as usize);
                    }
                }
                (None, CommandAction::BlockStatus { .. }) => {
                    c.send_queue
                        .append(|out| reply::block_status(out, cookie, &flight.descriptors));
                }
                (None, _) => c.send_queue.append(|out| reply::done(out, cookie)),
            }
            self.work.mark_dirty(c);
        }
        if c.awaits_event() {
            self.work.mark_ready(c);
        }
        if let Some(buffer) = spent {
            self.pool.free(buffer);
        }
    }

    /// Sends the output of clients that have new data or a writable socket.
    pub(super) fn send(&mut self) -> bool {
        let mut moved = false;
        let mut dirty = self.work.take_dirty();
        for id in dirty.drain(..) {
            let Some(mut c) = self.connections.take(id) else {
                continue;
            };
            c.leave_dirty();
            let c_ref = &mut *c;
            let mut outbox = std::mem::take(&mut c_ref.send_queue);
            let (sent, bytes) =
                outbox.send(std::os::fd::AsFd::as_fd(c_ref), &mut self.pool, &mut self.scratch);
            c.send_queue = outbox;
            c.progress.bytes_moved += bytes;
            moved |= bytes > 0;
            match sent {
                SendResult::Complete => self.await_writable(&mut c, false),
                SendResult::Blocked => self.await_writable(&mut c, true),
                SendResult::Closed => {
                    // Requests already received are still executed; their replies are discarded.
                    c.output.closed = true;
                    c.send_queue.clear(&mut self.pool);
                }
            }
            if c.awaits_event() {
                self.work.mark_ready(&mut c);
            }
            self.connections.put(c);
        }
        self.work.reuse(dirty);
        moved
    }

    /// Grants freed memory to waiting clients.
    pub(super) fn grant_memory(&mut self) -> bool {
        let mut moved = false;
        loop {
            let connections = &self.connections;
            let Some((id, buffer)) = self.pool.pop_granted(|id| connections.contains(id)) else {
                return moved;
            };
            moved = true;
            let Some(c) = self.connections.get_mut(id) else {
                self.pool.free(buffer);
                continue;
            };
            c.memory.end_wait();
            if c.closing.since.is_some() {
                self.pool.free(buffer);
                continue;
            }
            c.memory.grant(buffer);
            self.work.mark_ready(c);
        }
    }

    /// Closes a connection that is finished.
    pub(super) fn close(&mut self, c: Box<Connection>) {
        if !c.closing.said_disconnect && !self.is_stopping() {
            self.counters.clients_vanished.add(1);
        }
        self.retire(c);
    }

    /// Closes a connection after a violation. Its requests in flight complete without replies.
    pub(super) fn drop_client(&mut self, c: Box<Connection>, why: &'static str) {
        tracing::debug!(why, "NBD client dropped");
        self.counters.clients_dropped.add(1);
        self.retire(c);
    }

    /// Frees the connection and closes its socket.
    fn retire(&mut self, mut c: Box<Connection>) {
        c.release(&mut self.pool);
        self.connections.retire(&c);
        self.group.on_closed();
        self.counters.connections_open.set(self.connections.open_count() as u64);
    }
}
