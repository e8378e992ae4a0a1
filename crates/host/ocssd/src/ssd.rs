//! [`OpenChannelSsd`]: an attached open-channel drive. Identification and the chunk metadata are
//! the starting point of management by the host ([LightNVM17 §3.2, §4.1], [OC20 §3]).
//!
//! Owns the controller, and with it the admin queue of the port.
//!
//! Invariants: reported values were checked against the geometry. Every function that waits for the
//! drive takes a `progress`, which lets an in-process drive run; it is called at most `poll_limit`
//! times per completion.

use std::sync::Arc;

use driver::{ControllerHandle, ControllerInfo, DriverError, OpenChannelInfo, QueuePair};
use nvme::{Address, ChunkDescriptor, ChunkState, Geometry, Ppa};
use time::Nanos;
use transport::Port;

use crate::ppa::{AddressError, PpaSpace, PuId, PuSet, VectorBufferPool};
use crate::vector::{MemoryError, VectorCompletion, VectorQueue};

/// Why a drive cannot be used by physical addresses, or why an admin command failed.
#[derive(Debug, thiserror::Error)]
pub enum OcssdError {
    /// The drive manages its own flash.
    #[error(
        "drive {serial} is not open-channel, it manages its own flash: open it as a block device"
    )]
    NotOpenChannel {
        /// Serial number of the drive.
        serial: String,
    },
    /// The drive cannot be initialized, or failed an admin command.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// An address is outside the geometry.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Memory for address lists cannot be allocated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A chunk descriptor is inconsistent.
    #[error("the drive reports that chunk {chunk} {what}")]
    Chunk {
        /// First sector of the chunk.
        chunk: Address,
        /// The inconsistency.
        what: String,
    },
}

/// Chunk information that the drive reports [OC20 §3].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedChunk {
    /// First sector of the chunk.
    pub address: Address,
    /// State of the chunk.
    pub state: ChunkState,
    /// Whether the chunk must be written sequentially, as flash must; otherwise in any order.
    pub sequential: bool,
    /// Wear: 0 for a new chunk, 255 at the end of its endurance.
    pub wear_index: u8,
    /// Sectors of the chunk; may be fewer than the geometry says.
    pub sectors: u32,
    /// Sectors written; 0 for an offline chunk.
    pub write_pointer: u32,
}

impl ReportedChunk {
    /// Returns whether a program failure closed the chunk before its end.
    pub fn is_closed_early(&self) -> bool {
        self.state == ChunkState::Closed && self.write_pointer < self.sectors
    }
}

/// Speed of one parallel unit as the drive reports it, without transfers and queueing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Performance {
    /// Time to read a write unit: typical, maximum.
    pub read: (Nanos, Nanos),
    /// Time to write a write unit: typical, maximum.
    pub write: (Nanos, Nanos),
    /// Time to reset a chunk: typical, maximum.
    pub reset: (Nanos, Nanos),
    /// Read bandwidth of one parallel unit in bytes per second, one write unit at a time; `None` if
    /// not reported.
    pub pu_read_bytes_per_sec: Option<u64>,
    /// Write bandwidth of one parallel unit in bytes per second; `None` if not reported.
    pub pu_write_bytes_per_sec: Option<u64>,
}

/// An open-channel drive.
#[derive(Debug)]
pub struct OpenChannelSsd {
    controller: ControllerHandle,
    open_channel: OpenChannelInfo,
    buffers: VectorBufferPool,
    poll_limit: u64,
}

impl OpenChannelSsd {
    /// Initializes the drive behind `port`. `progress` lets an in-process drive run, or yields to a
    /// drive elsewhere. `patience` limits its calls per completion, here and in later calls.
    ///
    /// # Errors
    /// [`OcssdError::NotOpenChannel`], [`OcssdError::Driver`].
    pub fn attach(
        port: Arc<Port>,
        progress: &mut dyn FnMut(),
        patience: u64,
    ) -> Result<OpenChannelSsd, OcssdError> {
        OpenChannelSsd::from_controller(
            ControllerHandle::connect(port, progress, patience)?,
            patience,
        )
    }

