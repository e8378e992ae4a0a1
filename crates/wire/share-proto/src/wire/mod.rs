//! [`Packet`]: encoding of a [`Message`] as `docs/format/socket.md` defines it.
//!
//! A message is one packet: a header of [`HEADER_BYTES`] bytes, and a body whose length depends on
//! its kind. Every byte is checked; a packet with an invalid field is refused.

use collections::{PutBytes, Reader, SliceWriter};
use nvme::{RuleTableAction, RuleTableEntry};

use crate::acl::{AclRule, Grant, PartitionSpan, Principal};
use crate::codec::{PutField, ReadField, TEXT_BYTES_MAX};
use crate::interval::IntervalStats;
use crate::message::{
    ClientEntry, ClientProcess, ClientTraffic, KickTarget, ListEntry, Message, SessionGrant,
};
use crate::namespace::{NamespaceAction, NamespaceEntry};
use crate::protocol_error::{Code, ProtocolError};
use crate::setting::{SettingChange, SettingsEntry};
use crate::value_part::ValuePart;

/// Protocol version.
pub const VERSION: u16 = 1;
/// First bytes of every message.
pub const MAGIC: [u8; 4] = *b"SLSK";
/// Bytes of the header.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the longest message.
pub const MESSAGE_BYTES_MAX: usize = 336;

/// A message, and the serial number that matches a reply to its request (0 if unsolicited).
#[derive(Clone, Debug, PartialEq)]
pub struct Packet {
    /// Serial number of the request.
    pub serial: u32,
    /// The message.
    pub message: Message,
}

