//! [`KvStats`]: what a key-value target has done.

/// Counters since the target was opened, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvStats {
    /// Values put, updates included.
    pub puts: u64,
    /// Keys deleted.
    pub deletes: u64,
    /// Values read.
    pub gets: u64,
    /// Batches; their changes count one by one as well.
    pub batches: u64,
    /// Syncs.
    pub syncs: u64,
    /// Requests that failed, reads of keys that do not exist included.
    pub errors: u64,
    /// Bytes of values put.
    pub bytes_put: u64,
    /// Bytes of values read.
    pub bytes_got: u64,
    /// Bytes of records that users' changes made, headers and keys included.
    pub packed_bytes: u64,
    /// Bytes of records that cleaning has moved.
    pub relocated_bytes: u64,
    /// Bytes of padding in write units.
    pub padded_bytes: u64,
    /// Write units of records written, padding included.
    pub units_written: u64,
    /// Whole chunks of values written.
    pub large_value_chunks_written: u64,
    /// Chunks cleaned.
    pub chunks_compacted: u64,
    /// Chunks erased.
    pub chunks_erased: u64,
    /// Programs that failed.
    pub program_failures: u64,
    /// Erases that failed.
    pub erase_failures: u64,
    /// Chunks retired since the target was opened.
    pub chunks_retired: u64,
    /// Values that could not be read when they were to be moved.
    pub values_uncorrectable: u64,
    /// At power-on: records found.
    pub records_recovered: u64,
    /// At power-on: sectors that could not be read.
    pub unreadable_at_open: u64,
    /// At power-on: records of changes that had not become whole.
    pub incomplete_at_open: u64,
    /// Keys now.
    pub keys: u64,
    /// Tombstones now.
    pub tombstones: u64,
    /// Bytes of live records now, tombstones included.
    pub live_bytes: u64,
    /// Bytes of chunks that hold records now, whatever is in them.
    pub packed_chunk_bytes: u64,
    /// Whole chunks of values now.
    pub large_value_chunks: u32,
    /// Free chunks now.
    pub free_chunks: u32,
}

impl KvStats {
    /// Bytes written to the media per byte of values put: records, padding, moves and whole chunks
    /// of `chunk_bytes`, over values. `None` if nothing was put.
    pub fn write_amplification(&self, unit_bytes: u32, chunk_bytes: u32) -> Option<f64> {
        let written = self.units_written as f64 * f64::from(unit_bytes)
            + self.large_value_chunks_written as f64 * f64::from(chunk_bytes);
        (self.bytes_put > 0).then(|| written / self.bytes_put as f64)
    }

    /// The share of live bytes in chunks that hold records; 1 if there are none.
    pub fn live_ratio(&self) -> f64 {
        if self.packed_chunk_bytes == 0 {
            return 1.0;
        }
        self.live_bytes as f64 / self.packed_chunk_bytes as f64
    }
}
