//! Scans by the rules of a drive (`demo/rules/join.rules`): what they return, and when.

// guarantee: B-117

use controller::{Controller, DriveConfig, DriveRulesError, RuleTableEdit};
use mem::PAGE_BYTES;
use nvme::{RuleCommand, RuleCommandKind, RuleReply, Status};
use rules::RuleTableError;
use testkit::choices::{Choices, seed};
use time::Nanos;

use super::harness::demo;
use super::rule_commands::execute;
use crate::block_commands::harness::Bench;

const RECORD: usize = 16;
/// The buffer of a scan, after the first pages of the host's memory.
const BUFFER_BYTES: u32 = 48 * 4096;

fn order(id: u64, customer: u32, cents: u32) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..12].copy_from_slice(&customer.to_le_bytes());
    bytes[12..].copy_from_slice(&cents.to_le_bytes());
    bytes
}

/// Writes random orders of `customers` customers to the first `sectors` sectors, and returns them.
fn orders(bench: &mut Bench, sectors: u64, customers: u64) -> Vec<[u8; RECORD]> {
    let mut choices = Choices::seeded(seed());
    let mut all = Vec::new();
    for lba in 0..sectors {
        let new = |at: usize, choices: &mut Choices| {
            let (customer, cents) = (choices.below(customers) as u32, choices.below(1000) as u32);
            order(lba << 32 | at as u64, customer, cents)
        };
        let records: Vec<_> = (0..PAGE_BYTES / RECORD).map(|at| new(at, &mut choices)).collect();
        bench.host.memory.write(0, records.as_flattened());
        let status = bench.io(nvme::Sqe::write(1, lba, 1, false), PAGE_BYTES).status;
        assert_eq!(status, Status::SUCCESS);
        all.extend(records);
    }
    all
}

fn want(drive: &mut Controller, customers: impl Iterator<Item = u32>) {
    let table = drive.rule_table("wanted").expect("the table");
    let edits: Vec<_> = customers.map(|key| RuleTableEdit::Add { key: key.into() }).collect();
    drive.edit_rule_table(table, &edits).expect("space");
}

fn scan(slba: u64, nlb: u32, more_than: u64, buffer_bytes: u32) -> RuleCommand {
    let command = RuleCommand::new(RuleCommandKind::Scan, slba, nlb);
    RuleCommand { arg0: more_than, buffer_bytes, ..command }
}

/// Returns the matching records of a range of sectors.
fn matching(all: &[[u8; RECORD]], command: &RuleCommand, wanted: u32) -> Vec<u8> {
    let per_sector = PAGE_BYTES / RECORD;
    let range = &all[command.slba as usize * per_sector..][..command.nlb as usize * per_sector];
    let matches = |record: &&[u8; RECORD]| {
        let word = |at: usize| u32::from_le_bytes(*record[at..].first_chunk().expect("4 bytes"));
        word(8) < wanted && u64::from(word(12)) > command.arg0
    };
    let found: Vec<[u8; RECORD]> = range.iter().filter(matches).copied().collect();
    found.as_flattened().to_vec()
}

fn buffer(bench: &Bench, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    bench.host.memory.read(0, &mut data);
    data
}

