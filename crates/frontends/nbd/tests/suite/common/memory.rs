//! [`MemoryDevice`]: a block device in memory for tests, with latency, reordering and injected failures. It checks
//! the server's obligations: ranges, limits, registered memory, and the queue depth.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Arc, Mutex};

use block::{
    BlockDevice, Completion, Extent, ExtentState, Limits, Op, Payload, QueueFull, Request,
};
use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use time::{Component, Nanos};

/// Behavior of the device, which can change while it serves.
#[derive(Debug, Default)]
pub struct Cues {
    /// Every request takes this long, and up to twice that if `scatter`.
    pub latency: Nanos,
    /// Completions are reordered.
    pub scatter: bool,
    /// Requests that touch these sectors fail with this status.
    pub fail: BTreeMap<u64, Status>,
    /// Writes of unmapped sectors fail with `CAPACITY_EXCEEDED`.
    pub full: bool,
    /// Flushes and FUA writes seen.
    pub flushes: u64,
    pub fua_writes: u64,
    /// Requests taken and not reaped.
    pub outstanding: usize,
}

pub struct MemoryDevice {
    limits: Limits,
    bytes: Vec<u8>,
    mapped: Vec<bool>,
    memory: AddressSpace,
    cues: Arc<Mutex<Cues>>,
    /// Due time, a tie breaker, request.
    pending: BinaryHeap<Reverse<(u64, u64, usize)>>,
    requests: Vec<Option<Request>>,
    free: Vec<usize>,
    done: Vec<Completion>,
    random: u64,
    latency: (Nanos, bool),
    outstanding: usize,
}

pub fn limits(sector_bytes: u32, bytes: u64) -> Limits {
    Limits {
        sector_bytes,
        sectors: bytes / u64::from(sector_bytes),
        max_sectors: (1 << 20) / sector_bytes,
        optimal_sectors: 4096 / sector_bytes,
        queue_depth: 64,
        volatile_cache: true,
        atomic: block::AtomicLimits::NONE,
    }
}

impl MemoryDevice {
    pub fn new(limits: Limits) -> MemoryDevice {
        MemoryDevice {
            bytes: vec![0; limits.bytes() as usize],
            mapped: vec![false; limits.sectors as usize],
            memory: AddressSpace::default(),
            cues: Arc::default(),
            pending: BinaryHeap::new(),
            requests: Vec::new(),
            free: Vec::new(),
            done: Vec::new(),
            random: 0x9e37_79b9_7f4a_7c15,
            latency: (Nanos::ZERO, false),
            outstanding: 0,
            limits,
        }
    }

    pub fn cues(&self) -> Arc<Mutex<Cues>> {
        self.cues.clone()
    }

    fn execute(&mut self, r: &Request) -> (Status, u64) {
        if r.op == Op::Flush {
            self.cues.lock().unwrap().flushes += 1;
            return (Status::SUCCESS, 0);
        }
        let end = r.lba + u64::from(r.sectors);
        assert!(r.sectors > 0 && end <= self.limits.sectors, "{r:?} is in range");
        assert!(r.sectors <= self.limits.max_sectors, "{r:?} is within the limits");
        {
            let mut cues = self.cues.lock().unwrap();
            if let Some((_, status)) = cues.fail.range(r.lba..end).next() {
                return (*status, 0);
            }
            let range = r.lba as usize..end as usize;
            if cues.full && r.op == Op::Write && self.mapped[range].iter().any(|m| !m) {
                return (Status::CAPACITY_EXCEEDED, 0);
            }
            cues.fua_writes += u64::from(r.fua && r.op == Op::Write);
        }
        let sector = self.limits.sector_bytes as usize;
        let range = r.lba as usize * sector..end as usize * sector;
        let map = r.lba as usize..end as usize;
        let iova = match r.data {
            Payload::Contiguous(iova) => iova,
            Payload::BitBucket | Payload::Scattered { .. } => mem::Iova(0),
        };
        match r.op {
            Op::Read => {
                let sent = self.memory.write(iova, &self.bytes[range]);
                sent.expect("the server names registered memory");
            }
            Op::Write => {
                let taken = self.memory.read(iova, &mut self.bytes[range]);
                taken.expect("the server names registered memory");
                self.mapped[map].fill(true);
            }
            Op::Discard => {
                self.bytes[range].fill(0);
                self.mapped[map].fill(false);
            }
            Op::WriteZeroes => {
                self.bytes[range].fill(0);
                self.mapped[map].fill(!r.deallocate);
            }
            Op::Extents => return (Status::SUCCESS, self.extents(r, iova)),
            Op::Flush => {}
        }
        (Status::SUCCESS, 0)
    }

    fn extents(&self, r: &Request, iova: mem::Iova) -> u64 {
        let mut found: Vec<Extent> = Vec::new();
        for lba in r.lba..r.lba + u64::from(r.sectors) {
            let mapped = self.mapped[lba as usize];
            let state = if mapped { ExtentState::Mapped } else { ExtentState::Unmapped };
            let full = found.len() == Request::extent_capacity();
            match found.last_mut() {
                Some(last) if last.state == state => last.sectors += 1,
                _ if full => break,
                _ => found.push(Extent { lba, sectors: 1, state }),
            }
        }
        for (i, extent) in found.iter().enumerate() {
            let at = iova.offset((i * Extent::BYTES) as u64);
            self.memory.write(at, &extent.encode()).expect("room for a page of extents");
        }
        found.len() as u64
    }
}

impl Component for MemoryDevice {
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(Reverse((due, _, slot))) = self.pending.peek().copied() {
            if due > now.0 {
                break;
            }
            self.pending.pop();
            let request = self.requests[slot].take().expect("a pending request is there");
            self.free.push(slot);
            let (status, result) = self.execute(&request);
            self.done.push(Completion { tag: request.tag, status, result });
            moved = true;
        }
        if moved || self.outstanding > 0 {
            let mut cues = self.cues.lock().unwrap();
            cues.outstanding = self.outstanding;
            self.latency = (cues.latency, cues.scatter);
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        self.pending.peek().map_or(Nanos::MAX, |Reverse((due, ..))| Nanos(*due))
    }
}

impl BlockDevice for MemoryDevice {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false,
        visit_layers: {});

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.outstanding == self.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        if self.outstanding == 0 {
            let cues = self.cues.lock().unwrap();
            self.latency = (cues.latency, cues.scatter);
        }
        self.outstanding += 1;
        debug_assert!(
            self.requests.iter().flatten().all(|r| r.tag != request.tag),
            "tags of outstanding requests differ"
        );
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let (latency, scatter) = self.latency;
        let extra = if scatter { self.random % (latency.0 + 1000) } else { 0 };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        self.requests[slot] = Some(request);
        self.pending.push(Reverse((now.0 + latency.0 + extra, self.random, slot)));
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        let completion = self.done.pop()?;
        self.outstanding -= 1;
        Some(completion)
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn set_waker(&mut self, _: Waker) {}
}
