//! [`JournalReplay`]: applies journaled data, one block at a time. It is written in place before the journal is
//! discarded, or, on a read-only volume, kept in pinned pages.
//!
//! Nothing is recorded before the first snapshot, so after a power cut the journal is unchanged and
//! the replay starts again. New blocks are taken from free ones, and the journal still has the
//! contents of every block written in place.

use std::sync::Arc;

use block::{BlockDevice, Op};
use mem::{Iova, SharedRegion};
use time::Nanos;

use crate::device_io::DeviceTransfers;
use crate::metadata::extents::{BlockMapping, FileExtent};
use crate::on_media::layout::BlockRun;
use crate::parts::allocator::BlockAllocator;
use crate::recovery::journaled_blocks::{JournaledBlock, JournaledBlocks};
use crate::recovery::metadata_reader::LoadedMetadata;
use crate::{BLOCK, FsckProblem, Ino, VolumeOpenError};

/// A file's block with its final contents.
#[derive(Debug)]
pub(crate) struct CompleteBlock {
    pub(crate) ino: Ino,
    pub(crate) block: u32,
    pub(crate) bytes: Vec<u8>,
}

/// Loaded metadata, with journaled data applied.
#[derive(Debug)]
pub(crate) struct ReplayedVolume {
    pub(crate) loaded: LoadedMetadata,
    pub(crate) allocator: BlockAllocator,
    /// Blocks that could not be written because the volume is read-only.
    pub(crate) unwritten_blocks: Vec<CompleteBlock>,
    pub(crate) blocks: u64,
}

/// The block being replayed.
#[derive(Debug)]
struct ReplayStep {
    ino: Ino,
    block: u32,
    data: JournaledBlock,
    /// Its location; `None` for a hole on a read-only volume.
    extent: Option<FileExtent>,
    writing: bool,
}

/// Applies journaled data.
#[derive(Debug)]
pub(crate) struct JournalReplay {
    region: Arc<SharedRegion>,
    iova: Iova,
    transfers: DeviceTransfers<()>,
    read_only: bool,
    replayed: Option<ReplayedVolume>,
    journaled: JournaledBlocks,
    step: Option<ReplayStep>,
}

impl JournalReplay {
    /// Creates a replay of undamaged metadata.
    pub(crate) fn new<D: BlockDevice>(
        device: &D,
        mut loaded: LoadedMetadata,
        read_only: bool,
    ) -> Result<JournalReplay, VolumeOpenError> {
        let (region, at) = device.memory().allocate_registered(BLOCK)?;
        let mut parts = std::mem::take(&mut loaded.journaled);
        drop_orphaned_data(&mut loaded, &mut parts);
        let tree = &loaded.tree;
        let mut used: Vec<BlockRun> =
            tree.iter().flat_map(|(_, n)| n.extents.iter().map(FileExtent::run)).collect();
        used.sort_unstable();
        let layout = loaded.superblock.layout;
        let space = BlockAllocator::new(layout.data(), layout.data_end(), &used);
        let replayed = Some(ReplayedVolume {
            loaded,
            allocator: space,
            unwritten_blocks: Vec::new(),
            blocks: 0,
        });
        let flights = DeviceTransfers::new(device.limits());
        Ok(JournalReplay {
            region,
            iova: at,
            transfers: flights,
            read_only,
            replayed,
            journaled: parts,
            step: None,
        })
    }

    /// Advances; returns the result when finished.
    pub(crate) fn poll<D: BlockDevice>(
        &mut self,
        device: &mut D,
        now: Nanos,
    ) -> Option<Result<ReplayedVolume, VolumeOpenError>> {
        device.poll(now);
        while let Some(completion) = device.reap() {
            let Some(((), status)) = self.transfers.on_completion(&completion) else { continue };
            let turn = self.step.take().expect("replay: a transfer belongs to a block");
            if !status.is_success() {
                let block = turn.extent.map_or(0, |e| e.phys);
                let offset = u64::from(block) * BLOCK as u64;
                return Some(Err(VolumeOpenError::Io { offset, status }));
            }
            self.advance(turn, true);
        }
        while self.step.is_none() {
            let Some(((ino, block), part)) = self.journaled.pop() else {
                return self.replayed.take().map(Ok);
            };
            if let Err(error) = self.begin(ino, block, part) {
                return Some(Err(error));
            }
        }
        if self.transfers.send(device, now) {
            device.poll(now);
        }
        None
    }

