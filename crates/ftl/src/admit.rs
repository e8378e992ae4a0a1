//! Requests that change the map: they are taken into the write buffer, or unmap sectors, in the order in
//! which they came, as far as the rate limiter and the buffer have room (LightNVM paper sections 4.2.1 and
//! 4.2.4).
//!
//! Guarantee: what was admitted has its space on the media. What can never be admitted is told so.

use clock::Nanos;
use nvme::Status;
use tracepoint::{Admission, Event};

use crate::durable::{Trims, Waiter};
use crate::ftl::USER;
use crate::map_page::MapPage;
use crate::write_ring::WriteRing;
use crate::{Entry, Flash, Ftl, Location};

/// Requests whose map words are looked at together.
const LOOK_AHEAD: usize = 32;

/// Trimmed sectors per [`Ftl::kick`] at most, so that a trim of a whole drive stops nobody.
const TRIM_SLICE: u32 = 1 << 16;

#[derive(Clone, Copy, Debug)]
pub(crate) enum PendingKind {
    Write,
    Zeroes,
    Trim,
}

/// A request that changes the map, admitted in order of arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    kind: PendingKind,
    tag: u64,
    lba: u32,
    done: u32,
    sectors: u32,
    durable: bool,
}

impl Ftl {
    /// Writes `sectors` at `lba`; the data is taken from request `tag` during a
    /// [`kick`](Ftl::kick). Completes when it is in the write buffer, or with `durable` when it is
    /// on the media.
    #[inline]
    pub fn write(&mut self, tag: u64, lba: u64, sectors: u32, durable: bool) {
        self.enqueue(PendingKind::Write, tag, lba, sectors, durable);
    }

    /// Writes zeros, as mapped sectors.
    pub fn write_zeroes(&mut self, tag: u64, lba: u64, sectors: u32, durable: bool) {
        self.enqueue(PendingKind::Zeroes, tag, lba, sectors, durable);
    }

    /// Unmaps sectors. The trim is as durable as a buffered write: a flush makes it so. Of a map in
    /// frames one may end with [`Status::CAPACITY_EXCEEDED`], when nothing can be written any more so that
    /// a page could come for one that goes.
    pub fn trim(&mut self, tag: u64, lba: u64, sectors: u32) {
        self.enqueue(PendingKind::Trim, tag, lba, sectors, false);
    }

    #[inline]
    fn enqueue(&mut self, kind: PendingKind, tag: u64, lba: u64, sectors: u32, durable: bool) {
        if !self.in_range(lba, sectors) {
            return self.complete(tag, Status::LBA_OUT_OF_RANGE.do_not_retry());
        }
        tracepoint::trace(|| Event::FtlQueued { tag });
        self.pending.push_back(Pending { kind, tag, lba: lba as u32, done: 0, sectors, durable });
    }

    /// Puts one sector into the user's ring and points the map at it.
    #[inline(always)]
    pub(crate) fn admit(&mut self, lba: u32) -> u32 {
        let slot = self.rings[USER].next_slot();
        let old = self.map.set(lba, Location::Buffer(slot));
        if let Location::Flash(psn) = old {
            self.lines.invalidate(psn, Some(self.rings[USER].position() + 1));
            self.reverse.invalidate(psn);
        }
        let (under, under_sequence) = self.newest_on_media(old);
        let trim = self.trim_before(lba, old);
        let entry = Entry { lba_plus_1: lba + 1, poison: false, under, under_sequence, trim };
        let slot = self.rings[USER].push(entry, false);
        self.map.hold(lba);
        slot
    }

    /// The same for what is about to be admitted, and for the lines that it is to be taken from.
    #[inline]
    fn look_at_pending(&mut self) {
        let mut seen = 0;
        let end = self.pending.len().min(LOOK_AHEAD);
        for p in self.pending.range(self.looked_at.min(end)..end) {
            if let Some(psn) = self.map.look((p.lba + p.done).into()) {
                seen ^= self.lines.line_of[self.shape.chunk_of(psn) as usize];
            }
        }
        self.looked_at = end;
        std::hint::black_box(seen);
    }

