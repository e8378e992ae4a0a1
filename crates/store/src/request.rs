//! [`Request`] and [`Done`]: what is asked of a store, and how it ended.

use ring::Iova;

use crate::{Access, Error, Ino, Name, Time};

/// Data of a request: bytes in memory that is registered with the device
/// ([`Store::memory`](crate::Store::memory)). They must not change, or be used, before the request has
/// ended. Reads of whole blocks go straight there if the address is a multiple of 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Where.
    pub iova: Iova,
    /// Bytes.
    pub len: u32,
}

/// What of an inode's facts is to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub access: Option<Time>,
    /// Last change of the contents.
    pub modify: Option<Time>,
}

/// What is asked.
#[allow(clippy::large_enum_variant, reason = "names are inside: no request allocates")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes a file, or finds the one that there is unless `exclusive`. Ends with its inode, which is
    /// open once more if `open`.
    Create {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
        /// Of a new file.
        access: Access,
        /// Whether there must be none yet.
        exclusive: bool,
        /// Whether to open it.
        open: bool,
    },
    /// Makes a directory. Ends with its inode.
    MakeDirectory {
        /// The directory that it will be in.
        dir: Ino,
        /// The name.
        name: Name,
        /// Who may do what.
        access: Access,
    },
    /// Takes a file's name away; the file goes when nobody has it open.
    Unlink {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
    },
    /// Takes an empty directory away.
    RemoveDirectory {
        /// The directory that it is in.
        dir: Ino,
        /// The name.
        name: Name,
    },
    /// Gives a file or directory another name, in one step; what has that name goes as with `Unlink` and
    /// `RemoveDirectory`.
    Rename {
        /// The directory.
        from: Ino,
        /// The name.
        name: Name,
        /// The directory that it will be in.
        to: Ino,
        /// The name that it will have.
        new: Name,
        /// Whether something may have that name.
        replace: bool,
    },
    /// Reads. Ends with the bytes read, which are fewer at the end of the file.
    Read {
        /// The file.
        ino: Ino,
        /// From here.
        offset: u64,
        /// Into this.
        data: Buffer,
    },
    /// Writes. Ends with the bytes written, which are fewer when space runs out.
    Write {
        /// The file.
        ino: Ino,
        /// From here.
        offset: u64,
        /// This.
        data: Buffer,
    },
    /// Writes to where the file ends when it is its turn.
    Append {
        /// The file.
        ino: Ino,
        /// This.
        data: Buffer,
    },
    /// Sets the size; what is new reads as zeros.
    Truncate {
        /// The file.
        ino: Ino,
        /// Bytes.
        size: u64,
    },
    /// Makes sure that there are blocks for a range.
    Allocate {
        /// The file.
        ino: Ino,
        /// From here.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Whether the size stays although the range is beyond it.
        keep_size: bool,
    },
    /// Makes a range zeros, and gives its blocks back. The size stays.
    Punch {
        /// The file.
        ino: Ino,
        /// From here.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Changes an inode's facts.
    SetAttr {
        /// Which.
        ino: Ino,
        /// What.
        changes: SetAttr,
    },
    /// Ends when everything that ended before, of this inode, is durable: data, facts, and its name.
    Sync {
        /// Which.
        ino: Ino,
        /// Whether its times may be older (`fdatasync`).
        data_only: bool,
    },
    /// Ends when everything that ended before is durable.
    SyncAll,
    /// Makes everything durable and marks the volume as not in use. Everything else has to have ended
    /// by itself for it to go on; nothing is taken afterwards.
    Close,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it, returned with its end.
    pub id: u64,
    /// What is asked.
    pub op: Op,
    /// What time it is, for the times of files.
    pub time: Time,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpResult {
    /// It is done.
    Done,
    /// The inode.
    Inode(Ino),
    /// So many bytes, from `offset` on.
    Bytes {
        /// From here.
        offset: u64,
        /// Bytes.
        len: u32,
    },
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpCompletion {
    /// The request's name.
    pub id: u64,
    /// What came of it.
    pub result: Result<OpResult, Error>,
}
