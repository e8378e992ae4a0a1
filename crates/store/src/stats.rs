//! [`Stats`]: what a store has done since it was opened.

use clock::Nanos;

/// Counters, and how full the journal is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that ended, by what they asked.
    pub reads: u64,
    /// Writes and appends.
    pub writes: u64,
    /// `Sync` and `SyncAll`.
    pub syncs: u64,
    /// Everything else.
    pub changes: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Bytes read by requests.
    pub bytes_read: u64,
    /// Bytes written by requests.
    pub bytes_written: u64,
    /// Bytes read from the device.
    pub device_bytes_read: u64,
    /// Bytes of files written to the device.
    pub data_bytes: u64,
    /// Commands for these.
    pub data_commands: u64,
    /// Transactions that were made durable.
    pub commits: u64,
    /// Requests that waited for one to be: over `commits`, how many share one.
    pub commit_waiters: u64,
    /// Sectors of the journal written.
    pub journal_sectors: u64,
    /// Blocks of files of which the journal was given data, and the bytes. Each is written in place later,
    /// once for all that the journal was given of it by then.
    pub journaled_blocks: u64,
    /// The bytes.
    pub journaled_bytes: u64,
    /// Blocks of which the journal has data that are not in place yet.
    pub journal_only_blocks: u64,
    /// Flushes sent to the device.
    pub flushes: u64,
    /// Snapshots completed.
    pub checkpoints: u64,
    /// Bytes of their pieces.
    pub checkpoint_bytes: u64,
    /// Blocks discarded.
    pub discarded_blocks: u64,
    /// Sectors that the journal has, and that are in use of them.
    pub journal_size: u64,
    /// In use.
    pub journal_used: u64,
    /// Frames that are not on the device as they are.
    pub dirty_pages: u64,
    /// Transactions that were read from the journal when the volume was opened.
    pub recovered: u64,
    /// Blocks of which the journal had data then that may not have been in place.
    pub recovered_blocks: u64,
    /// When it was ready.
    pub ready_at: Nanos,
}
