//! Single faults, injected at every place where they can occur.

use nvme::ChunkId;
use std::collections::BTreeMap;

use ftl::journal::{Journal, JournalError};
use time::Nanos;

use super::flash::TestFlash;
use super::format::{self, Content};
use super::model::Model;
use super::script::{CHUNKS, CONFIG, Script, flat};

/// By frame of the newest generation, the copies and their chunks.
fn copies(flash: &TestFlash) -> BTreeMap<u32, Vec<(u8, u32)>> {
    let frames = format::frames(flash, true);
    let newest = frames.iter().map(|(_, f)| f.generation).max().unwrap();
    let mut copies: BTreeMap<u32, Vec<(u8, u32)>> = BTreeMap::new();
    for (chunk, frame) in frames.iter().filter(|(_, f)| f.generation == newest) {
        copies.entry(frame.index).or_default().push((frame.replica, *chunk));
    }
    copies
}

#[test]
fn every_frame_has_two_copies_on_different_parallel_units() {
    let mut script = Script::new(1);
    assert!(script.run(5, u64::MAX));
    let copies = copies(&script.flash);
    assert!(copies.len() >= 3);
    for (index, mut copies) in copies {
        copies.sort_unstable();
        let [(0, a), (1, b)] = copies[..] else { panic!("frame {index}: {copies:?}") };
        assert_ne!(flat().pu_of(ChunkId(a)), flat().pu_of(ChunkId(b)), "frame {index}");
    }
    let stats = script.journal.stats();
    assert_eq!((stats.generations, stats.records, stats.copies_lost), (6, 76, 0));
    assert_eq!(stats.frames + stats.padding, script.flash.programs);
    // Records make every snapshot readable; only the first may need padding, if the journal is idle
    // behind it.
    assert!(stats.padding <= 2 * 2, "{} padding units", stats.padding);
    assert_eq!(stats.erases, script.flash.erases);
    assert!(script.flash.outstanding() == 0 && script.journal.is_idle());
}

#[test]
fn power_can_be_cut_after_any_event() {
    for seed in 0..4 {
        let mut cuts = 0;
        loop {
            let mut script = Script::new(seed);
            let whole = script.run(8, cuts);
            script.flash.power_cut();
            let (content, recovered) = script.recover();
            assert!(script.model.allows(&content), "cut after {cuts} events, seed {seed}");
            assert!(!recovered.truncated);
            // A second recovery finds the same content.
            script.flash.power_cut();
            assert_eq!(script.recover().0, content);
            if whole {
                break;
            }
            cuts += 1;
        }
        assert!(cuts > 100, "{cuts} events");
    }
}

#[test]
fn any_program_can_fail() {
    let mut failing = 0;
    loop {
        let mut script = Script::new(failing);
        script.flash.failing_program = Some(failing);
        assert!(script.run(4, u64::MAX));
        let stats = script.journal.stats();
        if script.flash.programs <= failing {
            assert_eq!(stats.program_failures, 0);
            break;
        }
        // Later programs of the same chunk fail too.
        assert!((1..=4).contains(&stats.program_failures));
        assert!(script.journal.failed().is_none());
        script.flash.power_cut();
        let (content, recovered) = script.recover();
        assert!(script.model.allows(&content), "program {failing} fails");
        assert!(!recovered.truncated && stats.retired_chunks == 0);
        failing += 1;
    }
    assert!(failing > 50, "{failing} programs");
}

#[test]
fn any_erase_can_fail() {
    let mut failing = 0;
    loop {
        let mut script = Script::new(failing);
        script.flash.failing_erase = Some(failing);
        assert!(script.run(6, u64::MAX));
        if script.flash.erases <= failing {
            break;
        }
        let stats = script.journal.stats();
        assert_eq!((stats.erase_failures, stats.retired_chunks), (1, 1));
        script.flash.power_cut();
        let (content, recovered) = script.recover();
        assert!(script.model.allows(&content), "erase {failing} fails");
        assert_eq!(recovered.journal.stats().retired_chunks, 1);
        failing += 1;
    }
    assert!(failing > 10, "{failing} erases");
}

