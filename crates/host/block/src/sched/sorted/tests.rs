//! Both orders against a model, depth, memory, merging.

use std::collections::BTreeMap;

use super::*;
use crate::{Group, Payload, Request, Submitter};

fn write(tag: u64, lba: u64, sectors: u32) -> StagedRequest {
    StagedRequest {
        request: Request::write(lba, sectors, Payload::BitBucket, tag),
        since: Nanos::ZERO,
        submitter: Submitter(0),
        group: Group(0),
        merged: 1,
        requeues: 0,
    }
}

/// Returns the depth of a subtree, and checks order and priorities.
fn depth(sweep: &SectorSorted, at: u32, low: (u64, u64), high: (u64, u64)) -> usize {
    if at == NIL {
        return 0;
    }
    let (key, entry) = (sweep[at].key(), sweep[at]);
    assert!(low <= key && key < high);
    for child in [entry.left, entry.right] {
        assert!(child == NIL || sweep[child].priority <= entry.priority);
    }
    1 + depth(sweep, entry.left, low, key).max(depth(sweep, entry.right, key, high))
}

#[test]
fn agrees_with_an_ordered_map() {
    let mut rng = rng::Rng::new(7);
    let mut sweep = SectorSorted::new();
    let mut model = BTreeMap::new();
    for tag in 0..20_000 {
        if rng.below(5) < if tag < 8000 { 3 } else { 2 } {
            let lba = rng.below(500);
            sweep.push(write(tag, lba, 1), Nanos(tag));
            model.insert((lba, tag), ());
        } else if rng.chance(0.3) {
            let oldest = model.keys().min_by_key(|(_, tag)| *tag).copied();
            assert_eq!(sweep.oldest_expires(), oldest.map(|(_, tag)| Nanos(tag)));
            let got = sweep.pop_oldest().map(|s| (s.request.lba, s.request.tag));
            assert_eq!(got, oldest);
            oldest.map(|key| model.remove(&key));
        } else {
            let from = rng.below(520);
            let first = model.range((from, 0)..).next().map(|(key, ())| *key);
            let got = sweep.pop_from(from).map(|s| (s.request.lba, s.request.tag));
            assert_eq!(got, first);
            first.map(|key| model.remove(&key));
        }
        assert_eq!(sweep.len(), model.len());
        if tag % 500 == 0 {
            depth(&sweep, sweep.root, (0, 0), (u64::MAX, u64::MAX));
        }
    }
}

#[test]
fn stays_shallow_whatever_the_order_of_sectors() {
    for place in [|i| i, |i| 100_000 - i, |_| 5, |i| (i * 7919) % 100_003] {
        let mut sweep = SectorSorted::new();
        (0..10_000).for_each(|i| sweep.push(write(i, place(i), 1), Nanos::ZERO));
        let depth = depth(&sweep, sweep.root, (0, 0), (u64::MAX, u64::MAX));
        assert!(depth <= 40, "{depth}: 3 log2 n is 40");
    }
}

#[test]
fn gives_memory_back_and_keeps_both_orders() {
    let mut sweep = SectorSorted::new();
    (0..100_000).for_each(|i| sweep.push(write(i, (i * 7919) % 100_003, 1), Nanos(i)));
    for i in 0..99_900 {
        assert_eq!(sweep.pop_oldest().map(|s| s.request.tag), Some(i));
    }
    assert!(sweep.entries.capacity() <= 8192, "{}", sweep.entries.capacity());
    let mut last = 0;
    for left in (0..100).rev() {
        let lba = sweep.pop_from(0).map(|s| s.request.lba);
        assert!(lba >= Some(last));
        last = lba.unwrap_or(0);
        assert_eq!(sweep.len(), left);
    }
    assert!(sweep.is_empty());
}

#[test]
fn merging_at_the_front_moves_a_request() {
    let mut sweep = SectorSorted::new();
    for (tag, lba) in [(0, 100), (1, 50), (2, 120)] {
        sweep.push(write(tag, lba, 10), Nanos::ZERO);
    }
    let mut join = |lba: u64, front: bool| {
        let newcomer = write(9, lba, 10);
        sweep.find_merge(&newcomer, front, &mut |held| {
            held.request.lba = held.request.lba.min(lba);
            held.request.sectors += 10;
            true
        })
    };
    assert!(!join(90, false), "nothing ends at 90");
    assert!(join(90, true), "100 begins at its end");
    assert!(join(60, false), "50 ends at 60");
    assert!(join(80, true), "90 begins at its end");
    let taken = std::iter::from_fn(|| sweep.pop_from(0));
    let got: Vec<_> = taken.map(|s| (s.request.tag, s.request.lba, s.request.sectors)).collect();
    assert_eq!(got, [(1, 50, 20), (0, 80, 30), (2, 120, 10)]);
}
