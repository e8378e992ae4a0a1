//! Damaged bytes: a recovery never returns wrong records.

// guarantee: D-02

use ftl::journal::{Journal, JournalConfig, JournalError};
use nvme::ChunkId;
use rng::Rng;
use time::Nanos;

use super::flash::{TestFlash, shape};
use super::format::{Content, crc};
use super::model::Model;
use super::script::{self, Script};

pub(crate) const CONFIG: JournalConfig =
    JournalConfig { owner: 0xabcd, snapshot_bytes: 5_000, record_bytes: 5_000 };

/// Returns a journal with a history of snapshots and records, after a power cut, and its model.
pub(crate) fn written(seed: u64) -> (TestFlash, Model) {
    let mut rng = Rng::new(seed);
    let shape = shape(2, 6, 8, 1 + rng.below(3) as u32, rng.below(3) as u32);
    let chunks: Vec<u32> = (0..12).collect();
    let mut journal =
        Journal::create(&shape, CONFIG, &chunks.iter().copied().map(ChunkId).collect::<Vec<_>>())
            .unwrap();
    let (mut flash, mut model) = (TestFlash::new(shape, &chunks, seed), Model::default());
    for i in 0..40 + rng.below(40) {
        let bytes: Vec<u8> = (0..rng.below(400)).map(|_| rng.next_u64() as u8).collect();
        if i % 23 == 11 || journal.needs_snapshot() {
            if journal.snapshot(bytes.clone()).is_ok() {
                model.snapshot(&bytes);
            }
        } else if journal.append(&bytes).is_ok() {
            model.append(&bytes);
        }
        if rng.chance(0.3) {
            journal.flush();
        }
        journal.kick(Nanos(0), &mut flash);
        for _ in 0..rng.below(8) {
            flash.step(&mut journal);
        }
    }
    journal.flush();
    flash.settle(&mut journal);
    model.durable = journal.durable().0 as usize;
    flash.power_cut();
    (flash, model)
}

fn flip(flash: &mut TestFlash, rng: &mut Rng, only_copy: Option<u8>) -> bool {
    let chunk = rng.below(flash.chunks.len() as u64) as usize;
    let cells = &mut flash.chunks[chunk].1;
    let unit = rng.below(cells.units.len() as u64) as usize;
    let Some(Some(bytes)) = cells.units.get_mut(unit) else { return false };
    if only_copy.is_some_and(|copy| bytes[11] != copy) {
        return false;
    }
    // Most of a unit may be zeros, so half of the flips are at its start.
    let span = if rng.chance(0.5) { 60 } else { bytes.len() as u64 };
    bytes[rng.below(span) as usize] ^= 1 + rng.below(255) as u8;
    true
}

