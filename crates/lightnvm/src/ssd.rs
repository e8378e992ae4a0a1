//! [`Ssd`]: an open-channel drive that a host has attached to (LightNVM paper sections 3.2 and 4.1:
//! identification and the chunk metadata are what the host's management starts from; OC section 3).
//!
//! Owns the controller, and with it the admin queue of the port. Guarantees: what it tells has been
//! checked against the geometry; everything that talks to the drive takes a `pump`, which lets an
//! in-process drive run and is called at most `patience` times for one answer.

use std::sync::Arc;

use clock::Nanos;
use driver::{ControllerHandle, ControllerInfo, DriverError, OpenChannelInfo, QueuePair};
use nvme::{Address, ChunkDescriptor, ChunkState, Geometry, Ppa};
use ring::Port;

use crate::ppa::{AddressError, Buffers, PpaSpace, PuIndex, PuSet};
use crate::vector::{MemoryError, VectorCompletion, VectorQueue};

/// Why a drive cannot be used by physical addresses, or an admin command not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum OcssdError {
    /// The drive manages its flash itself.
    #[error(
        "drive {serial} is not open-channel: it manages its own flash, use it as a block device \
         as it is"
    )]
    NotOpenChannel {
        /// The drive.
        serial: String,
    },
    /// The drive cannot be brought up, or refused an admin command.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// An address names nothing.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No memory for lists of addresses.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The drive says something of a chunk that cannot be.
    #[error("the drive says that chunk {chunk} {what}")]
    Chunk {
        /// Its first sector.
        chunk: Address,
        /// What cannot be.
        what: String,
    },
}

/// What the drive says of a chunk (OC section 3, chunk information).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkInfo {
    /// Its first sector.
    pub address: Address,
    /// Its state.
    pub state: ChunkState,
    /// Whether it is written in order, as flash is; else in any order.
    pub sequential: bool,
    /// Wear: 0 for a fresh chunk, 255 for one at its end.
    pub wear_index: u8,
    /// Sectors that it has; may be fewer than the geometry says.
    pub sectors: u32,
    /// Sectors written; 0 for an offline chunk.
    pub write_pointer: u32,
}

impl ChunkInfo {
    /// Whether a program failure has closed it before its end.
    pub fn is_closed_early(&self) -> bool {
        self.state == ChunkState::Closed && self.write_pointer < self.sectors
    }
}

/// What the drive says of its media's speed, without transfers and queues: one parallel unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Performance {
    /// Reading a write unit: typical, and maximum.
    pub read: (Nanos, Nanos),
    /// Writing a write unit: typical, and maximum.
    pub write: (Nanos, Nanos),
    /// Resetting a chunk: typical, and maximum.
    pub reset: (Nanos, Nanos),
    /// Bytes per second that one parallel unit reads, a write unit at a time; `None` if the drive
    /// does not say.
    pub pu_read_bytes_per_sec: Option<u64>,
    /// Bytes per second that one parallel unit writes; `None` if the drive does not say.
    pub pu_write_bytes_per_sec: Option<u64>,
}

/// An open-channel drive.
#[derive(Debug)]
pub struct OpenChannelSsd {
    controller: ControllerHandle,
    open_channel: OpenChannelInfo,
    buffers: Buffers,
    poll_limit: u64,
}

impl OpenChannelSsd {
    /// Brings up the drive at the other end of `port`. `pump` lets an in-process drive run, or
    /// yields to one elsewhere; `patience` is how often it is called for one answer, here and later.
    ///
    /// # Errors
    /// [`OcssdError::NotOpenChannel`], [`OcssdError::Driver`].
    pub fn attach(
        port: Arc<Port>,
        pump: &mut dyn FnMut(),
        patience: u64,
    ) -> Result<OpenChannelSsd, OcssdError> {
        OpenChannelSsd::from_controller(ControllerHandle::connect(port, pump, patience)?, patience)
    }

    /// The drive of a controller that has been brought up.
    ///
    /// # Errors
    /// [`OcssdError::NotOpenChannel`].
    pub fn from_controller(
        controller: ControllerHandle,
        patience: u64,
    ) -> Result<OpenChannelSsd, OcssdError> {
        let info = controller.info();
        let open_channel = info
            .open_channel
            .ok_or_else(|| OcssdError::NotOpenChannel { serial: info.serial.clone() })?;
        let Geometry { sector_bytes, oob_bytes, .. } = open_channel.geometry;
        let buffers = Buffers::new(controller.port().memory(), sector_bytes, oob_bytes);
        Ok(OpenChannelSsd { open_channel, buffers, poll_limit: patience, controller })
    }

    /// What the drive says about itself.
    pub fn info(&self) -> &ControllerInfo {
        self.controller.info()
    }

    /// What it says about its media.
    pub fn open_channel(&self) -> &OpenChannelInfo {
        &self.open_channel
    }

    /// Its shape.
    pub fn geometry(&self) -> &Geometry {
        &self.open_channel.geometry
    }