#[test]
fn any_copy_can_be_unreadable_and_what_is_lost_in_both_ends_the_records() {
    let mut script = Script::new(3);
    assert!(script.run(2, u64::MAX));
    for i in 0..12 {
        script.append(i);
        script.journal.flush();
        script.flash.settle(&mut script.journal);
    }
    script.record_durable();
    let whole = format::content(&script.flash, true);
    assert!(script.model.allows(&whole));
    let newest = copies(&script.flash);
    let base = format::frames(&script.flash, true)
        .into_iter()
        .filter(|(_, f)| f.kind == 4 && newest[&f.index].len() == 2)
        .map(|(_, f)| f.index)
        .max()
        .unwrap();
    let kill = |flash: &mut TestFlash, index: u32, which: &[u8]| {
        for (_, cells) in &mut flash.chunks {
            for (unit, dead) in cells.units.iter().zip(&mut cells.dead) {
                let frame = unit.as_deref().and_then(format::frame);
                *dead = match frame {
                    Some(f) if f.index == index && which.contains(&f.replica) => u64::MAX,
                    _ => 0,
                };
            }
        }
    };
    for index in newest.keys().copied() {
        for which in [&[0u8][..], &[1], &[0, 1]] {
            script.flash.power_cut();
            kill(&mut script.flash, index, which);
            let (content, recovered) = script.recover();
            if which.len() == 1 {
                assert_eq!(content, whole);
                assert!(!recovered.truncated && recovered.unreadable > 0);
                continue;
            }
            // A lost last frame cannot be told from a torn one.
            assert_eq!(recovered.truncated, index < *newest.keys().max().unwrap(), "frame {index}");
            if index > base {
                assert_eq!(content.snapshot, whole.snapshot);
                assert!(whole.records.starts_with(&content.records));
                assert!(content.records.len() < whole.records.len());
            } else {
                assert_ne!(content.snapshot, whole.snapshot);
            }
            let journal = recovered.journal;
            assert!(journal.needs_snapshot() || journal.is_snapshot_in_progress());
        }
    }
}

/// Cuts power until a unit is torn. Returns `None` if it is the first unit of its chunk, because
/// that chunk is erased before use, or if the generation has no space before that.
fn torn_behind_others(seed: u64) -> Option<Script> {
    let mut script = Script::new(seed);
    assert!(script.run(1, u64::MAX));
    for i in 0.. {
        if script.journal.needs_snapshot() {
            break;
        }
        script.append(i);
        script.journal.flush();
        script.journal.kick(Nanos(0), &mut script.flash);
        script.flash.power_cut();
        let (content, recovered) = script.recover();
        assert!(script.model.allows(&content));
        script.journal = recovered.journal;
        if script.flash.torn > 0 {
            assert_eq!(recovered.unreadable, script.flash.torn);
            return script.journal.needs_snapshot().then_some(script);
        }
        script.model = Model::from_content(&content);
        script.model.durable = 0;
    }
    None
}

#[test]
fn after_a_clean_stop_the_generation_goes_on_and_after_a_torn_unit_a_snapshot_is_due() {
    let mut script = Script::new(5);
    assert!(script.run(1, u64::MAX));
    for restart in 0..4 {
        script.flash.power_cut();
        let (content, mut recovered) = script.recover();
        assert!(script.model.allows(&content));
        let again = vec![restart as u8; 10];
        match recovered.journal.append(&again) {
            Ok(_) => script.model.append(&again),
            // Padding takes space: two units per chunk and restart.
            Err(error) => {
                assert!(restart > 0 && matches!(error, JournalError::SnapshotNeeded { .. }));
                assert!(recovered.journal.needs_snapshot());
                break;
            }
        }
        recovered.journal.flush();
        script.flash.settle(&mut recovered.journal);
        assert_eq!(recovered.journal.stats().generations, 0);
        script.model.durable = script.model.len();
    }

    let mut script =
        (6..20).find_map(torn_behind_others).expect("one of the seeds tears a unit behind others");
    let needed = JournalError::SnapshotNeeded { frames: 1, available: 0 };
    assert_eq!(script.journal.append(b"x"), Err(needed));
    script.journal.snapshot(b"fresh".to_vec()).unwrap();
    script.journal.append(b"x").unwrap();
    script.journal.flush();
    script.flash.settle(&mut script.journal);
    assert_eq!(script.journal.durable(), script.journal.position());
    assert!(!script.journal.needs_snapshot());
    script.flash.power_cut();
    let (content, _) = script.recover();
    let fresh = Content { snapshot: Some(b"fresh".to_vec()), records: vec![b"x".to_vec()] };
    assert_eq!(content, fresh);
}

#[test]
fn with_every_erase_failing_the_journal_ends_and_what_it_held_is_still_there() {
    let mut script = Script::new(8);
    assert!(script.run(1, u64::MAX));
    script.flash.erase_fail = 1.0;
    let mut widths = Vec::new();
    for i in 0..20 {
        match script.journal.snapshot(vec![i; 500]) {
            Ok(_) => script.model.snapshot(&[i; 500]),
            Err(JournalError::WornOut { .. }) => break,
            Err(error) => panic!("{error}"),
        }
        script.flash.settle(&mut script.journal);
        script.record_durable();
        if script.journal.failed().is_none() {
            widths.push(copies(&script.flash)[&0].len());
        }
    }
    // Every generation retires two chunks, and the previous generation keeps its chunks until the
    // new one is readable. So the journal drops the second copy for the next generation, and
    // then has no chunk left.
    assert_eq!(widths, [2, 1]);
    let Some(JournalError::WornOut { reserved: 8, good, frames: 2 }) = script.journal.failed()
    else {
        panic!("{:?}", script.journal.failed());
    };
    assert!(good <= 1, "{good} good chunks are left");
    assert!(!script.journal.needs_snapshot() && script.journal.is_idle());
    assert!(matches!(script.journal.append(b"more"), Err(JournalError::WornOut { .. })));
    let (content, mut recovered) = script.recover();
    assert!(script.model.allows(&content));
    assert_eq!(recovered.journal.stats().retired_chunks, 8 - u64::from(good));
    // The recovered journal reports the failure again.
    recovered.journal.snapshot(Vec::new()).unwrap();
    script.flash.settle(&mut recovered.journal);
    assert!(recovered.journal.failed().is_some());
    assert!(script.model.allows(&format::content(&script.flash, true)));
}

