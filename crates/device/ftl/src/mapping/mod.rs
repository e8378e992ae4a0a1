//! The maps: logical to physical (L2P), physical to logical (P2L), and translation pages on flash.

pub(crate) mod cache;
mod check;
pub(crate) mod l2p;
pub(crate) mod named;
pub(crate) mod p2l;
pub(crate) mod p2l_reader;
pub(crate) mod reconcile;
pub(crate) mod translation_page;

use std::collections::BTreeSet;
use std::io;

use crate::ids::{Lba, MapPageId, SlotId, WriteSeq};

use nvme::PhysSector;
use serde::{Deserialize, Serialize};

use crate::check::Violation;
use crate::env::Env;
use crate::{FlashGeometry, L2pEntry, MapCacheStats, P2lLocation};
use cache::fetch::PageFetches;
use cache::frames::Frames;
use cache::map_cache::MapPager;
use cache::rebuild::PageRebuild;
use l2p::L2p;
use named::NamedSectors;
use p2l::{P2l, WrittenSector};
use reconcile::Reconcile;

/// The maps, and the cache of translation pages.
///
/// Invariants: a physical sector is mapped once; a P2L in memory agrees with the L2P; a translation page
/// is in a frame, being fetched, or being rebuilt, and only one of these.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mapping {
    l2p: L2p,
    p2l: P2l,
    /// Fetches of translation pages from flash.
    fetches: PageFetches,
    pager: MapPager,
    page_rebuild: PageRebuild,
    /// Translation pages that have not been reconciled with what a recovery found.
    reconcile: Reconcile,
    /// Present if sectors have names. Then no sector is in the L2P or the P2L.
    named: Option<Box<NamedSectors>>,
}

impl Mapping {
    /// Creates empty maps; translation pages are read into slots from `first_slot` on.
    ///
    /// # Errors
    /// The error of `mmap(2)`.
    pub(crate) fn new(env: &Env, first_slot: SlotId) -> io::Result<Mapping> {
        let Env { geometry, config, plan, .. } = env;
        let named = NamedSectors::new(env).map(Box::new);
        let l2p = match plan.map_cache.frames {
            // An entry in the write buffer has a logical sector that is never mapped.
            0 if named.is_some() => L2p::new(1)?,
            0 => L2p::new(plan.logical + plan.map_pages)?,
            n => L2p::with_frames(Frames::new(geometry, plan.logical, plan.map_pages, n))?,
        };
        let is_cached = plan.map_cache.frames > 0;
        let p2l_location = match named {
            Some(_) => P2lLocation::Media,
            None => config.p2l_location,
        };
        Ok(Mapping {
            l2p,
            p2l: P2l::new(geometry.total_sectors(), p2l_location, is_cached)?,
            fetches: PageFetches::new(geometry, plan, first_slot),
            pager: MapPager::new(geometry),
            page_rebuild: PageRebuild::default(),
            reconcile: Reconcile::default(),
            named,
        })
    }

    /// Imports the state that a recovery leaves to be reconciled: pages, and sectors that it could
    /// not read. `next_seq` is the next sequence number; `blind` says that chunks may hold sectors
    /// that no metadata describes.
    pub(crate) fn import_recovery(
        &mut self,
        reconcile: Reconcile,
        unreadable: BTreeSet<PhysSector>,
        next_seq: WriteSeq,
        blind: bool,
    ) {
        self.page_rebuild.import_recovery(unreadable, next_seq, blind);
        self.reconcile = reconcile;
    }

    /// Whether sectors have names.
    #[inline]
    pub(crate) fn is_named(&self) -> bool {
        self.named.is_some()
    }

    /// The valid sectors and their names, if sectors have names.
    #[inline]
    pub(crate) fn named(&self) -> Option<&NamedSectors> {
        self.named.as_deref()
    }

    /// The valid sectors and their names, to be changed.
    #[inline]
    pub(crate) fn named_mut(&mut self) -> Option<&mut NamedSectors> {
        self.named.as_deref_mut()
    }

