//! [`Finding`]: one thing that is wrong with a volume.

use std::fmt;

use crate::Ino;

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FsckProblem {
    /// A copy of the superblock has a wrong CRC or cannot be read; the other one is whole. Opening the
    /// volume for writing makes both anew.
    Superblock {
        /// Byte of the device.
        offset: u64,
    },
    /// A piece of the snapshot has a wrong CRC, or is another one's.
    SnapshotSegment {
        /// Which.
        index: u32,
        /// Byte of the device.
        offset: u64,
    },
    /// A record, of the snapshot or of the journal, that makes no sense.
    Record {
        /// Byte of the device where its piece or sector begins.
        offset: u64,
    },
    /// A sector of the journal, where the next one was expected, is neither zeros nor has a right CRC: what it held,
    /// and everything behind it, cannot be known.
    JournalSector {
        /// Its number.
        seq: u64,
        /// Byte of the device.
        offset: u64,
    },
    /// There is no root directory.
    NoRoot,
    /// Entries or extents of an inode that is not there.
    NoInode {
        /// Which.
        ino: Ino,
    },
    /// A name of an inode that is not there.
    DanglingEntry {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
        /// The inode that is not there.
        child: Ino,
    },
    /// A name says that an inode is a file, or a directory, and it is not.
    WrongKind {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    },
    /// An inode has several names.
    SecondName {
        /// The directory of the second one.
        dir: Ino,
        /// The second one.
        name: Vec<u8>,
        /// The inode.
        child: Ino,
    },
    /// An inode has no name, or none that the root leads to, but should have.
    Unnamed {
        /// Which.
        ino: Ino,
    },
    /// An inode has another number of links than names.
    Links {
        /// Which.
        ino: Ino,
        /// The number recorded.
        recorded: u32,
        /// The right one.
        right: u32,
    },
    /// A file has entries, or a directory extents.
    WrongContents {
        /// Which.
        ino: Ino,
    },
    /// An extent outside of the data blocks.
    OutOfRange {
        /// Whose.
        ino: Ino,
        /// First block of the volume.
        block: u32,
    },
    /// Two extents have a block in common.
    Overlap {
        /// Whose.
        first: Ino,
        /// And whose.
        second: Ino,
        /// The first block of the volume that both have.
        block: u32,
    },
    /// The journal has data of a block of a file that is not there, is a directory, or ends before it.
    StrayData {
        /// Whose.
        ino: Ino,
        /// Block of the file.
        block: u32,
    },
    /// The journal has data of more blocks that no file has yet than are free.
    NotEnoughSpace {
        /// Such blocks.
        blocks: u64,
    },
    /// The metadata is larger than the volume's limit.
    TooMuchMetadata {
        /// Bytes.
        bytes: u64,
    },
    /// An inode without a name, whose last user was cut off: it goes when the volume is opened.
    Orphan {
        /// Which.
        ino: Ino,
    },
}

impl FsckProblem {
    /// Whether the volume must not be used as it is. What is not damage is put right by opening.
    pub fn is_damage(&self) -> bool {
        !matches!(self, FsckProblem::Orphan { .. } | FsckProblem::Superblock { .. })
    }

    /// Whether `fsck` can repair it without guessing what should be there. Behind a damaged sector of the
    /// journal nothing is known: it and what it was followed by are left out.
    pub fn is_repairable(&self) -> bool {
        use FsckProblem::*;
        !matches!(self, SnapshotSegment { .. } | Record { .. } | Overlap { .. } | NoRoot)
            && !matches!(self, SecondName { .. })
            && !matches!(self, OutOfRange { .. } | WrongContents { .. } | TooMuchMetadata { .. })
            && !matches!(self, NotEnoughSpace { .. })
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
            Overlap { first, second, block } => {
                write!(f, "{first} and {second} both have block {block}")
            }
            StrayData { ino, block } => {
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
