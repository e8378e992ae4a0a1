//! What the server does for one client: read, check, submit, reply, and part. Nothing here waits.

use block::{Device, Extent};
use clock::{Nanos, RealClock};
use ring::PAGE;

use super::command::{Action, Command};
use super::connection::{Connection, ConnectionId, Incoming, Phase};
use super::flight::Flight;
use super::handshake::Step;
use super::outbox::Sent;
use super::pool::{Buffer, Pool, SMALL_BYTES_MAX};
use super::reply;
use super::server::NbdServer;
use super::wire::{PAYLOAD_BYTES_MAX, REQUEST_BYTES, RequestHeader, command};

/// How far the next message in an inbox was taken.
enum Parsed {
    /// Something was done; look again.
    Message,
    /// More bytes are needed.
    Input,
    /// Something else must happen first: a completion, memory, room in the outbox.
    Later,
    /// The client broke the protocol.
    Violation(&'static str),
}

impl<D: Device> NbdServer<D> {
    /// Reads once from a client and does all that its messages allow. Whether anything moved.
    pub(super) fn serve(&mut self, id: ConnectionId, now: Nanos) -> bool {
        let Some(mut c) = self.connections.take(id) else {
            return false;
        };
        c.in_ready = false;
        let mut moved = c.receive(&self.pool, &mut self.scratch);
        let parsed = loop {
            match self.parse(&mut c, now) {
                Parsed::Message => moved = true,
                other => break other,
            }
        };
        c.blocked = matches!(parsed, Parsed::Later);
        match parsed {
            Parsed::Violation(why) => {
                self.drop_client(c, why);
                return true;
            }
            Parsed::Input if c.eof && c.ending.is_none() => c.ending = Some(now),
            Parsed::Input if c.readable => self.ready.push_back(id),
            _ => {}
        }
        c.in_ready = matches!(parsed, Parsed::Input) && c.readable && c.ending.is_none();
        if c.ending.is_some() && self.part(&mut c) {
            self.close(c);
            return true;
        }
        self.connections.put(c);
        moved
    }

    /// For a client that is leaving: gives up what it will never finish. Whether it may go.
    fn part(&mut self, c: &mut Connection) -> bool {
        if let Incoming::Payload { buffer, .. } =
            std::mem::replace(&mut c.incoming, Incoming::Nothing)
        {
            self.pool.free(buffer);
        }
        if let Some(buffer) = c.granted.take() {
            self.pool.free(buffer);
        }
        c.is_finished()
    }

    /// Takes one message off the inbox.
    fn parse(&mut self, c: &mut Connection, now: Nanos) -> Parsed {
        // Memory that was granted is used at once: it must not wait for the client's reading.
        if c.ending.is_some() || (c.outbox.is_full() && c.granted.is_none()) {
            return Parsed::Later;
        }
        match &mut c.phase {
            Phase::Handshake(handshake) => {
                let mut step = Step::More;
                c.outbox.append(|out| {
                    step = handshake.step(c.inbox.as_slice(), &self.export, out);
                });
                let session = handshake.session();
                match step {
                    Step::More => return Parsed::Input,
                    Step::Violation(why) => return Parsed::Violation(why),
                    Step::Used(n) => c.inbox.consume(n),
                    Step::Transmission(n) => {
                        c.inbox.consume(n);
                        c.phase = Phase::Transmission(session);
                    }
                    Step::Leave(n) => {
                        c.inbox.consume(n);
                        c.goodbye = true;
                        c.ending = Some(now);
                    }
                }
                self.soil(c);
                Parsed::Message
            }
            Phase::Transmission(_) => self.parse_transmission(c, now),
        }
    }

