//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod ahci;
mod block_commands;
mod block_layer;
mod closed_forms;
mod common;
mod faults;
mod full;
mod health;
mod host_flush;
mod hostile;
mod interface;
mod latency_monitor;
mod moves;
mod namespaces;
mod open_channel;
mod oracle;
mod own_events;
mod paging;
mod ppa;
mod protection;
mod rules;
mod sanitize;
mod small_blocks;
mod timing;
mod transfers;
