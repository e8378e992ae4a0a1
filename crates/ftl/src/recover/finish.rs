//! What was found becomes a layer.

use std::collections::BTreeSet;

use super::{Found, Phase, Recovery, RecoveryError, Sightings};
use crate::checkpoint::Checkpoint;
use crate::counting::Counting;
use crate::drive_map::DriveMap;
use crate::issued::Issued;
use crate::map_page::MapPage;
use crate::{Ftl, Location, NewFtlError};

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
        self.place_lost();
        debug_assert!(self.names_places_once(), "two sectors in one place");
        let ftl = Ftl::empty(self.shape, self.config, self.layout, journal);
        let mut ftl = ftl.map_err(NewFtlError::from)?;
        let base = self.base().max(1);
        let oldest = self.lines.iter().map(|l| l.newest).filter(|n| *n != u64::MAX);
        let next = match self.first_number() {
            Some(next) => next,
            None => self.copies.next().max(base).max(oldest.max().unwrap_or(0) + 1),
        };
        ftl.issued = Issued::from(next);
        ftl.checkpoint = Checkpoint::new(&self.layout, &self.config, base.min(next));
        self.fill_map(&mut ftl);
        if self.layout.map_frames > 0 {
            self.leave_pages(&mut ftl);
        }
        self.adopt_lines(&mut ftl);
        self.record_lost(&mut ftl);
        if self.given.is_some() {
            let map = DriveMap::new(&ftl.shape, &ftl.layout, next, &self.poison);
            ftl.drive_map = Some(Box::new(map));
            ftl.want_compaction();
        } else if self.all {
            // What there is of a journal does not say what was found.
            ftl.want_compaction();
            ftl.checkpoint();
        }
        Ok(ftl)
    }

    /// Leaves the map's pages on the media, and to the layer what is newer than they are.
    fn leave_pages(&mut self, ftl: &mut Ftl) {
        let (logical, count) = (self.layout.logical, MapPage::count(&self.shape));
        let copies = std::mem::take(&mut self.copies);
        let written = self.to_load.iter().map(|(_, page)| *page);
        let found = copies.iter().filter(|(lba, _)| *lba < logical).map(|(lba, _)| lba / count);
        let lost = self.lost_pages.iter().copied();
        let to_count: BTreeSet<u32> = written.chain(found).chain(lost).collect();
        let seen = Sightings {
            found: self.seen.found.clone(),
            names: std::mem::take(&mut self.seen.names),
            unreadable: std::mem::take(&mut self.seen.unreadable),
        };
        // Of a chunk in no line nobody knows what was in it, if the journal did not say what lines there are.
        let gone = |f: &Found| *f == Found::Bad;
        let blind = self.all && seen.found.iter().any(gone);
        ftl.salvage.begin(seen.unreadable.clone(), ftl.issued.next(), blind);
        let pages = to_count.into_iter();
        ftl.counting = Counting::new(self.layout.meta, pages, copies, self.all, seen);
        ftl.lines.counting = ftl.counting.is_counting();
    }

    fn fill_map(&self, ftl: &mut Ftl) {
        let logical = self.layout.logical;
        for (lba, word) in (0..).zip(&self.words) {
            if let Some(psn) = word.checked_sub(1) {
                ftl.map.set(lba, Location::Flash(psn));
                ftl.reverse.set(psn, Some(lba), false);
            }
        }
        for &lba in &self.poison {
            match ftl.map.get(lba) {
                Location::Flash(psn) => ftl.reverse.set(psn, Some(lba), true),
                Location::Unmapped => {
                    ftl.map.set(lba, Location::Lost);
                }
                Location::Buffer(_) | Location::Lost => {}
            }
        }
        for &(psn, page) in &self.to_load {
            ftl.map.set(logical + page, Location::Flash(psn));
            ftl.reverse.set(psn, Some(logical + page), false);
        }
        for &page in &self.lost_pages {
            ftl.map.set(logical + page, Location::Lost);
        }
        if self.layout.map_frames > 0 {
            return;
        }
        for (lba, copy) in self.copies.iter().filter(|(lba, _)| *lba < logical) {
            ftl.map.set(lba, Location::Flash(copy.psn));
            ftl.reverse.set(copy.psn, Some(lba), copy.poison);
            ftl.touch_page_of(lba);
        }
    }
}
