//! A drive shared between processes: the server's side of the socket (`docs/format/socket.md`).
//!
//! Clients get queues of their own. As in [NVMeDirect16 §3.1], the owner grants queues and is not
//! involved in their use (`docs/sharing.md`).
//!
//! # Concurrency
//!
//! One control thread serves the clients of all drives, and sleeps unless there is a message. It
//! never touches the data path: commands go from the client's process to the drive's thread through
//! shared memory, and the drive checks each of them.

#![forbid(unsafe_code)]

mod acl;
mod client;
mod fault_injector;
mod ftl_control;
mod handle_message;
mod listener;
mod namespace_control;
mod owner_call;
mod partition_table;
mod rule_control;
mod server;

pub use acl::{AclError, AclFile};
pub use fault_injector::{FaultInjectionError, FaultInjector, NamedFaultInjector};
pub use ftl_control::{FtlControl, FtlControlError, NamedFtl, WireSetting};
pub use listener::{ListenError, check};
pub use namespace_control::{
    NamedNamespaces, NamespaceControl, NamespaceControlError, NamespaceListing,
};
pub use owner_call::{OwnerCalls, OwnerChannel, OwnerStopped};
pub use partition_table::{Partition, PartitionError, PartitionTable, UserIds};
pub use rule_control::{
    NamedRules, RuleControl, RuleControlError, RuleOwner, RuleReport, RuleTableKey,
};
pub use server::{
    NamedStats, ServedParts, ShareConfig, ShareError, ShareLimits, ShareServer, SharedDrive,
    StatsFollower, StatsSource,
};