#[test]
fn flipped_bytes_never_yield_wrong_records() {
    let (mut lost, mut refused, mut whole) = (0, 0, 0);
    for seed in 0..1_500 {
        let (mut flash, mut model) = written(seed);
        let mut rng = Rng::new(seed ^ 0xdead);
        let flips = [1, 4, 30, 200][rng.below(4) as usize];
        (0..flips).for_each(|_| _ = flip(&mut flash, &mut rng, None));
        match flash.recover(CONFIG) {
            Ok(recovered) => {
                let content = Content { snapshot: recovered.snapshot, records: recovered.records };
                if model.allows(&content) {
                    whole += 1;
                } else {
                    lost += 1;
                    model.durable = 0;
                    assert!(model.allows(&content), "seed {seed}: {content:?}");
                }
            }
            Err(JournalError::NotAJournal { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(lost > 20 && whole > 100, "{lost} lost, {whole} whole, {refused} refused");
}

#[test]
fn one_copy_may_be_damaged_as_much_as_it_likes() {
    for seed in 0..300 {
        let (mut flash, model) = written(seed);
        let mut rng = Rng::new(seed ^ 0xbeef);
        let copy = rng.below(2) as u8;
        let flips = (0..200).filter(|_| flip(&mut flash, &mut rng, Some(copy))).count();
        assert!(flips > 0);
        let recovered = flash.recover(CONFIG).unwrap();
        assert!(!recovered.truncated);
        let content = Content { snapshot: recovered.snapshot, records: recovered.records };
        assert!(model.allows(&content), "seed {seed}");
    }
}

#[test]
fn what_is_no_journal_is_refused_and_not_touched() {
    for seed in 0..50 {
        let (mut flash, _) = written(seed);
        let mut rng = Rng::new(seed);
        for (_, cells) in &mut flash.chunks {
            for unit in cells.units.iter_mut().flatten() {
                unit.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
            }
        }
        let before = (flash.programs, flash.erases);
        match flash.recover(CONFIG).unwrap_err() {
            JournalError::NotAJournal { chunk } => {
                assert!(!flash.cells(chunk.get()).units.is_empty())
            }
            error => panic!("{error}"),
        }
        assert_eq!((flash.programs, flash.erases), before, "seed {seed}");
    }
}

#[test]
fn other_owners_and_other_versions_are_refused_and_not_touched() {
    for seed in 0..50 {
        let (mut flash, _) = written(seed);
        let before = (flash.programs, flash.erases);
        let other = JournalConfig { owner: 0x1234, ..CONFIG };
        match flash.recover(other).unwrap_err() {
            JournalError::Foreign { found: 0xabcd, wanted: 0x1234, .. } => {}
            error => panic!("{error}"),
        }
        assert_eq!((flash.programs, flash.erases), before, "seed {seed}");
        assert!(flash.recover(CONFIG).is_ok());
        let before = flash.programs;
        for (_, cells) in &mut flash.chunks {
            for unit in cells.units.iter_mut().flatten() {
                unit[8] = 2;
                let sum = crc(&unit[..44]);
                unit[44..48].copy_from_slice(&sum.to_le_bytes());
            }
        }
        match flash.recover(CONFIG).unwrap_err() {
            JournalError::Version { found: 2, known: 1, .. } => {}
            error => panic!("{error}"),
        }
        assert_eq!(flash.programs, before);
    }
}

/// Returns the contents of a journal's chunks, up to their write pointers.
fn content(flash: &TestFlash) -> Vec<Vec<Option<Vec<u8>>>> {
    flash.chunks.iter().map(|(_, cells)| cells.units.clone()).collect()
}

#[test]
fn once_a_snapshot_could_be_read_a_journal_is_refused_without_writing_whenever_it_is_cut() {
    type Change = fn(&mut [u8]);
    let other = JournalConfig { owner: 0x1234, ..script::CONFIG };
    let version: Change = |unit| {
        unit[8] = 2;
        let sum = crc(&unit[..44]);
        unit[44..48].copy_from_slice(&sum.to_le_bytes());
    };
    let noise: Change =
        |unit| unit.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(77) ^ 0x5a);
    let kinds: [(JournalConfig, Change); 3] =
        [(other, |_| ()), (script::CONFIG, version), (script::CONFIG, noise)];
    for seed in 0..3 {
        let (mut cuts, mut hidden) = (0, 0);
        loop {
            let mut script = Script::new(seed);
            let whole = script.run(6, cuts);
            script.flash.power_cut();
            // A snapshot is on the media, and frames or padding behind it make it readable.
            let stats = script.journal.stats();
            let shown = stats.generations > 1 || stats.padding > 2;
            for (config, change) in kinds {
                let mut flash = script.flash.clone();
                let (programs, erases) = (flash.programs, flash.erases);
                for (_, cells) in &mut flash.chunks {
                    cells.units.iter_mut().flatten().for_each(|unit| change(unit));
                }
                let before = content(&flash);
                let refused = match flash.recover(config) {
                    Err(
                        refused @ (JournalError::Foreign { .. }
                        | JournalError::Version { .. }
                        | JournalError::NotAJournal { .. }),
                    ) => refused,
                    Ok(_) if before.iter().flatten().all(Option::is_none) => continue,
                    other => panic!("cut after {cuts} events, seed {seed}: {other:?}"),
                };
                let untouched = (flash.programs, flash.erases) == (programs, erases);
                assert!(untouched || !shown, "{refused}: cut after {cuts} events, seed {seed}");
                assert!(!untouched || content(&flash) == before);
                hidden += u32::from(!untouched);
            }
            if whole {
                break;
            }
            cuts += 1;
        }
        println!("{hidden} of {cuts} cuts, before the first snapshot could be read");
        assert!(cuts > 100 && hidden < 20, "{hidden} of {cuts}");
    }
}
