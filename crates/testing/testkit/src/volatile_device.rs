//! [`VolatileDevice`]: a block device in memory with a volatile write buffer, power cuts, latency,
//! reordering and injected failures.

use std::collections::{BTreeMap, BTreeSet};

use block::{BlockDevice, Completion, Limits, Op, Payload, QueueFull, Request, Segment};
use event::Waker;
use mem::{AddressSpace, Iova};
use nvme::Status;
use rng::Rng;
use time::{Component, Nanos};

/// Requirements of the device on its submitter, beyond the limits. It panics otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubmitRules {
    /// Requests in flight overlap only if both are reads. No request is longer than the limit,
    /// discards included.
    Cache,
    /// Writes in flight do not overlap, and a discard overlaps no other request. Data is
    /// contiguous. There are no requests for zeros or extents.
    Volume,
}

/// A write whose order with others decides what a power cut leaves.
#[derive(Clone, Debug)]
struct UnflushedWrite {
    lba: u64,
    data: Vec<u8>,
    /// Whether a power cut keeps all of it or nothing.
    is_atomic: bool,
    /// Whether a power cut keeps it.
    is_durable: bool,
}

/// Data that was not flushed.
#[derive(Debug, Default)]
struct UnflushedData {
    /// Contents by sector.
    sectors: BTreeMap<u64, Vec<u8>>,
    /// With atomic writes, the writes since the last flush, oldest first.
    writes: Vec<UnflushedWrite>,
}

/// A block device in memory that loses what was not flushed. Given its random generator, it
/// executes the same requests in the same order.
#[derive(Debug)]
pub struct VolatileDevice {
    /// The limits that [`limits`](BlockDevice::limits) returns.
    pub limits: Limits,
    memory: AddressSpace,
    /// The durable contents.
    pub durable: Vec<u8>,
    unflushed: UnflushedData,
    in_flight: Vec<Request>,
    done: Vec<Completion>,
    /// Sectors whose reads fail.
    pub unreadable: BTreeSet<u64>,
    /// Sectors whose writes fail.
    pub unwritable: BTreeSet<u64>,
    /// Whether flushes fail.
    pub fail_flushes: bool,
    /// Whether requests take time and the device is sometimes full.
    pub lazy: bool,
    /// The source of all choices.
    pub rng: Rng,
    rules: SubmitRules,
    /// Requests accepted, by kind.
    pub taken: BTreeMap<&'static str, u64>,
    /// Sectors discarded, and not written since.
    pub discarded: BTreeSet<u64>,
    /// A clock for callers that have no other.
    pub now: Nanos,
}

impl VolatileDevice {
    /// Creates a device of zeros for a cache. Requests take time, and the device is sometimes full.
    /// Their data is in `memory`.
    pub fn for_cache(limits: Limits, memory: AddressSpace, seed: u64) -> VolatileDevice {
        let device = VolatileDevice::new(limits, memory, SubmitRules::Cache);
        VolatileDevice { lazy: true, rng: Rng::new(seed), ..device }
    }

    /// Creates a device of zeros for a volume, of blocks of 4096 bytes. It executes requests at
    /// once. Discarded sectors are not zeros.
    pub fn for_volume(sector_bytes: u32, blocks: u64) -> VolatileDevice {
        let limits = Limits {
            sector_bytes,
            sectors: blocks * 4096 / u64::from(sector_bytes),
            max_sectors: 65536 / sector_bytes,
            optimal_sectors: 1,
            queue_depth: 64,
            volatile_cache: true,
            atomic: block::AtomicLimits::NONE,
        };
        VolatileDevice::new(limits, AddressSpace::default(), SubmitRules::Volume)
    }

    fn new(limits: Limits, memory: AddressSpace, rules: SubmitRules) -> VolatileDevice {
        VolatileDevice {
            durable: vec![0; limits.bytes() as usize],
            limits,
            memory,
            unflushed: UnflushedData::default(),
            in_flight: Vec::new(),
            done: Vec::new(),
            unreadable: BTreeSet::new(),
            unwritable: BTreeSet::new(),
            fail_flushes: false,
            lazy: false,
            rng: Rng::new(1),
            rules,
            taken: BTreeMap::new(),
            discarded: BTreeSet::new(),
            now: Nanos::ZERO,
        }
    }

