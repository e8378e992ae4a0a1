//! [`InjectedFault`]: a fault that a user or a test injects.

use std::collections::BTreeSet;

use rng::Rng;
use serde::{Deserialize, Serialize};

use crate::layout::UnitInChunk;
use crate::{ChunkId, Operation, PhysSector, PuId};

/// A fault to inject with [`Nand::inject`](crate::Nand::inject).
///
/// An injected fault belongs to the medium in memory and survives
/// [`power_cut`](crate::Nand::power_cut). In an image, faults of a chunk or a die survive a
/// restart. Pending operation failures and uncorrectable sectors do not.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// The next read of this sector fails, unless its chunk is erased before.
    Read {
        /// The sector.
        phys: PhysSector,
    },
    /// Operations of a kind fail at random until [`Nand::end_failures`](crate::Nand::end_failures).
    /// Replaces an earlier rate of this kind. The draws come from a generator seeded by the medium's
    /// seed.
    Rate {
        /// The kind.
        operation: Operation,
        /// Probability of a failure, from 0 to 1.
        rate: f64,
    },
    /// Reads of this sector fail until its chunk is erased.
    Uncorrectable {
        /// The sector.
        phys: PhysSector,
    },
    /// The stored data of this sector changes, and its reads succeed. No effect on a medium that
    /// stores no data.
    Corrupt {
        /// The sector.
        phys: PhysSector,
    },
    /// A stored out-of-band byte of this sector changes, and reads of the sector succeed. No effect on
    /// a medium that stores no data.
    CorruptOob {
        /// The sector.
        phys: PhysSector,
        /// The byte, below `oob_bytes`.
        offset: u32,
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
    /// The next flush to the host's stable storage fails, and with it all later ones. No effect
    /// unless flushes reach it.
    HostFlush,
}

/// Failures of operations of one kind at random.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct FailureRate {
    rate: f64,
    /// Seed of the draws.
    seed: u64,
    /// Draws made.
    draws: u64,
    /// Operations that failed.
    failed: u64,
}

/// Injected operation failures that have not occurred yet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct InjectedFaults {
    programs: BTreeSet<(ChunkId, UnitInChunk)>,
    erases: BTreeSet<ChunkId>,
    reads: BTreeSet<PhysSector>,
    next_programs: u32,
    next_erases: u32,
    /// By kind of operation.
    rates: [Option<FailureRate>; 3],
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

    pub(crate) fn fail_read(&mut self, phys: PhysSector) {
        self.reads.insert(phys);
    }

    /// Starts random failures; `seed` is that of the medium.
    pub(crate) fn start_rate(&mut self, operation: Operation, rate: f64, seed: u64) {
        let seed = Rng::new(seed).fork(FIRST_STREAM + operation as u64).next_u64();
        self.rates[operation as usize] = Some(FailureRate { rate, seed, draws: 0, failed: 0 });
    }

    /// Ends random failures. Returns the number of operations that failed.
    pub(crate) fn end_rate(&mut self, operation: Operation) -> u64 {
        self.rates[operation as usize].take().map_or(0, |rate| rate.failed)
    }

    /// Returns the number of operations that failed at the rate in force; `None` without one.
    pub(crate) fn failed_at_rate(&self, operation: Operation) -> Option<u64> {
        self.rates[operation as usize].as_ref().map(|rate| rate.failed)
    }

    /// Whether a program failure is pending.
    pub(crate) fn has_pending_program(&self) -> bool {
        self.next_programs > 0
            || !self.programs.is_empty()
            || self.failed_at_rate(Operation::Program).is_some()
    }

    /// Whether this program is to fail; if so, removes a fault of one operation.
    pub(crate) fn take_program_fault(&mut self, chunk: ChunkId, unit: UnitInChunk) -> bool {
        self.programs.remove(&(chunk, unit))
            || decrement_if_positive(&mut self.next_programs)
            || self.draw(Operation::Program)
    }

    /// Whether this erase is to fail; if so, removes a fault of one operation.
    pub(crate) fn take_erase_fault(&mut self, chunk: ChunkId) -> bool {
        self.erases.remove(&chunk)
            || decrement_if_positive(&mut self.next_erases)
            || self.draw(Operation::Erase)
    }

    /// Whether this read is to fail; if so, removes a fault of one operation.
    pub(crate) fn take_read_fault(&mut self, phys: PhysSector) -> bool {
        self.reads.remove(&phys) || self.draw(Operation::Read)
    }

    /// Whether the next read of this sector is to fail. Draws nothing.
    pub(crate) fn fails_next_read(&self, phys: PhysSector) -> bool {
        self.reads.contains(&phys)
    }

    /// Whether the next program of this unit is to fail.
    pub(crate) fn fails_next_program(&self, chunk: ChunkId, unit: UnitInChunk) -> bool {
        self.programs.contains(&(chunk, unit))
    }

    /// Whether the next erase of this chunk is to fail.
    pub(crate) fn fails_next_erase(&self, chunk: ChunkId) -> bool {
        self.erases.contains(&chunk)
    }

    /// Removes the read failures from sector `first` to before `end`, whose chunk is erased.
    pub(crate) fn clear_reads(&mut self, first: PhysSector, end: PhysSector) {
        self.reads.retain(|phys| !(first..end).contains(phys));
    }

    /// Draws whether an operation fails at the rate in force.
    fn draw(&mut self, operation: Operation) -> bool {
        let Some(rate) = &mut self.rates[operation as usize] else { return false };
        let fails = Rng::new(rate.seed).fork(rate.draws).chance(rate.rate);
        rate.draws += 1;
        rate.failed += u64::from(fails);
        fails
    }
}

/// First stream of the generators of failures at a rate; streams below belong to the error model.
const FIRST_STREAM: u64 = 16;

fn decrement_if_positive(left: &mut u32) -> bool {
    let some = *left > 0;
    *left -= u32::from(some);
    some
}
