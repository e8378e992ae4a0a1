//! Admission of writes and trims into the write buffer, in the order of submission, as far as the
//! rate limiter and the free slots allow [LightNVM17 §4.2.1, §4.2.4].
//!
//! Guarantee: admitted data has space on the media. Requests that can never be admitted fail with
//! `CAPACITY_EXCEEDED`.
//!
//! # Atomic writes
//!
//! With [`atomic_writes`](crate::FtlConfig::atomic_writes) a write of at most a write unit is admitted
//! as a whole, into one unit. With a map cache it first pins the translation pages of all of its
//! sectors. If it does not fit the open unit, shorter writes from behind it fill the
//! unit, or padding does. After a power cut such a write is there completely or not at all (later writes
//! may have replaced parts of it):
//!
//! * A unit is programmed by one operation and has one sequence number. An interrupted program leaves
//!   no sector of it readable. So recovery finds all entries of the unit, or none. It decides by sector,
//!   by the largest sequence number: if the unit is found, each of its sectors is that of the write or a
//!   newer one; otherwise each is as before the write.
//! * A failed program of a host unit is repeated with all entries, under the same number.
//! * Garbage collection moves single sectors, under larger numbers. Their sources are not erased
//!   before the copies are on the media, so that either copy is found.
//! * A unit that was on the media, and whose chunk went offline before it was readable, is written again
//!   under a larger number. An entry with a newer version would be dropped then, and would be missing
//!   if power is cut before the newer version is on the media. So the unit waits for that
//!   ([`waits_for_newer`](Ftl::waits_for_newer)). An entry whose sector was trimmed is written as
//!   zeros: trimmed sectors read as zeros.
//! * Recovery writes nothing but padding.
//!
//! A sector that only an offline chunk has is lost, and so is the part of a write in it.

use nvme::Status;
use time::Nanos;
use tracepoint::{Admission, Event};

use crate::buffer::WriteBuffer;
use crate::durability::barriers::{BarrierOwner, TrimDep};
use crate::ftl::HOST;
use crate::ids::{Lba, NO_SECTOR, SlotId, ToU32};
use crate::mapping::Mapping;
use crate::requests::batch::{AcceptedWrite, BatchWrite};
use crate::requests::queue::{QueuedWrite, QueuedWriteKind};
use crate::{BufferEntry, FlashBackend, Ftl, HostStream, L2pEntry};

/// Trimmed sectors per [`Ftl::kick`] at most, so that a trim of the whole drive does not block
/// other requests.
const TRIM_SLICE: u32 = 1 << 16;

/// Writes of a batch whose map entries are prefetched together.
const PREFETCH_WRITES: usize = 64;

/// The ring that takes the next sectors of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) ring: usize,
    /// Number of the sectors; 0 if the write is not split, and some of its sectors have to get a
    /// location in another ring first.
    pub(crate) sectors: u32,
}

/// Returns the ring that takes the next sectors of a write: that of its stream, but sectors without a
/// sequence number keep theirs. With `whole`, all of the write or nothing.
fn route(mapping: &Mapping, buffer: &WriteBuffer, p: &QueuedWrite, whole: bool) -> Route {
    // A sector in the buffer pins its translation page.
    let ring_of = |lba: Lba| {
        let at = mapping.get_resident(lba).unwrap_or(L2pEntry::Unmapped);
        buffer.unsequenced_ring(lba, at)
    };
    let left = p.left();
    let sectors = || p.next_lba().run(left);
    if whole {
        let first = sectors().find_map(ring_of).unwrap_or(p.stream.ring());
        let fits = sectors().filter_map(ring_of).all(|ring| ring == first);
        return Route { ring: first, sectors: if fits { left } else { 0 } };
    }
    let choose = |lba: Lba| ring_of(lba).unwrap_or(p.stream.ring());
    let ring = choose(p.next_lba());
    Route { ring, sectors: sectors().take_while(|lba| choose(*lba) == ring).count().to_u32() }
}

impl Ftl {
    /// Writes `sectors` at `slba`; the data is taken from request `tag` during a
    /// [`kick`](Ftl::kick). Completes when it is in the write buffer, or with `durable` when it is
    /// on the media.
    #[inline]
    pub fn write(&mut self, tag: u64, slba: u64, sectors: u32, durable: bool) {
        self.write_to(HostStream::Host, tag, slba, sectors, durable);
    }

