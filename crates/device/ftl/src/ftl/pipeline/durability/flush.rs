//! Flushes: barriers, padding for urgent ones, and the map pages that a flush writes [LightNVM17
//! §4.2.1].

use time::Nanos;
use tracepoint::Event;

use crate::durability::barriers::{BarrierOwner, DeferredFlush, TrimDep};
use crate::durability::device_l2p::TrimSync;
use crate::ftl::{HOST, HOST_RINGS};
use crate::ids::{LOST_SECTOR, MapPageId, NO_SECTOR, WriteSeq};
use crate::mapping::translation_page::{PageEntry, TranslationPage};
use crate::{BufferEntry, FlashBackend, Ftl};

impl Ftl {
    /// Makes all completed writes and trims durable, then completes.
    pub fn flush(&mut self, now: Nanos, tag: u64, flash: &mut impl FlashBackend) {
        self.stats.flushes += 1;
        tracepoint::trace_at(now, || Event::FtlFlush { tag });
        let owner_changes = self.durability.flush_owner_state();
        self.add_barrier(BarrierOwner::Host(tag), TrimDep::All, owner_changes);
        self.complete_barriers(now, flash);
        self.kick(now, flash);
    }

    /// Adds a barrier behind everything in the host's rings. It waits for `owner_changes` changes of the owner's
    /// state.
    pub(crate) fn add_barrier(&mut self, owner: BarrierOwner, trims: TrimDep, owner_changes: u64) {
        self.durability.add_barrier(self.buffer.head_pos(), owner, trims, owner_changes);
    }

    /// Completes the barriers whose position is durable.
    pub(crate) fn complete_barriers(&mut self, now: Nanos, flash: &mut impl FlashBackend) {
        while let Some(w) = self.durability.barriers().front() {
            if w.position > self.buffer.durable_pos() {
                break;
            }
            if w.trim_dep != TrimDep::None {
                if self.durability.has_trims() {
                    let TrimDep::AfterSeq(issued) = w.trim_dep else {
                        let next = self.buffer.next_seq();
                        self.durability.set_front_dep(TrimDep::AfterSeq(next));
                        continue;
                    };
                    if self.buffer.low_watermark() < issued {
                        break;
                    }
                    if self.durability.has_device_l2p() {
                        match self.sync_trims(now, WriteSeq(issued.get() - 1), w.trim_epoch, flash)
                        {
                            TrimSync::Complete => {}
                            TrimSync::InFlight | TrimSync::Send => break,
                            TrimSync::Failed(status) => {
                                self.durability.pop_barrier();
                                match w.owner {
                                    BarrierOwner::Host(tag) | BarrierOwner::Named(tag, _) => {
                                        self.complete(tag, status);
                                    }
                                    BarrierOwner::Erase(line) => self.erase_line(now, line, flash),
                                }
                                continue;
                            }
                        }
                    } else {
                        self.write_trimmed_pages(w.trim_epoch, flash);
                    }
                    if self.durability.trims().has_dirty() {
                        break;
                    }
                    self.durability.start_next_trims();
                }
                // An earlier barrier may have written these pages, and waits for them as
                // well.
                if self.durability.trims().pages_pos() > self.buffer.durable_pos() {
                    self.durability.pop_barrier();
                    self.add_barrier(w.owner, TrimDep::None, w.owner_changes);
                    continue;
                }
            }
            self.durability.pop_barrier();
            match w.owner {
                BarrierOwner::Host(tag) | BarrierOwner::Named(tag, _) => {
                    let owner_changes = w.owner_changes;
                    self.complete_flush(DeferredFlush { tag, owner_changes });
                }
                BarrierOwner::Erase(line) => self.erase_line(now, line, flash),
            }
        }
    }

    /// Returns whether the partly filled units of the host's rings are to be padded: a request, or a line
    /// whose space is needed, waits for it.
    #[inline]
    pub(crate) fn needs_padding(&self) -> bool {
        self.durability.barriers().has_host_barriers()
            || self.durability.has_urgent_pages()
            || !self.durability.barriers().is_empty()
                && self.gc.limiter().headroom(self.free_sectors()) < 0.5
    }

    /// Writes the translation pages of the first `trimmed` trimmed sectors, as far as the ring has
    /// room.
    fn write_trimmed_pages(&mut self, trimmed: u64, flash: &mut impl FlashBackend) {
        while self.buffer.ring(HOST).free() > 0 {
            let Some(page) = self.durability.next_trimmed_page(trimmed) else { return };
            self.write_map_page(page, flash);
        }
    }

    /// Encodes a translation page from the entries that point to the media now. It includes all
    /// writes of units with sequence numbers below `low`.
    pub(crate) fn encode_map_page(&self, page: MapPageId, low: WriteSeq, out: &mut Vec<u8>) {
        let mapped = self.env.sectors_of_page(page).iter().map(|lba| {
            match self.buffer.durable_copy_of(&self.env.geometry, self.mapping.get(lba)).0 {
                NO_SECTOR => PageEntry { phys: None, poison: false },
                LOST_SECTOR => PageEntry { phys: None, poison: true },
                phys => PageEntry { phys: Some(phys), poison: self.mapping.is_poisoned(phys) },
            }
        });
        TranslationPage::encode(&self.env.geometry, page.get(), low, mapped, out);
    }

    /// Pads the partly filled units of all rings of the host, because a barrier waits for them. Returns
    /// whether there was one.
    pub(crate) fn pad_open_host_units(&mut self, flash: &mut impl FlashBackend) -> bool {
        let padded = HOST_RINGS.map(|ring| self.pad_open_unit(ring, flash));
        padded.contains(&true)
    }

    /// Pads the partly filled unit of a ring of the host. Returns whether there was one.
    pub(crate) fn pad_open_unit(&mut self, ring: usize, flash: &mut impl FlashBackend) -> bool {
        let missing = self.buffer.ring(ring).free_in_unit();
        for _ in 0..missing {
            let slot = self.buffer.push(ring, BufferEntry::PADDING, false);
            flash.write_slot(slot, &[]);
            self.stats.padding += 1;
        }
        missing > 0
    }

    /// Pads a unit of one stream of the host that has been open while a line's worth of data was written
    /// to another. Erases, checkpoints and trims wait for all that is in front of a position.
    #[cold]
    pub(crate) fn pad_late_unit(&mut self, flash: &mut impl FlashBackend) {
        if let Some(ring) = self.buffer.late_open_unit(self.env.plan.line_sectors.into()) {
            self.pad_open_unit(ring, flash);
        }
    }
}
