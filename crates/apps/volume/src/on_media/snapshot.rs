//! Segments of a snapshot (`docs/format/volume.md`), and [`SnapshotCursor`], the progress of
//! writing one.
//!
//! A snapshot is written while files change. The cursor visits inodes in order, and the extents and
//! entries of each in order. Changes behind the cursor are in the journal; so are those in front of
//! it. Applying the journal after the snapshot therefore yields the current state.

use collections::{Reader, Seal, put_at};

use crate::metadata::tree::Tree;
use crate::on_media::layout::{BLOCK, SEGMENT_BYTES, SEGMENT_HEADER_BYTES};
use crate::on_media::record::{MetadataRecord, RECORD_MAX};
use crate::{Ino, InodeKind};

const MAGIC: [u8; 4] = *b"SLPC";
const SEAL: Seal = Seal::of_bytes_behind(0);

/// Next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextRecord {
    Number,
    /// The first inode from this number on.
    Inode(Ino),
    /// Extents of an inode from a block on.
    Extents(Ino, u32),
    /// Entries of an inode after a cookie.
    Entries(Ino, u64),
    End,
}

/// Progress of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SnapshotCursor {
    next: NextRecord,
    /// Inodes from this number on are newer than the snapshot; the journal has all of them.
    end: Ino,
}

impl SnapshotCursor {
    pub(crate) fn new(tree: &Tree) -> SnapshotCursor {
        SnapshotCursor { next: NextRecord::Number, end: tree.next_ino() }
    }

    /// Returns the cursor of no snapshot.
    pub(crate) fn ended() -> SnapshotCursor {
        SnapshotCursor { next: NextRecord::End, end: Ino(0) }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.next == NextRecord::End
    }

    /// Appends as many records to `piece` as fit, after space for its header.
    pub(crate) fn fill(&mut self, tree: &Tree, piece: &mut Vec<u8>) {
        piece.clear();
        piece.resize(SEGMENT_HEADER_BYTES, 0);
        while piece.len() + RECORD_MAX <= SEGMENT_BYTES && !self.is_at_end() {
            self.next = self.step(tree, piece);
        }
    }

    fn step(&self, tree: &Tree, piece: &mut Vec<u8>) -> NextRecord {
        match self.next {
            NextRecord::Number => {
                MetadataRecord::NextInode { ino: tree.next_ino() }.encode(piece);
                NextRecord::Inode(Ino(0))
            }
            NextRecord::Inode(from) => {
                let Some((ino, node)) = tree.range_from(from).next().filter(|(i, _)| *i < self.end)
                else {
                    return NextRecord::End;
                };
                MetadataRecord::Inode { ino, record: node.record() }.encode(piece);
                match node.kind {
                    InodeKind::File => NextRecord::Extents(ino, 0),
                    InodeKind::Directory => NextRecord::Entries(ino, 0),
                }
            }
            NextRecord::Extents(ino, from) => {
                match tree.find(ino).and_then(|n| n.extents.range_from(from).next()) {
                    Some(extent) => {
                        MetadataRecord::Map { ino, extent }.encode(piece);
                        NextRecord::Extents(ino, extent.end())
                    }
                    None => NextRecord::Inode(Ino(ino.0 + 1)),
                }
            }
            NextRecord::Entries(dir, from) => {
                match tree.find(dir).and_then(|n| n.entries.entries_after(from).next()) {
                    Some((name, entry)) => {
                        let (cookie, child, kind) = (entry.cookie, entry.child, entry.kind);
                        MetadataRecord::Entry { dir, cookie, child, kind, name }.encode(piece);
                        NextRecord::Entries(dir, cookie)
                    }
                    None => NextRecord::Inode(Ino(dir.0 + 1)),
                }
            }
            NextRecord::End => NextRecord::End,
        }
    }
}

/// Completes a filled segment: header, zeros up to whole blocks, CRC. Returns its number of blocks.
pub(crate) fn seal(piece: &mut Vec<u8>, number: u64, index: u32, last: bool) -> u32 {
    let length = (piece.len() - SEGMENT_HEADER_BYTES) as u32;
    let blocks = piece.len().div_ceil(BLOCK);
    piece.resize(blocks * BLOCK, 0);
    put_at(piece, 4, &MAGIC);
    put_at(piece, 8, &number.to_le_bytes());
    put_at(piece, 16, &index.to_le_bytes());
    put_at(piece, 20, &length.to_le_bytes());
    put_at(piece, 24, &(blocks as u32).to_le_bytes());
    put_at(piece, 28, &u32::from(last).to_le_bytes());
    SEAL.store(piece);
    blocks as u32
}

/// Returns the records of a segment if it is the expected one, and whether it is the last.
pub(crate) fn open(bytes: &[u8], number: u64, index: u32) -> Option<(&[u8], bool)> {
    let mut f = Reader::new(bytes);
    let (_, magic) = (f.u32()?, f.bytes(4)?);
    let (its_number, its_index) = (f.u64()?, f.u32()?);
    let (length, blocks, flags) = (f.u32()?, f.u32()?, f.u32()?);
    let whole = bytes.get(..blocks as usize * BLOCK)?;
    let right = magic == MAGIC && its_number == number && its_index == index;
    if !right || !SEAL.is_intact(whole) {
        return None;
    }
    let records = whole.get(SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + length as usize)?;
    Some((records, flags & 1 != 0))
}
