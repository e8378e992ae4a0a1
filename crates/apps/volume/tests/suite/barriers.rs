//! Ordered barriers: when they complete, what they cost, what waits for them, and what a failure of
//! the device does to them. Power cuts are in `oracle`, and one example here.

// guarantee: D-64

use block::AtomicLimits;
use mem::Iova;
use nvme::Status;
use time::{Component as _, Nanos};
use volume::{
    BLOCK, Error, FormatOptions, Ino, InodePermissions, Name, OpResult, Options, RequestBuffer,
    SetAttr, Time, VolumeOp, VolumeRequest, format,
};

use crate::common::{Open, Ram, cut, formatted, open, pattern, tick, try_open};

const ROOT: Ino = Ino::ROOT;
const BLOCKS: u64 = 2048;
/// Bytes of the data of writes.
const DATA_BYTES: usize = 16 << 10;
/// Maximum blocks that one transaction of 256 KiB journals for barriers.
const CAPTURES_MAX: u64 = 47;

/// A volume whose requests are submitted without waiting for them.
pub(crate) struct Session {
    pub(crate) fs: Open,
    iova: Iova,
    next: u64,
}

impl Session {
    pub(crate) fn new(options: Options) -> Session {
        Session::on(formatted(512, BLOCKS), options)
    }

    pub(crate) fn on(device: Ram, options: Options) -> Session {
        let fs = try_open(device, options).unwrap();
        let (region, iova) = fs.volume().memory().allocate_registered(DATA_BYTES).unwrap();
        region.write(0, &pattern(5, DATA_BYTES));
        Session { fs, iova, next: 1 << 32 }
    }

    pub(crate) fn write(&self, ino: Ino, offset: u64, len: u32) -> VolumeOp {
        VolumeOp::Write { ino, offset, data: self.data(len) }
    }

    pub(crate) fn data(&self, len: u32) -> RequestBuffer {
        RequestBuffer { iova: self.iova, len }
    }

    pub(crate) fn submit(&mut self, op: VolumeOp) -> u64 {
        self.next += 1;
        let request = VolumeRequest { id: self.next, op, time: Time(0) };
        let now = tick(self.fs.volume_mut().device_mut());
        self.fs.volume_mut().submit(now, request).unwrap();
        self.next
    }

    /// Polls once. Returns the completions.
    pub(crate) fn poll(&mut self) -> Vec<(u64, Result<OpResult, Error>)> {
        let now = tick(self.fs.volume_mut().device_mut());
        self.fs.volume_mut().poll(now);
        self.fs.volume().check_invariants().unwrap();
        let mut all = Vec::new();
        while let Some(done) = self.fs.volume_mut().reap() {
            all.push((done.id, done.result));
        }
        all
    }

    /// Polls until a request completes.
    pub(crate) fn wait(&mut self, id: u64) -> Result<OpResult, Error> {
        for _ in 0..20_000 {
            if let Some((_, result)) = self.poll().into_iter().find(|(done, _)| *done == id) {
                return result;
            }
        }
        panic!("request {id} does not complete: {:?}", self.fs.volume().stats());
    }

    pub(crate) fn device(&mut self) -> &mut Ram {
        self.fs.volume_mut().device_mut()
    }

    /// Sets whether the device accepts no requests.
    pub(crate) fn stop_device(&mut self, is_stopped: bool) {
        self.device().limits.queue_depth = if is_stopped { 0 } else { 64 };
    }

    pub(crate) fn barriers(&self) -> (u64, u64) {
        (self.fs.volume().last_barrier(), self.fs.volume().durable_barrier())
    }
}

