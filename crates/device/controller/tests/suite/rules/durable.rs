//! Durable tables: their limit, programs that are installed, Format and Sanitize, and inputs that fetch.

// guarantee: D-65

use controller::{
    Controller, DriveConfig, DriveError, DriveRulesError, Fault, RuleTableEdit, SanitizeMethod,
};
use media::{DataStore, MediaConfig};
use nvme::{RuleCommand, RuleCommandKind, Sqe, Status};
use rules::TableId;
use time::{Component, Nanos};

use super::harness::{APP, STORE_AND_LOAD, compiled, program};
use super::misses::poll;
use crate::block_commands::harness::Bench;

/// A counter of the writes of each sector, and one that a power cut sets to 0.
const COUNT: &str = "table counts: u32[100] durable\ntable since: u32[1] volatile\n\
    rule count priority 5 when channel.app == db and header.write\n  \
    set counts[header.lba] = counts[header.lba] + 1; since[0] = since[0] + 1\n  do continue\n";
const COUNTS: TableId = TableId::new(1);
const SINCE: TableId = TableId::new(2);
/// Bytes of the counters and of the identity of their program.
const COUNT_BYTES: u32 = 424;

fn source(rules: &str) -> String {
    format!("{APP}{rules}{STORE_AND_LOAD}")
}

fn config(rules: &str, owner_bytes: u32) -> DriveConfig {
    let mut config = program(&source(rules), 1 << 20);
    config.ftl.owner_bytes = owner_bytes;
    config
}

/// A drive that has counted a write of sector 7 in its journal, and one of sector 8 in memory.
fn counted() -> Bench {
    let mut bench = Bench::new(config(COUNT, COUNT_BYTES));
    bench.write(7, 1, 4096, 1);
    bench.flush();
    bench.write(8, 1, 4096, 1);
    assert_eq!((counts(&bench), since(&bench)), ([1, 1], 2));
    bench
}

fn value(drive: &Controller, table: TableId, key: u64) -> u64 {
    drive.rule_table_value(table, key).expect("an element")
}

/// Returns the counters of sectors 7 and 8.
fn counts(bench: &Bench) -> [u64; 2] {
    [7, 8].map(|lba| value(&bench.drive, COUNTS, lba))
}

fn since(bench: &Bench) -> u64 {
    value(&bench.drive, SINCE, 0)
}

/// Cuts the power of a drive whose host stays.
fn cut(bench: &mut Bench) {
    bench.drive.inject_fault(bench.host.now, Fault::PowerCut { after_ops: 0 }).expect("a cut");
    poll(bench);
    while bench.host.reap().is_some() {}
}

#[test]
fn what_was_flushed_is_there_after_a_cut() {
    let mut bench = counted();
    cut(&mut bench);
    assert_eq!((counts(&bench), since(&bench)), ([1, 0], 0));
    bench.write(8, 1, 4096, 1);
    bench.flush();
    let edits = [(7, 50), (8, 60)].map(|(key, value)| RuleTableEdit::Set { key, value });
    bench.drive.edit_rule_table(COUNTS, &edits).expect("entries");
    assert_eq!((counts(&bench), since(&bench)), ([50, 60], 1));
    let mut lost = bench.restart();
    assert_eq!((counts(&lost), since(&lost)), ([1, 1], 0));
    lost.drive.edit_rule_table(COUNTS, &edits).expect("entries");
    lost.flush();
    assert_eq!(counts(&lost.restart()), [50, 60]);
}

#[test]
fn more_durable_memory_than_the_journal_keeps_is_refused() {
    let bytes = u64::from(COUNT_BYTES);
    let refused = |available: u32| DriveRulesError::DurableTables {
        table: "counts".into(),
        bytes,
        available: available.into(),
    };
    for available in [0, COUNT_BYTES - 1] {
        match Controller::new(config(COUNT, available)).map(|_| ()) {
            Err(DriveError::Rules(error)) => assert_eq!(error, refused(available)),
            other => panic!("{other:?}"),
        }
    }
    let mut bench = counted();
    let larger = COUNT.replace("u32[100]", "u32[101]");
    let larger = compiled(&source(&larger), &config("", 0));
    let error = bench.drive.install_rules(Nanos::ZERO, &larger).expect_err("4 bytes more");
    assert!(error.to_string().contains("need 428 bytes") && error.to_string().contains("424"));
    assert_eq!(counts(&bench), [1, 1], "nothing has changed");
    assert!(Controller::new(config("", 0)).is_ok(), "volatile tables and the map need nothing");
}

/// After a cut the program that was installed last has its own tables, or zeros.
#[test]
fn tables_are_those_of_their_program() {
    let by_two = COUNT.replace("+ 1; since", "+ 2; since");
    let other = compiled(&source(&by_two), &config("", 0));
    let same = compiled(&source(COUNT), &config("", 0));
    for is_flushed in [false, true] {
        let mut bench = counted();
        bench.drive.install_rules(bench.host.now, &other).expect("a program");
        assert_eq!(counts(&bench), [0, 0]);
        bench.write(7, 1, 4096, 1);
        if is_flushed {
            bench.flush();
        }
        cut(&mut bench);
        assert_eq!(counts(&bench), [if is_flushed { 2 } else { 0 }, 0]);
        bench.write(8, 1, 4096, 1);
        bench.flush();
        let mut bench = bench.restart();
        assert_eq!(counts(&bench), [if is_flushed { 2 } else { 0 }, 2]);
        // Installing a program again is an installation, too.
        bench.drive.install_rules(bench.host.now, &other).expect("a program");
        bench.flush();
        cut(&mut bench);
        assert_eq!(counts(&bench), [0, 0]);
        // The first program does not find its tables of before, whatever was flushed.
        bench.drive.install_rules(bench.host.now, &same).expect("a program");
        assert_eq!(counts(&bench), [0, 0]);
        cut(&mut bench);
        assert_eq!(counts(&bench), [0, 0]);
    }
    // Nor after two installations that no flush follows, with and without a cut between them.
    for is_cut in [false, true] {
        let mut bench = counted();
        bench.drive.install_rules(bench.host.now, &other).expect("a program");
        if is_cut {
            cut(&mut bench);
        }
        bench.drive.install_rules(bench.host.now, &same).expect("a program");
        cut(&mut bench);
        assert_eq!(counts(&bench), [0, 0]);
        assert_eq!(counts(&bench.restart()), [0, 0]);
    }
}

