//! The key-value target on the real drive model: timing, NAND and power cuts.

// guarantee: D-49

use std::collections::BTreeMap;
use std::path::Path;

use kv::{BlockingKv, KvConfig, KvError};
use scenario::Scenario;
use sluice_bench::kv::KvHarness;
use time::{Component, Nanos, VirtualRunner};

/// MLC with paired pages; 8 parallel units of 24 chunks of 256 KB; programs and erases fail.
const DRIVE: &str = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ndata = \"memory\"\n\
                     geometry = { channels = 4, pus = 2, planes = 1, pages = 16, chunks = 24 }\n\
                     [drive.errors]\nprogram_failure_rate = 1e-4\nerase_failure_rate = 1e-4\n";

fn value(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (seed.wrapping_mul(0x9e37_79b9).wrapping_add(i * i) >> 3) as u8)
        .collect()
}

#[test]
fn what_was_synced_survives_power_cuts_in_the_middle_of_programs() {
    let scenario = Scenario::parse(Path::new("kv.toml"), DRIVE).unwrap();
    let mut harness = KvHarness::build(&scenario.drives[0], KvConfig::default()).unwrap();
    let chunk = harness.kv.layout().chunk_bytes as usize;
    // Keys as of the last sync, which must survive a power cut. Keys put since then may survive it.
    let mut synced: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    let mut runner = VirtualRunner::new();
    for round in 0..12u64 {
        let mut since = synced.clone();
        {
            let KvHarness { drive, kv, .. } = &mut harness;
            let progress = &mut || {
                runner.step(&mut [drive as &mut dyn Component], Nanos::MAX);
            };
            let mut now = BlockingKv::new(kv, progress);
            for i in 0..150u64 {
                let key = format!("key{:03}", (i * 37 + round * 11) % 120);
                let len = match i % 25 {
                    0 => chunk + 1000,
                    1..4 => 60_000,
                    n => 100 * n as usize,
                };
                match i % 9 {
                    8 if since.contains_key(&key) => {
                        now.delete(key.as_bytes()).unwrap();
                        since.remove(&key);
                    }
                    _ => {
                        now.put(key.as_bytes(), &value(round << 32 | i, len)).unwrap();
                        since.insert(key, (round << 32 | i, len));
                    }
                }
                if i == 100 {
                    now.sync().unwrap();
                    synced = since.clone();
                }
            }
            for (key, (seed, len)) in &since {
                assert_eq!(now.get(key.as_bytes()), Ok(Some(value(*seed, *len))), "{key}");
            }
        }
        let drive = harness.drive.power_cut().power_on().unwrap();
        harness = KvHarness::on_drive(drive, KvConfig::default()).unwrap();
        assert_eq!(harness.kv.check_invariants(), Ok(()), "round {round}");
        let KvHarness { drive, kv, .. } = &mut harness;
        runner = VirtualRunner::new();
        let progress = &mut || {
            runner.step(&mut [drive as &mut dyn Component], Nanos::MAX);
        };
        let mut now = BlockingKv::new(kv, progress);
        let mut found = BTreeMap::new();
        for i in 0..120 {
            let key = format!("key{i:03}");
            let bytes: Result<Option<Vec<u8>>, KvError> = now.get(key.as_bytes());
            let bytes = bytes.unwrap();
            let candidates = [synced.get(&key), since.get(&key)];
            let is = |c: &Option<&(u64, usize)>| match (c, &bytes) {
                (None, None) => true,
                (Some((seed, len)), Some(bytes)) => value(*seed, *len) == *bytes,
                _ => false,
            };
            // Between the sync and the cut, the key may have had other values of this round.
            let between = (101..150u64).filter(|n| (n * 37 + round * 11) % 120 == i);
            let between = between.filter_map(|n| {
                let len = bytes.as_ref().map(Vec::len)?;
                (value(round << 32 | n, len) == *bytes.as_ref()?).then_some((round << 32 | n, len))
            });
            let between: Vec<(u64, usize)> = between.collect();
            assert!(candidates.iter().any(is) || !between.is_empty(), "{key} in round {round}");
            if let Some(which) = candidates.iter().find(|c| is(c)).copied().flatten().copied() {
                found.insert(key, which);
            } else if let Some(which) = between.first() {
                found.insert(key, *which);
            }
        }
        synced = found;
    }
    assert!(harness.kv.stats().keys > 50);
}
