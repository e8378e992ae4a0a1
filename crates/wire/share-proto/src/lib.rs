//! The protocol on the socket of `sluice serve --socket`, between the server of a shared drive and
//! its clients.
//!
//! The owner of the device grants queues, and clients use them without it ([NVMeDirect16 §3.1]).
//! The socket carries access control, the descriptors of a port ([`transport::PortDescriptor`]) and
//! the memory that the client registers. Commands and data never pass through it.
//!
//! # References
//!
//! docs/format/socket.md (byte layout); docs/sharing.md.

#![forbid(unsafe_code)]

mod acl;
mod codec;
mod interval;
mod message;
mod name;
mod namespace;
mod protocol_error;
mod setting;
pub mod socket;
mod value_part;
mod wire;

pub use acl::{AclRule, Grant, PartitionSpan, Principal};
pub use codec::FAULT_BYTES_MAX;
pub use interval::{
    DoorbellSummary, DoorbellUnknown, FtlCounts, IntervalStats, LatencySummary, RequestCounts,
};
pub use message::{
    ClientEntry, ClientProcess, ClientTraffic, KickTarget, ListEntry, Message, SessionGrant,
};
pub use name::{NAME_BYTES, NameError, ResourceName};
pub use namespace::{NamespaceAction, NamespaceEntry};
pub use protocol_error::{Code, ProtocolError};
pub use setting::{LimiterSetting, SettingChange, SettingsEntry, VictimSetting};
pub use value_part::ValuePart;
pub use wire::{HEADER_BYTES, MAGIC, MESSAGE_BYTES_MAX, Packet, VERSION, WireError};
