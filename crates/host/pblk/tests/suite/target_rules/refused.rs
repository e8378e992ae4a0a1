//! Programs that a target does not take.

use ftl::FtlConfig;
use nvme::Status;
use pblk::{TargetRulesConfig, TargetRulesError};
use time::Nanos;

use super::programs::{STORE_AND_LOAD, settings};
use super::requests::RuledTarget;

fn target() -> RuledTarget {
    RuledTarget::new(STORE_AND_LOAD, FtlConfig::default(), None)
}

/// Returns the reason for which the target does not take these rules. Those before stay installed.
fn refuse(rules: &str) -> TargetRulesError {
    let mut target = target();
    let config = settings(&target.drive.geometry, rules);
    let error = target.pblk.install_rules(Nanos(0), &config).expect_err(rules);
    assert_eq!((target.write(1, 5), target.read(1)), (Status::SUCCESS, 5));
    error
}

#[test]
fn programs_that_need_more_are_refused_with_the_reason() {
    let scan = "rule scan when channel.app == db and header.op == scan\n  \
        do for s in header.range up to 8 { if 1 == 2 { complete ok } }; complete ok\n";
    let durable = "table counts: u64[4] durable\n\
        rule count priority 3 when channel.app == db and header.write set counts[0] = 1 do complete ok\n";
    let posts = "rule tell priority 3 when channel.app == db and header.write do post migrated, 1, 2, 3; complete ok\n";
    let moves = "rule up when db.free_lines < 9 set v = best line of db by line.valid \
        do move valid of v to db.host; erase v\n";
    for (rules, part, reason) in [
        (scan, "scan", "returns no records"),
        (durable, "counts", "no records of tables"),
        (posts, "tell", "reports no events"),
        (moves, "up", "`gc` and `cold`"),
    ] {
        let error = refuse(&format!("{rules}{STORE_AND_LOAD}"));
        let TargetRulesError::NotExecuted { need, reason: why } = &error else { panic!("{error}") };
        assert_eq!(need.part, part);
        assert!(why.contains(reason) && error.to_string().contains(reason), "{error}");
    }
    let hot = STORE_AND_LOAD.replace("db.host", "db.hot");
    assert!(matches!(refuse(&hot), TargetRulesError::NoHotStream(need) if need.part == "store"));
    let often = format!("rule often when every 1us set x = 1\n{STORE_AND_LOAD}");
    assert!(matches!(refuse(&often), TargetRulesError::Period { period_ns: 1_000, .. }));
}

#[test]
fn a_program_must_be_whole_and_for_the_target() {
    let mut target = target();
    let geometry = target.drive.geometry;
    let config = settings(&geometry, STORE_AND_LOAD);
    let mut install = |config: &TargetRulesConfig| {
        target.pblk.install_rules(Nanos(0), config).expect_err("a program that is refused")
    };
    let cut = TargetRulesConfig {
        program: config.program[..config.program.len() - 1].to_vec(),
        ..config.clone()
    };
    assert!(matches!(install(&cut), TargetRulesError::Decode(_)));
    let costly = TargetRulesConfig { ops: 1, ..config.clone() };
    assert!(matches!(install(&costly), TargetRulesError::Verify(_)));
    let often = TargetRulesConfig { idle_poll: Some(Nanos(999)), ..config.clone() };
    assert!(matches!(install(&often), TargetRulesError::IdlePoll { .. }));
    let smaller = nvme::Geometry { pus: 1, ..geometry };
    let part = settings(&smaller, STORE_AND_LOAD);
    let error = install(&part);
    assert!(
        matches!(error, TargetRulesError::Units { first: 0, last: 1, units: 4, .. }),
        "{error}"
    );
    let small =
        settings(&nvme::Geometry { chunks: geometry.chunks / 2, ..geometry }, STORE_AND_LOAD);
    let error = install(&small);
    assert!(
        matches!(error, TargetRulesError::Verify(_) | TargetRulesError::Capacity { .. }),
        "{error}"
    );
}