/// Why a packet is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Too short for a header, or a wrong magic number.
    #[error("{bytes} bytes that are not a message of this protocol")]
    Header {
        /// Bytes of the packet.
        bytes: usize,
    },
    /// Another protocol version.
    #[error("a message of version {found}; this side speaks version {VERSION}")]
    Version {
        /// The version received.
        found: u16,
    },
    /// Unknown kind of message.
    #[error("messages of kind {kind} are not known")]
    Kind {
        /// The kind received.
        kind: u16,
    },
    /// The length does not match the kind.
    #[error("a message of kind {kind} with {bytes} bytes")]
    Length {
        /// The kind.
        kind: u16,
        /// Bytes of the packet.
        bytes: usize,
    },
    /// A field has an invalid value.
    #[error("a message of kind {kind} with an invalid field")]
    Field {
        /// The kind.
        kind: u16,
    },
    /// The number of descriptors does not match the message, or they were truncated.
    #[error("a message with {found} descriptors")]
    Descriptors {
        /// Descriptors received.
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
        25 => 32 + SettingChange::WIRE_BYTES,
        26 => SettingsEntry::WIRE_BYTES,
        27 => 32 + TEXT_BYTES_MAX,
        28 => 32 + NamespaceAction::WIRE_BYTES,
        29 => 32 + 8,
        30 => NamespaceEntry::WIRE_BYTES,
        31 => 32 + 8 + ValuePart::WIRE_BYTES,
        32 => 32,
        33 => 32 + 32,
        34 => 32 + 8,
        35 => 8 + ValuePart::WIRE_BYTES,
        36 => 32 + 8 + ValuePart::WIRE_BYTES,
        37 => 32 + 8 + 8,
        38 => ValuePart::WIRE_BYTES,
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
            Message::Disconnect(_) => 8,
            Message::Allow(_) => 16,
            Message::Deny { .. } => 17,
            Message::Kick(_) => 18,
            Message::List { .. } => 19,
            Message::Entry(ListEntry::Partition { .. }) => 20,
            Message::Entry(ListEntry::Rule(_)) => 21,
            Message::Entry(ListEntry::Client(_)) => 22,
            Message::Stats { .. } => 23,
            Message::Interval { .. } => 24,
            Message::Set { .. } => 25,
            Message::Entry(ListEntry::Settings(_)) => 26,
            Message::Fault { .. } => 27,
            Message::ChangeNamespaces { .. } => 28,
            Message::ListNamespaces { .. } => 29,
            Message::Namespace(_) => 30,
            Message::UploadRules { .. } => 31,
            Message::InstallRules { .. } => 32,
            Message::RejectMisses { .. } => 33,
            Message::ReadRules { .. } => 34,
            Message::Rules { .. } => 35,
            Message::EditRuleTable { .. } => 36,
            Message::ReadRuleTable { .. } => 37,
            Message::RuleTableValues { .. } => 38,
        }
    }

    /// Returns the name of the message for diagnostics.
    pub fn title(&self) -> &'static str {
        match self {
            Message::Hello => "Hello",
            Message::Welcome { .. } => "Welcome",
            Message::Open { .. } => "Open",
            Message::Granted(_) => "Granted",
            Message::Register { .. } => "Register",
            Message::Done { .. } => "Done",
            Message::Refused(_) => "Refused",
            Message::Disconnect(_) => "Ending",
            Message::Allow(_) => "Allow",
            Message::Deny { .. } => "Deny",
            Message::Kick(_) => "Kick",
            Message::List { .. } => "List",
            Message::Entry(_) => "Entry",
            Message::Stats { .. } => "Stats",
            Message::Interval { .. } => "Interval",
            Message::Set { .. } => "Set",
            Message::Fault { .. } => "Fault",
            Message::ChangeNamespaces { .. } => "Namespaces",
            Message::ListNamespaces { .. } => "List of namespaces",
            Message::Namespace(_) => "Namespace",
            Message::UploadRules { .. } => "Part of a rule program",
            Message::InstallRules { .. } => "Installation of rules",
            Message::RejectMisses { .. } => "Rejection of misses",
            Message::ReadRules { .. } => "Request for rules",
            Message::Rules { .. } => "Rules",
            Message::EditRuleTable { .. } => "Change of a table",
            Message::ReadRuleTable { .. } => "Request for a table",
            Message::RuleTableValues { .. } => "Values of a table",
        }
    }

    fn encode_body(&self, w: &mut SliceWriter<'_>) {
        match self {
            Message::Hello => drop(w.put_zeros(8)),
            Message::Welcome { admin, uid, pid } => {
                w.put_flag(*admin).put_zeros(3).put_u32(*uid).put_u32(*pid).put_zeros(4);
            }
            Message::Open { device, partition, queues } => {
                w.put_name(*device).put_name(*partition).put_u16(*queues).put_zeros(6);
            }
            Message::Granted(granted) => granted.encode(w),
            Message::Register { slot, bytes } => {
                w.put_u32(*slot).put_zeros(4).put_u64(*bytes);
            }
            Message::Done { count } => drop(w.put_u64(*count)),
            Message::Refused(refusal) | Message::Disconnect(refusal) => {
                w.put_u16(refusal.code as u16).put_zeros(6).put_text(&refusal.text);
            }
            Message::Allow(rule) | Message::Entry(ListEntry::Rule(rule)) => {
                encode_principal(w, rule.principal);
                w.put_name(rule.device).put_name(rule.partition);
                encode_grant(w, rule.grant);
            }
            Message::Deny { subject, device, partition } => {
                encode_principal(w, *subject);
                w.put_name(*device).put_name(*partition);
            }
            Message::Kick(whom) => match whom {
                KickTarget::Client(client) => drop(w.put_u64(0).put_u64(*client)),
                KickTarget::Subject(subject) => {
                    encode_principal(w, *subject);
                    w.put_u64(0);
                }
            },
            Message::List { index } | Message::Stats { index } => {
                w.put_u32(*index).put_zeros(4);
            }
            Message::Entry(ListEntry::Partition { device, name, span, in_use: taken, clients }) => {
                w.put_name(*device).put_name(*name);
                encode_span(w, *span);
                w.put_u32(*clients).put_flag(*taken).put_zeros(3);
            }
            Message::Entry(ListEntry::Client(client)) => client.encode(w),
            Message::Interval { device, stats } => stats.encode(w.put_name(*device)),
            Message::Set { device, change } => change.encode(w.put_name(*device)),
            Message::Entry(ListEntry::Settings(settings)) => settings.encode(w),
            Message::Fault { device, fault } => drop(w.put_name(*device).put_text(fault)),
            Message::ChangeNamespaces { device, action } => action.encode(w.put_name(*device)),
            Message::ListNamespaces { device, index } => {
                w.put_name(*device).put_u32(*index).put_zeros(4);
            }
            Message::Namespace(entry) => entry.encode(w),
            Message::UploadRules { device, offset, part } => {
                part.encode(w.put_name(*device).put_u64(*offset));
            }
            Message::InstallRules { device } => drop(w.put_name(*device)),
            Message::RejectMisses { device, op } => drop(w.put_name(*device).put_name(*op)),
            Message::ReadRules { device, offset } => drop(w.put_name(*device).put_u64(*offset)),
            Message::Rules { total, part } => part.encode(w.put_u64(*total)),
            Message::EditRuleTable { device, table, action, entries } => {
                w.put_name(*device).put_u32((*table).into()).put_u32(*action as u32);
                entries.encode(w);
            }
            Message::ReadRuleTable { device, table, first, count } => {
                w.put_name(*device).put_u32((*table).into()).put_u32(*count).put_u64(*first);
            }
            Message::RuleTableValues { values } => values.encode(w),
        }
    }

    fn decode_body(kind: u16, mut r: Reader<'_>) -> Option<Message> {
        let message = match kind {
            1 => r.zeros::<8>().map(|()| Message::Hello)?,
            2 => {
                let admin = r.flag()?;
                r.zeros::<3>()?;
                let (uid, pid) = (r.u32()?, r.u32()?);
                r.zeros::<4>()?;
                Message::Welcome { admin, uid, pid }
            }
            3 => {
                let (device, partition, queues) = (r.name()?, r.name()?, r.u16()?);
                r.zeros::<6>()?;
                Message::Open { device, partition, queues }
            }
            4 => Message::Granted(SessionGrant::decode(&mut r)?),
            5 => {
                let slot = r.u32()?;
                r.zeros::<4>()?;
                Message::Register { slot, bytes: r.u64()? }
            }
            6 => Message::Done { count: r.u64()? },
            7 | 8 => {
                let code = Code::from_wire(r.u16()?)?;
                r.zeros::<6>()?;
                let refusal = ProtocolError { code, text: r.text()? };
                if kind == 7 { Message::Refused(refusal) } else { Message::Disconnect(refusal) }
            }
            16 | 21 => {
                let subject = decode_principal(&mut r)?;
                let (device, partition) = (r.name()?, r.name()?);
                let rule =
                    AclRule { principal: subject, device, partition, grant: decode_grant(&mut r)? };
                if kind == 16 {
                    Message::Allow(rule)
                } else {
                    Message::Entry(ListEntry::Rule(rule))
                }
            }
            17 => {
                let subject = decode_principal(&mut r)?;
                Message::Deny { subject, device: r.name()?, partition: r.name()? }
            }
            18 => {
                let (whom, client) = (r.array::<8>()?, r.u64()?);
                let whom = match (whom, client) {
                    ([0, ..], _) if whom == [0; 8] => KickTarget::Client(client),
                    (_, 0) => KickTarget::Subject(decode_principal(&mut Reader::new(&whom))?),
                    _ => return None,
                };
                Message::Kick(whom)
            }
            19 | 23 => {
                let index = r.u32()?;
                r.zeros::<4>()?;
                if kind == 19 { Message::List { index } } else { Message::Stats { index } }
            }
            20 => {
                let (device, name, span) = (r.name()?, r.name()?, decode_span(&mut r)?);
                let (clients, taken) = (r.u32()?, r.flag()?);
                r.zeros::<3>()?;
                Message::Entry(ListEntry::Partition { device, name, span, in_use: taken, clients })
            }
            22 => Message::Entry(ListEntry::Client(ClientEntry::decode(&mut r)?)),
            24 => Message::Interval {
                device: r.name()?,
                stats: Box::new(IntervalStats::decode(&mut r)?),
            },
            25 => Message::Set { device: r.name()?, change: SettingChange::decode(&mut r)? },
            26 => Message::Entry(ListEntry::Settings(SettingsEntry::decode(&mut r)?)),
            27 => Message::Fault { device: r.name()?, fault: r.text()? },
            28 => {
                let (device, action) = (r.name()?, NamespaceAction::decode(&mut r)?);
                Message::ChangeNamespaces { device, action }
            }
            29 => {
                let (device, index) = (r.name()?, r.u32()?);
                r.zeros::<4>()?;
                Message::ListNamespaces { device, index }
            }
            30 => Message::Namespace(NamespaceEntry::decode(&mut r)?),
            31 => {
                let (device, offset) = (r.name()?, r.u64()?);
                Message::UploadRules { device, offset, part: ValuePart::decode(&mut r)? }
            }
            32 => Message::InstallRules { device: r.name()? },
            33 => Message::RejectMisses { device: r.name()?, op: r.name()? },
            34 => Message::ReadRules { device: r.name()?, offset: r.u64()? },
            35 => Message::Rules { total: r.u64()?, part: ValuePart::decode(&mut r)? },
            36 => {
                let (device, table) = (r.name()?, u8::try_from(r.u32()?).ok()?);
                let action = RuleTableAction::from_code(r.u32()?)?;
                let entries = ValuePart::decode(&mut r)?;
                let is_whole = entries.bytes().len().is_multiple_of(RuleTableEntry::BYTES);
                is_whole.then_some(Message::EditRuleTable { device, table, action, entries })?
            }
            37 => {
                let (device, table) = (r.name()?, u8::try_from(r.u32()?).ok()?);
                let (count, first) = (r.u32()?, r.u64()?);
                Message::ReadRuleTable { device, table, first, count }
            }
            38 => {
                let values = ValuePart::decode(&mut r)?;
                let is_whole = values.bytes().len().is_multiple_of(8);
                is_whole.then_some(Message::RuleTableValues { values })?
            }
            _ => return None,
        };
        r.finish(message)
    }
}