    fn begin(&mut self, ino: Ino, block: u32, part: JournaledBlock) -> Result<(), VolumeOpenError> {
        let ReplayedVolume { loaded, allocator: space, .. } =
            self.replayed.as_mut().expect("replay: a block begins before the end");
        let layout = loaded.superblock.layout;
        let Some(node) = loaded.tree.find(ino) else { return Ok(()) };
        let (extent, written) = match node.extents.find(block) {
            BlockMapping::Extent(extent) => {
                (Some(FileExtent { count: 1, ..extent }), extent.written)
            }
            BlockMapping::Hole { .. } if self.read_only => (None, false),
            BlockMapping::Hole { .. } => {
                let (logical, count) = (layout.unit_start(block), layout.unit_blocks);
                let Some(run) = space.allocate(node.extents.goal(logical), count) else {
                    let first =
                        FsckProblem::NotEnoughSpace { blocks: 1 + self.journaled.len() as u64 };
                    return Err(VolumeOpenError::Damaged { first, count: 1 });
                };
                let unit = FileExtent { logical, count, phys: run.first_block, written: false };
                if count > 1 {
                    loaded.tree.map(ino, unit);
                }
                (Some(unit.clip(block, block + 1)), false)
            }
        };
        let turn = ReplayStep { ino, block, data: part, extent, writing: false };
        match extent.filter(|_| written && !turn.data.is_complete()) {
            Some(extent) => {
                self.transfers.submit_blocks((), Op::Read, extent.run(), self.iova, false);
                self.step = Some(turn);
            }
            None => self.advance(turn, false),
        }
        Ok(())
    }

    /// Continues after the block was read, or need not be; or was written.
    fn advance(&mut self, mut turn: ReplayStep, read: bool) {
        let ReplayedVolume { loaded, unwritten_blocks: kept, blocks, .. } =
            self.replayed.as_mut().expect("replay: a block ends before the end");
        let ReplayStep { ino, block, .. } = turn;
        if turn.writing {
            if let Some(extent) = turn.extent {
                loaded.tree.map(ino, FileExtent { written: true, ..extent });
            }
            return;
        }
        let mut bytes = vec![0; BLOCK];
        if read {
            self.region.read(0, &mut bytes);
        }
        turn.data.apply_to(&mut bytes);
        // Bytes beyond the end of the file are zero.
        let size = loaded.tree.find(ino).map_or(0, |n| n.size);
        let end = crate::pipeline::page_lookup::bytes_within(size, block) as usize;
        bytes[end..].fill(0);
        *blocks += 1;
        match turn.extent.filter(|_| !self.read_only) {
            Some(extent) => {
                self.region.write(0, &bytes);
                self.transfers.submit_blocks((), Op::Write, extent.run(), self.iova, false);
                turn.writing = true;
                self.step = Some(turn);
            }
            None => kept.push(CompleteBlock { ino, block, bytes }),
        }
    }
}

/// Drops data of removed inodes, and of blocks beyond the end of their file.
fn drop_orphaned_data(loaded: &mut LoadedMetadata, parts: &mut JournaledBlocks) {
    let (tree, layout) = (&mut loaded.tree, loaded.superblock.layout);
    // Inodes without a name; their users have ended.
    let orphans: Vec<Ino> = tree.iter().filter(|(_, n)| n.links == 0).map(|(i, _)| i).collect();
    for ino in orphans {
        tree.remove(ino);
        parts.remove(ino, 0, u32::MAX);
    }
    // Blocks that were written but never became part of their file.
    let sizes: Vec<(Ino, u32)> =
        tree.iter().map(|(ino, n)| (ino, n.size.div_ceil(BLOCK as u64) as u32)).collect();
    for (ino, end) in sizes {
        let Some(node) = tree.find(ino) else { continue };
        let beyond: Vec<_> = node.extents.range_from(end).filter(|e| e.written).collect();
        for extent in beyond {
            // The file keeps the unit with its last block.
            let (kept, gone) = (layout.unit_end(end), layout.unit_end(extent.end()));
            if extent.logical < kept {
                let part = extent.clip(extent.logical, kept);
                tree.map(ino, FileExtent { written: false, ..part });
            }
            let from = layout.unit_start(extent.logical).max(kept);
            if from < gone {
                tree.unmap(ino, from, gone - from, |_| {});
            }
        }
    }
}
