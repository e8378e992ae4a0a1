//! A sharded device: rejections, reopening, requests over many stripes, a core that closes,
//! threads, and deterministic histories.

// guarantee: B-44

mod oracle;
mod superblock;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::open_pblk::OpenPblk;
use block::{AtomicLimits, BlockDevice, Completion, Extent, ExtentState, Payload, Request};
use ftl::NewFtlError;
use mem::SharedRegion;
use nvme::Status;
use pblk::{PblkError, ShardHandle, Sharded, ShardedConfig, ShardedError, SuperblockError};
use rng::Rng;
use testkit::open_channel_drive::{MockOpenChannelDrive, geometry};
use time::{Component, Nanos, VirtualRunner};

const SECTOR: u64 = 512;

fn drive() -> MockOpenChannelDrive {
    MockOpenChannelDrive::new(geometry(2, 2, 40, 24, 2, 4), true, 1)
}

fn config(shards: u32, stripe_sectors: u32) -> ShardedConfig {
    ShardedConfig { stripe_sectors, ..ShardedConfig::new(shards) }
}

/// Runs everything until a request of `core` completes.
fn finish(drive: &mut MockOpenChannelDrive, cores: &mut [ShardHandle], core: usize) -> Completion {
    for _ in 0..100_000 {
        for handle in cores.iter_mut() {
            handle.poll(Nanos(0));
        }
        drive.fetch();
        drive.step();
        if let Some(done) = cores[core].reap() {
            return done;
        }
    }
    panic!("never ends");
}

fn submit(
    drive: &mut MockOpenChannelDrive,
    cores: &mut [ShardHandle],
    core: usize,
    request: Request,
) -> Completion {
    cores[core].submit(Nanos(0), request).unwrap();
    let done = finish(drive, cores, core);
    assert_eq!(done.tag, request.tag);
    done
}

#[test]
fn what_cannot_be_opened_says_why() {
    let refused =
        |drive: &mut MockOpenChannelDrive, config| drive.open_sharded(config, 16).unwrap_err();
    let error = refused(&mut drive(), config(0, 0));
    assert!(matches!(error, ShardedError::Shards { shards: 0, max: 32 }), "{error}");
    let error = refused(&mut drive(), config(33, 0));
    assert!(matches!(error, ShardedError::Shards { shards: 33, .. }), "{error}");
    let error = refused(&mut drive(), config(2, 24));
    assert!(matches!(error, ShardedError::Stripe { sectors: 24, .. }), "{error}");
    let error = refused(&mut drive(), config(2, 1 << 16));
    assert!(matches!(error, ShardedError::StripeTooWide { .. }), "{error}");
    // 16 shards with 2 or 3 chunks of each of 4 parallel units.
    let error = refused(&mut drive(), config(16, 8));
    let small = matches!(
        error,
        ShardedError::Shard { shard: 0, source: PblkError::Ftl(NewFtlError::Capacity(_)) }
    );
    assert!(small, "{error}");
    let mut tiny = MockOpenChannelDrive::new(geometry(1, 1, 20, 24, 2, 4), true, 1);
    let error = refused(&mut tiny, config(21, 8));
    assert!(matches!(error, ShardedError::TooFewChunks { shards: 21, .. }), "{error}");
    // A rejected open has written nothing to the drive.
    assert_eq!((tiny.stats.programs, tiny.stats.erases), (0, 0));
    let mut drive = drive();
    let (port, queues) = drive.connect_many(16, 3);
    let (info, chunks) = (drive.info(), drive.descriptors());
    let few = Sharded::open(&info, &chunks, queues, port, config(2, 8), &mut || {}, true);
    assert!(matches!(few, Err(ShardedError::Queues { queues: 3, shards: 2 })));
    let (port, queues) = drive.connect_many(16, 2);
    let few = Sharded::open(&info, &chunks[1..], queues, port, config(2, 8), &mut || {}, true);
    assert!(matches!(few, Err(ShardedError::Drive(PblkError::ChunkCount { .. }))), "{few:?}");
}

/// Creates a device with one sector written and flushed, and powers it off.
fn written(config: ShardedConfig) -> MockOpenChannelDrive {
    let mut drive = drive();
    let mut cores = drive.open_sharded(config, 16).unwrap().into_shards();
    let memory = SharedRegion::anonymous(4096).unwrap();
    memory.fill(0, 4096, 7);
    let at = cores[0].memory().register(&memory).unwrap();
    for request in [Request::write(3, 1, Payload::Contiguous(at), 0), Request::flush(1)] {
        assert!(submit(&mut drive, &mut cores, 0, request).status.is_success());
    }
    drive.cut_power();
    drive
}

