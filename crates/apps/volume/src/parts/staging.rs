//! [`StagingBuffers`]: buffers from which data is written, and into which unaligned data is read.

use std::collections::BTreeSet;
use std::sync::Arc;

use mem::{AddressSpace, Iova, RegisterError, SharedRegion};

use crate::BLOCK;
use crate::invariants::{VolumeViolation, require, require_eq};

/// Blocks of a buffer.
pub(crate) const STAGING_BUFFER_BLOCKS: u32 = 32;
/// Number of buffers.
const STAGING_BUFFERS: u32 = 8;

/// Index of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StagingIndex(u32);

/// All staging buffers.
#[derive(Debug)]
pub(crate) struct StagingBuffers {
    region: Arc<SharedRegion>,
    iova: Iova,
    free: Vec<StagingIndex>,
}

impl StagingBuffers {
    pub(crate) fn new(memory: &AddressSpace) -> Result<StagingBuffers, RegisterError> {
        let bytes = STAGING_BUFFERS as usize * STAGING_BUFFER_BLOCKS as usize * BLOCK;
        let (region, iova) = memory.allocate_registered(bytes)?;
        let free = (0..STAGING_BUFFERS).rev().map(StagingIndex).collect();
        Ok(StagingBuffers { region, iova, free })
    }

    /// Returns whether all buffers are in use.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn take(&mut self) -> Option<StagingIndex> {
        self.free.pop()
    }

    pub(crate) fn release(&mut self, index: StagingIndex) {
        debug_assert!(!self.free.contains(&index), "staging: {index:?} is released twice");
        self.free.push(index);
    }

    /// Returns the device address of a buffer.
    pub(crate) fn iova(&self, index: StagingIndex) -> Iova {
        self.iova.offset(u64::from(index.0 * STAGING_BUFFER_BLOCKS) * BLOCK as u64)
    }

    /// Returns the memory of all buffers.
    pub(crate) fn region(&self) -> &SharedRegion {
        &self.region
    }

    /// Returns the offset in the memory of a buffer's block.
    pub(crate) fn block_offset(&self, index: StagingIndex, block: u32) -> usize {
        (index.0 * STAGING_BUFFER_BLOCKS + block) as usize * BLOCK
    }

    /// Checks the buffers; `in_use` are those of transfers in flight.
    pub(crate) fn check_invariants(&self, in_use: &[StagingIndex]) -> Result<(), VolumeViolation> {
        let mut seen = BTreeSet::new();
        for index in self.free.iter().chain(in_use) {
            require!(
                seen.insert(*index) && index.0 < STAGING_BUFFERS,
                Staging,
                "a buffer is free or used by one transfer",
                format_args!("buffer {}", index.0),
                1,
                2
            );
        }
        require_eq!(
            Staging,
            "every buffer is free or in use",
            "all buffers",
            STAGING_BUFFERS as usize,
            seen.len()
        );
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_lose(&mut self) {
        self.free.pop();
    }
}
