//! [`RecoveryOp`]: a flash operation that a recovery requests.

use nvme::{ChunkId, Status};

use crate::Oob;

/// Work a job is for; the recovery's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryOpPurpose {
    /// The journal.
    Journal {
        /// The journal's own name for it.
        op: u32,
        /// First sector to read, flat.
        first: u32,
    },
    /// Padding of a chunk up to this sector.
    Pad {
        /// The chunk.
        chunk: ChunkId,
        /// Where it ends.
        end: u32,
    },
    /// Out-of-band bytes of sectors.
    Oob {
        /// The first, flat.
        phys: u32,
        /// How many.
        count: u32,
    },
    /// Read of the header of a line, in this chunk.
    LineHeader {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Read of a write unit of a footer.
    LineFooter {
        /// Index of the line among those being read.
        candidate: u32,
        /// Which.
        unit_index: u32,
    },
    /// Read of a sector's out-of-band bytes, to be compared with a footer.
    Check {
        /// Index of the line among those being read.
        candidate: u32,
        /// Index of the chunk in the line.
        member: u32,
        /// The sector, flat.
        phys: u32,
    },
    /// A page of the map.
    Page {
        /// Which.
        page: u32,
    },
}

/// Work is to be done: sectors of one chunk, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryOp {
    /// Names it when it is reported.
    pub id: u32,
    pub(crate) purpose: RecoveryOpPurpose,
    /// Work is to be done.
    pub action: RecoveryOpKind,
    /// Sectors, 1 to 64.
    pub count: u32,
}

/// Work is to be done with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryOpKind {
    /// Program them, with the out-of-band bytes of padding ([`RecoveryOp::PADDING`]).
    Pad {
        /// The chunk.
        chunk: ChunkId,
        /// The first sector in it.
        sector: u32,
        /// Their contents; zeros up to the end.
        bytes: Vec<u8>,
    },
    /// Read their out-of-band bytes.
    ReadOob {
        /// The first, flat.
        phys: u32,
    },
    /// Read their contents.
    ReadData {
        /// The first, flat.
        phys: u32,
    },
}

impl RecoveryOp {
    /// The out-of-band bytes of padding.
    pub const PADDING: Oob = Oob { lba: None, poison: false, metadata: false, sequence: 0 };

    pub(crate) fn pad(
        purpose: RecoveryOpPurpose,
        chunk: ChunkId,
        sector: u32,
        count: u32,
        bytes: Vec<u8>,
    ) -> RecoveryOp {
        RecoveryOp { id: 0, purpose, action: RecoveryOpKind::Pad { chunk, sector, bytes }, count }
    }

    pub(crate) fn read(
        purpose: RecoveryOpPurpose,
        phys: u32,
        count: u32,
        data: bool,
    ) -> RecoveryOp {
        let action =
            if data { RecoveryOpKind::ReadData { phys } } else { RecoveryOpKind::ReadOob { phys } };
        RecoveryOp { id: 0, purpose, action, count }
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug)]
pub enum RecoveryOpResult<'a> {
    /// A program.
    Padded(Status),
    /// A read.
    Read {
        /// Bit `i` stands for the `i`-th sector, which could not be read.
        failed: u64,
        /// Out-of-band bytes of each sector; empty if they were not asked for.
        oob: &'a [[u8; Oob::BYTES]],
        /// Contents of all sectors; empty if they were not asked for.
        data: &'a [u8],
    },
}
