//! [`Packet`]: a [`Message`], byte by byte as `docs/format/socket.md` has it.
//!
//! A message is one packet: a header of [`HEADER_BYTES`] bytes, and a body whose length its kind
//! fixes. Every byte is checked; what has no meaning is refused, never guessed at.

use super::fields::{Reader, Writer};
use super::interval::IntervalStats;
use super::message::{ClientEntry, Entry, Granted, Message, Whom};
use super::refusal::{Code, Refusal};
use super::rule::{Grant, Rule, Span, Subject};

/// The protocol's version.
pub const VERSION: u16 = 1;
/// First bytes of every message.
pub const MAGIC: [u8; 4] = *b"SLSK";
/// Bytes before the body.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the longest message.
pub const MAX_BYTES: usize = 320;

/// A message, and the number by which an answer names its question (0 of what nobody asked).
#[derive(Clone, Debug, PartialEq)]
pub struct Packet {
    /// The question's number.
    pub serial: u32,
    /// What is said.
    pub message: Message,
}

/// A packet that means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Too short for a header, or not one of ours.
    #[error("{bytes} bytes that are no message of this protocol")]
    Header {
        /// Of the packet.
        bytes: usize,
    },
    /// Another version.
    #[error("a message of version {found}; this side speaks version {VERSION}")]
    Version {
        /// What came.
        found: u16,
    },
    /// No such kind of message.
    #[error("messages of kind {kind} are not known")]
    Kind {
        /// What came.
        kind: u16,
    },
    /// The packet is not as long as its kind is.
    #[error("a message of kind {kind} with {bytes} bytes")]
    Length {
        /// Of which kind.
        kind: u16,
        /// Bytes of the packet.
        bytes: usize,
    },
    /// A field is not what it can be.
    #[error("a message of kind {kind} whose fields cannot be")]
    Field {
        /// Of which kind.
        kind: u16,
    },
    /// More or fewer descriptors than belong to the message, or they have been cut off.
    #[error("a message with {found} descriptors")]
    Descriptors {
        /// How many came.
        found: usize,
    },
}

const fn body_bytes(kind: u16) -> Option<usize> {
    Some(match kind {
        1 => 8,
        2 => 16,
        3 => 72,
        4 => 8 + 64 + 24 + 24 + 12 + 8,
        5 => 16,
        6 => 8,
        7 | 8 => 248,
        16 => 96,
        17 => 72,
        18 => 16,
        19 => 8,
        20 => 96,
        21 => 96,
        22 => 24 + 64 + 32 + 8 + 16,
        23 => 8,
        24 => IntervalStats::WIRE_BYTES + 32,
        _ => return None,
    })
}

impl Message {
    fn kind(&self) -> u16 {
        match self {
            Message::Hello => 1,
            Message::Welcome { .. } => 2,
            Message::Open { .. } => 3,
            Message::Granted(_) => 4,
            Message::Register { .. } => 5,
            Message::Done { .. } => 6,
            Message::Refused(_) => 7,
            Message::Ending(_) => 8,
            Message::Allow(_) => 16,
            Message::Deny { .. } => 17,
            Message::Kick(_) => 18,
            Message::List { .. } => 19,
            Message::Entry(Entry::Partition { .. }) => 20,
            Message::Entry(Entry::Rule(_)) => 21,
            Message::Entry(Entry::Client(_)) => 22,
            Message::Stats { .. } => 23,
            Message::Interval { .. } => 24,
        }
    }

