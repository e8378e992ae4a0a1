//! Commands of a drive with rules.

use std::collections::BTreeSet;

use controller::{Controller, DriveConfig, DriveRuleStats, DriveRulesConfig, DriveRulesError};
use ftl::L2pEntry;
use mem::PAGE_BYTES;
use nvme::{ChunkId, CopyRange, DsmRange, Sqe, Status};
use time::Nanos;

use super::harness::{STORE_AND_LOAD, ruled, ruled_with_hot_stream, with_op};
use crate::block_commands::harness::{Bench, RANGES_PAGE};

fn stats(bench: &Bench) -> DriveRuleStats {
    bench.drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
    bench.drive.stats().rules.expect("a drive with rules")
}

/// Returns the matches of a rule.
fn matches(bench: &Bench, rule: &str) -> u64 {
    let stats = stats(bench);
    stats.rules.iter().find(|stats| stats.name == rule).map_or(0, |stats| stats.matches)
}

#[test]
fn commands_end_with_the_status_of_their_rule() {
    let ends = [
        (0, "complete not_found", Status::RULE_NOT_FOUND.do_not_retry()),
        (1, "complete invalid", Status::RULE_INVALID.do_not_retry()),
        (2, "complete denied", Status::RULE_DENIED.do_not_retry()),
        (3, "complete busy", Status::RULE_BUSY),
        (4, "complete corrupt", Status::RULE_CORRUPT.do_not_retry()),
        (5, "n[9] = 1; complete ok", Status::RULE_INDEX.do_not_retry()),
        (
            6,
            "add 1 to s; add 2 to s; add 3 to s; complete ok",
            Status::RULE_TABLE_FULL.do_not_retry(),
        ),
        (7, "header.lba = 7; again", Status::RULE_HOP_LIMIT.do_not_retry()),
        (
            8,
            "header.addr = next_addr(db.host); insert lun",
            Status::RULE_BAD_ADDRESS.do_not_retry(),
        ),
    ];
    let mut rules = "table n: u8[4] volatile\ntable s: set<u8>[2] volatile\n".to_owned();
    for (lba, action, _) in ends {
        rules += &format!(
            "rule end{lba} priority {} hops 2\n  when channel.app == db and header.write and \
             header.lba == {lba}\n  do {action}\n",
            lba + 10
        );
    }
    rules +=
        "rule value priority 5 when channel.app == db and header.flush do complete ok value 77\n";
    rules += "rule store when channel.app == db and header.write\n  \
        set map[header.lba] = next_addr(db.host)\n  do header.addr = map[header.lba]; insert lun\n";
    let mut bench = Bench::new(ruled(&rules));
    for (lba, action, status) in ends {
        assert_eq!(bench.io(Sqe::write(1, lba, 1, false), 4096).status, status, "{action}");
        assert_eq!(matches(&bench, &format!("end{lba}")), if lba == 7 { 3 } else { 1 }, "{action}");
    }
    assert_eq!(bench.io(Sqe::write(1, 20, 1, false), 4096).status, Status::SUCCESS);
    let flushed = bench.io(Sqe::flush(1), 0);
    assert_eq!((flushed.status, flushed.result), (Status::SUCCESS, 77));
    // No rule reads, and the drive executes trims without one.
    let missed = bench.io(Sqe::read(1, 20, 1), 4096).status;
    assert_eq!(missed, Status::RULE_MISS.do_not_retry());
    assert_eq!(bench.newest_error(), (missed, 20));
    assert_eq!(bench.io(Sqe::write_zeroes(1, 20, 1, true), 0).status, Status::SUCCESS);
    let stats = stats(&bench);
    assert_eq!((stats.inputs, stats.misses), (13, 1));
    assert_eq!(stats.rules.iter().map(|rule| rule.faults).sum::<u64>(), 3);
    bench.drive.reset_stats();
    let stats = bench.drive.stats().rules.expect("a drive with rules");
    assert!(stats.inputs == 0 && stats.rules.iter().all(|rule| rule.ops == 0), "{stats:?}");
}

#[test]
fn the_end_of_the_drive_is_checked_before_the_rules() {
    let mut bench = Bench::new(ruled(STORE_AND_LOAD));
    let end = bench.drive.sectors();
    for (slba, nlb) in [(end, 1), (end - 1, 2), (u64::MAX, 1)] {
        for sqe in [Sqe::write(1, slba, nlb, false), Sqe::read(1, slba, nlb)] {
            let status = bench.io(sqe, nlb as usize * 4096).status;
            assert_eq!(status, Status::LBA_OUT_OF_RANGE.do_not_retry());
        }
    }
    assert_eq!(stats(&bench).inputs, 0);
    bench.write(end - 1, 1, 4096, 5);
    assert_eq!(bench.read(end - 1, 1, 4096), Ok(vec![5]));
}

