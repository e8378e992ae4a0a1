//! A drive in another process: the client of `sluice serve --socket`.
//!
//! The owner of the device grants queues, and clients use them without it ([NVMeDirect16 §3.1]).
//! The socket carries access control, the descriptors of a port ([`transport::PortDescriptor`]) and
//! the memory that the client registers ([`share_proto`]). Commands and data never pass through it.
//!
//! # References
//!
//! docs/format/socket.md (byte layout); docs/sharing.md.

mod admin;
mod error;
mod liveness;
mod open;
mod queue;
mod rpc_client;
mod session;

pub use admin::Admin;
pub use error::{RemoteDeviceError, RemovalReason};
pub(crate) use open::RemoteDevice;
pub use open::RemoteDeviceConfig;
pub(crate) use queue::{RemoteQueue, RemoteRing};
