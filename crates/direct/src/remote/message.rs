//! [`Message`]: what is said on the socket of `sluice serve --socket`.

use ring::PortDescriptor;

use super::acl::{AclRule, Grant, PartitionSpan, Principal};
use super::interval::IntervalStats;
use super::name::ResourceName;
use super::protocol_error::ProtocolError;

/// What is said.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Client, first of all.
    Hello,
    /// The answer.
    Welcome {
        /// Whether the client's user may administrate.
        admin: bool,
        /// The user that the server sees at the other end.
        uid: u32,
        /// The server's process.
        pid: u32,
    },
    /// Client: wants a part of a drive.
    Open {
        /// The drive; none, if there is only one.
        device: ResourceName,
        /// Its part; none, if the user may use only one.
        partition: ResourceName,
        /// I/O queues; 0 for what the user has left, [`Grant::QUEUES_DEFAULT`] at most.
        queues: u16,
    },
    /// The answer, with the descriptors of a port (`ring::Parts`).
    Granted(SessionGrant),
    /// Client: a region, which is the one descriptor that comes along, under this number.
    Register {
        /// The registration.
        slot: u32,
        /// Its bytes.
        bytes: u64,
    },
    /// The answer to what needs no other.
    Done {
        /// To how many something happened.
        count: u64,
    },
    /// The answer to what was not done.
    Refused(ProtocolError),
    /// Server: the last message of a connection that it ends.
    Disconnect(ProtocolError),
    /// Administrator: from now on this rule stands, in place of the one for the same subject.
    Allow(AclRule),
    /// Administrator: the rule goes, and with it the connections that live by it.
    Deny {
        /// Whose.
        subject: Principal,
        /// The drive.
        device: ResourceName,
        /// Its part; none, for all parts.
        partition: ResourceName,
    },
    /// Administrator: ends connections.
    Kick(KickTarget),
    /// Administrator: the entry of a list with this number; the list is made with number 0.
    List {
        /// From 0.
        index: u32,
    },
    /// The answer; after the last of them comes [`Message::Done`].
    Entry(ListEntry),
    /// Administrator: what drive number `index` has done since this connection's previous question
    /// about it, or since it is served.
    Stats {
        /// From 0.
        index: u32,
    },
    /// The answer; past the last drive, [`Message::Done`].
    Interval {
        /// The drive.
        device: ResourceName,
        /// The drive's statistics over the interval.
        stats: Box<IntervalStats>,
    },
}

/// What a client has been given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionGrant {
    /// The connection's number, by which administrators name it.
    pub client: u64,
    /// The drive.
    pub device: ResourceName,
    /// Its part.
    pub partition: ResourceName,
    /// Where that is on the drive. Sectors count from 0 all the same.
    pub span: PartitionSpan,
    /// How much; queues and rates are this connection's.
    pub grant: Grant,
    /// Regions of memory that may be registered.
    pub regions: u32,
    /// Bytes of them together.
    pub bytes: u64,
    /// The port's header; its descriptors come beside the message.
    pub port: [u8; PortDescriptor::HEADER_BYTES],
}

/// Whose connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KickTarget {
    /// One connection.
    Client(u64),
    /// Those of users.
    Subject(Principal),
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq)]
pub enum ListEntry {
    /// A part of a drive.
    Partition {
        /// The drive.
        device: ResourceName,
        /// The part.
        name: ResourceName,
        /// Where it is.
        span: PartitionSpan,
        /// Whether another front end has it (NBD).
        in_use: bool,
        /// Clients that use it.
        clients: u32,
    },
    /// Who may use what.
    Rule(AclRule),
    /// A connection that has a part open.
    Client(ClientEntry),
}

/// A client, and what it has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientEntry {
    /// Its number.
    pub client: u64,
    /// Its user.
    pub uid: u32,
    /// Its user's group.
    pub gid: u32,
    /// Its process.
    pub pid: u32,
    /// The drive.
    pub device: ResourceName,
    /// Its part.
    pub partition: ResourceName,
    /// Queues that it may have.
    pub queues_granted: u16,
    /// Queues that it has made.
    pub queues: u16,
    /// Commands fetched.
    pub commands: u64,
    /// Bytes that they were about.
    pub bytes: u64,
    /// Commands that were refused for what it may not do.
    pub refused: u64,
    /// Times that a queue was passed over for want of tokens.
    pub throttled: u64,
    /// Commands under way.
    pub outstanding: u32,
    /// Completions that it has left no room for.
    pub stalled: u32,
    /// Bytes of memory that it has registered.
    pub registered: u64,
    /// For how long it has been there.
    pub seconds: u64,
}
