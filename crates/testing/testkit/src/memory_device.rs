//! [`MemoryDevice`]: a block device in memory that completes at once and does not allocate.

use std::collections::VecDeque;
use std::sync::Arc;

use block::{BlockDevice, Completion, Limits, Op, Payload, QueueFull, Request};
use event::Waker;
use mem::{AddressSpace, SharedRegion};
use nvme::Status;
use time::{Component, Nanos};

const SECTOR: u32 = 512;
const DEPTH: u32 = 64;

/// A block device in memory.
#[derive(Debug)]
pub struct MemoryDevice {
    limits: Limits,
    memory: AddressSpace,
    sectors: Arc<SharedRegion>,
    waiting: VecDeque<Request>,
    done: VecDeque<Completion>,
    /// Requests accepted.
    pub taken: u64,
    /// Writes and flushes that a drive would complete only when durable.
    pub durable: u64,
}

impl MemoryDevice {
    /// Creates a device of blocks of 4096 bytes.
    pub fn new(blocks: u64) -> MemoryDevice {
        MemoryDevice {
            limits: Limits {
                sector_bytes: SECTOR,
                sectors: blocks * 4096 / u64::from(SECTOR),
                max_sectors: 65536 / SECTOR,
                optimal_sectors: 1,
                queue_depth: DEPTH,
                volatile_cache: true,
                atomic: block::AtomicLimits::NONE,
            },
            memory: AddressSpace::default(),
            sectors: SharedRegion::anonymous(blocks as usize * 4096).unwrap(),
            waiting: VecDeque::with_capacity(DEPTH as usize),
            done: VecDeque::with_capacity(DEPTH as usize),
            taken: 0,
            durable: 0,
        }
    }

    fn execute(&self, request: &Request) -> Status {
        let (at, len) = ((request.lba * u64::from(SECTOR)) as usize, request.sectors * SECTOR);
        let there = match request.data {
            Payload::Contiguous(there) if matches!(request.op, Op::Read | Op::Write) => there,
            _ => return Status::SUCCESS,
        };
        let Ok(found) = self.memory.find(there, len.into()) else {
            return Status::DATA_TRANSFER_ERROR;
        };
        let (region, offset) = (found.region, found.offset);
        match request.op {
            Op::Read => SharedRegion::copy(&self.sectors, at, region, offset, len as usize),
            _ => SharedRegion::copy(region, offset, &self.sectors, at, len as usize),
        }
        Status::SUCCESS
    }
}

impl BlockDevice for MemoryDevice {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false,
        visit_layers: {});

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.waiting.len() == DEPTH as usize {
            return Err(QueueFull);
        }
        self.taken += 1;
        self.durable += u64::from(request.fua || request.op == Op::Flush);
        self.waiting.push_back(request);
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn set_waker(&mut self, _: Waker) {}
}

impl Component for MemoryDevice {
    fn poll(&mut self, _: Nanos) -> bool {
        let moved = !self.waiting.is_empty();
        while let Some(request) = self.waiting.pop_front() {
            let status = self.execute(&request);
            self.done.push_back(Completion { tag: request.tag, status, result: 0 });
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}
