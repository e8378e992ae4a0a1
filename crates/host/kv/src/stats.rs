//! [`KvStats`]: counters of a key-value target; [`KvWork`]: how much its software has done.

/// Counters since the target was opened, and its current contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvStats {
    /// Values put, updates included.
    pub puts: u64,
    /// Keys deleted.
    pub deletes: u64,
    /// Values read.
    pub gets: u64,
    /// Batches; their mutations are also counted individually.
    pub batches: u64,
    /// Syncs.
    pub syncs: u64,
    /// Requests that failed, including reads of keys that do not exist.
    pub errors: u64,
    /// Bytes of values put.
    pub bytes_put: u64,
    /// Bytes of values read.
    pub bytes_got: u64,
    /// Bytes of records of host changes, headers and keys included.
    pub packed_bytes: u64,
    /// Bytes of records relocated by compaction.
    pub relocated_bytes: u64,
    /// Bytes of padding in write units.
    pub padded_bytes: u64,
    /// Write units of records written, padding included.
    pub units_written: u64,
    /// Whole chunks of values written.
    pub large_value_chunks_written: u64,
    /// Chunks compacted.
    pub chunks_compacted: u64,
    /// Chunks erased.
    pub chunks_erased: u64,
    /// Programs that failed.
    pub program_failures: u64,
    /// Erases that failed.
    pub erase_failures: u64,
    /// Chunks retired since the target was opened.
    pub chunks_retired: u64,
    /// Values that were uncorrectable when they were to be relocated.
    pub values_uncorrectable: u64,
    /// Records found at power-on.
    pub records_recovered: u64,
    /// Sectors that were unreadable at power-on.
    pub unreadable_at_open: u64,
    /// Records of incomplete changes found at power-on.
    pub incomplete_at_open: u64,
    /// Current number of keys.
    pub keys: u64,
    /// Current number of tombstones.
    pub tombstones: u64,
    /// Current bytes of live records, tombstones included.
    pub live_bytes: u64,
    /// Current capacity in bytes of the chunks with records.
    pub packed_chunk_bytes: u64,
    /// Current number of whole chunks of values.
    pub large_value_chunks: u32,
    /// Current number of free chunks.
    pub free_chunks: u32,
    /// How much the target's software has done.
    pub work: KvWork,
}

/// Work of the target's software since the target was opened. A modeled host charges processor time
/// by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvWork {
    /// Keys looked up for reads, those that do not exist included.
    pub lookups: u64,
    /// Records written for changes of the host.
    pub records_put: u64,
    /// Records relocated by compaction.
    pub records_relocated: u64,
    /// Cache lines of values that were copied or whose checksum was computed, once per pass.
    pub lines: u64,
    /// Those that the drive had written, in the first pass over them.
    pub drive_lines: u64,
    /// Polls that found something to do.
    pub turns: u64,
    /// Commands submitted to the drive.
    pub commands: u64,
    /// Commands that the drive has completed.
    pub completions: u64,
}

/// Bytes of a cache line.
const LINE_BYTES: u64 = 64;

impl KvWork {
    /// Counts a pass over `bytes` of a value.
    pub(crate) fn add_pass(&mut self, bytes: u32) {
        self.lines += u64::from(bytes).div_ceil(LINE_BYTES);
    }

    /// Counts the first pass over `bytes` that the drive has written.
    pub(crate) fn add_first_pass(&mut self, bytes: u32) {
        self.add_pass(bytes);
        self.drive_lines += u64::from(bytes).div_ceil(LINE_BYTES);
    }
}

impl KvStats {
    /// Returns the write amplification: bytes written to the media (records, padding, relocations,
    /// and whole chunks of `chunk_bytes`) per byte of values put. `None` if nothing was put.
    pub fn write_amplification(&self, unit_bytes: u32, chunk_bytes: u32) -> Option<f64> {
        let written = self.units_written as f64 * f64::from(unit_bytes)
            + self.large_value_chunks_written as f64 * f64::from(chunk_bytes);
        (self.bytes_put > 0).then(|| written / self.bytes_put as f64)
    }

    /// Returns the share of live bytes in the chunks with records; 1 if there are none.
    pub fn live_ratio(&self) -> f64 {
        if self.packed_chunk_bytes == 0 {
            return 1.0;
        }
        self.live_bytes as f64 / self.packed_chunk_bytes as f64
    }
}
