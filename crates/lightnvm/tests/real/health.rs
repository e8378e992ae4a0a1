//! What pblk does about media that ages, chunks that go, and what its drive tells it.

use clock::Nanos;
use driver::MediaEvent;
use ftl::FtlConfig;
use lightnvm::core::ScrubConfig;
use media::{ChunkId, ErrorModel, Fault};
use nvme::{Address, MediaNotice, MediaScope};

use crate::bench::{Bench, USUAL, config};

/// Data that has twice the bit errors after 40 s, three times after 80 s, and so on: of 40 that are
/// corrected a fresh sector has 8.
fn ageing(retries: u32) -> ErrorModel {
    ErrorModel {
        rber: 8.0 / 4096.0,
        rber_growth: 1.0,
        ecc_bits: 40,
        read_retries: retries,
        retention: Nanos::from_secs(40),
        ..ErrorModel::default()
    }
}

const RATE: u32 = 2_000;

fn patrol() -> ScrubConfig {
    ScrubConfig {
        sectors_per_sec: RATE,
        cold_after: Nanos::from_secs(10),
        repeat_after: Nanos::from_secs(10),
        spread_cycles: None,
    }
}

/// Writes everything, and leaves it alone for a while. What is lost then.
fn after(seconds: u64, patrol: Option<ScrubConfig>) -> (Bench, Vec<u64>) {
    let ftl = FtlConfig { over_provisioning: 0.3, ..FtlConfig::default() };
    let mut b = Bench::watched(config(USUAL, ageing(0), 5), ftl, patrol);
    for lba in 0..b.sectors() {
        assert!(b.write(lba, 1).is_success());
    }
    assert!(b.flush().is_success());
    b.wait_until(Nanos::from_secs(seconds));
    let lost = b.unreadable();
    (b, lost)
}

#[test]
fn data_that_nobody_writes_is_lost_without_a_patrol_and_with_one_it_is_moved_in_time() {
    let (b, lost) = after(240, None);
    let share = lost.len() as f64 / b.sectors() as f64;
    // Seven times 8 bit errors are 56.
    assert!(share > 0.5, "{share} of it is lost");
    assert_eq!(b.pblk.health().scrub.sectors, 0);
    for seconds in [120, 240, 400] {
        let (mut b, lost) = after(seconds, Some(patrol()));
        assert_eq!(lost, [], "after {seconds} s");
        let (health, stats) = (b.pblk.health(), *b.pblk.stats());
        println!("{seconds} s: {health:?}, {} lines moved", stats.refreshed_lines);
        assert!(stats.refreshed_lines > 0 && stats.lost == 0, "{stats:?}");
        assert_eq!(health.moves, stats.refreshed_lines);
        // No more is read, and no more moved, than in that time at that rate.
        let allowed = seconds * u64::from(RATE) + 64;
        assert!(health.scrub.sectors <= allowed && stats.refresh_moves <= allowed, "{stats:?}");
        assert!(health.events > 0 && health.scrub.visits > 0, "{health:?}");
        // A line is moved when its worst sector has 30 bit errors, the mean of 256 being half of that.
        let rounds = stats.refresh_moves as f64 / b.sectors() as f64;
        assert!(rounds > seconds as f64 / 140.0 && rounds < seconds as f64 / 18.0, "{rounds}");
        assert!(b.flush().is_success());
        b.power_cycle().unwrap();
        assert_eq!(b.unreadable(), []);
    }
}

#[test]
fn chunks_that_are_read_over_and_over_are_moved_because_the_drive_says_so() {
    let errors = ErrorModel {
        rber: 8.0 / 4096.0,
        rber_growth: 1.0,
        ecc_bits: 40,
        read_retries: 3,
        disturb_reads: 1_000,
        ..ErrorModel::default()
    };
    let run = |watched: bool| {
        let drive = config(USUAL, errors, 6);
        let mut b = match watched {
            true => Bench::watched(drive, FtlConfig::default(), None),
            false => Bench::new(drive, FtlConfig::default()),
        };
        for lba in 0..b.sectors() / 2 {
            assert!(b.write(lba, 1).is_success());
        }
        assert!(b.flush().is_success());
        for i in 0..20_000 {
            let lba = i % 16;
            assert_eq!(b.read(lba), Ok(b.model[lba as usize]));
        }
        let retried = b.drive().stats().media.unwrap().retried_reads;
        (retried, *b.pblk.stats(), b.pblk.health())
    };
    let (without, stats, _) = run(false);
    assert_eq!(stats.refreshed_lines, 0);
    let (with, stats, health) = run(true);
    println!("{without} reads repeated, {with} with events; {health:?}");
    assert!(with * 4 < without, "{with} reads repeated, {without} without");
    assert!(health.events > 0 && health.moves > 0 && stats.refreshed_lines == health.moves);
}

#[test]
fn a_chunk_that_goes_is_heard_of_and_its_sectors_fail_alone() {
    let ftl = FtlConfig { over_provisioning: 0.5, ..FtlConfig::default() };
    let mut b = Bench::watched(config(USUAL, ErrorModel::default(), 8), ftl, None);
    for lba in 0..b.sectors() {
        assert!(b.write(lba, 1).is_success());
    }
    assert!(b.flush().is_success());
    let nand = b.drive().nand_mut().unwrap();
    let full = |(_, i): &(ChunkId, media::ChunkInfo)| i.write_pointer == 64;
    let (chunk, _) = nand.chunks().filter(full).nth(10).unwrap();
    nand.inject(Fault::ChunkBad { chunk }).unwrap();
    let lost = b.unreadable();
    assert!(!lost.is_empty() && lost.len() <= 64, "{}", lost.len());
    let (stats, health) = (*b.pblk.stats(), b.pblk.health());
    assert_eq!((stats.offline_chunks, health.events, health.ignored), (1, 1, 0));
    assert!(b.flush().is_success());
    b.wait_until(b.now + Nanos::from_secs(10));
    let stats = *b.pblk.stats();
    assert_eq!((stats.refreshed_lines, stats.retired_chunks), (1, 1), "{stats:?}");
    assert_eq!(b.unreadable(), lost);
    b.power_cycle().unwrap();
    assert_eq!(b.unreadable(), lost);
}

#[test]
fn what_a_drive_tells_of_places_that_it_does_not_have_is_counted_and_left_alone() {
    let mut b = Bench::watched(config(USUAL, ErrorModel::default(), 9), FtlConfig::default(), None);
    assert!(b.write(0, 64).is_success());
    let at = |group, pu, chunk, sector| Address { group, pu, chunk, sector };
    let (scope, kind) = (MediaScope::Chunk, MediaNotice::Unrecoverable);
    for address in [at(2, 0, 0, 0), at(0, 2, 0, 0), at(0, 0, 40, 0), at(0, 0, 3, 64)] {
        b.pblk.media_event(&MediaEvent { count: 1, address, scope, kind, sectors: 0 });
    }
    for kind in [MediaNotice::ErrorRateLow, MediaNotice::Refreshed, MediaNotice::WearOutside] {
        b.pblk.media_event(&MediaEvent {
            count: 1,
            address: at(0, 0, 5, 0),
            scope,
            kind,
            sectors: 0,
        });
    }
    let health = b.pblk.health();
    assert_eq!((health.events, health.ignored, health.moves), (7, 7, 0));
    assert_eq!(b.pblk.stats().offline_chunks, 0);
    assert!(b.pblk.take_controller().is_some() && b.pblk.take_controller().is_none());
    assert_eq!(b.read(5), Ok(6));
}
