//! [`PairedPages`]: the readability of programmed pages ([LightNVM17 §2.2]: the lower and upper
//! pages of a word line must both be written before either is read).

use serde::{Deserialize, Serialize};

use crate::{NandConfig, NandLayout};

/// The pairing rule of a medium. A sector is readable once `mw_cunits` more sectors are programmed
/// in its chunk, or when no more will be programmed: the chunk is full or closed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PairedPages {
    distance: u32,
    full: u32,
}

impl PairedPages {
    pub(crate) fn new(config: &NandConfig, layout: &NandLayout) -> PairedPages {
        PairedPages { distance: config.mw_cunits(), full: layout.sectors_per_chunk() }
    }

    /// Returns the readable sectors from the start of an open chunk with write pointer `pointer`.
    #[inline]
    pub(crate) fn readable_sectors(self, pointer: u32) -> u32 {
        if pointer == self.full { pointer } else { pointer.saturating_sub(self.distance) }
    }

    /// Returns the smallest write pointer, in whole units, at which `sector` is readable.
    pub(crate) fn write_pointer_needed(self, sector: u32, unit_sectors: u32) -> u32 {
        (sector + self.distance + 1).next_multiple_of(unit_sectors).min(self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CellType, testing};

    #[test]
    fn a_page_waits_for_its_pair_whatever_the_cell_and_the_distance() {
        for cell in [CellType::Slc, CellType::Mlc, CellType::Tlc, CellType::Qlc] {
            for distance in 0..10 {
                let mut config = testing::config();
                config.cell = cell;
                config.geometry.pages = 24;
                config.paired_page_distance = distance;
                config.check().unwrap();
                let layout = NandLayout::new(&config);
                let (pairing, unit) = (PairedPages::new(&config, &layout), layout.write_unit());
                let stripe = config.geometry.sectors_per_stripe();
                for programmed in 0..=layout.units_per_chunk() {
                    let pointer = programmed * unit;
                    for sector in 0..pointer {
                        let page = sector / stripe;
                        let want = programmed == 24 || page + distance < programmed;
                        assert_eq!(sector < pairing.readable_sectors(pointer), want);
                        assert_eq!(pointer >= pairing.write_pointer_needed(sector, unit), want);
                    }
                }
            }
        }
    }

    #[test]
    fn a_one_shot_program_brings_its_pairs_along() {
        let mut config = testing::config();
        (config.cell, config.one_shot, config.paired_page_distance) = (CellType::Tlc, true, 0);
        config.geometry.pages = 24;
        let layout = NandLayout::new(&config);
        assert_eq!(layout.write_unit(), 3 * config.geometry.sectors_per_stripe());
        let pairing = PairedPages::new(&config, &layout);
        assert_eq!(pairing.readable_sectors(layout.write_unit()), layout.write_unit());
        assert_eq!(pairing.write_pointer_needed(1, layout.write_unit()), layout.write_unit());
    }
}
