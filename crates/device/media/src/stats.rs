//! [`MediaStats`]: the counters of a medium (ARCHITECTURE.md, R10).

use serde::{Deserialize, Serialize};
use time::Nanos;

/// Counters since the medium was created or opened; wear is since the creation of the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MediaStats {
    /// Units programmed.
    pub programs: u64,
    /// Chunks erased.
    pub erases: u64,
    /// Sectors read.
    pub reads: u64,
    /// Corrected bit errors.
    pub corrected_bits: u64,
    /// Sectors that were read only after retries.
    pub retried_reads: u64,
    /// Programs that failed.
    pub program_failures: u64,
    /// Erases that failed.
    pub erase_failures: u64,
    /// Reads with more bit errors than ECC corrects, or of a unit whose program failed.
    pub uncorrectable_reads: u64,
    /// Reads of torn pages.
    pub torn_reads: u64,
    /// Reads of sectors that were unwritten, or whose chunk was being erased.
    pub unwritten_reads: u64,
    /// Reads before the paired page was programmed.
    pub unpaired_reads: u64,
    /// Operations on bad chunks, failed dies, and chunks with an interrupted erase.
    pub offline_operations: u64,
    /// Programs and staged data that violated the programming order.
    pub refused_programs: u64,
    /// Operations that failed because the image file's disk was full.
    pub host_disk_failures: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Units torn by power cuts.
    pub torn_units: u64,
    /// Erases interrupted by power cuts.
    pub interrupted_erases: u64,
    /// Wear of chunks that are not offline.
    pub wear: Wear,
    /// Offline chunks.
    pub offline_chunks: u32,
}

collections::counters!(MediaStats {
    programs,
    erases,
    reads,
    corrected_bits,
    retried_reads,
    program_failures,
    erase_failures,
    uncorrectable_reads,
    torn_reads,
    unwritten_reads,
    unpaired_reads,
    offline_operations,
    refused_programs,
    host_disk_failures,
    power_cuts,
    torn_units,
    interrupted_erases;
    latest wear, offline_chunks
});

/// The flushes of an image to the host's stable storage ([`DataStore::DurableFile`]).
///
/// [`DataStore::DurableFile`]: crate::DataStore::DurableFile
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFlushStats {
    /// Flushes that had something to write. Each is one or two calls of `fdatasync(2)`.
    pub flushes: u64,
    /// Flushes that failed.
    pub failures: u64,
    /// Time that the flushes took, in real time.
    pub time: Nanos,
}

/// Statistics of the program/erase cycles of chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wear {
    /// Wear of the least worn chunk.
    pub min: u32,
    /// Wear of the most worn chunk.
    pub max: u32,
    /// Mean wear; 0 if there is no chunk.
    pub mean: f64,
    /// Sum over all chunks.
    pub total: u64,
}

impl Wear {
    pub(crate) fn from_cycles(chunks: impl Iterator<Item = u32>) -> Wear {
        let (mut w, mut n) = (Wear { min: u32::MAX, ..Wear::default() }, 0u64);
        for wear in chunks {
            w.min = w.min.min(wear);
            w.max = w.max.max(wear);
            w.total += u64::from(wear);
            n += 1;
        }
        if n == 0 {
            return Wear::default();
        }
        w.mean = w.total as f64 / n as f64;
        w
    }
}

/// The operations that a power cut interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerLossReport {
    /// Torn units: their programs were in progress.
    pub torn_units: u32,
    /// Chunks to be erased again: their erases were in progress.
    pub interrupted_erases: u32,
}
