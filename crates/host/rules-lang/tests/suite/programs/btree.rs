//! Program 4: lookups in B+tree pages.

use std::collections::BTreeMap;

use rules::{InputOp, RuleInput, RuleStatus};
use testkit::choices::{Choices, seed};

use super::compiled::demo;
use super::drive::{Ended, ModelDrive, SECTOR};

const FANOUT: usize = 254;

fn node(is_leaf: bool, count: u16, entries: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR];
    bytes[..2].copy_from_slice(&u16::from(is_leaf).to_le_bytes());
    bytes[2..4].copy_from_slice(&count.to_le_bytes());
    for (at, (key, child)) in entries.iter().enumerate() {
        let (key_at, child_at) = (8 + 8 * at, 8 + 8 * FANOUT + 8 * at);
        bytes[key_at..key_at + 8].copy_from_slice(&key.to_le_bytes());
        bytes[child_at..child_at + 8].copy_from_slice(&child.to_le_bytes());
    }
    bytes
}

/// Writes a tree of a map from keys to sectors. Returns the root and the depth.
fn build(drive: &mut ModelDrive, map: &BTreeMap<u64, u64>, next: &mut u64) -> (u64, u32) {
    let mut level: Vec<(u64, u64)> = map.iter().map(|(key, lba)| (*key, *lba)).collect();
    let (mut is_leaf, mut depth) = (true, 0);
    loop {
        let mut above = Vec::new();
        for entries in level.chunks(if is_leaf { 3 } else { 7 }) {
            let bytes = node(is_leaf, entries.len() as u16, entries);
            assert!(matches!(drive.write(*next, &bytes), Ended::Written(_)));
            above.push((entries[0].0, *next));
            *next += 1;
        }
        depth += 1;
        if let [(_, root)] = above[..] {
            return (root, depth);
        }
        (level, is_leaf) = (above, false);
    }
}

fn get(drive: &mut ModelDrive, key: u64, root: u64) -> Ended {
    let input = RuleInput::new(InputOp::Get, 0, 1);
    drive.command(&RuleInput { arg0: key, arg1: root, ..input }, &[])
}

fn completed(status: RuleStatus) -> Ended {
    Ended::Completed(status, 0, Vec::new())
}

// guarantee: B-124
#[test]
fn lookups_agree_with_a_map() {
    let mut choices = Choices::seeded(seed());
    let mut drive = ModelDrive::new(&demo("btree.rules"), 64);
    let mut map = BTreeMap::new();
    for lba in 0..400u64 {
        let bytes = lba.to_le_bytes();
        assert!(matches!(drive.write(lba, &bytes), Ended::Written(_)));
        map.insert(choices.below(1_000_000) * 2 + 2, lba);
    }
    let (root, depth) = build(&mut drive, &map, &mut 400);
    assert!((4..=7).contains(&depth), "{depth} levels");
    for (key, lba) in &map {
        let expected = Ended::Data(lba.to_le_bytes().to_vec());
        assert_eq!(get(&mut drive, *key, root), expected, "key {key}");
        assert_eq!(get(&mut drive, key + 1, root), completed(RuleStatus::NotFound));
    }
    for key in [0, 1, u64::MAX] {
        assert_eq!(get(&mut drive, key, root), completed(RuleStatus::NotFound));
    }
}

#[test]
fn corrupt_nodes_end_with_a_status() {
    let mut drive = ModelDrive::new(&demo("btree.rules"), 64);
    let full: Vec<(u64, u64)> = (0..FANOUT as u64).map(|at| (at * 2, 50)).collect();
    for (lba, bytes) in [
        // More entries than a node has.
        (10, node(true, u16::MAX, &full)),
        // A cycle of children.
        (11, node(false, 1, &[(0, 12)])),
        (12, node(false, 1, &[(0, 11)])),
        // A child past the end, and one that was never written.
        (13, node(false, 1, &[(0, u64::MAX)])),
        (14, node(false, 1, &[(0, 60)])),
        // Keys in any order.
        (15, node(true, 4, &[(9, 50), (1, 50), (7, 50), (3, 50)])),
        // No entries.
        (16, node(true, 0, &[])),
        // A child past the end of the leaf's space.
        (17, node(true, 1, &[(5, 1 << 40)])),
        (50, vec![5]),
    ] {
        assert!(matches!(drive.write(lba, &bytes), Ended::Written(_)));
    }
    assert_eq!(get(&mut drive, 506, 10), Ended::Data(vec![5]));
    assert_eq!(get(&mut drive, u64::MAX, 10), completed(RuleStatus::NotFound));
    assert_eq!(get(&mut drive, 5, 11), completed(RuleStatus::HopLimit));
    assert_eq!(get(&mut drive, 5, 13), Ended::Refused);
    assert_eq!(get(&mut drive, 5, 14), completed(RuleStatus::NotFound));
    for key in 0..12 {
        let ended = get(&mut drive, key, 15);
        let is_read = ended == Ended::Data(vec![5]);
        assert!(is_read || ended == completed(RuleStatus::NotFound), "{ended:?}");
    }
    assert_eq!(get(&mut drive, 5, 16), completed(RuleStatus::NotFound));
    assert_eq!(get(&mut drive, 5, 17), completed(RuleStatus::IndexOutOfRange));
    // A sector that ends before the record does: the fields are past its end.
    assert_eq!(get(&mut drive, 5, 50), completed(RuleStatus::IndexOutOfRange));
}
