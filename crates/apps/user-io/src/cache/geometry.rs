//! [`BlockGeometry`]: sectors, blocks and their bytes.

use block::{AtomicLimits, Limits, Request};

use super::copy::RequestBytes;
use super::{CacheConfig, OP_FRAMES_MAX};
use crate::DirectError;

/// The blocks of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockGeometry {
    /// Limits of the cache.
    limits: Limits,
    block_bytes: u32,
    /// Sectors per block, a power of two, and its logarithm.
    block_sectors: u32,
    block_shift: u32,
    /// Maximum number of blocks in one command.
    op_blocks_max: usize,
    /// Number of frames of the cache.
    frames: u32,
}

/// The overlap of a request and a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overlap {
    /// First byte in the block.
    pub(super) block_offset: usize,
    pub(super) bytes: usize,
    /// First byte in the request's data.
    pub(super) data_offset: u64,
}

impl Overlap {
    /// Returns the overlapping bytes of a request's data.
    #[inline]
    pub(super) fn data(self, request: &Request) -> RequestBytes {
        RequestBytes { data: request.data, offset: self.data_offset }
    }
}

impl BlockGeometry {
    /// Derives the blocks from the device's limits; `segments` is the maximum of one command.
    pub(super) fn new(
        device: &Limits,
        config: &CacheConfig,
        segments: usize,
    ) -> Result<BlockGeometry, DirectError> {
        let block_bytes = device.sector_bytes.max(CacheConfig::BLOCK_BYTES);
        let block_sectors = block_bytes / device.sector_bytes;
        if !block_sectors.is_power_of_two() {
            let (key, value) = ("sector_bytes", device.sector_bytes.into());
            let allowed = "sectors of which a power of two are a unit of the cache";
            return Err(DirectError::Config { key, value, allowed });
        }
        let frames = config.frames(block_bytes)?;
        if device.max_sectors < block_sectors {
            let (key, value) = ("max_sectors", device.max_sectors.into());
            let allowed = "a unit of the cache in one transfer at least";
            return Err(DirectError::Config { key, value, allowed });
        }
        let longest = (device.max_sectors / block_sectors) as usize;
        Ok(BlockGeometry {
            limits: Limits {
                queue_depth: config.depth,
                volatile_cache: true,
                atomic: AtomicLimits::NONE,
                ..*device
            },
            block_bytes,
            block_sectors,
            block_shift: block_sectors.trailing_zeros(),
            op_blocks_max: segments.clamp(1, OP_FRAMES_MAX).min(longest),
            frames,
        })
    }

    /// Returns the limits of the cache.
    #[inline]
    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    pub(super) fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Returns the number of frames of the cache.
    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    /// Returns the maximum number of blocks in one command.
    #[inline]
    pub(super) fn op_blocks_max(&self) -> usize {
        self.op_blocks_max
    }

    /// Returns the number of blocks of the device.
    #[inline]
    pub(super) fn blocks(&self) -> u64 {
        self.limits.sectors.div_ceil(self.block_sectors.into())
    }

    /// Returns the block that contains a sector.
    #[inline]
    pub(super) fn block_of(&self, lba: u64) -> u64 {
        lba >> self.block_shift
    }

    /// Returns the block after the last one of a request.
    #[inline]
    pub(super) fn end_block(&self, request: &Request) -> u64 {
        (request.lba + u64::from(request.sectors)).div_ceil(u64::from(self.block_sectors))
    }

    /// Returns the first sector of a block.
    #[inline]
    pub(super) fn first_lba(&self, block: u64) -> u64 {
        block * u64::from(self.block_sectors)
    }

    /// Returns the number of sectors of a block; the last block of the device may be shorter.
    #[inline]
    pub(super) fn sectors_in_block(&self, block: u64) -> u32 {
        u64::from(self.block_sectors).min(self.limits.sectors - self.first_lba(block)) as u32
    }

    /// Returns the number of bytes of a block.
    #[inline]
    pub(super) fn bytes_in_block(&self, block: u64) -> u32 {
        self.sectors_in_block(block) * self.limits.sector_bytes
    }

    /// Returns whether a request lies in a single block.
    #[inline]
    pub(super) fn is_single_block(&self, request: &Request) -> bool {
        let first = request.lba & u64::from(self.block_sectors - 1);
        first + u64::from(request.sectors) <= u64::from(self.block_sectors)
    }

    /// Returns the bytes of a block before a sector.
    #[inline]
    pub(super) fn offset_in_block(&self, lba: u64) -> usize {
        ((lba & u64::from(self.block_sectors - 1)) as u32 * self.limits.sector_bytes) as usize
    }

    /// Returns the overlap of a request and a block.
    pub(super) fn overlap(&self, request: &Request, block: u64) -> Overlap {
        let bytes = u64::from(self.limits.sector_bytes);
        let begin = request.lba * bytes;
        let end = (request.lba + u64::from(request.sectors)) * bytes;
        let block_begin = block * u64::from(self.block_bytes);
        let from = begin.max(block_begin);
        let to = end.min(block_begin + u64::from(self.block_bytes));
        Overlap {
            block_offset: (from - block_begin) as usize,
            bytes: (to - from) as usize,
            data_offset: from - begin,
        }
    }
}
