//! Host reads: every sector is looked up once, and sectors on the media are read with as few calls
//! as the number of addresses per call allows.
//!
//! Guarantee: a read returns for a sector what the map says at one instant between submission and
//! completion. A read whose map page is not in memory waits for it, and does not block other
//! requests.

use crate::ReadAddress;
use nvme::{PhysSector, Status};
use time::Nanos;
use tracepoint::Event;

use crate::flash::OpKind;
use crate::ids::Lba;
use crate::mapping::cache::fetch::FetchReason;
use crate::requests::host_reads::HostRead;
use crate::{FlashBackend, Ftl, L2pEntry, OpToken, ReadDest};

impl Ftl {
    /// Reads `sectors` from `slba` into the memory of request `tag`.
    #[inline]
    pub fn read(
        &mut self,
        now: Nanos,
        tag: u64,
        slba: u64,
        sectors: u32,
        flash: &mut impl FlashBackend,
    ) {
        let Some(lba) = self.host_sector(slba, sectors) else {
            return self.complete(tag, Status::LBA_OUT_OF_RANGE.do_not_retry());
        };
        self.stats.host_reads += u64::from(sectors);
        if sectors == 1
            && !self.mapping.is_cached()
            && let L2pEntry::Flash(phys) = self.mapping.get(lba)
            && !self.mapping.is_poisoned(phys)
        {
            let index = self.begin_read(tag, lba, 1);
            let op = OpToken::new(OpKind::HostRead, index);
            return flash.read(now, op, &[ReadAddress::to_host(phys, 0)], ReadDest::Host(tag));
        }
        self.read_many(now, tag, lba, sectors, flash);
    }

    /// Adds a host read with one flash read in flight, and returns its index.
    #[inline]
    pub(super) fn begin_read(&mut self, tag: u64, lba: Lba, sectors: u32) -> u32 {
        let status = Status::SUCCESS;
        self.requests.reads_mut().begin(HostRead {
            tag,
            outstanding: 1,
            status,
            lba,
            sectors,
            resolved: sectors,
        })
    }

    /// Reads host sectors or padding for any purpose.
    fn read_many(
        &mut self,
        now: Nanos,
        tag: u64,
        lba: Lba,
        sectors: u32,
        flash: &mut impl FlashBackend,
    ) {
        let index = self.begin_read(tag, lba, sectors);
        let read = HostRead { outstanding: 0, resolved: 0, ..self.requests.reads().get(index) };
        let looked_up = self.lookup(now, index, read, FetchReason::ReadFast, flash);
        if !looked_up {
            // The page needs a frame first, or its fetch must end.
            self.mapping.add_waiting_read(index);
        }
        if !looked_up || self.mapping.page_rebuild().has_new_job() {
            self.kick(now, flash);
        }
    }

