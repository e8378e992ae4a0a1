//! Durability: who waits for it, padding for those in a hurry, and the trim state that a flush writes
//! (LightNVM paper section 4.2.1).

use clock::Nanos;
use nvme::Status;

use crate::ftl::USER;
use crate::lines::NONE;
use crate::{Entry, Flash, Ftl, Layout, Location};

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
    /// A flush: the trim state is written next, once the data that it speaks of is durable.
    pub(crate) then_trim_state: bool,
}

impl Ftl {
    /// Makes everything that completed so far durable, trims included.
    pub fn flush(&mut self, now: Nanos, tag: u64, flash: &mut impl Flash) {
        self.stats.flushes += 1;
        self.wait_durable(Waiter::Request(tag), true);
        self.complete_durable(now, flash);
        self.kick(now, flash);
    }

    pub(crate) fn wait_durable(&mut self, waiter: Waiter, then_trim_state: bool) {
        let position = self.rings[USER].position();
        self.waiting.push_back(Waiting { position, waiter, then_trim_state });
        self.urgent += u32::from(matches!(waiter, Waiter::Request(_)));
    }

    /// Completes what waits for durability as far as it is reached.
    pub(crate) fn complete_durable(&mut self, now: Nanos, flash: &mut impl Flash) {
        while let Some(&w) = self.waiting.front() {
            if w.position > self.rings[USER].durable() {
                break;
            }
            if w.then_trim_state {
                if !self.dirty_regions.is_empty() {
                    self.write_trim_state(flash);
                    if !self.dirty_regions.is_empty() {
                        break;
                    }
                    std::mem::swap(&mut self.dirty_regions, &mut self.dirty_again);
                }
                // Somebody else may have written it, and wait for it, too.
                if self.trim_state_at > self.rings[USER].durable() {
                    self.stop_waiting();
                    self.wait_durable(w.waiter, false);
                    continue;
                }
            }
            self.stop_waiting();
            match w.waiter {
                Waiter::Request(tag) => self.complete(tag, Status::SUCCESS),
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
        self.urgent > 0 || !self.waiting.is_empty() && self.limiter.share(self.free_sectors()) < 0.5
    }

    /// Writes the trim state of regions that changed, as far as the ring has room.
    pub(crate) fn write_trim_state(&mut self, flash: &mut impl Flash) {
        while self.rings[USER].free() > 0 {
            let Some(region) = self.dirty_regions.pop() else { return };
            if self.trimmed_at[region as usize] > self.rings[USER].durable_sequence(self.sequence) {
                // Trimmed again, since the data that somebody waited for was written: that trim may
                // be of data that is not durable, and this state cannot take it back.
                self.dirty_again.push(region);
            } else {
                self.trimmed_at[region as usize] = 0;
            }
            let bytes = if flash.keeps_data() { self.trim_state(region) } else { Vec::new() };
            let slot = self.admit(self.layout.logical + region);
            flash.store(slot, &bytes);
            self.trim_state_at = self.rings[USER].position();
            self.stats.metadata += 1;
        }
    }

    /// The trim state of a region: see [`crate::recover`] for its bytes and why it is safe.
    pub(crate) fn trim_state(&self, region: u32) -> Vec<u8> {
        let durable = self.rings[USER].durable_sequence(self.sequence);
        let size = Layout::region(&self.shape);
        let first = region * size;
        let count = size.min(self.layout.logical - first);
        crate::recover::encode_trim_state(self.shape.sector_bytes, durable, count, |i| {
            match self.map.get(first + i) {
                Location::Unmapped => true,
                Location::Buffer(slot) => {
                    let entry = self.entry(slot);
                    entry.fresh && entry.sequence >= durable
                }
                Location::Flash(_) => false,
            }
        })
    }

    /// Fills a begun unit with padding, because somebody waits for it to be durable.
    pub(crate) fn pad(&mut self, flash: &mut impl Flash) {
        for _ in 0..self.rings[USER].missing() {
            let entry = Entry { source: NONE, ..Entry::default() };
            let slot = self.rings[USER].push(entry, false, self.sequence);
            flash.store(slot, &[]);
            self.stats.padding += 1;
        }
    }
}