    /// What it is called in messages to people.
    pub fn title(&self) -> &'static str {
        match self {
            Message::Hello => "Hello",
            Message::Welcome { .. } => "Welcome",
            Message::Open { .. } => "Open",
            Message::Granted(_) => "Granted",
            Message::Register { .. } => "Register",
            Message::Done { .. } => "Done",
            Message::Refused(_) => "Refused",
            Message::Ending(_) => "Ending",
            Message::Allow(_) => "Allow",
            Message::Deny { .. } => "Deny",
            Message::Kick(_) => "Kick",
            Message::List { .. } => "List",
            Message::Entry(_) => "Entry",
            Message::Stats { .. } => "Stats",
            Message::Interval { .. } => "Interval",
        }
    }

    fn put(&self, w: &mut Writer<'_>) {
        match self {
            Message::Hello => drop(w.zeros(8)),
            Message::Welcome { admin, uid, pid } => {
                w.flag(*admin).zeros(3).word(*uid).word(*pid).zeros(4);
            }
            Message::Open { device, partition, queues } => {
                w.name(*device).name(*partition).half(*queues).zeros(6);
            }
            Message::Granted(granted) => granted.put(w),
            Message::Register { slot, bytes } => drop(w.word(*slot).zeros(4).long(*bytes)),
            Message::Done { count } => drop(w.long(*count)),
            Message::Refused(refusal) | Message::Ending(refusal) => {
                w.half(refusal.code as u16).zeros(6).text(&refusal.text);
            }
            Message::Allow(rule) | Message::Entry(Entry::Rule(rule)) => {
                put_subject(w, rule.subject);
                w.name(rule.device).name(rule.partition);
                put_grant(w, rule.grant);
            }
            Message::Deny { subject, device, partition } => {
                put_subject(w, *subject);
                w.name(*device).name(*partition);
            }
            Message::Kick(whom) => match whom {
                Whom::Client(client) => drop(w.long(0).long(*client)),
                Whom::Subject(subject) => {
                    put_subject(w, *subject);
                    w.long(0);
                }
            },
            Message::List { index } | Message::Stats { index } => drop(w.word(*index).zeros(4)),
            Message::Entry(Entry::Partition { device, name, span, taken, clients }) => {
                w.name(*device).name(*name);
                put_span(w, *span);
                w.word(*clients).flag(*taken).zeros(3);
            }
            Message::Entry(Entry::Client(client)) => client.put(w),
            Message::Interval { device, stats } => stats.put(w.name(*device)),
        }
    }

    fn take(kind: u16, mut r: Reader<'_>) -> Option<Message> {
        let message = match kind {
            1 => r.zeros::<8>().map(|()| Message::Hello)?,
            2 => {
                let admin = r.flag()?;
                r.zeros::<3>()?;
                let (uid, pid) = (r.word()?, r.word()?);
                r.zeros::<4>()?;
                Message::Welcome { admin, uid, pid }
            }
            3 => {
                let (device, partition, queues) = (r.name()?, r.name()?, r.half()?);
                r.zeros::<6>()?;
                Message::Open { device, partition, queues }
            }
            4 => Message::Granted(Granted::take(&mut r)?),
            5 => {
                let slot = r.word()?;
                r.zeros::<4>()?;
                Message::Register { slot, bytes: r.long()? }
            }
            6 => Message::Done { count: r.long()? },
            7 | 8 => {
                let code = Code::from_wire(r.half()?)?;
                r.zeros::<6>()?;
                let refusal = Refusal { code, text: r.text()? };
                if kind == 7 { Message::Refused(refusal) } else { Message::Ending(refusal) }
            }
            16 | 21 => {
                let subject = take_subject(&mut r)?;
                let (device, partition) = (r.name()?, r.name()?);
                let rule = Rule { subject, device, partition, grant: take_grant(&mut r)? };
                if kind == 16 { Message::Allow(rule) } else { Message::Entry(Entry::Rule(rule)) }
            }
            17 => {
                let subject = take_subject(&mut r)?;
                Message::Deny { subject, device: r.name()?, partition: r.name()? }
            }
            18 => {
                let (whom, client) = (r.take::<8>()?, r.long()?);
                let whom = match (whom, client) {
                    ([0, ..], _) if whom == [0; 8] => Whom::Client(client),
                    (_, 0) => Whom::Subject(take_subject(&mut Reader::new(&whom))?),
                    _ => return None,
                };
                Message::Kick(whom)
            }
            19 | 23 => {
                let index = r.word()?;
                r.zeros::<4>()?;
                if kind == 19 { Message::List { index } } else { Message::Stats { index } }
            }
            20 => {
                let (device, name, span) = (r.name()?, r.name()?, take_span(&mut r)?);
                let (clients, taken) = (r.word()?, r.flag()?);
                r.zeros::<3>()?;
                Message::Entry(Entry::Partition { device, name, span, taken, clients })
            }
            22 => Message::Entry(Entry::Client(ClientEntry::take(&mut r)?)),
            24 => Message::Interval {
                device: r.name()?,
                stats: Box::new(IntervalStats::take(&mut r)?),
            },
            _ => return None,
        };
        r.end(message)
    }
}

impl Granted {
    fn put(&self, w: &mut Writer<'_>) {
        w.long(self.client).name(self.device).name(self.partition);
        put_span(w, self.span);
        put_grant(w, self.grant);
        w.word(self.regions).long(self.bytes).put(&self.port);
    }

    fn take(r: &mut Reader<'_>) -> Option<Granted> {
        Some(Granted {
            client: r.long()?,
            device: r.name()?,
            partition: r.name()?,
            span: take_span(r)?,
            grant: take_grant(r)?,
            regions: r.word()?,
            bytes: r.long()?,
            port: r.take()?,
        })
    }
}

