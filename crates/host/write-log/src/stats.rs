//! [`WriteLogStats`].

/// Counts of a [`WriteLog`](crate::WriteLog) since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteLogStats {
    /// Writes that were logged.
    pub logged_writes: u64,
    /// Sectors of these writes.
    pub logged_sectors: u64,
    /// Lines stored.
    pub lines: u64,
    /// Persists.
    pub persists: u64,
    /// Writes, discards and Write Zeroes requests that passed to the device.
    pub passed_changes: u64,
    /// Sectors that reads found in the log.
    pub read_sectors: u64,
    /// Flushes that completed without a flush of the device.
    pub absorbed_flushes: u64,
    /// Flushes that flushed the device.
    pub device_flushes: u64,
    /// Sectors written to the device by destaging.
    pub destaged_sectors: u64,
    /// Records *superseded*.
    pub superseded_records: u64,
    /// Times at which a write or a flush had to wait for space in the log.
    pub space_waits: u64,
    /// Attempts to destage that the device failed.
    pub failed_destages: u64,
    /// Records that were replayed when the log was opened.
    pub replayed_records: u64,
    /// Losses of power of the memory while the log was open.
    pub power_cuts: u64,
}
