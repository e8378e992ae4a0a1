//! [`FtlStats`]: counters of the FTL.

/// Counters since the FTL was started, in sectors unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FtlStats {
    /// Sectors written by the host.
    pub host_writes: u64,
    /// Host writes admitted from the reserve, because there was no space to reclaim.
    pub host_writes_from_reserve: u64,
    /// Sectors read by the host.
    pub host_reads: u64,
    /// Reads served from the write buffer.
    pub buffer_hits: u64,
    /// Reads of sectors that are not mapped.
    pub unmapped_reads: u64,
    /// Sectors trimmed that were mapped.
    pub trimmed: u64,
    /// Sectors that garbage collection moved.
    pub gc_relocations: u64,
    /// Sectors of padding, for flushes.
    pub padding: u64,
    /// Sectors of map pages, and of headers and footers of lines.
    pub metadata: u64,
    /// Lines with space for a footer that were closed without one.
    pub lines_without_metadata: u64,
    /// Victims whose footer garbage collection read. 0 while the reverse map is in memory.
    pub victims_read_by_metadata: u64,
    /// Victims whose out-of-band bytes garbage collection read instead of a footer.
    pub victims_read_by_oob: u64,
    /// Trimmed sectors that were synced with a drive that keeps the map.
    pub trims_synced: u64,
    /// Checkpoints of the map; with the drive's map, reservations of numbers.
    pub checkpoints: u64,
    /// Flushes.
    pub flushes: u64,
    /// Write units programmed.
    pub programs: u64,
    /// Chunks erased.
    pub erases: u64,
    /// Lines reclaimed.
    pub lines_reclaimed: u64,
    /// Programs that failed and were written again elsewhere.
    pub program_failures: u64,
    /// Erases that failed.
    pub erase_failures: u64,
    /// Chunks retired.
    pub retired_chunks: u64,
    /// Sectors that could not be read when they were to be moved.
    pub uncorrectable_sectors: u64,
    /// Lines moved because their data was hard to read, or a chunk of theirs had gone.
    pub refreshed_lines: u64,
    /// Lines moved so that their chunks take their share of the erases.
    pub wear_leveled_lines: u64,
    /// Sectors moved for either, `gc_relocations` included.
    pub refresh_relocations: u64,
    /// Lines closed before they were full, because their chunks were old or hard to read.
    pub finished_lines: u64,
    /// Chunks that went offline.
    pub offline_chunks: u64,
    /// Sectors written again from the write buffer, because their chunk went offline or they had been
    /// there for long.
    pub redispatched_sectors: u64,
    /// Checkpoints asked for because something newer than the last one could not be read.
    pub loss_checkpoints: u64,
    /// Map pages that host requests found in memory; not counted if all of the map is in memory.
    pub map_hits: u64,
    /// Map pages that host requests had to wait for.
    pub map_misses: u64,
    /// Pages of the map read from the media.
    pub map_page_reads: u64,
    /// Pages of the map written because others needed their memory; among [`metadata`](Self::metadata).
    pub map_page_writes: u64,
    /// Reads of a page of the map that failed.
    pub map_read_errors: u64,
    /// Map pages that can neither be read nor rebuilt: reads of their sectors fail until these are
    /// rewritten.
    pub map_pages_lost: u64,
    /// Pages of the map that could not be read and were rebuilt of what is beside their sectors, and the
    /// sectors that were read for it.
    pub pages_rebuilt: u64,
    /// See `pages_rebuilt`.
    pub rebuild_reads: u64,
    /// After a recovery that left the map pages on the media: sectors whose latest version is lost,
    /// according to their pages.
    pub map_sectors_lost: u64,
    /// After a recovery: sectors that a page of the map knew elsewhere than they were found; 0, or
    /// something is wrong.
    pub map_mismatches: u64,
}

impl FtlStats {
    /// Returns the sectors programmed per sector written by the host; `None` before the first
    /// write.
    pub fn write_amplification(&self) -> Option<f64> {
        let all = self.host_writes + self.gc_relocations + self.padding + self.metadata;
        (self.host_writes > 0).then(|| all as f64 / self.host_writes as f64)
    }

