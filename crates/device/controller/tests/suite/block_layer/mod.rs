//! The block layer over queue pairs of an emulated drive: data integrity with every queue model,
//! with merges and splits, and recovery from command timeouts and from a drive that hangs.

// guarantee: B-01

use crate::common;
mod harness;
mod load;
mod threads;

use block::sched::Scheduling;
use block::{BlockDevice, BlockLayerConfig, QueueModel, Request, STATUS_REMOVED, StagingScope};
use harness::{Harness, config, multi, timeouts};
use nvme::Status;
use time::{Component, Nanos};

/// Queue models, and hardware queues for four cores.
const LAYOUTS: [(QueueModel, u16); 6] = [
    (QueueModel::SingleQueue, 1),
    (QueueModel::MultiQueue { staging: StagingScope::Core }, 4),
    (QueueModel::MultiQueue { staging: StagingScope::Core }, 2),
    (QueueModel::MultiQueue { staging: StagingScope::Core }, 1),
    (QueueModel::MultiQueue { staging: StagingScope::Device }, 1),
    (QueueModel::MultiQueue { staging: StagingScope::Device }, 4),
];

#[test]
fn data_is_right_whatever_the_layout() {
    for (layout, queues) in LAYOUTS {
        for (merge, scheduler) in [(false, "none"), (true, "none"), (true, "deadline")] {
            let scheduler = scheduler.parse().unwrap();
            let scheduler = Scheduling { scheduler, limits: None };
            let config = BlockLayerConfig { merge, scheduler, ..config(layout, 4) };
            let mut harness = Harness::new(harness::nand(), queues, 17, &config);
            harness.submit(700, 200_000);
            harness.drain();
            let what = format!("{layout:?}, {queues} queues, merge {merge}");
            assert!(harness.completed() > 1_500, "{what}: {}", harness.completed());
            assert_eq!(harness.failed(), [], "{what}");
            assert_eq!(harness.count(|d| d.timeouts.get() + d.resets.get() + d.spurious.get()), 0);
            let stat = harness.layer.stat(harness.now);
            let merges = stat.reads().merges + stat.writes().merges;
            assert_eq!(merges > 50, merge, "{what}: {merges} merges");
            let splits: u64 = harness.layer.submitters().iter().map(|s| s.splits.get()).sum();
            assert!(splits > 0, "{what}: no request was split");
            // The layer's count of issued commands equals the drive's count.
            let stats = harness.drive.stats();
            assert_eq!(
                harness.count(|d| d.issued.get()),
                harness.count(|d| d.completed.get()),
                "{what}"
            );
            assert!(stats.late.count >= harness.count(|d| d.issued.get()), "{what}");
        }
    }
}

#[test]
fn a_drive_without_media_answers_every_request_once() {
    for (layout, queues) in LAYOUTS {
        for merge in [false, true] {
            let config = BlockLayerConfig { merge, ..config(layout, 4) };
            let mut harness = Harness::new(harness::null(), queues, 5, &config);
            harness.submit(600, 20_000);
            harness.drain();
            assert!(harness.completed() > 2_500, "{}", harness.completed());
            assert_eq!(harness.failed(), []);
        }
    }
}

#[test]
fn virtual_time_repeats_itself() {
    let run = || {
        let mut harness =
            Harness::new(harness::nand(), 2, 9, &config(multi(StagingScope::Core), 4));
        harness.submit(200, 60_000);
        harness.drain();
        (harness.now, harness.completed(), harness.layer.stat(harness.now).to_string())
    };
    assert_eq!(run(), run());
}

