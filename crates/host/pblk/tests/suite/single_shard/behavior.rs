//! Individual behaviors of pblk, on a drive that enforces the NAND rules.

use std::sync::Arc;

use crate::open_pblk::OpenPblk;
use block::{
    AtomicLimits, BlockDevice, Completion, Extent, ExtentState, Payload, QueueFull, Request,
};
use ftl::{CapacityError, FtlConfig, NewFtlError, RecoveryError};
use mem::{Iova, SharedRegion};
use nvme::{ChunkState, Status};
use pblk::{Pblk, PblkError};
use rng::Rng;
use testkit::open_channel_drive::{MockOpenChannelDrive, geometry};
use time::{Component, Nanos};

const NOW: Nanos = Nanos(0);
const SECTOR: usize = 512;
/// Sectors of the memory for payloads.
const MEMORY: usize = 256;

struct Bench {
    drive: MockOpenChannelDrive,
    pblk: Pblk,
    memory: Arc<SharedRegion>,
    at: Iova,
    /// Maximum number of parallel units that were programmed at the same time.
    programming_max: usize,
}

impl Bench {
    fn new(mut drive: MockOpenChannelDrive, config: FtlConfig) -> Bench {
        let pblk = drive.open(config, 64).expect("a drive that can be opened");
        let memory = SharedRegion::anonymous(MEMORY * SECTOR).unwrap();
        let at = pblk.memory().register(&memory).unwrap();
        Bench { drive, pblk, memory, at, programming_max: 0 }
    }

    fn payload(&self, sector: usize) -> Payload {
        Payload::Contiguous(self.at.offset((sector * SECTOR) as u64))
    }

    /// Polls until `count` requests have completed.
    fn complete(&mut self, count: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        for _ in 0..1_000_000 {
            self.pblk.poll(NOW);
            done.extend(std::iter::from_fn(|| self.pblk.reap()));
            if done.len() >= count {
                return done;
            }
            self.drive.fetch();
            self.programming_max = self.programming_max.max(self.drive.programming());
            self.drive.step();
        }
        panic!("{} of {count}: {}", done.len(), self.pblk.ftl().debug_state());
    }

    fn run(&mut self, request: Request) -> Completion {
        self.pblk.submit(NOW, request).unwrap();
        let [done] = self.complete(1)[..] else { panic!("more than one completion") };
        assert_eq!(done.tag, request.tag);
        done
    }

    fn ok(&mut self, request: Request) -> u64 {
        let done = self.run(request);
        assert_eq!(done.status, Status::SUCCESS, "{request:?}");
        done.result
    }

    fn write(&mut self, lba: u64, byte: u8) {
        self.memory.fill(0, SECTOR, byte);
        self.ok(Request::write(lba, 1, self.payload(0), 1));
    }

    fn read(&mut self, lba: u64) -> u8 {
        self.memory.fill(SECTOR, SECTOR, 0xee);
        self.ok(Request::read(lba, 1, self.payload(1), 2));
        let mut bytes = [0; SECTOR];
        self.memory.read(SECTOR, &mut bytes);
        assert!(bytes.iter().all(|b| *b == bytes[0]));
        bytes[0]
    }

    /// Runs until no operation is in flight.
    fn run_until_idle(&mut self) {
        while self.pblk.poll(NOW) | self.drive.fetch() | self.drive.step() {}
    }
}

fn small(seed: u64) -> MockOpenChannelDrive {
    MockOpenChannelDrive::new(geometry(2, 2, 16, 32, 4, 8), true, seed)
}

fn refused(drive: &mut MockOpenChannelDrive, config: FtlConfig) -> PblkError {
    match drive.open(config, 64) {
        Ok(_) => panic!("a drive that cannot be opened"),
        Err(e) => e,
    }
}

