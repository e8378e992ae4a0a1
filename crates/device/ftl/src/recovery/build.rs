//! What was found becomes a layer.

use std::collections::BTreeSet;

use super::{ChunkReport, Phase, Recovery, RecoveryError, ScanObservations};
use crate::durability::Durability;
use crate::durability::device_l2p::DeviceL2p;
use crate::env::Env;
use crate::mapping::reconcile::Reconcile;
use crate::mapping::translation_page::TranslationPage;
use crate::{Ftl, L2pEntry, NewFtlError};

impl Recovery {
    /// The layer as it was, less what was not durable. If too many chunks went bad, it can be read
    /// and trimmed, and writes fail with [`Status::CAPACITY_EXCEEDED`](nvme::Status::CAPACITY_EXCEEDED).
    ///
    /// # Errors
    /// [`RecoveryError`].
    pub fn finish(mut self) -> Result<Ftl, RecoveryError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let (Some(journal), Phase::Done) = (self.journal.take(), &self.phase) else {
            return Err(RecoveryError::Unfinished);
        };
        self.assign_lost_locations();
        debug_assert!(self.has_unique_locations(), "two sectors in one place");
        let base = self.base_seq().max(1);
        let oldest = self.lines.iter().map(|l| l.max_seq).filter(|n| *n != u64::MAX);
        let next = match self.first_free_seq() {
            Some(next) => next,
            None => self.copies.next_seq().max(base).max(oldest.max().unwrap_or(0) + 1),
        };
        let env = Env { geometry: self.geometry, config: self.config, plan: self.plan };
        let device_l2p = self.device_l2p.is_some();
        let device_l2p =
            device_l2p.then(|| DeviceL2p::new(&env.geometry, &env.plan, next, &self.poison));
        let durability = Durability::new(&env, journal, base.min(next), device_l2p);
        let mut ftl = Ftl::empty(env, durability, next).map_err(NewFtlError::from)?;
        self.fill_map(&mut ftl);
        if self.plan.map_frames > 0 {
            self.defer_map_pages(&mut ftl);
        }
        self.build_lines(&mut ftl);
        self.record_lost(&mut ftl);
        if self.device_l2p.is_some() {
            ftl.durability.request_snapshot();
        } else if self.full_scan {
            // What there is of a journal does not say what was found.
            ftl.durability.request_snapshot();
            ftl.checkpoint();
        }
        Ok(ftl)
    }

    /// Leaves the map's pages on the media, and to the layer what is newer than they are.
    fn defer_map_pages(&mut self, ftl: &mut Ftl) {
        let (logical, count) =
            (self.plan.logical, TranslationPage::entries_per_page(&self.geometry));
        let copies = std::mem::take(&mut self.copies);
        let written = self.page_queue.iter().map(|(_, page)| *page);
        let found = copies.iter().filter(|(lba, _)| *lba < logical).map(|(lba, _)| lba / count);
        let lost = self.lost_pages.iter().copied();
        let to_count: BTreeSet<u32> = written.chain(found).chain(lost).collect();
        let seen = ScanObservations {
            chunk_reports: self.observations.chunk_reports.clone(),
            observed_lbas: std::mem::take(&mut self.observations.observed_lbas),
            unreadable: std::mem::take(&mut self.observations.unreadable),
        };
        // Of a chunk in no line nobody knows what was in it, if the journal did not say what lines there are.
        let gone = |f: &ChunkReport| *f == ChunkReport::Bad;
        let blind = self.full_scan && seen.chunk_reports.iter().any(gone);
        let (next, unreadable) = (ftl.buffer.next_seq(), seen.unreadable.clone());
        let pages = to_count.into_iter();
        let reconcile = Reconcile::new(self.plan.map_pages, pages, copies, self.full_scan, seen);
        ftl.mapping.import_recovery(reconcile, unreadable, next, blind);
        ftl.space.table_to_restore().reconciling = ftl.mapping.reconcile().is_running();
    }

    fn fill_map(&self, ftl: &mut Ftl) {
        let logical = self.plan.logical;
        for (lba, word) in (0..).zip(&self.l2p_entries) {
            if let Some(psn) = word.checked_sub(1) {
                ftl.mapping.set(lba, L2pEntry::Flash(psn));
                ftl.mapping.record_found(psn, lba, false);
            }
        }
        for &lba in &self.poison {
            match ftl.mapping.get(lba) {
                L2pEntry::Flash(psn) => ftl.mapping.record_found(psn, lba, true),
                L2pEntry::Unmapped => {
                    ftl.mapping.set(lba, L2pEntry::Lost);
                }
                L2pEntry::Buffer(_) | L2pEntry::Lost => {}
            }
        }
        for &(psn, page) in &self.page_queue {
            ftl.mapping.set(logical + page, L2pEntry::Flash(psn));
            ftl.mapping.record_found(psn, logical + page, false);
        }
        for &page in &self.lost_pages {
            ftl.mapping.set(logical + page, L2pEntry::Lost);
        }
        if self.plan.map_frames > 0 {
            return;
        }
        for (lba, copy) in self.copies.iter().filter(|(lba, _)| *lba < logical) {
            ftl.mapping.set(lba, L2pEntry::Flash(copy.psn));
            ftl.mapping.record_found(copy.psn, lba, copy.poison);
            ftl.durability.mark_sector_dirty(&ftl.env, lba);
        }
    }
}
