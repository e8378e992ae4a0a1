//! Sectors whose latest version was on a chunk that went offline after the last checkpoint. The
//! only evidence is that the previous version, which a map page names, is gone too.
//!
//! A line is erased only when all its data is durable elsewhere. So if the location that a page
//! names was erased, or holds another sector, there was a newer version, and it cannot be read: the
//! sector is lost, and must not read as the data there now. If the location still holds the sector,
//! recovery cannot tell whether there was a newer version. An FTL that noticed the failing chunk in
//! time has [made a checkpoint](crate::Ftl::chunk_offline) that names the latest version.

use std::collections::{BTreeMap, BTreeSet};

use super::{ChunkReport, Recovery};
use crate::FlashGeometry;

/// A sector that holds nothing of a logical sector.
const PADDING: u32 = u32::MAX;

/// Logical sectors read at physical ones: four bytes for each sector that was scanned.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedLbas {
    /// Per chunk and sector, the logical sector plus 1; 0 if it was not read or could not be.
    chunks: BTreeMap<u32, Box<[u32]>>,
}

impl ObservedLbas {
    /// A sector was found to hold this.
    pub(super) fn record(&mut self, shape: &FlashGeometry, psn: u32, lba: Option<u32>) {
        let chunk = shape.chunk_of(psn);
        let blank = || vec![0; shape.sectors_per_chunk as usize].into();
        let words = self.chunks.entry(chunk).or_insert_with(blank);
        words[(psn - shape.first_sector_of(chunk)) as usize] = lba.map_or(PADDING, |l| l + 1);
    }

    /// Whether a sector was read and found to hold something else.
    fn has_other_lba(&self, shape: &FlashGeometry, psn: u32, lba: u32) -> bool {
        let chunk = shape.chunk_of(psn);
        let word = |w: &[u32]| w[(psn - shape.first_sector_of(chunk)) as usize];
        self.chunks.get(&chunk).is_some_and(|w| word(w) != 0 && word(w) != lba + 1)
    }
}

/// Observations of a recovery about chunks and sectors, which are compared with the map pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScanObservations {
    pub(crate) chunk_reports: Vec<ChunkReport>,
    pub(crate) observed_lbas: ObservedLbas,
    /// Sectors whose out-of-band bytes cannot be read.
    pub(crate) unreadable: BTreeSet<u32>,
}

impl ScanObservations {
    /// Whether a logical sector is certainly not any more where a map page says.
    pub(crate) fn is_stale(&self, shape: &FlashGeometry, lba: u32, psn: u32) -> bool {
        let chunk = shape.chunk_of(psn);
        let at = psn - shape.first_sector_of(chunk);
        let Some(found) = self.chunk_reports.get(chunk as usize) else { return true };
        match *found {
            // It may well be there.
            ChunkReport::Bad | ChunkReport::NotOwned => false,
            found => {
                at >= found.written_sectors() || self.observed_lbas.has_other_lba(shape, psn, lba)
            }
        }
    }

    /// Whether what is in a sector cannot be found out.
    pub(crate) fn is_unreadable(&self, shape: &FlashGeometry, psn: u32) -> bool {
        let chunk = shape.chunk_of(psn) as usize;
        self.unreadable.contains(&psn) || self.chunk_reports.get(chunk) == Some(&ChunkReport::Bad)
    }
}

impl Recovery {
    /// Records that the latest version of a sector is lost.
    pub(super) fn mark_lost(&mut self, lba: u32) {
        self.stats.uncorrectable_sectors += 1;
        self.l2p_entries[lba as usize] = 0;
        self.lost.push(lba);
    }

    /// Points the map of what is lost, each at a place of its own, to where it can have been: to
    /// sectors of lines that were looked through, which cannot be read, and which nothing else is at.
    pub(super) fn assign_lost_locations(&mut self) {
        if self.lost.is_empty() {
            return;
        }
        let mut named: BTreeSet<u32> =
            self.l2p_entries.iter().filter_map(|w| w.checked_sub(1)).collect();
        // Pages too, which may not have been readable either.
        named.extend(self.page_queue.iter().map(|(psn, _)| *psn));
        let base = self.base_seq();
        let read = self.lines.iter().filter(|l| l.open || l.max_seq >= base);
        let gone = |c: &&u32| self.observations.chunk_reports[**c as usize] == ChunkReport::Bad;
        let sectors = |c: &u32| {
            let first = self.geometry.first_sector_of(*c);
            first..first + self.geometry.sectors_per_chunk
        };
        let chunks = read.flat_map(|l| &l.chunks).filter(gone).flat_map(sectors);
        let places = chunks.chain(self.observations.unreadable.iter().copied());
        let mut places = places.filter(|psn| !named.contains(psn)).collect::<Vec<_>>().into_iter();
        // Each was somewhere, so there are enough.
        for (&lba, psn) in self.lost.iter().zip(&mut places) {
            self.l2p_entries[lba as usize] = psn + 1;
            self.poison.push(lba);
        }
    }

    /// Whether no sector of the flash is where two logical ones are.
    pub(super) fn has_unique_locations(&self) -> bool {
        let words = self.l2p_entries.iter().filter_map(|w| w.checked_sub(1));
        let pages = self.page_queue.iter().map(|(psn, _)| *psn);
        let copies = self.copies.iter().filter(|(lba, _)| *lba < self.plan.logical);
        let mut named = BTreeSet::new();
        words.chain(pages).chain(copies.map(|(_, copy)| copy.psn)).all(|psn| named.insert(psn))
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
        names.record(&shape, 8, Some(5));
        names.record(&shape, 9, None);
        assert!(!names.has_other_lba(&shape, 8, 5) && names.has_other_lba(&shape, 8, 6));
        assert!(names.has_other_lba(&shape, 9, 5), "padding");
        assert!(!names.has_other_lba(&shape, 10, 5), "not read");
        assert!(!names.has_other_lba(&shape, 16, 5), "a chunk that was not looked at");
    }
}
