//! [`DriveCopies`]: programs whose data the drive copies ([OC20 §4], Vector Chunk Copy).
//!
//! A copy reads its sources before it programs, and the drive refuses a write that is not at the
//! write pointer. So later programs on the chunk wait here until the copy has ended. A copy that
//! fails has programmed nothing: its sources are read into the slots of the unit, and the FTL
//! programs the unit from there.

use std::collections::{BTreeMap, VecDeque};

use ftl::{BufferEntry, OpToken, ReadAddress, ReadDest, SlotId, WriteUnit};
use nvme::{ChunkId, PhysSector, Ppa, Status};

use super::{BackendEvent, CommandTag, DeferredCommand, VectorBackend, trace_op};

/// A program.
#[derive(Clone, Debug)]
pub(super) struct PendingProgram {
    op: OpToken,
    chunk: ChunkId,
    sector: u32,
    first_slot: SlotId,
    /// The sources of its sectors; empty if the data is in the slots.
    sources: Vec<PhysSector>,
}

impl PendingProgram {
    fn new(op: OpToken, unit: &WriteUnit<'_>) -> PendingProgram {
        let first = unit.entries.iter().find_map(BufferEntry::source).filter(|_| !unit.in_slots);
        // The contents of padding and of lost sectors do not matter, but every sector has a source.
        let source_of = |first| unit.entries.iter().map(move |e| e.source().unwrap_or(first));
        let sources = first.map_or_else(Vec::new, |first| source_of(first).collect());
        let WriteUnit { chunk, sector, first_slot, .. } = *unit;
        PendingProgram { op, chunk, sector, first_slot, sources }
    }
}

/// The copies in progress, and the programs that wait for them.
#[derive(Debug, Default)]
pub(super) struct DriveCopies {
    /// By the number of the operation.
    copies: BTreeMap<u32, PendingProgram>,
    /// By chunk: programs behind a copy in progress. Every chunk with a copy has a queue.
    waiting: BTreeMap<ChunkId, VecDeque<PendingProgram>>,
}

impl DriveCopies {
    /// Returns the number of copies in progress.
    pub(super) fn in_progress(&self) -> usize {
        self.copies.len()
    }

    /// Returns whether every chunk with a copy, and no other, has a queue.
    pub(super) fn is_consistent(&self) -> bool {
        let mut chunks = self.copies.values().map(|copy| copy.chunk);
        self.copies.len() == self.waiting.len()
            && chunks.all(|chunk| self.waiting.contains_key(&chunk))
    }
}

impl VectorBackend {
    /// Starts a program, by a copy if its data is not in the slots. Programs behind a copy wait.
    #[inline(never)]
    pub(super) fn start_or_hold(&mut self, op: OpToken, unit: &WriteUnit<'_>) {
        let program = PendingProgram::new(op, unit);
        let is_copy = !program.sources.is_empty();
        let tag = if is_copy { CommandTag::Copy(op) } else { CommandTag::Program(op) };
        trace_op(tag, op, None, Some(unit));
        let Some(copies) = &mut self.drive_copies else { return };
        if copies.copies.remove(&op.0).is_some() {
            // The copy has failed, and this is the program from the slots.
            let chunk = program.chunk;
            self.start_program(op, chunk, program.sector, program.first_slot);
            return self.end_copy(chunk);
        }
        match copies.waiting.get_mut(&program.chunk) {
            Some(queue) => queue.push_back(program),
            None => _ = self.start_pending(program),
        }
    }

    /// Starts a program. Returns whether later programs on its chunk must wait for it.
    fn start_pending(&mut self, program: PendingProgram) -> bool {
        let PendingProgram { op, chunk, sector, first_slot, .. } = program;
        let Some(copies) = self.drive_copies.as_mut().filter(|_| !program.sources.is_empty())
        else {
            self.start_program(op, chunk, sector, first_slot);
            return false;
        };
        copies.waiting.entry(chunk).or_default();
        copies.copies.insert(op.0, program);
        if !self.deferred.is_empty() || !self.send_copy(op) {
            self.deferred.push_back(DeferredCommand::Copy { op });
        }
        true
    }

    /// Submits a copy. Returns `false` if the queue is full.
    pub(super) fn send_copy(&mut self, op: OpToken) -> bool {
        let Some(program) = self.drive_copies.as_ref().and_then(|all| all.copies.get(&op.0)) else {
            return true;
        };
        let shape = self.addresses.shape();
        let first = shape.first_sector_of(program.chunk) + program.sector;
        let to = self.addresses.sector(first).0;
        let from = program.sources.iter().map(|source| self.addresses.sector(*source));
        let to = (0..program.sources.len()).map(|i| Ppa(to + i as u64));
        let oob = self.memory.as_ref().map(|slots| slots.oob_at(program.first_slot));
        self.queue.copy(from, to, oob, CommandTag::Copy(op).to_bits()).is_ok()
    }

    /// Handles the end of a copy. If it failed, its sources are read.
    #[cold]
    pub(super) fn on_copied(&mut self, op: OpToken, status: Status) -> BackendEvent {
        let Some(copies) = &mut self.drive_copies else { return BackendEvent::InProgress };
        if status.is_success() {
            let chunk = copies.copies.remove(&op.0).map(|program| program.chunk);
            chunk.into_iter().for_each(|chunk| self.end_copy(chunk));
            return BackendEvent::Program { op, status };
        }
        if let Some(program) = copies.copies.get(&op.0) {
            let slots = program.first_slot.run(program.sources.len() as u32);
            let sources = program.sources.iter().zip(slots);
            let addresses: Vec<ReadAddress> = sources
                .map(|(phys, slot)| ReadAddress { phys: *phys, place: slot.get() })
                .collect();
            trace_op(CommandTag::CopySources(op), op, None, None);
            self.start_read(CommandTag::CopySources(op), &addresses, ReadDest::Buffer);
        }
        BackendEvent::InProgress
    }

    /// Handles the end of a read of the sources of a failed copy.
    #[cold]
    pub(super) fn on_copy_sources_read(&mut self, op: OpToken, failed: u64) -> BackendEvent {
        let copies = self.drive_copies.as_ref();
        if let (Some(program), Some(slots)) =
            (copies.and_then(|copies| copies.copies.get(&op.0)), &self.memory)
        {
            let unit = program.first_slot.run(program.sources.len() as u32);
            for (_, slot) in (0..).zip(unit).filter(|(i, _)| failed >> i & 1 != 0) {
                slots.store(slot, &[]);
            }
        }
        BackendEvent::CopyFailed { op, failed }
    }

    /// Starts the programs that waited for a copy on a chunk, up to the next copy.
    fn end_copy(&mut self, chunk: ChunkId) {
        let waiting = self.drive_copies.as_mut().and_then(|all| all.waiting.remove(&chunk));
        let mut waiting = waiting.unwrap_or_default();
        while let Some(next) = waiting.pop_front() {
            if self.start_pending(next) {
                if let Some(copies) = &mut self.drive_copies {
                    copies.waiting.insert(chunk, waiting);
                }
                return;
            }
        }
    }
}
