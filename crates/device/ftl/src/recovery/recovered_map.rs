//! [`RecoveredMap`]: the locations of logical sectors, and the lost ones.

use std::collections::BTreeSet;

use nvme::PhysSector;

use super::named::NamedScan;
use super::pages::PageLocation;
use super::{NewestCopies, RecoveryStats, ScanObservations};
use crate::check::{Subject, Violation, require, require_eq};
use crate::env::Env;
use crate::ids::{Lba, MapPageId, ToIndex};
use crate::mapping::translation_page::TranslationPage;

/// The map during recovery: entries of translation pages, newer copies, and lost sectors.
///
/// Invariants: one entry per logical sector, or none with a map cache; a lost sector is mapped only to
/// the location that it is given at the end; no two sectors have the same location.
#[derive(Debug)]
pub(super) struct RecoveredMap {
    /// By logical sector, its physical sector plus 1; empty for a cached map.
    l2p_entries: Vec<u32>,
    /// Logical sectors whose data was lost before it could be relocated.
    poison: Vec<Lba>,
    /// Logical sectors whose latest version is lost.
    lost: Vec<Lba>,
    copies: NewestCopies,
    /// The sectors with names; empty if they have logical addresses.
    named: NamedScan,
}

/// The contents of a [`RecoveredMap`].
#[derive(Debug)]
pub(super) struct MapContents {
    pub(super) l2p_entries: Vec<u32>,
    pub(super) poison: Vec<Lba>,
    pub(super) lost: Vec<Lba>,
    pub(super) copies: NewestCopies,
    pub(super) named: NamedScan,
}

impl RecoveredMap {
    /// Creates an empty map.
    pub(super) fn new(env: &Env) -> RecoveredMap {
        RecoveredMap {
            l2p_entries: l2p_table(env),
            poison: Vec::new(),
            lost: Vec::new(),
            copies: NewestCopies::default(),
            named: NamedScan::default(),
        }
    }

    /// Adapts the empty map to the capacity that a snapshot has.
    pub(super) fn resize(&mut self, env: &Env) {
        self.l2p_entries = l2p_table(env);
    }

    /// Clears the map.
    pub(super) fn clear(&mut self) {
        self.copies = NewestCopies::default();
        self.lost.clear();
        self.l2p_entries.fill(0);
        self.poison.clear();
        self.named.forget_sectors();
    }

    /// The sectors with names, to add one.
    pub(super) fn named_mut(&mut self) -> &mut NamedScan {
        &mut self.named
    }

    /// The copies that were found.
    pub(super) fn copies(&self) -> &NewestCopies {
        &self.copies
    }

    /// The copies that were found, to add one.
    pub(super) fn copies_mut(&mut self) -> &mut NewestCopies {
        &mut self.copies
    }

    /// The physical sector of a logical one.
    pub(super) fn get(&self, lba: Lba) -> Option<PhysSector> {
        self.l2p_entries[lba.index()].checked_sub(1).map(PhysSector)
    }

    /// Maps a logical sector.
    pub(super) fn set(&mut self, lba: Lba, phys: PhysSector) {
        self.l2p_entries[lba.index()] = phys.get() + 1;
    }

    /// Records that the data of a logical sector was lost.
    pub(super) fn add_poison(&mut self, lba: Lba) {
        self.poison.push(lba);
    }

    /// Records that the latest version of a sector is lost.
    fn mark_lost(&mut self, lba: Lba, stats: &mut RecoveryStats) {
        stats.uncorrectable_sectors += 1;
        self.l2p_entries[lba.index()] = 0;
        self.lost.push(lba);
    }