#[test]
fn the_mirror_is_given_up_before_the_journal_is() {
    let mut flash = TestFlash::new(flat(), &CHUNKS[2..6], 9);
    let mut journal = Journal::create(&flat(), CONFIG, &CHUNKS.map(ChunkId)[2..6]).unwrap();
    let (mut widths, mut retired) = (Vec::new(), Vec::new());
    for i in 0..6u8 {
        // The erases of the first generation's chunks fail.
        flash.erase_fail = if i == 0 { 1.0 } else { 0.0 };
        journal.append(&[i; 5]).unwrap();
        journal.flush();
        flash.settle(&mut journal);
        journal.snapshot(vec![i; 800]).unwrap();
        journal.append(&[i; 9]).unwrap();
        journal.flush();
        flash.settle(&mut journal);
        assert_eq!((journal.failed(), journal.durable()), (None, journal.position()));
        widths.push(copies(&flash)[&0].len());
        retired.push(journal.stats().retired_chunks);
        let again = flash.recover(CONFIG).unwrap();
        assert_eq!(again.snapshot, Some(vec![i; 800]));
        assert_eq!(again.records, [vec![i; 9]]);
        journal = again.journal;
    }
    assert_eq!(widths, [2, 1, 1, 1, 1, 1]);
    assert_eq!(retired, [2; 6]);
}

#[test]
fn what_could_not_be_read_is_erased_before_anything_is_programmed() {
    for seed in 0..50 {
        let mut script = Script::new(seed);
        assert!(script.run(2, u64::MAX));
        script.flash.power_cut();
        // A third generation becomes durable before the flash has erased the second.
        let before = script.recover().0;
        let mut journal = script.recover().1.journal;
        journal.snapshot(b"third".to_vec()).unwrap();
        script.model.snapshot(b"third");
        journal.kick(Nanos(0), &mut script.flash);
        while journal.is_snapshot_in_progress() {
            assert!(script.flash.step(&mut journal));
        }
        script.flash.chunks.iter_mut().for_each(|(_, cells)| cells.forget_operations());
        let newest = |flash: &TestFlash| {
            format::frames(flash, true).iter().map(|(_, f)| f.generation).max().unwrap()
        };
        let third = newest(&script.flash);
        script.flash.power_cut();
        // Makes the third generation unreadable.
        for (_, cells) in &mut script.flash.chunks {
            for (unit, dead) in cells.units.iter().zip(&mut cells.dead) {
                let frame = unit.as_deref().and_then(format::frame);
                *dead = u64::from(frame.is_some_and(|f| f.generation == third));
            }
        }
        let (content, mut recovered) = script.recover();
        assert_eq!(content, before);
        let position = recovered.journal.snapshot(b"fourth".to_vec()).unwrap();
        recovered.journal.kick(Nanos(0), &mut script.flash);
        while recovered.journal.durable() < position {
            let (programs, erases) = script.flash.in_flight();
            let third_is_there = format::frames(&script.flash, true)
                .iter()
                .any(|(_, f)| f.generation == third && f.payload == b"third");
            assert!(programs == 0 || erases == 0 || !third_is_there, "{programs}, {erases}");
            assert!(script.flash.step(&mut recovered.journal));
        }
        script.flash.power_cut();
        assert_eq!(script.recover().0.snapshot, Some(b"fourth".to_vec()));
    }
}

#[test]
fn a_generation_that_was_begun_is_never_begun_again_under_its_number() {
    for events in 0..12 {
        let mut script = Script::new(events);
        assert!(script.run(1, u64::MAX));
        script.journal.snapshot(vec![1; 1_400]).unwrap();
        script.journal.kick(Nanos(0), &mut script.flash);
        (0..events).for_each(|_| _ = script.flash.step(&mut script.journal));
        script.flash.power_cut();
        let seen = |flash: &TestFlash| {
            format::frames(flash, true).iter().map(|(_, f)| f.generation).max().unwrap()
        };
        let begun = seen(&script.flash);
        let mut journal = script.recover().1.journal;
        journal.snapshot(vec![2; 1_400]).unwrap();
        script.flash.settle(&mut journal);
        assert_eq!(seen(&script.flash), begun + 1);
    }
}
