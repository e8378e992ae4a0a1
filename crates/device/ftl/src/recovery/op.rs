//! [`RecoveryOp`]: a flash operation that a recovery requests.

use crate::ids::{MapPageId, WriteSeq};
use nvme::{ChunkId, PhysSector, Status};

use crate::Oob;

/// Purpose of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryOpPurpose {
    /// The journal.
    Journal {
        /// The operation number of the journal.
        op: u32,
        /// First sector to read, flat.
        first: u32,
    },
    /// Padding of a chunk up to this sector.
    Pad {
        /// The chunk.
        chunk: ChunkId,
        /// End of the padding.
        end: u32,
    },
    /// Out-of-band bytes of sectors.
    Oob {
        /// First physical sector, flat.
        phys: PhysSector,
        /// Number of sectors.
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
        /// Index of the write unit in the footer.
        unit_index: u32,
    },
    /// Read of a sector's out-of-band bytes, to be compared with a footer.
    Check {
        /// Index of the line among those being read.
        candidate: u32,
        /// Index of the chunk in the line.
        member: u32,
        /// The sector, flat.
        phys: PhysSector,
    },
    /// A page of the map.
    Page {
        /// Number of the translation page.
        page: MapPageId,
    },
}

/// A flash operation on consecutive sectors of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryOp {
    /// Identifies the operation in its report.
    pub id: u32,
    pub(crate) purpose: RecoveryOpPurpose,
    /// The kind of operation.
    pub action: RecoveryOpKind,
    /// Sectors, 1 to 64.
    pub count: u32,
}

/// Kind of a flash operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryOpKind {
    /// Program them, with the out-of-band bytes of padding ([`RecoveryOp::PADDING`]).
    Pad {
        /// The chunk.
        chunk: ChunkId,
        /// The first sector in it.
        sector: u32,
        /// Their contents; zeros follow up to the end.
        bytes: Vec<u8>,
    },
    /// Read their out-of-band bytes.
    ReadOob {
        /// First physical sector, flat.
        phys: PhysSector,
    },
    /// Read their contents.
    ReadData {
        /// First physical sector, flat.
        phys: PhysSector,
    },
}

impl RecoveryOp {
    /// The out-of-band bytes of padding.
    pub const PADDING: Oob =
        Oob { lba: None, poison: false, metadata: false, sequence: WriteSeq(0) };

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
        phys: PhysSector,
        count: u32,
        data: bool,
    ) -> RecoveryOp {
        let action =
            if data { RecoveryOpKind::ReadData { phys } } else { RecoveryOpKind::ReadOob { phys } };
        RecoveryOp { id: 0, purpose, action, count }
    }
}

/// Result of an operation.
#[derive(Clone, Copy, Debug)]
pub enum RecoveryOpResult<'a> {
    /// A program.
    Padded(Status),
    /// A read.
    Read {
        /// Bit `i` stands for the `i`-th sector, which could not be read.
        failed: u64,
        /// Out-of-band bytes of each sector; empty if they were not requested.
        oob: &'a [[u8; Oob::BYTES]],
        /// Contents of all sectors; empty if they were not requested.
        data: &'a [u8],
    },
}
