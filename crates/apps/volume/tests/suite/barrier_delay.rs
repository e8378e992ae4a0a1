//! Ordered barriers with a delay: until it is over, or something waits for a barrier, changes are
//! collected in memory. Power cuts are in `oracle`.

// guarantee: D-64

use nvme::Status;
use time::{Component as _, Nanos};
use volume::{BLOCK, Error, FormatOptions, Ino, OpResult, Options, VolumeOp, format};

use crate::barriers::Session;
use crate::common::{Ram, cut, open, pattern};

/// A delay that is over only if a test says so.
const DELAY: Nanos = Nanos::from_secs(1_000_000);
/// Blocks of the file whose blocks are overwritten.
const FILE_BLOCKS: u64 = 400;

/// Opens a volume with a delay, and with a file whose blocks are in place.
fn delayed(cache_pages: u32) -> (Session, Ino) {
    let mut device = Ram::for_volume(4096, 8192);
    let shape = FormatOptions { journal_blocks: Some(512), ..FormatOptions::default() };
    format(&mut device, &shape, crate::common::tick).unwrap();
    let options = Options { barrier_delay: DELAY, cache_pages, ..Options::default() };
    let mut session = Session::on(device, options);
    let file = session.fs.create(Ino::ROOT, "file").unwrap();
    session.fs.write(file, 0, &pattern(1, FILE_BLOCKS as usize * BLOCK)).unwrap();
    session.fs.run(VolumeOp::SyncAll).unwrap();
    session.device().untouched();
    (session, file)
}

/// Overwrites a block, and issues a barrier.
fn overwrite(session: &mut Session, file: Ino, block: u64) {
    session.fs.run(session.write(file, block * BLOCK as u64, BLOCK as u32)).unwrap();
    session.fs.barrier().unwrap();
}

/// Polls repeatedly, and returns the numbers of the last and of the last durable barrier.
fn polled(session: &mut Session) -> (u64, u64) {
    for _ in 0..100 {
        assert!(session.poll().is_empty());
    }
    session.barriers()
}

#[test]
fn changes_of_many_barriers_reach_the_device_once_when_the_delay_is_over() {
    let (mut session, file) = delayed(4096);
    for number in 0..500 {
        overwrite(&mut session, file, number % 3);
    }
    let since = session.device().now;
    assert_eq!(polled(&mut session), (500, 0));
    assert!(session.device().untouched(), "nothing was written");
    assert!(!session.fs.volume().is_making_barriers_durable());
    let expected = session.fs.volume().deadline();
    assert!(expected > since && expected <= since + DELAY, "{expected:?}");
    session.device().now = expected;
    assert_eq!(polled(&mut session), (500, 500));
    let stats = session.fs.volume().stats();
    assert_eq!((stats.barrier_commits, stats.barrier_captured_blocks), (1, 3), "{stats:?}");
    let bytes = open(cut(session.fs)).read_all(file).unwrap();
    assert_eq!(bytes[..3 * BLOCK], pattern(5, BLOCK).repeat(3));
}

#[test]
fn a_barrier_that_something_waits_for_has_no_delay() {
    let (mut session, file) = delayed(4096);
    overwrite(&mut session, file, 1);
    overwrite(&mut session, file, 2);
    let wait = session.submit(VolumeOp::AwaitBarrier { barrier: 1 });
    assert_eq!(session.wait(wait), Ok(OpResult::Done));
    // They share a transaction.
    assert_eq!(session.barriers(), (2, 2));
    overwrite(&mut session, file, 3);
    assert_eq!(polled(&mut session), (3, 2));
    session.fs.volume_mut().request_barrier(2);
    assert_eq!(polled(&mut session), (3, 2), "it is durable already");
    session.fs.volume_mut().request_barrier(u64::MAX);
    assert!(session.fs.volume().is_making_barriers_durable());
    assert_eq!(polled(&mut session), (3, 3));
    // A barrier after the request has its own delay.
    overwrite(&mut session, file, 4);
    assert_eq!(polled(&mut session), (4, 3));
}

