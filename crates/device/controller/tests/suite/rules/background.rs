//! Background rules of an idle drive, and periodic rules.

use std::path::Path;

use controller::{Controller, DriveConfig, DriveRuleStats, DriveRulesConfig};
use ftl::FtlStats;
use media::MediaConfig;
use nvme::{ChunkId, Sqe, Status};
use rules_lang::RuleTemplate;
use time::{Component, Nanos};

use super::harness::{APP, LEVEL, RECLAIM, STORE_AND_LOAD, compiled, nand, ruled, settings};
use crate::block_commands::harness::{Bench, config};

/// Returns a drive that polls its background rules, and then has more rules.
fn idle_drive(rules: &str, idle_poll: Option<u64>, op: u64) -> Bench {
    let first = ruled(STORE_AND_LOAD);
    let settings = first.rules.clone().expect("rules");
    let settings = DriveRulesConfig { idle_poll: idle_poll.map(Nanos), op: Nanos(op), ..settings };
    let mut bench = Bench::new(DriveConfig { rules: Some(settings), ..first });
    let program = compiled(&format!("{APP}{STORE_AND_LOAD}{rules}"), &config());
    bench.drive.install_rules(bench.host.now, &program).expect("a program");
    bench
}

/// Writes a block, and lets the drive do no more than that.
fn write(bench: &mut Bench, lba: u64, value: u8) {
    bench.fill(1, 4096, value);
    assert_eq!(bench.timed(Sqe::write(1, lba, 1, false), 4096).0, Status::SUCCESS);
}

/// Reads a block. Returns its bytes.
fn read(bench: &mut Bench, lba: u64) -> Vec<u8> {
    assert_eq!(bench.timed(Sqe::read(1, lba, 1), 4096).0, Status::SUCCESS);
    let mut bytes = vec![0; 4096];
    bench.host.memory.read(0, &mut bytes);
    bytes
}

fn stats(bench: &Bench) -> DriveRuleStats {
    bench.drive.stats().rules.expect("rules")
}

fn ftl_stats(drive: &Controller) -> FtlStats {
    *drive.ftl().expect("an FTL").stats()
}

/// Runs the drive without commands until `end`.
fn run_to(bench: &mut Bench, end: Nanos) {
    loop {
        while bench.drive.poll(bench.host.now) {}
        let next = bench.drive.deadline();
        if next > end {
            break;
        }
        bench.host.now = next;
    }
    bench.host.now = end;
}

/// Lets the drive be idle for some time.
fn idle(bench: &mut Bench, time: u64) {
    run_to(bench, bench.host.now + Nanos(time));
}

/// Writes all blocks twice, the first tenth of them twenty times more.
fn skewed(bench: &mut Bench) -> Vec<u8> {
    let sectors = bench.drive.sectors();
    let mut values = vec![0u8; sectors as usize];
    let hot = (0..2 * sectors).map(|at| at * 7 % (sectors / 10));
    for (at, lba) in (0..sectors).chain(0..sectors).chain(hot).enumerate() {
        values[lba as usize] = at as u8;
        write(bench, lba, at as u8);
    }
    values
}

fn check_contents(bench: &mut Bench, values: &[u8]) {
    for (lba, value) in (0..).zip(values).step_by(5) {
        assert!(read(bench, lba) == [*value; 4096], "block {lba}");
    }
    bench.drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
}

#[test]
fn an_idle_drive_collects_until_no_rule_chooses_a_line() {
    for op in [0, 40] {
        let mut bench = idle_drive(RECLAIM, Some(10_000_000), op);
        let values = skewed(&mut bench);
        let before = (stats(&bench), ftl_stats(&bench.drive));
        idle(&mut bench, 20_000_000_000);
        let after = (stats(&bench), ftl_stats(&bench.drive));
        let relocated = after.0.relocated - before.0.relocated;
        assert!(relocated > 3, "{after:?}");
        // Each line that a poll chose is relocated; the last poll chose none.
        assert_eq!(after.0.idle_polls - before.0.idle_polls, relocated + 1, "{after:?}");
        assert_eq!(after.1.refreshed_lines - before.1.refreshed_lines, relocated);
        assert_eq!(after.0.inputs, before.0.inputs, "polls are no inputs of commands");
        assert_eq!(bench.drive.deadline(), Nanos::MAX, "it polls no more");
        // All lines but the open ones hold valid sectors only.
        let lines = bench.drive.ftl().expect("an FTL").victim_lines();
        assert!(lines.ids().all(|id| lines.get(id).is_some_and(|line| line.valid == line.sectors)));
        check_contents(&mut bench, &values);
        // The reads were commands: it polls once more.
        let polls = stats(&bench).idle_polls;
        idle(&mut bench, 20_000_000_000);
        assert_eq!(stats(&bench).idle_polls, polls + 1);
    }
}