impl SessionGrant {
    fn encode(&self, w: &mut SliceWriter<'_>) {
        w.put_u64(self.client).put_name(self.device).put_name(self.partition);
        encode_span(w, self.span);
        encode_grant(w, self.grant);
        w.put_u32(self.regions).put_u64(self.bytes).put(&self.port);
    }

    fn decode(r: &mut Reader<'_>) -> Option<SessionGrant> {
        Some(SessionGrant {
            client: r.u64()?,
            device: r.name()?,
            partition: r.name()?,
            span: decode_span(r)?,
            grant: decode_grant(r)?,
            regions: r.u32()?,
            bytes: r.u64()?,
            port: r.array()?,
        })
    }
}

impl ClientEntry {
    fn encode(&self, w: &mut SliceWriter<'_>) {
        let ClientProcess { uid, gid, pid } = self.process;
        let ClientTraffic { commands, bytes, refused, throttled, outstanding, stalled } =
            self.traffic;
        w.put_u64(self.client).put_u32(uid).put_u32(gid).put_u32(pid);
        w.put_u16(self.queues_granted)
            .put_u16(self.queues)
            .put_name(self.device)
            .put_name(self.partition);
        w.put_u64(commands).put_u64(bytes).put_u64(refused).put_u64(throttled);
        w.put_u32(outstanding).put_u32(stalled).put_u64(self.registered).put_u64(self.seconds);
    }

