//! Victims that rules choose.

use controller::{Controller, DriveConfig, DriveRulesConfig};
use nvme::{Sqe, Status};
use time::Nanos;

use super::harness::{RECLAIM, STORE_AND_LOAD, ruled};
use crate::block_commands::harness::Bench;

/// Overwrites random blocks. Returns the drive with the newest value of each block.
fn overwrite(config: DriveConfig, rounds: u64) -> (Bench, Vec<u8>) {
    let mut bench = Bench::new(config);
    let sectors = bench.drive.sectors();
    let mut values = vec![0u8; sectors as usize];
    let mut rng = rng::Rng::new(3);
    for at in 0..rounds * sectors {
        let lba = rng.below(sectors);
        values[lba as usize] = at as u8;
        bench.write(lba, 1, 4096, at as u8);
    }
    (bench, values)
}

fn check_contents(bench: &mut Bench, values: &[u8]) {
    for (lba, value) in (0..).zip(values).step_by(7) {
        assert_eq!(bench.read(lba, 1, 4096), Ok(vec![*value]), "block {lba}");
    }
    bench.drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
}

/// Lines reclaimed, and sectors that collection moved.
fn collected(drive: &Controller) -> (u64, u64) {
    let ftl = drive.ftl().expect("an FTL").stats();
    (ftl.lines_reclaimed, ftl.gc_relocations)
}

#[test]
fn a_greedy_rule_collects_what_the_greedy_policy_does() {
    let config = ruled(&format!("{STORE_AND_LOAD}{RECLAIM}"));
    let block = DriveConfig { rules: None, ..config.clone() };
    let (mut bench, values) = overwrite(config.clone(), 8);
    let stats = bench.drive.stats().rules.expect("rules");
    assert!(stats.victims > 40 && stats.polls >= stats.victims, "{stats:?}");
    assert_eq!(stats.policy_victims, 0);
    check_contents(&mut bench, &values);
    let (reference, _) = overwrite(block, 8);
    assert_eq!(collected(&bench.drive), collected(&reference.drive));
    // With engines that take time, the FTL waits for its victim.
    let rules = config.rules.clone().expect("rules");
    let rules = DriveRulesConfig { op: Nanos(50), ..rules };
    let (mut slow, values) = overwrite(DriveConfig { rules: Some(rules), ..config }, 8);
    let stats = slow.drive.stats().rules.expect("rules");
    assert!(stats.victims > 40 && stats.engine_busy > Nanos(50 * stats.polls), "{stats:?}");
    check_contents(&mut slow, &values);
}

#[test]
fn a_program_that_collects_nothing_does_not_stop_writes() {
    for reclaim in [
        "",
        "rule never when db.free_lines > 1000\n  set v = best line of db by line.age\n  \
        do move valid of v to db.gc; erase v\n",
    ] {
        let (mut bench, values) = overwrite(ruled(&format!("{STORE_AND_LOAD}{reclaim}")), 8);
        let stats = bench.drive.stats().rules.expect("rules");
        assert!(stats.policy_victims > 40 && stats.victims == 0, "{stats:?}");
        check_contents(&mut bench, &values);
    }
}

#[test]
fn a_rule_may_bound_what_is_moved_at_a_time() {
    let (greedy, one) =
        (RECLAIM.to_owned(), RECLAIM.replace("db.gc;", "db.gc up to db.units - db.units;"));
    assert_ne!(greedy, one);
    let [(bench, _), (mut slow, values)] =
        [greedy, one].map(|reclaim| overwrite(ruled(&format!("{STORE_AND_LOAD}{reclaim}")), 8));
    let stats = slow.drive.stats().rules.expect("rules");
    assert!(stats.victims > 40 && stats.policy_victims == 0, "{stats:?}");
    check_contents(&mut slow, &values);
    // The drive collects as much, if at other times.
    let [(lines, _), (slow_lines, _)] = [&bench, &slow].map(|bench| collected(&bench.drive));
    assert!(slow_lines * 10 > lines * 8 && lines * 10 > slow_lines * 8, "{lines} {slow_lines}");
    assert!(slow.host.now != bench.host.now, "one unit at a time takes other times");
}

#[test]
fn a_rule_may_choose_any_closed_line() {
    // The oldest line, however many of its sectors are valid.
    let fifo = "rule fifo when db.free_lines < 4\n  set v = best line of db by line.age\n  \
        do move valid of v to db.gc; erase v\n";
    let (mut bench, values) = overwrite(ruled(&format!("{STORE_AND_LOAD}{fifo}")), 8);
    let stats = bench.drive.stats().rules.expect("rules");
    assert!(stats.victims > 40, "{stats:?}");
    check_contents(&mut bench, &values);
    let status = bench.io(Sqe::flush(1), 0).status;
    assert_eq!(status, Status::SUCCESS);
}