    /// Writes as [`write`](Ftl::write) does, to a stream. Sectors that are in the write buffer for
    /// another stream, and have no location yet, follow there.
    #[inline]
    pub fn write_to(
        &mut self,
        stream: HostStream,
        tag: u64,
        slba: u64,
        sectors: u32,
        durable: bool,
    ) {
        self.enqueue(QueuedWriteKind::Write, stream, tag, slba, sectors, durable);
    }

    /// Writes zeros, as mapped sectors.
    pub fn write_zeroes(&mut self, tag: u64, slba: u64, sectors: u32, durable: bool) {
        self.write_zeroes_to(HostStream::Host, tag, slba, sectors, durable);
    }

    /// Writes zeros to a stream, as [`write_to`](Ftl::write_to) writes data.
    pub fn write_zeroes_to(
        &mut self,
        stream: HostStream,
        tag: u64,
        slba: u64,
        sectors: u32,
        durable: bool,
    ) {
        self.enqueue(QueuedWriteKind::Zeroes, stream, tag, slba, sectors, durable);
    }

    /// Marks sectors as unreadable, as mapped sectors: reads fail with
    /// [`Status::UNRECOVERED_READ`] until the sectors are written or trimmed. The mark is as durable
    /// as the data of a write. Fails with [`Status::INVALID_OPCODE`] if the drive keeps the map.
    pub fn write_uncorrectable(&mut self, tag: u64, slba: u64, sectors: u32, durable: bool) {
        if self.durability.has_device_l2p() {
            return self.complete(tag, Status::INVALID_OPCODE.do_not_retry());
        }
        let stream = HostStream::Host;
        self.enqueue(QueuedWriteKind::Uncorrectable, stream, tag, slba, sectors, durable);
    }

    /// Unmaps sectors. A trim is as durable as a buffered write: the next flush makes it durable.
    /// With a map cache a trim can fail with [`Status::CAPACITY_EXCEEDED`]: its translation page
    /// needs a frame, and the dirty page in that frame cannot be written, because nothing can.
    pub fn trim(&mut self, tag: u64, slba: u64, sectors: u32) {
        self.enqueue(QueuedWriteKind::Trim, HostStream::Host, tag, slba, sectors, false);
    }

    #[inline]
    fn enqueue(
        &mut self,
        kind: QueuedWriteKind,
        stream: HostStream,
        tag: u64,
        slba: u64,
        sectors: u32,
        durable: bool,
    ) {
        let Some(lba) = self.host_sector(slba, sectors) else {
            return self.complete(tag, Status::LBA_OUT_OF_RANGE.do_not_retry());
        };
        if !self.requests.batch().is_empty() {
            self.queue_batch();
        }
        tracepoint::trace(|| Event::FtlQueued { tag });
        self.requests.writes_mut().push(QueuedWrite {
            kind,
            tag,
            lba,
            done_sectors: 0,
            sectors,
            durable,
            stream,
        });
    }

    /// Writes all of `writes` in this order, as [`write`](Ftl::write) does, without data: they complete
    /// when they are in the write buffer. The next [`kick`](Ftl::kick) admits them. Those that it
    /// completes have no [`Completion`](crate::Completion), but are counted by
    /// [`take_batch_completions`](Ftl::take_batch_completions). Those that must wait, or whose range
    /// is refused, complete one by one.
    pub fn write_batch(&mut self, writes: &[BatchWrite]) {
        let is_direct = self.requests.writes().is_empty()
            && !self.mapping.is_cached()
            && !self.env.config.atomic_writes
            && !self.env.config.hot_stream
            && !tracepoint::is_on();
        for &BatchWrite { tag, slba, sectors } in writes {
            match self.host_sector(slba, sectors) {
                Some(lba) if is_direct => {
                    self.requests.batch_mut().push(AcceptedWrite { tag, lba, sectors });
                }
                _ => self.write(tag, slba, sectors, false),
            }
        }
    }

    /// Returns the number of writes of batches that were completed since the last call.
    #[inline]
    pub fn take_batch_completions(&mut self) -> u32 {
        self.requests.batch_mut().take_completed()
    }

