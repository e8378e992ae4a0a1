//! The pages of the map, which say where everything is that no newer copy was found of.

use super::op::RecoveryOpPurpose;
use super::{NewestCopies, OPS_PER_BATCH_MAX, ObservedLbas, Phase, Recovery, RecoveryOp};
use crate::mapping::translation_page::TranslationPage;
use crate::space::lines::LOST;

impl Recovery {
    /// Where the current pages of the map are.
    pub(super) fn find_pages(&mut self) {
        let logical = self.plan.logical;
        let known = self.snapshot.as_ref().map(|s| s.pages.clone()).unwrap_or_default();
        (self.page_queue, self.lost_pages) = (Vec::new(), Vec::new());
        for page in 0..self.plan.map_pages {
            let from_snapshot = || known.get(page as usize)?.checked_sub(1);
            let newest = self.copies.get(logical + page).map(|c| c.psn);
            let base = if self.full_scan { None } else { from_snapshot() };
            // A copy is erased when a newer one is on the media: if that is not found, it is lost.
            let stale = |psn| {
                psn == LOST || self.observations.is_stale(&self.geometry, logical + page, psn)
            };
            match (newest, base) {
                (Some(psn), _) => self.page_queue.push((psn, page)),
                (None, Some(psn)) if stale(psn) => self.lost_pages.push(page),
                (None, Some(psn)) => self.page_queue.push((psn, page)),
                (None, None) => {}
            }
        }
    }

    pub(super) fn page_ops(&mut self, jobs: &mut Vec<RecoveryOp>) {
        while jobs.len() < OPS_PER_BATCH_MAX {
            let Some(&(psn, number)) = self.page_queue.get(self.cursor.0) else { break };
            jobs.push(RecoveryOp::read(RecoveryOpPurpose::Page { page: number }, psn, 1, true));
            self.cursor.0 += 1;
        }
        if jobs.is_empty() {
            self.phase = Phase::Done;
        }
    }

    pub(super) fn import_page(&mut self, number: u32, bytes: Option<&[u8]>) {
        let page = bytes.and_then(|b| TranslationPage::decode(&self.geometry, number, b));
        let Some(page) = page else {
            // Without it, what is in it must be found the long way.
            if !self.full_scan {
                self.restart_full_scan();
            }
            return;
        };
        let count = TranslationPage::entries_per_page(&self.geometry);
        let first = number * count;
        for (i, lba) in (0..count).zip(first..self.plan.logical) {
            let mapped = page.get(i);
            let copy = self.copies.get(lba);
            if copy.is_some_and(|c| c.sequence >= page.base_seq) {
                continue;
            }
            // When everything was read, a page takes back what was trimmed, and knows of what could
            // not be read; what else it says was found.
            let known = !self.full_scan
                || mapped
                    .psn
                    .is_some_and(|psn| self.observations.is_unreadable(&self.geometry, psn));
            if known || mapped.psn.is_none() {
                self.copies.remove(lba);
                if mapped
                    .psn
                    .is_some_and(|psn| self.observations.is_stale(&self.geometry, lba, psn))
                {
                    self.mark_lost(lba);
                    continue;
                }
                self.l2p_entries[lba as usize] = mapped.psn.map_or(0, |psn| psn + 1);
                if mapped.poison {
                    self.poison.push(lba);
                }
            } else if mapped
                .psn
                .is_some_and(|psn| self.observations.is_stale(&self.geometry, lba, psn))
            {
                self.copies.remove(lba);
                self.mark_lost(lba);
            } else {
                let found = copy.map(|c| c.psn);
                self.stats.map_mismatches += u64::from(found != mapped.psn);
            }
        }
    }

    /// Reads everything.
    pub(super) fn restart_full_scan(&mut self) {
        self.full_scan = true;
        self.stats.from_checkpoint = false;
        self.copies = NewestCopies::default();
        self.observations.observed_lbas = ObservedLbas::default();
        self.lost.clear();
        self.observations.unreadable.clear();
        self.l2p_entries.fill(0);
        self.poison.clear();
        self.lost_pages.clear();
        self.probed_to.fill(0);
        self.start_full_scan();
    }
}
