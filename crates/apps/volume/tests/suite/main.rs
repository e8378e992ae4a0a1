//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod allocations;
mod barrier_delay;
mod barriers;
mod common;
mod damage;
mod files;
mod journal_data;
mod oracle;
mod reserved;
mod units;
mod volume_bytes;
mod whole_writes;