    pub(crate) fn admit_pending(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let (mut moved, mut written) = (false, 0);
        // Nothing here changes any of these but what is admitted, by as much; and pages of the map that
        // go, which are looked for.
        let (mut free, mut slots) = (self.free_sectors(), self.rings[USER].free());
        let idle = !self.collector.is_moving();
        let mut admission = Admission::Open;
        while let Some(&(mut p)) = self.pending.front() {
            if self.looked_at == 0 {
                self.look_at_pending();
            }
            let left = p.sectors - p.done;
            let took = match p.kind {
                PendingKind::Trim => {
                    admission = Admission::MapPage;
                    self.trim_slice(now, p.lba + p.done, left.min(TRIM_SLICE), flash)
                }
                PendingKind::Write | PendingKind::Zeroes => {
                    let room = left.min(slots);
                    let spare = if idle { None } else { self.spares_while_kept_back(free) };
                    let n = match spare {
                        Some(spare) => room.min(spare),
                        None => self.limiter.admits(room, free, idle).max(room.min(self.granted)),
                    };
                    admission = match n {
                        _ if n == slots => Admission::BufferFull,
                        n if n < room => Admission::GcLimiter,
                        _ => Admission::MapPage,
                    };
                    let n = match n {
                        0 => 0,
                        n => self.map_change(now, p.lba + p.done, n, WriteRing::free, flash),
                    };
                    if self.map.frames.is_some() {
                        (free, slots) = (self.free_sectors(), self.rings[USER].free());
                    }
                    for i in p.done..p.done + n {
                        let slot = self.admit(p.lba + i);
                        match p.kind {
                            PendingKind::Write => flash.take(p.tag, i, slot),
                            _ => flash.store(slot, &[]),
                        }
                    }
                    self.limiter.spend(n, free);
                    if self.granted > 0 {
                        self.stats.reserve_writes += u64::from(n.min(self.granted));
                        self.granted = self.granted.saturating_sub(n);
                    }
                    (free, slots) = (free.saturating_sub(n.into()), slots - n);
                    written += u64::from(n);
                    n
                }
            };
            p.done += took;
            moved |= took > 0;
            if p.done < p.sectors {
                self.pending[0] = p;
                // A trim goes on next time round; a write waits for room.
                break;
            }
            self.pending.pop_front();
            self.looked_at -= 1;
            admission = Admission::Open;
            tracepoint::trace_at(now, || Event::FtlAdmitted { tag: p.tag, durable: p.durable });
            if p.durable {
                self.wait_durable(Waiter::Request(p.tag), Trims::None);
            } else {
                self.complete(p.tag, Status::SUCCESS);
            }
            moved = true;
        }
        tracepoint::trace_at(now, || Event::FtlAdmission { state: admission });
        if written > 0 {
            self.stats.user_writes += written;
            self.collector.renew();
            self.checkpoint.renew();
        }
        moved
    }

    /// The sectors that the `i`-th waiting request that changes the map has still to do: the first one
    /// and the end.
    pub(crate) fn pending_sectors(&self, i: usize) -> Option<(u32, u32)> {
        self.pending.get(i).map(|p| (p.lba + p.done, p.lba + p.sectors))
    }

    fn trim_slice(&mut self, now: Nanos, lba: u32, sectors: u32, flash: &mut impl Flash) -> u32 {
        let Some(frames) = &self.map.frames else { return self.trim_words(lba, sectors) };
        // Page by page.
        let run = frames.run(lba, sectors);
        if !self.holds_nothing(frames.page_of(lba).unwrap_or(0)) {
            let run = self.map_change(now, lba, sectors, |_| u32::MAX, flash);
            return self.trim_words(lba, run);
        }
        run
    }

    fn trim_words(&mut self, lba: u32, sectors: u32) -> u32 {
        if sectors > 0 {
            self.collector.renew();
            self.checkpoint.renew();
        }
        let page = MapPage::count(&self.shape);
        let mut at = lba;
        while at < lba + sectors {
            // Skip what is not mapped without asking for every sector.
            let rest = self.map.words(at, lba + sectors - at);
            let Some(skip) = rest.iter().position(|w| *w != 0) else { break };
            at += skip as u32;
            if let Location::Flash(psn) = self.map.set(at, Location::Unmapped) {
                self.lines.invalidate(psn, None);
                self.reverse.invalidate(psn);
            }
            self.stats.trimmed += 1;
            self.trimmed += 1;
            let p = at / page;
            if std::mem::replace(&mut self.trimmed_at[p as usize], self.trimmed) == 0 {
                self.trimmed_pages.push(p);
            }
            match &mut self.drive_map {
                Some(map) => map.trimmed(at),
                None => self.checkpoint.touch(p),
            }
            at += 1;
        }
        sectors
    }

    /// Fails what can never go on: writes without space and flushes of data without space, when
    /// nothing is under way that would give any back, and writes are not let in out of the reserve. Returns
    /// whether they are, or a trim that waited behind failed writes can go on now.
    pub(crate) fn fail_if_full(&mut self) -> bool {
        if self.pending.is_empty() && self.urgent == 0 {
            return false;
        }
        let under_way = self.lines.erasing > 0
            || self.collector.reading() > 0
            || self.programs > 0
            || self.fetches.under_way() > 0
            || self.salvage.is_scanning()
            || !self.journal.is_idle()
            || self.yielding.keeps() && self.reads_under_way() > 0
            || self.drive_map.as_ref().is_some_and(|m| m.is_telling());
        if under_way {
            return false;
        }
        let is_write = |p: &Pending| !matches!(p.kind, PendingKind::Trim);
        let granted = std::mem::take(&mut self.granted);
        if granted == 0 && self.pending.front().is_some_and(is_write) && self.spares_for_users() {
            self.granted = self.shape.unit;
            return true;
        }
        let mut failed = false;
        while let Some(p) = self.pending.front() {
            // One that was first has had its chance, if it needs a page that has no room.
            if matches!(p.kind, PendingKind::Trim) && (failed || self.may_change(p.lba + p.done)) {
                return true;
            }
            let tag = p.tag;
            failed = true;
            self.pending.pop_front();
            self.looked_at = self.looked_at.saturating_sub(1);
            self.complete(tag, Status::CAPACITY_EXCEEDED);
        }
        for i in (0..self.waiting.len()).rev() {
            if let Waiter::Request(tag) = self.waiting[i].waiter {
                self.waiting.remove(i);
                self.urgent -= 1;
                self.complete(tag, Status::CAPACITY_EXCEEDED);
            }
        }
        self.end_held(Status::CAPACITY_EXCEEDED);
        false
    }
}
