//! A drive shared between processes: the server's side of the socket (`docs/format/socket.md`), by
//! which clients get queues of their own (NVMeDirect, HotStorage 2016, section 3.1: the kernel driver
//! grants queues and is not asked again; `docs/sharing.md`).
//!
//! | file | noun |
//! |---|---|
//! | [`table`](Table) | partitions, and who may use what of them |
//! | [`errand`](Errands) | how the control thread has something done by the thread that owns a drive |
//! | [`rules`](RulesFile) | rules that outlive the server, in a file |
//! | `listener` | the listening socket, which replaces a dead server's and cleans up after itself |
//! | `client` | one connection: whose it is, and what it has open |
//! | [`server`](ShareServer) | the control thread: sockets, and what comes over them |
//! | `answer` | what the server does about one message |
//!
//! One thread serves all drives' clients, and sleeps unless there is a message. It never touches the
//! data path: commands go from the client's process to the drive's thread through shared memory, and
//! the drive checks each of them.

mod answer;
mod client;
mod errand;
mod listener;
mod rules;
mod server;
mod table;

pub use errand::{DriveGone, Errands};
pub use listener::{ListenError, check};
pub use rules::{RulesError, RulesFile};
pub use server::{
    ShareConfig, ShareError, ShareLimits, ShareServer, SharedDrive, StatsFollower, StatsSource,
};
pub use table::{Partition, Table, TableError};