    fn bytes(&self) -> usize {
        self.limits.sector_bytes as usize
    }

    /// Returns the number of requests accepted.
    pub fn request_count(&self) -> u64 {
        self.taken.values().sum()
    }

    /// Returns whether nothing was written, flushed or discarded since the previous call.
    pub fn untouched(&mut self) -> bool {
        let taken = std::mem::take(&mut self.taken);
        taken.keys().all(|kind| *kind == "read")
    }

    /// Cuts the power: requests in flight may have been executed in part, sector by sector, and any
    /// data that was not flushed may be lost. An atomic write is executed and lost as a whole.
    pub fn power_cut(&mut self) {
        if self.limits.atomic.sectors > 0 {
            return self.power_cut_in_order();
        }
        for request in std::mem::take(&mut self.in_flight) {
            for i in 0..u64::from(request.sectors) {
                if request.op == Op::Write && self.rng.chance(0.5) {
                    let data = self.data(&request, i);
                    self.unflushed.sectors.insert(request.lba + i, data);
                }
            }
        }
        for (lba, data) in std::mem::take(&mut self.unflushed.sectors) {
            if self.rng.chance(0.5) {
                self.keep(lba, &data);
            }
        }
        self.done.clear();
    }

    fn power_cut_in_order(&mut self) {
        for request in std::mem::take(&mut self.in_flight) {
            if request.op == Op::Write {
                self.record_unflushed(&request, false);
            }
        }
        for write in std::mem::take(&mut self.unflushed.writes) {
            let is_kept = write.is_durable || self.rng.chance(0.5);
            for (lba, data) in (write.lba..).zip(write.data.chunks(self.bytes())) {
                if if write.is_atomic { is_kept } else { write.is_durable || self.rng.chance(0.5) }
                {
                    self.keep(lba, data);
                }
            }
        }
        self.unflushed.sectors.clear();
        self.done.clear();
    }

    fn record_unflushed(&mut self, request: &Request, is_durable: bool) {
        let sectors = 0..u64::from(request.sectors);
        let data = sectors.flat_map(|i| self.data(request, i)).collect();
        let (lba, is_atomic) = (request.lba, request.atomic);
        self.unflushed.writes.push(UnflushedWrite { lba, data, is_atomic, is_durable });
    }

    /// Forgets the registered memory, as the end of its process does.
    pub fn forget_memory(&mut self) {
        self.memory = AddressSpace::default();
    }

    /// Makes everything durable, as a clean end of the device's process does.
    pub fn settle(&mut self) {
        for (lba, data) in std::mem::take(&mut self.unflushed.sectors) {
            self.keep(lba, &data);
        }
        self.unflushed.writes.clear();
    }

    fn keep(&mut self, lba: u64, data: &[u8]) {
        let at = lba as usize * self.bytes();
        self.durable[at..at + data.len()].copy_from_slice(data);
        self.unflushed.sectors.remove(&lba);
    }