#[test]
fn a_barrier_completes_at_once_and_becomes_durable_without_a_request() {
    let mut session = Session::new(Options::default());
    let file = session.fs.create(ROOT, "file").unwrap();
    assert_eq!(session.barriers(), (0, 0));
    session.stop_device(true);
    let write = session.submit(session.write(file, 0, 100));
    let barrier = session.submit(VolumeOp::Barrier);
    let wait = session.submit(VolumeOp::AwaitBarrier { barrier: 1 });
    let done = session.poll();
    assert_eq!(done.len(), 2);
    assert_eq!(done[0].0, write);
    assert_eq!(done[1], (barrier, Ok(OpResult::Barrier(1))));
    assert_eq!(session.barriers(), (1, 0));
    session.stop_device(false);
    assert_eq!(session.wait(wait), Ok(OpResult::Done));
    assert_eq!(session.barriers(), (1, 1));
    // Without a wait, and without changes.
    for barrier in 2..5 {
        assert_eq!(session.fs.barrier(), Ok(barrier));
        session.poll();
        session.poll();
        assert_eq!(session.barriers(), (barrier, barrier));
    }
    let mut fs = open(cut(session.fs));
    assert_eq!(fs.read_all(file).unwrap(), pattern(5, 100));
    assert_eq!((fs.volume().last_barrier(), fs.volume().durable_barrier()), (0, 0));
}

#[test]
fn barriers_that_arrive_during_a_commit_share_the_next_one() {
    let mut session = Session::new(Options::default());
    let file = session.fs.create(ROOT, "log").unwrap();
    session.fs.run(VolumeOp::SyncAll).unwrap();
    let commits = session.fs.volume().stats().commits;
    session.stop_device(true);
    for record in 0..50 {
        session.submit(session.write(file, record * 100, 100));
        session.submit(VolumeOp::Barrier);
        assert_eq!(session.poll().len(), 2, "neither the write nor the barrier waits");
    }
    assert_eq!(session.barriers(), (50, 0));
    session.stop_device(false);
    let wait = session.submit(VolumeOp::AwaitBarrier { barrier: 50 });
    assert_eq!(session.wait(wait), Ok(OpResult::Done));
    let stats = session.fs.volume().stats();
    assert_eq!((stats.commits - commits, stats.barriers, stats.barrier_commits), (2, 50, 2));
    assert_eq!((stats.barrier_waits, stats.barrier_in_place_blocks), (0, 0));
    assert!(stats.barrier_captured_bytes < 8192, "{stats:?}");
}

#[test]
fn many_blocks_are_written_in_place_and_later_changes_wait_within_a_limit() {
    let mut device = Ram::for_volume(512, 16_384);
    let shape = FormatOptions { journal_blocks: Some(2048), ..FormatOptions::default() };
    format(&mut device, &shape, tick).unwrap();
    let mut session = Session::on(device, Options::default());
    let (data, other) =
        (session.fs.create(ROOT, "data").unwrap(), session.fs.create(ROOT, "other").unwrap());
    let blocks: u64 = 600;
    for at in 0..blocks {
        session.fs.run(session.write(data, at * BLOCK as u64, BLOCK as u32)).unwrap();
    }
    session.fs.run(VolumeOp::SyncAll).unwrap();
    // An overwrite, which a recovery sees at once.
    for at in 0..blocks {
        session.fs.run(session.write(data, at * BLOCK as u64, BLOCK as u32)).unwrap();
    }
    session.stop_device(true);
    session.submit(VolumeOp::Barrier);
    let ids: Vec<u64> = (0..100u64)
        .map(|at| session.submit(session.write(other, at * BLOCK as u64, BLOCK as u32)))
        .collect();
    let mut done = 0;
    for _ in 0..50 {
        done += session.poll().len() as u64;
    }
    assert!((2..=1 + CAPTURES_MAX).contains(&done), "{done}");
    let stats = session.fs.volume().stats();
    assert!((1..=100).contains(&stats.barrier_waits), "{stats:?}");
    assert_eq!(session.barriers(), (1, 0));
    session.stop_device(false);
    session.wait(ids[99]).unwrap();
    session.fs.await_barrier(1).unwrap();
    let stats = session.fs.volume().stats();
    assert_eq!(stats.barrier_in_place_blocks, blocks);
    assert!(stats.barrier_captured_blocks <= CAPTURES_MAX, "{stats:?}");
    assert!(stats.journal_only_blocks <= CAPTURES_MAX, "{stats:?}");
}

