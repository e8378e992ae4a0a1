//! A drive shared between processes: the server's side of the socket (`docs/format/socket.md`), by
//! which clients get queues of their own (NVMeDirect, HotStorage 2016, section 3.1: the kernel driver
//! grants queues and is not asked again; `docs/sharing.md`).
//!
//! | file | noun |
//! |---|---|
//! | [`table`](Table) | partitions, and who may use what of them |
//! | [`errand`](OwnerCalls) | how the control thread has something done by the thread that owns a drive |
//! | [`rules`](AclFile) | rules that outlive the server, in a file |
//! | `listener` | the listening socket, which replaces a dead server's and cleans up after itself |
//! | `client` | one connection: whose it is, and what it has open |
//! | [`server`](ShareServer) | the control thread: sockets, and what comes over them |
//! | `answer` | what the server does about one message |
//!
//! One thread serves all drives' clients, and sleeps unless there is a message. It never touches the
//! data path: commands go from the client's process to the drive's thread through shared memory, and
//! the drive checks each of them.

mod acl;
mod client;
mod handle_message;
mod listener;
mod owner_call;
mod partition_table;
mod server;

pub use acl::{AclError, AclFile};
pub use listener::{ListenError, check};
pub use owner_call::{DriveStopped, OwnerCalls};
pub use partition_table::{Partition, PartitionTable, TableError};
pub use server::{
    ShareConfig, ShareError, ShareLimits, ShareServer, SharedDrive, StatsFollower, StatsSource,
};