#[test]
fn data_is_where_a_rule_maps_it() {
    let shifted = "rule store when channel.app == db and header.write\n  \
        set map[header.lba + 10] = next_addr(db.host)\n  do header.addr = map[header.lba + 10]; insert lun\n\
        rule straight priority 1 when channel.app == db and header.read and header.lba > 20\n  \
        do header.addr = map[header.lba]; insert lun\n\
        rule load when channel.app == db and header.read\n  \
        do header.addr = map[header.lba + 10]; insert lun\n";
    let mut bench = Bench::new(ruled(shifted));
    bench.write(12, 4, 4096, 1);
    for is_flushed in [false, true] {
        if is_flushed {
            bench.flush();
        }
        assert_eq!(bench.read(12, 4, 4096), Ok(vec![1, 2, 3, 4]), "ten blocks farther");
        assert_eq!(bench.read(22, 4, 4096), Ok(vec![1, 2, 3, 4]), "as it is");
        assert_eq!(bench.read(2, 4, 4096), Ok(vec![0; 4]));
    }
    // The host sees its own block in errors, and the FTL refuses blocks past the end.
    let end = bench.drive.sectors();
    let status = bench.io(Sqe::write(1, end - 1, 1, false), 4096).status;
    assert!(status.is(Status::RULE_INDEX) || status.is(Status::LBA_OUT_OF_RANGE), "{status}");
    assert_eq!(bench.newest_error(), (status, end - 1));
}

#[test]
fn ranges_of_trims_and_copies_are_inputs() {
    let keep = "rule keep when channel.app == db and header.trim and header.lba == 8 do complete ok\n\
        rule hide priority 1 when channel.app == db and header.trim and header.lba == 9 do complete denied\n\
        rule secret priority 2 when channel.app == db and header.read and header.lba == 3 do complete denied\n";
    let mut bench = Bench::new(ruled(&format!("{keep}{STORE_AND_LOAD}")));
    bench.write(0, 10, 4096, 1);
    let ranges_at = RANGES_PAGE as usize * PAGE_BYTES;
    let trim = |bench: &mut Bench, ranges: &[u64]| {
        for (at, slba) in ranges.iter().enumerate() {
            bench.host.memory.write(ranges_at + at * 16, &DsmRange::new(*slba, 1).to_bytes());
        }
        let mut sqe = Sqe::dataset_management(1, ranges.len() as u16, true);
        sqe.set_sgl(bench.host.block(RANGES_PAGE, ranges.len() as u32 * 16));
        bench.host.io(&mut bench.drive, sqe).status
    };
    assert_eq!(trim(&mut bench, &[7, 8, 5]), Status::SUCCESS);
    assert_eq!(trim(&mut bench, &[0, 9]), Status::RULE_DENIED.do_not_retry());
    assert_eq!(bench.read(4, 6, 4096), Ok(vec![5, 0, 7, 0, 9, 10]));
    assert_eq!(bench.read(0, 1, 4096), Ok(vec![1]), "nothing of a failed trim is trimmed");
    let copy = |bench: &mut Bench, sources: &[(u64, u32)]| {
        for (at, (slba, nlb)) in sources.iter().enumerate() {
            let range = CopyRange::new(*slba, *nlb);
            bench.host.memory.write(ranges_at + at * 32, &range.to_bytes());
        }
        let mut sqe = Sqe::copy(1, 30, sources.len() as u16);
        sqe.set_sgl(bench.host.block(RANGES_PAGE, sources.len() as u32 * 32));
        bench.host.io(&mut bench.drive, sqe).status
    };
    assert_eq!(copy(&mut bench, &[(0, 2), (3, 1)]), Status::RULE_DENIED.do_not_retry());
    assert_eq!(copy(&mut bench, &[(0, 2), (6, 1)]), Status::SUCCESS);
    assert_eq!(bench.read(30, 3, 4096), Ok(vec![1, 2, 7]));
    let before = stats(&bench).inputs;
    bench.fill(1, 4096, 1);
    assert_eq!(bench.io(Sqe::compare(1, 0, 1), 4096).status, Status::SUCCESS);
    assert_eq!(bench.io(Sqe::verify(1, 0, 1), 0).status, Status::SUCCESS);
    assert_eq!(bench.io(Sqe::compare(1, 3, 1), 4096).status, Status::RULE_DENIED.do_not_retry());
    assert_eq!(stats(&bench).inputs, before + 3);
}

#[test]
fn operations_take_time_on_the_engines() {
    let with = |op: u64, engines: u16| {
        let config = ruled(STORE_AND_LOAD);
        let rules = config.rules.clone().expect("rules");
        let rules = DriveRulesConfig { op: Nanos(op), engines, ..rules };
        let mut bench = Bench::new(DriveConfig { rules: Some(rules), ..config });
        bench.write(0, 1, 4096, 1);
        bench.flush();
        bench
    };
    let read = |bench: &mut Bench| bench.timed(Sqe::read(1, 0, 1), 4096).1;
    let base = read(&mut with(0, 1));
    for op in [1, 700, 1_000_000] {
        let mut bench = with(op, 1);
        let ops = stats(&bench).ops;
        assert_eq!(read(&mut bench), base + Nanos(3 * op), "a read has three operations");
        assert_eq!(stats(&bench).ops, ops + 3);
    }
    // Two writes at a time: the second one waits, unless there is another engine. They are in the
    // write buffer at once.
    for (engines, ops) in [(1, 10), (2, 5)] {
        let mut bench = with(1000, engines);
        let from = bench.host.now;
        let busy = stats(&bench).engine_busy;
        for lba in [1, 2] {
            let mut sqe = Sqe::write(1, lba, 1, false);
            sqe.set_sgl(bench.host.block(0, 4096));
            bench.host.submit(sqe);
        }
        let mut ends = Vec::new();
        while ends.len() < 2 {
            use time::Component;
            while bench.drive.poll(bench.host.now) {}
            match bench.host.reap() {
                Some(cqe) => ends.push((cqe.status, bench.host.now.since(from))),
                None => bench.host.now = bench.drive.deadline(),
            }
        }
        assert_eq!(ends, [(Status::SUCCESS, Nanos(5000)), (Status::SUCCESS, Nanos(ops * 1000))]);
        assert_eq!(stats(&bench).engine_busy, busy + Nanos(10_000));
    }
}

