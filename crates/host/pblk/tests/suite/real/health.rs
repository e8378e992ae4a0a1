//! Reactions of pblk to aging media, failing chunks, and media events.

// guarantee: D-27

use driver::MediaEvent;
use ftl::FtlConfig;
use lnvm::ScrubConfig;
use media::{ChunkId, ErrorModel, InjectedFault};
use nvme::{Address, ChunkNotificationKind, ChunkNotificationScope};
use time::Nanos;

use super::harness::{Bench, USUAL, config};

/// A model in which data has twice the bit errors after 40 s, three times after 80 s, and so on. A
/// new sector has 8 bit errors; 40 are corrected.
fn aging(retries: u32) -> ErrorModel {
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

fn scrub_config() -> ScrubConfig {
    ScrubConfig {
        sectors_per_sec: RATE,
        cold_after: Nanos::from_secs(10),
        repeat_after: Nanos::from_secs(10),
        wear_gap_cycles: None,
    }
}

/// Writes all sectors, and waits. Returns the sectors lost by then.
fn lost_after(seconds: u64, patrol: Option<ScrubConfig>) -> (Bench, Vec<u64>) {
    let ftl = FtlConfig { over_provisioning: 0.3, ..FtlConfig::default() };
    let mut b = Bench::subscribed(config(USUAL, aging(0), 5), ftl, patrol);
    for lba in 0..b.sectors() {
        assert!(b.write(lba, 1).is_success());
    }
    assert!(b.flush().is_success());
    b.wait_until(Nanos::from_secs(seconds));
    let lost = b.uncorrectable();
    (b, lost)
}

#[test]
fn data_that_is_not_rewritten_is_lost_without_a_scrub_and_relocated_in_time_with_one() {
    let (b, lost) = lost_after(240, None);
    let share = lost.len() as f64 / b.sectors() as f64;
    // Seven times 8 bit errors are 56.
    assert!(share > 0.5, "{share} of it is lost");
    assert_eq!(b.pblk.health().scrub.sectors, 0);
    for seconds in [120, 240, 400] {
        let (mut b, lost) = lost_after(seconds, Some(scrub_config()));
        assert_eq!(lost, [], "after {seconds} s");
        let (health, stats) = (b.pblk.health(), *b.pblk.stats());
        println!("{seconds} s: {health:?}, {} lines moved", stats.refreshed_lines);
        assert!(stats.refreshed_lines > 0 && stats.uncorrectable_sectors == 0, "{stats:?}");
        assert_eq!(health.relocations, stats.refreshed_lines);
        // Reads and relocations are bounded by time times rate.
        let allowed = seconds * u64::from(RATE) + 64;
        assert!(
            health.scrub.sectors <= allowed && stats.refresh_relocations <= allowed,
            "{stats:?}"
        );
        assert!(health.events > 0 && health.scrub.visits > 0, "{health:?}");
        // A line is relocated when its worst sector has 30 bit errors; the mean of 256 sectors is
        // half of that.
        let rounds = stats.refresh_relocations as f64 / b.sectors() as f64;
        assert!(rounds > seconds as f64 / 140.0 && rounds < seconds as f64 / 18.0, "{rounds}");
        assert!(b.flush().is_success());
        b.power_cycle().unwrap();
        assert_eq!(b.uncorrectable(), []);
    }
}

#[test]
fn chunks_that_are_read_repeatedly_are_relocated_on_a_drive_event() {
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
            true => Bench::subscribed(drive, FtlConfig::default(), None),
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
    assert!(
        health.events > 0 && health.relocations > 0 && stats.refreshed_lines == health.relocations
    );
}

#[test]
fn a_chunk_that_fails_is_reported_and_its_sectors_fail_alone() {
    let ftl = FtlConfig { over_provisioning: 0.5, ..FtlConfig::default() };
    let mut b = Bench::subscribed(config(USUAL, ErrorModel::default(), 8), ftl, None);
    for lba in 0..b.sectors() {
        assert!(b.write(lba, 1).is_success());
    }
    assert!(b.flush().is_success());
    let nand = b.drive().nand_mut().unwrap();
    let full = |(_, i): &(ChunkId, media::ChunkInfo)| i.write_pointer == 64;
    let (chunk, _) = nand.chunks().filter(full).nth(10).unwrap();
    nand.inject(InjectedFault::ChunkBad { chunk }).unwrap();
    let lost = b.uncorrectable();
    assert!(!lost.is_empty() && lost.len() <= 64, "{}", lost.len());
    let (stats, health) = (*b.pblk.stats(), b.pblk.health());
    assert_eq!((stats.offline_chunks, health.events, health.ignored), (1, 1, 0));
    assert!(b.flush().is_success());
    b.wait_until(b.now + Nanos::from_secs(10));
    let stats = *b.pblk.stats();
    assert_eq!((stats.refreshed_lines, stats.retired_chunks), (1, 1), "{stats:?}");
    assert_eq!(b.uncorrectable(), lost);
    b.power_cycle().unwrap();
    assert_eq!(b.uncorrectable(), lost);
}

#[test]
fn events_of_addresses_that_the_drive_does_not_have_are_counted_and_ignored() {
    let mut b =
        Bench::subscribed(config(USUAL, ErrorModel::default(), 9), FtlConfig::default(), None);
    assert!(b.write(0, 64).is_success());
    let at = |group, pu, chunk, sector| Address { group, pu, chunk, sector };
    let (scope, kind) = (ChunkNotificationScope::Chunk, ChunkNotificationKind::Unrecoverable);
    for address in [at(2, 0, 0, 0), at(0, 2, 0, 0), at(0, 0, 40, 0), at(0, 0, 3, 64)] {
        b.pblk.on_media_event(&MediaEvent { count: 1, address, scope, kind, sectors: 0 });
    }
    for kind in [
        ChunkNotificationKind::ErrorRateLow,
        ChunkNotificationKind::Refreshed,
        ChunkNotificationKind::WearOutside,
    ] {
        b.pblk.on_media_event(&MediaEvent {
            count: 1,
            address: at(0, 0, 5, 0),
            scope,
            kind,
            sectors: 0,
        });
    }
    let health = b.pblk.health();
    assert_eq!((health.events, health.ignored, health.relocations), (7, 7, 0));
    assert_eq!(b.pblk.stats().offline_chunks, 0);
    assert!(b.pblk.take_controller().is_some() && b.pblk.take_controller().is_none());
    assert_eq!(b.read(5), Ok(6));
}