#[test]
fn a_completion_that_was_not_reaped_is_due_at_once() {
    let mut b = Bench::new(
        MockOpenChannelDrive::new(geometry(2, 1, 16, 32, 4, 8), true, 1),
        FtlConfig { over_provisioning: 0.25, ..FtlConfig::default() },
    );
    b.run_until_idle();
    assert_eq!(b.pblk.deadline(), Nanos::MAX);
    // The write buffer acknowledges during a poll, and no command goes to the drive: only the
    // deadline informs the poller.
    b.pblk.submit(NOW, Request::write(0, 1, b.payload(0), 7)).unwrap();
    assert_eq!(b.pblk.deadline(), Nanos::ZERO);
    b.pblk.poll(NOW);
    assert_eq!(b.pblk.queue().outstanding(), 0);
    assert_eq!(b.pblk.deadline(), Nanos::ZERO);
    assert_eq!(b.pblk.reap().map(|done| done.tag), Some(7));
    assert_eq!(b.pblk.deadline(), Nanos::MAX);
    // The same applies to a rejected request.
    b.pblk.submit(NOW, Request::read(u64::MAX, 1, Payload::BitBucket, 8)).unwrap();
    b.pblk.poll(NOW);
    assert_eq!(b.pblk.deadline(), Nanos::ZERO);
    assert_eq!(b.pblk.reap().map(|done| done.tag), Some(8));
    assert_eq!(b.pblk.deadline(), Nanos::MAX);
}

#[test]
fn a_flush_pads_the_last_write_unit_and_what_it_covers_survives() {
    let mut b = Bench::new(small(1), FtlConfig::default());
    assert!(b.pblk.limits().volatile_cache);
    b.pblk.checkpoint();
    b.run_until_idle();
    // The journal, with the record of the first line.
    b.write(5, 0x55);
    b.ok(Request::flush(2));
    // The header of the line, for which the flush did not wait.
    b.run_until_idle();
    let (before, padding) = (b.drive.stats.programs, b.pblk.stats().padding);
    b.write(7, 0x77);
    b.run_until_idle();
    assert_eq!((b.drive.stats.programs, b.pblk.stats().padding), (before, padding), "buffered");
    assert_eq!(b.read(7), 0x77, "from the buffer");
    assert_eq!(b.pblk.stats().buffer_hits, 1);
    b.ok(Request::flush(3));
    assert_eq!((b.drive.stats.programs, b.pblk.stats().padding), (before + 1, padding + 3));
    b.write(8, 0x88);
    b.drive.cut_power();
    let mut b = Bench::new(b.drive, FtlConfig::default());
    assert_eq!((b.read(7), b.read(8), b.read(9)), (0x77, 0, 0));
    // FUA needs no flush.
    b.memory.fill(0, SECTOR, 0x99);
    b.ok(Request { fua: true, ..Request::write(9, 1, b.payload(0), 4) });
    b.ok(Request::discard(7, 1, 5));
    b.ok(Request::flush(6));
    b.drive.cut_power();
    let mut b = Bench::new(b.drive, FtlConfig::default());
    assert_eq!((b.read(7), b.read(9)), (0, 0x99));
}

#[test]
fn only_the_active_parallel_units_are_written() {
    for (active, least) in [(1, 1), (2, 2), (0, 5)] {
        let drive = MockOpenChannelDrive::new(geometry(4, 2, 16, 32, 4, 8), true, 5);
        let config = FtlConfig { active_pus: active, hot_cold: false, ..FtlConfig::default() };
        let mut b = Bench::new(drive, config);
        let sectors = b.pblk.limits().sectors / 64 * 64;
        for lba in (0..sectors).step_by(64) {
            b.ok(Request::write(lba, 64, b.payload(0), lba));
        }
        let most = if active == 0 { 8 } else { active as usize };
        // The next line may be opened while the last units of the previous one are in flight. The
        // two copies of the journal are on the first two parallel units.
        let turns = if active == 0 { 0 } else { active as usize + 2 };
        assert!(b.programming_max >= least, "{active}: {}", b.programming_max);
        assert!(b.programming_max <= most + turns, "{active}: {}", b.programming_max);
    }
}

#[test]
fn holes_slots_and_flash_meet_in_one_read() {
    let mut b = Bench::new(small(3), FtlConfig::default());
    for lba in 0..100u8 {
        if lba % 3 != 0 {
            b.write(lba.into(), lba);
        }
    }
    b.ok(Request::flush(1));
    for lba in [10, 11, 50] {
        b.write(lba, 200 + (lba % 7) as u8);
    }
    b.run_until_idle();
    b.memory.fill(0, 100 * SECTOR, 0xee);
    b.ok(Request::read(0, 100, b.payload(0), 9));
    for lba in 0..100 {
        let mut byte = [0];
        b.memory.read(lba * SECTOR + SECTOR - 1, &mut byte);
        let expected = match lba {
            10 | 11 | 50 => 200 + (lba % 7) as u8,
            _ if lba % 3 == 0 => 0,
            _ => lba as u8,
        };
        assert_eq!(byte[0], expected, "{lba}");
    }
    assert!(b.drive.stats.scattered > 0 && b.drive.stats.vectors > 0);
    // Dropped data: timing without transfer.
    b.ok(Request::read(0, 100, Payload::BitBucket, 9));
}

