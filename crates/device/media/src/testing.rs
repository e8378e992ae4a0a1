//! A small medium for the tests of this crate.

use time::Nanos;

use crate::{CellType, DataStore, ErrorModel, NandConfig, NandGeometry, NandTiming};

/// 2 channels × 2 PUs × 2 planes × 5 chunks × 12 pages × 2 sectors of 512 bytes.
pub(crate) fn config() -> NandConfig {
    NandConfig {
        geometry: NandGeometry {
            channels: 2,
            pus: 2,
            planes: 2,
            chunks: 5,
            pages: 12,
            page_bytes: 1024,
            sector_bytes: 512,
            oob_bytes: 16,
        },
        cell: CellType::Mlc,
        one_shot: false,
        paired_page_distance: 3,
        timing: NandTiming::uniform(Nanos(1), Nanos(2), Nanos(3), 0),
        errors: ErrorModel::default(),
        data: DataStore::Memory,
        seed: 1,
    }
}
