//! ARCHITECTURE.md, R9: common file operations do not allocate, and make no more device writes than
//! necessary. A counting allocator checks this.

// guarantee: D-17
// guarantee: D-64

use block::BlockDevice as _;
use mem::Iova;
use testkit::memory_device::MemoryDevice;
use time::{Component as _, Nanos};
use volume::{
    BlockingVolume, FormatOptions, Ino, Options, RequestBuffer, Time, Volume, VolumeOp,
    VolumeRequest, format,
};

/// A volume with one file, and memory for its data.
struct Harness {
    volume: Volume<MemoryDevice>,
    ino: Ino,
    iova: Iova,
    now: Nanos,
    next: u64,
}

const BLOCK: u32 = 4096;

impl Harness {
    fn new() -> Harness {
        Harness::with_journal(64)
    }

    fn with_journal(blocks: u32) -> Harness {
        let mut tick = |_: &mut MemoryDevice| Nanos(1);
        let mut device = MemoryDevice::new(8192);
        let shape = FormatOptions { journal_blocks: Some(blocks), ..FormatOptions::default() };
        format(&mut device, &shape, &mut tick).unwrap();
        let options = Options { cache_pages: 64, ..Options::default() };
        let mut session = BlockingVolume::open(device, options, tick).unwrap();
        let ino = session.create(Ino::ROOT, "file").unwrap();
        session.run(VolumeOp::SyncAll).unwrap();
        let volume = session.into_volume();
        let (_, iova) = volume.memory().allocate_registered(32 * BLOCK as usize).unwrap();
        Harness { volume, ino, iova, now: Nanos(2), next: 0 }
    }

    fn run(&mut self, op: VolumeOp) {
        self.next += 1;
        self.now += Nanos::from_micros(1);
        let request = VolumeRequest { id: self.next, op, time: Time(self.now.0 as i64) };
        self.volume.submit(self.now, request).unwrap();
        loop {
            self.volume.poll(self.now);
            if let Some(done) = self.volume.reap() {
                done.result.unwrap();
                return;
            }
        }
    }

    fn data(&self, len: u32) -> RequestBuffer {
        RequestBuffer { iova: self.iova, len }
    }

    fn sync(&mut self) {
        self.run(VolumeOp::Sync { ino: self.ino, data_only: true });
    }

    /// Returns allocations per round, and durable device requests per round.
    fn each(&mut self, rounds: u64, mut round: impl FnMut(&mut Harness, u64)) -> (f64, f64) {
        (0..rounds).for_each(|i| round(self, i));
        let durable = self.volume.device().durable;
        let made =
            allocation_counter::measure(|| (rounds..2 * rounds).for_each(|i| round(self, i)));
        let per = |count: u64| count as f64 / rounds as f64;
        (per(made.count_total), per(self.volume.device().durable - durable))
    }
}

#[test]
fn writes_in_place_with_a_sync_each_allocate_nothing_and_wait_for_the_device_once() {
    let mut harness = Harness::new();
    let (ino, data) = (harness.ino, harness.data(32 * BLOCK));
    harness.run(VolumeOp::Write { ino, offset: 0, data });
    harness.run(VolumeOp::SyncAll);
    let (allocations, durable) = harness.each(400, |harness, i| {
        let (offset, data) = (i * 1000 % 120_000, harness.data(3000));
        harness.run(VolumeOp::Write { ino, offset, data });
        harness.sync();
    });
    assert_eq!(allocations, 0.0);
    assert_eq!(durable, 1.0, "one write: the data");
}

#[test]
fn reads_of_what_is_in_memory_and_of_what_is_not_allocate_nothing() {
    let mut harness = Harness::new();
    let ino = harness.ino;
    for i in 0..8u64 {
        let data = harness.data(32 * BLOCK);
        harness.run(VolumeOp::Write { ino, offset: i * u64::from(32 * BLOCK), data });
    }
    harness.run(VolumeOp::SyncAll);
    for (step, end) in [(BLOCK, 1 << 20), (5000, 1_000_000)] {
        let (allocations, _) = harness.each(1000, |harness, i| {
            let (offset, data) = (i * u64::from(step) % end, harness.data(BLOCK));
            harness.run(VolumeOp::Read { ino, offset, data });
        });
        // Blocks that enter and leave the cache have entries in a tree, whose nodes are allocated
        // and freed.
        assert!(allocations <= if step == BLOCK { 0.0 } else { 0.5 }, "{step}: {allocations}");
    }
}

#[test]
fn an_append_and_its_sync_wait_for_the_device_once_and_hardly_allocate() {
    let mut harness = Harness::new();
    let ino = harness.ino;
    let (allocations, durable) = harness.each(800, |harness, _| {
        let data = harness.data(500);
        harness.run(VolumeOp::Append { ino, data });
        harness.sync();
    });
    // One append in eight starts a block, with a new page. Occasionally blocks are written in place
    // and flushed before their records.
    assert!(allocations < 0.1, "{allocations}");
    assert!(
        (1.0..1.1).contains(&durable),
        "{durable}: one write per append: the transaction, which contains the data"
    );
}