#[test]
fn a_drive_without_idle_poll_collects_for_space_only() {
    let mut bench = idle_drive(RECLAIM, None, 0);
    let values = skewed(&mut bench);
    let before = ftl_stats(&bench.drive);
    idle(&mut bench, 20_000_000_000);
    assert_eq!((stats(&bench).idle_polls, stats(&bench).relocated), (0, 0));
    assert_eq!(ftl_stats(&bench.drive).lines_reclaimed, before.lines_reclaimed);
    check_contents(&mut bench, &values);
}

#[test]
fn a_rule_levels_wear_while_the_drive_is_idle() {
    let mut bench = idle_drive(&format!("{RECLAIM}{LEVEL}"), Some(1_000_000), 0);
    let mut values = skewed(&mut bench);
    let hot = values.len() as u64 / 10;
    for round in 0..60 {
        for lba in 0..hot {
            values[lba as usize] = round;
            write(&mut bench, lba, round);
        }
        idle(&mut bench, 100_000_000);
    }
    let (rules, ftl) = (stats(&bench), ftl_stats(&bench.drive));
    assert!(ftl.wear_leveled_lines > 5 && rules.relocated > 5, "{rules:?} {ftl:?}");
    check_contents(&mut bench, &values);
}

#[test]
fn a_periodic_rule_runs_once_a_period() {
    let cool = "table heat: u64[8] volatile\nrule tick when every 2ms\n  \
        set heat[0] = heat[0] + 1\n\
        rule ask priority 2 when channel.app == db and header.read\n  \
        do complete ok value heat[0]\n";
    let mut bench = idle_drive(cool, None, 0);
    let installed = bench.host.now;
    run_to(&mut bench, installed + Nanos(1_999_999));
    assert_eq!(stats(&bench).periodic, 0);
    run_to(&mut bench, installed + Nanos(2_000_000));
    assert_eq!(stats(&bench).periodic, 1);
    run_to(&mut bench, installed + Nanos(21_000_000));
    let after = stats(&bench);
    assert_eq!((after.periodic, after.inputs, after.misses), (10, 0, 0));
    let tick = after.rules.iter().find(|rule| rule.name == "tick").expect("the rule");
    assert_eq!((tick.matches, tick.faults), (10, 0));
}

#[test]
fn a_periodic_rule_may_relocate_lines() {
    let every = "rule old when every 5ms\n  set v = best line of db by line.age\n  \
        do move valid of v to db.cold; erase v\n";
    let mut bench = idle_drive(&format!("{RECLAIM}{every}"), None, 3);
    let values = skewed(&mut bench);
    let before = stats(&bench);
    idle(&mut bench, 1_000_000_000);
    let after = stats(&bench);
    assert_eq!(after.periodic - before.periodic, 200);
    assert!(after.relocated - before.relocated > 10, "{after:?}");
    assert!(ftl_stats(&bench.drive).wear_leveled_lines > 10);
    check_contents(&mut bench, &values);
}

/// Wear of a drive after writes to an eighth of it, with pauses.
#[derive(Debug)]
struct WearSpread {
    /// The most erases of a chunk with data, less the fewest.
    spread: u32,
    write_amplification: f64,
    leveled: u64,
}

/// Overwrites an eighth of a drive with rules, which is idle now and then.
fn wear_spread(rules: &str) -> WearSpread {
    wear_of(&mut idle_drive(rules, Some(1_000_000), 0))
}

