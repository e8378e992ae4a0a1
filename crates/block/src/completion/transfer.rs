//! [`Transfer`]: what a thread asks for and waits for.

use driver::Op;

/// A request between the drives and the memory of the thread that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// What to do; [`Op::Extents`] is not among it.
    pub op: Op,
    /// First sector of the whole set.
    pub lba: u64,
    /// Number of sectors; 0 only for [`Op::Flush`].
    pub sectors: u32,
    /// Where in the thread's own memory the data is, in bytes.
    pub at: usize,
    /// Complete a write only when it is durable.
    pub fua: bool,
    /// The thread's name for it.
    pub tag: u64,
}

impl Transfer {
    /// A read to byte `at` of the thread's memory.
    pub fn read(lba: u64, sectors: u32, at: usize) -> Transfer {
        Transfer { op: Op::Read, lba, sectors, at, fua: false, tag: 0 }
    }

    /// A write from byte `at` of the thread's memory.
    pub fn write(lba: u64, sectors: u32, at: usize) -> Transfer {
        Transfer { op: Op::Write, ..Transfer::read(lba, sectors, at) }
    }

    /// A flush of every member.
    pub fn flush() -> Transfer {
        Transfer { op: Op::Flush, ..Transfer::read(0, 0, 0) }
    }

    /// A discard.
    pub fn discard(lba: u64, sectors: u32) -> Transfer {
        Transfer { op: Op::Discard, ..Transfer::read(lba, sectors, 0) }
    }
}