    fn parse_transmission(&mut self, c: &mut Connection, now: Nanos) -> Parsed {
        let Phase::Transmission(session) = c.phase else {
            return Parsed::Later;
        };
        if !matches!(c.incoming, Incoming::Nothing) {
            return self.parse_payload(c, session.structured, now);
        }
        if c.in_flight >= self.in_flight_max {
            return Parsed::Later;
        }
        let Some(first) = c.inbox.as_slice().first_chunk::<REQUEST_BYTES>() else {
            return Parsed::Input;
        };
        let Some(header) = RequestHeader::parse(first) else {
            return Parsed::Violation("bad request magic");
        };
        if header.kind == command::DISC {
            c.inbox.consume(c.inbox.as_slice().len());
            c.goodbye = true;
            c.ending = Some(now);
            return Parsed::Later;
        }
        let command = match Command::check(&header, &self.export, session) {
            Ok(command) => command,
            Err(refusal) => {
                if header.kind == command::WRITE && header.length > PAYLOAD_BYTES_MAX {
                    return Parsed::Violation("a write payload over 32 MiB");
                }
                self.counters.errors_refused.add(1);
                c.inbox.consume(REQUEST_BYTES);
                let cookie = header.cookie;
                if header.kind == command::WRITE && header.length > 0 {
                    let left = header.length as usize;
                    c.incoming = Incoming::Skip { left, cookie, refusal };
                } else {
                    let structured = session.structured;
                    c.outbox.append(|out| reply::refused(out, structured, cookie, refusal));
                    self.soil(c);
                }
                return Parsed::Message;
            }
        };
        let payload = command.length as usize;
        let inline = command.action == Action::Write && command.length <= SMALL_BYTES_MAX;
        if inline && c.inbox.as_slice().len() < REQUEST_BYTES + payload {
            return Parsed::Input;
        }
        let buffer = match command.action {
            action if action.has_payload() => match self.buffer(c, command.length) {
                Some(buffer) => Some(buffer),
                None => return Parsed::Later,
            },
            Action::BlockStatus { .. } => match self.buffer(c, PAGE as u32) {
                Some(buffer) => Some(buffer),
                None => return Parsed::Later,
            },
            _ => None,
        };
        c.inbox.consume(REQUEST_BYTES);
        match (buffer, command.action) {
            (Some(buffer), Action::Write) if inline => {
                self.pool.write(&buffer, 0, &c.inbox.as_slice()[..payload]);
                c.inbox.consume(payload);
                self.launch(c, command, session.structured, Some(buffer), now);
            }
            (Some(buffer), Action::Write) => {
                c.incoming = Incoming::Payload { command, buffer, got: 0 };
            }
            (buffer, _) => self.launch(c, command, session.structured, buffer, now),
        }
        Parsed::Message
    }

    /// Goes on with a payload that is arriving.
    fn parse_payload(&mut self, c: &mut Connection, structured: bool, now: Nanos) -> Parsed {
        c.move_payload(&self.pool);
        match std::mem::replace(&mut c.incoming, Incoming::Nothing) {
            Incoming::Payload { command, buffer, got } if got == command.length as usize => {
                self.launch(c, command, structured, Some(buffer), now);
            }
            Incoming::Skip { left: 0, cookie, refusal } => {
                c.outbox.append(|out| reply::refused(out, structured, cookie, refusal));
                self.soil(c);
            }
            unfinished => {
                c.incoming = unfinished;
                return Parsed::Input;
            }
        }
        Parsed::Message
    }

    /// Payload memory for the request at the head of the inbox; if there is none, the client
    /// stands in line for it.
    fn buffer(&mut self, c: &mut Connection, len: u32) -> Option<Buffer> {
        if let Some(buffer) = c.granted.take() {
            return Some(buffer);
        }
        if c.awaits_memory {
            return None;
        }
        let area = Pool::<ConnectionId>::area_of(len);
        let elsewhere = if area == 0 { c.outbox.copied() } else { c.outbox.pooled() };
        let held = c.held[area] + elsewhere;
        if held > 0 && held + len as usize > self.share_bytes[area] {
            // Its own completions and reading will make room; others need not wait for it.
            return None;
        }
        let buffer = self.pool.alloc(len);
        if buffer.is_none() {
            self.counters.memory_waits.add(1);
            self.pool.wait(c.id, len);
            c.awaits_memory = true;
        }
        buffer
    }

