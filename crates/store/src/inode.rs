//! What is known of a file: [`Ino`], [`Kind`], [`Times`], [`Stat`], and what a volume has ([`StatFs`]).

/// The number of an inode; never used twice on one volume.
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

/// What an inode is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    #[default]
    File,
    /// A directory.
    Directory,
}

impl Kind {
    pub(crate) fn code(self) -> u8 {
        match self {
            Kind::File => 1,
            Kind::Directory => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Kind> {
        match code {
            1 => Some(Kind::File),
            2 => Some(Kind::Directory),
            _ => None,
        }
    }
}

/// An instant of a file: nanoseconds since the beginning of 1970, from whoever sends the request. The
/// store reads no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Time(pub i64);

/// The instants of a file. Reading does not change any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Last access, as it was set.
    pub access: Time,
    /// Last change of the contents.
    pub modify: Time,
    /// Last change of anything.
    pub change: Time,
    /// When it was made.
    pub birth: Time,
}

/// Who may do what; kept, not enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Permission bits, as given.
    pub mode: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Everything about an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// Who may do what.
    pub access: Access,
    /// Names: 1 for a file, 2 for a directory, 0 once the name is gone.
    pub links: u32,
    /// Bytes of a file, 0 of a directory.
    pub size: u64,
    /// Blocks of 4096 bytes that it has, those included that buffered data will get.
    pub blocks: u64,
    /// Its instants.
    pub times: Times,
}

/// What a volume has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks for data.
    pub blocks: u64,
    /// Of these, blocks that nobody has and that no buffered data will get. Blocks given up count once
    /// that is durable.
    pub free: u64,
    /// Inodes.
    pub inodes: u64,
    /// How many more empty files with names of 16 bytes there is space for.
    pub free_inodes: u64,
}