/// Overwrites an eighth of a drive, which is idle now and then.
fn wear_of(bench: &mut Bench) -> WearSpread {
    let sectors = bench.drive.sectors();
    let mut rng = rng::Rng::new(8);
    (0..sectors).for_each(|lba| write(bench, lba, 0));
    for at in 0..120 * sectors {
        write(bench, rng.below(sectors / 8), 0);
        if at % (sectors / 4) == 0 {
            idle(bench, 500_000_000);
        }
    }
    bench.drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
    let ftl = bench.drive.ftl().expect("an FTL");
    let chunks = nand(bench.drive.config()).host_geometry().total_chunks();
    let in_lines = (0..chunks as u32).map(ChunkId).filter(|chunk| ftl.is_in_line(*chunk));
    let wear: Vec<u32> = in_lines.map(|chunk| ftl.wear_of(chunk)).collect();
    let (low, high) = (wear.iter().min().expect("lines"), wear.iter().max().expect("lines"));
    let write_amplification = ftl.stats().write_amplification().expect("writes");
    WearSpread { spread: high - low, write_amplification, leveled: ftl.stats().wear_leveled_lines }
}

// guarantee: B-109
#[test]
fn a_wear_rule_meets_the_bounds_of_static_wear_leveling() {
    // The rules of demo/rules/temperature.rules that collect and level.
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../demo/rules/temperature.rules");
    let demo = std::fs::read_to_string(demo).expect("a program");
    let level = demo.split_once("rule level").expect("the rule").1;
    let level = format!("rule level{level}");
    assert!(level.contains("db.wear.max - db.wear.min > 48"), "{level}");
    let reclaim = "rule reclaim when db.free_lines < 4\n  set v = best line of db by \
        line.sectors - line.valid where line.valid < line.sectors\n  \
        do move valid of v to db.gc; erase v\n";
    let without = wear_spread(reclaim);
    let with = wear_spread(&format!("{reclaim}{level}"));
    println!("without {without:?}, with {with:?}");
    assert_eq!(without.leveled, 0);
    assert!(with.leveled > 0 && with.spread * 2 < without.spread, "{without:?} {with:?}");
    assert!(with.spread <= 48 + 24, "{with:?}");
    let cost = with.write_amplification / without.write_amplification;
    assert!(cost < 1.15, "{without:?} {with:?}");
}

/// Returns a drive that has a program of the template `endurance`, changed by `change`.
fn endurance_drive(change: impl Fn(String) -> String) -> Bench {
    let mut base = config();
    base.ftl.hot_stream = true;
    if let MediaConfig::Nand(nand) = &mut base.media {
        // Lines for four streams, and still most of them with data.
        nand.geometry.chunks = 48;
    }
    let program = compiled(&format!("{APP}{STORE_AND_LOAD}"), &base);
    let config = DriveConfig { rules: Some(DriveRulesConfig { program, ..settings() }), ..base };
    let program = compiled(&change(RuleTemplate::Endurance.source(15, 100_000)), &config);
    // Periodic rules never end, and the host waits for the end of all work when it connects.
    let mut bench = Bench::new(config);
    bench.drive.install_rules(bench.host.now, &program).expect("a program");
    bench
}

#[test]
fn the_template_endurance_levels_wear_once_a_second() {
    let mut with = endurance_drive(|source| source);
    let mut without = endurance_drive(|source| {
        let limit = "app_0.wear.max - app_0.wear.min > 48";
        assert!(source.contains(limit), "{source}");
        source.replace(limit, "app_0.wear.max - app_0.wear.min > 1000000")
    });
    let (leveled, plain) = (wear_of(&mut with), wear_of(&mut without));
    let (of_level, of_none) = (stats(&with), stats(&without));
    println!("{plain:?}, {leveled:?}, {of_level:?}");
    // Both run the periodic rules; no other rule relocates lines of a drive that is never polled.
    assert!(of_level.periodic > 0 && of_none.periodic > 0, "{of_level:?} {of_none:?}");
    assert_eq!((of_level.idle_polls, of_none.idle_polls), (0, 0));
    assert_eq!((of_none.relocated, plain.leveled), (0, 0));
    assert!(of_level.relocated > 0 && leveled.leveled > 0, "{of_level:?} {leveled:?}");
    let level = of_level.rules.iter().find(|rule| rule.name == "level").expect("a rule");
    assert!(level.matches >= of_level.relocated && level.faults == 0, "{level:?}");
    assert!(leveled.spread * 2 < plain.spread, "{plain:?} {leveled:?}");
}
