//! [`Job`]: what a recovery wants done on the flash.

use nvme::Status;

use crate::Oob;

/// Work a job is for; the recovery's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobKind {
    /// The journal.
    Journal {
        /// The journal's own name for it.
        op: u32,
        /// Of a read, the first sector, flat.
        first: u32,
    },
    /// Padding of a chunk up to this sector.
    Pad {
        /// The chunk.
        chunk: u32,
        /// Where it ends.
        end: u32,
    },
    /// Out-of-band bytes of sectors.
    Copies {
        /// The first, flat.
        psn: u32,
        /// How many.
        count: u32,
    },
    /// First metadata of a line, in this chunk.
    First {
        /// The chunk.
        chunk: u32,
    },
    /// A write unit of last metadata.
    Last {
        /// Of which line among those that are being read.
        candidate: u32,
        /// Which.
        piece: u32,
    },
    /// Out-of-band bytes of a sector, to be compared with last metadata.
    Check {
        /// Of which line among those that are being read.
        candidate: u32,
        /// Of which of its chunks.
        member: u32,
        /// The sector, flat.
        psn: u32,
    },
    /// A page of the map.
    Page {
        /// Which.
        number: u32,
    },
}

/// Work is to be done: sectors of one chunk, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Names it when it is reported.
    pub id: u32,
    pub(crate) kind: JobKind,
    /// Work is to be done.
    pub what: Work,
    /// Sectors, 1 to 64.
    pub count: u32,
}

/// Work is to be done with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Program them, with the out-of-band bytes of padding ([`Job::PADDING`]).
    Pad {
        /// The chunk.
        chunk: u32,
        /// The first sector in it.
        sector: u32,
        /// Their contents; zeros up to the end.
        bytes: Vec<u8>,
    },
    /// Read their out-of-band bytes.
    ReadOob {
        /// The first, flat.
        psn: u32,
    },
    /// Read their contents.
    ReadData {
        /// The first, flat.
        psn: u32,
    },
}

impl Job {
    /// The out-of-band bytes of padding.
    pub const PADDING: Oob = Oob { lba: None, poison: false, metadata: false, sequence: 0 };

    pub(crate) fn pad(kind: JobKind, chunk: u32, sector: u32, count: u32, bytes: Vec<u8>) -> Job {
        Job { id: 0, kind, what: Work::Pad { chunk, sector, bytes }, count }
    }

    pub(crate) fn read(kind: JobKind, psn: u32, count: u32, data: bool) -> Job {
        let what = if data { Work::ReadData { psn } } else { Work::ReadOob { psn } };
        Job { id: 0, kind, what, count }
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug)]
pub enum JobDone<'a> {
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
