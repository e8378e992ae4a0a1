//! The label of a sharded device is written anew while it is used: on other chunks, one generation after
//! the other, with power cut at every step of that, with places that fail, and from what older versions
//! wrote.

mod common;

use block::{Device, Payload, Request};
use clock::{Component, Nanos};
use common::{OpenChannelDrive, geometry};
use driver::MediaEvent;
use lightnvm::core::ScrubConfig;
use lightnvm::{LabelError, LabelHealth, ShardHandle, ShardedConfig, ShardedError};
use nvme::{Address, MediaNotice, MediaScope};
use ring::{Iova, Region};

const SECTOR: usize = 512;
const CHUNKS: u32 = 40;
const SECTORS: u32 = 24;
/// Chunk 0 of each of four parallel units, neighbours on different channels.
const PLACES: [u32; 4] = [0, 2 * CHUNKS, CHUNKS, 3 * CHUNKS];

/// A device with one sector written and flushed.
struct Bed {
    drive: OpenChannelDrive,
    cores: Vec<ShardHandle>,
    memory: std::sync::Arc<Region>,
    at: Iova,
    now: Nanos,
}

fn config() -> ShardedConfig {
    ShardedConfig { stripe_sectors: 8, ..ShardedConfig::new(2) }
}

impl Bed {
    fn new(seed: u64) -> Bed {
        let mut drive = OpenChannelDrive::new(geometry(2, 2, CHUNKS, SECTORS, 2, 4), true, seed);
        let memory = Region::anonymous(4096).unwrap();
        let cores = drive.open_sharded(config(), 16).unwrap().into_handles();
        let mut bed = Bed { drive, cores, memory, at: Iova(0), now: Nanos(1) };
        bed.at = bed.cores[0].memory().register(&bed.memory).unwrap();
        bed.memory.fill(0, SECTOR, 7);
        bed.run(Request::write(3, 1, Payload::At(bed.at), 0));
        bed.run(Request::flush(1));
        bed.settle();
        bed
    }

    fn turn(&mut self) -> bool {
        let now = self.now;
        let moved = self.cores.iter_mut().fold(false, |moved, core| core.poll(now) | moved);
        let moved = self.drive.fetch() | moved;
        self.drive.step() | moved
    }

    fn settle(&mut self) {
        while self.turn() {}
    }

    fn run(&mut self, request: Request) {
        self.cores[0].submit(self.now, request).unwrap();
        let done = (0..100_000).find_map(|_| {
            self.turn();
            self.cores[0].reap()
        });
        assert!(done.expect("it ends").status.is_success());
    }

    fn label(&self) -> LabelHealth {
        assert_eq!(self.cores[1].label_health(), None, "one looks after it");
        self.cores[0].label_health().unwrap()
    }

    /// The drive says that a place is hard to read, to whichever core hears it.
    fn suspect(&mut self, core: usize, place: usize) {
        self.now += Nanos::from_secs(100);
        let (pu, chunk) = (PLACES[place] / CHUNKS, PLACES[place] % CHUNKS);
        let address = Address { group: pu / 2, pu: pu % 2, chunk, sector: 0 };
        let (scope, kind) = (MediaScope::Chunk, MediaNotice::ErrorRateHigh);
        self.cores[core].media_event(&MediaEvent { count: 1, address, scope, kind, sectors: 0 });
    }

    fn renew(&mut self) {
        self.suspect(0, 0);
        self.settle();
    }

    fn patrol(&mut self) {
        let config = ScrubConfig {
            sectors_per_sec: 1_000,
            cold_after: Nanos::from_secs(10),
            repeat_after: Nanos::from_secs(10),
            spread_cycles: None,
        };
        self.cores.iter_mut().for_each(|core| core.patrol(config));
    }

    /// Lets a round pass.
    fn round(&mut self) {
        self.now += Nanos::from_secs(10);
        self.settle();
    }