#[test]
fn an_unreadable_sector_fails_alone() {
    let mut b = Bench::new(small(4), FtlConfig::default());
    for lba in 0..64 {
        b.write(lba, 1);
    }
    b.ok(Request::flush(1));
    b.run_until_idle();
    let lost: Vec<u64> = (0..4 * 16 * 32).filter(|phys| phys % 2 == 1).collect();
    b.drive.faults.unreadable.extend(lost);
    let status: Vec<Status> =
        (0..64).map(|lba| b.run(Request::read(lba, 1, b.payload(0), 1)).status).collect();
    let failed = status.iter().filter(|s| s.is(Status::UNRECOVERED_READ)).count();
    let fine = status.iter().filter(|s| s.is_success()).count();
    assert!(failed > 10 && fine > 10 && failed + fine == 64, "{failed} {fine}");
    let all = b.run(Request::read(0, 64, b.payload(0), 1)).status;
    assert_eq!(all, Status::UNRECOVERED_READ);
}

#[test]
fn requests_that_cannot_be_are_answered_with_a_status() {
    let mut b = Bench::new(small(5), FtlConfig::default());
    let (sectors, at) = (b.pblk.limits().sectors, b.payload(0));
    let wild = Payload::Contiguous(Iova(12_345));
    for (request, status) in [
        (Request::read(sectors, 1, at, 1), Status::LBA_OUT_OF_RANGE),
        (Request::write(u64::MAX, 2, at, 2), Status::LBA_OUT_OF_RANGE),
        (Request::discard(sectors - 1, 2, 3), Status::LBA_OUT_OF_RANGE),
        (Request::read(0, 0, at, 4), Status::INVALID_FIELD),
        (Request::read(0, 1, wild, 5), Status::DATA_TRANSFER_ERROR),
        (Request::write(0, MEMORY as u32 + 1, at, 6), Status::DATA_TRANSFER_ERROR),
        (
            Request { data: Payload::BitBucket, ..Request::extents(0, 1, Iova(0), 7) },
            Status::INVALID_FIELD,
        ),
    ] {
        assert_eq!(b.run(request).status, status, "{request:?}");
    }
    b.run_until_idle();
    assert!(b.pblk.is_idle());
    assert!(!b.pblk.poll(NOW), "nothing moves");
    assert_eq!(b.pblk.deadline(), Nanos::MAX);
}

#[test]
fn extents_say_what_is_mapped() {
    let mut b = Bench::new(small(6), FtlConfig::default());
    b.ok(Request::write(10, 5, b.payload(0), 1));
    b.ok(Request::write_zeroes(20, 5, false, 2));
    b.ok(Request::write_zeroes(12, 1, true, 3));
    let Payload::Contiguous(at) = b.payload(0) else { unreachable!() };
    let count = b.ok(Request::extents(0, 30, at, 4));
    let found: Vec<(u64, u32, ExtentState)> = (0..count as usize)
        .map(|i| {
            let mut bytes = [0; Extent::BYTES];
            b.memory.read(i * Extent::BYTES, &mut bytes);
            let e = Extent::decode(bytes);
            (e.lba, e.sectors, e.state)
        })
        .collect();
    let (on, off) = (ExtentState::Mapped, ExtentState::Unmapped);
    let runs = [(0, 10, off), (10, 2, on), (12, 1, off), (13, 2, on), (15, 5, off), (20, 5, on)];
    assert_eq!(found[..6], runs);
    assert_eq!(found[6..], [(25, 5, off)]);
}

