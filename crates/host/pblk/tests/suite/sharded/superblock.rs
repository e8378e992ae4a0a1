//! The superblock of a sharded device is rewritten during use: on other chunks, one generation
//! after the other, with power cuts at every step, with locations that fail, and from older format
//! versions.

// guarantee: D-29

use crate::open_pblk::OpenPblk;
use block::{BlockDevice, Payload, Request};
use driver::MediaEvent;
use lnvm::ScrubConfig;
use mem::{Iova, SharedRegion};
use nvme::{Address, ChunkNotificationKind, ChunkNotificationScope};
use pblk::{ShardHandle, ShardedConfig, ShardedError, SuperblockError, SuperblockHealth};
use testkit::open_channel_drive::{MockOpenChannelDrive, geometry};
use time::{Component, Nanos};

const SECTOR: usize = 512;
const CHUNKS: u32 = 40;
const SECTORS: u32 = 24;
/// Chunk 0 of each of four parallel units; consecutive ones are on different channels.
const LOCATIONS: [u32; 4] = [0, 2 * CHUNKS, CHUNKS, 3 * CHUNKS];

/// A device with one sector written and flushed.
struct Harness {
    drive: MockOpenChannelDrive,
    cores: Vec<ShardHandle>,
    memory: std::sync::Arc<SharedRegion>,
    at: Iova,
    now: Nanos,
}

fn config() -> ShardedConfig {
    ShardedConfig { stripe_sectors: 8, ..ShardedConfig::new(2) }
}

impl Harness {
    fn new(seed: u64) -> Harness {
        let mut drive =
            MockOpenChannelDrive::new(geometry(2, 2, CHUNKS, SECTORS, 2, 4), true, seed);
        let memory = SharedRegion::anonymous(4096).unwrap();
        let cores = drive.open_sharded(config(), 16).unwrap().into_shards();
        let mut harness = Harness { drive, cores, memory, at: Iova(0), now: Nanos(1) };
        harness.at = harness.cores[0].memory().register(&harness.memory).unwrap();
        harness.memory.fill(0, SECTOR, 7);
        harness.run(Request::write(3, 1, Payload::Contiguous(harness.at), 0));
        harness.run(Request::flush(1));
        harness.run_until_idle();
        harness
    }

    fn step(&mut self) -> bool {
        let now = self.now;
        let moved = self.cores.iter_mut().fold(false, |moved, core| core.poll(now) | moved);
        let moved = self.drive.fetch() | moved;
        self.drive.step() | moved
    }

    fn run_until_idle(&mut self) {
        while self.step() {}
    }

    fn run(&mut self, request: Request) {
        self.cores[0].submit(self.now, request).unwrap();
        let done = (0..100_000).find_map(|_| {
            self.step();
            self.cores[0].reap()
        });
        assert!(done.expect("it ends").status.is_success());
    }

    fn superblock_health(&self) -> SuperblockHealth {
        assert_eq!(self.cores[1].superblock_health(), None, "one looks after it");
        self.cores[0].superblock_health().unwrap()
    }

    /// Reports to a core that a location is hard to read.
    fn report_error(&mut self, core: usize, place: usize) {
        self.now += Nanos::from_secs(100);
        let (pu, chunk) = (LOCATIONS[place] / CHUNKS, LOCATIONS[place] % CHUNKS);
        let address = Address { group: pu / 2, pu: pu % 2, chunk, sector: 0 };
        let (scope, kind) = (ChunkNotificationScope::Chunk, ChunkNotificationKind::ErrorRateHigh);
        self.cores[core].on_media_event(&MediaEvent { count: 1, address, scope, kind, sectors: 0 });
    }

    fn rewrite(&mut self) {
        self.report_error(0, 0);
        self.run_until_idle();
    }

    fn start_scrub(&mut self) {
        let config = ScrubConfig {
            sectors_per_sec: 1_000,
            cold_after: Nanos::from_secs(10),
            repeat_after: Nanos::from_secs(10),
            wear_gap_cycles: None,
        };
        self.cores.iter_mut().for_each(|core| core.set_scrub(config));
    }

    /// Runs a scrub pass.
    fn scrub_pass(&mut self) {
        self.now += Nanos::from_secs(10);
        self.run_until_idle();
    }

    fn lose(&mut self, place: usize) {
        self.drive.faults.unreadable.insert(u64::from(LOCATIONS[place] * SECTORS));
    }

