//! [`TableWindow`]: the location of a drive's partition table.
//!
//! A host must find the location from the geometry alone, whatever chunks became bad. The location
//! is therefore a window: the first `depth` chunks of the first `width` parallel units in striping
//! order, in which consecutive ones are on different channels. All good chunks of the window belong
//! to the table; bad ones are skipped. A host reads the whole window, at most [`WINDOW_CHUNKS_MAX`]
//! chunks, and no others.

use ftl::journal::{JournalConfig, JournalError, chunks_needed};
use nvme::{FlashGeometry, Geometry};

use crate::{Table, TableRecord};

/// Owner of the journal that holds a partition table: "PART" in ASCII.
pub const JOURNAL_OWNER: u32 = 0x5452_4150;
/// Maximum number of chunks of the window.
pub const WINDOW_CHUNKS_MAX: u32 = 4096;

/// Maximum number of parallel units of the window.
const WINDOW_PUS_MAX: u32 = 4;
/// Bytes of records per generation.
const GENERATION_RECORD_BYTES: u64 = 64 << 10;

/// The window, and the journal in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableWindow {
    /// The window's chunks, good or bad, by parallel unit.
    pub chunks: Vec<u32>,
    /// Number of chunks that must be good when the drive is registered.
    pub chunks_needed: u32,
    /// Capacity of the journal.
    pub config: JournalConfig,
}

impl TableWindow {
    /// Computes the window of a drive; it is half as large again as necessary.
    ///
    /// # Errors
    /// The reason why the drive cannot have a window, as text.
    pub fn new(geometry: &Geometry) -> Result<TableWindow, String> {
        let shape = FlashGeometry::from_geometry(geometry);
        let chunks = geometry.total_chunks();
        if chunks > crate::CHUNKS_MAX || geometry.total_pus() > crate::PU_MAX {
            return Err(format!("it has {chunks} chunks on {} units", geometry.total_pus()));
        }
        let chunk_bytes = u64::from(geometry.sectors) * u64::from(geometry.sector_bytes);
        let record = TableRecord::bytes_max(geometry.total_pus(), chunks as u32);
        let config = JournalConfig {
            owner: JOURNAL_OWNER,
            snapshot_bytes: Table::snapshot_bytes_max(geometry),
            // The longest record must fit; beyond it, at most half a chunk.
            record_bytes: record + GENERATION_RECORD_BYTES.min(chunk_bytes / 2),
        };
        let needed = chunks_needed(&shape, &config).map_err(|e: JournalError| e.to_string())?;
        let width = WINDOW_PUS_MAX.min(shape.pus);
        let depth = (needed + needed / 2).div_ceil(width);
        let window = u64::from(width) * u64::from(depth);
        // A table must leave most of the drive to the targets.
        if depth > shape.chunks_per_pu / 2 || window > u64::from(WINDOW_CHUNKS_MAX) {
            return Err(format!(
                "it would take {depth} of the {} chunks of {width} parallel units, for \
                 {needed} good ones of {chunk_bytes} bytes",
                shape.chunks_per_pu
            ));
        }
        let first = |i: u32| shape.chunk_on(shape.striped_pu(i), 0).get();
        let chunks = (0..width).flat_map(|i| first(i)..first(i) + depth).collect();
        Ok(TableWindow { chunks, chunks_needed: needed, config })
    }

    /// Returns whether a chunk is in the window.
    pub fn contains(&self, chunk: u32) -> bool {
        self.chunks.contains(&chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(groups: u32, pus: u32, chunks: u32, sectors: u32) -> Geometry {
        Geometry {
            groups,
            pus,
            chunks,
            sectors,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 8,
            ws_opt: 8,
            mw_cunits: 0,
        }
    }

    #[test]
    fn the_window_is_on_different_channels_and_small() {
        // The drive of [LightNVM17 §5].
        let big = Geometry { ws_min: 16, ws_opt: 16, ..geometry(16, 8, 1067, 4096) };
        let reserve = TableWindow::new(&big).unwrap();
        let mut groups: Vec<u32> = reserve.chunks.iter().map(|c| c / (8 * 1067)).collect();
        groups.dedup();
        assert_eq!(groups, [0, 1, 2, 3]);
        assert!(reserve.chunks.len() <= 8, "{} chunks of 16 MiB", reserve.chunks.len());
        assert!(reserve.chunks.iter().all(|c| c % 1067 < 2));
        let small = TableWindow::new(&geometry(1, 2, 40, 256)).unwrap();
        assert!(small.chunks.iter().all(|c| small.contains(*c)) && !small.contains(39));
        assert!(small.chunks.len() as u32 >= small.chunks_needed + small.chunks_needed / 2);
        assert_eq!(
            TableWindow::new(&geometry(1, 2, 40, 256)),
            Ok(small),
            "from the geometry alone"
        );
    }

    #[test]
    fn a_drive_too_small_for_the_window_is_refused() {
        let told = TableWindow::new(&geometry(1, 1, 8, 8)).unwrap_err();
        assert!(told.contains("of the 8 chunks of 1 parallel units"), "{told}");
        let huge = geometry(1 << 10, 1 << 10, 1 << 10, 64);
        assert!(TableWindow::new(&huge).unwrap_err().contains("it has 1073741824 chunks"));
    }
}
