//! Failures of programs, erases, reads and dies.

// guarantee: D-20, D-21, D-58

use ftl::{FtlConfig, LineMetadata};
use media::{ErrorModel, InjectedFault};
use nvme::PuId;
use nvme::Status;

use super::harness::{Bench, UNPAIRED, USUAL, config, copying};

#[test]
fn no_data_is_lost_to_programs_and_erases_that_fail_at_any_rate() {
    for (i, rate) in [0.000_1, 0.001, 0.003, 0.01].into_iter().enumerate() {
        let errors = ErrorModel { program_fail: rate, erase_fail: rate, ..ErrorModel::default() };
        let mut b = Bench::new(config(USUAL, errors, i as u64), FtlConfig::default());
        for round in 0..4 {
            let status = b.churn(2 * b.sectors());
            let full = status.is(Status::CAPACITY_EXCEEDED);
            // The number of spare chunks is limited: then writes report the lack of capacity, and
            // reads still succeed.
            assert!(status.is_success() || full && rate >= 0.001, "{rate}: {status}");
            assert_eq!(b.uncorrectable(), [], "{rate}, round {round}");
            if full {
                assert!(b.write(0, 1).is(Status::CAPACITY_EXCEEDED), "read-only");
                break;
            }
            assert!(b.flush().is_success());
            b.power_cycle().unwrap();
            assert_eq!(b.uncorrectable(), [], "{rate}, after power cut {round}");
        }
        let stats = *b.pblk.stats();
        assert!(rate < 0.001 || b.drive().stats().media.is_some_and(|m| m.program_failures > 0));
        assert!(stats.uncorrectable_sectors == 0, "{stats:?}");
    }
}

#[test]
fn sectors_that_cannot_be_read_fail_alone_wherever_they_are_moved() {
    // Wear leveling moves the cold sectors, too.
    let copying = FtlConfig { static_wear_leveling: 2, ..copying() };
    for (shape, layer) in [(USUAL, FtlConfig::default()), (UNPAIRED, copying)] {
        // Lines then hold less, so that GC also selects lines that are mostly valid.
        let layer = FtlConfig { line_metadata: LineMetadata::On, ..layer };
        let b = Bench::new(config(shape, ErrorModel::default(), 7), layer);
        what_cannot_be_read_fails_alone(b);
    }
}

fn what_cannot_be_read_fails_alone(mut b: Bench) {
    let all = b.sectors();
    for lba in (0..all).step_by(4) {
        assert!(b.write(lba, 4.min((all - lba) as u32)).is_success());
    }
    assert!(b.flush().is_success());
    // One written sector in a hundred.
    let nand = b.drive().nand_mut().unwrap();
    let layout = *nand.layout();
    let written: Vec<_> = nand.chunks().map(|(chunk, info)| (chunk, info.write_pointer)).collect();
    let mut damaged = 0;
    for (chunk, end) in written.into_iter().skip(2) {
        for sector in (0..end).step_by(100) {
            nand.inject(InjectedFault::Uncorrectable { phys: layout.phys(chunk, sector) }).unwrap();
            damaged += 1;
        }
    }
    let lost = b.uncorrectable();
    assert!(!lost.is_empty() && lost.len() <= damaged, "{} of {damaged}", lost.len());
    // Overwritten sectors are readable again; relocated ones stay lost individually.
    let rewritten = all / 3;
    for lba in 0..rewritten {
        assert!(b.write(lba, 1).is_success());
    }
    // Some sectors were still buffered when their media was damaged.
    let still = b.uncorrectable();
    assert!(still.iter().all(|lba| *lba >= rewritten), "{still:?}");
    assert!(lost.iter().all(|lba| *lba < rewritten || still.contains(lba)), "{lost:?}");
    for _ in 0..6 {
        for lba in 0..rewritten {
            assert!(b.write(lba, 1).is_success());
        }
    }
    assert!(b.pblk.stats().uncorrectable_sectors > 0, "some were moved: {:?}", b.pblk.stats());
    assert_eq!(b.uncorrectable(), still);
    assert!(b.flush().is_success());
    b.checkpoint();
    b.power_cycle().unwrap();
    assert_eq!(b.uncorrectable(), still, "known to be lost after a power cut, too");
}

/// Fails a die; the device finds out by itself, or by an event. Returns the sectors that are
/// unreadable afterwards, and after a flush and a power cut.
fn lose_a_die(watched: bool) -> (Bench, Vec<u64>, Vec<u64>) {
    // Enough spare capacity to do without the die.
    let ftl = FtlConfig { over_provisioning: 0.6, ..FtlConfig::default() };
    let drive = config(USUAL, ErrorModel::default(), 3);
    let mut b = if watched { Bench::subscribed(drive, ftl, None) } else { Bench::new(drive, ftl) };
    let all = b.sectors();
    for lba in 0..all {
        assert!(b.write(lba, 1).is_success());
    }
    assert!(b.flush().is_success());
    // So that some sectors are newer than the last checkpoint and have older copies.
    b.checkpoint();
    for lba in (0..all).step_by(3) {
        assert!(b.write(lba, 1).is_success());
    }
    for lba in (1..all).step_by(97) {
        assert!(b.discard(lba, 1).is_success());
    }
    assert!(b.flush().is_success());
    b.drive().nand_mut().unwrap().inject(InjectedFault::DieFailure { pu: PuId(2) }).unwrap();
    let lost = b.uncorrectable();
    let share = lost.len() as f64 / all as f64;
    assert!((0.2..0.3).contains(&share), "a quarter is lost: {share}");
    assert!(b.flush().is_success());
    b.power_cycle().unwrap();
    let after = b.uncorrectable();
    (b, lost, after)
}

#[test]
fn a_die_takes_its_data_with_it_and_nothing_else_even_after_a_power_cut() {
    for watched in [false, true] {
        let (mut b, lost, after) = lose_a_die(watched);
        let fails_still = lost.iter().all(|lba| after.contains(lba));
        assert!(fails_still, "what is lost reads as something else");
        if watched {
            assert_eq!(after, lost, "what was in the write buffer is somewhere else");
        } else {
            // Sectors read from the write buffer may have been on the die as well.
            let more = after.len() - lost.len();
            assert!(more <= b.pblk.ftl().slots() as usize, "{more} more");
        }
        for lba in after {
            assert!(b.write(lba, 1).is_success(), "what is written again is there again");
        }
        assert!(b.flush().is_success());
        assert_eq!(b.uncorrectable(), []);
        b.power_cycle().unwrap();
        assert_eq!(b.uncorrectable(), []);
    }
}
