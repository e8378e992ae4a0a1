//! [`Clients`]: YCSB's clients of Redis as in its binding. A record is a hash of ten fields of 100
//! bytes, a read is `HGETALL`, an update is `HSET` of one field. Each client has a connection and
//! one operation in flight.
//!
//! One thread runs all clients, because the machine's cores are for the server and the layers
//! below.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use event::RealClock;
use rng::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use time::Nanos;
use workload::Histogram;
use workload::ycsb::{OperationKind, Ycsb, YcsbWorkload, record_key};

use super::setup;
use crate::BenchError;

/// Fields of a record (YCSB's `fieldcount`).
const FIELDS: u64 = 10;
/// Size of a field in bytes (YCSB's `fieldlength`).
const FIELD_BYTES: usize = 100;
/// Number of records loaded at a time.
const BATCH: u64 = 100;
/// Start of the reply to a read: field names and values.
const RECORD: &[u8] = b"*20\r\n";
/// Maximum time for a reply.
const REPLY_TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// Measurements.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) operations: u64,
    pub(super) time: Nanos,
    pub(super) read: Histogram,
    pub(super) update: Histogram,
}

/// Appends a command in Redis's protocol.
fn command(to: &mut Vec<u8>, words: &[&[u8]]) {
    to.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        to.extend(format!("${}\r\n", word.len()).bytes());
        to.extend(*word);
        to.extend(b"\r\n");
    }
}

/// Returns the length of the first reply; `None` if it is incomplete.
///
/// # Errors
/// Errors of the server, and bytes that are not a reply.
fn reply(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let line = String::from_utf8_lossy(&bytes[..end]);
    let (kind, rest) = line.split_at_checked(1).unwrap_or(("", ""));
    let count = || rest.parse::<i64>().map_err(|_| format!("no reply: {line}"));
    let mut len = end + 2;
    match kind {
        "+" | ":" => {}
        "$" => len += usize::try_from(count()?).map_or(0, |bytes| bytes + 2),
        "*" => {
            for _ in 0..count()? {
                let Some(part) = bytes.get(len..).map_or(Ok(None), reply)? else { return Ok(None) };
                len += part;
            }
        }
        "-" => return Err(format!("the server says: {rest}")),
        _ => return Err(format!("no reply: {line}")),
    }
    Ok((len <= bytes.len()).then_some(len))
}

struct Client {
    stream: UnixStream,
    received: Vec<u8>,
    in_flight: Option<(OperationKind, Nanos)>,
}

impl Client {
    /// Receives available bytes; returns whether a reply is complete. A read without a complete
    /// record is an error.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool, BenchError> {
        let got = self.stream.read(buffer)?;
        if got == 0 {
            return Err(setup("the server has closed a connection"));
        }
        self.received.extend(&buffer[..got]);
        let Some(len) = reply(&self.received).map_err(setup)? else { return Ok(false) };
        let read = matches!(self.in_flight, Some((OperationKind::Read, _)));
        if len != self.received.len() || (read && !self.received.starts_with(RECORD)) {
            return Err(setup("the server answers something else than what it was asked"));
        }
        self.received.clear();
        Ok(true)
    }
}

/// The clients of one server.
pub(super) struct Clients {
    clients: Vec<Client>,
    rng: Rng,
    records: u64,
    field: Vec<u8>,
    out: Vec<u8>,
}

impl Clients {
    /// Connects `count` clients to a server at a socket.
    ///
    /// # Errors
    /// If they cannot connect.
    pub(super) fn connect(
        socket: &Path,
        count: usize,
        records: u64,
    ) -> Result<Clients, BenchError> {
        let client = |_| {
            let connected = UnixStream::connect(socket);
            let stream = connected
                .map_err(|e| setup(format!("redis-server at {}: {e}", socket.display())))?;
            Ok(Client { stream, received: Vec::new(), in_flight: None })
        };
        let clients: Result<Vec<Client>, BenchError> = (0..count).map(client).collect();
        let (rng, field) = (Rng::new(1), vec![0; FIELD_BYTES]);
        Ok(Clients { clients: clients?, rng, records, field, out: Vec::new() })
    }

    fn fill_field(&mut self) {
        for byte in &mut self.field {
            *byte = b'a' + self.rng.below(26) as u8;
        }
    }

    /// Sends one command and returns its reply.
    ///
    /// # Errors
    /// If the server returns an error or has ended.
    pub(super) fn ask(&mut self, words: &[&[u8]]) -> Result<Vec<u8>, BenchError> {
        self.out.clear();
        command(&mut self.out, words);
        self.replies(1)
    }

