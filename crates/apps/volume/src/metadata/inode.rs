//! File attributes: [`Ino`], [`InodeKind`], [`Times`], [`Stat`], and volume statistics ([`StatFs`]).

/// An inode number; never reused on a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

impl std::fmt::Display for Ino {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "inode {}", self.0)
    }
}

/// Type of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InodeKind {
    /// A regular file.
    #[default]
    File,
    /// A directory.
    Directory,
}

impl InodeKind {
    pub(crate) fn code(self) -> u8 {
        match self {
            InodeKind::File => 1,
            InodeKind::Directory => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<InodeKind> {
        match code {
            1 => Some(InodeKind::File),
            2 => Some(InodeKind::Directory),
            _ => None,
        }
    }
}

/// A time in nanoseconds since 1970, supplied by the caller with each request. The volume reads no
/// clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Time(pub i64);

/// Times of a file. Reading does not change them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Last access, as set explicitly.
    pub access: Time,
    /// Last change of the contents.
    pub modify: Time,
    /// Last change of contents or attributes.
    pub change: Time,
    /// Creation.
    pub birth: Time,
}

/// Owner and permissions; stored, not enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodePermissions {
    /// Permission bits, as given.
    pub mode: u32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub ino: Ino,
    /// Type.
    pub kind: InodeKind,
    /// Owner and permissions.
    pub access: InodePermissions,
    /// Number of links: 1 for a file, 2 for a directory, 0 after its name was removed.
    pub links: u32,
    /// Size of a file in bytes; 0 for a directory.
    pub size: u64,
    /// Blocks of 4096 bytes, including those promised to buffered data.
    pub blocks: u64,
    /// Its instants.
    pub times: Times,
}

/// Statistics of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks for data.
    pub blocks: u64,
    /// Free blocks that are not promised to buffered data. Freed blocks count once that is durable.
    pub free: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Number of additional empty files with names of 16 bytes for which there is space.
    pub free_inodes: u64,
}
