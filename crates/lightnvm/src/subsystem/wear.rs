//! [`Wear`]: how worn each chunk is, as far as a host can know, and [`WearPolicy`]: which chunk is
//! handed out first (LightNVM paper section 4.1; dynamic wear levelling: new data goes to young
//! blocks).
//!
//! A drive reports wear as an index of 0 to 255 in its chunk information (OC section 3), which is
//! coarse: at 3,000 rated cycles one step is twelve. Erases seen since the report are added, so that
//! chunks of the same index still take turns.

use nvme::ChunkDescriptor;

/// Cycles that a chunk is good for, unless the drive's sheet says otherwise: MLC's usual rating.
pub const RATED_CYCLES: u32 = 3000;

/// Which free chunk is handed out first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WearPolicy {
    /// The least worn for hot data, the most worn for cold data.
    #[default]
    Leveling,
    /// The one with the lowest number: no levelling, to compare with.
    FirstFree,
}

/// What is going to be written into a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataTemperature {
    /// Data that is likely to be overwritten soon, or nobody knows.
    #[default]
    Hot,
    /// Data that was not overwritten for long: an old block is good enough, and gets rest from it.
    Cold,
}

/// The wear of every chunk, in cycles.
#[derive(Clone, Debug)]
pub struct Wear {
    rated_cycles: u32,
    cycles: Vec<u32>,
}

impl Wear {
    /// The wear that a report tells; `rated_cycles` is what the index of 255 stands for, at least 1.
    pub fn from_report(report: &[ChunkDescriptor], rated_cycles: u32) -> Wear {
        let rated_cycles = rated_cycles.max(1);
        let cycles = report.iter().map(|d| index_to_cycles(d.wear_index, rated_cycles)).collect();
        Wear { rated_cycles, cycles }
    }

    /// Cycles that a chunk is good for.
    pub fn rated_cycles(&self) -> u32 {
        self.rated_cycles
    }

    /// Cycles of a chunk, by the report and the erases since; 0 for one that there is not.
    pub fn cycles(&self, chunk: u32) -> u32 {
        self.cycles.get(chunk as usize).copied().unwrap_or(0)
    }

    /// A chunk was erased.
    pub fn record_erase(&mut self, chunk: u32) {
        if let Some(cycles) = self.cycles.get_mut(chunk as usize) {
            *cycles = cycles.saturating_add(1);
        }
    }

    /// Takes a newer report. What was counted since the last one stays where the report's coarse
    /// index does not contradict it.
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

/// The most cycles that an index can stand for: drives round up, so that any use at all shows.
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
        let mut wear = Wear::from_report(&report(&[0, 1, 255]), 3000);
        assert_eq!([0, 1, 2, 3].map(|c| wear.cycles(c)), [0, 11, 3000, 0]);
        wear.record_erase(0);
        wear.record_erase(0);
        assert_eq!(wear.cycles(0), 2);
        // The drive rounds 2 of 3000 cycles up to index 1, which does not contradict the count.
        wear.refresh(&report(&[1, 1, 255]));
        assert_eq!([0, 1].map(|c| wear.cycles(c)), [2, 11]);
        wear.refresh(&report(&[9, 1, 255]));
        assert_eq!(wear.cycles(0), index_to_cycles(8, 3000), "others erased it meanwhile");
        assert_eq!(Wear::from_report(&report(&[255]), 0).cycles(0), 1);
    }
}