    /// Its address space.
    pub fn space(&self) -> PpaSpace {
        PpaSpace::new(self.open_channel.geometry, self.open_channel.format)
    }

    /// Memory for the data of its vectors.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// The connection to it.
    pub fn port(&self) -> &Arc<Port> {
        self.controller.port()
    }

    /// The controller, for admin commands that are not here.
    pub fn controller(&mut self) -> &mut ControllerHandle {
        &mut self.controller
    }

    /// How often a pump is called in vain before a command counts as unanswered.
    pub fn poll_limit(&self) -> u64 {
        self.poll_limit
    }

    /// Whether it copies sectors by itself.
    pub fn can_copy(&self) -> bool {
        self.open_channel.can_copy
    }

    /// Chunks that may be open at a time; `None` for no limit.
    pub fn max_open_chunks(&self) -> Option<u32> {
        Some(self.open_channel.max_open_chunks).filter(|n| *n > 0)
    }

    /// How fast its media is.
    pub fn performance(&self) -> Performance {
        let (t, g) = (&self.open_channel.timing, self.geometry());
        let unit_bytes = u64::from(g.ws_min) * u64::from(g.sector_bytes);
        let nanos = |typical: u32, max: u32| (Nanos(typical.into()), Nanos(max.into()));
        let rate = |nanos: u32| (unit_bytes * 1_000_000_000).checked_div(nanos.into());
        Performance {
            read: nanos(t.read_typical, t.read_max),
            write: nanos(t.write_typical, t.write_max),
            reset: nanos(t.reset_typical, t.reset_max),
            pu_read_bytes_per_sec: rate(t.read_typical),
            pu_write_bytes_per_sec: rate(t.write_typical),
        }
    }

    /// Everything that the drive says of its chunks, in the order of their addresses.
    ///
    /// # Errors
    /// [`OcssdError::Driver`]; [`OcssdError::Chunk`] for what cannot be.
    pub fn chunks(&mut self, pump: &mut dyn FnMut()) -> Result<Vec<ChunkInfo>, OcssdError> {
        let all = self.geometry().total_chunks();
        self.report(0, all, pump)
    }

    /// What the drive says of the chunks of one parallel unit.
    ///
    /// # Errors
    /// As for [`chunks`](Ssd::chunks); [`OcssdError::Address`] for a unit that it does not have.
    pub fn chunks_on_pu(
        &mut self,
        pu: PuIndex,
        pump: &mut dyn FnMut(),
    ) -> Result<Vec<ChunkInfo>, OcssdError> {
        self.space().pu_address(pu)?;
        let chunks = u64::from(self.geometry().chunks);
        self.report(u64::from(pu.0) * chunks, chunks, pump)
    }

    /// What the drive says of the chunks of a set of parallel units.
    ///
    /// # Errors
    /// As for [`chunks_of`](OpenChannelSsd::chunks_on_pu).
    pub fn chunks_on_pus(
        &mut self,
        pus: &PuSet,
        pump: &mut dyn FnMut(),
    ) -> Result<Vec<ChunkInfo>, OcssdError> {
        pus.check(&self.space())?;
        let mut chunks = Vec::new();
        for pu in pus.iter() {
            chunks.extend(self.chunks_on_pu(pu, pump)?);
        }
        Ok(chunks)
    }

    /// What the drive says of the chunk that an address is in.
    ///
    /// # Errors
    /// As for [`chunks_of`](OpenChannelSsd::chunks_on_pu).
    pub fn chunk(
        &mut self,
        address: Address,
        pump: &mut dyn FnMut(),
    ) -> Result<ChunkInfo, OcssdError> {
        let number = self.space().chunk_index(address)?;
        let nothing = || OcssdError::Chunk { chunk: address, what: "is not in its report".into() };
        self.report(number, 1, pump)?.pop().ok_or_else(nothing)
    }

    /// Makes the best write another multiple of the smallest, which the emulated drives do not have.
    #[cfg(test)]
    pub(crate) fn set_ws_opt(&mut self, sectors: u32) {
        self.open_channel.geometry.ws_opt = sectors;
    }

    fn report(
        &mut self,
        first: u64,
        count: u64,
        pump: &mut dyn FnMut(),
    ) -> Result<Vec<ChunkInfo>, OcssdError> {
        let space = self.space();
        let descriptors = self.controller.chunks(first, count, pump)?;
        let understood = |(n, d): (u64, &ChunkDescriptor)| parse_chunk_info(&space, n, d);
        (first..).zip(&descriptors).map(understood).collect()
    }