    fn lose(&mut self, place: usize) {
        self.drive.unreadable.insert(u64::from(PLACES[place] * SECTORS));
    }

    /// Cuts power and opens the device again, perhaps with cuts of that, too.
    fn power_cycle(&mut self, cuts_of_opening: bool) {
        self.drive.cut_power();
        for after in 0..if cuts_of_opening { 12 } else { 0 } {
            self.drive.cut_after = Some(self.drive.fetched + after);
            drop(self.drive.open_sharded(config(), 16));
            self.drive.cut_power();
        }
        self.cores = self.drive.open_sharded(config(), 16).expect("it opens").into_handles();
        self.at = self.cores[0].memory().register(&self.memory).unwrap();
        self.memory.fill(0, SECTOR, 0xee);
        self.run(Request::read(3, 1, Payload::At(self.at), 0));
        let mut bytes = [0; SECTOR];
        self.memory.read(0, &mut bytes);
        assert_eq!(bytes, [7; SECTOR]);
    }
}

#[test]
fn what_the_drive_tells_of_a_place_renews_the_label_on_the_others() {
    let mut bed = Bed::new(1);
    let mut generation = bed.label().generation;
    assert_eq!((generation, bed.label().copies), (1, 2));
    for i in 0..40 {
        // Whichever core hears it.
        bed.suspect(i % 2, i % 4);
        bed.settle();
        let label = bed.label();
        assert_eq!((label.generation, label.copies, label.stuck), (generation + 1, 2, 0));
        generation += 1;
        if i % 10 == 9 {
            bed.power_cycle(false);
            assert_eq!(bed.label().generation, generation);
        }
    }
    // 80 copies on four places that were free, and each of them as often.
    let erases = PLACES.map(|chunk| bed.drive.erases_of(chunk));
    assert!(erases.iter().all(|n| (19..=20).contains(n)), "{erases:?}");
    // What it is told again at once waits for a while.
    bed.suspect(0, 1);
    bed.settle();
    bed.now = Nanos(bed.now.0 - 99_000_000_000);
    bed.suspect(0, 2);
    bed.now = Nanos(bed.now.0 - 90_000_000_000);
    bed.settle();
    assert_eq!(bed.label().generation, generation + 1);
    assert!(bed.cores[0].deadline() > bed.now && bed.cores[0].deadline() < Nanos::MAX);
}

#[test]
fn a_patrol_reads_the_copies_and_renews_what_is_lost_and_now_and_then_all_of_it() {
    let mut bed = Bed::new(2);
    bed.patrol();
    bed.round();
    assert_eq!((bed.label().rounds, bed.label().reads, bed.label().renewals), (1, 4, 0));
    bed.lose(0);
    bed.round();
    let label = bed.label();
    assert_eq!((label.generation, label.copies, label.lost), (2, 2, 1), "{label:?}");
    for _ in 0..160 {
        bed.round();
    }
    let label = bed.label();
    assert_eq!((label.generation, label.copies, label.renewals), (12, 2, 11), "{label:?}");
    // All that there is, at once: it is known what it said.
    (0..4).for_each(|place| bed.lose(place));
    bed.round();
    assert_eq!((bed.label().generation, bed.label().copies), (13, 2));
    bed.power_cycle(false);
    assert_eq!(bed.label().generation, 13);
}

