//! The NBD server.
//!
//! Specification cited: *NBD* is `doc/proto.md` of the NetworkBlockDevice project, fixed newstyle
//! negotiation with structured replies; sections are named by their headings.
//!
//! | file | noun |
//! |---|---|
//! | `wire` | the protocol's numbers, and the fixed-size messages |
//! | [`endpoint`](Endpoint) | where to listen, and a listening socket |
//! | [`config`](NbdConfig) | name, limits and time-outs of a server |
//! | `export` | what is offered to clients: size, block sizes, flags |
//! | `handshake` | the option haggling of one client |
//! | `command` | a request that passed every check, or why it did not |
//! | `reply` | replies, simple and structured |
//! | `pool` | the registered memory that payloads live in |
//! | `outbox` | what waits to be sent to one client |
//! | `connection` | one client: its socket, inbox, outbox and phase |
//! | `flight` | one client request on its way through the device |
//! | [`stats`](NbdStats) | what an export did, and what is under way |
//! | [`latency`](LatencyCounts) | how long requests took |
//! | [`server`](NbdServer) | the thread: sockets, device, spinning and parking |
//! | `service` | what the server does for one client: read, check, submit, reply |
//!
//! # What a client can rely on
//!
//! * Block sizes: the minimum is the device's sector, the preferred size its optimal transfer
//!   rounded up to a power of two, the maximum what the device takes in one piece, at least 1 MiB
//!   and at most 32 MiB. Reads and writes above the device's own limit are split. A client that
//!   did not ask for block sizes may send up to 32 MiB (NBD "Block size constraints").
//! * A device with sectors over 512 bytes refuses a `GO` that does not ask for block sizes
//!   (`NBD_REP_ERR_BLOCK_SIZE_REQD`), unless [`NbdConfig::admit_unsized`] is set.
//!   `EXPORT_NAME`, which cannot ask, is let in. Requests that are not whole sectors are `EINVAL`.
//! * A reply to `FLUSH` covers every write answered before it on any connection
//!   (`CAN_MULTI_CONN`); a reply to a request with `FUA` says that it is durable.
//! * A request of up to 64 KiB never waits for another client's socket. A longer one may, until
//!   the other is dropped for its pace ([`NbdConfig::stall_timeout`]).
//! * A structured read is answered in one content chunk whatever its length, so `DF` never fails
//!   with `EOVERFLOW`.

mod command;
mod config;
mod connection;
mod endpoint;
mod export;
mod handshake;
mod in_flight;
mod latency;
mod pool;
mod reply;
mod send_queue;
mod server;
mod service;
mod stats;
mod wire;

pub use config::NbdConfig;
pub use endpoint::{BindError, Endpoint, EndpointError};
pub use latency::LatencyCounts;
pub use server::{NbdError, NbdServer};
pub use stats::{NbdActivity, NbdStats, NbdStatsReader};
