//! [`SuperblockBuffer`]: registered memory for superblock commands.

use std::sync::Arc;

use ftl::{FlashGeometry, RecoveryOp};
use mem::{AddressSpace, Iova, SharedRegion};

use super::super::SuperblockError;
use super::unsharded::FRAME_HEADER_BYTES;
use super::writer::SuperblockCommand;
use super::{ReadSuperblock, SUPERBLOCK_BYTES, ShardSuperblock};
use ocssd::vector::{Addresses, DataSegments, MemoryError, VectorQueue, register};

/// Memory of a write unit, followed by its out-of-band bytes (those of padding) and by a sector for
/// reads.
#[derive(Debug)]
pub(crate) struct SuperblockBuffer {
    superblock: ShardSuperblock,
    memory: Arc<SharedRegion>,
    at: Iova,
    oob_at: Iova,
    read_at: usize,
}

impl SuperblockBuffer {
    /// Allocates a buffer for a superblock on flash of this geometry, with `oob_bytes` per sector.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub(super) fn new(
        label: ShardSuperblock,
        shape: &FlashGeometry,
        oob_bytes: u32,
        space: &AddressSpace,
    ) -> Result<SuperblockBuffer, MemoryError> {
        let (unit, oob) = (shape.ws_opt as usize, oob_bytes as usize);
        let data = unit * shape.sector_bytes as usize;
        // Aligned to a sector, as the drive may require.
        let read_at = (data + unit * oob).next_multiple_of(shape.sector_bytes as usize);
        let bytes = read_at + shape.sector_bytes as usize;
        let (memory, at) = register(space, bytes, "the superblock")?;
        for i in 0..unit {
            memory.write(data + i * oob, &RecoveryOp::PADDING.encode());
        }
        let oob_at = at.offset(data as u64);
        Ok(SuperblockBuffer { superblock: label, memory, at, oob_at, read_at })
    }

    /// Returns the superblock that the buffer is for.
    pub(super) fn superblock(&self) -> ShardSuperblock {
        self.superblock
    }

    /// Submits a command; no other may be in flight. Returns `false` if the queue is full.
    pub(super) fn submit(
        &self,
        queue: &mut VectorQueue,
        addresses: &Addresses,
        command: SuperblockCommand,
        user: u64,
    ) -> bool {
        let first = |chunk| std::iter::once(addresses.chunk(chunk));
        match command {
            SuperblockCommand::Read { chunk } => {
                self.memory.fill(self.read_at, FRAME_HEADER_BYTES, 0);
                let data = DataSegments::Contiguous(self.at.offset(self.read_at as u64));
                queue.read(first(chunk), data, None, user).is_ok()
            }
            SuperblockCommand::Erase { chunk } => queue.reset(first(chunk), user).is_ok(),
            SuperblockCommand::Program { chunk, unit, generation } => {
                self.memory.write(0, &self.superblock.encode(generation));
                let shape = addresses.shape();
                let first = shape.first_sector_of(chunk) + unit * shape.ws_opt;
                let ppas = (0..shape.ws_opt as usize).map(|i| addresses.sector(first + i as u32));
                queue
                    .write(ppas, DataSegments::Contiguous(self.at), Some(self.oob_at), user)
                    .is_ok()
            }
        }
    }

    /// Decodes the sector that was read: `None` if it is not a superblock.
    pub(super) fn decode(&self) -> Option<Result<ReadSuperblock, SuperblockError>> {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        self.memory.read(self.read_at, &mut bytes);
        ShardSuperblock::decode(&bytes)
    }

    /// Returns the first bytes of the sector that was read.
    pub(super) fn read_bytes(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        self.memory.read(self.read_at, &mut bytes);
        bytes
    }

    /// Returns the generation that was read, if the layout matches.
    pub(super) fn generation(&self) -> Option<u64> {
        match self.decode() {
            Some(Ok((label, generation))) if label == self.superblock => Some(generation),
            _ => None,
        }
    }
}