impl ClientEntry {
    fn put(&self, w: &mut Writer<'_>) {
        w.long(self.client).word(self.uid).word(self.gid).word(self.pid);
        w.half(self.queues_granted).half(self.queues).name(self.device).name(self.partition);
        w.long(self.commands).long(self.bytes).long(self.refused).long(self.held);
        w.word(self.outstanding).word(self.stalled).long(self.registered).long(self.seconds);
    }

    fn take(r: &mut Reader<'_>) -> Option<ClientEntry> {
        let (client, uid, gid, pid) = (r.long()?, r.word()?, r.word()?, r.word()?);
        let (queues_granted, queues) = (r.half()?, r.half()?);
        Some(ClientEntry {
            client,
            uid,
            gid,
            pid,
            queues_granted,
            queues,
            device: r.name()?,
            partition: r.name()?,
            commands: r.long()?,
            bytes: r.long()?,
            refused: r.long()?,
            held: r.long()?,
            outstanding: r.word()?,
            stalled: r.word()?,
            registered: r.long()?,
            seconds: r.long()?,
        })
    }
}

/// 8 bytes; the first is not 0.
fn put_subject(w: &mut Writer<'_>, subject: Subject) {
    let (kind, number) = match subject {
        Subject::Uid(number) => (1, number),
        Subject::Gid(number) => (2, number),
        Subject::Anyone => (3, 0),
    };
    w.byte(kind).zeros(3).word(number);
}

fn take_subject(r: &mut Reader<'_>) -> Option<Subject> {
    let kind = r.byte()?;
    r.zeros::<3>()?;
    match (kind, r.word()?) {
        (1, number) => Some(Subject::Uid(number)),
        (2, number) => Some(Subject::Gid(number)),
        (3, 0) => Some(Subject::Anyone),
        _ => None,
    }
}

/// 24 bytes; a rate of 0 is none.
fn put_grant(w: &mut Writer<'_>, grant: Grant) {
    w.flag(grant.write).zeros(3).half(grant.queues).half(grant.depth);
    w.long(grant.iops.unwrap_or(0)).long(grant.bytes_per_sec.unwrap_or(0));
}

fn take_grant(r: &mut Reader<'_>) -> Option<Grant> {
    let write = r.flag()?;
    r.zeros::<3>()?;
    let (queues, depth) = (r.half()?, r.half()?);
    let mut rate = || r.long().map(|rate| (rate > 0).then_some(rate));
    Some(Grant { write, queues, depth, iops: rate()?, bytes_per_sec: rate()? })
}

/// 24 bytes.
fn put_span(w: &mut Writer<'_>, span: Span) {
    match span {
        Span::Sectors { first, count } => drop(w.word(0).zeros(4).long(first).long(count)),
        Span::ParallelUnits { first, count } => {
            w.word(1).zeros(4).long(first.into()).long(count.into());
        }
    }
}

fn take_span(r: &mut Reader<'_>) -> Option<Span> {
    let kind = r.word()?;
    r.zeros::<4>()?;
    let (first, count) = (r.long()?, r.long()?);
    match kind {
        0 => Some(Span::Sectors { first, count }),
        1 => {
            let (first, count) = (first.try_into().ok()?, count.try_into().ok()?);
            Some(Span::ParallelUnits { first, count })
        }
        _ => None,
    }
}

impl Packet {
    /// The bytes, which are put at the beginning of `into`.
    pub fn encode<'b>(&self, into: &'b mut [u8; MAX_BYTES]) -> &'b [u8] {
        let mut body = Writer::new(&mut into[HEADER_BYTES..]);
        self.message.put(&mut body);
        let length = HEADER_BYTES + body.len();
        let mut header = Writer::new(&mut into[..HEADER_BYTES]);
        header.put(&MAGIC).half(VERSION).half(self.message.kind());
        header.word(length as u32).word(self.serial);
        &into[..length]
    }

    /// What a packet says.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(packet: &[u8]) -> Result<Packet, WireError> {
        let bytes = packet.len();
        let mut r = Reader::new(packet);
        let mut header = || Some((r.take::<4>()?, r.half()?, r.half()?, r.word()?, r.word()?));
        let wrong = WireError::Header { bytes };
        let (magic, version, kind, length, serial) = header().ok_or(wrong)?;
        if magic != MAGIC {
            return Err(wrong);
        }
        if version != VERSION {
            return Err(WireError::Version { found: version });
        }
        let body = body_bytes(kind).ok_or(WireError::Kind { kind })?;
        if length as usize != bytes || bytes != HEADER_BYTES + body {
            return Err(WireError::Length { kind, bytes });
        }
        let message = Message::take(kind, r).ok_or(WireError::Field { kind })?;
        Ok(Packet { serial, message })
    }
}

#[cfg(test)]
mod tests;
