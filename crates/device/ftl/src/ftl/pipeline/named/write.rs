//! Writes and frees of sectors with names.

use nvme::Status;
use time::Nanos;
use tracepoint::Event;

use crate::buffer::named_slots::NamedSlot;
use crate::buffer::unit_id::UnitId;
use crate::buffer::write_ring::UnitState;
use crate::durability::barriers::{BarrierOwner, TrimDep};
use crate::ftl::HOST;
use crate::ids::{Lba, NO_SECTOR, SlotId, WriteSeq};
use crate::requests::queue::{QueuedWrite, QueuedWriteKind};
use crate::{
    BufferEntry, FlashBackend, FoundName, Ftl, HostStream, NamedSectorStats, NamedWrite,
    SectorName, SectorNameError,
};

/// In place of the logical sector of a sector with a name.
const NO_LBA: Lba = Lba(0);

impl Ftl {
    /// Writes one sector with the host's `tag`; the data is taken from request `request` during a
    /// [`kick`](Ftl::kick). Completes when the sector is on the media. Its name has been put into the queue of
    /// [`pop_named_write`](Ftl::pop_named_write) then.
    ///
    /// Fails with [`Status::CAPACITY_EXCEEDED`] if the host has as many sectors as the FTL offers, or if
    /// there is no space; and with [`Status::INVALID_OPCODE`] if sectors have logical addresses. After a
    /// power cut, the sector of a write that failed for want of space may be among the [names that the
    /// recovery found](Ftl::take_found_names).
    pub fn write_named(&mut self, request: u64, tag: u64) {
        let capacity = u64::from(self.env.plan.logical);
        // Numbers that may be assigned before this write gets one.
        let ahead = u64::from(self.buffer.capacity());
        let next = self.buffer.next_seq().get();
        let Some(named) = self.mapping.named_mut() else {
            return self.complete(request, Status::INVALID_OPCODE.do_not_retry());
        };
        if named.used() >= capacity || WriteSeq(next + ahead) >= named.epoch_end() {
            return self.complete(request, Status::CAPACITY_EXCEEDED);
        }
        named.queue_write(tag);
        tracepoint::trace(|| Event::FtlQueued { tag: request });
        self.requests.writes_mut().push(QueuedWrite {
            kind: QueuedWriteKind::Named,
            tag: request,
            lba: NO_LBA,
            done_sectors: 0,
            sectors: 1,
            durable: true,
            stream: HostStream::Host,
        });
    }

    /// Admits queued writes into the ring of the host.
    pub(crate) fn admit_named(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let (mut free, mut slots) = (self.free_sectors(), self.buffer.ring(HOST).free());
        let idle = !self.gc.is_relocating();
        let mut written = 0;
        while let Some(write) = self.requests.writes().front() {
            if self.admissible(1, slots, free, idle).0 == 0 {
                break;
            }
            let Some(named) = self.mapping.named_mut() else { break };
            let sector = NamedSlot { tag: named.admit_write(), request: Some(write.tag) };
            let entry = BufferEntry {
                lba_plus_1: NO_LBA.get() + 1,
                poison: false,
                durable_copy: NO_SECTOR,
                durable_copy_seq: WriteSeq(0),
                trim_dep: 0,
                source: NO_SECTOR,
            };
            let slot = self.buffer.push(HOST, entry, false);
            self.buffer.named_mut().set(slot, sector);
            flash.copy_from_host(write.tag, 0, slot);
            self.account_admitted(1, free);
            (free, slots, written) = (free.saturating_sub(1), slots - 1, written + 1);
            self.requests.writes_mut().pop_front();
            tracepoint::trace_at(now, || Event::FtlAdmitted { tag: write.tag, durable: true });
            self.add_barrier(BarrierOwner::Named(write.tag, slot), TrimDep::None, 0);
        }
        self.record_written(written);
        written > 0
    }

    /// Whether queued writes will fill the open unit of the host's ring: an operation in flight lets them
    /// be admitted later. Every named write waits for its unit, which is not padded then.
    pub(crate) fn will_fill_unit(&self) -> bool {
        !self.requests.writes().is_empty()
            && (self.space.programs().total() > 0
                || self.space.erasing() > 0
                || self.gc.reads_in_flight() > 0)
    }

    /// Makes the sectors of a unit valid that is on the media now: those that the host wrote, and copies
    /// of valid sectors. `redispatched` says that the unit was on the media before.
    pub(crate) fn publish_named(&mut self, id: UnitId, redispatched: bool) {
        let unit = *self.buffer.unit(id);
        let first_phys = self.env.geometry.first_sector_of(unit.chunk) + unit.sector;
        let slots = self.buffer.ring(id.ring()).slot_of_unit(id).run(self.env.geometry.ws_opt);
        let line = self.space.line_of(unit.chunk);
        for (phys, slot) in first_phys.ascending().zip(slots) {
            let entry = *self.buffer.entry(slot);
            if entry.durable_copy != NO_SECTOR {
                self.publish_move(slot, phys, redispatched);
            } else if entry.lba().is_some() {
                let request = self.buffer.named().get(slot).request;
                let Some(named) = self.mapping.named_mut() else { return };
                match request {
                    Some(request) => {
                        named.publish(&self.env, request, phys);
                        self.space.count_valid(line);
                    }
                    None => named.publish_abandoned(),
                }
            }
        }
    }

    /// Ends an admitted write that waits for writes which fail for want of space. It fails, too, unless its
    /// sector is on the media. Otherwise the sector is freed when it is there.
    pub(crate) fn abandon_named(&mut self, request: u64, slot: SlotId) {
        if self.buffer.unit_of(slot).state >= UnitState::Persisted {
            return self.complete(request, Status::SUCCESS);
        }
        self.buffer.named_mut().abandon(slot);
        self.complete(request, Status::CAPACITY_EXCEEDED);
    }

    /// Frees a sector. Nothing is written: after a power cut the sector may be valid again, and among the
    /// [names that the recovery found](Ftl::take_found_names). A name whose move is not confirmed frees
    /// the sector where it is now.
    ///
    /// # Errors
    /// [`SectorNameError`]; nothing has changed.
    pub fn free_named(&mut self, name: SectorName) -> Result<(), SectorNameError> {
        let named = self.mapping.named_mut().ok_or(SectorNameError::Logical)?;
        let phys = named.find_valid(&self.env, name)?;
        named.free(phys);
        let line = self.space.line_of(self.env.geometry.chunk_of(phys));
        if let Some(change) = self.space.relocated_one(line) {
            self.gc.on_candidate(change);
        }
        self.gc.record_host_change();
        self.durability.record_host_change();
        Ok(())
    }

    /// Removes and returns the name of the next sector that was written.
    #[inline]
    pub fn pop_named_write(&mut self) -> Option<NamedWrite> {
        self.mapping.named_mut()?.pop_written()
    }

    /// Takes the valid sectors that the recovery found, in the order of their locations. They are in memory
    /// until then, 16 bytes each.
    pub fn take_found_names(&mut self) -> Vec<FoundName> {
        self.mapping.named_mut().map(|named| named.take_found()).unwrap_or_default()
    }

    /// Returns the counters of an FTL whose sectors have names; `None` if they have logical addresses.
    pub fn named_stats(&self) -> Option<NamedSectorStats> {
        self.mapping.named().map(|named| named.stats)
    }
}
