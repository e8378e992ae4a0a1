//! A drive in another process: the protocol on the socket of `sluice serve --socket`, and its
//! client.
//!
//! The owner of the device grants queues, and clients use them without it ([NVMeDirect16 §3.1]).
//! The socket carries access control, the descriptors of a port (`transport::PortDescriptor`) and the
//! memory that the client registers. Commands and data never pass through it.
//!
//! # References
//!
//! docs/format/socket.md (byte layout); docs/sharing.md.

mod acl;
mod admin;
mod codec;
mod interval;
mod liveness;
mod message;
mod name;
mod open;
mod protocol_error;
mod queue;
mod rpc_client;
mod session;
pub mod socket;
mod wire;

pub use acl::{AclRule, Grant, PartitionSpan, Principal};
pub use admin::Admin;
pub use interval::{FtlInterval, IntervalStats, LatencySummary, RequestCounts};
pub use message::{
    ClientEntry, ClientProcess, ClientTraffic, KickTarget, ListEntry, Message, SessionGrant,
};
pub use name::{NAME_BYTES, NameError, ResourceName};
pub(crate) use open::RemoteDevice;
pub use open::RemoteDeviceConfig;
pub use protocol_error::{Code, ProtocolError, RemoteDeviceError, RemovalReason};
pub(crate) use queue::RemoteQueue;
pub use wire::{HEADER_BYTES, MAGIC, MESSAGE_BYTES_MAX, Packet, VERSION, WireError};
