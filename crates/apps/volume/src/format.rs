//! [`format()`]: makes a volume.

use block::{BlockDevice, Op};
use time::Nanos;

use crate::blocking_volume::BlockingTransfers;
use crate::on_media::layout::{BLOCK, SEGMENT_BLOCKS, SEGMENT_BYTES, device_unit_blocks};
use crate::on_media::record::{InodeRecord, MetadataRecord};
use crate::on_media::superblock::{DecodedSuperblock, SUPERBLOCK_BYTES, Superblock};
use crate::{
    Ino, InodeKind, InodePermissions, Times, VolumeLayout, VolumeOpenError, on_media::snapshot,
};

/// Options of a new volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FormatOptions {
    /// Unique id of the volume.
    pub uuid: u128,
    /// Label for users, at most 32 bytes.
    pub label: String,
    /// Permissions of the root.
    pub access: InodePermissions,
    /// The times of the root.
    pub times: Times,
    /// Blocks for metadata; by default one in 128.
    pub metadata_blocks: Option<u32>,
    /// Blocks of the journal; by default one in 128, or one in 64 of 1 GiB or more, up to 64 MiB.
    pub journal_blocks: Option<u32>,
    /// Bytes of a unit, in which files get their blocks: the longest aligned write that a device
    /// with atomic writes can keep whole. By default the longest that this device keeps whole and
    /// the journal has space for, at most 64 KiB; 4096 if it has no atomic writes.
    pub unit: Option<u32>,
    /// Whether to overwrite an existing volume of any version.
    pub force: bool,
    /// Whether to discard the data blocks.
    pub discard: bool,
}

/// Makes an empty volume that fills `device`; `tick` is as for
/// [`BlockingVolume`](crate::BlockingVolume).
///
/// # Errors
/// [`VolumeOpenError::Unfit`], [`VolumeOpenError::HasVolume`], with nothing written; [`VolumeOpenError::Io`].
pub fn format<D: BlockDevice>(
    device: &mut D,
    options: &FormatOptions,
    mut tick: impl FnMut(&mut D) -> Nanos,
) -> Result<Superblock, VolumeOpenError> {
    let limits = *device.limits();
    let layout = VolumeLayout::new(&limits, options.metadata_blocks, options.journal_blocks)?;
    let unit_max = || device_unit_blocks(&limits).min(layout.journal_unit_blocks()).max(1);
    let layout = layout.with_unit(options.unit.unwrap_or_else(|| unit_max() * BLOCK as u32))?;
    let mut label = [0; 32];
    let Some(bytes) = label.get_mut(..options.label.len()) else {
        let what = format!("a label of {} bytes; it has 32 at most", options.label.len());
        return Err(VolumeOpenError::Unfit { what });
    };
    bytes.copy_from_slice(options.label.as_bytes());
    let sectors = u64::from(layout.block_sectors());
    let blocks = [0, layout.second()].map(|b| u64::from(b) * sectors);
    let mut io = BlockingTransfers::new(device, &mut tick, SEGMENT_BYTES)?;
    let mut generation = 0;
    for lba in blocks {
        io.run(Op::Read, lba, 1)?;
        let mut bytes = [0; SUPERBLOCK_BYTES];
        io.region.read(0, &mut bytes);
        match Superblock::decode(&bytes) {
            DecodedSuperblock::NotASuperblock => {}
            _ if !options.force => return Err(VolumeOpenError::HasVolume),
            DecodedSuperblock::Superblock(old) => generation = generation.max(old.generation),
            DecodedSuperblock::Damaged | DecodedSuperblock::Newer { .. } => {}
        }
    }
    // Invalidate an existing volume before anything else changes.
    io.region.fill(0, SEGMENT_BYTES, 0);
    for lba in blocks {
        io.run(Op::Write, lba, 1)?;
    }
    io.run(Op::Flush, 0, 0)?;
    clear_journal(&mut io, &layout)?;
    let superblock = Superblock {
        layout,
        uuid: options.uuid,
        label,
        generation: generation + 1,
        epoch: 1,
        snapshot_area: 0,
        segments: 1,
        snapshot: 1,
        journal_seq: 0,
        journal_txn: 1,
        owner: None,
        data_in_journal: false,
    };
    let (access, times) = (options.access, options.times);
    let image = InodeRecord { kind: InodeKind::Directory, access, links: 2, size: 0, times };
    let mut piece = vec![0; crate::on_media::layout::SEGMENT_HEADER_BYTES];
    MetadataRecord::NextInode { ino: Ino(2) }.encode(&mut piece);
    MetadataRecord::Inode { ino: Ino::ROOT, record: image }.encode(&mut piece);
    let count = snapshot::seal(&mut piece, superblock.snapshot, 0, true);
    io.region.write(0, &piece);
    io.run(Op::Write, u64::from(layout.snapshot(0)) * sectors, u64::from(count) * sectors)?;
    if options.discard {
        let (first, count) = (u64::from(layout.data()), u64::from(layout.data_blocks()));
        io.run(Op::Discard, first * sectors, count * sectors)?;
    }
    io.run(Op::Flush, 0, 0)?;
    let mut sector = [0; BLOCK];
    sector[..SUPERBLOCK_BYTES].copy_from_slice(&superblock.encode());
    io.region.write(0, &sector);
    for lba in blocks {
        io.run(Op::Write, lba, 1)?;
        io.run(Op::Flush, 0, 0)?;
    }
    Ok(superblock)
}

/// Writes zeros to every sector of the journal and flushes, so that no sector is valid.
pub(crate) fn clear_journal<D: BlockDevice, F: FnMut(&mut D) -> Nanos>(
    io: &mut BlockingTransfers<'_, D, F>,
    layout: &VolumeLayout,
) -> Result<(), VolumeOpenError> {
    let sectors = u64::from(layout.block_sectors());
    io.region.fill(0, SEGMENT_BYTES, 0);
    let chunk = u64::from(SEGMENT_BLOCKS) * sectors;
    let (mut at, all) = (0, layout.journal_sectors());
    while at < all {
        let count = chunk.min(all - at);
        io.run(Op::Write, u64::from(layout.journal()) * sectors + at, count)?;
        at += count;
    }
    io.run(Op::Flush, 0, 0)
}