    /// Admits the writes of the batch as [`admit_pending`](Ftl::admit_pending) admits queued ones. The
    /// rest is queued.
    #[inline(never)]
    fn admit_batch(&mut self) -> bool {
        let batch = self.requests.batch_mut().take_writes();
        let (mut free, mut slots) = (self.free_sectors(), self.buffer.ring(HOST).free());
        let idle = !self.gc.is_relocating();
        let (mut completed, mut written) = (0, 0);
        for writes in batch.chunks(PREFETCH_WRITES) {
            self.prefetch_batch(writes);
            for &AcceptedWrite { lba, sectors, .. } in writes {
                let n = self.admissible(sectors, slots, free, idle).0;
                for i in 0..n {
                    self.admit(HOST, lba + i);
                }
                self.account_admitted(n, free);
                (free, slots) = (free.saturating_sub(n.into()), slots - n);
                written += u64::from(n);
                if n < sectors {
                    self.queue_rest(&batch[completed..], n);
                    break;
                }
                completed += 1;
            }
            if !self.requests.writes().is_empty() {
                break;
            }
        }
        self.requests.batch_mut().return_writes(batch, completed);
        self.record_written(written);
        completed > 0 || written > 0
    }

    /// Queues the batch, so that requests behind it are admitted after it.
    #[cold]
    fn queue_batch(&mut self) {
        let batch = self.requests.batch_mut().take_writes();
        self.queue_rest(&batch, 0);
        self.requests.batch_mut().return_writes(batch, 0);
    }

    /// Queues writes of a batch. The first `done_sectors` sectors of the first one have been admitted.
    #[cold]
    fn queue_rest(&mut self, writes: &[AcceptedWrite], mut done_sectors: u32) {
        for &AcceptedWrite { tag, lba, sectors } in writes {
            let (kind, stream) = (QueuedWriteKind::Write, HostStream::Host);
            let write =
                QueuedWrite { kind, tag, lba, done_sectors, sectors, durable: false, stream };
            self.requests.writes_mut().push(write);
            done_sectors = 0;
        }
    }

    /// Prefetches the map entries of writes, and the line entries of the copies that they invalidate.
    #[inline]
    fn prefetch_batch(&self, writes: &[AcceptedWrite]) {
        let mut seen = 0;
        for write in writes {
            if let Some(phys) = self.mapping.prefetch(write.lba) {
                seen ^= self.space.line_of(self.env.geometry.chunk_of(phys)).get();
            }
        }
        std::hint::black_box(seen);
    }

    /// Puts one sector into a ring of the host and points the map at it.
    #[inline(always)]
    pub(crate) fn admit(&mut self, ring: usize, lba: Lba) -> SlotId {
        let slot = self.buffer.ring(ring).next_slot();
        let old = self.mapping.set(lba, L2pEntry::Buffer(slot));
        if let L2pEntry::Flash(phys) = old {
            let until = self.buffer.head_pos() + 1;
            if let Some(change) = self.space.invalidate(phys, Some(until)) {
                self.gc.on_candidate(change);
            }
        }
        let (under, under_sequence) = self.buffer.durable_copy_of(&self.env.geometry, old);
        let trim = self.trim_before(lba, old);
        let entry = BufferEntry {
            lba_plus_1: lba.get() + 1,
            poison: false,
            durable_copy: under,
            durable_copy_seq: under_sequence,
            trim_dep: trim,
            source: NO_SECTOR,
        };
        let slot = self.buffer.push(ring, entry, false);
        self.mapping.pin(lba);
        slot
    }

    /// Prefetches the map entries of queued writes, and the line entries of the copies that the
    /// writes invalidate.
    #[inline(never)]
    fn prefetch_pending(&mut self) {
        let mut seen = 0;
        for p in self.requests.writes_mut().next_to_prefetch() {
            if let Some(phys) = self.mapping.prefetch(p.next_lba()) {
                seen ^= self.space.line_of(self.env.geometry.chunk_of(phys)).get();
            }
        }
        std::hint::black_box(seen);
    }

    #[inline(always)]
    pub(crate) fn admit_pending(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        if !self.requests.batch().is_empty() {
            return self.admit_batch();
        }
        if self.requests.writes().is_empty() {
            return false;
        }
        match self.admits_in_order() {
            false => self.admit_queued::<false, false>(now, flash),
            true => self.admit_queued_in_order(now, flash),
        }
    }

    /// Whether requests are not admitted sector by sector into one ring.
    #[inline(always)]
    fn admits_in_order(&self) -> bool {
        let config = &self.env.config;
        config.atomic_writes || config.hot_stream || config.addressing.is_named()
    }

    /// Admits queued requests to a drive with atomic writes, the stream of hot data, or both; or to one
    /// whose sectors have names.
    #[inline(never)]
    fn admit_queued_in_order(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        if self.mapping.is_named() {
            return self.admit_named(now, flash);
        }
        match (self.env.config.atomic_writes, self.env.config.hot_stream) {
            (true, false) => self.admit_queued::<true, false>(now, flash),
            (false, _) => self.admit_queued::<false, true>(now, flash),
            (true, true) => self.admit_queued::<true, true>(now, flash),
        }
    }