    /// Looks up the remaining sectors of a read and starts their flash reads. Returns `false` if it
    /// needs a page that cannot be fetched as `demand` asks; the caller then queues the read.
    #[inline]
    fn lookup(
        &mut self,
        now: Nanos,
        index: u32,
        mut read: HostRead,
        demand: FetchReason,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let (tag, lba) = (read.tag, read.lba);
        let op = OpToken::new(OpKind::HostRead, index);
        let mut addresses = self.requests.reads_mut().take_addresses();
        let mut waits = None;
        while read.resolved < read.sectors {
            let (first, left) = (read.resolved, read.sectors - read.resolved);
            let run = match self.resident_run(now, lba + first, left, demand, flash) {
                Ok(run) => run,
                Err(fetch) => {
                    waits = Some(fetch);
                    break;
                }
            };
            for i in first..first + run {
                match self.mapping.get(lba + i) {
                    L2pEntry::Unmapped => {
                        self.stats.unmapped_reads += 1;
                        flash.zero_to_host(tag, i);
                    }
                    L2pEntry::Buffer(slot) => {
                        let entry = self.buffer.entry(slot);
                        if let Some(source) = entry.source() {
                            addresses.push(ReadAddress::to_host(source, i));
                        } else if entry.poison {
                            self.stats.buffer_hits += 1;
                            read.status = Status::UNRECOVERED_READ;
                            flash.record_unreadable(tag, i);
                        } else {
                            self.stats.buffer_hits += 1;
                            flash.copy_to_host(tag, i, slot);
                        }
                    }
                    L2pEntry::Flash(phys) if !self.mapping.is_poisoned(phys) => {
                        addresses.push(ReadAddress::to_host(phys, i));
                    }
                    L2pEntry::Flash(_) | L2pEntry::Lost => {
                        read.status = Status::UNRECOVERED_READ;
                        flash.record_unreadable(tag, i);
                    }
                }
                if addresses.len() == 64 {
                    flash.read(now, op, &addresses, ReadDest::Host(tag));
                    read.outstanding += 1;
                    addresses.clear();
                }
            }
            read.resolved = first + run;
        }
        if !addresses.is_empty() {
            flash.read(now, op, &addresses, ReadDest::Host(tag));
            read.outstanding += 1;
            addresses.clear();
        }
        self.requests.reads_mut().return_addresses(addresses);
        if waits.is_none() && read.outstanding == 0 {
            self.requests.reads_mut().release(index);
            self.complete(tag, read.status);
            return true;
        }
        if waits.is_some() {
            tracepoint::trace_at(now, || Event::FtlMapWait { tag });
        }
        // The fetch of the page counts as outstanding.
        read.outstanding += u32::from(waits.is_some());
        self.requests.reads_mut().update(index, read);
        match waits {
            Some(Some(fetch)) => {
                let last = self.mapping.add_fetch_waiter(fetch, index);
                self.requests.reads_mut().append_waiter(last, index);
            }
            Some(None) => return false,
            None => {}
        }
        true
    }

    /// Continues a read whose page is in memory or may be fetched now; `false` as for
    /// [`lookup`](Ftl::lookup).
    pub(crate) fn step_read(
        &mut self,
        now: Nanos,
        index: u32,
        demand: FetchReason,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let mut read = self.requests.reads().get(index);
        read.outstanding -= 1;
        self.lookup(now, index, read, demand, flash)
    }

    /// Returns the number of host reads that wait for the flash.
    #[inline]
    pub(crate) fn host_reads_in_flight(&self) -> usize {
        self.requests.reads().in_flight()
    }

    /// Prefetches the map entries of sectors that are looked up next, so that their cache misses
    /// overlap.
    #[inline]
    pub fn prefetch_l2p(&self, lbas: impl Iterator<Item = u64>) {
        let mut seen = 0;
        for lba in lbas {
            let lba = u32::try_from(lba).ok().map(Lba);
            seen ^= lba.and_then(|lba| self.mapping.prefetch(lba)).map_or(0, PhysSector::get);
        }
        std::hint::black_box(seen);
    }

    /// Reports the end of a read. Returns whether [`kick`](Ftl::kick) is to be called: the read was
    /// not a host's, it failed, or work was deferred for host reads. Bit `i` of `failed` stands for
    /// the `i`-th address of the call.
    #[inline]
    pub fn read_done(&mut self, op: OpToken, failed: u64, flash: &mut impl FlashBackend) -> bool {
        if op.kind() != OpKind::HostRead {
            self.internal_read_done(op, failed, flash);
            return true;
        }
        let index = op.index();
        if self.mapping.is_named() {
            self.named_read_done(index, failed, flash);
            return true;
        }
        let read = self.requests.reads_mut().complete_one(index, failed == 0);
        if read.outstanding == 0 {
            self.complete(read.tag, read.status);
        }
        if failed != 0 {
            self.host_read_failed(read.lba, read.sectors);
        }
        failed != 0 || self.gc.is_deferring() || self.mapping.page_rebuild().is_busy()
    }

    /// Reports the end of a read that is none of the host's.
    #[inline]
    fn internal_read_done(&mut self, op: OpToken, failed: u64, flash: &mut impl FlashBackend) {
        match op.kind() {
            OpKind::GcRead => self.gc_read_done(op.index(), failed, flash),
            OpKind::MapRead => self.map_read_done(op.index(), failed, flash),
            OpKind::Meta => self.metadata_read_done(op.index(), failed, flash),
            _ => op.expect_kind(OpKind::HostRead),
        }
    }
}
