//! A hostile host beside a correct one, in virtual time. Whatever the hostile host does, the
//! correct one reads what it wrote, the sectors assigned to neither do not change, and the drive
//! continues to work.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-controller --test
//! alone hostile`. `SLUICE_CASES` sets the number of seeds. `fuzz/targets/drive_ring.rs` runs
//! this test with a fuzzer's bytes ([`fuzz`]).

// guarantee: S-03

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use controller::{AccessPolicy, AccessScope, Controller, DriveConfig, PersonalityKind};
use media::MediaConfig;
use nvme::{ChunkState, Sqe, Status};
use rng::Rng;
use testkit::choices::Choices;
use time::{Component, Nanos};
use transport::Port;

use super::garbage::Garbage;
use super::harness::{Host, SECTOR, block, null, open_channel, pcm};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seeds(config: impl Fn() -> DriveConfig) {
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLUICE_CASES").unwrap_or(40),
    };
    for seed in seeds {
        let case = AssertUnwindSafe(|| case(config(), seed, Choices::seeded(seed)));
        if let Err(panic) = catch_unwind(case) {
            eprintln!("SLUICE_SEED={seed}");
            resume_unwind(panic);
        }
    }
}

fn physical() -> DriveConfig {
    let mut config = open_channel();
    if let MediaConfig::Nand(nand) = &mut config.media {
        nand.geometry.pages = 32;
    }
    config
}

/// Sectors of each host, and of the unassigned gap between them.
const HOST_SECTORS: u64 = 300;
const GAP_SECTORS: u64 = 20;
/// Parallel units of the correct host.
const PUS: u32 = 5;

/// Runs a case from a fuzzer's bytes: the kind of drive, the seed of the correct host, and the
/// hostile host's behavior.
pub fn fuzz(bytes: &[u8]) {
    let [which, seed, rest @ ..] = bytes else { return };
    let config = match which % 3 {
        0 => block(),
        1 => pcm(),
        _ => physical(),
    };
    case(config, (*seed).into(), Choices::of(rest));
}

fn case(config: DriveConfig, seed: u64, choices: Choices) {
    let physical = config.personality == PersonalityKind::OpenChannel;
    let mut d = Controller::new(config).unwrap();
    let limits = |access| AccessPolicy { queues: 3, queue_depth: 64, ..access };
    let (good, bad) = match physical {
        false => (
            AccessPolicy::for_scope(AccessScope::Sectors { first: 0, count: HOST_SECTORS }),
            limits(AccessPolicy::for_scope(AccessScope::Sectors {
                first: HOST_SECTORS + GAP_SECTORS,
                count: HOST_SECTORS,
            })),
        ),
        true => (
            AccessPolicy::for_scope(AccessScope::ParallelUnits { first: 0, count: PUS }),
            limits(AccessPolicy::for_scope(AccessScope::ParallelUnits {
                first: PUS + 1,
                count: PUS,
            })),
        ),
    };
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut h = Host::attach(&mut d, Some(good), 16, 64);
    let port = Port::new().unwrap();
    d.attach_as(&port, bad).unwrap();
    let mut garbage = Garbage::new(port.clone(), choices, false);
    let mut model = Model::new(&h, physical);
    for _ in 0..60 {
        if garbage.is_over() {
            break;
        }
        for _ in 0..rng.below(20) {
            garbage.step();
            if rng.chance(0.3) {
                d.poll(h.now);
                h.now += Nanos(rng.below(3_000));
            }
        }
        model.step(&mut d, &mut h, &mut rng);
        let stats = d.port_stats(&port).unwrap();
        assert!(stats.stalled <= 4 * 64 && stats.outstanding <= 4 * 64, "{stats:?}");
        assert!(stats.queues <= 4, "{stats:?}");
    }
    model.check(&mut d, &mut h);
    // The correct host has only errors of its own, and the drive reports none.
    d.detach(&port).unwrap();
    let mut all = Host::attach(&mut d, None, 8, 64);
    all.now = h.now;
    if physical {
        let media = all.controller.info().open_channel.unwrap().geometry;
        let chunks = u64::from(media.chunks);
        let report = all.ask(&mut d, |c, progress| c.chunks(0, 16 * chunks, progress)).unwrap();
        for (n, chunk) in (0..).zip(&report) {
            let others = n / chunks >= u64::from(PUS + 1) && n / chunks < u64::from(2 * PUS + 1);
            let mine = n / chunks < u64::from(PUS);
            let free = chunk.chunk_state() == Some(ChunkState::Free);
            assert!(others || mine || free, "unassigned chunk {n} has changed: {chunk:?}");
        }
    } else {
        for lba in (HOST_SECTORS..HOST_SECTORS + GAP_SECTORS).step_by(4) {
            assert_eq!(
                all.read(&mut d, lba, 4).unwrap(),
                [0; 4],
                "unassigned sector {lba} has changed"
            );
        }
    }
    model.check(&mut d, &mut h);
}

/// The data that the correct host has written.
struct Model {
    physical: bool,
    sectors: Vec<u8>,
    /// For an open-channel drive: first address and write pointer of the chunk being written.
    chunks: Vec<u64>,
    unit: u32,
    next: u64,
    per_chunk: u64,
}