    /// Sends the pending bytes and receives replies.
    fn replies(&mut self, count: u64) -> Result<Vec<u8>, BenchError> {
        let client = self.clients.first_mut().ok_or_else(|| setup("no clients"))?;
        client.stream.write_all(&self.out)?;
        let (mut got, mut at, mut left) = (Vec::new(), 0, count);
        let mut buffer = [0; 4096];
        while left > 0 {
            let bytes = client.stream.read(&mut buffer)?;
            if bytes == 0 {
                return Err(setup("the server has closed a connection"));
            }
            got.extend(&buffer[..bytes]);
            while left > 0
                && let Some(len) = reply(&got[at..]).map_err(setup)?
            {
                (at, left) = (at + len, left - 1);
            }
        }
        Ok(got)
    }

    /// Inserts every record.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub(super) fn load(&mut self) -> Result<(), BenchError> {
        for first in (0..self.records).step_by(BATCH as usize) {
            let batch = BATCH.min(self.records - first);
            self.out.clear();
            for record in first..first + batch {
                let key = record_key(record);
                let mut words = vec![b"HSET".to_vec(), key.as_bytes().to_vec()];
                for field in 0..FIELDS {
                    self.fill_field();
                    words.extend([format!("field{field}").into_bytes(), self.field.clone()]);
                }
                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                command(&mut self.out, &words);
            }
            self.replies(batch)?;
        }
        Ok(())
    }

    fn begin(&mut self, which: usize, ycsb: &mut Ycsb, clock: RealClock) -> Result<(), BenchError> {
        let operation = ycsb.next_operation();
        let key = record_key(operation.record);
        self.out.clear();
        if operation.kind == OperationKind::Read {
            command(&mut self.out, &[b"HGETALL", key.as_bytes()]);
        } else {
            self.fill_field();
            let name = format!("field{}", self.rng.below(FIELDS));
            command(&mut self.out, &[b"HSET", key.as_bytes(), name.as_bytes(), &self.field]);
        }
        let client = &mut self.clients[which];
        client.in_flight = Some((operation.kind, clock.now()));
        Ok(client.stream.write_all(&self.out)?)
    }

    /// Runs workload A for a time.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask), and if no reply arrives before the timeout.
    pub(super) fn run(&mut self, time: Nanos) -> Result<Measured, BenchError> {
        let ycsb = Ycsb::new(YcsbWorkload::A.mix(), self.records, Rng::new(2));
        let mut ycsb = ycsb.ok_or_else(|| setup("no records"))?;
        let (clock, mut measured) = (RealClock::start(), Measured::default());
        let begin = clock.now();
        for which in 0..self.clients.len() {
            self.begin(which, &mut ycsb, clock)?;
        }
        let mut under_way = self.clients.len();
        let mut buffer = vec![0; 16 << 10];
        while under_way > 0 {
            let mut ready = self.clients.iter().map(|c| PollFd::new(&c.stream, PollFlags::IN));
            let mut ready: Vec<PollFd<'_>> = ready.by_ref().collect();
            if poll(&mut ready, Some(&REPLY_TIMEOUT)).map_err(std::io::Error::from)? == 0 {
                return Err(setup("the server does not answer"));
            }
            let ready: Vec<bool> = ready.iter().map(|fd| !fd.revents().is_empty()).collect();
            for (which, _) in ready.into_iter().enumerate().filter(|(_, ready)| *ready) {
                if !self.clients[which].receive(&mut buffer)? {
                    continue;
                }
                let now = clock.now();
                if let Some((kind, since)) = self.clients[which].in_flight.take() {
                    let read = kind == OperationKind::Read;
                    let into = if read { &mut measured.read } else { &mut measured.update };
                    into.record(now.since(since));
                    measured.operations += 1;
                }
                if now.since(begin) < time {
                    self.begin(which, &mut ycsb, clock)?;
                } else {
                    under_way -= 1;
                }
            }
        }
        measured.time = clock.now().since(begin);
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_told_from_their_beginnings() {
        let whole: [&[u8]; 6] = [
            b"+OK\r\n",
            b":12\r\n",
            b"$-1\r\n",
            b"$3\r\na\r\n\r\n",
            b"*0\r\n",
            b"*2\r\n$1\r\na\r\n:7\r\n",
        ];
        for bytes in whole {
            assert_eq!(reply(bytes), Ok(Some(bytes.len())), "{bytes:?}");
            for cut in 0..bytes.len() {
                assert_eq!(reply(&bytes[..cut]), Ok(None), "{:?}", &bytes[..cut]);
            }
            let more = [bytes, b"+more"].concat();
            assert_eq!(reply(&more), Ok(Some(bytes.len())));
        }
        for wrong in [&b"-ERR no\r\n"[..], b"*1\r\n-ERR no\r\n", b"what\r\n", b"\r\n", b"$x\r\n"] {
            assert!(reply(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn commands_are_bulk_strings() {
        let mut out = Vec::new();
        command(&mut out, &[b"HGETALL", b"a b"]);
        assert_eq!(out, b"*2\r\n$7\r\nHGETALL\r\n$3\r\na b\r\n");
    }
}
