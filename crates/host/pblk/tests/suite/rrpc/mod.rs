//! `rrpc` on the emulated drive with a device L2P: rejections, what opening reads, trims, lost
//! sectors, wear; and random overlapping requests, with failures and power cuts, compared with an
//! oracle.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-pblk
//! rrpc::oracle`. `SLUICE_CASES` sets the number of seeds, `SLUICE_FIRST` the first one.

// guarantee: D-43, D-44, D-45, D-46

mod harness;
mod oracle;

use block::{BlockDevice, Payload, Request};
use ftl::{FtlConfig, VictimPolicyKind};
use harness::{Bench, SECTOR, Shape, config};
use media::{ChunkId, InjectedFault, PhysSector};
use nvme::{DeviceL2pLog, Status};
use ocssd::vector::VectorQueue;
use pblk::{DeviceL2pEntries, DriveQueue, Pblk, PblkError, Rrpc, RrpcError};
use rng::Rng;

const SMALL: Shape = Shape { channels: 2, pus: 2, chunks: 30, pages: 8, sectors: 2, pair: 2 };

#[test]
fn a_drive_without_a_map_is_refused() {
    let mut b = Bench::new(config(SMALL, false));
    let (info, chunks, map, parts) = b.attach();
    assert!(map.is_none());
    let e = Rrpc::open(
        &info,
        &chunks,
        DeviceL2pEntries { entries: &[], totals: DeviceL2pLog::default() },
        parts,
        Rrpc::config(),
        &mut || {},
    )
    .unwrap_err();
    assert!(matches!(&e, RrpcError::NoMap { .. }), "{e}");
    assert!(e.to_string().contains("device_l2p = true"), "{e}");
    let mut b = Bench::new(config(SMALL, true));
    let (info, chunks, map, parts) = b.attach();
    let (places, totals) = map.unwrap();
    let short = DeviceL2pEntries { entries: &places[1..], totals };
    let e = Rrpc::open(&info, &chunks, short, parts, Rrpc::config(), &mut || {}).unwrap_err();
    assert!(matches!(e, RrpcError::MapLength { given: 1919, entries: 1920 }), "{e}");
}

#[test]
fn what_one_target_wrote_the_other_refuses() {
    let mut b = Bench::new(config(SMALL, true));
    b.open(Rrpc::config());
    b.write(0, 40, 7);
    b.flush();
    b.power_cycle();
    let (info, chunks, _, DriveQueue { queue, port }) = b.attach();
    let drive = &mut b.drive;
    let now = &mut b.now;
    let mut progress = || harness::run_drive(drive, now);
    let config = Rrpc::config();
    let e = Pblk::open(&info, &chunks, queue, port, config, &mut progress, true).unwrap_err();
    assert!(matches!(&e, PblkError::Recovery(_)), "{e}");
    assert!(e.to_string().contains("owner"), "{e}");
}

#[test]
fn opening_reads_the_drives_map_and_next_to_nothing_else() {
    let mut b = Bench::new(config(SMALL, true));
    b.open(Rrpc::config());
    let sectors = b.rrpc().limits().sectors;
    b.write(0, sectors as u32, 1_000);
    b.discard(10, 20);
    b.write(15, 1, 5);
    b.flush();
    assert_eq!(b.rrpc().stats().metadata, 0, "no pages of the map");
    assert!(b.rrpc().stats().trims_synced >= 19);
    b.power_cycle();
    b.open(Rrpc::config());
    let stats = *b.rrpc().recovery_stats().unwrap();
    // The journal, and none of the written data.
    assert!(stats.from_checkpoint && stats.oob_sectors == 0 && stats.lines_read == 0, "{stats:?}");
    assert!(stats.data_sectors < 40, "{stats:?}");
    for lba in 0..sectors {
        let expected = match lba {
            15 => 5,
            10..30 => 0,
            _ => 1_000 + lba,
        };
        assert_eq!(b.read(lba), Ok(expected), "sector {lba}");
    }
    assert_eq!(b.rrpc().ftl().mapped(), sectors - 19);
    assert!(b.rrpc().is_idle());
}