impl Model {
    fn new(h: &Host, physical: bool) -> Model {
        let (mut chunks, mut unit, mut per_chunk) = (Vec::new(), 1, HOST_SECTORS);
        if physical {
            let media = h.controller.info().open_channel.unwrap();
            (unit, per_chunk) = (media.geometry.ws_min, u64::from(media.geometry.sectors));
            for pu in 0..PUS {
                let (group, pu) = (pu / media.geometry.pus, pu % media.geometry.pus);
                for chunk in 0..4 {
                    let address = nvme::Address { group, pu, chunk, sector: 0 };
                    chunks.push(media.format.pack(address).0);
                }
            }
        }
        let sectors = if physical { Vec::new() } else { vec![0; HOST_SECTORS as usize] };
        Model { physical, sectors, chunks, unit, next: 0, per_chunk }
    }

    /// Returns the address of the n-th sector written.
    fn address_of(&self, n: u64) -> u64 {
        match self.physical {
            true => self.chunks[(n / self.per_chunk) as usize] + n % self.per_chunk,
            false => n,
        }
    }

    fn step(&mut self, d: &mut Controller, h: &mut Host, rng: &mut Rng) {
        let byte = 1 + rng.below(255) as u8;
        if self.physical {
            if self.next < self.chunks.len() as u64 * self.per_chunk {
                let at = self.address_of(self.next);
                assert_eq!(h.write(d, at, self.unit, byte), Status::SUCCESS);
                self.sectors.extend((0..self.unit).map(|_| byte));
                self.next += u64::from(self.unit);
            }
            return;
        }
        let sectors = 1 + rng.below(8);
        let lba = rng.below(HOST_SECTORS - sectors + 1);
        let range = lba as usize..(lba + sectors) as usize;
        match rng.below(4) {
            0 => {
                let sqe = Sqe::write_zeroes(1, lba, sectors as u32, true);
                assert_eq!(h.io(d, sqe).status, Status::SUCCESS);
                self.sectors[range].fill(0);
            }
            1 => assert_eq!(h.read(d, lba, sectors as u32).unwrap(), self.sectors[range]),
            _ => {
                assert_eq!(h.write(d, lba, sectors as u32, byte), Status::SUCCESS);
                self.sectors[range].fill(byte);
            }
        }
    }

    fn check(&self, d: &mut Controller, h: &mut Host) {
        for (n, expected) in self.sectors.iter().enumerate() {
            let read = h.read(d, self.address_of(n as u64), 1);
            assert_eq!(read, Ok(vec![*expected]), "sector {n}");
            assert_eq!(h.byte(SECTOR - 1), *expected, "every byte of the sector must match");
        }
    }
}

/// On a null drive, which has no media: hosts compete only for the work of the controller.
#[test]
fn a_hostile_host_costs_others_no_time() {
    for seed in 0..20 {
        let mut d = Controller::new(null(Nanos::from_micros(10))).unwrap();
        let part =
            |first| AccessPolicy::for_scope(AccessScope::Sectors { first, count: HOST_SECTORS });
        let mut h = Host::attach(&mut d, Some(part(0)), 16, 64);
        let took = |d: &mut Controller, h: &mut Host| {
            let (begin, mut sqe) = (h.now, Sqe::read(1, 0, 1));
            sqe.set_sgl(h.block(0, 1));
            h.pair.submit(sqe, 7).unwrap();
            h.pair.ring();
            let ended = loop {
                while d.poll(h.now) {}
                match h.pair.reap() {
                    Some(ended) => break ended,
                    None => h.now = d.deadline().max(h.now + Nanos(1)),
                }
                assert!(h.now.since(begin) < Nanos::from_millis(1), "the completion is too late");
            };
            assert!(ended.status.is_success());
            h.pair.release();
            h.now.since(begin)
        };
        let alone = took(&mut d, &mut h);
        let port = Port::new().unwrap();
        let bad = AccessPolicy { queues: 3, queue_depth: 64, ..part(HOST_SECTORS + GAP_SECTORS) };
        d.attach_as(&port, bad).unwrap();
        let (mut rng, choices) = (Rng::new(seed), Choices::seeded(seed));
        let mut garbage = Garbage::new(port, choices, false);
        for round in 0..200 {
            for _ in 0..rng.below(20) {
                garbage.step();
                if rng.chance(0.3) {
                    d.poll(h.now);
                    h.now += Nanos(rng.below(3_000));
                }
            }
            assert_eq!(took(&mut d, &mut h), alone, "seed {seed}, round {round}");
        }
    }
}

#[test]
fn hostile_beside_a_block_drives_host() {
    seeds(block);
}

#[test]
fn hostile_beside_a_host_of_phase_change_memory() {
    seeds(pcm);
}

#[test]
fn hostile_beside_a_host_of_physical_addresses() {
    seeds(physical);
}

/// Arbitrary bytes are a valid case, as a fuzzer starts with them.
#[test]
fn any_bytes_are_a_case() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let bytes: Vec<u8> = (0..rng.below(3_000)).map(|_| rng.next_u64() as u8).collect();
        let case = AssertUnwindSafe(|| fuzz(&bytes));
        if let Err(panic) = catch_unwind(case) {
            eprintln!("SLUICE_SEED={seed}: {bytes:?}");
            resume_unwind(panic);
        }
    }
    fuzz(&[]);
    fuzz(&[0]);
}