#[test]
fn a_full_table_is_busy_and_a_batch_is_one_doorbell() {
    let mut b = Bench::new(small(7), FtlConfig::default());
    for lba in 0..64 {
        b.write(lba, 3);
    }
    b.ok(Request::flush(1));
    b.run_until_idle();
    let before = b.drive.stats.doorbells;
    for lba in 0..32 {
        b.pblk.submit(NOW, Request::read(lba, 1, Payload::BitBucket, lba)).unwrap();
    }
    b.pblk.poll(NOW);
    b.drive.fetch();
    assert_eq!(b.drive.stats.doorbells, before + 1);
    let mut tags: Vec<u64> = b.complete(32).iter().map(|c| c.tag).collect();
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..32));
    let depth = u64::from(b.pblk.limits().queue_depth);
    for tag in 0..depth {
        b.pblk.submit(NOW, Request::read(tag % 64, 1, Payload::BitBucket, tag)).unwrap();
    }
    let more = Request::read(0, 1, Payload::BitBucket, depth);
    assert_eq!(b.pblk.submit(NOW, more), Err(QueueFull));
    assert_eq!(b.complete(depth as usize).len(), depth as usize);
    b.pblk.submit(NOW, more).unwrap();
    // Submitted requests are queued with the next poll.
    assert_eq!(b.pblk.queue().outstanding(), 0);
    b.pblk.poll(NOW);
    // Closed with one request outstanding.
    let (queue, completions) = b.pblk.into_queue();
    assert_eq!(queue.outstanding(), 1);
    let aborted = Status::ABORTED_SQ_DELETED;
    assert_eq!(completions, [Completion { tag: depth, status: aborted, result: 0 }]);
}

fn overwrite(seed: u64, keeps: bool) -> (u64, u64, String) {
    let mut drive = MockOpenChannelDrive::new(geometry(2, 2, 24, 32, 4, 8), keeps, seed);
    drive.options.reads_first = true;
    let mut b = Bench::new(drive, FtlConfig { over_provisioning: 0.2, ..FtlConfig::default() });
    let mut rng = Rng::new(seed);
    let sectors = b.pblk.limits().sectors;
    for tag in 0..sectors {
        let n = 1 + rng.below(8) as u32;
        let lba = rng.below(sectors - u64::from(n));
        let data = if keeps { b.payload(0) } else { Payload::BitBucket };
        if rng.chance(0.3) {
            b.ok(Request::read(lba, n, data, tag));
        } else {
            b.ok(Request::write(lba, n, data, tag));
        }
    }
    let stats = *b.pblk.stats();
    assert!(stats.gc_relocations > 0 && stats.lines_reclaimed > 10, "{stats:?}");
    assert!(stats.write_amplification().is_some_and(|w| w > 1.0));
    (b.drive.stats.history, b.drive.stats.fetched, format!("{stats:?}"))
}

#[test]
fn the_same_seed_sends_the_same_commands() {
    assert_eq!(overwrite(11, true), overwrite(11, true));
    assert_ne!(overwrite(11, true).0, overwrite(12, true).0);
}

#[test]
fn without_contents_everything_happens_but_nothing_is_transferred() {
    // The drive panics if data is transferred.
    assert_eq!(overwrite(13, false), overwrite(13, false));
    let mut drive = MockOpenChannelDrive::new(geometry(2, 2, 16, 32, 4, 8), false, 1);
    let mut b = Bench::new(drive, FtlConfig::default());
    b.ok(Request { fua: true, ..Request::write(0, 1, Payload::BitBucket, 1) });
    b.drive.cut_power();
    drive = b.drive;
    let e = refused(&mut drive, FtlConfig::default());
    // The chunk that was written, and two of the journal.
    assert!(matches!(e, PblkError::CannotRecover { chunks: 3 }), "{e}");
}

