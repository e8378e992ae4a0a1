//! Lookups in B+tree pages by the rules of a drive (`demo/rules/btree.rules`).

// guarantee: B-118

use std::collections::BTreeMap;

use controller::DriveConfig;
use mem::PAGE_BYTES;
use nvme::{RuleCommand, RuleCommandKind, RuleReply, Status};
use time::Nanos;

use super::harness::{demo, with_op};
use super::rule_commands::execute;
use crate::block_commands::harness::Bench;

const FANOUT: usize = 254;

fn node(is_leaf: bool, count: u16, entries: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_BYTES];
    bytes[..2].copy_from_slice(&u16::from(is_leaf).to_le_bytes());
    bytes[2..4].copy_from_slice(&count.to_le_bytes());
    for (at, (key, child)) in entries.iter().enumerate() {
        let (key_at, child_at) = (8 + 8 * at, 8 + 8 * FANOUT + 8 * at);
        bytes[key_at..key_at + 8].copy_from_slice(&key.to_le_bytes());
        bytes[child_at..child_at + 8].copy_from_slice(&child.to_le_bytes());
    }
    bytes
}

fn store(bench: &mut Bench, lba: u64, bytes: &[u8]) {
    bench.host.memory.write(0, bytes);
    let status = bench.io(nvme::Sqe::write(1, lba, 1, false), PAGE_BYTES).status;
    assert_eq!(status, Status::SUCCESS);
}

/// Writes a tree of a map from keys to sectors, from sector `next` on. Returns the root and the depth.
fn build(bench: &mut Bench, map: &BTreeMap<u64, u64>, mut next: u64) -> (u64, u32) {
    let mut level: Vec<(u64, u64)> = map.iter().map(|(key, lba)| (*key, *lba)).collect();
    let (mut is_leaf, mut depth) = (true, 0);
    loop {
        let mut above = Vec::new();
        for entries in level.chunks(3) {
            store(bench, next, &node(is_leaf, entries.len() as u16, entries));
            above.push((entries[0].0, next));
            next += 1;
        }
        depth += 1;
        if let [(_, root)] = above[..] {
            return (root, depth);
        }
        (level, is_leaf) = (above, false);
    }
}

fn get(key: u64, root: u64) -> RuleCommand {
    let command = RuleCommand::new(RuleCommandKind::Get, 0, 1);
    RuleCommand { arg0: key, arg1: root, buffer_bytes: PAGE_BYTES as u32, ..command }
}

/// A drive with 60 values in sectors 100 on, and a tree of them. Returns the root.
fn tree(config: DriveConfig) -> (Bench, BTreeMap<u64, u64>, u64) {
    let mut bench = Bench::new(config);
    let map: BTreeMap<u64, u64> = (0..60).map(|n| (10 * n + 5, 100 + n)).collect();
    for (key, lba) in &map {
        store(&mut bench, *lba, &[*key as u8; PAGE_BYTES]);
    }
    let (root, depth) = build(&mut bench, &map, 300);
    assert_eq!(depth, 4);
    (bench, map, root)
}

#[test]
fn lookups_agree_with_a_map() {
    let (mut bench, map, root) = tree(demo("btree.rules"));
    for is_flushed in [false, true] {
        if is_flushed {
            bench.flush();
        }
        for key in (5..600).step_by(5) {
            bench.host.memory.fill(0, PAGE_BYTES, 0xee);
            let (status, reply) = execute(&mut bench, get(key, root));
            let mut page = [0; PAGE_BYTES];
            bench.host.memory.read(0, &mut page);
            match map.contains_key(&key) {
                true => {
                    assert_eq!((status, reply.bytes), (Status::SUCCESS, 4096), "key {key}");
                    assert!(page.iter().all(|byte| *byte == key as u8), "key {key}");
                }
                false => {
                    let not_found = Status::RULE_NOT_FOUND.do_not_retry();
                    assert_eq!((status, reply), (not_found, RuleReply::default()), "key {key}");
                    assert!(page.iter().all(|byte| *byte == 0xee));
                }
            }
        }
    }
    let stats = bench.drive.stats().rules.expect("rules").sectors;
    assert_eq!((stats.fetches, stats.reads, stats.waits), (2 * 119 * 4, 2 * 119 * 4, 0));
}

