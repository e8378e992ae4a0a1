//! [`FsckProblem`]: a problem of a volume's metadata.

use std::fmt;

use crate::Ino;

/// A problem and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FsckProblem {
    /// One copy of the superblock has a wrong CRC or cannot be read; the other one is valid. A
    /// writable mount rewrites both.
    Superblock {
        /// Byte offset on the device.
        offset: u64,
    },
    /// A segment of the snapshot has a wrong CRC, or belongs to another snapshot.
    SnapshotSegment {
        /// Index of the segment.
        index: u32,
        /// Byte offset on the device.
        offset: u64,
    },
    /// A malformed record in the snapshot or the journal.
    Record {
        /// Byte offset of its segment or sector on the device.
        offset: u64,
    },
    /// A sector of the journal where the next one was expected is neither zero nor has a valid CRC.
    /// Its contents, and everything after it, are unknown.
    JournalSector {
        /// Number of the sector.
        seq: u64,
        /// Byte offset on the device.
        offset: u64,
    },
    /// There is no root directory.
    NoRoot,
    /// An inode that does not exist has entries or extents.
    NoInode {
        /// The inode.
        ino: Ino,
    },
    /// A name refers to an inode that does not exist.
    DanglingEntry {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
        /// The missing inode.
        child: Ino,
    },
    /// The type in a directory entry differs from that of the inode.
    WrongKind {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// An inode has several names.
    SecondName {
        /// Directory of the second name.
        dir: Ino,
        /// The second name.
        name: Vec<u8>,
        /// The inode.
        child: Ino,
    },
    /// An inode has no name that is reachable from the root.
    Unnamed {
        /// The inode.
        ino: Ino,
    },
    /// The link count of an inode differs from its number of names.
    Links {
        /// The inode.
        ino: Ino,
        /// The recorded count.
        recorded: u32,
        /// The correct count.
        right: u32,
    },
    /// A file has entries, or a directory has extents.
    WrongContents {
        /// The inode.
        ino: Ino,
    },
    /// An extent is outside the data blocks.
    OutOfRange {
        /// The inode.
        ino: Ino,
        /// First block of the volume.
        block: u32,
    },
    /// A file has a part of a unit, or a unit that is not aligned on the volume.
    Unaligned {
        /// The inode.
        ino: Ino,
        /// The first such block of the file.
        block: u32,
    },
    /// Two extents share a block.
    Overlap {
        /// One inode.
        first: Ino,
        /// The other inode.
        second: Ino,
        /// The first shared block of the volume.
        block: u32,
    },
    /// The journal has data for a file that does not exist, is a directory, or ends before the
    /// data.
    OrphanedData {
        /// The inode.
        ino: Ino,
        /// Block of the file.
        block: u32,
    },
    /// Journaled data needs more new blocks than are free.
    NotEnoughSpace {
        /// Number of blocks needed.
        blocks: u64,
    },
    /// The metadata exceeds the volume's limit.
    TooMuchMetadata {
        /// Bytes of the metadata.
        bytes: u64,
    },
    /// An inode without a name, which was open when its user was killed; a mount removes it.
    Orphan {
        /// The inode.
        ino: Ino,
    },
}

impl FsckProblem {
    /// Returns whether the problem prevents the use of the volume. A mount fixes the others.
    pub fn is_damage(&self) -> bool {
        !matches!(self, FsckProblem::Orphan { .. } | FsckProblem::Superblock { .. })
    }

    /// Returns whether `fsck` can repair the problem unambiguously. A damaged sector of the journal
    /// and everything after it are discarded.
    pub fn is_repairable(&self) -> bool {
        use FsckProblem::*;
        !matches!(self, SnapshotSegment { .. } | Record { .. } | Overlap { .. } | NoRoot)
            && !matches!(self, SecondName { .. })
            && !matches!(self, OutOfRange { .. } | WrongContents { .. } | TooMuchMetadata { .. })
            && !matches!(self, NotEnoughSpace { .. } | Unaligned { .. })
    }
}

impl fmt::Display for FsckProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use FsckProblem::*;
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        match self {
            Superblock { offset } => write!(f, "the superblock at byte {offset} is damaged"),
            SnapshotSegment { index, offset } => {
                write!(f, "piece {index} of the snapshot, at byte {offset}, is damaged")
            }
            Record { offset } => write!(f, "a record at byte {offset} makes no sense"),
            JournalSector { seq, offset } => {
                write!(f, "sector {seq} of the journal, at byte {offset}, is damaged")
            }
            NoRoot => write!(f, "there is no root directory"),
            NoInode { ino } => write!(f, "{ino} has entries or extents, but is not there"),
            DanglingEntry { dir, name, child } => {
                write!(f, "{:?} in {dir} is {child}, which is not there", text(name))
            }
            WrongKind { dir, name } => write!(f, "{:?} in {dir} has a wrong kind", text(name)),
            SecondName { dir, name, child } => {
                write!(f, "{:?} in {dir} is a second name of {child}", text(name))
            }
            Unnamed { ino } => write!(f, "nothing leads to {ino}"),
            Links { ino, recorded, right } => {
                write!(f, "{ino} has {recorded} links recorded, and should have {right}")
            }
            WrongContents { ino } => write!(f, "{ino} has what its kind cannot have"),
            OutOfRange { ino, block } => write!(f, "{ino} has block {block}, which is no data"),
            Unaligned { ino, block } => {
                write!(f, "block {block} of {ino} is in no whole unit of the volume")
            }
            Overlap { first, second, block } => {
                write!(f, "{first} and {second} both have block {block}")
            }
            OrphanedData { ino, block } => {
                write!(f, "the journal has data of block {block} of {ino}, which is not there")
            }
            NotEnoughSpace { blocks } => {
                write!(f, "the journal has data of {blocks} new blocks, and fewer are free")
            }
            TooMuchMetadata { bytes } => write!(f, "{bytes} bytes of metadata are too much"),
            Orphan { ino } => write!(f, "{ino} has lost its name and its last user"),
        }
    }
}