#[test]
fn a_trim_that_was_flushed_does_not_take_what_came_after() {
    // Concurrent trims and writes of the same sectors, with a flush at every moment.
    for round in 0..24u64 {
        let mut b = Bench::new(config(SMALL, true));
        b.open(Rrpc::config());
        b.write(0, 64, 100);
        b.flush();
        b.send(Request::discard(0, 64, 1));
        b.steps(round % 5);
        b.put(0, 32, 200);
        b.send(Request { fua: round % 2 == 0, ..Request::write(0, 32, b.payload(), 2) });
        b.steps(round / 5);
        b.send(Request::flush(3));
        // Until the flush completes; the write may be in flight.
        b.run_until_complete(3);
        let written = b.is_complete(2);
        b.power_cycle();
        b.open(Rrpc::config());
        for lba in 0..64u64 {
            let found = b.read(lba).unwrap();
            let trimmed = b.flush_covered_trim;
            let new = if lba < 32 { 200 + lba } else { 0 };
            let fua = round % 2 == 0 && written && lba < 32;
            let fine = found == new || !fua && (found == 0 || !trimmed && found == 100 + lba);
            assert!(fine, "round {round}, sector {lba} is {found}");
        }
    }
}

#[test]
fn what_was_lost_stays_lost_after_a_restart() {
    let (few, looked_at) = lose_every(160);
    assert!(looked_at <= 2 * few, "{looked_at} looked at for {few}");
    // More than the journal can record: all sectors are scanned.
    let (many, looked_at) = lose_every(40);
    assert!(looked_at > 20 * many, "{looked_at} looked at for {many}");
}

/// Loses one sector in `step`, and checks the others. Returns the number of lost sectors, and of
/// out-of-band areas read to detect them.
fn lose_every(step: u64) -> (u64, u64) {
    let mut b = Bench::new(config(SMALL, true));
    let config = Rrpc::config();
    b.open(config);
    let sectors = b.rrpc().limits().sectors;
    b.write(0, sectors as u32, 1_000);
    b.flush();
    // The locations, from the device L2P.
    let mut lost = Vec::new();
    for lba in (3..sectors).step_by(step as usize) {
        let phys = b.mapped_sector(lba);
        b.drive
            .nand_mut()
            .unwrap()
            .inject(InjectedFault::Uncorrectable { phys: PhysSector(phys) })
            .unwrap();
        lost.push(lba);
    }
    // Overwrites every other sector repeatedly, so that lost sectors are relocated.
    let mut rng = Rng::new(5);
    for _ in 0..20_000 {
        let lba = rng.below(sectors);
        if lba % step != 3 {
            b.write(lba, 1, 1_000 + lba);
        }
    }
    b.flush();
    let moved = b.rrpc().stats().uncorrectable_sectors;
    assert!(moved as usize > lost.len() / 2, "{moved} of {} were moved", lost.len());
    b.power_cycle();
    b.open(config);
    let looked_at = b.rrpc().recovery_stats().unwrap().oob_sectors;
    assert!(looked_at >= moved.min(lost.len() as u64 / 2), "{looked_at}");
    for lba in 0..sectors {
        let found = b.read(lba);
        if lost.contains(&lba) {
            assert_eq!(found, Err(Status::UNRECOVERED_READ), "sector {lba}");
        } else {
            assert_eq!(found, Ok(1_000 + lba), "sector {lba}");
        }
    }
    b.write(3, 1, 77);
    assert_eq!(b.read(3), Ok(77));
    (lost.len() as u64, looked_at)
}

/// Fills the drive, then writes: nine in ten requests to a tenth of the sectors. Returns the wear
/// difference of the most and the least worn chunk of the FTL, the standard deviation, and the
/// write amplification.
fn wear_of(config: FtlConfig) -> (u32, f64, f64) {
    let mut b = Bench::new(harness::config(SMALL, true));
    b.drive.set_zero_latency(true);
    b.open(config);
    let sectors = b.rrpc().limits().sectors;
    b.write(0, sectors as u32, 1);
    let mut rng = Rng::new(11);
    for _ in 0..120_000 {
        let span = if rng.chance(0.97) { sectors / 10 } else { sectors };
        b.write(rng.below(span), 1, 1);
    }
    b.flush();
    let nand = b.drive.nand_mut().unwrap();
    let layout = *b.rrpc.as_ref().unwrap().ftl().capacity_plan();
    // Without the chunks of the journal, the first ones of each parallel unit.
    let skip = layout.journal.chunks.div_ceil(4);
    let all = (0..4 * SMALL.chunks).filter(|c| c % SMALL.chunks >= skip);
    let wear: Vec<u32> = all.map(|c| nand.chunk_info(ChunkId(c)).unwrap().wear).collect();
    let mean = wear.iter().sum::<u32>() as f64 / wear.len() as f64;
    let variance = wear.iter().map(|w| (f64::from(*w) - mean).powi(2)).sum::<f64>();
    let spread = wear.iter().max().unwrap() - wear.iter().min().unwrap();
    let amplification = b.rrpc().stats().write_amplification().unwrap();
    (spread, (variance / wear.len() as f64).sqrt(), amplification)
}

