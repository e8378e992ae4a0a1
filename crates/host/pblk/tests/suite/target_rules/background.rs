//! Background rules of an idle target, periodic rules, and streams.

use block::BlockDevice;
use ftl::FtlConfig;
use nvme::Status;
use time::Nanos;

use super::programs::{HOT, LEVEL, RECLAIM, STORE_AND_LOAD};
use super::requests::RuledTarget;

fn target(rules: &str, config: FtlConfig, idle_poll: Option<u64>) -> RuledTarget {
    let config = FtlConfig { over_provisioning: 0.4, ..config };
    RuledTarget::new(rules, config, idle_poll.map(Nanos))
}

/// Writes all sectors, and a tenth of them twenty times more. Returns the values.
fn skewed(target: &mut RuledTarget) -> Vec<u8> {
    let sectors = target.pblk.limits().sectors;
    let mut values = vec![0u8; sectors as usize];
    let often = (0..2 * sectors).map(|at| at * 7 % (sectors / 10));
    for (at, lba) in (0..sectors).chain(often).enumerate() {
        values[lba as usize] = at as u8;
        assert_eq!(target.write(lba, at as u8), Status::SUCCESS);
    }
    values
}

fn check_contents(target: &mut RuledTarget, values: &[u8]) {
    for (lba, value) in (0..).zip(values) {
        assert_eq!(target.read(lba), *value, "sector {lba}");
    }
    target.pblk.ftl().check_invariants().unwrap();
}

#[test]
fn an_idle_target_collects_until_its_rules_choose_nothing() {
    // Sectors that an idle target moves do not fill the last write units of `gc`.
    let filter = "where line.valid < line.sectors / 2\n";
    let reclaim = RECLAIM.replace("where line.valid < line.sectors\n", filter);
    assert_ne!(reclaim, RECLAIM);
    let rules = format!("{STORE_AND_LOAD}{reclaim}");
    let mut target = target(&rules, FtlConfig::default(), Some(1_000_000));
    let values = skewed(&mut target);
    let free = target.pblk.ftl().free_lines();
    target.idle(Nanos(10_000_000_000));
    let stats = target.stats();
    assert!(stats.relocated > 0 && stats.idle_polls > stats.relocated, "{stats:?}");
    assert!(target.pblk.ftl().free_lines() > free, "collection without a request");
    // It has stopped, and tries again after a request.
    target.idle(Nanos(10_000_000_000));
    assert_eq!(target.stats().idle_polls, stats.idle_polls);
    check_contents(&mut target, &values);
    target.idle(Nanos(10_000_000_000));
    assert!(target.stats().idle_polls > stats.idle_polls);
}

#[test]
fn a_periodic_rule_runs_once_a_period() {
    let rules = format!(
        "table heat: u64[1] volatile\n\
         rule count priority 2 when channel.app == db and header.write\n  \
         set heat[0] = heat[0] + 1\n  do continue\n\
         rule cool when every 10ms\n  set each h of heat: h = h / 2\n\
         rule full priority 1 when channel.app == db and header.write and heat[0] > 3\n  \
         do complete busy\n{STORE_AND_LOAD}"
    );
    let mut target = target(&rules, FtlConfig::default(), None);
    for _ in 0..3 {
        assert_eq!(target.write(0, 1), Status::SUCCESS);
    }
    assert_eq!(target.write(0, 2), Status::RULE_BUSY);
    target.idle(Nanos(10_000_000));
    assert_eq!(target.stats().periodic, 1);
    assert_eq!(target.write(0, 3), Status::SUCCESS, "two of four are left");
    target.idle(Nanos(95_000_000));
    assert_eq!((target.stats().periodic, target.read(0)), (10, 3));
}

#[test]
fn rules_choose_streams_of_writes_and_of_moved_data() {
    let rules = format!("{HOT}{STORE_AND_LOAD}{LEVEL}{RECLAIM}");
    let config = FtlConfig { hot_stream: true, ..FtlConfig::default() };
    let mut target = target(&rules, config, Some(1_000_000));
    for _ in 0..4 {
        let values = skewed(&mut target);
        target.idle(Nanos(1_000_000_000));
        check_contents(&mut target, &values);
    }
    let stats = target.stats();
    let hot = stats.rules.iter().find(|rule| rule.name == "hot").expect("a rule");
    assert_eq!(stats.hot_sectors, hot.counters.matches);
    assert!(stats.hot_sectors > 0 && stats.victims + stats.relocated > 0, "{stats:?}");
    let level = stats.rules.iter().find(|rule| rule.name == "level").expect("a rule");
    assert!(level.counters.matches > 0, "{stats:?}");
    assert!(target.pblk.ftl().stats().wear_leveled_lines > 0, "data has moved to `cold`");
}