    /// Sends a checked request on its way.
    fn launch(
        &mut self,
        c: &mut Connection,
        command: Command,
        structured: bool,
        buffer: Option<Buffer>,
        now: Nanos,
    ) {
        let count = match command.action {
            Action::Read => &self.counters.reads,
            Action::Write => &self.counters.writes,
            Action::Flush => &self.counters.flushes,
            Action::Trim => &self.counters.trims,
            Action::WriteZeroes { .. } => &self.counters.write_zeroes,
            Action::BlockStatus { .. } => &self.counters.block_statuses,
        };
        count.add(1);
        self.counters.activity.begin(now);
        c.in_flight += 1;
        if let Some(buffer) = &buffer {
            c.held[buffer.area()] += buffer.footprint();
        }
        let buffer = buffer.map(|b| {
            let iova = self.pool.iova(&b);
            (b, iova)
        });
        let flight = Flight::new(c.id, command, structured, buffer, (&self.limits, now));
        let slot = self.flights.insert(flight);
        // Who came before and found the device busy goes first.
        if !self.backlog.is_empty() || !self.advance(slot, now) {
            self.enqueue(slot);
        }
    }

    fn enqueue(&mut self, slot: u32) {
        if let Some(flight) = self.flights.get_mut(slot)
            && !flight.queued
        {
            flight.queued = true;
            self.backlog.push_back(slot);
        }
    }

    /// Gives the device what it takes of a flight; whether it took all that is due now.
    fn advance(&mut self, slot: u32, now: Nanos) -> bool {
        let Some(flight) = self.flights.get_mut(slot) else {
            return true;
        };
        while let Some(request) = flight.next_part(slot, &self.limits) {
            if self.device.submit(now, request).is_err() {
                return false;
            }
            flight.issued(&request);
        }
        true
    }

    /// Gives the device what it was too busy for.
    pub(super) fn retry(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(&slot) = self.backlog.front() {
            if !self.advance(slot, now) {
                break;
            }
            self.backlog.pop_front();
            if let Some(flight) = self.flights.get_mut(slot) {
                flight.queued = false;
            }
            moved = true;
        }
        moved
    }

    /// Takes the device's completions. The clock is read once, if there are any: a device that answers in
    /// the turn in which it is asked takes its time in it.
    pub(super) fn reap(&mut self, now: Nanos, clock: RealClock) -> bool {
        let mut moved = false;
        let mut ended = None;
        while let Some(completion) = self.device.reap() {
            moved = true;
            let slot = completion.tag as u32;
            let Some(flight) = self.flights.get_mut(slot) else {
                continue;
            };
            let pool = &self.pool;
            flight.landed(&completion, &self.limits, |buffer, count| {
                let mut page = [0; PAGE];
                pool.read(buffer, 0, &mut page);
                let entries = page.as_chunks::<{ Extent::BYTES }>().0;
                entries.iter().take(count as usize).map(|e| Extent::decode(*e)).collect()
            });
            if !self.connections.contains(flight.client) {
                flight.abandon();
            }
            if flight.is_over() {
                // One that stands in line has parts to come, or nothing: it leaves the line.
                if flight.queued {
                    self.backlog.retain(|s| *s != slot);
                }
                let ended = *ended.get_or_insert_with(|| clock.now());
                self.finish(slot, ended);
            } else if !flight.queued && !self.advance(slot, now) {
                self.enqueue(slot);
            }
        }
        moved
    }