/// Overwritten blocks need no space in the transaction, which is small in this volume.
#[test]
fn small_changes_do_not_wait_for_the_overwritten_blocks_before_a_barrier() {
    let mut session = Session::new(Options::default());
    let (data, log) =
        (session.fs.create(ROOT, "data").unwrap(), session.fs.create(ROOT, "log").unwrap());
    for _ in 0..2 {
        session.fs.write(data, 0, &pattern(1, 600 * BLOCK)).unwrap();
        session.fs.run(VolumeOp::SyncAll).unwrap();
    }
    session.fs.write(data, 0, &pattern(2, 600 * BLOCK)).unwrap();
    session.stop_device(true);
    session.submit(VolumeOp::Barrier);
    for record in 0..50 {
        session.submit(session.write(log, record * 100, 100));
        session.submit(VolumeOp::Barrier);
    }
    assert_eq!(session.poll().len(), 101);
    let stats = session.fs.volume().stats();
    assert_eq!((stats.barrier_waits, stats.barrier_in_place_blocks), (0, 600));
    session.stop_device(false);
    session.fs.await_barrier(51).unwrap();
    let mut fs = open(cut(session.fs));
    assert_eq!(fs.read_all(data).unwrap(), pattern(2, 600 * BLOCK));
    assert_eq!(fs.read_all(log).unwrap().len(), 5000);
}

/// Submits creations of 200 files with long names after a barrier. Returns how many complete while
/// an earlier transaction is being written.
fn creations_after_a_barrier(session: &mut Session) -> usize {
    session.stop_device(true);
    let create = |number: u32| VolumeOp::Create {
        dir: ROOT,
        name: Name::new(format!("{number}{}", "x".repeat(240))).unwrap(),
        access: InodePermissions::default(),
        exclusive: true,
        open: false,
    };
    session.submit(create(0));
    session.submit(VolumeOp::Sync { ino: ROOT, data_only: false });
    assert_eq!(session.poll().len(), 1);
    session.submit(VolumeOp::Barrier);
    for number in 1..=200 {
        session.submit(create(number));
    }
    let done = session.poll().len() + session.poll().len() - 1;
    session.stop_device(false);
    let wait = session.submit(VolumeOp::AwaitBarrier { barrier: session.barriers().0 });
    assert_eq!(session.wait(wait), Ok(OpResult::Done));
    done
}

/// The option makes transactions larger; the journal bounds them.
#[test]
fn a_large_transaction_has_the_blocks_of_many_barriers() {
    let captured = |txn_bytes: u32| {
        let mut device = Ram::for_volume(512, 64 * BLOCKS);
        let shape = FormatOptions { journal_blocks: Some(2048), ..FormatOptions::default() };
        format(&mut device, &shape, tick).unwrap();
        let mut session = Session::on(device, Options { txn_bytes, ..Options::default() });
        let file = session.fs.create(ROOT, "file").unwrap();
        session.fs.run(VolumeOp::SyncAll).unwrap();
        for at in 0..200 {
            session.fs.run(session.write(file, 2 * at * BLOCK as u64, BLOCK as u32)).unwrap();
        }
        session.submit(VolumeOp::Barrier);
        session.poll();
        let barrier = session.barriers().0;
        let wait = session.submit(VolumeOp::AwaitBarrier { barrier });
        assert_eq!(session.wait(wait), Ok(OpResult::Done));
        let stats = session.fs.volume().stats();
        let mut fs = open(cut(session.fs));
        let bytes = fs.read_all(file).unwrap();
        let is_there = |at: usize| bytes[2 * at * BLOCK..][..BLOCK] == pattern(5, BLOCK);
        assert!((0..200).all(is_there));
        (stats.barrier_captured_blocks, stats.barrier_in_place_blocks)
    };
    assert_eq!(captured(Options::default().txn_bytes), (0, 200));
    assert_eq!(captured(2 << 20), (200, 0));
    let refused = |txn_bytes| {
        let mut device = Ram::for_volume(512, BLOCKS);
        format(&mut device, &FormatOptions::default(), tick).unwrap();
        try_open(device, Options { txn_bytes, ..Options::default() }).unwrap_err().to_string()
    };
    for bytes in [0, (256 << 10) - 1, (16 << 20) + 1] {
        assert!(refused(bytes).contains(&format!("{bytes} bytes of a transaction")));
    }
}