#[test]
fn a_device_is_reopened_only_as_it_was_created() {
    let mut drive = written(config(2, 8));
    let other = |error| match error {
        ShardedError::Superblock(SuperblockError::LayoutMismatch {
            shards,
            stripe_sectors,
            ..
        }) => (shards, stripe_sectors),
        e => panic!("{e}"),
    };
    for (shards, stripe) in [(1, 8), (4, 8), (2, 16), (3, 8)] {
        let error = drive.open_sharded(config(shards, stripe), 16).unwrap_err();
        assert_eq!(other(error), (2, 8));
        drive.cut_power();
    }
    // pblk without shards also rejects it.
    let error = drive.open(ftl::FtlConfig::default(), 16).unwrap_err();
    assert!(matches!(error, PblkError::Sharded { shards: 2 }), "{error}");
    drive.cut_power();
    let mut cores = drive.open_sharded(config(2, 8), 16).unwrap().into_shards();
    let memory = SharedRegion::anonymous(4096).unwrap();
    let at = cores[0].memory().register(&memory).unwrap();
    let read = Request::read(3, 1, Payload::Contiguous(at), 0);
    assert!(submit(&mut drive, &mut cores, 1, read).status.is_success());
    let mut bytes = [0; SECTOR as usize];
    memory.read(0, &mut bytes);
    assert_eq!(bytes, [7; SECTOR as usize]);
}

#[test]
fn a_superblock_survives_the_loss_of_one_copy_and_not_of_both() {
    let mut drive = written(config(2, 8));
    let sectors = u64::from(drive.geometry.sectors);
    // The first location is chunk 0 of the first channel, the second that of the other channel.
    let second = 2 * u64::from(drive.geometry.chunks) * sectors;
    drive.faults.unreadable.insert(0);
    let error = drive.open_sharded(config(4, 8), 16).unwrap_err();
    assert!(
        matches!(
            error,
            ShardedError::Superblock(SuperblockError::LayoutMismatch { shards: 2, .. })
        ),
        "{error}"
    );
    drive.cut_power();
    let programs = drive.stats.programs;
    drop(drive.open_sharded(config(2, 8), 16).unwrap());
    assert!(drive.stats.programs > programs, "a free place took a copy");
    drive.cut_power();
    drive.faults.unreadable.insert(second);
    assert!(drive.open_sharded(config(2, 8), 16).is_ok(), "the third place has it");
    // A drive that was written by pblk without shards has no superblock.
    let mut plain = self::drive();
    let mut pblk = plain.open(ftl::FtlConfig::default(), 16).unwrap();
    pblk.submit(Nanos(0), Request::write(0, 100, Payload::BitBucket, 0)).unwrap();
    for _ in 0..1000 {
        pblk.poll(Nanos(0));
        plain.fetch();
        plain.step();
    }
    plain.cut_power();
    let before = (plain.stats.programs, plain.stats.erases);
    let error = plain.open_sharded(config(2, 8), 16).unwrap_err();
    let unsharded = SuperblockError::Unsharded { wanted_shards: 2 };
    assert!(matches!(&error, ShardedError::Superblock(e) if *e == unsharded), "{error}");
    assert_eq!((plain.stats.programs, plain.stats.erases), before, "unharmed");
}