/// Commands that exceed their timeout are aborted (which the drive does not support). Then their
/// queue is deleted and created again, and they are reissued until they complete in time.
#[test]
fn queues_are_reset_in_mid_flight_and_nothing_is_lost() {
    for (layout, queues) in LAYOUTS {
        for (seed, retries) in [(300, 200), (450, 200), (120, 3)] {
            let mut config = config(layout, 4);
            config.timeouts = timeouts(seed, 50, retries);
            let mut harness = Harness::new(harness::nand(), queues, 17, &config);
            harness.submit(150, 60_000);
            harness.drain();
            let what = format!("{layout:?}, {queues} queues, {seed} us: {:?}", harness.layer);
            assert!(harness.completed() > 100, "{what}: {}", harness.completed());
            let (timeouts, resets) =
                (harness.count(|d| d.timeouts.get()), harness.count(|d| d.resets.get()));
            assert!(resets > 0 && timeouts >= resets, "{what}: {timeouts}, {resets}");
            if retries == 200 {
                assert_eq!(harness.failed(), [], "{what}");
            }
            assert!(harness.failed().iter().all(|status| *status == Status::ABORTED));
            assert!(harness.count(|d| d.requeued.get()) > 0, "{what}");
            // Afterwards the drive works normally.
            let failed = harness.failed().len();
            let before = harness.completed();
            for load in &mut harness.loads {
                while !load.submit(harness.now) {}
            }
            harness.drain();
            assert!(harness.completed() >= before + 4 && harness.failed().len() >= failed);
        }
    }
}

#[test]
fn a_drive_that_hangs_and_comes_back_loses_nothing() {
    for (layout, queues) in LAYOUTS {
        let mut config = config(layout, 4);
        config.timeouts = timeouts(20_000, 5_000, 5);
        let mut harness = Harness::new(harness::nand(), queues, 17, &config);
        harness.submit(50, 60_000);
        harness.drain();
        // Shorter than the timeout of a reset.
        harness.hung = true;
        harness.submit(20, 60_000);
        assert!(harness.outstanding() > 0);
        harness.run_to(harness.now + Nanos::from_millis(700));
        assert!(harness.outstanding() > 0);
        harness.hung = false;
        harness.submit(50, 60_000);
        harness.drain();
        assert_eq!(harness.failed(), [], "{layout:?}, {queues} queues");
        assert!(harness.count(|d| d.resets.get()) > 0);
    }
}

#[test]
fn a_drive_that_hangs_for_good_is_removed() {
    for (layout, queues) in LAYOUTS {
        let mut config = config(layout, 4);
        config.timeouts = timeouts(20_000, 5_000, 5);
        let mut harness = Harness::new(harness::nand(), queues, 17, &config);
        harness.submit(50, 60_000);
        harness.drain();
        assert_eq!(harness.failed(), []);
        harness.hung = true;
        while harness
            .loads
            .iter_mut()
            .map(|load| load.submit(harness.now))
            .filter(|took| *took)
            .count()
            > 0
        {}
        let lost = harness.outstanding();
        let took = harness.drain();
        // Command timeout, abort timeout, and reset timeout.
        let expected = Nanos::from_millis(20 + 5 + 1000);
        let late = took.since(expected);
        assert!(took >= expected && late < Nanos::from_millis(2), "{took}");
        assert_eq!(harness.failed().len(), lost);
        assert!(
            harness.failed().iter().all(|status| *status == STATUS_REMOVED),
            "{:?}",
            harness.failed()
        );
        // Later requests fail at once, and the return of the drive changes nothing.
        harness.hung = false;
        harness.settle();
        for load in &mut harness.loads {
            let request = Request::read(0, 1, block::Payload::BitBucket, 77);
            load.queue.submit(harness.now, request).unwrap();
            load.queue.poll(harness.now);
            let completion = load.queue.reap().unwrap();
            assert_eq!((completion.tag, completion.status), (77, STATUS_REMOVED));
            load.queue.submit(harness.now, Request::flush(78)).unwrap();
            load.queue.poll(harness.now);
            assert_eq!(load.queue.reap().map(|c| (c.tag, c.status)), Some((78, STATUS_REMOVED)));
            assert_eq!((load.queue.reap(), load.queue.outstanding()), (None, 0));
            assert_eq!(load.queue.deadline(), Nanos::MAX);
        }
    }
}
