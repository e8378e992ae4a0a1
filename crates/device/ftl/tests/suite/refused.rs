//! A recovery that refuses a drive does not change it. Here, the FTL has another configuration or
//! another instance id, power was cut at any time, and paired pages of the flash can be read only
//! after padding.

// guarantee: D-02

use crate::common;

use common::{TestFlash, geometry};
use ftl::journal::JournalError;
use ftl::{ChunkReport, FlashGeometry, Ftl, FtlConfig, LineMetadata, Recovery, RecoveryError};
use rng::Rng;
use time::Nanos;

const NOW: Nanos = Nanos(0);

fn shape() -> FlashGeometry {
    FlashGeometry::from_geometry(&geometry(2, 2, 48, 64, 4, 8))
}

/// Returns the flash of an FTL with random writes, after power was cut when `events` operations had
/// completed.
fn cut_after(config: FtlConfig, events: u64, seed: u64) -> TestFlash {
    let mut rng = Rng::new(seed);
    let mut ftl = Ftl::new(shape(), config, |_| ChunkReport::Free).unwrap();
    let mut flash = TestFlash::new(shape(), true, ftl.slots(), seed);
    let sectors = ftl.sectors();
    // The FTL creates its journal.
    ftl.kick(NOW, &mut flash);
    flash.settle(&mut ftl);
    let (mut tag, mut done) = (0, 0);
    while done < events {
        tag += 1;
        flash.requests.insert(tag, vec![tag]);
        match rng.below(20) {
            0 => ftl.flush(NOW, tag, &mut flash),
            1 => ftl.trim(tag, rng.below(sectors), 1),
            _ => ftl.write(tag, rng.below(sectors), 1, false),
        }
        ftl.kick(NOW, &mut flash);
        let mut ended = false;
        while !ended {
            // No operation is in flight: the request waits for others to fill its write unit.
            ended = !flash.step(&mut ftl);
            done += u64::from(!ended);
            while let Some(one) = ftl.pop_completion() {
                ended |= one.tag == tag;
            }
        }
        flash.requests.clear();
    }
    flash.cut();
    flash
}

fn all(flash: &TestFlash) -> Vec<ChunkReport> {
    (0..shape().total_chunks()).map(|chunk| flash.chunk_report(chunk)).collect()
}

fn refuse(flash: &mut TestFlash, config: FtlConfig) -> RecoveryError {
    let before = all(flash);
    let recovery = Recovery::new(shape(), config, before.clone(), shape().total_chunks()).unwrap();
    let refused = flash.execute_all(recovery).map(|_| ()).unwrap_err();
    assert_eq!(all(flash), before, "{refused}");
    refused
}

#[test]
fn another_configuration_or_name_is_refused_without_writing() {
    for (line_metadata, other) in
        [(LineMetadata::Off, LineMetadata::On), (LineMetadata::On, LineMetadata::Off)]
    {
        let config = FtlConfig {
            over_provisioning: 0.3,
            line_metadata,
            checkpoint_sectors: 200,
            ..FtlConfig::default()
        };
        let others = [
            FtlConfig { over_provisioning: 0.5, ..config },
            FtlConfig { active_pus: 2, ..config },
            FtlConfig { line_metadata: other, ..config },
            FtlConfig { hot_cold: false, ..config },
        ];
        let mut written = 0;
        for seed in 0..120 {
            let events = [0, 1 + seed % 40, 100 + 7 * seed][seed as usize % 3];
            let mut flash = cut_after(config, events, seed);
            for other in others {
                let refused = refuse(&mut flash, other);
                assert!(
                    matches!(refused, RecoveryError::ConfigMismatch(_)),
                    "seed {seed}: {refused}"
                );
            }
            let refused = refuse(&mut flash, FtlConfig { instance_id: 77, ..config });
            assert!(
                matches!(refused, RecoveryError::Journal(JournalError::Foreign { .. })),
                "seed {seed}: {refused}"
            );
            // The refused drive can still be recovered with its own configuration.
            let ftl = flash.recover(config);
            assert!(ftl.stats().uncorrectable_sectors == 0);
            written += u64::from(ftl.mapped() > 0);
        }
        assert!(written > 50, "{written} of 120 had data");
    }
}
