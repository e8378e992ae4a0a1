//! [`VolumeRequest`] and [`VolumeCompletion`]: requests to a volume, and their results.

use mem::Iova;

use crate::{Error, Ino, InodePermissions, Name, Time};

/// Data of a request, in memory registered with the device
/// ([`Volume::memory`](crate::Volume::memory)). The caller must not change or use it before the
/// request has completed. Whole blocks are read directly into it if the address is a multiple of
/// 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBuffer {
    /// Address.
    pub iova: Iova,
    /// Bytes.
    pub len: u32,
}

/// Attributes to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// User id.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// Last access.
    pub access: Option<Time>,
    /// Last change of the contents.
    pub modify: Option<Time>,
}

/// An operation.
#[allow(clippy::large_enum_variant, reason = "names are inside: no request allocates")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeOp {
    /// Creates a file, or finds an existing one unless `exclusive`. Returns its inode, which is
    /// opened once more if `open`.
    Create {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
        /// Permissions of a new file.
        access: InodePermissions,
        /// Whether to fail if the name exists.
        exclusive: bool,
        /// Whether to open it.
        open: bool,
    },
    /// Creates a directory. Returns its inode.
    MakeDirectory {
        /// The parent directory.
        dir: Ino,
        /// The name.
        name: Name,
        /// Permissions.
        access: InodePermissions,
    },
    /// Removes a file's name; the file is removed when it is not open.
    Unlink {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
    },
    /// Removes an empty directory.
    RemoveDirectory {
        /// The parent directory.
        dir: Ino,
        /// The name.
        name: Name,
    },
    /// Renames a file or directory atomically; an existing target is removed as by `Unlink` and
    /// `RemoveDirectory`.
    Rename {
        /// The directory.
        from: Ino,
        /// The name.
        name: Name,
        /// The new directory.
        to: Ino,
        /// The new name.
        new: Name,
        /// Whether the new name may exist.
        replace: bool,
    },
    /// Reads. Returns the bytes read, which are fewer at the end of the file.
    Read {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Destination.
        data: RequestBuffer,
    },
    /// Writes. Returns the bytes written, which are fewer if space runs out.
    Write {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Source.
        data: RequestBuffer,
    },
    /// Writes at the end of the file, as of the request's execution.
    Append {
        /// The file.
        ino: Ino,
        /// Source.
        data: RequestBuffer,
    },
    /// Sets the size; added bytes read as zeros.
    Truncate {
        /// The file.
        ino: Ino,
        /// Size in bytes.
        size: u64,
    },
    /// Allocates blocks for a range.
    Allocate {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Whether the size stays unchanged if the range extends beyond it.
        keep_size: bool,
    },
    /// Zeroes a range and frees its blocks. The size does not change.
    Punch {
        /// The file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Changes an inode's attributes.
    SetAttr {
        /// The inode.
        ino: Ino,
        /// The changes.
        changes: SetAttr,
    },
    /// Completes when every operation on the inode that completed before is durable: data,
    /// attributes, and its name.
    Sync {
        /// The inode.
        ino: Ino,
        /// Whether its times need not be durable (`fdatasync`).
        data_only: bool,
    },
    /// Completes when every operation that completed before is durable.
    SyncAll,
    /// Orders changes: completes at once with the barrier's number
    /// ([`OpResult::Barrier`]). After a power cut, a change that a later barrier covers is found
    /// only with every change that completed before this one. Fails with [`Error::Barrier`] once a
    /// barrier failed.
    Barrier,
    /// Completes when a barrier is durable, with every change that completed before it.
    AwaitBarrier {
        /// The barrier's number.
        barrier: u64,
    },
    /// Makes everything durable and marks the volume as not in use. Waits until all other requests
    /// have completed; no request is accepted afterwards.
    Close,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeRequest {
    /// The caller's id, returned with the completion.
    pub id: u64,
    /// The operation.
    pub op: VolumeOp,
    /// Current time, for the times of files.
    pub time: Time,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpResult {
    /// Completed.
    Done,
    /// The inode.
    Inode(Ino),
    /// The number of the barrier.
    Barrier(u64),
    /// Number of bytes, and their offset.
    Bytes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
    },
}

/// Completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeCompletion {
    /// Id of the request.
    pub id: u64,
    /// Its result.
    pub result: Result<OpResult, Error>,
}