    /// Whether only a part of the L2P is in memory, in frames.
    #[inline]
    pub(crate) fn is_cached(&self) -> bool {
        self.l2p.frames().is_some()
    }

    /// The frames of the map cache, if the L2P is not all in memory.
    #[inline]
    pub(crate) fn frames(&self) -> Option<&Frames> {
        self.l2p.frames()
    }

    /// The location of a logical sector, whose page must be in memory.
    #[inline]
    pub(crate) fn get(&self, lba: Lba) -> L2pEntry {
        self.l2p.get(lba)
    }

    /// Whether a logical sector is at this location.
    #[inline]
    pub(crate) fn is_at(&self, lba: Lba, place: L2pEntry) -> bool {
        self.l2p.is_at(lba, place)
    }

    /// Whether a logical sector is at this physical sector.
    #[inline]
    pub(crate) fn is_mapped_to(&self, lba: Lba, phys: PhysSector) -> bool {
        self.l2p.is_mapped_to(lba, phys)
    }

    /// Whether the entries of a translation page are in memory.
    #[inline]
    pub(crate) fn is_page_resident(&self, page: MapPageId) -> bool {
        self.l2p.is_page_resident(page)
    }

    /// Prefetches an entry; returns its physical sector, if it has one.
    #[inline]
    pub(crate) fn prefetch(&self, lba: Lba) -> Option<PhysSector> {
        self.l2p.prefetch(lba)
    }

    /// The raw entries of a run of logical sectors, 0 for unmapped ones; of a cached map, in one page.
    #[inline]
    pub(crate) fn raw_range(&self, first: Lba, count: u32) -> &[u32] {
        self.l2p.raw_range(first, count)
    }

    /// Returns the number of mapped sectors; with a map cache, an upper bound.
    pub(crate) fn mapped_sectors(&self, geometry: &FlashGeometry) -> u64 {
        let named = self.named.as_ref().map_or(0, |named| named.valid_count());
        named + self.l2p.mapped() + self.reconcile.pending_sectors_max(geometry)
    }

    /// Sets the location of a logical sector and returns the one before. The physical sector that it
    /// leaves is not valid any more.
    #[inline(always)]
    pub(crate) fn set(&mut self, lba: Lba, to: L2pEntry) -> L2pEntry {
        let old = self.l2p.set(lba, to);
        if let L2pEntry::Flash(phys) = old {
            self.p2l.invalidate(phys);
        }
        old
    }

    /// Moves a sector of a unit that has become readable from its slot to flash, unless it was
    /// overwritten or trimmed, and unpins its page.
    ///
    /// # Errors
    /// The location of the sector if it is not in that slot any more.
    #[inline]
    pub(crate) fn move_to_flash(
        &mut self,
        lba: Lba,
        slot: SlotId,
        phys: PhysSector,
    ) -> Result<(), L2pEntry> {
        let moved = self.l2p.compare_and_set(lba, L2pEntry::Buffer(slot), L2pEntry::Flash(phys));
        if moved.is_err() {
            self.p2l.invalidate(phys);
        }
        self.l2p.unpin(lba);
        moved
    }

    /// Pins the page of a logical sector that enters the write buffer.
    #[inline]
    pub(crate) fn pin(&mut self, lba: Lba) {
        self.l2p.pin(lba);
    }

    /// Unpins the page of a logical sector that leaves the write buffer.
    #[inline]
    pub(crate) fn unpin(&mut self, lba: Lba) {
        self.l2p.unpin(lba);
    }

    /// Returns whether the P2L is in memory; otherwise it is on flash.
    #[inline]
    pub(crate) fn has_p2l(&self) -> bool {
        self.p2l.is_in_memory()
    }

    /// The logical sector that was written at a physical one, if the P2L is in memory.
    #[inline]
    pub(crate) fn lba_at(&self, phys: PhysSector) -> Option<Lba> {
        self.p2l.get(phys)
    }

