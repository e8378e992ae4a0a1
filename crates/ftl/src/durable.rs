//! Durability: who waits for it, padding for those in a hurry, and the map pages that a flush writes
//! (LightNVM paper section 4.2.1).

use clock::Nanos;
use tracepoint::Event;

use crate::drive_map::Told;
use crate::ftl::USER;
use crate::lines::{LOST, NONE};
use crate::map_page::{MapPage, Mapped};
use crate::{Entry, Flash, Ftl};

/// Who waits for durability.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiter {
    /// A request.
    Request(u64),
    /// A drained line, which can be erased then. Nobody hurries for it.
    Line(u32),
}

/// Somebody who waits for everything before a position of the user's ring to be durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) position: u64,
    pub(crate) waiter: Waiter,
    /// Trims among what came before: the map pages that say so are written next.
    pub(crate) trims: Trims,
    /// Sectors trimmed before.
    pub(crate) trimmed: u64,
}

/// Whether somebody who waits needs map pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trims {
    /// No, or they have been written.
    None,
    /// Those of all trims before, as soon as the position is durable.
    Before,
    /// The same, as soon as every unit with a smaller number is on the media: some may hold what was
    /// trimmed, and a page takes back only what is older than all that is under way.
    After(u64),
}

impl Ftl {
    /// Makes everything that completed so far durable, trims included.
    pub fn flush(&mut self, now: Nanos, tag: u64, flash: &mut impl Flash) {
        self.stats.flushes += 1;
        tracepoint::trace_at(now, || Event::FtlFlush { tag });
        self.wait_durable(Waiter::Request(tag), Trims::Before);
        self.complete_durable(now, flash);
        self.kick(now, flash);
    }

    pub(crate) fn wait_durable(&mut self, waiter: Waiter, trims: Trims) {
        let position = self.rings[USER].position();
        self.waiting.push_back(Waiting { position, waiter, trims, trimmed: self.trimmed });
        self.urgent += u32::from(matches!(waiter, Waiter::Request(_)));
    }

    /// Completes what waits for durability as far as it is reached.
    pub(crate) fn complete_durable(&mut self, now: Nanos, flash: &mut impl Flash) {
        while let Some(&w) = self.waiting.front() {
            if w.position > self.rings[USER].durable() {
                break;
            }
            if w.trims != Trims::None {
                // Of a drive's own map; what is to be told again is taken up when that is done.
                let begun = self.drive_map.as_ref().is_some_and(|m| m.has_begun())
                    || !self.trimmed_again.is_empty();
                if begun || !self.trimmed_pages.is_empty() {
                    let Trims::After(issued) = w.trims else {
                        let trims = Trims::After(self.issued.next());
                        self.waiting[0] = Waiting { trims, ..w };
                        continue;
                    };
                    if self.issued.low() < issued {
                        break;
                    }
                    if self.drive_map.is_some() {
                        match self.tell(now, issued - 1, w.trimmed, flash) {
                            Told::All => {}
                            Told::UnderWay => break,
                            Told::Failed(status) => {
                                self.stop_waiting();
                                match w.waiter {
                                    Waiter::Request(tag) => self.complete(tag, status),
                                    Waiter::Line(line) => self.erase_line(now, line, flash),
                                }
                                continue;
                            }
                        }
                    } else {
                        self.write_trimmed_pages(w.trimmed, flash);
                    }
                    if !self.trimmed_pages.is_empty() {
                        break;
                    }
                    std::mem::swap(&mut self.trimmed_pages, &mut self.trimmed_again);
                }
                // Somebody else may have written them, and wait for them, too.
                if self.pages_at > self.rings[USER].durable() {
                    self.stop_waiting();
                    self.wait_durable(w.waiter, Trims::None);
                    continue;
                }
            }
            self.stop_waiting();
            match w.waiter {
                Waiter::Request(tag) => self.complete_durably(tag),
                Waiter::Line(line) => self.erase_line(now, line, flash),
            }
        }
    }

    pub(crate) fn stop_waiting(&mut self) {
        if let Some(Waiting { waiter: Waiter::Request(_), .. }) = self.waiting.pop_front() {
            self.urgent -= 1;
        }
    }

    /// Whether a begun unit of the user's ring is to be padded: a request waits for it, or a line
    /// whose space is needed.
    pub(crate) fn pads(&self) -> bool {
        self.urgent as usize > self.held.len()
            || self.hurries_pages()
            || !self.waiting.is_empty() && self.limiter.share(self.free_sectors()) < 0.5
    }

    /// Writes the map pages of the first `trimmed` sectors that were trimmed, as far as the ring has
    /// room.
    fn write_trimmed_pages(&mut self, trimmed: u64, flash: &mut impl Flash) {
        while self.rings[USER].free() > 0 {
            let Some(page) = self.trimmed_pages.pop() else { return };
            if self.trims_are_in(page) {
                continue;
            }
            if self.trimmed_at[page as usize] > trimmed {
                // Trimmed again since: copies of that may yet be given a place, or have been given one
                // that is not on the media.
                self.trimmed_again.push(page);
            } else {
                self.trimmed_at[page as usize] = 0;
            }
            self.write_map_page(page, flash);
        }
    }

    /// The contents of a page of the map, made of what is on the media now; whatever units with numbers
    /// below `low` wrote is in it.
    pub(crate) fn map_page(&self, page: u32, low: u64, out: &mut Vec<u8>) {
        let count = MapPage::count(&self.shape);
        let first = page * count;
        let last = (first + count).min(self.layout.logical);
        let mapped = (first..last).map(|lba| match self.newest_on_media(self.map.get(lba)).0 {
            NONE => Mapped { psn: None, poison: false },
            LOST => Mapped { psn: None, poison: true },
            psn => Mapped { psn: Some(psn), poison: self.reverse.poisoned(psn) },
        });
        MapPage::encode(&self.shape, page, low, mapped, out);
    }

    /// Fills a begun unit with padding, because somebody waits for it to be durable.
    pub(crate) fn pad(&mut self, flash: &mut impl Flash) {
        for _ in 0..self.rings[USER].missing() {
            let slot = self.rings[USER].push(Entry::PADDING, false);
            flash.store(slot, &[]);
            self.stats.padding += 1;
        }
    }
}