#[test]
fn an_append_and_its_barrier_cost_one_durable_write_and_hardly_allocate() {
    let mut harness = Harness::new();
    let ino = harness.ino;
    let (allocations, durable) = harness.each(800, |harness, _| {
        let data = harness.data(500);
        harness.run(VolumeOp::Append { ino, data });
        harness.run(VolumeOp::Barrier);
        let barrier = harness.volume.last_barrier();
        harness.run(VolumeOp::AwaitBarrier { barrier });
    });
    assert!(allocations < 0.1, "{allocations}");
    assert!((1.0..1.1).contains(&durable), "{durable}: the transaction, which contains the data");
    let stats = harness.volume.stats();
    assert_eq!((stats.barriers, stats.barrier_commits), (1600, 1600));
    assert_eq!((stats.barrier_waits, stats.barrier_in_place_blocks), (0, 0));
    assert!(stats.barrier_captured_blocks >= 1600, "{stats:?}");
}

#[test]
fn a_log_of_small_records_costs_its_sectors_of_the_journal_and_each_block_once() {
    let mut harness = Harness::new();
    let ino = harness.ino;
    let before = harness.volume.stats();
    let (records, len) = (8000, 100);
    for _ in 0..records {
        let data = harness.data(len);
        harness.run(VolumeOp::Append { ino, data });
        harness.sync();
    }
    harness.run(VolumeOp::Close);
    let stats = harness.volume.stats();
    let blocks = u64::from(records * len).div_ceil(u64::from(BLOCK));
    let written = (stats.data_bytes - before.data_bytes) / u64::from(BLOCK);
    // Each checkpoint writes the last block, which is written again after it has grown.
    let snapshots = stats.checkpoints - before.checkpoints;
    assert!((blocks..=blocks + snapshots).contains(&written), "{written} for {blocks} blocks");
    assert!(snapshots < u64::from(records) / 100, "{snapshots}");
    let sectors = stats.journal_sectors - before.journal_sectors;
    let each = sectors as f64 / f64::from(records);
    // Whole sectors: 350 bytes on average, plus the record of the inode.
    assert!((1.0..2.0).contains(&each), "{each} sectors of the journal for {len} bytes");
    let commands = stats.data_commands - before.data_commands;
    assert!(commands < blocks, "{commands} commands for {blocks} blocks");
    assert_eq!(stats.journal_only_blocks, 0);
    // A snapshot ends with two superblocks, of a sector each.
    let sector = u64::from(harness.volume.device().limits().sector_bytes);
    let written = (stats.data_bytes - before.data_bytes)
        + (stats.checkpoint_bytes - before.checkpoint_bytes)
        + (sectors + 2 * snapshots) * sector;
    assert_eq!(stats.device_bytes_written - before.device_bytes_written, written);
}

#[test]
fn a_file_made_written_and_synced_waits_for_the_device_once() {
    // Large enough that no checkpoint occurs.
    let mut harness = Harness::with_journal(2048);
    let name = volume::Name::new("journal").unwrap();
    let access = volume::InodePermissions::default();
    let create = VolumeOp::Create { dir: Ino::ROOT, name, access, exclusive: true, open: false };
    let (_, durable) = harness.each(200, |harness, _| {
        harness.run(create);
        let ino = harness.volume.lookup(Ino::ROOT, b"journal").unwrap();
        for offset in [0, 512, 4096] {
            let data = harness.data(1000);
            harness.run(VolumeOp::Write { ino, offset, data });
        }
        harness.run(VolumeOp::Sync { ino, data_only: false });
        harness.run(VolumeOp::Unlink { dir: Ino::ROOT, name });
    });
    // Data of an unlinked file is never written in place.
    assert_eq!(durable, 1.0);
    assert_eq!(harness.volume.stats().data_commands, 0);
}

#[test]
fn syncs_that_wait_at_once_share_a_transaction() {
    let mut harness = Harness::new();
    let mut inos = Vec::new();
    for i in 0..8u8 {
        let name = volume::Name::new([b'a' + i]).unwrap();
        let op = VolumeOp::Create {
            dir: Ino::ROOT,
            name,
            access: volume::InodePermissions::default(),
            exclusive: true,
            open: false,
        };
        harness.run(op);
        inos.push(harness.volume.lookup(Ino::ROOT, [b'a' + i]).unwrap());
    }
    harness.run(VolumeOp::SyncAll);
    for round in 0..20 {
        let before = harness.volume.stats();
        for ino in inos.iter().copied() {
            let data = harness.data(100);
            harness.run(VolumeOp::Append { ino, data });
        }
        for ino in &inos {
            harness.next += 1;
            let op = VolumeOp::Sync { ino: *ino, data_only: true };
            let request = VolumeRequest { id: harness.next, op, time: Time(0) };
            harness.volume.submit(harness.now, request).unwrap();
        }
        let mut left = inos.len();
        while left > 0 {
            harness.volume.poll(harness.now);
            while let Some(done) = harness.volume.reap() {
                done.result.unwrap();
                left -= 1;
            }
        }
        let commits = harness.volume.stats().commits - before.commits;
        assert_eq!(commits, 1, "round {round}: transactions for 8 syncs");
    }
}