    /// Admits queued requests. With `ATOMIC`, writes of at most a write unit are admitted as a whole. With
    /// `STREAMS`, a write goes to a ring of the host; otherwise there is only one.
    fn admit_queued<const ATOMIC: bool, const STREAMS: bool>(
        &mut self,
        now: Nanos,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let (mut moved, mut written) = (false, 0);
        // In this loop only the admitted sectors change these counts, and evictions of
        // translation pages, after which the counts are taken again.
        let (mut ring, mut free) = (HOST, self.free_sectors());
        let mut slots = self.buffer.ring(ring).free();
        let idle = !self.gc.is_relocating();
        let mut admission = Admission::Open;
        while let Some(mut p) = self.requests.writes().front() {
            if self.requests.writes().is_prefetch_due() {
                self.prefetch_pending();
            }
            let is_pinned = ATOMIC && self.mapping.is_cached() && self.is_atomic(&p);
            if is_pinned {
                // Pages that are evicted for it may take slots, and space in the open unit.
                let is_ready = self.prepare_whole_write(now, p.lba, p.sectors, flash);
                (free, slots) = (self.free_sectors(), self.buffer.ring(ring).free());
                if !is_ready {
                    admission = Admission::MapPage;
                    break;
                }
            }
            let mut left = p.left();
            if STREAMS && !p.is_trim() {
                let route = self.route(&p, ATOMIC);
                (ring, left) = (route.ring, route.sectors);
                (free, slots) = (self.free_sectors(), self.buffer.ring(ring).free());
                if left == 0 {
                    // It continues when the units with its sectors have their locations.
                    moved |= self.pad_open_host_units(flash);
                    break;
                }
            }
            if ATOMIC && self.is_too_long_for_unit(ring, &p) {
                if self.fill_open_unit(ring, flash) {
                    continue;
                }
                (free, slots) = (self.free_sectors(), self.buffer.ring(ring).free());
                moved = true;
            }
            let took = match p.kind {
                QueuedWriteKind::Trim => {
                    admission = Admission::MapPage;
                    self.trim_slice(now, p.next_lba(), left.min(TRIM_SLICE), flash)
                }
                QueuedWriteKind::Write
                | QueuedWriteKind::Zeroes
                | QueuedWriteKind::Uncorrectable
                | QueuedWriteKind::Named => {
                    let (mut n, room) = self.admissible(left, slots, free, idle);
                    admission = match n {
                        _ if n == slots => Admission::BufferFull,
                        n if n < room => Admission::GcLimiter,
                        _ => Admission::MapPage,
                    };
                    if ATOMIC && n < left && self.is_atomic(&p) {
                        n = self.admissible_whole(left, slots, free, idle);
                    }
                    let n = match n {
                        0 => 0,
                        n if is_pinned => {
                            self.mapping.set_head_write_page(None);
                            n
                        }
                        n => {
                            let room = |buffer: &WriteBuffer| buffer.ring(ring).free();
                            self.prepare_modify(now, p.next_lba(), n, room, flash)
                        }
                    };
                    if self.mapping.is_cached() {
                        (free, slots) = (self.free_sectors(), self.buffer.ring(ring).free());
                    }
                    for i in p.done_sectors..p.done_sectors + n {
                        let slot = self.admit(if STREAMS { ring } else { HOST }, p.lba + i);
                        match p.kind {
                            QueuedWriteKind::Write => flash.copy_from_host(p.tag, i, slot),
                            kind => {
                                flash.zero_slot(p.tag, i, slot);
                                if kind == QueuedWriteKind::Uncorrectable {
                                    self.buffer.poison(slot);
                                }
                            }
                        }
                    }
                    self.account_admitted(n, free);
                    (free, slots) = (free.saturating_sub(n.into()), slots - n);
                    written += u64::from(n);
                    n
                }
            };
            p.done_sectors += took;
            moved |= took > 0;
            if p.done_sectors < p.sectors {
                if took > 0 {
                    self.requests.writes_mut().update_front(p);
                }
                if STREAMS && took > 0 && took == left {
                    // The next sectors go to another ring.
                    continue;
                }
                // A trim continues with the next stage run; a write waits for free
                // slots.
                break;
            }
            self.requests.writes_mut().pop_front();
            admission = Admission::Open;
            tracepoint::trace_at(now, || Event::FtlAdmitted { tag: p.tag, durable: p.durable });
            if p.durable {
                self.add_barrier(BarrierOwner::Host(p.tag), TrimDep::None, 0);
            } else {
                self.complete(p.tag, Status::SUCCESS);
            }
            moved = true;
        }
        tracepoint::trace_at(now, || Event::FtlAdmission { state: admission });
        self.record_written(written);
        moved
    }