#[test]
fn drives_that_cannot_be_hosted_say_why() {
    let config = FtlConfig::default();
    let mut drive = MockOpenChannelDrive::new(geometry(2, 2, 4, 32, 4, 8), true, 1);
    let e = refused(&mut drive, config);
    let capacity = |e: &PblkError| match e {
        PblkError::Ftl(NewFtlError::Capacity(c)) => Some(c.clone()),
        _ => None,
    };
    assert!(
        matches!(capacity(&e), Some(CapacityError::TooSmall { lines: 2, journal: 7, .. })),
        "{e}"
    );
    let e = refused(&mut small(1), FtlConfig { active_pus: 5, ..config });
    let too_many = Some(CapacityError::TooManyActive { active: 5, pus: 4 });
    assert_eq!(capacity(&e), too_many);
    let mut g = geometry(2, 2, 16, 32, 4, 8);
    g.oob_bytes = 8;
    let e = refused(&mut MockOpenChannelDrive::new(g, true, 1), config);
    assert!(matches!(e, PblkError::OobTooSmall { oob_bytes: 8, needed: 16 }), "{e}");
    MockOpenChannelDrive::new(g, false, 1).open(config, 64).expect("nothing to keep");
    let mut narrow = small(1);
    narrow.options.mdts_sectors = 2;
    let e = refused(&mut narrow, config);
    assert!(matches!(e, PblkError::Shape { value: 2, .. }), "{e}");

    let copying = FtlConfig { vector_copy: true, ..config };
    let e = refused(&mut small(1), copying);
    assert!(matches!(&e, PblkError::NoVectorCopy { serial } if serial == "mock-oc"), "{e}");
    let mut paired = small(1);
    paired.options.can_copy = true;
    let e = refused(&mut paired, copying);
    assert!(e.to_string().contains("the drive has paired pages"), "{e}");

    let mut drive = small(1);
    let (port, queue) = drive.connect(8);
    let (mut info, chunks) = (drive.info(), drive.descriptors());
    let e = Pblk::open(&info, &chunks[1..], queue, port, config, &mut || (), true).unwrap_err();
    assert!(matches!(e, PblkError::ChunkCount { given: 63, chunks: 64 }), "{e}");
    let (port, queue) = drive.connect(8);
    let mut wrong = chunks.clone();
    wrong[3].wp = 1.into();
    let e = Pblk::open(&info, &wrong, queue, port, config, &mut || (), true).unwrap_err();
    assert!(e.to_string().starts_with("chunk 0/0/3/0: it is free, but"), "{e}");
    let (port, queue) = drive.connect(8);
    info.open_channel = None;
    let e = Pblk::open(&info, &chunks, queue, port, config, &mut || (), true).unwrap_err();
    assert!(matches!(&e, PblkError::NotOpenChannel { serial } if serial == "mock-oc"), "{e}");
}

#[test]
fn foreign_data_is_not_silently_used() {
    let mut drive = small(1);
    drive.scribble(5);
    let e = refused(&mut drive, FtlConfig::default());
    assert!(matches!(e, PblkError::ForeignData { sectors: 32, .. }), "{e}");
    assert_eq!((drive.stats.programs, drive.stats.erases), (0, 0), "unharmed");
    // Nor data that is readable only after padding.
    let mut drive = small(1);
    (0..40).for_each(|chunk| drive.scribble_to(chunk, 24));
    let e = refused(&mut drive, FtlConfig::default());
    let not_a_journal = "no chunk holds frames of a journal";
    assert!(e.to_string().contains(not_a_journal), "{e}");
    let mut drive = small(1);
    drive.scribble_to(5, 24);
    drive.scribble_to(21, 12);
    let e = refused(&mut drive, FtlConfig::default());
    assert!(matches!(e, PblkError::ForeignData { sectors: 20, .. }), "{e}");
    assert_eq!((drive.stats.programs, drive.stats.erases), (0, 0), "unharmed");

    let mut b = Bench::new(small(1), FtlConfig::default());
    let last = b.pblk.limits().sectors - 1;
    b.write(last, 1);
    b.ok(Request::flush(1));
    b.drive.cut_power();
    let other = FtlConfig { over_provisioning: 0.5, ..FtlConfig::default() };
    let before = (b.drive.stats.programs, b.drive.stats.erases);
    let e = refused(&mut b.drive, other);
    assert_eq!((b.drive.stats.programs, b.drive.stats.erases), before);
    assert!(matches!(e, PblkError::Recovery(RecoveryError::ConfigMismatch(_))), "{e}");
    assert!(e.to_string().contains("over_provisioning"), "{e}");
    b.drive.cut_power();
    let mut b = Bench::new(b.drive, FtlConfig::default());
    assert_eq!(b.read(last), 1, "unharmed");
}

#[test]
fn factory_bad_chunks_cost_capacity_and_later_ones_do_not() {
    let fresh = Bench::new(small(1), FtlConfig::default()).pblk.limits().sectors;
    let mut drive = small(1);
    (0..4).for_each(|i| drive.spoil(16 * i));
    let spoiled = Bench::new(drive, FtlConfig::default()).pblk.limits().sectors;
    assert!(spoiled < fresh);
    // Worn out: an offline chunk that was erased.
    let mut drive = small(1);
    let (port, queue) = drive.connect(8);
    let (info, mut chunks) = (drive.info(), drive.descriptors());
    for i in 0..4 {
        chunks[16 * i].state = ChunkState::Offline.to_bits();
        chunks[16 * i].wear_index = 1;
    }
    let config = FtlConfig::default();
    let worn = Pblk::open(&info, &chunks, queue, port, config, &mut || (), true).unwrap();
    assert_eq!(worn.limits().sectors, fresh);
}

