//! [`Pairing`]: when a programmed page can be read (LightNVM paper section 2.2: lower and upper pages
//! of a word line must both be written before either is read).

use crate::{Layout, NandConfig};

/// The rule for one medium: a sector is readable once `mw_cunits` more sectors are programmed in its
/// chunk, or when nothing more will be, since the chunk is full or was closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pairing {
    distance: u32,
    full: u32,
}

impl Pairing {
    pub(crate) fn of(config: &NandConfig, layout: &Layout) -> Pairing {
        Pairing { distance: config.mw_cunits(), full: layout.sectors_per_chunk() }
    }

    /// Sectors from the start of an open chunk that can be read when `pointer` are programmed.
    #[inline]
    pub(crate) fn readable(self, pointer: u32) -> u32 {
        if pointer == self.full { pointer } else { pointer.saturating_sub(self.distance) }
    }

    /// Least write pointer, in whole units, at which `sector` can be read.
    pub(crate) fn needs(self, sector: u32, unit: u32) -> u32 {
        (sector + self.distance + 1).next_multiple_of(unit).min(self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cell, testing};

    #[test]
    fn a_page_waits_for_its_pair_whatever_the_cell_and_the_distance() {
        for cell in [Cell::Slc, Cell::Mlc, Cell::Tlc, Cell::Qlc] {
            for distance in 0..10 {
                let mut config = testing::config();
                config.cell = cell;
                config.geometry.pages = 24;
                config.pair_distance = distance;
                config.check().unwrap();
                let layout = Layout::of(&config);
                let (pairing, unit) = (Pairing::of(&config, &layout), layout.write_unit());
                let stripe = config.geometry.sectors_per_stripe();
                for programmed in 0..=layout.units_per_chunk() {
                    let pointer = programmed * unit;
                    for sector in 0..pointer {
                        let page = sector / stripe;
                        let want = programmed == 24 || page + distance < programmed;
                        assert_eq!(sector < pairing.readable(pointer), want);
                        assert_eq!(pointer >= pairing.needs(sector, unit), want);
                    }
                }
            }
        }
    }

    #[test]
    fn a_one_shot_program_brings_its_pairs_along() {
        let mut config = testing::config();
        (config.cell, config.one_shot, config.pair_distance) = (Cell::Tlc, true, 0);
        config.geometry.pages = 24;
        let layout = Layout::of(&config);
        assert_eq!(layout.write_unit(), 3 * config.geometry.sectors_per_stripe());
        let pairing = Pairing::of(&config, &layout);
        assert_eq!(pairing.readable(layout.write_unit()), layout.write_unit());
        assert_eq!(pairing.needs(1, layout.write_unit()), layout.write_unit());
    }
}
