//! Promised capacity is available; exceeding a limit returns an error with the numbers.

use ftl::journal::{
    FoundJournalChunk, Journal, JournalChunkReport, JournalConfig, JournalError, JournalRecovery,
    Lsn, chunks_needed, frame_payload_bytes,
};
use nvme::ChunkId;
use rng::Rng;
use time::Nanos;

use super::flash::{TestFlash, shape};

fn config(snapshot_bytes: u64, record_bytes: u64) -> JournalConfig {
    JournalConfig { owner: 1, snapshot_bytes, record_bytes }
}

/// Distributes chunks over the parallel units, round robin.
fn spread(chunks: u32, pus: u32, per_pu: u32) -> Vec<u32> {
    (0..chunks).map(|i| i % pus * per_pu + i / pus).collect()
}

#[test]
fn the_chunks_needed_are_enough_for_what_was_announced() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (pus, units) = (1 + rng.below(4) as u32, 1 + rng.below(20) as u32);
        let shape = shape(pus, 200, units, 1 + rng.below(8) as u32, rng.below(4) as u32);
        let payload = frame_payload_bytes(&shape);
        let config = config(rng.below(payload * 30), rng.below(payload * 30));
        let needed = chunks_needed(&shape, &config).unwrap();
        // The needed number includes one spare chunk for a chunk that goes bad.
        let chunks = spread(needed - 1, pus, 200);
        let mut journal = Journal::create(
            &shape,
            config,
            &chunks.iter().copied().map(ChunkId).collect::<Vec<_>>(),
        )
        .unwrap();
        let mut flash = TestFlash::new(shape, &chunks, seed);
        if seed % 2 == 1 {
            flash.reorder(seed);
        }
        assert_eq!(journal.snapshot_bytes_max(), config.snapshot_bytes);
        for round in 0..4u64 {
            journal.snapshot(vec![round as u8; config.snapshot_bytes as usize]).unwrap();
            // The journal accepts records at once, whether the snapshot is durable or not.
            if rng.chance(0.5) {
                flash.settle(&mut journal);
            }
            let mut left = config.record_bytes;
            while left >= 4 {
                let bytes = (4 + rng.below(200)).min(left);
                journal.append(&vec![7; bytes as usize - 4]).unwrap();
                left -= bytes;
                if rng.chance(0.2) {
                    journal.kick(Nanos(0), &mut flash);
                    flash.step(&mut journal);
                }
            }
            journal.flush();
            flash.settle(&mut journal);
            assert_eq!(journal.durable(), journal.position());
            assert_eq!(journal.stats().copies_lost, 0, "seed {seed}");
        }
        assert_eq!(journal.stats().generations, 4, "the initial empty generation was replaced");
    }
}

#[test]
fn too_few_chunks_say_how_many_are_needed() {
    let shape = shape(2, 20, 4, 1, 0);
    // A snapshot takes two chunks, a snapshot and a frame of records three.
    let config = config(464 * 8, 464);
    for good in 0..12 {
        let chunks = spread(good, 2, 20);
        match Journal::create(
            &shape,
            config,
            &chunks.iter().copied().map(ChunkId).collect::<Vec<_>>(),
        ) {
            Ok(mut journal) => {
                assert!(good >= 5);
                let mut flash = TestFlash::new(shape, &chunks, 1);
                flash.settle(&mut journal);
                let copies = if good >= 10 { 2 } else { 1 };
                assert_eq!(journal.stats().frames, copies);
            }
            Err(error) => {
                assert!(good < 5);
                assert_eq!(error, JournalError::TooFewChunks { good, needed: 5, mirrored: 10 });
            }
        }
    }
}

#[test]
fn records_and_snapshots_that_do_not_fit_say_so_and_change_nothing() {
    let shape = shape(2, 20, 10, 1, 0);
    let config = config(1_000, 4_000);
    let chunks = spread(4, 2, 20);
    let mut journal =
        Journal::create(&shape, config, &chunks.iter().copied().map(ChunkId).collect::<Vec<_>>())
            .unwrap();
    let mut flash = TestFlash::new(shape, &chunks, 1);
    // A generation has ten frames, three of them for the snapshot.
    assert_eq!(journal.record_bytes_max(), 7 * 464 - 4);
    journal.snapshot(vec![1; 1_000]).unwrap();
    assert_eq!(
        journal.snapshot(vec![1; 1_001]),
        Err(JournalError::SnapshotTooLarge { bytes: 1_001, max: 1_000 })
    );
    let max = journal.record_bytes_max();
    assert_eq!(
        journal.append(&vec![0; max as usize + 1]),
        Err(JournalError::RecordTooLarge { bytes: max + 1, max })
    );
    // This record fills the generation.
    assert_eq!(journal.append(&vec![3; max as usize]), Ok(Lsn(2)));
    let full = JournalError::SnapshotNeeded { frames: 1, available: 0 };
    assert_eq!(journal.append(b""), Err(full));
    assert_eq!((journal.position(), journal.durable()), (Lsn(2), Lsn(0)));
    journal.kick(Nanos(0), &mut flash);
    assert_eq!(
        journal.snapshot(vec![1; 1]),
        Err(JournalError::SnapshotInProgress { generation: 1 })
    );
    assert!(!journal.needs_snapshot() && journal.is_snapshot_in_progress());
    flash.settle(&mut journal);
    assert_eq!(journal.durable(), Lsn(2));
    assert!(journal.needs_snapshot());
    let recovered = flash.recover(config).unwrap();
    assert_eq!(recovered.snapshot, Some(vec![1; 1_000]));
    assert_eq!(recovered.records, [vec![3; max as usize]]);
}

