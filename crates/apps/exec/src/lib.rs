//! The file service of `sluice exec`. It owns a volume ([`volume`]) and serves file calls of
//! programs that have loaded `libsluice_preload.so`, through slots in shared memory ([`exec_proto`]).
//!
//! # Representation of an open file
//!
//! A program's descriptor is one end of a socket; the service has the other end. The kernel counts
//! the copies of the descriptor across `dup`, `fork`, `exec` and process exit, and notifies the
//! service when the last one is closed. The service needs no reference count of its own.
//!
//! # References
//!
//! docs/exec.md (covered calls and protocol).

#![forbid(unsafe_code)]

mod connections;
mod invariants;
pub mod locks;
mod open_files;
mod pending_calls;
pub mod program;
mod service;
mod session;
mod shared_mappings;
mod speculation;

pub use connections::ServiceAddress;
pub use invariants::{ServicePart, ServiceViolation};
pub use service::{Service, ServiceError, ServiceStats, ServiceStopHandle};
pub use speculation::{
    OUTBOX_BYTES_MAX, OUTBOX_SENDS_MAX, OUTBOX_TARGET_BYTES_MAX, OutboxLimits, OutboxStats,
    OutputSupervisor, SpeculationStats,
};