#[test]
fn the_wear_term_narrows_the_spread_of_wear() {
    let plain = FtlConfig { over_provisioning: 0.2, ..FtlConfig::default() };
    let greedy = wear_of(plain);
    let levelled = wear_of(FtlConfig { dynamic_wear_leveling: true, ..plain });
    let cost = wear_of(FtlConfig {
        victim_policy: VictimPolicyKind::CostWear,
        dynamic_wear_leveling: true,
        ..plain
    });
    println!("spread, standard deviation, write amplification:");
    println!("greedy {greedy:?}, with levelling {levelled:?}, cost and levelling {cost:?}");
    assert!(cost.0 * 2 < greedy.0 && cost.1 * 2.0 < greedy.1);
    assert!(cost.2 < greedy.2 * 1.5, "{} for {}", cost.2, greedy.2);
}

#[test]
fn overlapping_requests_wait_and_are_counted() {
    let mut b = Bench::new(config(SMALL, true));
    b.open(Rrpc::config());
    b.put(0, 8, 50);
    b.send(Request { fua: true, ..Request::write(0, 8, b.payload(), 1) });
    b.send(Request::read(4, 1, b.second(), 2));
    b.send(Request::discard(4, 2, 3));
    b.send(Request::read(5, 1, Payload::BitBucket, 4));
    b.send(Request::read(100, 1, Payload::BitBucket, 5));
    for tag in [5, 1, 2, 3, 4] {
        b.run_until_complete(tag);
    }
    assert_eq!(b.second_value(), 54, "the read that waited for the write");
    let stats = *b.rrpc().overlap_stats();
    assert_eq!((stats.tracked, stats.waited), (5, 3), "{stats:?}");
    assert_eq!(b.read(4), Ok(0));
    assert_eq!(b.order.first(), Some(&5), "who overlaps nobody passes");
    assert_eq!(SECTOR, 512);
}

/// Lets the target complete its operations, and closes it.
fn close_target(b: &mut Bench) {
    while !b.rrpc().is_idle() {
        b.step();
    }
    b.rrpc = None;
}

/// Resets written chunks by vector commands, as another program would: those for which `only`
/// returns true.
fn reset_chunks(b: &mut Bench, only: impl Fn(u32) -> bool) {
    let (info, chunks, _, DriveQueue { queue, port }) = b.attach();
    let media = info.open_channel.unwrap();
    let mut queue = VectorQueue::new(queue, port, &info).unwrap();
    for (chunk, d) in (0u32..).zip(&chunks).filter(|(c, d)| only(*c) && d.wp.get() > 0) {
        let address =
            media.geometry.from_flat(u64::from(chunk) * u64::from(media.geometry.sectors));
        assert_ne!(d.chunk_state(), None);
        queue.reset([media.format.pack(address.unwrap())].into_iter(), 0).unwrap();
        queue.ring(true);
        while queue.reap().is_none() {
            harness::run_drive(&mut b.drive, &mut b.now);
        }
    }
}

#[test]
fn a_drive_that_is_wiped_behind_the_target_is_new_however_often() {
    // Trims with high sequence numbers, then writes with low ones: the map must accept them
    // nevertheless.
    let mut b = Bench::new(config(SMALL, true));
    for life in 1..=4u64 {
        b.open(Rrpc::config());
        assert!(b.rrpc().recovery_stats().is_none() && b.rrpc().ftl().mapped() == 0, "life {life}");
        b.write(0, 100, 1_000 * life);
        b.flush();
        b.power_cycle();
        b.open(Rrpc::config());
        for lba in 0..110 {
            let expected = if lba < 100 { 1_000 * life + lba } else { 0 };
            assert_eq!(b.read(lba), Ok(expected), "life {life}, sector {lba}");
        }
        for round in 0..6 {
            b.write(0, 400, 100_000 * life + round);
        }
        b.discard(0, 400);
        b.flush();
        close_target(&mut b);
        reset_chunks(&mut b, |_| true);
    }
}

