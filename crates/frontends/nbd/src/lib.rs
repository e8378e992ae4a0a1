//! The NBD server: makes a [`block::BlockDevice`] available to NBD clients.
//!
//! A server owns its device and the thread that polls it, so that its path takes no lock
//! (ARCHITECTURE.md, R4). A device with several queues, one per core, has a server per queue:
//! [`NbdServer::group`]. Several exports may share an endpoint, where clients select one of them by
//! its name: [`NbdServer::exports`].
//!
//! # What a client can rely on
//!
//! - Block sizes: the minimum is the device's sector, the preferred size its optimal transfer
//!   rounded up to a power of two. The maximum is the device's longest request, at least 1 MiB and
//!   at most 32 MiB. Reads and writes above the device's own limit are split. A client that did not
//!   ask for block sizes may send up to 32 MiB (NBD "Block size constraints").
//! - A device with sectors over 512 bytes refuses a `GO` that does not ask for block sizes
//!   (`NBD_REP_ERR_BLOCK_SIZE_REQD`), unless [`NbdConfig::admit_unsized`] is set. `EXPORT_NAME`,
//!   which cannot ask, is accepted. Requests that are not whole sectors fail with `EINVAL`.
//! - A reply to `FLUSH` covers every write answered before it on any connection (`CAN_MULTI_CONN`),
//!   whichever servers have the two connections; a reply to a request with `FUA` says that it is
//!   durable.
//! - A request of up to 64 KiB never waits for another client's socket. A longer one may, until the
//!   other client is dropped for lack of progress ([`NbdConfig::stall_timeout`]).
//! - A structured read is answered in one content chunk whatever its length, so `DF` never fails
//!   with `EOVERFLOW`.
//!
//! # References
//!
//! \[NBD\]: fixed newstyle negotiation with structured replies. Sections are cited by their
//! headings.

#![forbid(unsafe_code)]

mod config;
mod connection;
mod end_of_run;
mod endpoint;
mod export;
mod group;
mod in_flight;
#[cfg(debug_assertions)]
mod invariants;
mod latency;
mod pool;
mod protocol;
mod send_queue;
mod server;
mod service;
mod socket_set;
mod stats;

pub use config::NbdConfig;
pub use endpoint::{Endpoint, EndpointBindError, EndpointError};
pub use export::listen::NbdExport;
pub use latency::LatencyCounts;
pub use server::{NbdError, NbdServer};
pub use stats::{NbdActivity, NbdStats, NbdStatsReader};