    /// Whether the data at a physical sector was lost before it came there.
    #[inline]
    pub(crate) fn is_poisoned(&self, phys: PhysSector) -> bool {
        self.p2l.is_poisoned(phys)
    }

    /// Records a sector that a recovery found at a physical sector.
    pub(crate) fn record_found(&mut self, phys: PhysSector, lba: Lba, poison: bool) {
        self.p2l.set(phys, Some(lba), poison);
    }

    /// Loads the entry of a physical sector, so that writes to it and its neighbors hit the cache.
    #[inline]
    pub(crate) fn prefetch_p2l(&self, phys: PhysSector) -> u32 {
        self.p2l.prefetch(phys)
    }

    /// Records the sectors of a unit that is programmed at `first`.
    #[inline]
    pub(crate) fn record_written(
        &mut self,
        first: PhysSector,
        sectors: impl ExactSizeIterator<Item = WrittenSector>,
    ) {
        self.p2l.set_run(first, sectors);
    }

    /// Records that `count` sectors from `first` on hold no data: padding, or a failed unit.
    pub(crate) fn record_nothing(&mut self, first: PhysSector, count: u32) {
        first.run(count).for_each(|phys| self.p2l.set(phys, None, false));
    }

    /// Records that a physical sector is not valid any more.
    pub(crate) fn invalidate(&mut self, phys: PhysSector) {
        self.p2l.invalidate(phys);
    }

    /// Translation pages that are being rebuilt.
    #[inline]
    pub(crate) fn page_rebuild(&self) -> &PageRebuild {
        &self.page_rebuild
    }

    /// Translation pages that are still to be reconciled.
    #[inline]
    pub(crate) fn reconcile(&self) -> &Reconcile {
        &self.reconcile
    }

    /// The memory of the map cache, or of the whole map.
    pub(crate) fn cache_stats(&self, env: &Env) -> MapCacheStats {
        match self.frames() {
            Some(f) => MapCacheStats {
                frames: f.len(),
                resident: f.resident(),
                resident_max: f.resident_max(),
                pinned: f.pinned(),
                bytes: f.bytes(),
            },
            None => {
                let pages = env.plan.map_pages;
                let bytes = 4 * u64::from(env.plan.logical + pages);
                MapCacheStats {
                    frames: pages,
                    resident: pages,
                    resident_max: pages,
                    pinned: pages,
                    bytes,
                }
            }
        }
    }

    /// The state of the translation pages, for a bug report.
    pub(crate) fn debug_state(&self) -> String {
        format!("fetches {:?}, {:?}, {:?}", self.fetches, self.pager, self.page_rebuild)
    }

    /// Checks the maps, the frames and the fetches; see `check`.
    pub(crate) fn check_invariants(&self, env: &Env) -> Result<(), Violation> {
        check::check(self, env)
    }

    /// Logical sectors whose entries are in memory, those of the translation pages themselves included.
    pub(crate) fn resident_sectors(&self, env: &Env) -> impl Iterator<Item = Lba> {
        env.plan
            .pages()
            .filter(|page| self.l2p.is_page_resident(*page))
            .flat_map(|page| env.sectors_of_page(page).iter())
            .chain(env.plan.pages().map(|page| env.plan.page_sector(page)))
    }

    /// Resident pages and the pins of each, and pages that are pinned for the head of the write queue and
    /// for garbage collection, once per pin.
    pub(crate) fn pins(&self) -> (Vec<(MapPageId, u32)>, Vec<MapPageId>) {
        let resident = self.l2p.frames().map(|frames| frames.resident_pins().collect());
        (resident.unwrap_or_default(), self.pager.pinned_pages().collect())
    }

    /// Breaks the count of mapped sectors.
    #[cfg(test)]
    pub(crate) fn break_mapped(&mut self) {
        self.l2p.count_mapped();
    }

    /// Breaks an entry of the L2P.
    #[cfg(test)]
    pub(crate) fn break_entry(&mut self, lba: Lba, to: L2pEntry) {
        self.l2p.set(lba, to);
    }
}
