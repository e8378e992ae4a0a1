//! Random requests through a cache, with failures and power cuts, against a model of every sector.

use block::{BlockDevice as _, Limits, Op, Request};
use rng::Rng;
use testkit::oracle::{SectorModel, Written, run_seeds};
use testkit::volatile_device::VolatileDevice;
use time::{Component, Nanos};
use user_io::{Buffer, Cache, CacheConfig, EvictionPolicy, IoDevice, WritePolicy};

struct InFlightRequest {
    request: Request,
    buffer: Buffer,
    written: Written,
    /// For a flush: the position of each sector's contents at its submission.
    marks: Vec<u64>,
}

struct Case {
    opened: IoDevice,
    cache: Option<Cache<VolatileDevice>>,
    config: CacheConfig,
    model: Vec<SectorModel>,
    in_flight: Vec<Option<InFlightRequest>>,
    rng: Rng,
    value: u32,
    requests: u64,
    cuts: u64,
    sector_bytes: u32,
    failing: bool,
}

const IN_FLIGHT_MAX: usize = 16;

/// Returns the value that fills a sector.
fn stamp(lba: usize, bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    let first = words.clone().next().expect("a word");
    assert!(words.clone().all(|w| w == first), "sector {lba} is torn");
    first.into()
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut rng = Rng::new(seed);
        let sector_bytes = [512, 4096, 8192][rng.below(3) as usize];
        let unit = u64::from(sector_bytes.max(4096));
        let limits = Limits {
            sector_bytes,
            // The size is not always a multiple of a block.
            sectors: 64 * unit / u64::from(sector_bytes) * (1 + rng.below(6)) + rng.below(9),
            max_sectors: [8, 17, 64][rng.below(3) as usize],
            optimal_sectors: 1,
            queue_depth: 1 + rng.below(20) as u32,
            volatile_cache: true,
            atomic: block::AtomicLimits::NONE,
        };
        let write = match rng.below(3) {
            0 => WritePolicy::WriteThrough,
            _ => {
                let dirty_percent = 2 + rng.below(88) as u8;
                let background_percent = rng.below(u64::from(dirty_percent) + 1) as u8;
                WritePolicy::WriteBack { dirty_percent, background_percent }
            }
        };
        let config = CacheConfig {
            bytes: unit * (CacheConfig::FRAMES_MIN + rng.below(40)),
            eviction: if rng.chance(0.5) { EvictionPolicy::Lru } else { EvictionPolicy::Clock },
            write_policy: write,
            read_ahead: [0, 3, 16][rng.below(3) as usize],
            depth: IN_FLIGHT_MAX as u32,
        };
        let opened = IoDevice::null(limits);
        let device = VolatileDevice::for_cache(limits, opened.memory().clone(), seed ^ 0xf1a);
        let cache = Cache::new(&opened, device, config).unwrap();
        let sectors = limits.sectors as usize;
        let failing = rng.chance(0.4);
        Case {
            opened,
            cache: Some(cache),
            config,
            model: vec![SectorModel::new(0); sectors],
            requests: 0,
            in_flight: (0..IN_FLIGHT_MAX).map(|_| None).collect(),
            rng,
            value: 0,
            cuts: 0,
            sector_bytes,
            failing,
        }
    }

    fn cache(&mut self) -> &mut Cache<VolatileDevice> {
        self.cache.as_mut().unwrap()
    }

    fn range(request: &Request) -> std::ops::Range<usize> {
        request.lba as usize..request.lba as usize + request.sectors as usize
    }

    /// Returns whether a range conflicts with a request in flight, so that the outcome is
    /// undefined.
    fn clashes(&self, request: &Request) -> bool {
        self.in_flight.iter().flatten().any(|flight| {
            let other = &flight.request;
            let apart = Case::range(request).end <= Case::range(other).start
                || Case::range(other).end <= Case::range(request).start;
            !(apart || request.op == Op::Read && other.op == Op::Read)
        })
    }

    fn submit(&mut self) {
        let Some(slot) = self.in_flight.iter().position(Option::is_none) else { return };
        let sectors = self.model.len() as u64;
        let most = u64::from(self.cache().limits().max_sectors).min(sectors);
        let count =
            1 + self.rng.below(if self.rng.clone().chance(0.2) { most } else { 4.min(most) });
        let lba = match self.rng.below(3) {
            0 => self.rng.below(sectors - count + 1),
            1 => self.rng.below((sectors - count + 1).min(64)),
            // Sequential.
            _ => (u64::from(self.value) * 8 + self.rng.below(3)) % (sectors - count + 1),
        };
        let buffer = self.opened.buffer(count as usize * self.sector_bytes as usize).unwrap();
        let (count, data, tag) = (count as u32, buffer.payload(), slot as u64);
        self.value = self.value.wrapping_add(1);
        let value = self.value;
        let request = match self.rng.below(20) {
            0 => Request::flush(tag),
            1 => Request::discard(lba, count, tag),
            2 => Request::write_zeroes(lba, count, true, tag),
            3..10 => {
                let fua = self.rng.chance(0.1);
                Request { fua, ..Request::write(lba, count, data, tag) }
            }
            _ => Request::read(lba, count, data, tag),
        };
        if request.op != Op::Flush && self.clashes(&request) {
            return;
        }
        let fill = if request.op == Op::Write { value } else { !0 };
        buffer.write(0, &fill.to_le_bytes().repeat(buffer.len() / 4));
        if self.cache().submit(Nanos::ZERO, request).is_err() {
            return;
        }
        // From here on, a power cut may leave either version.
        self.requests += 1;
        let value = if request.op == Op::Write { value.into() } else { 0 };
        let written = Written { order: self.requests, value };
        if matches!(request.op, Op::Write | Op::Discard | Op::WriteZeroes) {
            for sector in &mut self.model[Case::range(&request)] {
                sector.send(written);
            }
        }
        let marks = match request.op {
            Op::Flush => self.model.iter().map(SectorModel::flush_mark).collect(),
            _ => Vec::new(),
        };
        self.in_flight[slot] = Some(InFlightRequest { request, buffer, written, marks });
    }

    fn on_complete(&mut self, completion: block::Completion) {
        let flight = self.in_flight[completion.tag as usize]
            .take()
            .expect("a completion carries the tag of a submitted request");
        let InFlightRequest { request, buffer, written, marks } = flight;
        let ok = completion.status.is_success();
        assert!(ok || self.failing, "{request:?}: {}", completion.status);
        let sector_bytes = self.sector_bytes as usize;
        match request.op {
            Op::Read if ok => {
                for (i, lba) in Case::range(&request).enumerate() {
                    let mut bytes = vec![0; sector_bytes];
                    buffer.read(i * sector_bytes, &mut bytes);
                    let found = stamp(lba, &bytes);
                    let sector = &self.model[lba];
                    let right = match sector.now() {
                        Some(now) => now.value == found,
                        None => sector.allows(found),
                    };
                    assert!(right, "sector {lba} is {found}: {sector:?}");
                }
            }
            Op::Write | Op::Discard | Op::WriteZeroes => {
                let fua = request.fua;
                for sector in &mut self.model[Case::range(&request)] {
                    sector.complete(ok.then_some(written));
                    if ok && fua {
                        sector.set_durable(written.order);
                    }
                }
            }
            Op::Flush if ok => {
                for (sector, mark) in self.model.iter_mut().zip(marks) {
                    sector.set_durable(mark);
                }
            }
            _ => {}
        }
    }

    fn step(&mut self) {
        if self.rng.chance(0.6) {
            self.submit();
        }
        if self.failing && self.rng.chance(0.01) {
            let lba = self.rng.below(self.model.len() as u64);
            let (read, heal) = (self.rng.chance(0.5), self.rng.chance(0.3));
            let device = self.cache.as_mut().unwrap().device_mut();
            if heal {
                device.unreadable.clear();
                device.unwritable.clear();
            } else if read {
                device.unreadable.insert(lba);
            } else {
                device.unwritable.insert(lba);
            }
        }
        self.poll();
        if self.rng.chance(0.002) {
            self.power_cut();
        }
    }

    fn poll(&mut self) {
        self.cache().poll(Nanos::ZERO);
        self.cache().check_invariants().unwrap();
        while let Some(completion) = self.cache().reap() {
            self.on_complete(completion);
        }
    }

    fn drain(&mut self) {
        let mut polls = 0;
        while self.in_flight.iter().any(Option::is_some) {
            self.poll();
            polls += 1;
            assert!(polls < 200_000, "the cache makes no progress");
        }
    }

    fn power_cut(&mut self) {
        self.cuts += 1;
        self.cache().check_invariants().unwrap();
        for flight in &mut self.in_flight {
            *flight = None;
        }
        let mut device = self.cache.take().unwrap().into_device();
        device.power_cut();
        device.unreadable.clear();
        device.unwritable.clear();
        for (lba, sector) in self.model.iter_mut().enumerate() {
            let bytes = device.sector(lba as u64);
            let found = stamp(lba, &bytes);
            assert!(sector.allows(found), "sector {lba} is {found} after a cut: {sector:?}");
            *sector = SectorModel::new(found);
        }
        self.cache = Some(Cache::new(&self.opened, device, self.config).unwrap());
    }
}

fn run(seed: u64) -> u64 {
    let mut case = Case::new(seed);
    for _ in 0..2500 {
        case.step();
    }
    case.drain();
    case.power_cut();
    case.cuts
}

#[test]
fn nothing_that_was_flushed_is_lost_and_nothing_reads_otherwise_than_it_was_written() {
    let cuts = run_seeds(400, &[], "cargo test -p sluice-user-io cache::oracle", run).results;
    println!("{} power cuts", cuts.iter().sum::<u64>());
}
