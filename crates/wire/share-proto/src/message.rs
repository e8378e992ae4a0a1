//! [`Message`]: messages on the socket of `sluice serve --socket`.

use nvme::RuleTableAction;
use transport::PortDescriptor;

use crate::acl::{AclRule, Grant, PartitionSpan, Principal};
use crate::interval::IntervalStats;
use crate::name::ResourceName;
use crate::namespace::{NamespaceAction, NamespaceEntry};
use crate::protocol_error::ProtocolError;
use crate::setting::{SettingChange, SettingsEntry};
use crate::value_part::ValuePart;

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Client: opens the connection. Must be the first message.
    Hello,
    /// Reply to `Hello`.
    Welcome {
        /// Whether the client's user may administrate.
        admin: bool,
        /// The user id that the server sees for the client.
        uid: u32,
        /// Process id of the server.
        pid: u32,
    },
    /// Client: opens a partition of a drive.
    Open {
        /// The drive; may be empty if there is only one.
        device: ResourceName,
        /// The partition; may be empty if the user may use only one.
        partition: ResourceName,
        /// I/O queues; 0 for the user's remaining queues, at most [`Grant::QUEUES_DEFAULT`].
        queues: u16,
    },
    /// Reply to `Open`, with the descriptors of a port (`transport::PortDescriptor`).
    Granted(SessionGrant),
    /// Client: registers a region, whose descriptor accompanies the message.
    Register {
        /// Registration slot.
        slot: u32,
        /// Length of the region in bytes.
        bytes: u64,
    },
    /// Reply to requests that return nothing else.
    Done {
        /// Number of objects affected.
        count: u64,
    },
    /// Reply to a request that failed.
    Refused(ProtocolError),
    /// Server: last message of a connection that the server closes.
    Disconnect(ProtocolError),
    /// Administrator: sets a rule, which replaces the rule of its principal for that partition.
    Allow(AclRule),
    /// Administrator: removes a rule, and closes the connections that rely on it.
    Deny {
        /// The principal.
        subject: Principal,
        /// The drive.
        device: ResourceName,
        /// The partition; empty for all partitions.
        partition: ResourceName,
    },
    /// Administrator: closes connections.
    Kick(KickTarget),
    /// Administrator: requests the list entry with this index; index 0 takes a new snapshot of the
    /// list.
    List {
        /// Index, from 0.
        index: u32,
    },
    /// Reply to `List`; [`Message::Done`] follows the last entry.
    Entry(ListEntry),
    /// Administrator: requests the statistics of drive `index` since the previous such request on
    /// this connection, or since the drive is served.
    Stats {
        /// Index, from 0.
        index: u32,
    },
    /// Reply to `Stats`; past the last drive the reply is [`Message::Done`].
    Interval {
        /// The drive.
        device: ResourceName,
        /// The drive's statistics over the interval.
        stats: Box<IntervalStats>,
    },
    /// Administrator: changes a setting of an FTL. The reply is an entry with the settings in force.
    Set {
        /// The drive or target.
        device: ResourceName,
        /// The change.
        change: SettingChange,
    },
    /// Administrator: injects a fault into a drive. The reply is [`Message::Done`].
    Fault {
        /// The drive.
        device: ResourceName,
        /// The kind of fault and `key=value` for each of its keys, separated by spaces; at most
        /// [`FAULT_BYTES_MAX`](crate::FAULT_BYTES_MAX) bytes.
        fault: String,
    },
    /// Administrator: changes the namespaces of a drive. The reply is [`Message::Done`] with the
    /// identifier of a created namespace, or 0, after the end of the change.
    ChangeNamespaces {
        /// The drive.
        device: ResourceName,
        /// The change.
        action: NamespaceAction,
    },
    /// Administrator: requests the namespace of a drive with this index; index 0 takes a new
    /// snapshot of its namespaces.
    ListNamespaces {
        /// The drive.
        device: ResourceName,
        /// Index, from 0.
        index: u32,
    },
    /// Reply to `ListNamespaces`; past the last namespace the reply is [`Message::Done`] with the
    /// capacity in bytes that no namespace has.
    Namespace(NamespaceEntry),
    /// Administrator: sends a part of a rule program for a drive. The reply is [`Message::Done`].
    UploadRules {
        /// The drive.
        device: ResourceName,
        /// First byte of the part in the program; 0 begins a program.
        offset: u64,
        /// The part.
        part: ValuePart,
    },
    /// Administrator: installs the rule program whose parts were sent. The reply is
    /// [`Message::Done`] with the number of commands that no rule matches.
    InstallRules {
        /// The drive.
        device: ResourceName,
    },
    /// Administrator: ends the commands that no rule matches. The reply is [`Message::Done`] with
    /// their number.
    RejectMisses {
        /// The drive.
        device: ResourceName,
        /// The operation of the commands; empty for all.
        op: ResourceName,
    },
    /// Administrator: requests the report about the rules of a drive from this byte on; 0 takes a new
    /// snapshot.
    ReadRules {
        /// The drive.
        device: ResourceName,
        /// First byte.
        offset: u64,
    },
    /// Reply to `ReadRules`.
    Rules {
        /// Bytes of the report, which is JSON.
        total: u64,
        /// A part of it.
        part: ValuePart,
    },
    /// Administrator: changes entries of a table of the rules of a drive, in order. The reply is
    /// [`Message::Done`] with the number of entries. After an error those before it are stored.
    EditRuleTable {
        /// The drive.
        device: ResourceName,
        /// Number of the table in the program.
        table: u8,
        /// The change.
        action: RuleTableAction,
        /// The entries, of [`RuleTableEntry::BYTES`](nvme::RuleTableEntry::BYTES) each.
        entries: ValuePart,
    },
    /// Administrator: requests the values of consecutive keys of a table of the rules of a drive.
    ReadRuleTable {
        /// The drive.
        device: ResourceName,
        /// Number of the table in the program.
        table: u8,
        /// The first key.
        first: u64,
        /// Number of keys. The reply may have fewer.
        count: u32,
    },
    /// Reply to `ReadRuleTable`.
    RuleTableValues {
        /// The values, of 8 bytes each.
        values: ValuePart,
    },
}