#[test]
fn a_power_cut_clears_volatile_tables() {
    let once = "table seen: set<u32>[16] volatile\n\
        rule deny priority 1 when channel.app == db and header.write and header.lba in seen do complete denied\n\
        rule store when channel.app == db and header.write\n  \
        set add header.lba to seen; map[header.lba] = next_addr(db.host)\n  \
        do header.addr = map[header.lba]; insert lun\n\
        rule load when channel.app == db and header.read\n  \
        do header.addr = map[header.lba]; insert lun\n";
    let mut bench = Bench::new(ruled(once));
    bench.write(3, 1, 4096, 9);
    let denied = Status::RULE_DENIED.do_not_retry();
    assert_eq!(bench.io(Sqe::write(1, 3, 1, false), 4096).status, denied);
    bench.flush();
    let mut bench = bench.restart();
    assert_eq!(bench.read(3, 1, 4096), Ok(vec![9]));
    bench.write(3, 1, 4096, 10);
    assert_eq!(bench.io(Sqe::write(1, 3, 1, false), 4096).status, denied);
    // A cut of a running drive, as a fault.
    let fault = controller::Fault::PowerCut { after_ops: 0 };
    bench.drive.inject_fault(bench.host.now, fault).expect("a power cut");
    while time::Component::poll(&mut bench.drive, bench.host.now) {}
    bench.write(3, 1, 4096, 11);
    assert_eq!(bench.io(Sqe::write(1, 3, 1, false), 4096).status, denied);
}

/// Blocks below 64 are written to the stream `hot`, by each command that writes.
#[test]
fn writes_go_to_the_stream_that_a_rule_chooses() {
    let hot = "rule hot priority 2 when channel.app == db and header.write and header.lba < 64\n  \
        set map[header.lba] = next_addr(db.hot)\n  do header.addr = map[header.lba]; insert lun\n";
    for op in [0, 50] {
        let config = ruled_with_hot_stream(&format!("{hot}{STORE_AND_LOAD}"));
        let program = config.rules.as_ref().expect("rules").program.clone();
        let mut bench = Bench::new(with_op(config, Nanos(op)));
        let zeroed = bench.io(Sqe::write_zeroes(1, 32, 16, false), 0).status;
        assert_eq!(zeroed, Status::SUCCESS);
        for lba in (0..32).chain(100..164) {
            assert_eq!(bench.io(Sqe::write(1, lba, 1, false), 4096).status, Status::SUCCESS);
        }
        let ranges_at = RANGES_PAGE as usize * PAGE_BYTES;
        bench.host.memory.write(ranges_at, &CopyRange::new(100, 8).to_bytes());
        let mut copy = Sqe::copy(1, 48, 1);
        copy.set_sgl(bench.host.block(RANGES_PAGE, 32));
        assert_eq!(bench.host.io(&mut bench.drive, copy).status, Status::SUCCESS);
        assert_eq!(bench.io(Sqe::flush(1), 0).status, Status::SUCCESS);
        assert_eq!(stats(&bench).hot_sectors, 16 + 32 + 8);
        let ftl = bench.drive.ftl().expect("an FTL");
        let chunks = |lbas: std::ops::Range<u64>| -> BTreeSet<ChunkId> {
            let on_flash = lbas.filter_map(|lba| match ftl.location(lba) {
                Some(L2pEntry::Flash(phys)) => Some(ftl.geometry().chunk_of(phys)),
                _ => None,
            });
            on_flash.collect()
        };
        let [hot, host] = [chunks(0..56), chunks(100..164)];
        assert!(!hot.is_empty() && !host.is_empty(), "{hot:?} {host:?}");
        assert!(hot.is_disjoint(&host), "{hot:?} {host:?}");
        // A drive without the stream does not take the program.
        let install = |config: DriveConfig| {
            let mut drive = Controller::new(config).expect("a drive");
            drive.install_rules(Nanos::ZERO, &program)
        };
        let refused = install(ruled(STORE_AND_LOAD));
        assert!(matches!(refused, Err(DriveRulesError::NoHotStream(_))), "{refused:?}");
        assert_eq!(install(ruled_with_hot_stream(STORE_AND_LOAD)), Ok(0));
    }
}