#[test]
fn a_lookup_costs_its_reads_and_one_round_trip() {
    let mut config = with_op(demo("btree.rules"), Nanos(10));
    (config.controller.fetch_latency, config.controller.completion_latency) =
        (Nanos(1_000), Nanos(2_000));
    config.controller.dma_bytes_per_sec = 1_000_000_000;
    let (mut bench, _, root) = tree(config);
    bench.flush();
    // tR of 50 µs, and a sector over a channel of 400 MB/s.
    let (read, round_trip) = (50_000 + 10_240, 3_000);
    for (key, reads, dma) in [(10, 4, 0), (5, 5, 4_096), (595, 5, 4_096)] {
        let before = bench.drive.stats().rules.expect("rules");
        let command = get(key, root);
        let (_, time) = bench.timed(command.to_sqe(1), PAGE_BYTES);
        let after = bench.drive.stats().rules.expect("rules");
        let engine = 10 * (after.ops - before.ops);
        assert_eq!(after.engine_busy - before.engine_busy, Nanos(engine));
        let expected = (reads * read + engine + round_trip + dma) as f64;
        let error = (time.0 as f64 - expected).abs() / expected;
        assert!(engine > 0 && error <= 0.01, "key {key}: {time:?}, expected {expected} ns");
    }
}

#[test]
fn corrupt_nodes_end_with_a_status() {
    let mut bench = Bench::new(demo("btree.rules"));
    let full: Vec<(u64, u64)> = (0..FANOUT as u64).map(|at| (at * 2, 50)).collect();
    let end = bench.drive.sectors();
    for (lba, bytes) in [
        // More entries than a node has.
        (10, node(true, u16::MAX, &full)),
        // A cycle of children.
        (11, node(false, 1, &[(0, 12)])),
        (12, node(false, 1, &[(0, 11)])),
        // Children past the end, one that was never written, and one past the end of a leaf's space.
        (13, node(false, 1, &[(0, u64::MAX)])),
        (14, node(false, 1, &[(0, end)])),
        (15, node(false, 1, &[(0, 60)])),
        (16, node(true, 1, &[(5, 1 << 40)])),
        (17, node(true, 0, &[])),
        (50, vec![5; PAGE_BYTES]),
    ] {
        store(&mut bench, lba, &bytes);
    }
    let not_found = Status::RULE_NOT_FOUND.do_not_retry();
    for (key, root, status) in [
        (506, 10, Status::SUCCESS),
        (u64::MAX, 10, not_found),
        (5, 11, Status::RULE_HOP_LIMIT.do_not_retry()),
        (5, 13, Status::RULE_BAD_ADDRESS.do_not_retry()),
        (5, 14, Status::RULE_BAD_ADDRESS.do_not_retry()),
        (5, 15, not_found),
        (5, 16, Status::RULE_INDEX.do_not_retry()),
        (5, 17, not_found),
        (5, u64::MAX, Status::RULE_BAD_ADDRESS.do_not_retry()),
    ] {
        assert_eq!(execute(&mut bench, get(key, root)).0, status, "key {key} from {root}");
    }
    // The host learns of the sector.
    let _ = execute(&mut bench, get(5, 14));
    assert_eq!(bench.newest_error(), (Status::RULE_BAD_ADDRESS.do_not_retry(), end));
    // A buffer that is too small for the sector, or misaligned.
    let small = RuleCommand { buffer_bytes: 4095, ..get(506, 10) };
    assert_eq!(execute(&mut bench, small).0, Status::RULE_OUTPUT_FULL.do_not_retry());
    let mut misaligned = get(506, 10).to_sqe(1);
    misaligned.set_prp(bench.host.at.0 + 1, 0);
    let status = bench.host.io(&mut bench.drive, misaligned).status;
    assert_eq!(status, Status::PRP_OFFSET_INVALID);
}
