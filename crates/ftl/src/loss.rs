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

use crate::lines::{LineState, NONE};
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
                self.checkpoint.touch(page);
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
            if psn != NONE && self.shape.pu_of(self.shape.chunk_of(psn)) == pu {
                self.checkpoint.touch(page);
                any = true;
            }
        }
        any
    }

    /// A user's read of these sectors has failed somewhere.
    #[cold]
    pub(crate) fn read_failed(&mut self, lba: u32, sectors: u32) {
        for lba in lba..lba + sectors {
            if let Location::Flash(psn) = self.map.get(lba) {
                self.note_loss(self.shape.chunk_of(psn));
            }
        }
    }

    /// A sector that cannot be read is to be moved: if it is a page of the map, what it should say is in
    /// memory, and goes into the slot instead. Returns whether it is one.
    #[cold]
    pub(crate) fn restore_page(&mut self, lba: u32, slot: u32, flash: &mut impl Flash) -> bool {
        let Some(page) = lba.checked_sub(self.layout.logical) else { return false };
        if flash.keeps_data() {
            flash.store(slot, &self.map_page(page));
        }
        true
    }

    /// Whether requests for durability must not end yet.
    #[inline]
    pub(crate) fn holds_flushes(&self) -> bool {
        self.checkpoint.is_uncovered() || self.refresher.rescuing > 0
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