#[test]
fn a_drive_that_is_opened_with_another_program_discards_the_tables() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = |rules: &str| {
        let mut config = config(rules, COUNT_BYTES);
        let MediaConfig::Nand(nand) = &mut config.media else { panic!("NAND") };
        nand.data = DataStore::File(folder.path().join("drive"));
        Bench::new(config)
    };
    let close = |bench: Bench| bench.drive.shut_down().expect("an image");
    let by_two = COUNT.replace("+ 1; since", "+ 2; since");
    let mut bench = open(COUNT);
    bench.write(7, 1, 4096, 1);
    close(bench);
    let bench = open(COUNT);
    assert_eq!((counts(&bench), since(&bench)), ([1, 0], 0), "kept by an orderly shutdown");
    close(bench);
    let mut bench = open(&by_two);
    assert_eq!(counts(&bench), [0, 0]);
    bench.write(8, 1, 4096, 1);
    bench.flush();
    drop(bench);
    let bench = open(&by_two);
    assert_eq!(counts(&bench), [0, 2], "the process was killed");
    close(bench);
    assert_eq!(counts(&open(COUNT)), [0, 0]);
}

#[test]
fn a_format_and_sanitize_clear_the_tables() {
    let sanitize = Fault::Sanitize { action: SanitizeMethod::BlockErase };
    for fault in [Fault::Format { erase: false }, Fault::Format { erase: true }, sanitize] {
        let mut bench = counted();
        bench.drive.inject_fault(bench.host.now, fault).expect("a fault");
        bench.host.drain(&mut bench.drive);
        assert!(!bench.drive.faults()[0].is_open);
        assert_eq!((counts(&bench), since(&bench)), ([0, 0], 0), "{fault:?}");
        cut(&mut bench);
        assert_eq!(counts(&bench), [0, 0], "{fault:?}");
        bench.write(8, 1, 4096, 1);
        bench.flush();
        cut(&mut bench);
        assert_eq!(counts(&bench), [0, 1], "{fault:?}");
    }
    // A cut during Sanitize: the operation goes on.
    let mut bench = counted();
    bench.drive.inject_fault(bench.host.now, sanitize).expect("a fault");
    poll(&mut bench);
    assert!(bench.drive.faults()[0].is_open);
    cut(&mut bench);
    assert_eq!(counts(&bench), [0, 0]);
    bench.host.drain(&mut bench.drive);
    assert_eq!(counts(&bench), [0, 0]);
    bench.write(8, 1, 4096, 1);
    assert_eq!(counts(&bench), [0, 1]);
}

/// The changes between two fetches are one record: other inputs see them there.
#[test]
fn changes_before_a_fetch_do_not_wait_for_those_behind_it() {
    let rules = "table n: u64[2] durable\nrecord Word = { value: u64 }\n\
        rule get when channel.app == db and header.op == get\n  \
        do n[0] = n[0] + 1; fetch w: Word at header.arg0; n[1] = n[1] + w.value; complete ok\n";
    for (is_flushed, expected) in [(false, [0, 0]), (true, [1, 0])] {
        let mut bench = Bench::new(config(rules, 40));
        bench.host.memory.write(0, &9_u64.to_le_bytes());
        assert_eq!(bench.io(Sqe::write(1, 3, 1, false), 4096).status, Status::SUCCESS);
        bench.flush();
        let get = RuleCommand { arg0: 3, ..RuleCommand::new(RuleCommandKind::Get, 0, 1) };
        let values = |bench: &Bench| [0, 1].map(|at| value(&bench.drive, TableId::new(1), at));
        let first = bench.host.submit(get.to_sqe(1));
        poll(&mut bench);
        assert_eq!(values(&bench), [1, 0], "the rules wait for the sector");
        if is_flushed {
            let flush = bench.host.submit(Sqe::flush(1));
            let mut ends = Vec::new();
            while ends.is_empty() {
                poll(&mut bench);
                ends.extend(std::iter::from_fn(|| bench.host.reap()));
                bench.host.now =
                    bench.host.now.max(bench.drive.deadline().min(Nanos::from_secs(9)));
            }
            // The read of a sector is faster than a program of the journal.
            assert!(ends.iter().any(|cqe| cqe.cid == first || cqe.cid == flush));
            bench.host.drain(&mut bench.drive);
            while bench.host.reap().is_some() {}
            assert_eq!(values(&bench), [1, 9]);
            bench.host.submit(get.to_sqe(1));
            poll(&mut bench);
            assert_eq!(values(&bench), [2, 9]);
        }
        cut(&mut bench);
        assert_eq!(values(&bench)[0], expected[0]);
        assert!([expected[1], 9].contains(&values(&bench)[1]));
        // The command runs as a whole, and a flush makes all of it durable.
        let before = values(&bench);
        assert_eq!(bench.io(get.to_sqe(1), 0).status, Status::SUCCESS);
        bench.flush();
        let bench = bench.restart();
        assert_eq!(values(&bench), [before[0] + 1, before[1] + 9]);
    }
}
