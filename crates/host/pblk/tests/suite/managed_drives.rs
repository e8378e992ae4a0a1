//! pblk and drives with a media manager: each rejects what the other wrote, and a target's journal is
//! restarted when its chunks belong to a media manager.

// guarantee: D-02

use block::{BlockDevice, Payload, Request};
use ftl::journal::JournalError;
use ftl::{FtlConfig, LineMetadata, RecoveryError};
use lnvm::{
    JOURNAL_OWNER, MediaManagerConfig, MediaManagerError, NewTarget, ScrubConfig, Sharing,
    TargetKind,
};
use nvme::ChunkId;
use pblk::{DriveQueue, Pblk, PblkError};
use testkit::managed_drive::{ManagedDrive, config, geometry, manager_config, spec};
use time::{Component, Nanos};

fn small(pair: u32) -> ManagedDrive {
    ManagedDrive::new(config(geometry(2, 2, 24, 32), pair, None))
}

/// Returns the state and write pointer of every chunk.
fn written(harness: &ManagedDrive) -> Vec<(u8, u64)> {
    harness.fresh_report().iter().map(|d| (d.state, d.wp.get())).collect()
}

fn open_pblk(harness: &ManagedDrive, config: FtlConfig) -> Result<Pblk, PblkError> {
    let (report, queue) = (harness.fresh_report(), harness.queue(64));
    let port = queue.port().clone();
    Pblk::open(
        &harness.info,
        &report,
        queue.into_queue(),
        port,
        config,
        &mut || harness.progress(),
        true,
    )
}

const METADATA: [LineMetadata; 2] = [LineMetadata::Off, LineMetadata::Auto];

#[test]
fn pblk_refuses_a_drive_with_a_table_and_writes_nothing_whenever_it_was_cut() {
    for pair in [0, 2, 3] {
        for (events, line_metadata) in (0..60).zip(METADATA.into_iter().cycle()) {
            let harness = small(pair);
            let mut s = harness.register(manager_config()).unwrap();
            harness.run(&mut s);
            harness.left.set(events * events / 4);
            for i in 0..4 {
                let new = spec(&format!("t{i}"), "0-3", Sharing::Shared);
                if s.create(new, &mut || harness.progress()).is_err() {
                    break;
                }
            }
            // Clean shutdown in some cases.
            if events % 4 == 3 && !harness.is_cut() {
                let closed = s.close(&mut || harness.progress());
                assert!(closed.is_ok() || harness.is_cut(), "{closed:?}");
            }
            let harness = harness.cut();
            let before = written(&harness);
            let layer = FtlConfig { line_metadata, ..FtlConfig::default() };
            let refused = open_pblk(&harness, layer).map(|_| ()).unwrap_err();
            assert!(
                matches!(
                    refused,
                    PblkError::Recovery(RecoveryError::Journal(JournalError::Foreign {
                        found: JOURNAL_OWNER,
                        ..
                    }))
                ),
                "{refused}"
            );
            assert_eq!(written(&harness), before, "{events} events, pair {pair}: {refused}");
            assert!(harness.open(manager_config()).unwrap().is_registered());
        }
    }
}

#[test]
fn a_drive_that_pblk_has_is_refused_and_nothing_is_written_whenever_it_was_cut() {
    for pair in [0, 2, 3] {
        for (events, line_metadata) in (0..60).zip(METADATA.into_iter().cycle()) {
            let harness = small(pair);
            let layer = FtlConfig { line_metadata, ..FtlConfig::default() };
            let mut pblk = open_pblk(&harness, layer).unwrap();
            let mut polls = 0;
            let mut run = |pblk: &mut Pblk, lba: u64| {
                pblk.submit(harness.now.get(), Request::write(lba, 1, Payload::BitBucket, 1))
                    .unwrap();
                pblk.submit(harness.now.get(), Request::flush(2)).unwrap();
                while !pblk.is_idle() && !harness.is_cut() && polls < 100_000 {
                    pblk.poll(harness.now.get());
                    while pblk.reap().is_some() {}
                    harness.progress();
                    polls += 1;
                }
            };
            // Its journal exists by then.
            run(&mut pblk, 0);
            harness.left.set(events * events / 2);
            (1..60).for_each(|lba| run(&mut pblk, lba));
            let harness = harness.cut();
            let before = written(&harness);
            let refused = harness.register(manager_config()).unwrap_err();
            assert!(matches!(refused, MediaManagerError::Foreign { .. }), "{refused}");
            assert_eq!(written(&harness), before, "{events} events, pair {pair}: {refused}");
            // Nor one of an FTL with another configuration.
            let other = FtlConfig { over_provisioning: 0.7, ..layer };
            let refused = open_pblk(&harness, other).map(|_| ()).unwrap_err();
            assert_eq!(written(&harness), before, "{events} events, pair {pair}: {refused}");
            open_pblk(&harness, layer).unwrap();
        }
    }
}

/// A target whose chunks belong to a media manager has them scrubbed by it, and restarts its
/// journal.
#[test]
fn a_target_that_runs_maintenance_restarts_its_journal() {
    let harness = ManagedDrive::new(config(geometry(2, 2, 40, 32), 0, None));
    let scrub = ScrubConfig {
        sectors_per_sec: 1_000,
        cold_after: Nanos::from_secs(20),
        repeat_after: Nanos::from_secs(30),
        wear_gap_cycles: None,
    };
    let config = MediaManagerConfig { scrub: Some(scrub), ..manager_config() };
    let mut s = harness.register(config).unwrap();
    let new = NewTarget { kind: TargetKind::Pblk, ..spec("data", "0-3", Sharing::Exclusive) };
    let id = s.create(new, &mut || harness.progress()).unwrap();
    let table = s.table().clone();
    let (report, queue) = (harness.fresh_report(), harness.queue(64));
    let port = queue.port().clone();
    let parts = DriveQueue { queue: queue.into_queue(), port };
    s.close(&mut || harness.progress()).unwrap();
    drop(s);
    let ftl = FtlConfig { over_provisioning: 0.4, ..FtlConfig::default() };
    let owned = |chunk: ChunkId| table.is_owned_by(id, chunk.get());
    let mut progress = || harness.progress();
    let opened = Pblk::open_on(&harness.info, &report, &owned, parts, ftl, &mut progress, true);
    let mut pblk = opened.unwrap();
    let mut s = harness.open(config).unwrap();
    pblk.watch_chunks();
    let mut generations = Vec::new();
    for second in 0..300 {
        harness.now.set(harness.now.get().max(Nanos::from_secs(second)));
        pblk.run_maintenance(harness.now.get(), &mut s, id);
        for _ in 0..200 {
            pblk.poll(harness.now.get());
            harness.drive.borrow_mut().poll(harness.now.get());
            let next = harness.drive.borrow().deadline();
            if next != Nanos::MAX {
                harness.now.set(harness.now.get().max(next));
            }
        }
        generations.push(pblk.stats().checkpoints);
    }
    // At once, and every 30 s.
    let begun = generations.last().unwrap() - generations[0];
    assert!((9..=10).contains(&begun), "{begun}: {generations:?}");
}