#[test]
fn a_scan_returns_exactly_the_matching_records() {
    let mut bench = Bench::new(demo("join.rules"));
    let all = orders(&mut bench, 100, 500);
    want(&mut bench.drive, 0..50);
    for is_flushed in [false, true] {
        if is_flushed {
            bench.flush();
        }
        for (slba, nlb, more_than) in [(0, 100, 0), (3, 70, 500), (99, 1, 10), (40, 2, 999)] {
            let command = scan(slba, nlb, more_than, BUFFER_BYTES);
            let expected = matching(&all, &command, 50);
            bench.host.memory.fill(0, BUFFER_BYTES as usize, 0xee);
            let (count, bytes) = (expected.len() / RECORD, expected.len());
            let reply = RuleReply { value: count as u64, bytes: bytes as u32 };
            assert_eq!(execute(&mut bench, command), (Status::SUCCESS, reply));
            let data = buffer(&bench, BUFFER_BYTES as usize);
            assert!(data[..bytes] == expected && data[bytes..].iter().all(|byte| *byte == 0xee));
            // A buffer that is a byte too small has all records but the last.
            if bytes > 0 {
                let small = RuleCommand { buffer_bytes: bytes as u32 - 1, ..command };
                bench.host.memory.fill(0, BUFFER_BYTES as usize, 0xee);
                let (status, reply) = execute(&mut bench, small);
                let cut = bytes - RECORD;
                assert_eq!(status, Status::RULE_OUTPUT_FULL.do_not_retry());
                assert_eq!(reply, RuleReply { value: cut as u64, bytes: cut as u32 });
                let data = buffer(&bench, bytes);
                assert!(data[..cut] == expected[..cut] && data[cut..].iter().all(|b| *b == 0xee));
            }
        }
    }
    // No buffer at all.
    let (status, reply) = execute(&mut bench, scan(0, 100, 0, 0));
    assert_eq!((status, reply), (Status::RULE_OUTPUT_FULL.do_not_retry(), RuleReply::default()));
}

#[test]
fn a_selective_scan_moves_few_bytes_to_the_host() {
    let config = DriveConfig { ..demo("join.rules") };
    let mut bench = Bench::new(config);
    let sectors = 600;
    orders(&mut bench, sectors, 1000);
    want(&mut bench.drive, 0..10);
    bench.flush();
    bench.drive.reset_stats();
    // One percent of the customers.
    let (status, reply) = execute(&mut bench, scan(0, sectors as u32, 0, BUFFER_BYTES));
    let (read, moved) = (sectors * PAGE_BYTES as u64, bench.drive.stats().bytes_read);
    assert_eq!((status, moved), (Status::SUCCESS, reply.bytes.into()));
    assert!(reply.bytes > 0 && moved * 50 <= read, "{moved} of {read} bytes");
    let stats = bench.drive.stats().rules.expect("rules").sectors;
    assert_eq!((stats.fetches, stats.reads, stats.emitted_bytes), (sectors, sectors, moved));
}

#[test]
fn a_scan_reads_from_many_parallel_units() {
    let mut bench = Bench::new(demo("join.rules"));
    orders(&mut bench, 256, 1000);
    bench.flush();
    let one = bench.timed(scan(7, 1, 0, 64).to_sqe(1), 64).1;
    let (status, all) = bench.timed(scan(0, 256, 0, 64).to_sqe(1), 64);
    assert_eq!(status, Status::SUCCESS);
    // 16 units, on 4 channels whose transfers are a fifth of a read.
    assert!(one >= Nanos(60_000) && all * 8 < one * 256, "{one:?}, {all:?}");
}

#[test]
fn a_table_takes_entries_up_to_its_capacity() {
    let mut bench = Bench::new(demo("join.rules"));
    let drive = &mut bench.drive;
    want(drive, 0..65_536);
    let table = drive.rule_table("wanted").expect("the table");
    let full = drive.edit_rule_table(table, &[RuleTableEdit::Add { key: 70_000 }]);
    let error = |key, error| DriveRulesError::Table { table: "wanted".into(), key, error };
    assert_eq!(full, Err(error(70_000, RuleTableError::Full)));
    let edits = [RuleTableEdit::Remove { key: 7 }, RuleTableEdit::Add { key: 70_000 }];
    assert_eq!(drive.edit_rule_table(table, &edits), Ok(()));
    for (key, value) in [(7, 0), (8, 1), (70_000, 1), (1 << 40, 0)] {
        assert_eq!(drive.rule_table_value(table, key), Ok(value), "{key}");
    }
    let large = drive.edit_rule_table(table, &[RuleTableEdit::Add { key: 1 << 32 }]);
    assert!(large.is_err(), "{large:?}");
    let other = drive.edit_rule_table(table, &[RuleTableEdit::Set { key: 1, value: 2 }]);
    assert_eq!(other, Err(error(1, RuleTableError::OtherKind)));
    let unknown = drive.rule_table("other").map_err(|error| error.to_string());
    assert_eq!(unknown, Err("table other, key 0: the application has no such table".into()));
}

