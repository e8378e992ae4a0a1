//! Durability: who waits for it, padding for those in a hurry, and the map pages that a flush writes
//! (LightNVM paper section 4.2.1).

use clock::Nanos;
use tracepoint::Event;

use crate::durability::device_l2p::TrimSync;
use crate::ftl::HOST;
use crate::mapping::translation_page::{PageEntry, TranslationPage};
use crate::space::lines::{LOST, NONE};
use crate::{BufferEntry, FlashBackend, Ftl};

/// Who waits for durability.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BarrierOwner {
    /// A request.
    Host(u64),
    /// A drained line, which can be erased then. Nobody hurries for it.
    Erase(u32),
}

/// Somebody who waits for everything before a position of the user's ring to be durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Barrier {
    pub(crate) position: u64,
    pub(crate) owner: BarrierOwner,
    /// Trims among what came before: the map pages that say so are written next.
    pub(crate) trim_dep: TrimDep,
    /// Sectors trimmed before.
    pub(crate) trim_epoch: u64,
}

/// Whether somebody who waits needs map pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrimDep {
    /// No, or they have been written.
    None,
    /// Those of all trims before, as soon as the position is durable.
    All,
    /// The same, as soon as every unit with a smaller number is on the media: some may hold what was
    /// trimmed, and a page takes back only what is older than all that is under way.
    AfterSeq(u64),
}

impl Ftl {
    /// Makes everything that completed so far durable, trims included.
    pub fn flush(&mut self, now: Nanos, tag: u64, flash: &mut impl FlashBackend) {
        self.stats.flushes += 1;
        tracepoint::trace_at(now, || Event::FtlFlush { tag });
        self.add_barrier(BarrierOwner::Host(tag), TrimDep::All);
        self.complete_barriers(now, flash);
        self.kick(now, flash);
    }

    pub(crate) fn add_barrier(&mut self, waiter: BarrierOwner, trims: TrimDep) {
        let position = self.rings[HOST].head_pos();
        self.barriers.push_back(Barrier {
            position,
            owner: waiter,
            trim_dep: trims,
            trim_epoch: self.trim_epoch,
        });
        self.host_barriers += u32::from(matches!(waiter, BarrierOwner::Host(_)));
    }

    /// Completes what waits for durability as far as it is reached.
    pub(crate) fn complete_barriers(&mut self, now: Nanos, flash: &mut impl FlashBackend) {
        while let Some(&w) = self.barriers.front() {
            if w.position > self.rings[HOST].durable_pos() {
                break;
            }
            if w.trim_dep != TrimDep::None {
                // Of a drive's own map; what is to be told again is taken up when that is done.
                let begun = self.device_l2p.as_ref().is_some_and(|m| m.has_sync_work())
                    || !self.trim_redirtied_pages.is_empty();
                if begun || !self.trim_dirty_pages.is_empty() {
                    let TrimDep::AfterSeq(issued) = w.trim_dep else {
                        let trims = TrimDep::AfterSeq(self.sequencer.next_seq());
                        self.barriers[0] = Barrier { trim_dep: trims, ..w };
                        continue;
                    };
                    if self.sequencer.low_watermark() < issued {
                        break;
                    }
                    if self.device_l2p.is_some() {
                        match self.sync_trims(now, issued - 1, w.trim_epoch, flash) {
                            TrimSync::Complete => {}
                            TrimSync::InFlight => break,
                            TrimSync::Failed(status) => {
                                self.pop_barrier();
                                match w.owner {
                                    BarrierOwner::Host(tag) => self.complete(tag, status),
                                    BarrierOwner::Erase(line) => self.erase_line(now, line, flash),
                                }
                                continue;
                            }
                        }
                    } else {
                        self.write_trimmed_pages(w.trim_epoch, flash);
                    }
                    if !self.trim_dirty_pages.is_empty() {
                        break;
                    }
                    std::mem::swap(&mut self.trim_dirty_pages, &mut self.trim_redirtied_pages);
                }
                // Somebody else may have written them, and wait for them, too.
                if self.map_pages_pos > self.rings[HOST].durable_pos() {
                    self.pop_barrier();
                    self.add_barrier(w.owner, TrimDep::None);
                    continue;
                }
            }
            self.pop_barrier();
            match w.owner {
                BarrierOwner::Host(tag) => self.complete_flush(tag),
                BarrierOwner::Erase(line) => self.erase_line(now, line, flash),
            }
        }
    }

    pub(crate) fn pop_barrier(&mut self) {
        if let Some(Barrier { owner: BarrierOwner::Host(_), .. }) = self.barriers.pop_front() {
            self.host_barriers -= 1;
        }
    }

    /// Whether a begun unit of the user's ring is to be padded: a request waits for it, or a line
    /// whose space is needed.
    pub(crate) fn needs_padding(&self) -> bool {
        self.host_barriers as usize > self.deferred_flushes.len()
            || self.has_urgent_pages()
            || !self.barriers.is_empty() && self.limiter.headroom(self.free_sectors()) < 0.5
    }

    /// Writes the map pages of the first `trimmed` sectors that were trimmed, as far as the ring has
    /// room.
    fn write_trimmed_pages(&mut self, trimmed: u64, flash: &mut impl FlashBackend) {
        while self.rings[HOST].free() > 0 {
            let Some(page) = self.trim_dirty_pages.pop() else { return };
            if self.clear_written_trims(page) {
                continue;
            }
            if self.trim_page_epoch[page as usize] > trimmed {
                // Trimmed again since: copies of that may yet be given a place, or have been given one
                // that is not on the media.
                self.trim_redirtied_pages.push(page);
            } else {
                self.trim_page_epoch[page as usize] = 0;
            }
            self.write_map_page(page, flash);
        }
    }

    /// The contents of a page of the map, made of what is on the media now; whatever units with numbers
    /// below `low` wrote is in it.
    pub(crate) fn encode_map_page(&self, page: u32, low: u64, out: &mut Vec<u8>) {
        let count = TranslationPage::entries_per_page(&self.geometry);
        let first = page * count;
        let last = (first + count).min(self.plan.logical);
        let mapped = (first..last).map(|lba| match self.durable_copy_of(self.l2p.get(lba)).0 {
            NONE => PageEntry { psn: None, poison: false },
            LOST => PageEntry { psn: None, poison: true },
            psn => PageEntry { psn: Some(psn), poison: self.p2l.is_poisoned(psn) },
        });
        TranslationPage::encode(&self.geometry, page, low, mapped, out);
    }

    /// Fills a begun unit with padding, because somebody waits for it to be durable.
    pub(crate) fn pad_open_host_unit(&mut self, flash: &mut impl FlashBackend) {
        for _ in 0..self.rings[HOST].free_in_unit() {
            let slot = self.rings[HOST].push(BufferEntry::PADDING, false);
            flash.write_slot(slot, &[]);
            self.stats.padding += 1;
        }
    }
}
