//! The media manager: registration, targets, chunk ownership, the partition table, and oracles.

mod chunk_allocator;
mod media_manager;
mod oracle;
mod quota_changes;
mod table;
mod table_aging;
