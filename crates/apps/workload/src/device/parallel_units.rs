//! [`ParallelUnits`]: the parallel units of an open-channel drive as the device of jobs, by vector
//! commands ([LightNVM17 §3.3], [OC20 §4]).
//!
//! A request names consecutive sectors of one chunk: a read or a write is one vector command, and
//! the trim of a chunk is its reset.
//!
//! Invariants: commands are submitted in the order of the calls, and the drive executes them in
//! order on each parallel unit.

use std::collections::VecDeque;

use block::{Completion, Op, Payload, QueueFull};
use mem::AddressSpace;
use nvme::{Address, Geometry, Ppa, Status};
use ocssd::ReportedChunk;
use ocssd::ppa::{PpaSpace, PuSet};
use ocssd::vector::{DataSegments, VectorQueue};
use time::{Component, Nanos};

use super::{Addressing, JobDevice, JobLimits, JobOperation};
use crate::unit_spec::UnitLimits;

/// The parallel units of an open-channel drive, or of a target for physical addresses.
#[derive(Debug)]
pub struct ParallelUnits {
    queue: VectorQueue,
    limits: UnitLimits,
    space: PpaSpace,
    /// First sector of each unit.
    units: Vec<Address>,
    /// Chunks of all units in order; `None` for one that jobs must not use.
    chunks: Vec<Option<ReportedChunk>>,
    completed: VecDeque<Completion>,
    /// Whether completions were reaped whose entries have not been released.
    reaped: bool,
}

impl ParallelUnits {
    /// Creates the device of the units `pus`. `chunks` are their chunks in order; `None` is a chunk
    /// that belongs to another owner.
    pub fn new(
        queue: VectorQueue,
        space: PpaSpace,
        pus: PuSet,
        chunks: Vec<Option<ReportedChunk>>,
    ) -> ParallelUnits {
        let geometry = *space.geometry();
        let units = pus.iter().filter_map(|pu| space.pu_address(pu).ok()).collect();
        let unit = geometry.ws_min.max(1);
        let limits = UnitLimits {
            pus,
            geometry,
            sectors_max: (queue.max_sectors() / unit * unit).max(1),
            queue_depth: u32::from(queue.queue().capacity()),
        };
        let completed = VecDeque::new();
        ParallelUnits { queue, limits, space, units, chunks, completed, reaped: false }
    }

    /// Returns the limits of the device.
    pub fn unit_limits(&self) -> &UnitLimits {
        &self.limits
    }

    /// Returns the address of a sector of the device; `None` beyond its end.
    fn address(&self, sector: u64) -> Option<Address> {
        let Geometry { chunks, sectors, .. } = *self.space.geometry();
        let chunk = sector / u64::from(sectors);
        let unit = self.units.get((chunk / u64::from(chunks)) as usize)?;
        let (chunk, sector) = (chunk % u64::from(chunks), sector % u64::from(sectors));
        Some(Address { chunk: chunk as u32, sector: sector as u32, ..*unit })
    }

    fn reject(&mut self, tag: u64, status: Status) {
        self.completed.push_back(Completion { tag, status, result: 0 });
    }
}

impl Component for ParallelUnits {
    fn poll(&mut self, _: Nanos) -> bool {
        let mut moved = false;
        while let Some(done) = self.queue.reap() {
            let (tag, status) = (done.user_data, done.status);
            self.completed.push_back(Completion { tag, status, result: 0 });
            moved = true;
        }
        self.reaped |= moved;
        let rang = self.queue.ring(self.reaped);
        if !rang {
            self.reaped = false;
        }
        moved | rang
    }

    /// Returns zero while a completion waits to be reaped; the drive has all other deadlines.
    fn deadline(&self) -> Nanos {
        if self.completed.is_empty() { Nanos::MAX } else { Nanos::ZERO }
    }
}

impl JobDevice for ParallelUnits {
    #[inline]
    fn addressing(&self) -> Addressing {
        Addressing::Units
    }

    fn limits(&self) -> JobLimits {
        JobLimits::Units(self.limits.clone())
    }

    fn memory(&self) -> &AddressSpace {
        self.queue.port().memory()
    }

    fn chunks(&self) -> &[Option<ReportedChunk>] {
        &self.chunks
    }

    fn submit(&mut self, _: Nanos, operation: JobOperation) -> Result<(), QueueFull> {
        let JobOperation::Block(request) = operation else {
            unreachable!("{operation:?} on parallel units");
        };
        let Some(first) = self.address(request.lba) else {
            self.reject(request.tag, Status::LBA_OUT_OF_RANGE);
            return Ok(());
        };
        let space = &self.space;
        let ppas = (0..request.sectors).map(|i| {
            let at = Address { sector: first.sector + i, ..first };
            // Jobs stay within a chunk; the drive rejects every other address.
            space.ppa(at).unwrap_or(Ppa(u64::MAX))
        });
        let data = match request.data {
            Payload::Contiguous(at) => DataSegments::Contiguous(at),
            Payload::BitBucket | Payload::Scattered { .. } => DataSegments::BitBucket,
        };
        let submitted = match request.op {
            Op::Read => self.queue.read(ppas, data, None, request.tag),
            Op::Write => self.queue.write(ppas, data, None, request.tag),
            Op::Discard => self.queue.reset(ppas.take(1), request.tag),
            Op::Flush | Op::WriteZeroes | Op::Extents => {
                self.reject(request.tag, Status::INVALID_OPCODE);
                return Ok(());
            }
        };
        submitted.map_err(|_| QueueFull)
    }

    fn reap(&mut self) -> Option<Completion> {
        self.completed.pop_front()
    }
}