    /// Creates the drive from an initialized controller.
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
        let buffers = VectorBufferPool::new(controller.port().memory(), sector_bytes, oob_bytes);
        Ok(OpenChannelSsd { open_channel, buffers, poll_limit: patience, controller })
    }

    /// Returns the identification of the drive.
    pub fn info(&self) -> &ControllerInfo {
        self.controller.info()
    }

    /// Returns the identification of the media.
    pub fn open_channel(&self) -> &OpenChannelInfo {
        &self.open_channel
    }

    /// Returns the geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.open_channel.geometry
    }

    /// Returns the address space.
    pub fn space(&self) -> PpaSpace {
        PpaSpace::new(self.open_channel.geometry, self.open_channel.format)
    }

    /// Returns the pool of buffers for vectors.
    pub fn buffers(&self) -> &VectorBufferPool {
        &self.buffers
    }

    /// Returns the connection to the drive.
    pub fn port(&self) -> &Arc<Port> {
        self.controller.port()
    }

    /// Returns the controller, for other admin commands.
    pub fn controller(&mut self) -> &mut ControllerHandle {
        &mut self.controller
    }

    /// Returns the number of polls without a completion after which a command times out.
    pub fn poll_limit(&self) -> u64 {
        self.poll_limit
    }

    /// Returns whether the drive supports vector copy.
    pub fn can_copy(&self) -> bool {
        self.open_channel.can_copy
    }

    /// Returns the maximum number of open chunks; `None` if unlimited.
    pub fn max_open_chunks(&self) -> Option<u32> {
        Some(self.open_channel.max_open_chunks).filter(|n| *n > 0)
    }

    /// Returns the speed of the media.
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

    /// Returns the chunk information of all chunks, in address order.
    ///
    /// # Errors
    /// [`OcssdError::Driver`]; [`OcssdError::Chunk`] for an inconsistent descriptor.
    pub fn chunks(&mut self, progress: &mut dyn FnMut()) -> Result<Vec<ReportedChunk>, OcssdError> {
        let all = self.geometry().total_chunks();
        self.report(0, all, progress)
    }

    /// Returns the chunk information of one parallel unit.
    ///
    /// # Errors
    /// As for [`chunks`](OpenChannelSsd::chunks); [`OcssdError::Address`] if the parallel unit does
    /// not exist.
    pub fn chunks_on_pu(
        &mut self,
        pu: PuId,
        progress: &mut dyn FnMut(),
    ) -> Result<Vec<ReportedChunk>, OcssdError> {
        self.space().pu_address(pu)?;
        let chunks = u64::from(self.geometry().chunks);
        self.report(u64::from(pu.0) * chunks, chunks, progress)
    }

    /// Returns the chunk information of a set of parallel units.
    ///
    /// # Errors
    /// As for [`chunks_on_pu`](OpenChannelSsd::chunks_on_pu).
    pub fn chunks_on_pus(
        &mut self,
        pus: &PuSet,
        progress: &mut dyn FnMut(),
    ) -> Result<Vec<ReportedChunk>, OcssdError> {
        pus.check(&self.space())?;
        let mut chunks = Vec::new();
        for pu in pus.iter() {
            chunks.extend(self.chunks_on_pu(pu, progress)?);
        }
        Ok(chunks)
    }

    /// Returns the information of the chunk that contains an address.
    ///
    /// # Errors
    /// As for [`chunks_on_pu`](OpenChannelSsd::chunks_on_pu).
    pub fn chunk(
        &mut self,
        address: Address,
        progress: &mut dyn FnMut(),
    ) -> Result<ReportedChunk, OcssdError> {
        let number = self.space().chunk_index(address)?;
        let nothing = || OcssdError::Chunk { chunk: address, what: "is not in its report".into() };
        self.report(number, 1, progress)?.pop().ok_or_else(nothing)
    }

    /// Sets `ws_opt` to another multiple of `ws_min`, which the emulated drives do not have.
    #[cfg(test)]
    pub(crate) fn set_ws_opt(&mut self, sectors: u32) {
        self.open_channel.geometry.ws_opt = sectors;
    }

    fn report(
        &mut self,
        first: u64,
        count: u64,
        progress: &mut dyn FnMut(),
    ) -> Result<Vec<ReportedChunk>, OcssdError> {
        let space = self.space();
        let descriptors = self.controller.chunks(first, count, progress)?;
        let understood = |(n, d): (u64, &ChunkDescriptor)| parse_chunk_info(&space, n, d);
        (first..).zip(&descriptors).map(understood).collect()
    }

    /// Creates a queue for `depth` outstanding commands (1 or more), with interrupt `vector`, if
    /// any.
    ///
    /// # Errors
    /// [`OcssdError::Driver`], [`OcssdError::Memory`].
    pub fn create_queue(
        &mut self,
        depth: u16,
        vector: Option<u16>,
        progress: &mut dyn FnMut(),
    ) -> Result<VectorQueue, OcssdError> {
        // A ring holds one command fewer than it has entries.
        let entries = depth.checked_add(1).filter(|_| depth > 0).ok_or(DriverError::Depth {
            depth,
            allowed: "a vector queue takes 1 to 65534 commands at a time",
        })?;
        let pair = self.controller.create_queue_pair(entries, vector, progress)?;
        Ok(VectorQueue::new(pair, self.port().clone(), self.info())?)
    }

    /// Deletes a queue. `back` receives every outstanding command exactly once: with its completion
    /// if the drive still completes it, otherwise with [`nvme::Status::ABORTED_SQ_DELETED`].
    ///
    /// # Errors
    /// [`OcssdError::Driver`]; the queue is released and its commands were reported nevertheless.
    pub fn delete_queue(
        &mut self,
        queue: VectorQueue,
        back: &mut dyn FnMut(VectorCompletion),
        progress: &mut dyn FnMut(),
    ) -> Result<(), OcssdError> {
        let (pair, flights): (QueuePair, _) = queue.into_parts();
        let mut understood = |done| back(flights.completion(&done));
        Ok(self.controller.delete_queue_pair(pair, &mut understood, progress)?)
    }
}

/// Checks a chunk descriptor: it must describe chunk `number` and fit the geometry.
fn parse_chunk_info(
    space: &PpaSpace,
    number: u64,
    d: &ChunkDescriptor,
) -> Result<ReportedChunk, OcssdError> {
    let g = space.geometry();
    let flat = crate::ppa::FlatSector(number * u64::from(g.sectors));
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
    Ok(ReportedChunk {
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
        let want = ReportedChunk {
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
            assert_eq!(error, format!("the drive reports that chunk 1/2/3/0 {what}"));
        }
    }
}