#[test]
fn power_is_cut_at_every_step_of_a_renewal() {
    let mut cuts = 0;
    // Onto places that are free, and onto such as have to be erased.
    for before in [0, 1, 2] {
        for seed in 0..4 {
            let mut after = 0;
            loop {
                let mut bed = Bed::new(seed);
                (0..before).for_each(|_| bed.renew());
                let generation = bed.label().generation;
                bed.suspect(0, 0);
                let mut steps = 0;
                // As finely as things happen: what the host takes, what the drive fetches, what ends.
                while steps < after {
                    let moved = match steps % 3 {
                        0 => bed.cores[0].poll(bed.now),
                        1 => bed.drive.fetch(),
                        _ => bed.drive.step(),
                    };
                    steps += 1;
                    if !moved && steps > 3 && !bed.turn() {
                        break;
                    }
                }
                bed.power_cycle(seed == 3);
                let label = bed.label();
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
fn places_that_fail_are_replaced_and_the_last_one_is_left_alone() {
    for seed in 0..20 {
        let mut bed = Bed::new(seed);
        // None of the label's chunks but those that hold a copy can be used any more.
        bed.drive.erase_fail = 1.0;
        let mut copies = Vec::new();
        for _ in 0..8 {
            bed.renew();
            copies.push(bed.label().copies);
            assert!(bed.label().copies >= 1, "{copies:?}");
        }
        // The two free places took a generation; the two before them were given up for the next one, and
        // one of the two copies that were left.
        let label = bed.label();
        assert!(label.stuck > 0 && label.failures >= 2, "{label:?}");
        let erases = label.erases;
        for _ in 0..8 {
            bed.renew();
        }
        assert_eq!(bed.label().erases, erases, "nothing is risked");
        bed.drive.erase_fail = 0.0;
        bed.power_cycle(false);
    }
    // Programs that fail, now and then.
    for seed in 0..20 {
        let mut bed = Bed::new(seed);
        bed.drive.program_fail = 0.2;
        for i in 0..60 {
            bed.renew();
            assert!(bed.label().copies >= 1, "{:?}", bed.label());
            if i % 20 == 19 {
                bed.drive.program_fail = 0.0;
                bed.power_cycle(false);
                // What could be programmed before a failure can be read, too.
                assert!(bed.label().copies >= 2, "{:?}", bed.label());
                bed.drive.program_fail = 0.2;
            }
        }
    }
}

/// What version 1 wrote, of what a newer version did.
fn first_version(drive: &mut OpenChannelDrive, chunk: u32) {
    let psn = u64::from(chunk * SECTORS);
    let mut bytes = drive.peek(psn, 32).to_vec();
    assert_eq!((&bytes[..8], bytes[8]), (&b"SLUICSHD"[..], 2));
    bytes[8] = 1;
    let crc = crc32c::crc32c(&bytes[..16]);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    bytes[20..].fill(0);
    drive.poke(psn, &bytes);
}

#[test]
fn a_label_of_the_first_version_opens_and_is_renewed() {
    let mut bed = Bed::new(5);
    PLACES[..2].iter().for_each(|chunk| first_version(&mut bed.drive, *chunk));
    bed.power_cycle(false);
    assert_eq!((bed.label().generation, bed.label().copies), (0, 2));
    bed.renew();
    assert_eq!((bed.label().generation, bed.label().copies), (1, 2));
    bed.power_cycle(false);
    assert_eq!((bed.label().generation, bed.label().copies), (1, 2));
    // The newest wins, whatever an older one says; one of the same generation must agree.
    let old = u64::from(PLACES[0] * SECTORS);
    let mut bytes = bed.drive.peek(old, 32).to_vec();
    bytes[10] = 4;
    let crc = crc32c::crc32c(&bytes[..16]);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    bed.drive.poke(old, &bytes);
    bed.power_cycle(false);
    let new = u64::from(PLACES[2] * SECTORS);
    let mut bytes = bed.drive.peek(new, 32).to_vec();
    bytes[10] = 4;
    let crc = crc32c::crc32c(&bytes[..16]);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..28]);
    bytes[28..].copy_from_slice(&crc.to_le_bytes());
    bed.drive.poke(new, &bytes);
    bed.drive.cut_power();
    let programs = (bed.drive.programs, bed.drive.erases);
    let error = bed.drive.open_sharded(config(), 16).unwrap_err();
    assert!(matches!(error, ShardedError::Label(LabelError::Other { shards: 4, .. })), "{error}");
    assert_eq!((bed.drive.programs, bed.drive.erases), programs, "nothing was written");
}