#[test]
fn without_its_journal_everything_is_recovered() {
    let mut b = Bench::new(config(SMALL, true));
    b.open(Rrpc::config());
    b.write(0, 300, 1_000);
    b.discard(20, 30);
    b.flush();
    let (shape, journal) =
        (*b.rrpc().ftl().geometry(), b.rrpc().ftl().capacity_plan().journal.chunks);
    // Those of the journal are the first chunks, in striping order.
    let striped = |i| shape.chunk_on(shape.striped_pu(i % shape.pus), i / shape.pus).get();
    let of_journal: Vec<u32> = (0..journal).map(striped).collect();
    close_target(&mut b);
    reset_chunks(&mut b, |chunk| of_journal.contains(&chunk));
    b.open(Rrpc::config());
    assert!(!b.rrpc().recovery_stats().unwrap().from_checkpoint);
    for round in 0..2 {
        for lba in 0..300 {
            let expected = if (20..50).contains(&lba) { 0 } else { 1_000 + lba };
            let expected = if round > 0 && lba < 30 { 5_000 + lba } else { expected };
            assert_eq!(b.read(lba), Ok(expected), "sector {lba}");
        }
        // Also over trimmed sectors.
        b.write(0, 30, 5_000);
        b.flush();
        b.power_cycle();
        b.open(Rrpc::config());
    }
}

#[test]
fn a_map_that_was_wiped_or_has_another_owner_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("drive.img");
    let mut on_file = config(SMALL, true);
    let media::MediaConfig::Nand(nand) = &mut on_file.media else { panic!("it is NAND") };
    nand.data = media::DataStore::File(image.clone());
    let mut b = Bench::new(on_file.clone());
    b.open(Rrpc::config());
    // An empty device has an empty map, which is no error; neither is a device that was trimmed.
    for _ in 0..3 {
        b.power_cycle();
        b.open(Rrpc::config());
    }
    b.write(0, 100, 1_000);
    b.flush();
    b.discard(0, 100);
    b.flush();
    b.power_cycle();
    b.open(Rrpc::config());
    assert_eq!(b.read(7), Ok(0));
    b.write(0, 100, 2_000);
    b.flush();
    close_target(&mut b);
    drop(b);
    let map = dir.path().join("drive.img.map");
    let whole = std::fs::read(&map).unwrap();
    std::fs::remove_file(&map).unwrap();
    let refused = |expected: &str| {
        let mut b = Bench::new(on_file.clone());
        let before = written_chunks(&mut b);
        let e = b.try_open(Rrpc::config()).unwrap_err();
        assert!(matches!(e, RrpcError::Pblk(PblkError::Recovery(_))), "{e}");
        assert!(e.to_string().contains(expected), "{e}");
        assert_eq!(written_chunks(&mut b), before, "nothing was written but padding");
    };
    refused("the drive's map is empty, but");
    // With its map restored, the device is unchanged.
    std::fs::write(&map, whole).unwrap();
    let mut b = Bench::new(on_file.clone());
    b.open(Rrpc::config());
    assert_eq!(b.read(7), Ok(2_007));
    // Formatted, and written by another target, whose out-of-band bytes the map also understands.
    close_target(&mut b);
    reset_chunks(&mut b, |_| true);
    let (info, chunks, _, DriveQueue { queue, port }) = b.attach();
    let (drive, now) = (&mut b.drive, &mut b.now);
    let mut progress = || harness::run_drive(drive, now);
    let mut pblk =
        Pblk::open(&info, &chunks, queue, port, Rrpc::config(), &mut progress, true).unwrap();
    pblk.submit(b.now, Request::write(0, 64, Payload::BitBucket, 1)).unwrap();
    pblk.submit(b.now, Request::flush(2)).unwrap();
    let mut ended = 0;
    while ended < 2 || !pblk.is_idle() {
        time::Component::poll(&mut pblk, b.now);
        ended += std::iter::from_fn(|| pblk.reap()).count();
        harness::run_drive(&mut b.drive, &mut b.now);
    }
    drop((pblk, b));
    refused("owner");
}

/// Returns for every chunk whether it is written.
fn written_chunks(b: &mut Bench) -> Vec<bool> {
    let (_, chunks, ..) = b.attach();
    chunks.iter().map(|d| d.wp.get() > 0).collect()
}