#[test]
fn requests_over_many_stripes_are_one_request() {
    let mut drive = drive();
    let mut cores = drive.open_sharded(config(4, 4), 64).unwrap().into_shards();
    let sectors = 300;
    let memory = SharedRegion::anonymous(2 * sectors as usize * SECTOR as usize).unwrap();
    let at = cores[0].memory().register(&memory).unwrap();
    let back = at.offset(sectors * SECTOR);
    for i in 0..sectors as usize {
        memory.fill(i * SECTOR as usize, SECTOR as usize, 1 + (i % 251) as u8);
    }
    let write = Request::write(6, sectors as u32, Payload::Contiguous(at), 77);
    assert!(submit(&mut drive, &mut cores, 1, write).status.is_success());
    let stats = *cores[1].stats();
    assert_eq!((stats.requests, stats.split, stats.local, stats.sent), (1, 1, 1, 3));
    assert!([0, 2, 3].iter().all(|i| cores[*i].stats().served == 1));
    let read = Request::read(6, sectors as u32, Payload::Contiguous(back), 78);
    assert!(submit(&mut drive, &mut cores, 2, read).status.is_success());
    let (mut wrote, mut found) = (vec![0; 300 * 512], vec![0; 300 * 512]);
    memory.read(0, &mut wrote);
    memory.read(wrote.len(), &mut found);
    assert!(wrote == found);
    // Extents: a hole, written sectors, a hole; and with a hole in between.
    let all = cores[0].limits().sectors as u32;
    let list = |drive: &mut _, cores: &mut [ShardHandle]| {
        let done = submit(drive, cores, 3, Request::extents(0, all, back, 9));
        assert!(done.status.is_success());
        let decode = |i: usize| {
            let mut bytes = [0; Extent::BYTES];
            memory.read((sectors * SECTOR) as usize + i * Extent::BYTES, &mut bytes);
            Extent::decode(bytes)
        };
        (0..done.result as usize).map(decode).collect::<Vec<_>>()
    };
    use ExtentState::{Mapped, Unmapped};
    let extent = |lba, sectors, state| Extent { lba, sectors, state };
    let whole = [extent(0, 6, Unmapped), extent(6, 300, Mapped), extent(306, all - 306, Unmapped)];
    assert_eq!(list(&mut drive, &mut cores), whole);
    assert!(submit(&mut drive, &mut cores, 0, Request::discard(50, 40, 1)).status.is_success());
    let holed = list(&mut drive, &mut cores);
    assert_eq!(
        holed[1..4],
        [extent(6, 44, Mapped), extent(50, 40, Unmapped), extent(90, 216, Mapped)]
    );
    // Invalid requests complete with a status.
    for (request, status) in [
        (Request::read(u64::MAX, 1, Payload::BitBucket, 0), Status::LBA_OUT_OF_RANGE),
        (Request::write(u64::from(all) - 1, 2, Payload::BitBucket, 0), Status::LBA_OUT_OF_RANGE),
        (Request::read(0, 0, Payload::BitBucket, 0), Status::INVALID_FIELD),
        (
            Request::read(0, 9, Payload::Contiguous(mem::Iova(1 << 60)), 0),
            Status::DATA_TRANSFER_ERROR,
        ),
    ] {
        assert_eq!(submit(&mut drive, &mut cores, 0, request).status, status);
    }
    // An unreadable sector fails the whole request, and no other request.
    for request in [Request::flush(0), Request::flush(1)] {
        assert!(submit(&mut drive, &mut cores, 2, request).status.is_success());
    }
}

#[test]
fn a_full_table_is_busy_and_loses_nothing() {
    let mut drive = drive();
    let mut cores = drive.open_sharded(config(2, 8), 16).unwrap().into_shards();
    let depth = u64::from(cores[0].limits().queue_depth);
    let mut accepted = 0;
    for tag in 0..2 * depth {
        let request = Request::write(tag % 500, 20, Payload::BitBucket, tag);
        accepted += u64::from(cores[0].submit(Nanos(0), request).is_ok());
    }
    assert_eq!(accepted, depth);
    let mut ended: Vec<u64> = (0..depth).map(|_| finish(&mut drive, &mut cores, 0).tag).collect();
    ended.sort_unstable();
    assert!(ended.into_iter().eq(0..depth));
    assert!(cores[0].reap().is_none());
}

#[test]
fn what_a_core_has_of_others_completes_when_it_closes() {
    let mut drive = drive();
    let mut cores = drive.open_sharded(config(2, 8), 16).unwrap().into_shards();
    let gone = cores.pop().unwrap();
    let (a, b) = (Request::write(0, 16, Payload::BitBucket, 5), Request::flush(6));
    cores[0].submit(Nanos(0), a).unwrap();
    cores[0].submit(Nanos(0), b).unwrap();
    cores[0].submit(Nanos(0), Request::extents(0, 100, mem::Iova(0), 8)).unwrap();
    let (_, left) = gone.into_queue();
    assert!(left.is_empty());
    let mut tags = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let done = finish(&mut drive, &mut cores, 0);
        let known =
            [Status::ABORTED_SQ_DELETED, Status::DATA_TRANSFER_ERROR].contains(&done.status);
        assert!(known, "{done:?}");
        tags.insert(done.tag);
    }
    assert!(cores[0].stats().aborted > 0);
    let done = finish(&mut drive, &mut cores, 0);
    tags.insert(done.tag);
    assert_eq!(tags.into_iter().collect::<Vec<_>>(), [5, 6, 8]);
    // Its own shard still works; requests that need the other shard fail, however often.
    for tag in 0..10_000 {
        let (lba, fine) = if tag % 2 == 0 { (0, true) } else { (8, false) };
        let request = Request::write(lba, 1, Payload::BitBucket, tag);
        assert_eq!(submit(&mut drive, &mut cores, 0, request).status.is_success(), fine);
    }
    // A core that closes returns its outstanding requests.
    cores[0].submit(Nanos(0), Request::write(0, 16, Payload::BitBucket, 5)).unwrap();
    let (_, left) = cores.remove(0).into_queue();
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].tag, left[0].status), (5, Status::ABORTED_SQ_DELETED));
}

