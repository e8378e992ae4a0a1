//! The partition table on flash that loses data over time: the media manager rewrites it
//! periodically, with power cuts at every step.

// guarantee: D-30

use lnvm::{MediaManager, MediaManagerConfig, ScrubConfig, Sharing};
use media::{ErrorModel, MediaConfig};
use testkit::managed_drive::{FOREVER, ManagedDrive, config, geometry, manager_config, spec};
use time::{Component, Nanos};

fn seconds(seconds: u64) -> Nanos {
    Nanos::from_secs(seconds)
}

/// After 160 s, sectors have 40 bit errors, the maximum that ECC corrects.
fn aging(seed: u64) -> ManagedDrive {
    let mut config = config(geometry(2, 2, 24, 32), 2, None);
    let MediaConfig::Nand(nand) = &mut config.media else { panic!("{:?}", config.media) };
    nand.seed = seed;
    nand.errors = ErrorModel {
        rber: 8.0 / 4096.0,
        rber_growth: 1.0,
        ecc_bits: 40,
        retention: seconds(40),
        ..ErrorModel::default()
    };
    ManagedDrive::new(config)
}

fn core(scrubs: bool) -> MediaManagerConfig {
    let scrub = ScrubConfig {
        sectors_per_sec: 1_000,
        cold_after: seconds(20),
        repeat_after: seconds(30),
        wear_gap_cycles: None,
    };
    MediaManagerConfig { scrub: scrubs.then_some(scrub), ..manager_config() }
}

/// Advances time to `until`.
fn run_until(harness: &ManagedDrive, s: &mut MediaManager, until: Nanos) {
    for _ in 0..1_000_000 {
        let moved = s.poll(harness.now.get());
        let next = {
            let mut drive = harness.drive.borrow_mut();
            let moved = drive.poll(harness.now.get()) | moved;
            if moved { harness.now.get() } else { drive.deadline().min(s.deadline()) }
        };
        if next >= until {
            harness.now.set(harness.now.get().max(until));
            return;
        }
        harness.now.set(harness.now.get().max(next));
    }
    panic!("the media manager does not reach the time");
}

fn cut(harness: ManagedDrive) -> ManagedDrive {
    let now = harness.now.get();
    let harness = harness.cut();
    harness.now.set(now);
    harness
}

#[test]
fn a_table_is_lost_in_time_without_a_scrub_and_kept_with_one() {
    for seed in 0..4 {
        for scrubs in [false, true] {
            let harness = aging(seed);
            let mut s = harness.register(core(scrubs)).unwrap();
            let target = spec("data", "0-1", Sharing::Exclusive);
            s.create(target, &mut || harness.progress()).unwrap();
            let before = s.journal().unwrap().stats();
            run_until(&harness, &mut s, seconds(600));
            let after = s.journal().unwrap().stats();
            let generations = after.generations - before.generations;
            let uid = s.table().uid();
            drop(s);
            let harness = cut(harness);
            let again = harness.open(core(scrubs));
            if scrubs {
                // One rewrite after 20 s, then one every 30 s, with two chunks each, which must be
                // erased before.
                assert!((18..=21).contains(&generations), "{generations}: {after:?}");
                assert!(after.erases <= 4 * generations, "{after:?}");
                let again = again.unwrap();
                assert_eq!(again.table().uid(), uid, "seed {seed}");
                assert!(again.target("data").is_ok());
            } else {
                assert_eq!(generations, 0, "the table must not be rewritten without a scrub");
                let lost = again.map_or(true, |s| s.target("data").is_err());
                assert!(lost, "seed {seed}: the flash has not lost the table");
            }
        }
    }
}

#[test]
fn power_is_cut_at_every_step_of_rewriting_the_table() {
    let (mut cuts, mut after) = (0, 0);
    loop {
        let harness = aging(7);
        let mut s = harness.register(core(true)).unwrap();
        s.create(spec("data", "0-1", Sharing::Exclusive), &mut || harness.progress()).unwrap();
        run_until(&harness, &mut s, seconds(19));
        harness.run(&mut s);
        let (uid, sequence) = (s.table().uid(), s.table().sequence());
        let before = s.journal().unwrap().stats().generations;
        harness.now.set(seconds(21));
        harness.left.set(after);
        harness.run(&mut s);
        let ended = !harness.is_cut();
        let generations = s.journal().unwrap().stats().generations - before;
        harness.left.set(FOREVER);
        drop(s);
        let harness = cut(harness);
        let mut s = harness.open(core(true)).unwrap();
        assert_eq!((s.table().uid(), s.table().sequence()), (uid, sequence), "after {after}");
        assert!(s.target("data").is_ok());
        // The table remains writable.
        s.create(spec("more", "2", Sharing::Exclusive), &mut || harness.progress()).unwrap();
        s.close(&mut || harness.progress()).unwrap();
        cuts += 1;
        if ended {
            assert_eq!(generations, 1);
            break;
        }
        after += 1;
        assert!(after < 500);
    }
    println!("{cuts} cuts");
    assert!(cuts > 4, "{cuts}");
}