/// The resources granted to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionGrant {
    /// Connection id, by which administrators refer to it.
    pub client: u64,
    /// The drive.
    pub device: ResourceName,
    /// The partition.
    pub partition: ResourceName,
    /// Location of the partition on the drive. The client's sectors count from 0 nevertheless.
    pub span: PartitionSpan,
    /// The permissions; queues and rates are this connection's.
    pub grant: Grant,
    /// Maximum number of registered regions.
    pub regions: u32,
    /// Maximum total bytes of registered regions.
    pub bytes: u64,
    /// Header of the port; its descriptors accompany the message.
    pub port: [u8; PortDescriptor::HEADER_BYTES],
}

/// Connections to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KickTarget {
    /// One connection.
    Client(u64),
    /// All connections of matching users.
    Subject(Principal),
}

/// One entry of a list.
#[derive(Clone, Debug, PartialEq)]
pub enum ListEntry {
    /// A partition.
    Partition {
        /// The drive.
        device: ResourceName,
        /// Its name.
        name: ResourceName,
        /// Its location.
        span: PartitionSpan,
        /// Whether another front end (NBD) uses it.
        in_use: bool,
        /// Number of clients that use it.
        clients: u32,
    },
    /// A rule.
    Rule(AclRule),
    /// A connection that has a partition open.
    Client(ClientEntry),
    /// The settings of an FTL in force.
    Settings(SettingsEntry),
}

/// A client and its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientEntry {
    /// Connection id.
    pub client: u64,
    /// The process.
    pub process: ClientProcess,
    /// The drive.
    pub device: ResourceName,
    /// The partition.
    pub partition: ResourceName,
    /// Queues granted.
    pub queues_granted: u16,
    /// Queues created.
    pub queues: u16,
    /// Counters of its commands.
    pub traffic: ClientTraffic,
    /// Bytes of registered memory.
    pub registered: u64,
    /// Age of the connection in seconds.
    pub seconds: u64,
}

/// A client's process, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientProcess {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Process id.
    pub pid: u32,
}

/// Counters of a client's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTraffic {
    /// Commands fetched.
    pub commands: u64,
    /// Bytes transferred by these commands.
    pub bytes: u64,
    /// Commands refused for lack of permission.
    pub refused: u64,
    /// Number of times that a queue was skipped for lack of rate-limit tokens.
    pub throttled: u64,
    /// Commands in flight.
    pub outstanding: u32,
    /// Completions that wait for space in a completion queue.
    pub stalled: u32,
}
