//! [`MediaError`]: the reason for which a medium refused or failed an operation (ARCHITECTURE.md,
//! R5: in every build).
//!
//! The type is small and `Copy`, because every I/O returns it. [`OpenError`](crate::OpenError)
//! covers errors of creating or opening a medium.

use std::fmt;

use crate::layout::UnitInChunk;

use nvme::Status;
use serde::{Deserialize, Serialize};

use crate::{ChunkId, PhysSector, PuId};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operation {
    /// A read.
    Read,
    /// A program, or staging data for one.
    Program,
    /// An erase.
    Erase,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Read => "read",
            Operation::Program => "program",
            Operation::Erase => "erase",
        })
    }
}

/// The reason for which NAND refused or failed an operation [LightNVM17 §2.2].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MediaError {
    /// An index past the end of the medium.
    #[error("{what} {value} is out of range: there are {limit}")]
    OutOfRange {
        /// The kind of object.
        what: &'static str,
        /// The index.
        value: u32,
        /// The number of objects.
        limit: u32,
    },
    /// A read at or beyond the write pointer.
    #[error("{phys} is not written: its chunk's write pointer is {write_pointer}")]
    Unwritten {
        /// The sector.
        phys: PhysSector,
        /// Sectors programmed in its chunk.
        write_pointer: u32,
    },
    /// A read of a page whose paired page is not programmed yet.
    #[error(
        "{phys} cannot be read before its chunk's write pointer is {needs} (paired page), and it is \
         {write_pointer}"
    )]
    PairNotProgrammed {
        /// The sector.
        phys: PhysSector,
        /// Smallest write pointer, in sectors, at which the sector is readable.
        needs: u32,
        /// Sectors programmed in its chunk.
        write_pointer: u32,
    },
    /// A read of a page whose program was interrupted by a power cut.
    #[error("{phys} is torn: power was cut while it was programmed")]
    Torn {
        /// The sector.
        phys: PhysSector,
    },
    /// A read of a page whose program failed.
    #[error("{phys} was not programmed: the operation failed")]
    FailedUnit {
        /// The sector.
        phys: PhysSector,
    },
    /// More bit errors than ECC corrects.
    #[error("{phys} has {bits} bit errors, and {ecc_bits} can be corrected")]
    Uncorrectable {
        /// The sector.
        phys: PhysSector,
        /// Number of bit errors.
        bits: u32,
        /// Bits that ECC corrects.
        ecc_bits: u32,
    },
    /// The die has failed, with all its chunks.
    #[error("{doing} on {pu}, whose die has failed")]
    DieFailed {
        /// Flat index of the parallel unit.
        pu: PuId,
        /// The attempted operation.
        doing: Operation,
    },
    /// The chunk is bad.
    #[error("{doing} of {chunk}, which is bad")]
    ChunkBad {
        /// The chunk.
        chunk: ChunkId,
        /// The attempted operation.
        doing: Operation,
    },
    /// An operation is in progress in the chunk.
    #[error("{doing} of {chunk} while its {with} is in progress")]
    Busy {
        /// The chunk.
        chunk: ChunkId,
        /// The attempted operation.
        doing: Operation,
        /// The operation in progress.
        with: Operation,
    },
    /// A power cut interrupted the chunk's last erase; the chunk must be erased again.
    #[error("{doing} of {chunk}, whose erase was interrupted: erase it again")]
    EraseInterrupted {
        /// The chunk.
        chunk: ChunkId,
        /// The attempted operation.
        doing: Operation,
    },
    /// A program that is not at the write pointer.
    #[error("program of {unit} of {chunk}, whose next is {expected}")]
    OutOfOrder {
        /// The chunk.
        chunk: ChunkId,
        /// The requested unit.
        unit: UnitInChunk,
        /// The unit at the write pointer; the number of units if the chunk is full and must be
        /// erased first.
        expected: UnitInChunk,
    },
    /// A program of a chunk that an earlier program failure has closed.
    #[error("program of {chunk}, which a failure closed at sector {write_pointer}: erase it first")]
    ClosedEarly {
        /// The chunk.
        chunk: ChunkId,
        /// Sectors programmed.
        write_pointer: u32,
    },
    /// Staging data for a sector that is programmed, or being programmed.
    #[error("data for {phys}, which is programmed: its chunk's next free sector is {free}")]
    Overwrite {
        /// The sector.
        phys: PhysSector,
        /// First sector in the chunk that is not programmed.
        free: u32,
    },
    /// Completion of an operation that was not begun.
    #[error("completion of a {doing} of {chunk} that was not begun")]
    NotBegun {
        /// The chunk.
        chunk: ChunkId,
        /// The operation.
        doing: Operation,
    },
    /// The program failed; the chunk is closed, and its earlier contents stay readable.
    #[error("program of {unit} of {chunk} failed; the chunk is closed")]
    ProgramFailed {
        /// The chunk.
        chunk: ChunkId,
        /// The unit.
        unit: UnitInChunk,
    },
    /// The erase failed; the chunk is bad.
    #[error("erase of {chunk} failed; the chunk is bad")]
    EraseFailed {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The file system of the image file has no space for the chunk. The medium did not change; the
    /// operation can be repeated when there is space.
    #[error("the image file's disk is full: free some space for {chunk}")]
    HostDiskFull {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The file system of the image file could not allocate space for the chunk, for another
    /// reason.
    #[error("cannot allocate space for {chunk} in the image file: error {errno}")]
    HostDisk {
        /// The chunk.
        chunk: ChunkId,
        /// The operating system's error number.
        errno: i32,
    },
    /// The host's stable storage did not take the changes before which the chunk must not be
    /// written. The medium did not change.
    #[error("cannot flush the image file before {chunk} is written again: error {errno}")]
    HostFlush {
        /// The chunk.
        chunk: ChunkId,
        /// The operating system's error number.
        errno: i32,
    },
}

impl MediaError {
    /// Returns the status with which a drive completes the command.
    pub fn status(&self) -> Status {
        match self {
            MediaError::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE,
            MediaError::Unwritten { .. } | MediaError::PairNotProgrammed { .. } => {
                Status::UNWRITTEN
            }
            MediaError::Torn { .. }
            | MediaError::FailedUnit { .. }
            | MediaError::Uncorrectable { .. } => Status::UNRECOVERED_READ,
            MediaError::DieFailed { doing, .. } => match doing {
                Operation::Read => Status::UNRECOVERED_READ,
                Operation::Program | Operation::Erase => Status::OFFLINE_CHUNK,
            },
            MediaError::ChunkBad { doing, .. } => match doing {
                Operation::Read => Status::UNRECOVERED_READ,
                Operation::Program | Operation::Erase => Status::OFFLINE_CHUNK,
            },
            MediaError::Busy { doing: Operation::Read, .. } => Status::UNWRITTEN,
            MediaError::EraseInterrupted { doing: Operation::Read, .. } => Status::UNRECOVERED_READ,
            MediaError::EraseInterrupted { .. }
            | MediaError::OutOfOrder { .. }
            | MediaError::ClosedEarly { .. }
            | MediaError::Overwrite { .. } => Status::OUT_OF_ORDER_WRITE,
            // These are errors in the drive's own bookkeeping.
            MediaError::Busy { .. } | MediaError::NotBegun { .. } => Status::INTERNAL,
            MediaError::ProgramFailed { .. } => Status::CHUNK_CLOSED_EARLY,
            MediaError::EraseFailed { .. }
            | MediaError::HostDisk { .. }
            | MediaError::HostFlush { .. } => Status::WRITE_FAULT,
            MediaError::HostDiskFull { .. } => Status::CAPACITY_EXCEEDED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_small_enough_for_the_hot_path() {
        assert!(size_of::<MediaError>() <= 32);
    }

    #[test]
    fn what_a_drive_answers() {
        let (phys, chunk) = (PhysSector(1), ChunkId(2));
        for (error, status) in [
            (MediaError::OutOfRange { what: "PU", value: 9, limit: 8 }, Status::LBA_OUT_OF_RANGE),
            (MediaError::Unwritten { phys, write_pointer: 0 }, Status::UNWRITTEN),
            (MediaError::PairNotProgrammed { phys, needs: 9, write_pointer: 4 }, Status::UNWRITTEN),
            (MediaError::Torn { phys }, Status::UNRECOVERED_READ),
            (
                MediaError::DieFailed { pu: PuId(1), doing: Operation::Read },
                Status::UNRECOVERED_READ,
            ),
            (MediaError::DieFailed { pu: PuId(1), doing: Operation::Erase }, Status::OFFLINE_CHUNK),
            (MediaError::ChunkBad { chunk, doing: Operation::Program }, Status::OFFLINE_CHUNK),
            (
                MediaError::OutOfOrder { chunk, unit: UnitInChunk(3), expected: UnitInChunk(2) },
                Status::OUT_OF_ORDER_WRITE,
            ),
            (MediaError::ProgramFailed { chunk, unit: UnitInChunk(3) }, Status::CHUNK_CLOSED_EARLY),
            (MediaError::EraseFailed { chunk }, Status::WRITE_FAULT),
            (MediaError::HostDiskFull { chunk }, Status::CAPACITY_EXCEEDED),
            (MediaError::NotBegun { chunk, doing: Operation::Erase }, Status::INTERNAL),
        ] {
            assert_eq!(error.status(), status, "{error}");
        }
    }
}
