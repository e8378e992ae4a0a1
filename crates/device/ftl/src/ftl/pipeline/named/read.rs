//! Reads of sectors with names.

use nvme::{PhysSector, Status};
use time::Nanos;

use crate::flash::OpKind;
use crate::ids::Lba;
use crate::mapping::named::NamedRead;
use crate::{
    FlashBackend, Ftl, NamedOob, Oob, OpToken, ReadAddress, ReadDest, SectorName, SectorNameError,
};

impl Ftl {
    /// Reads the sector with a name into the memory of request `request`, if its tag is `tag`. Never
    /// returns other data. The old name of a sector whose move is not confirmed is as good as the new one.
    ///
    /// The tag is beside the sector on the media. If it turns out to be another one, the read completes with
    /// [`Status::APPLICATION_TAG_CHECK`], and the memory of the request has zeros.
    ///
    /// # Errors
    /// [`SectorNameError`]: the request is not started, and does not complete.
    pub fn read_named(
        &mut self,
        now: Nanos,
        request: u64,
        name: SectorName,
        tag: u64,
        flash: &mut impl FlashBackend,
    ) -> Result<(), SectorNameError> {
        let named = self.mapping.named_mut().ok_or(SectorNameError::Logical)?;
        let phys = match named.find_readable(&self.env, name) {
            Ok(phys) => phys,
            Err(error) => {
                named.stats.stale_reads += 1;
                return Err(error);
            }
        };
        self.stats.host_reads += 1;
        if let Some(slot) = self.slot_of_named(phys) {
            if self.buffer.named().get(slot).tag != tag {
                self.count_foreign_read();
                return Err(SectorNameError::ForeignTag);
            }
            self.stats.buffer_hits += 1;
            flash.copy_to_host(request, 0, slot);
            self.complete(request, Status::SUCCESS);
            return Ok(());
        }
        let index = self.begin_read(request, Lba(0), 1);
        if let Some(named) = self.mapping.named_mut() {
            named.begin_read(index, NamedRead { phys, tag });
        }
        let op = OpToken::new(OpKind::HostRead, index);
        flash.read(now, op, &[ReadAddress::to_host(phys, 0)], ReadDest::Host(request));
        Ok(())
    }

    fn count_foreign_read(&mut self) {
        if let Some(named) = self.mapping.named_mut() {
            named.stats.foreign_reads += 1;
        }
    }

    /// Returns the slot of a sector that cannot be read from the media yet.
    fn slot_of_named(&self, phys: PhysSector) -> Option<crate::SlotId> {
        let geometry = &self.env.geometry;
        let (chunk, sector) = (geometry.chunk_of(phys), geometry.sector_in_chunk(phys));
        let state = self.space.chunk(chunk);
        if sector < state.readable_end(geometry) && !state.offline {
            return None;
        }
        let slot = self.buffer.slot_at(geometry, chunk, sector);
        slot.or_else(|| self.buffer.slot_of_redispatched(phys))
    }

    /// Reports the end of a host read from the media: compares the tags.
    pub(crate) fn named_read_done(
        &mut self,
        index: u32,
        failed: u64,
        flash: &mut impl FlashBackend,
    ) {
        let read = self.requests.reads_mut().complete_one(index, failed == 0);
        let Some(named) = self.mapping.named_mut() else { return };
        let Some(NamedRead { phys, tag }) = named.end_read(index) else { return };
        if failed != 0 {
            self.record_uncorrectable(self.env.geometry.chunk_of(phys));
            flash.record_unreadable(read.tag, 0);
            return self.complete(read.tag, read.status);
        }
        if flash.stores_data() {
            let mut bytes = [0; Oob::BYTES];
            flash.read_host_oob(read.tag, 0, phys, &mut bytes);
            let oob = NamedOob::decode(&bytes).filter(|oob| !oob.is_padding);
            if oob.is_none_or(|oob| oob.tag != tag) {
                named.stats.foreign_reads += 1;
                flash.zero_to_host(read.tag, 0);
                return self.complete(read.tag, Status::APPLICATION_TAG_CHECK.do_not_retry());
            }
        }
        self.complete(read.tag, read.status);
    }
}
