//! [`FtlStats`]: counters of the FTL.

use serde::{Deserialize, Serialize};

/// Counters since the FTL was started, in sectors unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Sectors of padding: for flushes, for paired pages, and before atomic writes.
    pub padding: u64,
    /// Sectors of padding before atomic writes that did not fit the open unit; among
    /// [`padding`](Self::padding).
    pub atomic_padding: u64,
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
}

collections::counters!(FtlStats {
    host_writes,
    host_writes_from_reserve,
    host_reads,
    buffer_hits,
    unmapped_reads,
    trimmed,
    gc_relocations,
    padding,
    atomic_padding,
    metadata,
    lines_without_metadata,
    victims_read_by_metadata,
    victims_read_by_oob,
    trims_synced,
    checkpoints,
    flushes,
    programs,
    erases,
    lines_reclaimed,
    program_failures,
    erase_failures,
    retired_chunks,
    uncorrectable_sectors,
    refreshed_lines,
    wear_leveled_lines,
    refresh_relocations,
    finished_lines,
    offline_chunks,
    redispatched_sectors,
    loss_checkpoints,
    map_hits,
    map_misses,
    map_page_reads,
    map_page_writes,
    map_read_errors,
    map_pages_lost,
    pages_rebuilt,
    rebuild_reads,
    map_sectors_lost,
    map_mismatches,
});
