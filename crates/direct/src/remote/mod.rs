//! A drive in another process: what is said on the socket of `sluice serve --socket`, and the client's
//! side of it (NVMeDirect, HotStorage 2016, section 3.1: queues are granted by who owns the device,
//! and used without it).
//!
//! The socket carries who may use what, the parts of a port (`ring::Parts`) and the memory that the
//! client registers. Commands and data never go through it.
//!
//! | file | noun |
//! |---|---|
//! | [`message`](Message) | what is said |
//! | [`wire`](Packet) | the same, byte by byte (`docs/format/socket.md`) |
//! | `fields` | what messages are made of |
//! | [`name`](Name) | what drives and their parts are called |
//! | [`rule`](Rule) | who may use what, and how much of it |
//! | [`refusal`](ProtocolError) | what a server does not do; why it is gone |
//! | [`socket`] | packets with descriptors |
//! | `ask` | a question and its answer, on a connection that nobody else uses |
//! | [`interval`](IntervalStats) | what a served drive has done in an interval |
//! | `life` | whether the server is there: the thread that sleeps on the socket |
//! | `session` | a connection with a part of a drive open |
//! | `queue` | a hardware queue whose requests end when the server does |
//! | [`open`](RemoteDeviceConfig) | `IoDevice::connect` |
//! | [`admin`](Admin) | the table of who may use what |

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
pub use message::{ClientEntry, KickTarget, ListEntry, Message, SessionGrant};
pub use name::{NAME_BYTES, NameError, ResourceName};
pub(crate) use open::RemoteDevice;
pub use open::RemoteDeviceConfig;
pub use protocol_error::{Code, ProtocolError, RemoteDeviceError, RemovalReason};
pub(crate) use queue::RemoteQueue;
pub use wire::{HEADER_BYTES, MAGIC, MESSAGE_BYTES_MAX, Packet, VERSION, WireError};