    /// Makes a queue that takes `depth` commands at a time (1 or more), and raises interrupt `vector`
    /// after completions if there is one.
    ///
    /// # Errors
    /// [`OcssdError::Driver`], [`OcssdError::Memory`].
    pub fn create_queue(
        &mut self,
        depth: u16,
        vector: Option<u16>,
        pump: &mut dyn FnMut(),
    ) -> Result<VectorQueue, OcssdError> {
        // A ring holds one command less than it has entries.
        let entries = depth.checked_add(1).filter(|_| depth > 0).ok_or(DriverError::Depth {
            depth,
            allowed: "a vector queue takes 1 to 65534 commands at a time",
        })?;
        let pair = self.controller.create_queue_pair(entries, vector, pump)?;
        Ok(VectorQueue::new(pair, self.port().clone(), self.info())?)
    }

    /// Deletes a queue. Commands that are outstanding come back through `back`, exactly once: with
    /// the drive's answer if it still gives one, else with
    /// [`nvme::Status::ABORTED_SQ_DELETED`].
    ///
    /// # Errors
    /// [`OcssdError::Driver`]; the queue is gone and its commands have come back all the same.
    pub fn delete_queue(
        &mut self,
        queue: VectorQueue,
        back: &mut dyn FnMut(VectorCompletion),
        pump: &mut dyn FnMut(),
    ) -> Result<(), OcssdError> {
        let (pair, flights): (QueuePair, _) = queue.into_parts();
        let mut understood = |done| back(flights.completion(&done));
        Ok(self.controller.delete_queue_pair(pair, &mut understood, pump)?)
    }
}

/// A chunk descriptor, checked: it is that of the chunk it is said to be, and its numbers fit.
fn parse_chunk_info(
    space: &PpaSpace,
    number: u64,
    d: &ChunkDescriptor,
) -> Result<ChunkInfo, OcssdError> {
    let g = space.geometry();
    let flat = crate::ppa::PhysSector(number * u64::from(g.sectors));
    let chunk = space.address_of(flat)?;
    let wrong = |what: String| OcssdError::Chunk { chunk, what };
    let first = Ppa(d.slba.get());
    if space.ppa(chunk)? != first {
        return Err(wrong(format!("starts at {}", space.components(first))));
    }
    let state = d.chunk_state().ok_or_else(|| wrong(format!("is in state {:#04x}", d.state)))?;
    let (sectors, wp) = (d.cnlb.get(), d.wp.get());
    if sectors == 0 || sectors > g.sectors.into() {
        return Err(wrong(format!("has {sectors} sectors, of {} at most", g.sectors)));
    }
    if wp > sectors || state == ChunkState::Free && wp != 0 {
        return Err(wrong(format!("is {state:?} with {wp} of {sectors} sectors written")));
    }
    Ok(ChunkInfo {
        address: chunk,
        state,
        sequential: d.kind & ChunkDescriptor::RANDOM == 0,
        wear_index: d.wear_index,
        sectors: sectors as u32,
        write_pointer: if state == ChunkState::Offline { 0 } else { wp as u32 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> PpaSpace {
        PpaSpace::from_geometry(Geometry {
            groups: 3,
            pus: 5,
            chunks: 7,
            sectors: 24,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 8,
            ws_opt: 8,
            mw_cunits: 0,
        })
        .unwrap()
    }

    #[test]
    fn chunk_descriptors_that_cannot_be_are_refused_by_chunk() {
        let space = space();
        let address = Address { group: 1, pu: 2, chunk: 3, sector: 0 };
        let number = space.chunk_index(address).unwrap();
        let good = ChunkDescriptor {
            state: ChunkState::Open.to_bits(),
            kind: ChunkDescriptor::SEQUENTIAL,
            wear_index: 9,
            slba: space.ppa(address).unwrap().0.into(),
            cnlb: 24.into(),
            wp: 8.into(),
            ..ChunkDescriptor::default()
        };
        let info = parse_chunk_info(&space, number, &good).unwrap();
        let want = ChunkInfo {
            address,
            state: ChunkState::Open,
            sequential: true,
            wear_index: 9,
            sectors: 24,
            write_pointer: 8,
        };
        assert_eq!(info, want);
        assert!(!info.is_closed_early());
        let closed = ChunkDescriptor { state: ChunkState::Closed.to_bits(), ..good };
        assert!(parse_chunk_info(&space, number, &closed).unwrap().is_closed_early());
        let free = ChunkState::Free.to_bits();
        for (bad, what) in [
            (ChunkDescriptor { slba: 0.into(), ..good }, "starts at 0/0/0/0"),
            (ChunkDescriptor { state: 3, ..good }, "is in state 0x03"),
            (ChunkDescriptor { cnlb: 25.into(), ..good }, "has 25 sectors, of 24 at most"),
            (ChunkDescriptor { cnlb: 0.into(), ..good }, "has 0 sectors, of 24 at most"),
            (ChunkDescriptor { wp: 25.into(), ..good }, "is Open with 25 of 24 sectors written"),
            (ChunkDescriptor { state: free, ..good }, "is Free with 8 of 24 sectors written"),
        ] {
            let error = parse_chunk_info(&space, number, &bad).unwrap_err().to_string();
            assert_eq!(error, format!("the drive says that chunk 1/2/3/0 {what}"));
        }
    }
}
