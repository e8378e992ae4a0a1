//! The pages of the map, which say where everything is that no newer copy was found of.

use super::job::JobKind;
use super::{BATCH, Copies, Job, Names, Phase, Recovery};
use crate::lines::LOST;
use crate::map_page::MapPage;

impl Recovery {
    /// Where the current pages of the map are.
    pub(super) fn find_pages(&mut self) {
        let logical = self.layout.logical;
        let known = self.snapshot.as_ref().map(|s| s.pages.clone()).unwrap_or_default();
        (self.to_load, self.lost_pages) = (Vec::new(), Vec::new());
        for page in 0..self.layout.meta {
            let from_snapshot = || known.get(page as usize)?.checked_sub(1);
            let newest = self.copies.get(logical + page).map(|c| c.psn);
            let base = if self.all { None } else { from_snapshot() };
            // A copy is erased when a newer one is on the media: if that is not found, it is lost.
            let stale = |psn| psn == LOST || self.seen.is_stale(&self.shape, logical + page, psn);
            match (newest, base) {
                (Some(psn), _) => self.to_load.push((psn, page)),
                (None, Some(psn)) if stale(psn) => self.lost_pages.push(page),
                (None, Some(psn)) => self.to_load.push((psn, page)),
                (None, None) => {}
            }
        }
    }

    pub(super) fn page_jobs(&mut self, jobs: &mut Vec<Job>) {
        while jobs.len() < BATCH {
            let Some(&(psn, number)) = self.to_load.get(self.cursor.0) else { break };
            jobs.push(Job::read(JobKind::Page { number }, psn, 1, true));
            self.cursor.0 += 1;
        }
        if jobs.is_empty() {
            self.phase = Phase::Done;
        }
    }

    pub(super) fn page(&mut self, number: u32, bytes: Option<&[u8]>) {
        let page = bytes.and_then(|b| MapPage::decode(&self.shape, number, b));
        let Some(page) = page else {
            // Without it, what is in it must be found the long way.
            if !self.all {
                self.start_over();
            }
            return;
        };
        let count = MapPage::count(&self.shape);
        let first = number * count;
        for (i, lba) in (0..count).zip(first..self.layout.logical) {
            let mapped = page.get(i);
            let copy = self.copies.get(lba);
            if copy.is_some_and(|c| c.sequence >= page.low) {
                continue;
            }
            // When everything was read, a page takes back what was trimmed, and knows of what could
            // not be read; what else it says was found.
            let known =
                !self.all || mapped.psn.is_some_and(|psn| self.seen.cannot_look(&self.shape, psn));
            if known || mapped.psn.is_none() {
                self.copies.forget(lba);
                if mapped.psn.is_some_and(|psn| self.seen.is_stale(&self.shape, lba, psn)) {
                    self.lose(lba);
                    continue;
                }
                self.words[lba as usize] = mapped.psn.map_or(0, |psn| psn + 1);
                if mapped.poison {
                    self.poison.push(lba);
                }
            } else if mapped.psn.is_some_and(|psn| self.seen.is_stale(&self.shape, lba, psn)) {
                self.copies.forget(lba);
                self.lose(lba);
            } else {
                let found = copy.map(|c| c.psn);
                self.stats.contradictions += u64::from(found != mapped.psn);
            }
        }
    }

    /// Reads everything.
    pub(super) fn start_over(&mut self) {
        self.all = true;
        self.stats.from_checkpoint = false;
        self.copies = Copies::default();
        self.seen.names = Names::default();
        self.lost.clear();
        self.seen.unreadable.clear();
        self.words.fill(0);
        self.poison.clear();
        self.lost_pages.clear();
        self.looked_at.fill(0);
        self.read_everything();
    }
}