    /// Imports the entries of a translation page for sectors without a newer copy.
    pub(super) fn import_page(
        &mut self,
        env: &Env,
        id: MapPageId,
        page: &TranslationPage<'_>,
        observations: &ScanObservations,
        full_scan: bool,
        stats: &mut RecoveryStats,
    ) {
        let geometry = &env.geometry;
        for (i, lba) in (0..).zip(env.sectors_of_page(id).iter()) {
            let mapped = page.get(i);
            let copy = self.copies.get(lba);
            if copy.is_some_and(|c| c.sequence >= page.base_seq) {
                continue;
            }
            let is_stale =
                mapped.phys.is_some_and(|phys| observations.is_stale(geometry, lba, phys));
            // After a full scan, a page's trims and unreadable sectors count; all other
            // copies were found.
            let is_unreadable = |phys| observations.is_unreadable(geometry, phys);
            let known = !full_scan || mapped.phys.is_some_and(is_unreadable);
            if known || mapped.phys.is_none() {
                self.copies.remove(lba);
                if is_stale {
                    self.mark_lost(lba, stats);
                    continue;
                }
                self.l2p_entries[lba.index()] = mapped.phys.map_or(0, |phys| phys.get() + 1);
                if mapped.poison {
                    self.poison.push(lba);
                }
            } else if is_stale {
                self.copies.remove(lba);
                self.mark_lost(lba, stats);
            } else {
                let found = copy.map(|c| c.phys);
                stats.map_mismatches += u64::from(found != mapped.phys);
            }
        }
    }

    /// Maps each lost sector to an unreadable location where it may have been: one of `places` that
    /// no other sector and no page has.
    pub(super) fn assign_lost_locations(
        &mut self,
        pages: &[PageLocation],
        places: impl Iterator<Item = PhysSector>,
    ) {
        if self.lost.is_empty() {
            return;
        }
        let mut named: BTreeSet<PhysSector> =
            self.l2p_entries.iter().filter_map(|w| w.checked_sub(1).map(PhysSector)).collect();
        // Locations of pages are excluded; they may have been unreadable, too.
        named.extend(pages.iter().map(|page| page.phys));
        // Every lost sector had a location, so there are enough.
        for (&lba, phys) in self.lost.iter().zip(places.filter(|phys| !named.contains(phys))) {
            self.l2p_entries[lba.index()] = phys.get() + 1;
            self.poison.push(lba);
        }
    }

    /// Checks the number of entries, and that no two sectors have the same location.
    pub(super) fn check_invariants(
        &self,
        env: &Env,
        pages: &[PageLocation],
    ) -> Result<(), Violation> {
        let words = l2p_table(env).len();
        require_eq!(
            Recovery,
            "a word per logical sector",
            Subject::Part,
            words,
            self.l2p_entries.len()
        );
        let words = self.l2p_entries.iter().filter_map(|w| w.checked_sub(1).map(PhysSector));
        let pages = pages.iter().map(|page| page.phys);
        let copies = self.copies.iter().filter(|(lba, _)| *lba < env.plan.host_end());
        let mut named = BTreeSet::new();
        for phys in words.chain(pages).chain(copies.map(|(_, copy)| copy.phys)) {
            require!(
                named.insert(phys),
                Recovery,
                "a physical sector is mapped once",
                Subject::Sector(phys),
                "one sector",
                "two"
            );
        }
        Ok(())
    }

    /// The contents.
    pub(super) fn into_contents(self) -> MapContents {
        let RecoveredMap { l2p_entries, poison, lost, copies, named } = self;
        MapContents { l2p_entries, poison, lost, copies, named }
    }

    /// Breaks an invariant: maps two sectors to one location.
    #[cfg(test)]
    pub(super) fn break_locations(&mut self) {
        (self.l2p_entries[0], self.l2p_entries[1]) = (1, 1);
    }

    /// Breaks an invariant: drops an entry.
    #[cfg(test)]
    pub(super) fn break_length(&mut self) {
        self.l2p_entries.pop();
    }
}

/// Returns one entry per logical sector that the host can address, for a map in memory.
fn l2p_table(env: &Env) -> Vec<u32> {
    let sectors = if env.plan.map_cache.frames > 0 { 0 } else { env.plan.addressable };
    vec![0; sectors.index()]
}
