//! [`Load`]: random requests on several queues, against a model of every sector. Requests of up to
//! 4 MiB are split into commands at the drive's limit. A failing seed is printed; `SLUICE_SEED`
//! replays it.

use std::sync::Arc;

use block::BlockDevice;
use driver::{Features, Op, Payload, Request, Segment};
use mem::{AddressSpace, Iova, SharedRegion};
use rng::Rng;
use time::{Component, Nanos};

/// Maximum number of requests outstanding.
const SLOTS: usize = 6;
/// Bytes of the longest request.
const REQUEST_BYTES_MAX: u64 = 4 << 20;
/// Bytes of memory of a slot: the longest request, at any offset of a page.
const SLOT_BYTES: usize = (4 << 20) + 4096;

/// Segment tables of a slot, and thus the number of its commands that can have one.
const SG_TABLES: usize = 16;
/// Segments of a table.
const SG_SEGMENTS: usize = 16;

/// Provider of queues: a controller with its port, or a device opened by name.
pub(crate) trait QueueProvider {
    /// A queue of this provider.
    type Queue: BlockDevice;

    /// Returns the properties of the device.
    fn properties(&self) -> DeviceProperties;

    /// Returns the address space for payloads.
    fn memory(&self) -> AddressSpace;

    /// Creates a queue with `depth` entries, if the provider can choose the depth.
    fn queue(&mut self, depth: u16) -> Self::Queue;

    /// Gives back a queue without outstanding requests.
    fn close(&mut self, queue: Self::Queue);

    /// Lets the device side make progress, and returns the time.
    fn progress(&mut self) -> Nanos;
}

/// Returns the memory of a slot: every other one has memory that a controller without an IOMMU does
/// not reach.
fn slot_memory(memory: &AddressSpace, slot: usize) -> (Arc<SharedRegion>, Iova) {
    if !memory.is_paged() || slot.is_multiple_of(2) {
        return memory.allocate_registered(SLOT_BYTES).unwrap();
    }
    let region = SharedRegion::anonymous(SLOT_BYTES).unwrap();
    let at = memory.register(&region).unwrap();
    (region, at)
}

/// Properties of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceProperties {
    pub(crate) sector_bytes: u32,
    pub(crate) sectors: u64,
    pub(crate) max_sectors: u32,
    pub(crate) features: Features,
    /// Required alignment of payloads in bytes.
    pub(crate) alignment: u32,
    /// Whether payloads may have segments of any length.
    pub(crate) scattered: bool,
    /// Whether discarded sectors read as zeros; a drive may choose otherwise [NVMe1.4 §5.15.2.1,
    /// DLFEAT].
    pub(crate) discards_are_zeros: bool,
}

/// Contents of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SectorContent {
    /// Not written by the model.
    Unknown,
    Zeros,
    Stamp(u32),
}

/// A request in flight.
struct InFlightRequest {
    op: Op,
    lba: u64,
    sectors: u32,
    /// Offset of the data in the slot's memory.
    offset: usize,
    stamp: u32,
    /// Commands that have not completed.
    remaining: u32,
    /// Sectors submitted so far, which is where the next command begins.
    next: u32,
    queue: usize,
}

pub(crate) struct Load<P: QueueProvider> {
    properties: DeviceProperties,
    seed: u64,
    rng: Rng,
    queues: Vec<P::Queue>,
    slots: Vec<(Arc<SharedRegion>, Iova, Option<InFlightRequest>)>,
    tables: (Arc<SharedRegion>, Iova),
    contents: Vec<SectorContent>,
    sector_bytes: usize,
    stamps: u32,
    pub(crate) commands: u64,
}

