//! A device in memory with a volatile write buffer, latency, and injected failures.

use std::collections::{BTreeMap, BTreeSet};

use block::{BlockDevice, Completion, Limits, Op, Payload, QueueFull, Request};
use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use rng::Rng;
use time::{Component, Nanos};

#[derive(Debug)]
pub struct Ram {
    limits: Limits,
    memory: AddressSpace,
    /// Durable contents, and volatile contents by sector.
    pub durable: Vec<u8>,
    volatile: BTreeMap<u64, Vec<u8>>,
    in_flight: Vec<Request>,
    done: Vec<Completion>,
    pub unreadable: BTreeSet<u64>,
    pub unwritable: BTreeSet<u64>,
    /// Whether requests take time and the device is sometimes full.
    pub lazy: bool,
    pub rng: Rng,
    pub now: Nanos,
    /// Requests accepted, by kind.
    pub taken: BTreeMap<&'static str, u64>,
    /// Sectors discarded, and not written since.
    pub discarded: BTreeSet<u64>,
    /// Whether flushes fail.
    pub fail_flushes: bool,
}

impl Ram {
    pub fn new(sector_bytes: u32, blocks: u64) -> Ram {
        let sectors = blocks * 4096 / u64::from(sector_bytes);
        Ram {
            limits: Limits {
                sector_bytes,
                sectors,
                max_sectors: 65536 / sector_bytes,
                optimal_sectors: 1,
                queue_depth: 64,
                volatile_cache: true,
            },
            memory: AddressSpace::default(),
            durable: vec![0; blocks as usize * 4096],
            volatile: BTreeMap::new(),
            in_flight: Vec::new(),
            done: Vec::new(),
            unreadable: BTreeSet::new(),
            unwritable: BTreeSet::new(),
            lazy: false,
            rng: Rng::new(1),
            now: Nanos::ZERO,
            taken: BTreeMap::new(),
            discarded: BTreeSet::new(),
            fail_flushes: false,
        }
    }

    pub fn limits_mut(&mut self) -> &mut Limits {
        &mut self.limits
    }

    fn bytes(&self) -> usize {
        self.limits.sector_bytes as usize
    }

    /// Returns whether nothing was written, flushed or discarded since the previous call.
    pub fn untouched(&mut self) -> bool {
        let taken = std::mem::take(&mut self.taken);
        taken.keys().all(|k| *k == "read")
    }

    pub fn count(&self, what: &str) -> u64 {
        self.taken.get(what).copied().unwrap_or(0)
    }

    /// Cuts the power: requests in flight may have been executed in part, sector by sector, and any
    /// data that was not flushed may be lost.
    pub fn power_cut(&mut self) {
        for request in std::mem::take(&mut self.in_flight) {
            for i in 0..u64::from(request.sectors) {
                if request.op == Op::Write && self.rng.chance(0.5) {
                    let data = self.data(&request, i);
                    self.volatile.insert(request.lba + i, data);
                }
            }
        }
        for (lba, data) in std::mem::take(&mut self.volatile) {
            if self.rng.chance(0.5) {
                self.keep(lba, &data);
            }
        }
        self.done.clear();
        self.memory = AddressSpace::default();
    }

    /// Makes everything durable, as a clean end of the device's process does.
    pub fn settle(&mut self) {
        for (lba, data) in std::mem::take(&mut self.volatile) {
            self.keep(lba, &data);
        }
    }

    fn keep(&mut self, lba: u64, data: &[u8]) {
        let at = lba as usize * self.bytes();
        self.durable[at..at + data.len()].copy_from_slice(data);
        self.volatile.remove(&lba);
    }

    fn data(&self, request: &Request, i: u64) -> Vec<u8> {
        let mut data = vec![0; self.bytes()];
        let Payload::Contiguous(at) = request.data else { panic!("{request:?}") };
        self.memory.read(at.offset(i * self.bytes() as u64), &mut data).unwrap();
        data
    }

    fn sector(&self, lba: u64) -> Vec<u8> {
        let at = lba as usize * self.bytes();
        let durable = || self.durable[at..at + self.bytes()].to_vec();
        self.volatile.get(&lba).cloned().unwrap_or_else(durable)
    }

    fn execute(&mut self, request: &Request) -> Status {
        let mut range = request.lba..request.lba + u64::from(request.sectors);
        match request.op {
            Op::Read => {
                if range.any(|lba| self.unreadable.contains(&lba)) {
                    return Status::UNRECOVERED_READ;
                }
                let Payload::Contiguous(at) = request.data else { panic!("{request:?}") };
                for i in 0..u64::from(request.sectors) {
                    let data = self.sector(request.lba + i);
                    self.memory.write(at.offset(i * self.bytes() as u64), &data).unwrap();
                }
            }
            Op::Write => {
                if range.clone().any(|lba| self.unwritable.contains(&lba)) {
                    return Status::WRITE_FAULT;
                }
                for (i, lba) in (0..).zip(range) {
                    let data = self.data(request, i);
                    self.discarded.remove(&lba);
                    if request.fua {
                        self.keep(lba, &data);
                    } else {
                        self.volatile.insert(lba, data);
                    }
                }
            }
            Op::Discard => {
                let bytes = self.bytes();
                for lba in range {
                    self.volatile.insert(lba, vec![0xdd; bytes]);
                    self.discarded.insert(lba);
                }
            }
            Op::Flush if self.fail_flushes => return Status::INTERNAL,
            Op::Flush => self.settle(),
            Op::WriteZeroes | Op::Extents => panic!("{request:?}"),
        }
        Status::SUCCESS
    }
}

impl BlockDevice for Ram {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), QueueFull> {
        let full = self.in_flight.len() >= self.limits.queue_depth as usize;
        if full || self.lazy && self.rng.chance(0.1) {
            return Err(QueueFull);
        }
        if matches!(request.op, Op::Read | Op::Write) {
            assert!(request.sectors <= self.limits.max_sectors);
        }
        assert!(request.op == Op::Flush || request.sectors > 0, "{request:?}");
        assert!(request.lba + u64::from(request.sectors) <= self.limits.sectors);
        // Invariant: no write or discard overlaps another request in flight.
        for other in &self.in_flight {
            let apart = request.lba + u64::from(request.sectors) <= other.lba
                || other.lba + u64::from(other.sectors) <= request.lba;
            let reads = [request.op, other.op].contains(&Op::Read)
                && ![request.op, other.op].contains(&Op::Discard);
            let flush = [request.op, other.op].contains(&Op::Flush);
            assert!(apart || reads || flush, "{request:?} beside {other:?}");
        }
        let name = match request.op {
            Op::Read => "read",
            Op::Write if request.fua => "write, durable",
            Op::Write => "write",
            Op::Flush => "flush",
            _ => "discard",
        };
        *self.taken.entry(name).or_default() += 1;
        self.in_flight.push(request);
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        self.done.pop()
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn set_waker(&mut self, _: Waker) {}
}

impl Component for Ram {
    fn poll(&mut self, _: Nanos) -> bool {
        let mut moved = false;
        while !self.in_flight.is_empty() && (!self.lazy || self.rng.chance(0.4)) {
            let at = self.rng.below(self.in_flight.len() as u64) as usize;
            let request = self.in_flight.swap_remove(at);
            let status = self.execute(&request);
            self.done.push(Completion { tag: request.tag, status, result: 0 });
            moved = true;
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}
