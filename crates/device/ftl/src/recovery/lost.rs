//! Sectors whose latest version was on a chunk that went offline after the last checkpoint. The
//! only evidence is that the previous version, which a map page names, is gone too.
//!
//! A line is erased only when all its data is durable elsewhere. So if the location that a page
//! names was erased, or holds another sector, there was a newer version, and it cannot be read: the
//! sector is lost, and must not read as the data there now. If the location still holds the sector,
//! recovery cannot tell whether there was a newer version. An FTL that noticed the failing chunk in
//! time has [made a checkpoint](crate::Ftl::chunk_offline) that names the latest version.

use std::collections::{BTreeMap, BTreeSet};

use nvme::{ChunkId, PhysSector};
use serde::{Deserialize, Serialize};

use super::ChunkReport;
use crate::FlashGeometry;
use crate::ids::{Lba, ToIndex};

/// A sector that holds no logical sector.
const PADDING: u32 = u32::MAX;

/// Logical sectors read at physical ones: four bytes for each sector that was scanned.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ObservedLbas {
    /// Per chunk and sector, the logical sector plus 1; 0 if it was not read or could not be.
    chunks: BTreeMap<ChunkId, Box<[u32]>>,
}

impl ObservedLbas {
    /// Records the logical sector found at a physical one.
    pub(super) fn record(&mut self, shape: &FlashGeometry, phys: PhysSector, lba: Option<Lba>) {
        let chunk = shape.chunk_of(phys);
        let blank = || vec![0; shape.sectors_per_chunk.index()].into();
        let words = self.chunks.entry(chunk).or_insert_with(blank);
        words[(phys - shape.first_sector_of(chunk)).index()] = lba.map_or(PADDING, |l| l.get() + 1);
    }

    /// Returns whether a sector was read and holds another logical sector.
    fn has_other_lba(&self, shape: &FlashGeometry, phys: PhysSector, lba: Lba) -> bool {
        let chunk = shape.chunk_of(phys);
        let word = |w: &[u32]| w[(phys - shape.first_sector_of(chunk)).index()];
        self.chunks.get(&chunk).is_some_and(|w| word(w) != 0 && word(w) != lba.get() + 1)
    }
}

/// Observations of a recovery about chunks and sectors, which are compared with the map pages.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ScanObservations {
    pub(crate) chunk_reports: Vec<ChunkReport>,
    pub(crate) observed_lbas: ObservedLbas,
    /// Sectors whose out-of-band bytes cannot be read.
    pub(crate) unreadable: BTreeSet<PhysSector>,
}

impl ScanObservations {
    /// Creates the observations from the reports of all chunks, without reads.
    pub(super) fn new(chunk_reports: Vec<ChunkReport>) -> ScanObservations {
        ScanObservations { chunk_reports, ..ScanObservations::default() }
    }

    /// Clears the sectors that were read, because they are read again.
    pub(super) fn forget_sectors(&mut self) {
        self.observed_lbas = ObservedLbas::default();
        self.unreadable.clear();
    }

    /// Whether a chunk is fully written.
    pub(super) fn is_full(&self, shape: &FlashGeometry, chunk: ChunkId) -> bool {
        self.chunk_reports[chunk.index()] == ChunkReport::Closed(shape.sectors_per_chunk)
    }

    /// Records that padding was programmed up to sector `end` of a chunk, or failed.
    pub(super) fn on_padded(&mut self, shape: &FlashGeometry, chunk: ChunkId, end: u32, ok: bool) {
        let found = &mut self.chunk_reports[chunk.index()];
        let written = found.written_sectors();
        *found = match *found {
            ChunkReport::Open(n) if ok => ChunkReport::Open(n.max(end)),
            // A program before the failed one, reported after it.
            ChunkReport::ProgramFailed(n) if ok => ChunkReport::ProgramFailed(n.max(end)),
            ChunkReport::Open(n) => ChunkReport::ProgramFailed(n),
            _ => return,
        };
        // Contents from before the chunk's erase are gone.
        let first_phys = shape.first_sector_of(chunk);
        for sector in written..found.written_sectors() {
            self.observed_lbas.record(shape, first_phys + sector, None);
        }
    }

    /// Returns the unreadable sectors where lost data may have been: all of the bad chunks among
    /// these, and those whose out-of-band bytes could not be read.
    pub(super) fn possible_locations<'a>(
        &'a self,
        shape: &'a FlashGeometry,
        chunks: impl Iterator<Item = ChunkId> + 'a,
    ) -> impl Iterator<Item = PhysSector> + 'a {
        let gone = |chunk: &ChunkId| self.chunk_reports[chunk.index()] == ChunkReport::Bad;
        let sectors = |chunk: ChunkId| {
            let first = shape.first_sector_of(chunk);
            first.run(shape.sectors_per_chunk)
        };
        chunks.filter(gone).flat_map(sectors).chain(self.unreadable.iter().copied())
    }

    /// Returns whether a logical sector is certainly not where a translation page says.
    pub(crate) fn is_stale(&self, shape: &FlashGeometry, lba: Lba, phys: PhysSector) -> bool {
        let chunk = shape.chunk_of(phys);
        let at = phys - shape.first_sector_of(chunk);
        let Some(found) = self.chunk_reports.get(chunk.index()) else { return true };
        match *found {
            // The sector may be there.
            ChunkReport::Bad | ChunkReport::NotOwned => false,
            found => {
                at >= found.written_sectors() || self.observed_lbas.has_other_lba(shape, phys, lba)
            }
        }
    }

    /// Returns whether the contents of a sector cannot be determined.
    pub(crate) fn is_unreadable(&self, shape: &FlashGeometry, phys: PhysSector) -> bool {
        let chunk = shape.chunk_of(phys).index();
        self.unreadable.contains(&phys) || self.chunk_reports.get(chunk) == Some(&ChunkReport::Bad)
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;

    use super::*;

    #[test]
    fn only_what_was_read_is_contradicted() {
        let shape = FlashGeometry::from_geometry(&Geometry {
            groups: 1,
            pus: 1,
            chunks: 4,
            sectors: 8,
            sector_bytes: 512,
            oob_bytes: 16,
            ws_min: 4,
            ws_opt: 4,
            mw_cunits: 0,
        });
        let mut names = ObservedLbas::default();
        names.record(&shape, PhysSector(8), Some(Lba(5)));
        names.record(&shape, PhysSector(9), None);
        assert!(
            !names.has_other_lba(&shape, PhysSector(8), Lba(5))
                && names.has_other_lba(&shape, PhysSector(8), Lba(6))
        );
        assert!(names.has_other_lba(&shape, PhysSector(9), Lba(5)), "padding");
        assert!(!names.has_other_lba(&shape, PhysSector(10), Lba(5)), "not read");
        assert!(
            !names.has_other_lba(&shape, PhysSector(16), Lba(5)),
            "a chunk that was not looked at"
        );
    }
}
