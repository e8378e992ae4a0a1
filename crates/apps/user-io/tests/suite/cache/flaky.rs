//! A device in memory with latency, reordering and failures.

use std::collections::{BTreeMap, BTreeSet};

use block::{BlockDevice, Completion, Limits, Op, Payload, QueueFull, Request, Segment};
use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use rng::Rng;
use time::{Component, Nanos};

#[derive(Debug)]
pub(crate) struct Flaky {
    pub(crate) limits: Limits,
    memory: AddressSpace,
    /// Durable contents, and volatile contents by sector.
    pub(crate) durable: Vec<u8>,
    volatile: BTreeMap<u64, Vec<u8>>,
    in_flight: Vec<Request>,
    completions: Vec<Completion>,
    pub(crate) unreadable: BTreeSet<u64>,
    pub(crate) unwritable: BTreeSet<u64>,
    /// Whether requests take time and the device is sometimes full.
    pub(crate) lazy: bool,
    rng: Rng,
    pub(crate) commands: u64,
}

impl Flaky {
    pub(crate) fn new(limits: Limits, memory: AddressSpace, seed: u64) -> Flaky {
        let bytes = (limits.sectors * u64::from(limits.sector_bytes)) as usize;
        Flaky {
            limits,
            memory,
            durable: vec![0; bytes],
            volatile: BTreeMap::new(),
            in_flight: Vec::new(),
            completions: Vec::new(),
            unreadable: BTreeSet::new(),
            unwritable: BTreeSet::new(),
            lazy: true,
            rng: Rng::new(seed),
            commands: 0,
        }
    }

    fn bytes(&self) -> usize {
        self.limits.sector_bytes as usize
    }

    /// Returns the current contents of a sector.
    pub(crate) fn sector(&self, lba: u64) -> Vec<u8> {
        let bytes = self.bytes();
        let at = lba as usize * bytes;
        let durable = || self.durable[at..at + bytes].to_vec();
        self.volatile.get(&lba).cloned().unwrap_or_else(durable)
    }

    fn write_volatile(&mut self, lba: u64, data: &[u8]) {
        let bytes = self.bytes();
        let at = lba as usize * bytes;
        self.durable[at..at + bytes].copy_from_slice(data);
        self.volatile.remove(&lba);
    }

    /// Cuts the power: commands in flight may have been executed in part, sector by sector, and any
    /// data that was not flushed may be lost.
    pub(crate) fn power_cut(&mut self) {
        for request in std::mem::take(&mut self.in_flight) {
            if request.op == Op::Write {
                for i in 0..u64::from(request.sectors) {
                    if self.rng.chance(0.5) {
                        let data = self.data(&request, i);
                        self.volatile.insert(request.lba + i, data);
                    }
                }
            }
        }
        for (lba, data) in std::mem::take(&mut self.volatile) {
            if self.rng.chance(0.5) {
                self.write_volatile(lba, &data);
            }
        }
        self.completions.clear();
    }

    /// Returns the location of sector `i` of a request's data.
    fn data_iova(&self, request: &Request, i: u64) -> Option<mem::Iova> {
        let mut offset = i * self.bytes() as u64;
        match request.data {
            Payload::Contiguous(at) => Some(at.offset(offset)),
            Payload::BitBucket => None,
            Payload::Scattered { table, segments } => {
                for s in 0..u64::from(segments) {
                    let mut entry = [0; 16];
                    self.memory.read(table.offset(16 * s), &mut entry).unwrap();
                    let word =
                        |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
                    let segment = Segment::decode([word(0), word(8)]).unwrap();
                    if offset < segment.bytes.into() {
                        return segment.at.map(|at| at.offset(offset));
                    }
                    offset -= u64::from(segment.bytes);
                }
                panic!("data shorter than the request: {request:?}");
            }
        }
    }

    fn data(&self, request: &Request, i: u64) -> Vec<u8> {
        let mut data = vec![0; self.bytes()];
        if let Some(at) = self.data_iova(request, i) {
            self.memory.read(at, &mut data).unwrap();
        }
        data
    }

    fn execute(&mut self, request: &Request) -> (Status, u64) {
        let range = request.lba..request.lba + u64::from(request.sectors);
        match request.op {
            Op::Read => {
                if range.clone().any(|lba| self.unreadable.contains(&lba)) {
                    return (Status::UNRECOVERED_READ, 0);
                }
                for (i, lba) in (0..).zip(range) {
                    if let Some(at) = self.data_iova(request, i) {
                        self.memory.write(at, &self.sector(lba)).unwrap();
                    }
                }
            }
            Op::Write => {
                if range.clone().any(|lba| self.unwritable.contains(&lba)) {
                    return (Status::WRITE_FAULT, 0);
                }
                for (i, lba) in (0..).zip(range) {
                    let data = self.data(request, i);
                    self.volatile.insert(lba, data.clone());
                    if request.fua {
                        self.write_volatile(lba, &data);
                    }
                }
            }
            Op::Discard | Op::WriteZeroes => {
                for lba in range {
                    self.volatile.insert(lba, vec![0; self.bytes()]);
                }
            }
            Op::Flush => {
                for (lba, data) in std::mem::take(&mut self.volatile) {
                    self.write_volatile(lba, &data);
                }
            }
            Op::Extents => return (Status::SUCCESS, 1),
        }
        (Status::SUCCESS, 0)
    }
}

impl BlockDevice for Flaky {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false);

    fn set_waker(&mut self, _: Waker) {}

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), QueueFull> {
        let full = self.in_flight.len() >= self.limits.queue_depth as usize;
        if full || self.lazy && self.rng.chance(0.1) {
            return Err(QueueFull);
        }
        assert!(request.sectors <= self.limits.max_sectors);
        assert!(request.lba + u64::from(request.sectors) <= self.limits.sectors);
        // Invariant: sectors of two commands in flight do not overlap if one of them writes.
        for other in &self.in_flight {
            let apart = request.lba + u64::from(request.sectors) <= other.lba
                || other.lba + u64::from(other.sectors) <= request.lba;
            let harmless = request.op == Op::Read && other.op == Op::Read;
            assert!(apart || harmless, "{request:?} beside {other:?}");
        }
        self.commands += 1;
        self.in_flight.push(request);
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        self.completions.pop()
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }
}

impl Component for Flaky {
    fn poll(&mut self, _: Nanos) -> bool {
        let mut moved = false;
        while !self.in_flight.is_empty() && (!self.lazy || self.rng.chance(0.4)) {
            let at = self.rng.below(self.in_flight.len() as u64) as usize;
            let request = self.in_flight.swap_remove(at);
            let (status, result) = self.execute(&request);
            self.completions.push(Completion { tag: request.tag, status, result });
            moved = true;
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}