    fn decode(r: &mut Reader<'_>) -> Option<ClientEntry> {
        let client = r.u64()?;
        let process = ClientProcess { uid: r.u32()?, gid: r.u32()?, pid: r.u32()? };
        let (queues_granted, queues) = (r.u16()?, r.u16()?);
        Some(ClientEntry {
            client,
            process,
            queues_granted,
            queues,
            device: r.name()?,
            partition: r.name()?,
            traffic: ClientTraffic {
                commands: r.u64()?,
                bytes: r.u64()?,
                refused: r.u64()?,
                throttled: r.u64()?,
                outstanding: r.u32()?,
                stalled: r.u32()?,
            },
            registered: r.u64()?,
            seconds: r.u64()?,
        })
    }
}

/// Encodes 8 bytes; the first is not 0.
fn encode_principal(w: &mut SliceWriter<'_>, subject: Principal) {
    let (kind, number) = match subject {
        Principal::Uid(number) => (1, number),
        Principal::Gid(number) => (2, number),
        Principal::Anyone => (3, 0),
    };
    w.put_u8(kind).put_zeros(3).put_u32(number);
}

fn decode_principal(r: &mut Reader<'_>) -> Option<Principal> {
    let kind = r.u8()?;
    r.zeros::<3>()?;
    match (kind, r.u32()?) {
        (1, number) => Some(Principal::Uid(number)),
        (2, number) => Some(Principal::Gid(number)),
        (3, 0) => Some(Principal::Anyone),
        _ => None,
    }
}

