//! [`WearTable`]: the wear of each chunk as far as the host knows it; [`WearPolicy`]: the order of
//! allocation ([LightNVM17 §4.1]; dynamic wear leveling: new data goes to little-worn blocks).
//!
//! A drive reports wear as an index of 0 to 255 in its chunk information [OC20 §3], which is
//! coarse: at 3,000 rated cycles one step is twelve cycles. Erases since the report are added, so
//! that chunks with equal index alternate.

use nvme::ChunkDescriptor;

/// Default of the rated cycles of a chunk: the usual rating of MLC.
pub const RATED_CYCLES: u32 = 3000;

/// The order in which free chunks are allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WearPolicy {
    /// The least worn chunk for hot data, the most worn one for cold data.
    #[default]
    Leveling,
    /// The chunk with the lowest index: no wear leveling, as a baseline.
    FirstFree,
}

/// Temperature of the data to be written to a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataTemperature {
    /// Data that is likely to be overwritten soon, or of unknown temperature.
    #[default]
    Hot,
    /// Data that was not overwritten for long; a worn block suffices for it and is spared erases.
    Cold,
}

/// The wear of every chunk, in cycles.
#[derive(Clone, Debug)]
pub struct WearTable {
    rated_cycles: u32,
    cycles: Vec<u32>,
}

impl WearTable {
    /// Creates the wear from a report; `rated_cycles`, at least 1, corresponds to an index of 255.
    pub fn from_report(report: &[ChunkDescriptor], rated_cycles: u32) -> WearTable {
        let rated_cycles = rated_cycles.max(1);
        let cycles = report.iter().map(|d| index_to_cycles(d.wear_index, rated_cycles)).collect();
        WearTable { rated_cycles, cycles }
    }

    /// Returns the rated cycles of a chunk.
    pub fn rated_cycles(&self) -> u32 {
        self.rated_cycles
    }

    /// Returns the cycles of a chunk: those reported plus later erases; 0 for a chunk that does not
    /// exist.
    pub fn cycles(&self, chunk: u32) -> u32 {
        self.cycles.get(chunk as usize).copied().unwrap_or(0)
    }

    /// Counts an erase of a chunk.
    pub fn record_erase(&mut self, chunk: u32) {
        if let Some(cycles) = self.cycles.get_mut(chunk as usize) {
            *cycles = cycles.saturating_add(1);
        }
    }

    /// Imports a newer report. Erases counted since the last one are kept, unless the coarse index
    /// of the report contradicts them.
    pub fn refresh(&mut self, report: &[ChunkDescriptor]) {
        for (cycles, d) in self.cycles.iter_mut().zip(report) {
            let (least, next) = (
                index_to_cycles(d.wear_index.saturating_sub(1), self.rated_cycles),
                index_to_cycles(d.wear_index, self.rated_cycles),
            );
            *cycles = (*cycles).clamp(least, next.max(least));
        }
    }
}

/// Returns the maximum number of cycles of an index: drives round up, so that any use is visible.
fn index_to_cycles(index: u8, rated: u32) -> u32 {
    (u64::from(index) * u64::from(rated) / 255) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(indexes: &[u8]) -> Vec<ChunkDescriptor> {
        let of = |i: &u8| ChunkDescriptor { wear_index: *i, ..ChunkDescriptor::default() };
        indexes.iter().map(of).collect()
    }

    #[test]
    fn the_index_is_coarse_and_erases_count_in_between() {
        let mut wear = WearTable::from_report(&report(&[0, 1, 255]), 3000);
        assert_eq!([0, 1, 2, 3].map(|c| wear.cycles(c)), [0, 11, 3000, 0]);
        wear.record_erase(0);
        wear.record_erase(0);
        assert_eq!(wear.cycles(0), 2);
        // The drive rounds 2 of 3000 cycles up to index 1, which does not contradict the count.
        wear.refresh(&report(&[1, 1, 255]));
        assert_eq!([0, 1].map(|c| wear.cycles(c)), [2, 11]);
        wear.refresh(&report(&[9, 1, 255]));
        assert_eq!(wear.cycles(0), index_to_cycles(8, 3000), "others erased it meanwhile");
        assert_eq!(WearTable::from_report(&report(&[255]), 0).cycles(0), 1);
    }
}