/// A transaction of this volume has 30 KB, which is 85 such changes.
#[test]
fn changes_after_a_barrier_leave_space_for_what_it_covers() {
    let options = Options { cache_pages: 4096, ..Options::default() };
    let mut session = Session::new(options);
    let file = session.fs.create(ROOT, "file").unwrap();
    session.fs.run(VolumeOp::SyncAll).unwrap();
    // Three blocks to be journaled need 12 KB of it.
    session.fs.write(file, 0, &pattern(1, 3 * BLOCK)).unwrap();
    let done = creations_after_a_barrier(&mut session);
    assert!((30..60).contains(&done), "{done}");
    assert!(session.fs.volume().stats().barrier_waits > 100);
    // The extents of 1,000 blocks, none beside another, need more than all of it.
    let mut device = Ram::for_volume(512, 2 * BLOCKS);
    let shape = FormatOptions { metadata_blocks: Some(128), ..FormatOptions::default() };
    format(&mut device, &shape, tick).unwrap();
    let mut session = Session::on(device, options);
    let file = session.fs.create(ROOT, "file").unwrap();
    session.fs.run(VolumeOp::SyncAll).unwrap();
    for at in 0..1000 {
        session.fs.run(session.write(file, 2 * at * BLOCK as u64, BLOCK as u32)).unwrap();
    }
    let done = creations_after_a_barrier(&mut session);
    assert_eq!(done, 0);
    let mut fs = open(cut(session.fs));
    let bytes = fs.read_all(file).unwrap();
    let is_there = |at: usize| bytes[2 * at * BLOCK..][..BLOCK] == pattern(5, BLOCK);
    assert!((0..1000).all(is_there));
}

/// A segment of a file that the running transaction changes is written in place only when that is
/// durable: no later change may keep the transaction open.
#[test]
fn segments_before_a_barrier_do_not_wait_for_a_transaction_that_waits_for_them() {
    let mut device = Ram::for_volume(512, BLOCKS);
    device.limits.atomic = AtomicLimits { sectors: 32, boundary_sectors: 0 };
    format(&mut device, &FormatOptions::default(), tick).unwrap();
    let mut session = Session::on(device, Options { cache_pages: 64, ..Options::default() });
    assert_eq!(session.fs.volume().atomic_write_bytes_max(), 8192);
    let file = session.fs.create(ROOT, "file").unwrap();
    session.fs.run(VolumeOp::SyncAll).unwrap();
    let unit = |at: u64| (at * 8192, 8192);
    for (offset, len) in (0..20).map(unit) {
        session.fs.run(session.write(file, offset, len)).unwrap();
    }
    session.fs.run(VolumeOp::SyncAll).unwrap();
    // The new size is in the running transaction, which the overwritten segments wait for.
    session.submit(VolumeOp::Truncate { ino: file, size: 1 << 20 });
    for (offset, len) in (0..20).map(unit) {
        session.submit(session.write(file, offset, len));
    }
    session.submit(VolumeOp::Barrier);
    let later = VolumeOp::SetAttr { ino: file, changes: SetAttr::default() };
    let later = session.submit(later);
    assert_eq!(session.wait(later), Ok(OpResult::Done));
    let wait = session.submit(VolumeOp::AwaitBarrier { barrier: 1 });
    assert_eq!(session.wait(wait), Ok(OpResult::Done));
    let stats = session.fs.volume().stats();
    assert_eq!((stats.barrier_in_place_blocks, stats.barrier_waits), (40, 1));
}

