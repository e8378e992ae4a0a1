//! [`Message`]: what is said on the socket of `sluice serve --socket`.

use ring::Parts;

use super::interval::IntervalStats;
use super::name::Name;
use super::refusal::Refusal;
use super::rule::{Grant, Rule, Span, Subject};

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
        device: Name,
        /// Its part; none, if the user may use only one.
        partition: Name,
        /// I/O queues; 0 for what the user has left, [`Grant::QUEUES`] at most.
        queues: u16,
    },
    /// The answer, with the descriptors of a port (`ring::Parts`).
    Granted(Granted),
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
    Refused(Refusal),
    /// Server: the last message of a connection that it ends.
    Ending(Refusal),
    /// Administrator: from now on this rule stands, in place of the one for the same subject.
    Allow(Rule),
    /// Administrator: the rule goes, and with it the connections that live by it.
    Deny {
        /// Whose.
        subject: Subject,
        /// The drive.
        device: Name,
        /// Its part; none, for all parts.
        partition: Name,
    },
    /// Administrator: ends connections.
    Kick(Whom),
    /// Administrator: the entry of a list with this number; the list is made with number 0.
    List {
        /// From 0.
        index: u32,
    },
    /// The answer; after the last of them comes [`Message::Done`].
    Entry(Entry),
    /// Administrator: what drive number `index` has done since this connection's previous question
    /// about it, or since it is served.
    Stats {
        /// From 0.
        index: u32,
    },
    /// The answer; past the last drive, [`Message::Done`].
    Interval {
        /// The drive.
        device: Name,
        /// The drive's statistics over the interval.
        stats: Box<IntervalStats>,
    },
}

/// What a client has been given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The connection's number, by which administrators name it.
    pub client: u64,
    /// The drive.
    pub device: Name,
    /// Its part.
    pub partition: Name,
    /// Where that is on the drive. Sectors count from 0 all the same.
    pub span: Span,
    /// How much; queues and rates are this connection's.
    pub grant: Grant,
    /// Regions of memory that may be registered.
    pub regions: u32,
    /// Bytes of them together.
    pub bytes: u64,
    /// The port's header; its descriptors come beside the message.
    pub port: [u8; Parts::HEADER_BYTES],
}

/// Whose connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// One connection.
    Client(u64),
    /// Those of users.
    Subject(Subject),
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// A part of a drive.
    Partition {
        /// The drive.
        device: Name,
        /// The part.
        name: Name,
        /// Where it is.
        span: Span,
        /// Whether another front end has it (NBD).
        taken: bool,
        /// Clients that use it.
        clients: u32,
    },
    /// Who may use what.
    Rule(Rule),
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
    pub device: Name,
    /// Its part.
    pub partition: Name,
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
    pub held: u64,
    /// Commands under way.
    pub outstanding: u32,
    /// Completions that it has left no room for.
    pub stalled: u32,
    /// Bytes of memory that it has registered.
    pub registered: u64,
    /// For how long it has been there.
    pub seconds: u64,
}
