//! [`InjectedFault`]: a fault that a test injects.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::layout::UnitInChunk;
use crate::{ChunkId, PhysSector, PuId};

/// A fault to inject with [`Nand::inject`](crate::Nand::inject).
///
/// An injected fault belongs to the medium in memory and survives
/// [`power_cut`](crate::Nand::power_cut). In an image, faults of a chunk or a die survive a
/// restart. Pending operation failures and uncorrectable sectors do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// The next program of this unit fails.
    Program {
        /// The chunk.
        chunk: ChunkId,
        /// The unit in it.
        unit: UnitInChunk,
    },
    /// The next program to complete fails, in any chunk. Injected twice, the next two fail.
    NextProgram,
    /// The next erase of this chunk fails.
    Erase {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The next erase to complete fails, in any chunk. Injected twice, the next two fail.
    NextErase,
    /// Reads of this sector fail until its chunk is erased.
    Uncorrectable {
        /// The sector.
        phys: PhysSector,
    },
    /// The chunk becomes bad immediately.
    ChunkBad {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The die of a parallel unit fails immediately.
    DieFailure {
        /// Flat index of the parallel unit.
        pu: PuId,
    },
    /// The next allocation of space in the image file fails because the disk is full. No effect on
    /// a medium without an image.
    HostDiskFull,
}

/// Injected operation failures that have not occurred yet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct InjectedFaults {
    programs: BTreeSet<(ChunkId, UnitInChunk)>,
    erases: BTreeSet<ChunkId>,
    next_programs: u32,
    next_erases: u32,
}

impl InjectedFaults {
    pub(crate) fn fail_program(&mut self, chunk: ChunkId, unit: UnitInChunk) {
        self.programs.insert((chunk, unit));
    }

    pub(crate) fn fail_next_program(&mut self) {
        self.next_programs += 1;
    }

    pub(crate) fn fail_erase(&mut self, chunk: ChunkId) {
        self.erases.insert(chunk);
    }

    pub(crate) fn fail_next_erase(&mut self) {
        self.next_erases += 1;
    }

    /// Whether a program failure is pending.
    pub(crate) fn has_pending_program(&self) -> bool {
        self.next_programs > 0 || !self.programs.is_empty()
    }

    /// Whether this program is to fail; if so, removes the fault.
    pub(crate) fn take_program_fault(&mut self, chunk: ChunkId, unit: UnitInChunk) -> bool {
        self.programs.remove(&(chunk, unit)) || decrement_if_positive(&mut self.next_programs)
    }

    /// Whether this erase is to fail; if so, removes the fault.
    pub(crate) fn take_erase_fault(&mut self, chunk: ChunkId) -> bool {
        self.erases.remove(&chunk) || decrement_if_positive(&mut self.next_erases)
    }
}

fn decrement_if_positive(left: &mut u32) -> bool {
    let some = *left > 0;
    *left -= u32::from(some);
    some
}