    /// Answers a request whose last part has completed.
    fn finish(&mut self, slot: u32, now: Nanos) {
        let Some(mut flight) = self.flights.remove(slot) else {
            return;
        };
        self.counters.activity.end(now, flight.command.action, flight.since);
        let buffer = flight.buffer.take();
        let error = flight.error.and_then(|s| Some((s, reply::code_of(s, flight.command.action)?)));
        if error.is_some() {
            self.counters.errors_device.add(1);
        }
        let client = self.connections.get_mut(flight.client);
        let command = &flight.command;
        if error.is_none() {
            let bytes = u64::from(command.length);
            match command.action {
                Action::Read => self.counters.bytes_read.add(bytes),
                Action::Write => self.counters.bytes_written.add(bytes),
                Action::Trim => self.counters.bytes_trimmed.add(bytes),
                Action::WriteZeroes { .. } => self.counters.bytes_zeroed.add(bytes),
                Action::Flush | Action::BlockStatus { .. } => {}
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
            c.held[buffer.area()] -= buffer.footprint();
        }
        let (structured, cookie) = (flight.structured, command.cookie);
        let mut spent = buffer;
        if c.deaf {
            self.counters.replies_discarded.add(1);
        } else {
            match (error, command.action) {
                (Some((status, code)), _) => {
                    let text = format!("{status}, {} bytes at {}", command.length, command.offset);
                    c.outbox.append(|out| reply::error(out, structured, cookie, code, &text));
                }
                (None, Action::Read) => {
                    let (offset, length) = (command.offset, command.length);
                    c.outbox.append(|out| {
                        reply::data_header(out, structured, cookie, offset, length);
                    });
                    if let Some(buffer) = spent.take() {
                        spent = c.outbox.append_payload(&self.pool, buffer, length as usize);
                    }
                }
                (None, Action::BlockStatus { .. }) => {
                    c.outbox.append(|out| reply::block_status(out, cookie, &flight.descriptors));
                }
                (None, _) => c.outbox.append(|out| reply::done(out, cookie)),
            }
            if !c.in_dirty {
                c.in_dirty = true;
                self.dirty.push(c.id);
            }
        }
        if (c.blocked || c.ending.is_some()) && !c.in_ready {
            c.in_ready = true;
            self.ready.push_back(c.id);
        }
        if let Some(buffer) = spent {
            self.pool.free(buffer);
        }
    }

    /// Notes that a client has something to be sent.
    pub(super) fn soil(&mut self, c: &mut Connection) {
        if !c.in_dirty {
            c.in_dirty = true;
            self.dirty.push(c.id);
        }
    }

    /// Sends what waits for the clients that have something new or have room again.
    pub(super) fn send(&mut self) -> bool {
        let mut moved = false;
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            let Some(mut c) = self.connections.take(id) else {
                continue;
            };
            c.in_dirty = false;
            let c_ref = &mut *c;
            let mut outbox = std::mem::take(&mut c_ref.outbox);
            let (sent, bytes) =
                outbox.send(std::os::fd::AsFd::as_fd(c_ref), &mut self.pool, &mut self.scratch);
            c.outbox = outbox;
            c.moved += bytes;
            moved |= bytes > 0;
            match sent {
                Sent::Everything => self.await_room(&mut c, false),
                Sent::Blocked => self.await_room(&mut c, true),
                Sent::Gone => {
                    // What it has sent is still done; nothing more is told to it.
                    c.deaf = true;
                    c.outbox.clear(&mut self.pool);
                }
            }
            if (c.blocked || c.ending.is_some()) && !c.in_ready {
                c.in_ready = true;
                self.ready.push_back(id);
            }
            self.connections.put(c);
        }
        self.dirty = dirty;
        moved
    }

    /// Hands freed memory to those who wait for it.
    pub(super) fn grant(&mut self) -> bool {
        let mut moved = false;
        loop {
            let connections = &self.connections;
            let Some((id, buffer)) = self.pool.next_granted(|id| connections.contains(id)) else {
                return moved;
            };
            moved = true;
            let Some(c) = self.connections.get_mut(id) else {
                self.pool.free(buffer);
                continue;
            };
            c.awaits_memory = false;
            if c.ending.is_some() {
                self.pool.free(buffer);
                continue;
            }
            c.granted = Some(buffer);
            if !c.in_ready {
                c.in_ready = true;
                self.ready.push_back(id);
            }
        }
    }

    /// Closes a connection that has nothing more to expect.
    pub(super) fn close(&mut self, mut c: Box<Connection>) {
        if !c.goodbye && !self.is_stopping() {
            self.counters.clients_vanished.add(1);
        }
        c.release(&mut self.pool);
        self.connections.retire(c);
        self.counters.connections_open.set(self.connections.open() as u64);
    }

    /// Closes a connection that broke the rules. Its requests under way complete unheard.
    pub(super) fn drop_client(&mut self, mut c: Box<Connection>, why: &'static str) {
        tracing::debug!(why, "NBD client dropped");
        self.counters.clients_dropped.add(1);
        c.release(&mut self.pool);
        self.connections.retire(c);
        self.counters.connections_open.set(self.connections.open() as u64);
    }
}