#[test]
fn a_drive_that_does_not_answer_a_recovery_is_an_error() {
    let mut b = Bench::new(small(1), FtlConfig::default());
    b.write(0, 1);
    b.ok(Request::flush(1));
    b.drive.cut_power();
    let mut drive = b.drive;
    let (port, queue) = drive.connect(8);
    let (info, chunks, config) = (drive.info(), drive.descriptors(), FtlConfig::default());
    let e = Pblk::open(&info, &chunks, queue, port, config, &mut || (), true).unwrap_err();
    assert!(matches!(e, PblkError::Timeout { outstanding: 1.., .. }), "{e}");
}

#[test]
fn a_map_larger_than_its_memory_pages_over_vector_commands() {
    let shape = geometry(1, 1, 60, 64, 1, 1);
    let config = FtlConfig { over_provisioning: 0.3, map_cache_sectors: 1, ..FtlConfig::default() };
    let capacity = |e: &PblkError| match e {
        PblkError::Ftl(NewFtlError::Capacity(c)) => Some(c.clone()),
        _ => None,
    };
    // A drive that does not store contents has no map pages to read back.
    let e = refused(&mut MockOpenChannelDrive::new(shape, false, 1), config);
    assert_eq!(capacity(&e), Some(CapacityError::MapCacheWithoutData));
    let mut drive = MockOpenChannelDrive::new(shape, true, 1);
    let e = refused(&mut drive, config);
    let Some(CapacityError::MapCacheTooSmall { sectors: 1, sectors_min: least }) = capacity(&e)
    else {
        panic!("{e}");
    };
    let config = FtlConfig { map_cache_sectors: least, ..config };
    let mut b = Bench::new(drive, config);
    let sectors = b.pblk.limits().sectors;
    let byte = |lba: u64, round: u64| (lba * 7 + round) as u8;
    let mut rng = Rng::new(4);
    let mut model: Vec<u8> = (0..sectors).map(|lba| byte(lba, 0)).collect();
    for lba in 0..sectors {
        b.write(lba, model[lba as usize]);
    }
    for round in 0..4_000 {
        let lba = rng.below(sectors);
        if round % 2 == 0 {
            model[lba as usize] = byte(lba, round);
            b.write(lba, byte(lba, round));
        } else {
            assert_eq!(b.read(lba), model[lba as usize], "sector {lba}");
        }
    }
    b.ok(Request::flush(9));
    let (stats, cache) = (*b.pblk.stats(), b.pblk.ftl().map_cache());
    assert!(stats.map_page_reads > 500 && stats.map_page_writes > 500, "{stats:?}");
    assert!(stats.lines_reclaimed > 5 && cache.resident_max < least, "{stats:?} {cache:?}");
    let Bench { mut drive, pblk, .. } = b;
    drop(pblk);
    drive.cut_power();
    let mut b = Bench::new(drive, config);
    for lba in 0..sectors {
        assert_eq!(b.read(lba), model[lba as usize], "sector {lba} after a power cut");
    }
    assert_eq!(b.pblk.stats().map_mismatches, 0);
}

// guarantee: D-59

#[test]
fn writes_of_a_write_unit_are_atomic_if_asked_for() {
    let request = |lba, sectors| Request::atomic_write(lba, sectors, Payload::BitBucket, 1);
    for (atomic_writes, most) in [(true, 2), (false, 1)] {
        let drive = MockOpenChannelDrive::new(geometry(2, 2, 40, 24, 2, 4), true, 1);
        let config = FtlConfig { atomic_writes, ..FtlConfig::default() };
        let mut b = Bench::new(drive, config);
        let limits = AtomicLimits { sectors: most, boundary_sectors: 0 };
        assert_eq!(b.pblk.limits().atomic, limits);
        assert!(b.run(request(5, most)).status.is_success());
        assert_eq!(b.run(request(5, most + 1)).status, Status::INVALID_FIELD);
        let trim = Request { atomic: true, ..Request::discard(5, 1, 2) };
        assert_eq!(b.run(trim).status, Status::INVALID_FIELD);
    }
}
