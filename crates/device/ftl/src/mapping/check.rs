//! Invariants of the maps alone.

use super::Mapping;
use super::translation_page::TranslationPage;
use crate::L2pEntry;
use crate::check::{Subject, Violation, require, require_eq};
use crate::env::Env;
use crate::space::lines::NONE;

impl Mapping {
    /// Checks the map against itself: what is mapped is counted, mapped once, and in the P2L; pages are in
    /// frames or on their way.
    pub(crate) fn check_invariants(&self, env: &Env) -> Result<(), Violation> {
        let shown = self.fetches.check(&self.l2p)?;
        require_eq!(
            Mapping,
            "the scratch frame is unmapped between calls",
            Subject::Part,
            NONE,
            shown
        );
        let mut sectors = vec![0u64; (env.geometry.total_sectors() as usize).div_ceil(64)];
        let mut mapped = 0;
        for lba in self.resident_sectors(env) {
            let at = self.l2p.get(lba);
            mapped += u64::from(at != L2pEntry::Unmapped);
            let L2pEntry::Flash(psn) = at else { continue };
            let (word, bit) = (&mut sectors[psn as usize / 64], 1 << (psn % 64));
            let subject = Subject::Sector(psn);
            require!(*word & bit == 0, Mapping, "a physical sector is mapped once", subject, 1, 2);
            *word |= bit;
            if self.p2l.is_in_memory() {
                let found = self.p2l.get(psn);
                require!(
                    found == Some(lba),
                    Mapping,
                    "P2L agrees with L2P",
                    subject,
                    lba,
                    found.map_or_else(|| "none".to_string(), |lba| lba.to_string())
                );
            }
        }
        let counted = self.l2p.mapped();
        // A page that is not in memory was counted when it was.
        require!(
            mapped == counted || self.is_cached() && mapped < counted,
            Mapping,
            "mapped sectors",
            Subject::Part,
            mapped,
            counted
        );
        if let Some(frames) = self.l2p.frames() {
            frames.check()?;
        }
        for page in self.page_rebuild.jobs() {
            require!(
                !self.l2p.is_page_resident(page),
                Mapping,
                "a page that is rebuilt is in no frame",
                Subject::Page(page),
                "no frame",
                "a frame"
            );
        }
        Ok(())
    }

    /// Logical sectors whose entries are in memory, those of the translation pages themselves included.
    pub(crate) fn resident_sectors(&self, env: &Env) -> impl Iterator<Item = u32> {
        let (logical, pages) = (env.plan.logical, env.plan.map_pages);
        let per_page = TranslationPage::entries_per_page(&env.geometry);
        (0..pages)
            .filter(|page| self.l2p.is_page_resident(*page))
            .flat_map(move |page| page * per_page..((page + 1) * per_page).min(logical))
            .chain(logical..logical + pages)
    }

    /// Resident pages and the pins of each, and pages that are pinned for the head of the write queue and
    /// for garbage collection, once per pin.
    pub(crate) fn pins(&self) -> (Vec<(u32, u32)>, Vec<u32>) {
        let resident = self.l2p.frames().map(|frames| frames.resident_pins().collect());
        (resident.unwrap_or_default(), self.pager.pinned_pages().collect())
    }

    /// Counts a mapped sector that is not there.
    #[cfg(test)]
    pub(crate) fn break_mapped(&mut self) {
        self.l2p.count_mapped();
    }

    /// Changes an entry of the L2P, and nothing else.
    #[cfg(test)]
    pub(crate) fn break_entry(&mut self, lba: u32, to: L2pEntry) {
        self.l2p.set(lba, to);
    }
}
