//! End-to-end protection information: what the drive checks, stores and returns.

// guarantee: B-95, B-96

mod commands;
pub(crate) mod harness;
mod oracle;
mod refused;
mod stored;
