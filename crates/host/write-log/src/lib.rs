//! A block device whose small writes become durable in a log in persistent memory.
//!
//! [`WriteLog`] is a [`BlockDevice`](block::BlockDevice) over a device and a
//! [`PersistentMemory`](mem::PersistentMemory). A small write is copied to the log, where a cache-line
//! write-back makes it durable. The device's flash is not on its path. Large writes pass to the device. In
//! the background the log *destages*: it writes the latest version of each logged sector to the
//! device, flushes it, and then frees the records.
//!
//! # The path of a small write with FUA
//!
//! 1. [`submit`](block::BlockDevice::submit) validates the request and queues it.
//! 2. The next poll stores a record (a header and the data) at the tail of the log, together with all
//!    other queued writes, and points the index to it.
//! 3. When the time of the stores and of one persist has passed, the lines are persisted, and the
//!    requests complete.
//!
//! A write without FUA completes after the stores. A later FUA write or flush persists it.
//!
//! # The path of a read
//!
//! A read is split into runs of logged and of other sectors. Logged runs are copied from the log at
//! once; the others become requests to the device. Whether a sector is logged is decided once, at the
//! submission, so that a sector which is destaged meanwhile is not read from both.
//!
//! # Crash safety
//!
//! After a crash the log is replayed from its head to the first record that does not check. For each
//! sector the result is its last record, or the device's contents if there is none. It must never be
//! older than the last durable version.
//!
//! - **Records.** Records are persisted in order, and a write with FUA, or a flush, completes after
//!   its lines and those of all earlier records are. So a record that does not check, and all records
//!   behind it, belong to writes that were not acknowledged as durable. A record carries the
//!   generation of the log, which grows with each opening: records that a former opening stored
//!   beyond the replayed tail are not taken for new ones. It also carries how far the log was
//!   persisted when it was stored. A record that does not check below such a position was damaged,
//!   and the log is refused.
//! - **Freed records.** The head moves past a record only after the device was flushed, and the flush
//!   was sent after the sector's latest version was written: by the destage write, or by a passed
//!   change that completed. If the latest version is a later record, that record is persisted first.
//! - **Passed changes.** Let a large write or a discard W pass over a sector with a logged version L.
//!   When W completes, the index forgets L, and reads return W. W is not durable yet: after a crash L
//!   may replace it, which is the old version. W becomes durable with a flush. The flush of the device
//!   comes first; then a record *superseded* is persisted, which hides the versions before W from
//!   replay; then the flush completes. If power fails between the two, replay restores L, and the
//!   flush was not acknowledged. In the other order, L would be hidden while W could be lost, and an
//!   even older version of the flash would appear. The record names the tail of the log when W was
//!   sent to the device, so that it hides no later record. W with FUA is the same, with the durable
//!   write in place of the flush. If W fails, the index still has L.
//! - **Order on the device.** A passed change waits until no destage write of one of its sectors is in
//!   flight, and a sector is not destaged while a passed change of it is in flight.
//! - **Headers.** The header with the head is stored and persisted twice, one copy after the other.
//!   The log acts on it after both. An opening first makes both copies equal, so that at most one is
//!   torn at any time.
//!
//! # Loss of power while the log is open
//!
//! An emulated drive may lose its power, and that of the memory, while its host runs. The log then
//! replays, as an opening does, and erases the memory behind the tail. Writes that had not completed are stored
//! again. Results of changes and flushes that the device executed before count as failures: the
//! records that they need may be lost.
//!
//! # Identity
//!
//! The last sector of the device has a label with the identity of the log, its generation, and
//! whether the log may have data (`docs/format/log.md`). The capacity is smaller by this sector.
//!
//! # Concurrency
//!
//! One owner, no lock (ARCHITECTURE.md, R4).

#![forbid(unsafe_code)]

mod append;
mod config;
mod destage;
mod error;
mod format;
mod index;
mod log;
mod log_opener;
mod memory;
mod passed;
mod power;
mod ring;
mod stats;

pub use config::WriteLogConfig;
pub use error::WriteLogError;
pub use format::{DeviceLabel, LabelState, LogIdentity};
pub use log::WriteLog;
pub use log_opener::WriteLogOpening;
pub use memory::{LogMemory, MemoryRemoved};
pub use stats::WriteLogStats;