/// Fills a sector with words derived from its address and a stamp.
fn fill(into: &mut [u8], lba: u64, stamp: u32) {
    let mut word = lba.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(stamp) << 32 | 1;
    for bytes in into.chunks_exact_mut(8) {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1442695040888963407);
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

impl<P: QueueProvider> Load<P> {
    pub(crate) fn new(place: &mut P, queues: u16, depth: u16, default_seed: u64) -> Load<P> {
        let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok());
        let seed = seed.unwrap_or(default_seed);
        println!("SLUICE_SEED={seed}");
        let properties = place.properties();
        let queues = (0..queues).map(|_| place.queue(depth)).collect();
        let memory = place.memory();
        let slot = |slot| {
            let (region, at) = slot_memory(&memory, slot);
            (region, at, None)
        };
        let slots = (0..SLOTS).map(slot).collect();
        let tables =
            memory.allocate_registered(SLOTS * SG_TABLES * SG_SEGMENTS * Segment::BYTES).unwrap();
        let sector_bytes = properties.sector_bytes as usize;
        // Three times the longest request, so that not all of them are aligned.
        let sectors =
            (3 * REQUEST_BYTES_MAX as usize / sector_bytes).min(properties.sectors as usize);
        Load {
            properties,
            seed,
            rng: Rng::new(seed),
            queues,
            slots,
            tables,
            contents: vec![SectorContent::Unknown; sectors],
            sector_bytes,
            stamps: 0,
            commands: 0,
        }
    }

    /// Executes `requests` requests, then reads everything back.
    pub(crate) fn run(&mut self, place: &mut P, requests: usize) {
        let mut left = requests;
        while left > 0 || self.slots.iter().any(|s| s.2.is_some()) {
            if left > 0 && self.begin() {
                left -= 1;
            }
            self.step(place);
        }
        self.read_back(place);
    }

    pub(crate) fn close(self, place: &mut P) {
        for queue in self.queues {
            place.close(queue);
        }
    }

    /// Starts a request, if there is a free slot and no outstanding request overlaps it.
    fn begin(&mut self) -> bool {
        let Some(slot) = self.slots.iter().position(|s| s.2.is_none()) else { return false };
        let sectors_most =
            (REQUEST_BYTES_MAX as usize / self.sector_bytes).min(self.contents.len());
        let scale = self.rng.below(u64::from(sectors_most.ilog2()) + 1);
        let mut sectors = 1 + self.rng.below(1 << scale) as u32;
        if self.rng.below(20) == 0 {
            sectors = sectors_most as u32;
        }
        let features = self.properties.features;
        let op = match self.rng.below(20) {
            0 => Op::Flush,
            1 if features.discard => Op::Discard,
            2 if features.write_zeroes => Op::WriteZeroes,
            3..=11 => Op::Write,
            _ => Op::Read,
        };
        let sectors = match op {
            Op::Flush => 0,
            Op::Discard | Op::WriteZeroes => sectors.min(2048),
            _ => sectors,
        };
        let lba = self.rng.below((self.contents.len() - sectors as usize + 1) as u64);
        let taken = |f: &InFlightRequest| {
            let (end, other) = (lba + u64::from(sectors), f.lba + u64::from(f.sectors));
            lba < other && f.lba < end
        };
        if self.slots.iter().flat_map(|s| &s.2).any(taken) {
            return false;
        }
        let unit = u64::from(self.properties.alignment);
        let offset = match self.rng.below(3) {
            0 => 0,
            1 => self.rng.below(8) as usize * unit.max(512) as usize % 4096,
            _ => self.rng.below(4096 / unit) as usize * unit as usize,
        };
        self.stamps += 1;
        let stamp = self.stamps;
        if op == Op::Write {
            let mut bytes = vec![0; self.sector_bytes];
            for i in 0..u64::from(sectors) {
                fill(&mut bytes, lba + i, stamp);
                self.slots[slot].0.write(offset + i as usize * self.sector_bytes, &bytes);
            }
        } else if op == Op::Read {
            let len = sectors as usize * self.sector_bytes;
            self.slots[slot].0.fill(offset, len, 0xee);
        }
        let queue = self.rng.below(self.queues.len() as u64) as usize;
        let flight =
            InFlightRequest { op, lba, sectors, offset, stamp, remaining: 0, next: 0, queue };
        self.slots[slot].2 = Some(flight);
        self.submit(slot);
        true
    }

    /// Splits `bytes` bytes at `at` into segments, as the payload of a slot's command; sometimes at
    /// page boundaries.
    fn scatter(&mut self, slot: usize, command: usize, at: Iova, bytes: u64) -> Payload {
        let table = (slot * SG_TABLES + command) * SG_SEGMENTS * Segment::BYTES;
        let pages = self.rng.below(2) == 0;
        let mut cuts: Vec<u64> = (1..1 + self.rng.below(SG_SEGMENTS as u64))
            .map(|_| 1 + self.rng.below(bytes - 1))
            .map(|cut| if pages { cut.saturating_sub((at.0 + cut) % 4096) } else { cut })
            .chain([0, bytes])
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        for (i, ends) in cuts.windows(2).enumerate() {
            let (at, bytes) = (at.offset(ends[0]), (ends[1] - ends[0]) as u32);
            for (j, word) in (Segment { at: Some(at), bytes }).encode().iter().enumerate() {
                let offset = table + i * Segment::BYTES + 8 * j;
                self.tables.0.write(offset, &word.to_le_bytes());
            }
        }
        let table = self.tables.1.offset(table as u64);
        Payload::Scattered { table, segments: cuts.len() as u16 - 1 }
    }

    /// Submits as many commands of a slot's request as its queue accepts.
    fn submit(&mut self, slot: usize) {
        let (most, bytes) = (self.properties.max_sectors, self.sector_bytes as u64);
        let scattered = self.properties.scattered && slot % 2 == 1;
        let now = time::Nanos::ZERO;
        while let (_, at, Some(flight)) = &self.slots[slot]
            && flight.next < flight.sectors.max(1)
        {
            let sectors = match flight.op {
                Op::Read | Op::Write => (flight.sectors - flight.next).min(most),
                _ => flight.sectors,
            };
            let lba = flight.lba + u64::from(flight.next);
            let data = at.offset(flight.offset as u64 + u64::from(flight.next) * bytes);
            let fua =
                self.properties.features.fua && flight.op == Op::Write && flight.stamp % 8 == 0;
            let (op, stamp, queue) = (flight.op, flight.stamp, flight.queue);
            let command = (flight.next / most) as usize;
            let data = match op {
                Op::Read | Op::Write if scattered && command < SG_TABLES => {
                    self.scatter(slot, command, data, u64::from(sectors) * bytes)
                }
                Op::Read | Op::Write => Payload::Contiguous(data),
                _ => Payload::BitBucket,
            };
            let (may_unmap, tag) = (stamp % 2 == 0, slot as u64);
            let request =
                Request { op, lba, sectors, data, fua, atomic: false, deallocate: may_unmap, tag };
            if self.queues[queue].submit(now, request).is_err() {
                return;
            }
            self.commands += 1;
            let Some(flight) = &mut self.slots[slot].2 else { return };
            flight.next += sectors.max(1);
            flight.remaining += 1;
        }
    }

    /// Makes progress, and reaps completed commands.
    fn step(&mut self, place: &mut P) {
        let now = place.progress();
        for queue in 0..self.queues.len() {
            self.queues[queue].poll(now);
            while let Some(ended) = self.queues[queue].reap() {
                let slot = ended.tag as usize;
                let seed = self.seed;
                let flight = self.slots[slot]
                    .2
                    .as_mut()
                    .unwrap_or_else(|| panic!("seed {seed}: a command completed twice"));
                assert_eq!(flight.queue, queue, "seed {seed}: completed on another queue");
                assert!(
                    ended.status.is_success(),
                    "seed {seed}: {:?} of {} at {}: {}",
                    flight.op,
                    flight.sectors,
                    flight.lba,
                    ended.status
                );
                flight.remaining -= 1;
                if flight.remaining == 0 && flight.next >= flight.sectors.max(1) {
                    self.complete(slot);
                }
            }
        }
        for slot in 0..SLOTS {
            self.submit(slot);
        }
    }

    fn complete(&mut self, slot: usize) {
        let Some(flight) = self.slots[slot].2.take() else { return };
        let range = flight.lba as usize..flight.lba as usize + flight.sectors as usize;
        match flight.op {
            Op::Write => self.contents[range].fill(SectorContent::Stamp(flight.stamp)),
            Op::WriteZeroes => self.contents[range].fill(SectorContent::Zeros),
            Op::Discard if self.properties.discards_are_zeros => {
                self.contents[range].fill(SectorContent::Zeros)
            }
            Op::Discard => self.contents[range].fill(SectorContent::Unknown),
            Op::Read => self.check(slot, &flight),
            Op::Flush | Op::Extents => {}
        }
    }

    fn check(&self, slot: usize, flight: &InFlightRequest) {
        let (mut found, mut wanted) = (vec![0; self.sector_bytes], vec![0; self.sector_bytes]);
        for i in 0..flight.sectors as usize {
            let lba = flight.lba + i as u64;
            match self.contents[lba as usize] {
                SectorContent::Unknown => continue,
                SectorContent::Zeros => wanted.fill(0),
                SectorContent::Stamp(stamp) => fill(&mut wanted, lba, stamp),
            }
            self.slots[slot].0.read(flight.offset + i * self.sector_bytes, &mut found);
            assert!(
                found == wanted,
                "seed {}: sector {lba} of {} at {} into offset {}: {:?}, found {:02x?}",
                self.seed,
                flight.sectors,
                flight.lba,
                flight.offset,
                self.contents[lba as usize],
                &found[..16]
            );
        }
    }

    /// Reads everything that the model knows, and compares it.
    fn read_back(&mut self, place: &mut P) {
        let most = REQUEST_BYTES_MAX as usize / self.sector_bytes;
        for lba in (0..self.contents.len()).step_by(most) {
            let sectors = most.min(self.contents.len() - lba) as u32;
            let (lba, queue) = (lba as u64, lba % self.queues.len());
            let flight = InFlightRequest {
                op: Op::Read,
                lba,
                sectors,
                offset: 0,
                stamp: 1,
                remaining: 0,
                next: 0,
                queue,
            };
            self.slots[0].2 = Some(flight);
            self.submit(0);
            while self.slots[0].2.is_some() {
                self.step(place);
            }
        }
    }
}