#[test]
fn a_sync_and_a_close_include_earlier_barriers() {
    let mut session = Session::new(Options::default());
    let (a, b) = (session.fs.create(ROOT, "a").unwrap(), session.fs.create(ROOT, "b").unwrap());
    for round in 1..20u64 {
        session.fs.run(session.write(a, round * 5000, 9000)).unwrap();
        session.submit(VolumeOp::Barrier);
        let write = session.submit(session.write(b, round * 100, 100));
        session.wait(write).unwrap();
        let sync = session.submit(VolumeOp::Sync { ino: b, data_only: false });
        assert_eq!(session.wait(sync), Ok(OpResult::Done));
        assert_eq!(session.barriers(), (round, round));
    }
    session.fs.run(session.write(a, 0, 9000)).unwrap();
    session.submit(VolumeOp::Barrier);
    let close = session.submit(VolumeOp::Close);
    assert_eq!(session.wait(close), Ok(OpResult::Done));
    assert_eq!(session.barriers(), (20, 20));
    let rejected = session.submit(VolumeOp::Barrier);
    assert_eq!(session.wait(rejected), Err(Error::ReadOnly));
}

#[test]
fn an_unknown_barrier_is_rejected() {
    let mut session = Session::new(Options::default());
    assert_eq!(session.fs.await_barrier(0), Ok(()));
    for barrier in [1, 2, u64::MAX] {
        let error = session.fs.await_barrier(barrier).unwrap_err();
        assert_eq!(error, Error::Invalid("a barrier that was not acknowledged"));
    }
    assert_eq!(session.fs.barrier(), Ok(1));
    assert_eq!(session.fs.await_barrier(1), Ok(()));
    assert!(session.fs.await_barrier(2).is_err());
}

#[test]
fn a_read_only_volume_has_durable_barriers() {
    let mut fs = open(formatted(512, BLOCKS));
    let file = fs.create(ROOT, "file").unwrap();
    fs.write(file, 0, &pattern(1, 100)).unwrap();
    fs.sync(file).unwrap();
    let mut fs = try_open(cut(fs), Options { read_only: true, ..Options::default() }).unwrap();
    fs.volume_mut().device_mut().untouched();
    assert_eq!(fs.barrier(), Ok(1));
    assert_eq!(fs.await_barrier(1), Ok(()));
    assert!(fs.volume_mut().device_mut().untouched());
}

/// Fails the device in one way, with a durable barrier and a pending one, and returns what is found
/// after a power cut: the contents of both files.
fn fail(blocks: u64, break_it: impl Fn(&mut Ram)) -> (Vec<u8>, Vec<u8>) {
    let mut session = Session::new(Options::default());
    let (a, b) = (session.fs.create(ROOT, "a").unwrap(), session.fs.create(ROOT, "b").unwrap());
    for at in 0..blocks {
        session.fs.write(a, at * BLOCK as u64, &pattern(1, BLOCK)).unwrap();
    }
    session.fs.write(b, 0, b"old").unwrap();
    assert_eq!(session.fs.barrier(), Ok(1));
    session.fs.await_barrier(1).unwrap();
    session.fs.run(VolumeOp::SyncAll).unwrap();
    for at in 0..blocks {
        session.fs.write(a, at * BLOCK as u64, &pattern(2, BLOCK)).unwrap();
    }
    break_it(session.device());
    session.submit(VolumeOp::Barrier);
    session.submit(VolumeOp::Barrier);
    let third = session.submit(VolumeOp::AwaitBarrier { barrier: 3 });
    let failed = Error::Barrier {
        barrier: 2,
        status: session.wait(third).map_or_else(
            |error| match error {
                Error::Barrier { status, .. } => status,
                error => panic!("{error}"),
            },
            |_| panic!("barrier 3 is durable"),
        ),
    };
    assert_eq!(failed.errno(), 5);
    assert_eq!(session.fs.await_barrier(2), Err(failed));
    assert_eq!(session.fs.await_barrier(1), Ok(()), "it was durable before");
    assert_eq!(session.fs.barrier(), Err(failed), "a later one fails as well");
    // Nothing later becomes durable, even if the device recovers.
    session.device().unwritable.clear();
    session.device().fail_flushes = false;
    assert!(matches!(session.fs.write(b, 0, b"new"), Err(Error::Io { .. })));
    assert!(matches!(session.fs.run(VolumeOp::SyncAll), Err(Error::Io { .. })));
    assert_eq!(session.barriers(), (3, 1));
    assert!(session.fs.volume().failure().is_some());
    let mut fs = open(cut(session.fs));
    (fs.read_all(a).unwrap(), fs.read_all(b).unwrap())
}