#[test]
fn the_same_seed_has_the_same_history() {
    let history = || {
        let mut drive = drive();
        let mut sharded = drive.open_sharded(config(4, 4), 16).unwrap();
        let mut rng = Rng::new(3);
        let (mut log, all) = (Vec::new(), sharded.shards_mut()[0].limits().sectors);
        for tag in 0..3_000 {
            let cores = sharded.shards_mut();
            let n = 1 + rng.below(20);
            let request = Request::write(rng.below(all - n), n as u32, Payload::BitBucket, tag);
            cores[rng.below(4) as usize].submit(Nanos(0), request).unwrap();
            let mut runner = VirtualRunner::new();
            let mut components: Vec<&mut dyn Component> =
                cores.iter_mut().map(|c| c as &mut dyn Component).collect();
            runner.run_until_idle(&mut components);
            drive.fetch();
            (0..4).for_each(|_| _ = drive.step());
            for (i, core) in cores.iter_mut().enumerate() {
                log.extend(std::iter::from_fn(|| core.reap()).map(|c| (i, c.tag, c.status)));
            }
        }
        (log, drive.stats.history, sharded.stats())
    };
    let (log, word, stats) = history();
    assert!(log.len() > 500 && stats.host_writes > 5_000, "{} {stats:?}", log.len());
    assert_eq!((log, word, stats), history());
}

/// Each thread writes and reads back its own sectors on the whole device, while another thread runs
/// the drive.
#[test]
fn threads_find_what_they_wrote_on_each_others_shards() {
    const THREADS: u64 = 3;
    fn sendable<T: Send>(_: &T) {}
    let mut drive = MockOpenChannelDrive::new(geometry(3, 1, 60, 24, 2, 4), true, 1);
    let cores = drive.open_sharded(config(THREADS as u32, 4), 64).unwrap().into_shards();
    let left = AtomicUsize::new(THREADS as usize);
    thread::scope(|scope| {
        for (who, mut core) in (0..).zip(cores) {
            let left = &left;
            sendable(&core);
            scope.spawn(move || {
                let memory = SharedRegion::anonymous(4096).unwrap();
                let at = core.memory().register(&memory).unwrap();
                let (mut rng, all) = (Rng::new(who), core.limits().sectors);
                let mut values = vec![0u64; (all / THREADS) as usize];
                for round in 1..=2_000 {
                    let mine = rng.below(all / THREADS);
                    let (lba, reads) = (mine * THREADS + who, rng.chance(0.5));
                    let known = values[mine as usize];
                    let data = Payload::Contiguous(at);
                    let request = if reads {
                        Request::read(lba, 1, data, round)
                    } else {
                        values[mine as usize] = round;
                        memory.write(8, &round.to_le_bytes());
                        Request::write(lba, 1, data, round)
                    };
                    core.submit(Nanos(0), request).unwrap();
                    let done = loop {
                        core.poll(Nanos(0));
                        if let Some(done) = core.reap() {
                            break done;
                        }
                        thread::yield_now();
                    };
                    assert_eq!((done.tag, done.status), (round, Status::SUCCESS));
                    if reads {
                        let mut bytes = [0; 8];
                        memory.read(8, &mut bytes);
                        assert_eq!(u64::from_le_bytes(bytes), known, "sector {lba} of {who}");
                    }
                }
                left.fetch_sub(1, Ordering::Relaxed);
                while left.load(Ordering::Relaxed) > 0 {
                    core.poll(Nanos(0));
                    thread::yield_now();
                }
                assert!(core.stats().sent > 500 && core.stats().served > 500, "{:?}", core.stats());
            });
        }
        while left.load(Ordering::Relaxed) > 0 {
            if !(drive.fetch() | drive.step()) {
                thread::yield_now();
            }
        }
    });
}

// guarantee: D-59

#[test]
fn atomic_writes_end_at_stripes() {
    let mut drive = drive();
    let ftl = ftl::FtlConfig { atomic_writes: true, ..ftl::FtlConfig::default() };
    let mut sharded = drive.open_sharded(ShardedConfig { ftl, ..config(2, 8) }, 16).unwrap();
    let cores = sharded.shards_mut();
    let limits = AtomicLimits { sectors: 2, boundary_sectors: 8 };
    assert_eq!(cores[0].limits().atomic, limits);
    for (lba, is_whole) in [(6, true), (7, false), (8, true)] {
        let write = Request::atomic_write(lba, 2, Payload::BitBucket, lba);
        let done = submit(&mut drive, cores, 0, write);
        let expected = if is_whole { Status::SUCCESS } else { Status::INVALID_FIELD };
        assert_eq!(done.status, expected, "{lba}");
    }
}
