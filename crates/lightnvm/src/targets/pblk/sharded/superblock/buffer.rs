//! [`SuperblockBuffer`]: the registered memory that labels are written from and read into, and their commands.

use std::sync::Arc;

use ftl::{FlashGeometry, RecoveryOp};
use ring::{AddressSpace, Iova, SharedRegion};

use super::super::SuperblockError;
use super::writer::SuperblockCommand;
use super::{ReadSuperblock, SUPERBLOCK_BYTES, ShardSuperblock};
use crate::vector::{Addresses, DataSegments, MemoryError, VectorQueue, register};

/// A write unit, its out-of-band bytes behind it, which are those of padding, and a sector that is read.
#[derive(Debug)]
pub(crate) struct SuperblockBuffer {
    superblock: ShardSuperblock,
    memory: Arc<SharedRegion>,
    at: Iova,
    oob_at: Iova,
    read_at: usize,
}

impl SuperblockBuffer {
    /// A sheet for `label` on flash of this shape, with `oob_bytes` beside each sector.
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
        // Where the drive may want a sector to begin.
        let read_at = (data + unit * oob).next_multiple_of(shape.sector_bytes as usize);
        let bytes = read_at + shape.sector_bytes as usize;
        let (memory, at) = register(space, bytes, "the label")?;
        for i in 0..unit {
            memory.write(data + i * oob, &RecoveryOp::PADDING.encode());
        }
        let oob_at = at.offset(data as u64);
        Ok(SuperblockBuffer { superblock: label, memory, at, oob_at, read_at })
    }

    /// The label that it is for.
    pub(super) fn superblock(&self) -> ShardSuperblock {
        self.superblock
    }

    /// Submits a command. Returns whether the queue had room for it. No other is under way.
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
                self.memory.fill(self.read_at, SUPERBLOCK_BYTES, 0);
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

    /// What was read: `None` if it is no label.
    pub(super) fn decode(&self) -> Option<Result<ReadSuperblock, SuperblockError>> {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        self.memory.read(self.read_at, &mut bytes);
        ShardSuperblock::decode(&bytes)
    }

    /// The generation of what was read, if it says the same.
    pub(super) fn generation(&self) -> Option<u64> {
        match self.decode() {
            Some(Ok((label, generation))) if label == self.superblock => Some(generation),
            _ => None,
        }
    }
}