    /// Returns the location of sector `i` of a request's data, unless it is discarded.
    fn data_at(&self, request: &Request, i: u64) -> Option<Iova> {
        let mut offset = i * self.bytes() as u64;
        match request.data {
            Payload::Contiguous(at) => Some(at.offset(offset)),
            Payload::BitBucket => None,
            Payload::Scattered { table, segments } => {
                for s in 0..u64::from(segments) {
                    let mut entry = [0; 16];
                    self.memory.read(table.offset(16 * s), &mut entry).unwrap();
                    let (words, _) = entry.as_chunks::<8>();
                    let segment = Segment::decode([0, 1].map(|w| u64::from_le_bytes(words[w])));
                    let segment = segment.unwrap();
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
        if let Some(at) = self.data_at(request, i) {
            self.memory.read(at, &mut data).unwrap();
        }
        data
    }

    /// Returns the contents of a sector while power is on.
    pub fn sector(&self, lba: u64) -> Vec<u8> {
        let at = lba as usize * self.bytes();
        let durable = || self.durable[at..at + self.bytes()].to_vec();
        self.unflushed.sectors.get(&lba).cloned().unwrap_or_else(durable)
    }

    fn execute(&mut self, request: &Request) -> Completion {
        let mut range = request.lba..request.lba + u64::from(request.sectors);
        let ended = |status| Completion { tag: request.tag, status, result: 0 };
        match request.op {
            Op::Read if range.any(|lba| self.unreadable.contains(&lba)) => {
                return ended(Status::UNRECOVERED_READ);
            }
            Op::Read => {
                for i in 0..u64::from(request.sectors) {
                    if let Some(at) = self.data_at(request, i) {
                        self.memory.write(at, &self.sector(request.lba + i)).unwrap();
                    }
                }
            }
            Op::Write if range.any(|lba| self.unwritable.contains(&lba)) => {
                return ended(Status::WRITE_FAULT);
            }
            Op::Write => {
                if self.limits.atomic.sectors > 0 {
                    self.record_unflushed(request, request.fua);
                }
                for i in 0..u64::from(request.sectors) {
                    let (lba, data) = (request.lba + i, self.data(request, i));
                    self.discarded.remove(&lba);
                    if request.fua {
                        self.keep(lba, &data);
                    } else {
                        self.unflushed.sectors.insert(lba, data);
                    }
                }
            }
            Op::Discard | Op::WriteZeroes => {
                let fill = if self.rules == SubmitRules::Volume { 0xdd } else { 0 };
                let sector = vec![fill; self.bytes()];
                for lba in range {
                    self.unflushed.sectors.insert(lba, sector.clone());
                    self.discarded.insert(lba);
                }
            }
            Op::Flush if self.fail_flushes => return ended(Status::INTERNAL),
            Op::Flush => self.settle(),
            Op::Extents => return Completion { result: 1, ..ended(Status::SUCCESS) },
        }
        ended(Status::SUCCESS)
    }
}

impl BlockDevice for VolatileDevice {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false,
        visit_layers: {});

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), QueueFull> {
        let full = self.in_flight.len() >= self.limits.queue_depth as usize;
        if full || self.lazy && self.rng.chance(0.1) {
            return Err(QueueFull);
        }
        let end = request.lba + u64::from(request.sectors);
        assert!(end <= self.limits.sectors, "{request:?}");
        assert!(!request.breaks_atomicity(&self.limits.atomic), "{request:?}");
        let is_short = request.sectors <= self.limits.max_sectors;
        match self.rules {
            SubmitRules::Cache => assert!(is_short, "{request:?}"),
            SubmitRules::Volume => {
                assert!(request.op == Op::Flush || request.sectors > 0, "{request:?}");
                assert!(is_short || request.op == Op::Discard, "{request:?}");
                assert!(!matches!(request.op, Op::WriteZeroes | Op::Extents), "{request:?}");
                let is_transfer = matches!(request.op, Op::Read | Op::Write);
                let is_contiguous = matches!(request.data, Payload::Contiguous(_));
                assert!(is_contiguous || !is_transfer, "{request:?}");
            }
        }
        for other in &self.in_flight {
            let ops = [request.op, other.op];
            let apart = end <= other.lba || other.lba + u64::from(other.sectors) <= request.lba;
            let is_allowed = match self.rules {
                SubmitRules::Cache => ops == [Op::Read, Op::Read],
                SubmitRules::Volume => {
                    ops.contains(&Op::Flush)
                        || ops.contains(&Op::Read) && !ops.contains(&Op::Discard)
                }
            };
            assert!(apart || is_allowed, "{request:?} beside {other:?}");
        }
        let kind = match request.op {
            Op::Read => "read",
            Op::Write if request.fua => "write, durable",
            Op::Write => "write",
            Op::Flush => "flush",
            _ => "discard",
        };
        *self.taken.entry(kind).or_default() += 1;
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

impl Component for VolatileDevice {
    fn poll(&mut self, _: Nanos) -> bool {
        let mut moved = false;
        while !self.in_flight.is_empty() && (!self.lazy || self.rng.chance(0.4)) {
            let at = self.rng.below(self.in_flight.len() as u64) as usize;
            let request = self.in_flight.swap_remove(at);
            let done = self.execute(&request);
            self.done.push(done);
            moved = true;
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}