    /// Returns how many of `left` sectors of a write are admitted now, and how many could be without
    /// the limit of the rate limiter. `slots` slots and `free` sectors are free; `idle` says that
    /// garbage collection relocates nothing.
    #[inline(always)]
    pub(super) fn admissible(&self, left: u32, slots: u32, free: u64, idle: bool) -> (u32, u32) {
        let room = left.min(slots);
        let spare = if idle { None } else { self.gc.credit_while_deferred(free) };
        let n = match spare {
            Some(spare) => room.min(spare),
            None => self
                .gc
                .limiter()
                .admissible_sectors(room, free, idle)
                .max(room.min(self.requests.writes().reserve_grant())),
        };
        (n, room)
    }

    /// Whether a queued request is a write that is admitted as a whole, if writes are atomic.
    fn is_atomic(&self, p: &QueuedWrite) -> bool {
        !p.is_trim() && p.sectors <= self.env.geometry.ws_opt
    }

    /// Lets a shorter write overtake the first request, which does not fit the open unit. Without one the
    /// unit is padded, also if the request cannot be admitted yet: other units may wait for this one,
    /// from which their paired pages are programmed. Returns whether there is a shorter write.
    #[cold]
    #[inline(never)]
    fn fill_open_unit(&mut self, ring: usize, flash: &mut impl FlashBackend) -> bool {
        let sectors = self.buffer.ring(ring).free_in_unit();
        // A write that waits for a translation page would let the pages of the first one go.
        let (env, mapping, buffer) = (&self.env, &self.mapping, &self.buffer);
        let is_ready = |write: &QueuedWrite| {
            !mapping.is_cached() || mapping.are_pages_resident(env, write.lba, write.sectors)
        };
        let is_of_ring = |write: &QueuedWrite| {
            let route = route(mapping, buffer, write, true);
            !env.config.hot_stream || route.ring == ring && route.sectors == write.sectors
        };
        let fits = |write: &QueuedWrite| is_ready(write) && is_of_ring(write);
        if self.requests.writes_mut().promote(sectors, fits) {
            return true;
        }
        self.stats.atomic_padding += u64::from(sectors);
        self.pad_open_unit(ring, flash);
        false
    }

    /// Returns the ring of the host that takes the next sectors of a write, and how many of them. With
    /// `whole`, a write of at most a write unit is not split.
    pub(crate) fn route(&self, p: &QueuedWrite, whole: bool) -> Route {
        if !self.env.config.hot_stream {
            return Route { ring: HOST, sectors: p.left() };
        }
        route(&self.mapping, &self.buffer, p, whole && self.is_atomic(p))
    }

    /// Whether a queued request is an atomic write that does not fit the open unit.
    fn is_too_long_for_unit(&self, ring: usize, p: &QueuedWrite) -> bool {
        let free = self.buffer.ring(ring).free_in_unit();
        self.is_atomic(p) && free > 0 && free < p.sectors
    }

    /// Returns how many sectors of an atomic write are admitted now, if [`admissible`](Ftl::admissible)
    /// has fewer than its `sectors`: none, or all of them while garbage collection is deferred. Space
    /// then becomes critical by less than a unit. Otherwise it would be deferred without end.
    #[cold]
    fn admissible_whole(&self, sectors: u32, slots: u32, free: u64, idle: bool) -> u32 {
        let is_deferred = !idle && self.gc.credit_while_deferred(free).is_some();
        if is_deferred && sectors <= slots { sectors } else { 0 }
    }

    /// Counts `n` admitted sectors of a write, before which `free` sectors were free.
    #[inline(always)]
    pub(super) fn account_admitted(&mut self, n: u32, free: u64) {
        self.gc.host_wrote(n, free);
        if self.requests.writes().reserve_grant() > 0 {
            let used = self.requests.writes_mut().use_reserve(n);
            self.stats.host_writes_from_reserve += u64::from(used);
        }
    }

    /// Counts the sectors that the host has written.
    #[inline(always)]
    pub(super) fn record_written(&mut self, written: u64) {
        if written > 0 {
            self.stats.host_writes += written;
            self.gc.record_host_change();
            self.durability.record_host_change();
        }
    }

