//! Program 3: the probe side of a hash join.

use std::collections::BTreeSet;

use rules::{InputOp, RuleInput, RuleStatus, RuleTableError, TableId};
use testkit::choices::{Choices, seed};

use super::compiled::demo;
use super::drive::{APP, Ended, ModelDrive, SECTOR};

const RECORD: usize = 16;
const WANTED: TableId = TableId::new(1);

fn order(id: u64, customer: u32, cents: u32) -> [u8; RECORD] {
    let mut bytes = [0; RECORD];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..12].copy_from_slice(&customer.to_le_bytes());
    bytes[12..].copy_from_slice(&cents.to_le_bytes());
    bytes
}

fn scan(lba: u64, sectors: u64, more_than: u64, buffer_bytes: u64) -> RuleInput {
    let input = RuleInput::new(InputOp::Scan, lba, sectors);
    RuleInput { arg0: more_than, buffer_bytes, ..input }
}

/// Writes sectors of random orders; returns all records.
fn orders(drive: &mut ModelDrive, choices: &mut Choices) -> Vec<[u8; RECORD]> {
    let mut all = Vec::new();
    for lba in 0..40u64 {
        let new = |at: usize, choices: &mut Choices| {
            let (customer, cents) = (choices.below(2000) as u32, choices.below(10_000) as u32);
            order(lba << 32 | at as u64, customer, cents)
        };
        let records: Vec<_> = (0..SECTOR / RECORD).map(|at| new(at, choices)).collect();
        assert!(matches!(drive.write(lba, records.as_flattened()), Ended::Written(_)));
        all.extend(records);
    }
    all
}

// guarantee: B-123
#[test]
fn a_scan_returns_exactly_the_matching_records() {
    let mut choices = Choices::seeded(seed());
    let mut drive = ModelDrive::new(&demo("join.rules"), 64);
    let all = orders(&mut drive, &mut choices);
    let wanted: BTreeSet<u32> = (0..100).map(|_| choices.below(2000) as u32).collect();
    for customer in &wanted {
        drive.engine.insert(APP, WANTED, (*customer).into()).expect("space");
    }
    for _ in 0..20 {
        let (lba, limit) = (choices.below(40), choices.below(10_000));
        let sectors = 1 + choices.below(40 - lba);
        let first = lba as usize * SECTOR / RECORD;
        let range = &all[first..first + sectors as usize * SECTOR / RECORD];
        let matches = |record: &&[u8; RECORD]| {
            let word =
                |at: usize| u32::from_le_bytes(*record[at..].first_chunk().expect("4 bytes"));
            wanted.contains(&word(8)) && u64::from(word(12)) > limit
        };
        let expected: Vec<_> = range.iter().filter(matches).copied().collect();
        let bytes = expected.as_flattened().to_vec();
        let exact = scan(lba, sectors, limit, bytes.len() as u64);
        let count = expected.len() as u64;
        let ended = drive.command(&exact, &[]);
        assert_eq!(ended, Ended::Completed(RuleStatus::Ok, count, bytes.clone()));
        // A buffer that is one byte too small has all records but the last.
        if let Some(shorter) = bytes.len().checked_sub(RECORD) {
            let short = scan(lba, sectors, limit, bytes.len() as u64 - 1);
            let cut = bytes[..shorter].to_vec();
            let ended = drive.command(&short, &[]);
            assert_eq!(ended, Ended::Completed(RuleStatus::OutputFull, shorter as u64, cut));
        }
    }
    drive.engine.clear_volatile();
    let ended = drive.command(&scan(0, 40, 0, 1 << 20), &[]);
    assert_eq!(ended, Ended::Completed(RuleStatus::Ok, 0, Vec::new()), "an empty set");
}

#[test]
fn a_full_set_refuses_keys() {
    let mut drive = ModelDrive::new(&demo("join.rules"), 64);
    for key in 0..65_536 {
        assert_eq!(drive.engine.insert(APP, WANTED, key * 7), Ok(None), "{key}");
    }
    assert_eq!(drive.engine.insert(APP, WANTED, 1), Err(RuleTableError::Full));
    assert_eq!(drive.engine.remove(APP, WANTED, 7), Ok(None));
    assert_eq!(drive.engine.insert(APP, WANTED, 1), Ok(None));
    assert_eq!(drive.engine.insert(APP, WANTED, 1 << 32), Err(RuleTableError::OutOfRange));
    let other = rules::AppId::new(1);
    assert_eq!(drive.engine.insert(other, WANTED, 1), Err(RuleTableError::Unknown));
    assert_eq!(drive.engine.load(other, WANTED, 1), Err(RuleTableError::Unknown));
}

#[test]
fn a_scan_past_the_end_is_refused() {
    let mut drive = ModelDrive::new(&demo("join.rules"), 64);
    let last = drive.sectors() - 1;
    assert_eq!(drive.command(&scan(last, 2, 0, 1 << 20), &[]), Ended::Refused);
    assert_eq!(drive.command(&scan(u64::MAX, 2, 0, 1 << 20), &[]), Ended::Refused);
}
