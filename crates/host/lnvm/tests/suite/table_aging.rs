//! The partition table on flash that loses data in time: it is rewritten periodically, with power
//! cuts at every step.

// guarantee: D-30

mod rig;

use clock::{Component, Nanos};
use ftl::FtlConfig;
use lightnvm::subsystem::{
    MediaManager, MediaManagerConfig, NewTarget, ScrubConfig, Sharing, TargetKind,
};
use lightnvm::{DriveQueue, Pblk};
use media::{ErrorModel, MediaConfig};
use rig::{FOREVER, Rig, config, core_config, geometry, spec};

fn seconds(seconds: u64) -> Nanos {
    Nanos::from_secs(seconds)
}

/// Sectors have 40 bit errors, the maximum that is corrected, after 160 s.
fn aging(seed: u64) -> Rig {
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
    Rig::new(config)
}

fn core(scrubs: bool) -> MediaManagerConfig {
    let scrub = ScrubConfig {
        sectors_per_sec: 1_000,
        cold_after: seconds(20),
        repeat_after: seconds(30),
        wear_gap_cycles: None,
    };
    MediaManagerConfig { scrub: scrubs.then_some(scrub), ..core_config() }
}

/// Advances the time.
fn run_until(rig: &Rig, s: &mut MediaManager, until: Nanos) {
    for _ in 0..1_000_000 {
        let moved = s.poll(rig.now.get());
        let next = {
            let mut drive = rig.drive.borrow_mut();
            let moved = drive.poll(rig.now.get()) | moved;
            if moved { rig.now.get() } else { drive.deadline().min(s.deadline()) }
        };
        if next >= until {
            rig.now.set(rig.now.get().max(until));
            return;
        }
        rig.now.set(rig.now.get().max(next));
    }
    panic!("it never ends");
}

fn cut(rig: Rig) -> Rig {
    let now = rig.now.get();
    let rig = rig.cut();
    rig.now.set(now);
    rig
}

#[test]
fn a_table_is_lost_in_time_without_a_scrub_and_kept_with_one() {
    for seed in 0..4 {
        for scrubs in [false, true] {
            let rig = aging(seed);
            let mut s = rig.register(core(scrubs)).unwrap();
            let target = spec("data", "0-1", Sharing::Exclusive);
            s.create(target, &mut || rig.pump()).unwrap();
            let before = s.journal().unwrap().stats();
            run_until(&rig, &mut s, seconds(600));
            let after = s.journal().unwrap().stats();
            let generations = after.generations - before.generations;
            let uid = s.table().uid();
            drop(s);
            let rig = cut(rig);
            let again = rig.open(core(scrubs));
            if scrubs {
                // After 20 s, and every 30 s; two chunks each, which were erased before.
                assert!((18..=21).contains(&generations), "{generations}: {after:?}");
                assert!(after.erases <= 4 * generations, "{after:?}");
                let again = again.unwrap();
                assert_eq!(again.table().uid(), uid, "seed {seed}");
                assert!(again.target("data").is_ok());
            } else {
                assert_eq!(generations, 0, "nobody asked for it");
                let lost = again.map_or(true, |s| s.target("data").is_err());
                assert!(lost, "seed {seed}: flash that forgets has not forgotten");
            }
        }
    }
}

#[test]
fn power_is_cut_at_every_step_of_rewriting_the_table() {
    let (mut cuts, mut after) = (0, 0);
    loop {
        let rig = aging(7);
        let mut s = rig.register(core(true)).unwrap();
        s.create(spec("data", "0-1", Sharing::Exclusive), &mut || rig.pump()).unwrap();
        run_until(&rig, &mut s, seconds(19));
        rig.run(&mut s);
        let (uid, sequence) = (s.table().uid(), s.table().sequence());
        let before = s.journal().unwrap().stats().generations;
        rig.now.set(seconds(21));
        rig.left.set(after);
        rig.run(&mut s);
        let ended = !rig.is_cut();
        let generations = s.journal().unwrap().stats().generations - before;
        rig.left.set(FOREVER);
        drop(s);
        let rig = cut(rig);
        let mut s = rig.open(core(true)).unwrap();
        assert_eq!((s.table().uid(), s.table().sequence()), (uid, sequence), "after {after}");
        assert!(s.target("data").is_ok());
        // The table remains writable.
        s.create(spec("more", "2", Sharing::Exclusive), &mut || rig.pump()).unwrap();
        s.close(&mut || rig.pump()).unwrap();
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

/// A target whose chunks belong to a media manager has them scrubbed by it, and restarts its
/// journal.
#[test]
fn a_target_that_runs_maintenance_restarts_its_journal() {
    let rig = Rig::new(config(geometry(2, 2, 40, 32), 0, None));
    let mut s = rig.register(core(true)).unwrap();
    let new = NewTarget { kind: TargetKind::Pblk, ..spec("data", "0-3", Sharing::Exclusive) };
    let id = s.create(new, &mut || rig.pump()).unwrap();
    let table = s.table().clone();
    let (report, queue) = (rig.fresh_report(), rig.queue(64));
    let port = queue.port().clone();
    let parts = DriveQueue { queue: queue.into_queue(), port };
    s.close(&mut || rig.pump()).unwrap();
    drop(s);
    let ftl = FtlConfig { over_provisioning: 0.4, ..FtlConfig::default() };
    let owned = |chunk: u32| table.is_owned_by(id, chunk);
    let mut pump = || rig.pump();
    let opened = Pblk::open_on(&rig.info, &report, &owned, parts, ftl, &mut pump, true);
    let mut pblk = opened.unwrap();
    let mut s = rig.open(core(true)).unwrap();
    pblk.watch_chunks();
    let mut generations = Vec::new();
    for second in 0..300 {
        rig.now.set(rig.now.get().max(seconds(second)));
        pblk.run_maintenance(rig.now.get(), &mut s, id);
        for _ in 0..200 {
            pblk.poll(rig.now.get());
            rig.drive.borrow_mut().poll(rig.now.get());
            let next = rig.drive.borrow().deadline();
            if next != Nanos::MAX {
                rig.now.set(rig.now.get().max(next));
            }
        }
        generations.push(pblk.stats().checkpoints);
    }
    // At once, and every 30 s.
    let begun = generations.last().unwrap() - generations[0];
    assert!((9..=10).contains(&begun), "{begun}: {generations:?}");
}