/// Each of these needs a transaction, or a page that waits for a barrier.
#[test]
fn other_requests_do_not_wait_for_the_delay() {
    let small = |_: Ino, file: Ino| VolumeOp::Sync { ino: file, data_only: true };
    let all = |_, _| VolumeOp::SyncAll;
    let directory = |dir, _| VolumeOp::Sync { ino: dir, data_only: false };
    let close = |_, _| VolumeOp::Close;
    let requests: [fn(Ino, Ino) -> VolumeOp; 4] = [small, all, directory, close];
    for (number, request) in requests.into_iter().enumerate() {
        for blocks in [1, 30, FILE_BLOCKS] {
            let (mut session, file) = delayed(4096);
            session.fs.create(Ino::ROOT, "another").unwrap();
            session.fs.barrier().unwrap();
            for block in 0..blocks {
                let at = block * BLOCK as u64;
                session.fs.run(session.write(file, at, BLOCK as u32)).unwrap();
            }
            let id = session.submit(request(Ino::ROOT, file));
            assert_eq!(session.wait(id), Ok(OpResult::Done), "{number}, {blocks} blocks");
            let mut fs = open(cut(session.fs));
            fs.volume().lookup(Ino::ROOT, "another").unwrap();
            if number != 2 {
                let bytes = fs.read_all(file).unwrap();
                let expected = pattern(5, BLOCK).repeat(blocks as usize);
                assert!(bytes.starts_with(&expected), "{number}, {blocks} blocks");
            }
        }
    }
}

#[test]
fn barriers_with_many_changes_have_no_delay_and_nothing_waits_for_them() {
    let (mut session, file) = delayed(4096);
    let mut blocks = 0;
    while session.barriers().1 == 0 {
        overwrite(&mut session, file, blocks);
        session.poll();
        blocks += 1;
    }
    let stats = session.fs.volume().stats();
    assert_eq!(stats.barrier_waits, 0, "{stats:?}");
    // Three quarters of a transaction of 256 KiB can be data, and two thirds of these have changed.
    assert!((30..=34).contains(&blocks), "{blocks} blocks");
}

/// Pages are needed that wait for a barrier.
#[test]
fn a_full_page_cache_ends_the_delay() {
    let (mut session, file) = delayed(24);
    for block in 0..200 {
        overwrite(&mut session, file, block);
    }
    assert!(session.barriers().1 > 100, "{:?}", session.barriers());
}

#[test]
fn new_blocks_are_written_in_place_and_only_once() {
    let (mut session, _) = delayed(4096);
    let log = session.fs.create(Ino::ROOT, "log").unwrap();
    session.fs.run(VolumeOp::SyncAll).unwrap();
    let before = session.fs.volume().stats();
    let (count, each) = (1000, BLOCK as u64 / 2);
    for number in 0..count {
        session.fs.run(session.write(log, number * each, each as u32)).unwrap();
        session.fs.barrier().unwrap();
        session.poll();
    }
    session.fs.await_barrier(count).unwrap();
    let stats = session.fs.volume().stats();
    let journaled = stats.barrier_captured_blocks - before.barrier_captured_blocks;
    assert!(journaled < count / 2 / 5, "{journaled} of {} blocks were journaled", count / 2);
    assert_eq!(stats.barrier_waits, 0);
    let bytes = open(cut(session.fs)).read_all(log).unwrap();
    assert_eq!(bytes, pattern(5, BLOCK)[..each as usize].repeat(count as usize));
}

/// A new block that cannot be written in place is one that a barrier covers.
#[test]
fn a_new_block_that_cannot_be_written_fails_the_barriers() {
    let (mut session, _) = delayed(4096);
    let log = session.fs.create(Ino::ROOT, "log").unwrap();
    session.fs.run(VolumeOp::SyncAll).unwrap();
    let layout = session.fs.volume().superblock().layout;
    let data = u64::from(layout.data())..u64::from(layout.blocks - 1);
    session.device().unwritable.extend(data);
    let mut number = 0;
    let failed = loop {
        let written = session.fs.run(session.write(log, number * BLOCK as u64, BLOCK as u32));
        if let Err(error) = written.and_then(|_| session.fs.barrier().map(|_| OpResult::Done)) {
            break error;
        }
        session.poll();
        number += 1;
        assert!(number < 1000, "no error");
    };
    let status = Status::WRITE_FAULT;
    let is_expected =
        failed == Error::Io { status } || failed == Error::Barrier { barrier: 1, status };
    assert!(is_expected, "{failed:?}");
    assert_eq!(session.barriers().1, 0);
}