    /// Returns the sectors that the `i`-th waiting write or trim has still to process, as the first
    /// one and the end.
    pub(crate) fn pending_sectors(&self, i: usize) -> Option<(Lba, Lba)> {
        self.requests.writes().get(i).map(|p| (p.next_lba(), p.lba + p.sectors))
    }

    fn trim_slice(
        &mut self,
        now: Nanos,
        lba: Lba,
        sectors: u32,
        flash: &mut impl FlashBackend,
    ) -> u32 {
        // With a map cache, page by page.
        let Some(run) = self.mapping.run_in_page(lba, sectors) else {
            return self.trim_entries(lba, sectors);
        };
        if !self.mapping.is_known_empty(&self.env, self.env.pages.page_of(lba)) {
            let run = self.prepare_modify(now, lba, sectors, |_| u32::MAX, flash);
            return self.trim_entries(lba, run);
        }
        run
    }

    fn trim_entries(&mut self, lba: Lba, sectors: u32) -> u32 {
        if sectors > 0 {
            self.gc.record_host_change();
            self.durability.record_host_change();
        }
        let mut at = lba;
        while at < lba + sectors {
            // Unmapped sectors are skipped as a range.
            let rest = self.mapping.raw_range(at, lba + sectors - at);
            let Some(skip) = rest.iter().position(|w| *w != 0) else { break };
            at += skip.to_u32();
            match self.mapping.set(at, L2pEntry::Unmapped) {
                L2pEntry::Flash(phys) => {
                    if let Some(change) = self.space.invalidate(phys, None) {
                        self.gc.on_candidate(change);
                    }
                }
                L2pEntry::Buffer(slot) => self.buffer.record_trimmed(slot),
                L2pEntry::Unmapped | L2pEntry::Lost => {}
            }
            self.stats.trimmed += 1;
            self.durability.trimmed(at, self.env.pages.page_of(at));
            at += 1;
        }
        sectors
    }

    /// Fails the requests that can never continue: writes without space, and flushes of data without
    /// space, when no operation in flight would free any and writes may not use the reserve. Returns
    /// whether writes may use the reserve, or a trim behind failed writes can continue.
    #[inline]
    pub(crate) fn fail_if_full(&mut self) -> bool {
        // The usual case: programs in flight will free space.
        self.space.programs().total() == 0 && self.fail_without_programs()
    }

    #[inline(never)]
    fn fail_without_programs(&mut self) -> bool {
        if self.requests.writes().is_empty() && !self.durability.barriers().has_host_requests() {
            return false;
        }
        let under_way = self.space.erasing() > 0
            || self.gc.reads_in_flight() > 0
            || self.mapping.fetches_in_flight() > 0
            || self.mapping.page_rebuild().is_scanning()
            || !self.durability.journal().is_idle()
            || self.gc.is_deferring() && self.host_reads_in_flight() > 0
            || self.durability.is_syncing_trims()
            || self.mapping.named().is_some_and(|named| named.awaits_owner())
                && self.durability.journal().failed().is_none();
        if under_way {
            return false;
        }
        let is_write = |p: QueuedWrite| !p.is_trim();
        let granted = self.requests.writes_mut().set_reserve_grant(0);
        if granted == 0
            && self.requests.writes().front().is_some_and(is_write)
            && self.host_can_use_reserve()
        {
            self.requests.writes_mut().set_reserve_grant(self.env.geometry.ws_opt);
            return true;
        }
        let mut failed = false;
        while let Some(p) = self.requests.writes().front() {
            // The first trim was tried already: it needs a page for which there is no frame.
            if p.is_trim() && (failed || self.mapping.can_modify_now(&self.env, p.next_lba())) {
                return true;
            }
            let tag = p.tag;
            failed = true;
            self.requests.writes_mut().pop_front();
            if let Some(named) = self.mapping.named_mut() {
                named.fail_write();
            }
            self.complete(tag, Status::CAPACITY_EXCEEDED);
        }
        while let Some(owner) = self.durability.pop_last_host() {
            match owner {
                BarrierOwner::Named(tag, slot) => self.abandon_named(tag, slot),
                BarrierOwner::Host(tag) => self.complete(tag, Status::CAPACITY_EXCEEDED),
                BarrierOwner::Erase(_) => {}
            }
        }
        self.complete_deferred_with(Status::CAPACITY_EXCEEDED);
        false
    }
}
