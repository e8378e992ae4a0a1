//! Closed forms: the throughput of six drives behind one uplink.

use controller::{AhciConfig, SataData, SataDriveConfig};
use driver::{Payload, Request};
use time::Nanos;

use super::harness::{Harness, config};

const SECTORS: u64 = 500_118_192;

/// Returns the requests of `sectors` sectors per second and their mean latency, with `depth` random
/// requests in flight per drive.
fn rate(config: &AhciConfig, sectors: u32, depth: usize, write: bool) -> (f64, Nanos) {
    let mut harness = Harness::new(config);
    let mut random = rng::Rng::new(7);
    let mut request = |tag| {
        let places = SECTORS / u64::from(sectors);
        let lba = random.below(places) * u64::from(sectors);
        match write {
            true => Request::write(lba, sectors, Payload::BitBucket, tag),
            false => Request::read(lba, sectors, Payload::BitBucket, tag),
        }
    };
    for queue in 0..harness.queues.len() {
        for tag in 0..depth {
            harness.submit(queue, &request(tag as u64)).unwrap();
        }
    }
    let start = harness.now() + Nanos::from_millis(20);
    let end = start + Nanos::from_millis(80);
    let (mut count, mut latency, mut ended) = (0u64, 0u64, Vec::new());
    while harness.now() < end {
        harness.settle();
        harness.reap(&mut ended);
        for e in ended.drain(..) {
            assert!(e.status.is_success(), "{}", e.status);
            if harness.now() >= start {
                count += 1;
                latency += e.latency.0;
            }
            harness.submit(e.queue, &request(e.user)).unwrap();
        }
        assert!(harness.step());
    }
    (count as f64 / 0.08, Nanos(latency / count))
}

fn hiops() -> AhciConfig {
    config(6, SECTORS, SataData::Untouched)
}

fn near(measured: f64, expected: f64, share: f64) {
    assert!((measured / expected - 1.0).abs() <= share, "{measured:.0}, expected {expected:.0}");
}

/// Returns the rate of one drive: `min(1 / (command + size / processor), link / size)`.
fn drive_rate(drive: &SataDriveConfig, bytes: f64) -> f64 {
    let command = drive.read_command.as_secs_f64() + bytes / drive.processor_bytes_per_sec as f64;
    let link = drive.link_command.as_secs_f64() + bytes / drive.link_bytes_per_sec as f64;
    (1.0 / command).min(1.0 / link)
}

#[test]
fn six_drives_meet_the_drives_or_the_uplink() {
    for (sectors, share) in [(1, 0.03), (8, 0.03), (16, 0.03), (128, 0.03)] {
        let bytes = f64::from(sectors) * 512.0;
        let config = hiops();
        let drive = config.drives[0].clone().unwrap();
        let expected = (6.0 * drive_rate(&drive, bytes)).min(1.5e9 / bytes);
        let (measured, latency) = rate(&config, sectors, 32, false);
        println!("6 drives, {bytes:6} B: {measured:.0}/s of {expected:.0}/s, mean {latency}");
        near(measured, expected, share);
        // Little's law: 192 requests are always in flight.
        near(measured * latency.as_secs_f64(), 192.0, 0.02);
    }
}

#[test]
fn one_drive_meets_its_makers_numbers() {
    let one = config(1, SECTORS, SataData::Untouched);
    let drive = one.drives[0].clone().unwrap();
    for sectors in [1, 8, 128] {
        let bytes = f64::from(sectors) * 512.0;
        let (measured, _) = rate(&one, sectors, 32, false);
        println!("1 drive, {bytes:6} B reads: {measured:.0}/s");
        near(measured, drive_rate(&drive, bytes), 0.03);
    }
    let (deep, _) = rate(&one, 8, 32, false);
    near(deep, 100_000.0, 0.03);
    let mut last = 0.0;
    for depth in [1, 2, 4, 8, 16, 32] {
        let (measured, latency) = rate(&one, 8, depth, false);
        println!("1 drive, 4 KB reads at depth {depth}: {measured:.0}/s, mean {latency}");
        assert!(
            measured > last * 1.5 || measured > 99_000.0,
            "a deeper queue must increase the rate"
        );
        last = measured;
        if depth == 1 {
            assert!((83_000..92_000).contains(&latency.0), "{latency}");
        }
    }
}

#[test]
fn writes_go_at_the_caches_pace_and_then_at_the_flashs() {
    let one = config(1, SECTORS, SataData::Untouched);
    let (small, _) = rate(&one, 8, 32, true);
    println!("1 drive, 4 KB writes: {small:.0}/s");
    near(small, 90_000.0, 0.03);
    let mut little = one.clone();
    little.drives[0].as_mut().unwrap().cache_bytes = 1 << 20;
    let (large, _) = rate(&little, 128, 32, true);
    near(large, 520e6 / 65_536.0, 0.03);
}

#[test]
fn a_run_repeats_to_the_nanosecond() {
    assert_eq!(rate(&hiops(), 8, 5, false), rate(&hiops(), 8, 5, false));
}
