//! [`Stats`]: counters of a volume since it was opened.

use time::Nanos;

/// Counters, and the use of the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads completed.
    pub reads: u64,
    /// Writes and appends completed.
    pub writes: u64,
    /// `Sync` and `SyncAll` completed.
    pub syncs: u64,
    /// Other requests completed.
    pub changes: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Bytes read by requests.
    pub bytes_read: u64,
    /// Bytes written by requests.
    pub bytes_written: u64,
    /// Bytes read from the device.
    pub device_bytes_read: u64,
    /// Bytes written to the device: file data, journal, snapshots and superblocks.
    pub device_bytes_written: u64,
    /// File data written to the device, in bytes.
    pub data_bytes: u64,
    /// Device commands for `data_bytes`.
    pub data_commands: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Requests that waited for a commit; divided by `commits`, the number of requests per commit.
    pub commit_waiters: u64,
    /// Sectors of the journal written.
    pub journal_sectors: u64,
    /// Barriers acknowledged.
    pub barriers: u64,
    /// Transactions or flushes that made barriers durable; several barriers may share one.
    pub barrier_commits: u64,
    /// Blocks that were journaled because a barrier covers them.
    pub barrier_captured_blocks: u64,
    /// Bytes of these.
    pub barrier_captured_bytes: u64,
    /// Blocks to be written in place before a barrier becomes durable, because they were too many
    /// to be journaled.
    pub barrier_in_place_blocks: u64,
    /// Requests that waited for a barrier, because the changes made after it reached their limit.
    pub barrier_waits: u64,
    /// File blocks whose data was journaled. Each is written in place later, once for all its
    /// journaled data so far.
    pub journaled_blocks: u64,
    /// Bytes of file data journaled.
    pub journaled_bytes: u64,
    /// Parts of writes to be kept whole that were journaled, because one request would not have
    /// kept them whole: a part of their blocks was new.
    pub whole_writes_journaled: u64,
    /// Blocks with journaled data that is not in place.
    pub journal_only_blocks: u64,
    /// Flushes sent to the device.
    pub flushes: u64,
    /// Snapshots completed.
    pub checkpoints: u64,
    /// Bytes of their segments.
    pub checkpoint_bytes: u64,
    /// Blocks discarded.
    pub discarded_blocks: u64,
    /// Sectors of the journal.
    pub journal_size: u64,
    /// Sectors of the journal in use.
    pub journal_used: u64,
    /// Pages that differ from the device.
    pub dirty_pages: u64,
    /// Transactions recovered from the journal at the mount.
    pub recovered: u64,
    /// Blocks with journaled data at the mount that may not have been in place.
    pub recovered_blocks: u64,
    /// Time at which the volume was ready.
    pub ready_at: Nanos,
}