    /// Cuts the power and reopens the device, possibly with interrupted opens.
    fn power_cycle(&mut self, cuts_of_opening: bool) {
        self.drive.cut_power();
        for after in 0..if cuts_of_opening { 12 } else { 0 } {
            self.drive.faults.cut_after = Some(self.drive.stats.fetched + after);
            drop(self.drive.open_sharded(config(), 16));
            self.drive.cut_power();
        }
        self.cores = self.drive.open_sharded(config(), 16).expect("it opens").into_shards();
        self.at = self.cores[0].memory().register(&self.memory).unwrap();
        self.memory.fill(0, SECTOR, 0xee);
        self.run(Request::read(3, 1, Payload::Contiguous(self.at), 0));
        let mut bytes = [0; SECTOR];
        self.memory.read(0, &mut bytes);
        assert_eq!(bytes, [7; SECTOR]);
    }
}

#[test]
fn an_event_of_one_location_rewrites_the_superblock_on_the_others() {
    let mut harness = Harness::new(1);
    let mut generation = harness.superblock_health().generation;
    assert_eq!((generation, harness.superblock_health().copies), (1, 2));
    for i in 0..40 {
        // Any core may receive the event.
        harness.report_error(i % 2, i % 4);
        harness.run_until_idle();
        let label = harness.superblock_health();
        assert_eq!(
            (label.generation, label.copies, label.rewrites_blocked),
            (generation + 1, 2, 0)
        );
        generation += 1;
        if i % 10 == 9 {
            harness.power_cycle(false);
            assert_eq!(harness.superblock_health().generation, generation);
        }
    }
    // 80 copies on four erased locations, evenly distributed.
    let erases = LOCATIONS.map(|chunk| harness.drive.erases_of(chunk));
    assert!(erases.iter().all(|n| (19..=20).contains(n)), "{erases:?}");
    // A further event within a short time is deferred.
    harness.report_error(0, 1);
    harness.run_until_idle();
    harness.now = Nanos(harness.now.0 - 99_000_000_000);
    harness.report_error(0, 2);
    harness.now = Nanos(harness.now.0 - 90_000_000_000);
    harness.run_until_idle();
    assert_eq!(harness.superblock_health().generation, generation + 1);
    assert!(harness.cores[0].deadline() > harness.now && harness.cores[0].deadline() < Nanos::MAX);
}

#[test]
fn a_scrub_reads_the_copies_and_rewrites_what_is_lost_and_periodically_all_of_it() {
    let mut harness = Harness::new(2);
    harness.start_scrub();
    harness.scrub_pass();
    assert_eq!(
        (
            harness.superblock_health().scrub_passes,
            harness.superblock_health().reads,
            harness.superblock_health().rewrites
        ),
        (1, 4, 0)
    );
    harness.lose(0);
    harness.scrub_pass();
    let label = harness.superblock_health();
    assert_eq!((label.generation, label.copies, label.copies_lost), (2, 2, 1), "{label:?}");
    for _ in 0..160 {
        harness.scrub_pass();
    }
    let label = harness.superblock_health();
    assert_eq!((label.generation, label.copies, label.rewrites), (12, 2, 11), "{label:?}");
    // All copies at once: the superblock is rewritten from memory.
    (0..4).for_each(|place| harness.lose(place));
    harness.scrub_pass();
    assert_eq!(
        (harness.superblock_health().generation, harness.superblock_health().copies),
        (13, 2)
    );
    harness.power_cycle(false);
    assert_eq!(harness.superblock_health().generation, 13);
}

#[test]
fn power_is_cut_at_every_step_of_a_rewrite() {
    let mut cuts = 0;
    // To erased locations, and to locations that must be erased.
    for before in [0, 1, 2] {
        for seed in 0..4 {
            let mut after = 0;
            loop {
                let mut harness = Harness::new(seed);
                (0..before).for_each(|_| harness.rewrite());
                let generation = harness.superblock_health().generation;
                harness.report_error(0, 0);
                let mut steps = 0;
                // In the smallest steps: submissions by the host, fetches and completions by the
                // drive.
                while steps < after {
                    let moved = match steps % 3 {
                        0 => harness.cores[0].poll(harness.now),
                        1 => harness.drive.fetch(),
                        _ => harness.drive.step(),
                    };
                    steps += 1;
                    if !moved && steps > 3 && !harness.step() {
                        break;
                    }
                }
                harness.power_cycle(seed == 3);
                let label = harness.superblock_health();
                assert_eq!(label.copies, 2, "{before}, {seed}, {after}: {label:?}");
                let range = generation..=generation + 1;
                assert!(range.contains(&label.generation), "{before}, {seed}, {after}: {label:?}");
                cuts += 1;
                if steps < after {
                    assert_eq!(label.generation, generation + 1, "it was renewed by then");
                    break;
                }
                after += 1;
                assert!(after < 1_000);
            }
        }
    }
    println!("{cuts} cuts");
    assert!(cuts > 300, "{cuts}");
}