#[test]
fn a_failure_of_the_device_fails_the_pending_barrier_and_all_later_ones() {
    let layout = open(formatted(512, BLOCKS)).volume().superblock().layout;
    let data = u64::from(layout.data()) * 8;
    let journal = data - u64::from(layout.journal_blocks) * 8..data;
    let end = BLOCKS * 8 - 8;
    // Few blocks are in the journal.
    let (a, b) = fail(1, |ram| ram.unwritable.extend(journal.clone()));
    assert_eq!((a, &b[..]), (pattern(1, BLOCK), &b"old"[..]));
    // Many blocks are in place: their data fails, or the flush.
    for is_flush in [false, true] {
        let (a, b) = fail(100, |ram| match is_flush {
            true => ram.fail_flushes = true,
            false => ram.unwritable.extend(data..end),
        });
        for (index, block) in a.chunks(BLOCK).enumerate() {
            let is_old_or_new = block == pattern(1, BLOCK) || block == pattern(2, BLOCK);
            let is_torn = block.chunks(512).enumerate().all(|(i, sector)| {
                [1, 2].iter().any(|seed| *sector == pattern(*seed, BLOCK)[i * 512..][..512])
            });
            assert!(is_old_or_new || is_torn, "block {index}");
        }
        assert_eq!(b, b"old");
    }
}

#[test]
fn data_that_failed_before_a_barrier_is_retried_by_it() {
    let mut session = Session::new(Options::default());
    let file = session.fs.create(ROOT, "file").unwrap();
    session.fs.write(file, 0, &pattern(1, 50 * BLOCK)).unwrap();
    session.fs.run(VolumeOp::SyncAll).unwrap();
    session.fs.write(file, 0, &pattern(2, 50 * BLOCK)).unwrap();
    let layout = session.fs.volume().superblock().layout;
    let data = u64::from(layout.data()) * 8;
    session.device().unwritable.extend(data..BLOCKS * 8 - 8);
    let error = session.fs.run(VolumeOp::SyncAll).unwrap_err();
    assert_eq!(error, Error::Io { status: Status::WRITE_FAULT });
    assert_eq!(session.fs.volume().failure(), None, "no barrier was pending");
    session.device().unwritable.clear();
    let barrier = session.fs.barrier().unwrap();
    session.fs.await_barrier(barrier).unwrap();
    let mut fs = open(cut(session.fs));
    assert_eq!(fs.read_all(file).unwrap(), pattern(2, 50 * BLOCK));
}

