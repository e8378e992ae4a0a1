//! [`Fault`]: what a test makes go wrong on cue.

use std::collections::BTreeSet;

use crate::{ChunkIndex, PhysSector};

/// A fault to force with [`Nand::inject`](crate::Nand::inject).
///
/// A fault lives in the medium's value and survives [`power_cut`](crate::Nand::power_cut). In an
/// image it survives a restart when it is one of a chunk or a die; forced operation failures that
/// have not come about, and uncorrectable sectors, are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// The next program of this unit fails.
    Program {
        /// The chunk.
        chunk: ChunkIndex,
        /// The unit in it.
        unit: u32,
    },
    /// The next program to end, wherever it is, fails. Injected twice, the next two.
    NextProgram,
    /// The next erase of this chunk fails.
    Erase {
        /// The chunk.
        chunk: ChunkIndex,
    },
    /// The next erase to end, wherever it is, fails. Injected twice, the next two.
    NextErase,
    /// Reads of this sector fail until its chunk is erased.
    Uncorrectable {
        /// The sector.
        psn: PhysSector,
    },
    /// The chunk goes bad now.
    ChunkBad {
        /// The chunk.
        chunk: ChunkIndex,
    },
    /// The die of a parallel unit fails now.
    DieFailure {
        /// The parallel unit's flat number.
        pu: u32,
    },
    /// The image file's disk is full when room for another chunk is next asked for. Nothing to do
    /// for a medium without an image.
    HostDiskFull,
}

/// Forced failures of operations that have not come about yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct InjectedFaults {
    programs: BTreeSet<(ChunkIndex, u32)>,
    erases: BTreeSet<ChunkIndex>,
    next_programs: u32,
    next_erases: u32,
}

impl InjectedFaults {
    pub(crate) fn fail_program(&mut self, chunk: ChunkIndex, unit: u32) {
        self.programs.insert((chunk, unit));
    }

    pub(crate) fn fail_next_program(&mut self) {
        self.next_programs += 1;
    }

    pub(crate) fn fail_erase(&mut self, chunk: ChunkIndex) {
        self.erases.insert(chunk);
    }

    pub(crate) fn fail_next_erase(&mut self) {
        self.next_erases += 1;
    }

    /// Whether some program is to fail.
    pub(crate) fn has_pending_program(&self) -> bool {
        self.next_programs > 0 || !self.programs.is_empty()
    }

    /// Whether this program is to fail; if so, that has come about.
    pub(crate) fn take_program_fault(&mut self, chunk: ChunkIndex, unit: u32) -> bool {
        self.programs.remove(&(chunk, unit)) || decrement_if_positive(&mut self.next_programs)
    }

    /// Whether this erase is to fail; if so, that has come about.
    pub(crate) fn take_erase_fault(&mut self, chunk: ChunkIndex) -> bool {
        self.erases.remove(&chunk) || decrement_if_positive(&mut self.next_erases)
    }
}

fn decrement_if_positive(left: &mut u32) -> bool {
    let some = *left > 0;
    *left -= u32::from(some);
    some
}
