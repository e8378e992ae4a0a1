//! [`JournaledBlocks`]: file data in the journal that may not be in place yet, as it is read
//! (`docs/format/volume.md`, *Data in the journal*).

use std::collections::BTreeMap;

use crate::on_media::record::{MetadataRecord, TO_EOF};
use crate::{BLOCK, Ino};

/// Journaled bytes of one block, oldest first: offset in the block, and the bytes.
#[derive(Debug, Default)]
pub(crate) struct JournaledBlock(Vec<(usize, Vec<u8>)>);

impl JournaledBlock {
    /// Returns whether the journaled bytes cover the whole block.
    pub(crate) fn is_complete(&self) -> bool {
        self.0.iter().any(|(_, bytes)| bytes.len() == BLOCK)
    }

    /// Applies the bytes to the block's contents.
    pub(crate) fn apply_to(&self, block: &mut [u8]) {
        for (at, bytes) in &self.0 {
            block[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// Journaled data by inode and block of the file.
#[derive(Debug, Default)]
pub(crate) struct JournaledBlocks(BTreeMap<(Ino, u32), JournaledBlock>);

impl JournaledBlocks {
    /// Applies a record of the journal; records must be applied in order.
    pub(crate) fn apply(&mut self, record: &MetadataRecord<'_>) {
        match *record {
            MetadataRecord::Data { ino, offset, bytes } => {
                let (block, within) = (offset / BLOCK as u64, offset % BLOCK as u64);
                let part = self.0.entry((ino, block as u32)).or_default();
                part.0.push((within as usize, bytes.to_vec()));
            }
            // The block has these bytes or newer ones in place.
            MetadataRecord::Map { ino, extent } if extent.written => {
                self.remove(ino, extent.logical, extent.end());
            }
            MetadataRecord::Unmap { ino, logical: at, count } => {
                let end = if count == TO_EOF { u32::MAX } else { at.saturating_add(count) };
                self.remove(ino, at, end);
            }
            MetadataRecord::RemoveInode { ino } => self.remove(ino, 0, u32::MAX),
            _ => {}
        }
    }

    /// Discards journaled data of blocks `from..to` of a file.
    pub(crate) fn remove(&mut self, ino: Ino, from: u32, to: u32) {
        while let Some((&key, _)) = self.0.range((ino, from)..(ino, to.max(from))).next() {
            self.0.remove(&key);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the blocks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Ino, u32)> + '_ {
        self.0.keys().copied()
    }

    /// Removes the first block.
    pub(crate) fn pop(&mut self) -> Option<((Ino, u32), JournaledBlock)> {
        self.0.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::extents::FileExtent;

    fn blocks(parts: &JournaledBlocks) -> Vec<(u64, u32)> {
        parts.iter().map(|(ino, block)| (ino.0, block)).collect()
    }

    #[test]
    fn data_counts_until_its_block_is_written_or_taken_away() {
        let all = || {
            let mut parts = JournaledBlocks::default();
            for (ino, block) in [(5, 0), (5, 1), (5, 7), (6, 1)] {
                let offset = block * BLOCK as u64 + 9;
                parts.apply(&MetadataRecord::Data { ino: Ino(ino), offset, bytes: b"abc" });
            }
            parts
        };
        let extent = FileExtent { logical: 1, count: 3, phys: 100, written: true };
        let ino = Ino(5);
        let cases = [
            (MetadataRecord::Map { ino, extent }, vec![(5, 0), (5, 7), (6, 1)]),
            (
                MetadataRecord::Map { ino, extent: FileExtent { written: false, ..extent } },
                blocks(&all()),
            ),
            (MetadataRecord::Unmap { ino, logical: 0, count: 2 }, vec![(5, 7), (6, 1)]),
            (MetadataRecord::Unmap { ino, logical: 1, count: TO_EOF }, vec![(5, 0), (6, 1)]),
            (MetadataRecord::RemoveInode { ino }, vec![(6, 1)]),
        ];
        for (record, left) in cases {
            let mut parts = all();
            parts.apply(&record);
            assert_eq!(blocks(&parts), left, "{record:?}");
        }
    }

    #[test]
    fn later_data_lies_over_earlier_data() {
        let mut parts = JournaledBlocks::default();
        for (at, bytes) in [(2, &b"abcd"[..]), (4, b"XY"), (2, b"a")] {
            parts.apply(&MetadataRecord::Data { ino: Ino(2), offset: 4096 + at, bytes });
        }
        let (key, part) = parts.pop().unwrap();
        assert_eq!((key, part.is_complete()), ((Ino(2), 1), false));
        let mut block = vec![b'.'; BLOCK];
        part.apply_to(&mut block);
        assert_eq!(&block[..8], b"..abXY..");
        parts.apply(&MetadataRecord::Data { ino: Ino(2), offset: 0, bytes: &block });
        assert!(parts.pop().unwrap().1.is_complete());
        assert!(parts.pop().is_none());
    }
}