#[test]
fn locations_that_fail_are_replaced_and_the_last_one_is_kept() {
    for seed in 0..20 {
        let mut harness = Harness::new(seed);
        // Of the superblock's chunks, only those with a copy are still usable.
        harness.drive.faults.erase_fail = 1.0;
        let mut copies = Vec::new();
        for _ in 0..8 {
            harness.rewrite();
            copies.push(harness.superblock_health().copies);
            assert!(harness.superblock_health().copies >= 1, "{copies:?}");
        }
        // The two free locations took a generation. The two before them were given up for the next
        // one, as was one of the two remaining copies.
        let label = harness.superblock_health();
        assert!(label.rewrites_blocked > 0 && label.failures >= 2, "{label:?}");
        let erases = label.erases;
        for _ in 0..8 {
            harness.rewrite();
        }
        assert_eq!(harness.superblock_health().erases, erases, "nothing is risked");
        harness.drive.faults.erase_fail = 0.0;
        harness.power_cycle(false);
    }
    // Occasional program failures.
    for seed in 0..20 {
        let mut harness = Harness::new(seed);
        harness.drive.faults.program_fail = 0.2;
        for i in 0..60 {
            harness.rewrite();
            assert!(harness.superblock_health().copies >= 1, "{:?}", harness.superblock_health());
            if i % 20 == 19 {
                harness.drive.faults.program_fail = 0.0;
                harness.power_cycle(false);
                // Sectors programmed before a failure are readable as well.
                assert!(
                    harness.superblock_health().copies >= 2,
                    "{:?}",
                    harness.superblock_health()
                );
                harness.drive.faults.program_fail = 0.2;
            }
        }
    }
}

/// Rewrites a superblock in format version 1.
fn first_version(drive: &mut MockOpenChannelDrive, chunk: u32) {
    let phys = u64::from(chunk * SECTORS);
    let mut bytes = drive.peek(phys, 32).to_vec();
    assert_eq!((&bytes[..8], bytes[8]), (&b"SLUICSHD"[..], 2));
    bytes[8] = 1;
    let crc = crc32c::crc32c(&bytes[..16]);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    bytes[20..].fill(0);
    drive.poke(phys, &bytes);
}

#[test]
fn a_superblock_of_the_first_version_opens_and_is_rewritten() {
    let mut harness = Harness::new(5);
    LOCATIONS[..2].iter().for_each(|chunk| first_version(&mut harness.drive, *chunk));
    harness.power_cycle(false);
    assert_eq!(
        (harness.superblock_health().generation, harness.superblock_health().copies),
        (0, 2)
    );
    harness.rewrite();
    assert_eq!(
        (harness.superblock_health().generation, harness.superblock_health().copies),
        (1, 2)
    );
    harness.power_cycle(false);
    assert_eq!(
        (harness.superblock_health().generation, harness.superblock_health().copies),
        (1, 2)
    );
    // The newest generation wins, whatever an older one contains; two copies of a generation must
    // agree.
    let old = u64::from(LOCATIONS[0] * SECTORS);
    let mut bytes = harness.drive.peek(old, 32).to_vec();
    bytes[10] = 4;
    let crc = crc32c::crc32c(&bytes[..16]);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    harness.drive.poke(old, &bytes);
    harness.power_cycle(false);
    let new = u64::from(LOCATIONS[2] * SECTORS);
    let mut bytes = harness.drive.peek(new, 32).to_vec();
    bytes[10] = 4;
    let crc = crc32c::crc32c(&bytes[..16]);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..28]);
    bytes[28..].copy_from_slice(&crc.to_le_bytes());
    harness.drive.poke(new, &bytes);
    harness.drive.cut_power();
    let programs = (harness.drive.stats.programs, harness.drive.stats.erases);
    let error = harness.drive.open_sharded(config(), 16).unwrap_err();
    assert!(
        matches!(
            error,
            ShardedError::Superblock(SuperblockError::LayoutMismatch { shards: 4, .. })
        ),
        "{error}"
    );
    assert_eq!(
        (harness.drive.stats.programs, harness.drive.stats.erases),
        programs,
        "nothing was written"
    );
}