#[test]
fn pending_records_are_bounded_by_the_capacity_of_the_media() {
    let shape = shape(2, 20, 10, 2, 0);
    let config = config(1_000, 10_000);
    let chunks = spread(chunks_needed(&shape, &config).unwrap(), 2, 20);
    let mut journal =
        Journal::create(&shape, config, &chunks.iter().copied().map(ChunkId).collect::<Vec<_>>())
            .unwrap();
    let mut bytes = 0;
    // The flash programs nothing.
    let error = loop {
        match journal.append(&[9; 100]) {
            Ok(_) => bytes += 104,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, JournalError::SnapshotNeeded { frames: 1, available: 0 }));
    let chunk = 10 * frame_payload_bytes(&shape);
    assert!(bytes >= config.record_bytes && bytes < 3 * chunk, "{bytes} bytes");
}

#[test]
fn snapshots_are_due_when_three_quarters_are_used() {
    let shape = shape(2, 20, 40, 1, 0);
    let config = config(400, 0);
    let chunks = spread(4, 2, 20);
    let mut journal =
        Journal::create(&shape, config, &chunks.iter().copied().map(ChunkId).collect::<Vec<_>>())
            .unwrap();
    let mut flash = TestFlash::new(shape, &chunks, 1);
    journal.snapshot(vec![0; 400]).unwrap();
    flash.settle(&mut journal);
    for frames in 1..=39 {
        journal.append(b"one").unwrap();
        journal.flush();
        flash.settle(&mut journal);
        assert_eq!(journal.needs_snapshot(), frames >= 30, "{frames} of 39 frames are used");
    }
}

#[test]
fn a_recovery_refuses_chunks_that_cannot_be() {
    let shape = shape(2, 4, 4, 2, 0);
    let new = |found: &[(u32, JournalChunkReport)]| {
        let found = found
            .iter()
            .map(|&(chunk, report)| FoundJournalChunk { chunk: ChunkId(chunk), report });
        let found: Vec<FoundJournalChunk> = found.collect();
        JournalRecovery::new(&shape, config(1, 1), &found).map(|_| ()).unwrap_err()
    };
    for (state, sectors) in [
        (JournalChunkReport::Written(9), 9),
        (JournalChunkReport::Written(10), 10),
        (JournalChunkReport::Closed(3), 3),
        (JournalChunkReport::Closed(u32::MAX), u32::MAX),
    ] {
        let error = JournalError::WritePointer { chunk: ChunkId(1), sectors, unit: 2, limit: 8 };
        assert_eq!(new(&[(0, JournalChunkReport::Free), (1, state)]), error);
    }
    let twice = [(3, JournalChunkReport::Free), (3, JournalChunkReport::Bad)];
    assert_eq!(new(&twice), JournalError::Chunk { chunk: ChunkId(3), times: 2, chunks: 8 });
    let beyond = [(8, JournalChunkReport::Free)];
    assert_eq!(new(&beyond), JournalError::Chunk { chunk: ChunkId(8), times: 1, chunks: 8 });
}

#[test]
fn no_chunks_at_all_are_an_empty_journal_that_fails_when_it_is_used() {
    let shape = shape(1, 4, 4, 1, 0);
    let mut flash = TestFlash::new(shape, &[0, 1], 1);
    flash.chunks.iter_mut().for_each(|(_, cells)| cells.bad = true);
    let mut recovered = flash.recover(config(1, 1)).unwrap();
    assert_eq!((recovered.snapshot, recovered.records.len(), recovered.unreadable), (None, 0, 0));
    flash.settle(&mut recovered.journal);
    let worn = JournalError::WornOut { reserved: 2, good: 0, frames: 1 };
    assert_eq!(recovered.journal.failed().as_ref(), Some(&worn));
    assert_eq!(recovered.journal.append(b"x"), Err(worn));
}

/// Returns a recovery of a journal with a snapshot, with its first reads in flight.
fn recovery() -> (JournalRecovery, TestFlash) {
    let (shape, config) = (shape(2, 4, 8, 1, 0), config(100, 100));
    let chunks = spread(6, 2, 4);
    let ids: Vec<ChunkId> = chunks.iter().copied().map(ChunkId).collect();
    let mut journal = Journal::create(&shape, config, &ids).unwrap();
    let mut flash = TestFlash::new(shape, &chunks, 1);
    journal.snapshot(vec![1; 100]).unwrap();
    flash.settle(&mut journal);
    flash.power_cut();
    let mut recovery = JournalRecovery::new(&shape, config, &flash.chunk_reports()).unwrap();
    assert!(recovery.kick(Nanos(0), &mut flash) && flash.outstanding() > 0);
    (recovery, flash)
}

#[test]
#[should_panic(expected = "journal operation 15 is no read in flight")]
fn a_read_that_was_not_started_is_not_ignored() {
    let (mut recovery, mut flash) = recovery();
    recovery.read_done(15, 0, &mut flash);
}

#[test]
#[should_panic(expected = "journal operation 0 is no padding in flight")]
fn padding_that_was_not_started_is_not_ignored() {
    let (mut recovery, _) = recovery();
    recovery.program_done(0, nvme::Status::SUCCESS);
}
