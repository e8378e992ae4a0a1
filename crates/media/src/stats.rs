//! [`MediaStats`]: what a medium has done and suffered, for rule R10.

/// Counts since the medium was created or opened, except wear, which is the medium's own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MediaStats {
    /// Units programmed.
    pub programs: u64,
    /// Chunks erased.
    pub erases: u64,
    /// Sectors read.
    pub reads: u64,
    /// Bit errors corrected in them.
    pub corrected_bits: u64,
    /// Sectors of them that were read only after repetitions.
    pub retried_reads: u64,
    /// Programs that failed.
    pub program_failures: u64,
    /// Erases that failed.
    pub erase_failures: u64,
    /// Reads with more bit errors than can be corrected, or of a unit whose program failed.
    pub uncorrectable_reads: u64,
    /// Reads of torn pages.
    pub torn_reads: u64,
    /// Reads of sectors that were not written, or whose chunk was being erased.
    pub unwritten_reads: u64,
    /// Reads before the paired page was programmed.
    pub unpaired_reads: u64,
    /// Operations on bad chunks, failed dies, and chunks with an interrupted erase.
    pub offline_operations: u64,
    /// Programs and data that broke the order of programming.
    pub refused_programs: u64,
    /// Operations that the image file's disk had no room for.
    pub host_disk_failures: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Units torn by them.
    pub torn_units: u64,
    /// Erases interrupted by them.
    pub interrupted_erases: u64,
    /// Wear of chunks that are not offline.
    pub wear: Wear,
    /// Chunks that are offline.
    pub offline_chunks: u32,
}

impl MediaStats {
    /// Counts since an earlier reading; wear and offline chunks are those of now.
    #[must_use]
    pub fn since(&self, earlier: &MediaStats) -> MediaStats {
        MediaStats {
            programs: self.programs - earlier.programs,
            erases: self.erases - earlier.erases,
            reads: self.reads - earlier.reads,
            corrected_bits: self.corrected_bits - earlier.corrected_bits,
            retried_reads: self.retried_reads - earlier.retried_reads,
            program_failures: self.program_failures - earlier.program_failures,
            erase_failures: self.erase_failures - earlier.erase_failures,
            uncorrectable_reads: self.uncorrectable_reads - earlier.uncorrectable_reads,
            torn_reads: self.torn_reads - earlier.torn_reads,
            unwritten_reads: self.unwritten_reads - earlier.unwritten_reads,
            unpaired_reads: self.unpaired_reads - earlier.unpaired_reads,
            offline_operations: self.offline_operations - earlier.offline_operations,
            refused_programs: self.refused_programs - earlier.refused_programs,
            host_disk_failures: self.host_disk_failures - earlier.host_disk_failures,
            power_cuts: self.power_cuts - earlier.power_cuts,
            torn_units: self.torn_units - earlier.torn_units,
            interrupted_erases: self.interrupted_erases - earlier.interrupted_erases,
            wear: self.wear,
            offline_chunks: self.offline_chunks,
        }
    }
}

/// Program/erase cycles over chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wear {
    /// Of the least worn chunk.
    pub min: u32,
    /// Of the most worn chunk.
    pub max: u32,
    /// Mean; 0 when there is no chunk.
    pub mean: f64,
    /// Sum.
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

/// What a power cut met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerLossReport {
    /// Units whose program was under way: torn.
    pub torn_units: u32,
    /// Chunks whose erase was under way: to be erased again.
    pub interrupted_erases: u32,
}