/// A write-ahead log: a page has the change only if the log has its record, whatever the device
/// loses, although no request waits for the device.
#[test]
fn a_page_is_never_found_without_its_record() {
    let (mut ahead, mut both, mut none) = (0, 0, 0);
    for seed in 0..200 {
        let mut session = Session::new(Options::default());
        let (log, pages) =
            (session.fs.create(ROOT, "log").unwrap(), session.fs.create(ROOT, "pages").unwrap());
        session.fs.write(pages, 0, &[0; 16 * BLOCK]).unwrap();
        session.fs.run(VolumeOp::SyncAll).unwrap();
        session.device().lazy = true;
        session.device().rng = rng::Rng::new(seed);
        let steps = seed % 40;
        for step in 0..steps {
            let record = session.submit(session.write(log, step * 512, 512));
            session.wait(record).unwrap();
            session.submit(VolumeOp::Barrier);
            session.submit(session.write(pages, (step % 16) * BLOCK as u64, BLOCK as u32));
            // The volume writes the page as early as it can.
            session.submit(VolumeOp::Sync { ino: pages, data_only: true });
            session.poll();
        }
        let mut fs = open(cut(session.fs));
        let (records, pages) = (fs.read_all(log).unwrap(), fs.read_all(pages).unwrap());
        for step in 0..steps.min(16) {
            let is_recorded = records.len() as u64 >= (step + 1) * 512;
            let is_changed = pages[step as usize * BLOCK..][..BLOCK].iter().any(|b| *b > 0);
            assert!(is_recorded || !is_changed, "seed {seed}: page {step} without its record");
            ahead += u64::from(is_recorded && !is_changed);
            both += u64::from(is_recorded && is_changed);
            none += u64::from(!is_recorded);
        }
    }
    assert!(ahead > 20 && both > 20 && none > 20, "{ahead}, {both} and {none}");
}

/// A truncation after a barrier zeroes a page that the barrier covers and that is not in place.
#[test]
fn a_truncation_after_a_barrier_does_not_change_what_the_barrier_covers() {
    for seed in 0..40 {
        let mut session = Session::new(Options::default());
        let (big, file) =
            (session.fs.create(ROOT, "big").unwrap(), session.fs.create(ROOT, "file").unwrap());
        session.fs.write(big, 0, &pattern(1, 100 * BLOCK)).unwrap();
        session.fs.write(file, 0, &pattern(2, 4000)).unwrap();
        session.fs.run(VolumeOp::SyncAll).unwrap();
        session.fs.write(big, 0, &pattern(3, 100 * BLOCK)).unwrap();
        session.fs.write(file, 0, &pattern(4, 4000)).unwrap();
        session.device().lazy = true;
        session.device().rng = rng::Rng::new(seed);
        session.submit(VolumeOp::Barrier);
        session.submit(VolumeOp::SetAttr { ino: file, changes: SetAttr::default() });
        session.submit(VolumeOp::Barrier);
        session.submit(VolumeOp::Truncate { ino: file, size: 100 });
        for _ in 0..seed {
            session.poll();
        }
        let durable = session.barriers().1;
        let mut fs = open(cut(session.fs));
        let bytes = fs.read_all(file).unwrap();
        if bytes.len() == 100 {
            assert_eq!(bytes, pattern(4, 100));
            continue;
        }
        assert_eq!((bytes.len(), durable), (4000, durable.min(2)));
        for (i, sector) in bytes.chunks(512).enumerate() {
            let is_possible = |seed| *sector == pattern(seed, 4000)[i * 512..][..sector.len()];
            assert!(is_possible(4) || durable == 0 && is_possible(2), "seed {seed}: sector {i}");
        }
    }
}

#[test]
fn numbers_are_of_one_opening_and_statistics_count() {
    let mut session =
        Session::new(Options { dirty_expire: Nanos::from_secs(1), ..Options::default() });
    let file = session.fs.create(ROOT, "file").unwrap();
    for barrier in 1..=10 {
        session.fs.write(file, barrier * 10_000, b"x").unwrap();
        assert_eq!(session.fs.barrier(), Ok(barrier));
    }
    session.fs.await_barrier(10).unwrap();
    let stats = session.fs.volume().stats();
    assert_eq!(stats.barriers, 10);
    assert!((1..=10).contains(&stats.barrier_commits), "{stats:?}");
    assert!(stats.barrier_captured_blocks >= 10 && stats.barrier_captured_bytes > 0, "{stats:?}");
    let syncs = stats.syncs;
    session.fs.run(VolumeOp::SyncAll).unwrap();
    assert_eq!(session.fs.volume().stats().syncs, syncs + 1, "barriers are not syncs");
}
