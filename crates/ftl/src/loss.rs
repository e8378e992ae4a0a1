//! Losses: sectors of which nothing can be read any more, and that must not read as something else
//! after a power cut.
//!
//! What is beside a sector is lost with it: recovery cannot know that there was a copy, and would take
//! the one before it, or none. So when reads begin to fail, or a chunk goes offline, where a unit may
//! be newer than the last checkpoint, a checkpoint is begun at once: its map pages say where the
//! newest copies are, readable or not. Guarantee: no flush ends after that before the checkpoint is
//! durable, nor before what could be [written again](Ftl::retire) is; a flush hurries both.
//!
//! Nothing to do where the drive keeps the map: it does not forget.

use nvme::Status;

use crate::ftl::USER;
use crate::lines::{LOST, LineState, NONE};
use crate::{Flash, Ftl, Location};

impl Ftl {
    /// Something in a chunk cannot be read.
    #[cold]
    pub(crate) fn note_loss(&mut self, chunk: u32) {
        let line = self.lines.line_of[chunk as usize];
        if self.drive_map.is_some() || line == NONE {
            return;
        }
        let suspect = std::mem::replace(&mut self.lines.chunks[chunk as usize].suspect, true);
        let mut pages = !suspect && self.rewrite_pages_of(chunk);
        let pu = self.shape.pu_of(chunk) as usize;
        if !std::mem::replace(&mut self.suspect_pus[pu], true) {
            // Perhaps the first that is seen of a die's end.
            pages |= self.rewrite_pages_on(pu as u32);
        }
        let l = &self.lines.lines[line as usize];
        let newest = if l.state == LineState::Open { u64::MAX } else { l.newest };
        if self.checkpoint.misses(if pages { u64::MAX } else { newest }) {
            self.checkpoint.note_loss();
            self.stats.loss_checkpoints += 1;
        }
    }

    /// Map pages that are on a chunk are to be written again: what they say is in memory. Returns whether
    /// there are any.
    fn rewrite_pages_of(&mut self, chunk: u32) -> bool {
        let first = self.shape.first_psn(chunk);
        let mut any = false;
        for psn in first..first + self.lines.chunks[chunk as usize].persisted {
            let page = self.reverse.get(psn).and_then(|lba| lba.checked_sub(self.layout.logical));
            if let Some(page) = page
                && self.map.points_at(self.layout.logical + page, psn)
            {
                self.rewrite_page(page);
                any = true;
            }
        }
        any | self.doubt_pages_of(chunk)
    }

    /// Has the pages of a map in frames that are on a chunk, and in none, brought into frames and written
    /// elsewhere; returns whether there are any.
    fn doubt_pages_of(&mut self, chunk: u32) -> bool {
        let first = self.shape.first_psn(chunk);
        let mut any = false;
        for page in 0..self.layout.meta {
            if self.map.has_page(page) {
                continue;
            }
            if let Location::Flash(psn) = self.map.get(self.layout.logical + page)
                && (first..first + self.shape.sectors).contains(&psn)
            {
                self.salvage.doubt(page);
                any = true;
            }
        }
        any
    }

    /// The same for a parallel unit.
    fn rewrite_pages_on(&mut self, pu: u32) -> bool {
        let mut any = false;
        for page in 0..self.layout.meta {
            let (psn, _) = self.newest_on_media(self.map.get(self.layout.logical + page));
            if psn < LOST && self.shape.pu_of(self.shape.chunk_of(psn)) == pu {
                self.rewrite_page(page);
                any = true;
            }
        }
        any
    }

    /// A page is to be written again, if what it says is in memory. One that is not in a frame cannot be
    /// now: the checkpoint says where it is, so that it is not the page before that is found.
    fn rewrite_page(&mut self, page: u32) {
        if self.map.has_page(page) {
            self.checkpoint.touch(page);
        }
    }

    /// A user's read of these sectors has failed somewhere.
    ///
    /// Of a page of the map that has left its frame meanwhile it is not known where. What is in such a
    /// page was all on the media when it was written last, and it says where; a flush that begins from
    /// now on waits for that. Unless it was not looked at since the recovery: then the copies that are
    /// newer than the page are found again after the next, or not.
    #[cold]
    pub(crate) fn read_failed(&mut self, lba: u32, sectors: u32) {
        let mut unknown = false;
        for lba in lba..lba + sectors {
            let page = self.shape.map_page_of(lba);
            if !self.map.has_page(page) {
                unknown |= self.counting.is_uncounted(page);
            } else if let Location::Flash(psn) = self.map.get(lba) {
                self.note_loss(self.shape.chunk_of(psn));
            }
        }
        if unknown && self.checkpoint.misses(u64::MAX) {
            self.checkpoint.note_loss();
            self.stats.loss_checkpoints += 1;
        }
    }

    /// A sector that cannot be read is to be moved: if it is a page of the map, what it should say may be
    /// in memory, and goes into the slot instead. Returns whether it does.
    #[cold]
    pub(crate) fn restore_page(&mut self, lba: u32, slot: u32, flash: &mut impl Flash) -> bool {
        let Some(page) = lba.checked_sub(self.layout.logical) else { return false };
        if !self.map.has_page(page) {
            return false;
        }
        if flash.keeps_data() {
            let mut bytes = std::mem::take(&mut self.paging.made);
            self.map_page(page, self.issued.low(), &mut bytes);
            flash.store(slot, &bytes);
            self.paging.made = bytes;
        }
        true
    }

    /// Whether requests for durability must not end yet.
    #[inline]
    pub(crate) fn holds_flushes(&self) -> bool {
        self.checkpoint.is_uncovered() || self.again.holds(self.rings[USER].durable())
    }

    /// A request for durability has what it needs: it ends, or waits for what is lost to be known.
    #[inline]
    pub(crate) fn complete_durably(&mut self, tag: u64) {
        if self.holds_flushes() {
            self.held.push_back(tag);
            self.urgent += 1;
        } else {
            self.complete(tag, Status::SUCCESS);
        }
    }

    /// Ends the requests that were held, if nothing holds them any more.
    pub(crate) fn release_held(&mut self) {
        if !self.held.is_empty() && !self.holds_flushes() {
            self.end_held(Status::SUCCESS);
        }
    }

    /// Ends the requests that were held.
    pub(crate) fn end_held(&mut self, status: Status) {
        while let Some(tag) = self.held.pop_front() {
            self.urgent -= 1;
            self.complete(tag, status);
        }
    }
}