#[test]
fn a_host_reads_and_changes_tables() {
    use nvme::{AdminCommand, RULE_TABLE_ENTRIES_MAX, RuleTableAction, RuleTableEntry};

    let mut bench = Bench::new(demo("join.rules"));
    // The table of addresses is the first one of the program.
    let wanted = 1;
    let edit = |bench: &mut Bench, table, action, keys: &[u64]| {
        let entry = |key: &u64| RuleTableEntry { key: (*key).into(), value: 7.into() }.to_bytes();
        let bytes: Vec<u8> = keys.iter().flat_map(entry).collect();
        bench.host.memory.write(0, &bytes);
        let entries = keys.len() as u32;
        let mut sqe = AdminCommand::RuleTableEdit { table, action, entries }.to_sqe();
        sqe.set_sgl(bench.host.block(0, bytes.len() as u32));
        bench.host.admin(&mut bench.drive, sqe).status
    };
    let read = |bench: &mut Bench, table, first, entries: u32| {
        let mut sqe = AdminCommand::RuleTableRead { table, first, entries }.to_sqe();
        sqe.set_sgl(bench.host.block(0, entries * 8));
        let status = bench.host.admin(&mut bench.drive, sqe).status;
        let mut bytes = vec![0; entries as usize * 8];
        bench.host.memory.read(0, &mut bytes);
        let (words, _) = bytes.as_chunks();
        (status, words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<u64>>())
    };
    let keys: Vec<u64> = (0..10_000).map(|key| key * 3).collect();
    assert_eq!(edit(&mut bench, wanted, RuleTableAction::Add, &keys), Status::SUCCESS);
    assert_eq!(edit(&mut bench, wanted, RuleTableAction::Remove, &[3, 4]), Status::SUCCESS);
    assert_eq!(read(&mut bench, wanted, 0, 7), (Status::SUCCESS, vec![1, 0, 0, 0, 0, 0, 1]));
    let invalid = Status::INVALID_FIELD.do_not_retry();
    let index = Status::RULE_INDEX.do_not_retry();
    for (table, action, key, status) in [
        (wanted, RuleTableAction::Add, 1 << 32, index),
        (wanted, RuleTableAction::Set, 1, invalid),
        (0, RuleTableAction::Set, 1, invalid),
        (9, RuleTableAction::Remove, 1, invalid),
    ] {
        assert_eq!(edit(&mut bench, table, action, &[key]), status, "{table}, {action:?}, {key}");
    }
    assert_eq!(read(&mut bench, wanted, u64::MAX, 2).0, index);
    assert_eq!(read(&mut bench, 9, 0, 1).0, invalid);
    let rest: Vec<u64> = (100_000..100_000 + 10_000).collect();
    let mut status = Status::SUCCESS;
    for round in 0..6 {
        assert_eq!(status, Status::SUCCESS, "{round}");
        let keys: Vec<u64> = rest.iter().map(|key| key + round * 10_000).collect();
        status = edit(&mut bench, wanted, RuleTableAction::Add, &keys);
    }
    assert_eq!(status, Status::RULE_TABLE_FULL.do_not_retry());
    // Those before it are stored.
    assert_eq!(read(&mut bench, wanted, 150_000, 1).1, [1]);
    let mut sqe = AdminCommand::RuleTableRead { table: wanted, first: 0, entries: 1 }.to_sqe();
    sqe.cdw10 = RULE_TABLE_ENTRIES_MAX.into();
    assert_eq!(bench.host.admin(&mut bench.drive, sqe).status, Status::INVALID_FIELD);
    // A host of a drive without rules has no such commands.
    let mut plain = Bench::new(crate::block_commands::harness::config());
    let key = [1];
    assert_eq!(edit(&mut plain, wanted, RuleTableAction::Add, &key), Status::INVALID_OPCODE);
}