/// Encodes 24 bytes; a rate of 0 means no limit.
fn encode_grant(w: &mut SliceWriter<'_>, grant: Grant) {
    w.put_flag(grant.write).put_zeros(3).put_u16(grant.queues).put_u16(grant.depth);
    w.put_u64(grant.iops.unwrap_or(0)).put_u64(grant.bytes_per_sec.unwrap_or(0));
}

fn decode_grant(r: &mut Reader<'_>) -> Option<Grant> {
    let write = r.flag()?;
    r.zeros::<3>()?;
    let (queues, depth) = (r.u16()?, r.u16()?);
    let mut rate = || r.u64().map(|rate| (rate > 0).then_some(rate));
    Some(Grant { write, queues, depth, iops: rate()?, bytes_per_sec: rate()? })
}

/// Encodes 24 bytes.
fn encode_span(w: &mut SliceWriter<'_>, span: PartitionSpan) {
    match span {
        PartitionSpan::Sectors { first, count } => {
            w.put_u32(0).put_zeros(4).put_u64(first).put_u64(count);
        }
        PartitionSpan::ParallelUnits { first, count } => {
            w.put_u32(1).put_zeros(4).put_u64(first.into()).put_u64(count.into());
        }
    }
}

fn decode_span(r: &mut Reader<'_>) -> Option<PartitionSpan> {
    let kind = r.u32()?;
    r.zeros::<4>()?;
    let (first, count) = (r.u64()?, r.u64()?);
    match kind {
        0 => Some(PartitionSpan::Sectors { first, count }),
        1 => {
            let (first, count) = (first.try_into().ok()?, count.try_into().ok()?);
            Some(PartitionSpan::ParallelUnits { first, count })
        }
        _ => None,
    }
}

impl Packet {
    /// Encodes the packet at the start of `into`, and returns its bytes.
    pub fn encode<'b>(&self, into: &'b mut [u8; MESSAGE_BYTES_MAX]) -> &'b [u8] {
        let mut body = SliceWriter::new(&mut into[HEADER_BYTES..]);
        self.message.encode_body(&mut body);
        let length = HEADER_BYTES + body.len();
        let mut header = SliceWriter::new(&mut into[..HEADER_BYTES]);
        header.put(&MAGIC).put_u16(VERSION).put_u16(self.message.kind());
        header.put_u32(length as u32).put_u32(self.serial);
        &into[..length]
    }

    /// Decodes a packet.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(packet: &[u8]) -> Result<Packet, WireError> {
        let bytes = packet.len();
        let mut r = Reader::new(packet);
        let mut header = || Some((r.array::<4>()?, r.u16()?, r.u16()?, r.u32()?, r.u32()?));
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
        let message = Message::decode_body(kind, r).ok_or(WireError::Field { kind })?;
        Ok(Packet { serial, message })
    }
}

#[cfg(test)]
mod tests;
