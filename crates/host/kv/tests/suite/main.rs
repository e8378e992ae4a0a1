//! The key-value store: behavior, allocations, and random mutations compared with an oracle.

mod allocations;
mod behavior;
mod oracle;
