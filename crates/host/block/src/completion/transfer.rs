//! [`Transfer`]: a request of a waiting thread.

use driver::Op;

/// A transfer between the drives and the memory of the waiting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The operation; [`Op::Extents`] is not supported.
    pub op: Op,
    /// First sector in the set.
    pub lba: u64,
    /// Number of sectors; 0 only for [`Op::Flush`].
    pub sectors: u32,
    /// Offset of the data in the thread's own memory, in bytes.
    pub at: usize,
    /// Whether a write completes only when it is durable.
    pub fua: bool,
    /// The thread's tag of the transfer.
    pub tag: u64,
}

impl Transfer {
    /// Returns a read to byte `at` of the thread's memory.
    pub fn read(lba: u64, sectors: u32, at: usize) -> Transfer {
        Transfer { op: Op::Read, lba, sectors, at, fua: false, tag: 0 }
    }

    /// Returns a write from byte `at` of the thread's memory.
    pub fn write(lba: u64, sectors: u32, at: usize) -> Transfer {
        Transfer { op: Op::Write, ..Transfer::read(lba, sectors, at) }
    }

    /// Returns a flush of every member.
    pub fn flush() -> Transfer {
        Transfer { op: Op::Flush, ..Transfer::read(0, 0, 0) }
    }

    /// Returns a discard.
    pub fn discard(lba: u64, sectors: u32) -> Transfer {
        Transfer { op: Op::Discard, ..Transfer::read(lba, sectors, 0) }
    }
}