    /// Returns the sums of the counters of two FTLs.
    #[must_use]
    pub fn plus(&self, other: &FtlStats) -> FtlStats {
        FtlStats {
            host_writes: self.host_writes + other.host_writes,
            host_writes_from_reserve: self.host_writes_from_reserve
                + other.host_writes_from_reserve,
            host_reads: self.host_reads + other.host_reads,
            buffer_hits: self.buffer_hits + other.buffer_hits,
            unmapped_reads: self.unmapped_reads + other.unmapped_reads,
            trimmed: self.trimmed + other.trimmed,
            gc_relocations: self.gc_relocations + other.gc_relocations,
            padding: self.padding + other.padding,
            metadata: self.metadata + other.metadata,
            lines_without_metadata: self.lines_without_metadata + other.lines_without_metadata,
            victims_read_by_metadata: self.victims_read_by_metadata
                + other.victims_read_by_metadata,
            victims_read_by_oob: self.victims_read_by_oob + other.victims_read_by_oob,
            trims_synced: self.trims_synced + other.trims_synced,
            checkpoints: self.checkpoints + other.checkpoints,
            flushes: self.flushes + other.flushes,
            programs: self.programs + other.programs,
            erases: self.erases + other.erases,
            lines_reclaimed: self.lines_reclaimed + other.lines_reclaimed,
            program_failures: self.program_failures + other.program_failures,
            erase_failures: self.erase_failures + other.erase_failures,
            retired_chunks: self.retired_chunks + other.retired_chunks,
            uncorrectable_sectors: self.uncorrectable_sectors + other.uncorrectable_sectors,
            refreshed_lines: self.refreshed_lines + other.refreshed_lines,
            wear_leveled_lines: self.wear_leveled_lines + other.wear_leveled_lines,
            refresh_relocations: self.refresh_relocations + other.refresh_relocations,
            finished_lines: self.finished_lines + other.finished_lines,
            offline_chunks: self.offline_chunks + other.offline_chunks,
            redispatched_sectors: self.redispatched_sectors + other.redispatched_sectors,
            loss_checkpoints: self.loss_checkpoints + other.loss_checkpoints,
            map_hits: self.map_hits + other.map_hits,
            map_misses: self.map_misses + other.map_misses,
            map_page_reads: self.map_page_reads + other.map_page_reads,
            map_page_writes: self.map_page_writes + other.map_page_writes,
            map_read_errors: self.map_read_errors + other.map_read_errors,
            map_pages_lost: self.map_pages_lost + other.map_pages_lost,
            pages_rebuilt: self.pages_rebuilt + other.pages_rebuilt,
            rebuild_reads: self.rebuild_reads + other.rebuild_reads,
            map_sectors_lost: self.map_sectors_lost + other.map_sectors_lost,
            map_mismatches: self.map_mismatches + other.map_mismatches,
        }
    }

    /// Returns the differences to an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &FtlStats) -> FtlStats {
        FtlStats {
            host_writes: self.host_writes - earlier.host_writes,
            host_writes_from_reserve: self.host_writes_from_reserve
                - earlier.host_writes_from_reserve,
            host_reads: self.host_reads - earlier.host_reads,
            buffer_hits: self.buffer_hits - earlier.buffer_hits,
            unmapped_reads: self.unmapped_reads - earlier.unmapped_reads,
            trimmed: self.trimmed - earlier.trimmed,
            gc_relocations: self.gc_relocations - earlier.gc_relocations,
            padding: self.padding - earlier.padding,
            metadata: self.metadata - earlier.metadata,
            lines_without_metadata: self.lines_without_metadata - earlier.lines_without_metadata,
            victims_read_by_metadata: self.victims_read_by_metadata
                - earlier.victims_read_by_metadata,
            victims_read_by_oob: self.victims_read_by_oob - earlier.victims_read_by_oob,
            trims_synced: self.trims_synced - earlier.trims_synced,
            checkpoints: self.checkpoints - earlier.checkpoints,
            flushes: self.flushes - earlier.flushes,
            programs: self.programs - earlier.programs,
            erases: self.erases - earlier.erases,
            lines_reclaimed: self.lines_reclaimed - earlier.lines_reclaimed,
            program_failures: self.program_failures - earlier.program_failures,
            erase_failures: self.erase_failures - earlier.erase_failures,
            retired_chunks: self.retired_chunks - earlier.retired_chunks,
            uncorrectable_sectors: self.uncorrectable_sectors - earlier.uncorrectable_sectors,
            refreshed_lines: self.refreshed_lines - earlier.refreshed_lines,
            wear_leveled_lines: self.wear_leveled_lines - earlier.wear_leveled_lines,
            refresh_relocations: self.refresh_relocations - earlier.refresh_relocations,
            finished_lines: self.finished_lines - earlier.finished_lines,
            offline_chunks: self.offline_chunks - earlier.offline_chunks,
            redispatched_sectors: self.redispatched_sectors - earlier.redispatched_sectors,
            loss_checkpoints: self.loss_checkpoints - earlier.loss_checkpoints,
            map_hits: self.map_hits - earlier.map_hits,
            map_misses: self.map_misses - earlier.map_misses,
            map_page_reads: self.map_page_reads - earlier.map_page_reads,
            map_page_writes: self.map_page_writes - earlier.map_page_writes,
            map_read_errors: self.map_read_errors - earlier.map_read_errors,
            map_pages_lost: self.map_pages_lost - earlier.map_pages_lost,
            pages_rebuilt: self.pages_rebuilt - earlier.pages_rebuilt,
            rebuild_reads: self.rebuild_reads - earlier.rebuild_reads,
            map_sectors_lost: self.map_sectors_lost - earlier.map_sectors_lost,
            map_mismatches: self.map_mismatches - earlier.map_mismatches,
        }
    }
}
