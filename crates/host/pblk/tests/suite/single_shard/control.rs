//! Controls of pblk, on the emulated drive in virtual time: the number of active parallel units
//! ([LightNVM17 §4.2.1, §5.2]), the rate limiter ([LightNVM17 §4.2.4]), and GC read priority.

// guarantee: D-37, D-38, D-39

use block::{BlockDevice, Payload, Request};
use controller::{
    Controller, ControllerConfig, DriveConfig, NullConfig, PersonalityKind, PuScheduling,
    WriteBuffer,
};
use driver::ControllerHandle;
use ftl::{FtlConfig, FtlStats, GcReadPriority, LimiterSample, LineMetadata, RateLimiterKind};
use media::{CellType, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use nvme::Status;
use pblk::Pblk;
use rng::Rng;
use time::{Component, Nanos};

const READ: u64 = 1 << 32;

/// 16 parallel units on 4 channels, chunks of 256 sectors.
fn drive(chunks: u32, policy: PuScheduling) -> DriveConfig {
    let geometry = NandGeometry {
        channels: 4,
        pus: 4,
        planes: 1,
        chunks,
        pages: 64,
        page_bytes: 16 << 10,
        sector_bytes: 4 << 10,
        oob_bytes: 16,
    };
    let micros = Nanos::from_micros;
    let nand = NandConfig {
        geometry,
        cell: CellType::Mlc,
        one_shot: false,
        paired_page_distance: 3,
        timing: NandTiming::uniform(micros(50), micros(900), micros(3_000), 400_000_000),
        errors: ErrorModel::default(),
        data: DataStore::None,
        seed: 1,
    };
    DriveConfig {
        open_channel: controller::OpenChannelConfig::default(),
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
        transfers: controller::TransferConfig::default(),
        name: "control".into(),
        personality: PersonalityKind::OpenChannel,
        media: MediaConfig::Nand(nand),
        controller: ControllerConfig::default(),
        pu_scheduling: policy,
        page_register: true,
        cache_program: true,
        write_buffer: WriteBuffer::None,
        ftl: FtlConfig::default(),
        null: NullConfig::default(),
    }
}

/// A load of concurrent reads and writes.
#[derive(Clone, Copy)]
struct Load {
    reads: u32,
    writes: u32,
    /// Sectors of a write.
    long: u32,
    /// Minimum time between the starts of two writes.
    write_interval: Nanos,
    /// Bursts of reads: the length of a burst, and of the pause after it.
    burst: Option<(Nanos, Nanos)>,
}

struct Harness {
    drive: Controller,
    pblk: Pblk,
    now: Nanos,
    rng: Rng,
    /// Submission time of each read and each write.
    since: Vec<Nanos>,
    idle_reads: Vec<u32>,
    writing: u32,
}

#[derive(Clone, Debug, Default)]
struct LoadResult {
    reads: Vec<Nanos>,
    sectors_written: u64,
    time: Nanos,
    longest_stall: Nanos,
    stats: FtlStats,
}

impl LoadResult {
    fn read(&self, percent: f64) -> Nanos {
        let at = (self.reads.len() as f64 * percent / 100.0) as usize;
        self.reads.get(at).copied().unwrap_or(Nanos::ZERO)
    }

    fn mean(&self) -> f64 {
        let all: u64 = self.reads.iter().map(|l| l.0).sum();
        all as f64 / self.reads.len().max(1) as f64 / 1e3
    }

    fn written(&self) -> f64 {
        self.sectors_written as f64 * 4096.0 / 1e6 / self.time.as_secs_f64()
    }

    fn amplification(&self) -> f64 {
        self.stats.write_amplification().unwrap_or(0.0)
    }
}

impl Harness {
    fn new(config: DriveConfig, ftl: FtlConfig) -> Harness {
        let mut drive = Controller::new(config).unwrap();
        drive.set_zero_latency(true);
        let port = drive.attach().unwrap();
        let mut progress = || {
            drive.poll(Nanos::ZERO);
        };
        let mut controller =
            ControllerHandle::connect(port.clone(), &mut progress, 1 << 20).unwrap();
        let queue = controller.create_queue_pair(1024, None, &mut progress).unwrap();
        let info = controller.info().clone();
        let total = info.open_channel.unwrap().geometry.total_chunks();
        let chunks = controller.chunks(0, total, &mut progress).unwrap();
        let pblk = Pblk::open(&info, &chunks, queue, port, ftl, &mut progress, false).unwrap();
        drive.set_zero_latency(false);
        let (since, idle_reads) = (vec![Nanos::ZERO; 256], Vec::new());
        Harness { drive, pblk, now: Nanos::ZERO, rng: Rng::new(5), since, idle_reads, writing: 0 }
    }

    fn sectors(&self) -> u64 {
        self.pblk.limits().sectors
    }

    /// Polls until there is no progress. Returns the completed tags.
    fn poll(&mut self) -> Vec<u64> {
        let mut ended = Vec::new();
        loop {
            let moved = self.pblk.poll(self.now) | self.drive.poll(self.now);
            let before = ended.len();
            while let Some(done) = self.pblk.reap() {
                assert_eq!(done.status, Status::SUCCESS);
                ended.push(done.tag);
            }
            if !moved && ended.len() == before {
                return ended;
            }
        }
    }

    /// Fills the first `sectors`, without advancing the time.
    fn fill(&mut self, sectors: u64) {
        self.drive.set_zero_latency(true);
        let mut at = 0;
        while at < sectors {
            let n = 64.min(sectors - at);
            let request = Request::write(at, n as u32, Payload::BitBucket, 0);
            self.pblk.submit(self.now, request).unwrap();
            assert_eq!(self.poll().len(), 1);
            at += n;
        }
        self.pblk.submit(self.now, Request::flush(0)).unwrap();
        assert_eq!(self.poll().len(), 1);
        self.drive.set_zero_latency(false);
    }

    /// Runs a load for some time: `read` draws the sectors to read, `write` those to write.
    fn run(
        &mut self,
        load: Load,
        time: Nanos,
        mut read: impl FnMut(&mut Rng) -> u64,
        mut write: impl FnMut(&mut Rng) -> u64,
    ) -> LoadResult {
        let (begin, before) = (self.now, *self.pblk.stats());
        let end = begin + time;
        let mut found = LoadResult { time, ..LoadResult::default() };
        self.idle_reads = (0..load.reads).collect();
        let mut next_write = self.now;
        let mut last = self.now;
        while self.now < end {
            let phase = load.burst.map(|(on, off)| {
                let period = on + off;
                let at = Nanos((self.now - begin).0 % period.0);
                if at < on {
                    (true, self.now + on.since(at))
                } else {
                    (false, self.now + period.since(at))
                }
            });
            if phase.is_none_or(|(on, _)| on) {
                for id in std::mem::take(&mut self.idle_reads) {
                    let lba = read(&mut self.rng);
                    self.since[id as usize] = self.now;
                    let request = Request::read(lba, 1, Payload::BitBucket, READ | u64::from(id));
                    self.pblk.submit(self.now, request).unwrap();
                }
            }
            while self.writing < load.writes && self.now >= next_write {
                let lba = write(&mut self.rng);
                let request = Request::write(lba, load.long, Payload::BitBucket, 0);
                self.pblk.submit(self.now, request).unwrap();
                self.writing += 1;
                next_write = next_write.max(self.now) + load.write_interval;
            }
            let ended = self.poll();
            for tag in &ended {
                if tag & READ != 0 {
                    let id = (tag & 0xff) as u32;
                    found.reads.push(self.now.since(self.since[id as usize]));
                    self.idle_reads.push(id);
                } else {
                    self.writing -= 1;
                    found.sectors_written += u64::from(load.long);
                    found.longest_stall = found.longest_stall.max(self.now.since(last));
                    last = self.now;
                }
            }
            if ended.is_empty() {
                let mut due = self.drive.deadline().min(self.pblk.deadline());
                if self.writing < load.writes {
                    due = due.min(next_write);
                }
                if let Some((_, edge)) = phase {
                    due = due.min(edge);
                }
                assert!(due < Nanos::MAX, "stuck: {}", self.pblk.ftl().debug_state());
                self.now = due.max(self.now);
            }
        }
        found.stats = self.pblk.stats().since(&before);
        // Outstanding requests complete before the next load.
        for _ in 0..1_000_000 {
            self.poll().iter().filter(|tag| *tag & READ == 0).for_each(|_| self.writing -= 1);
            match self.drive.deadline() {
                Nanos::MAX => break,
                due => self.now = due.max(self.now),
            }
        }
        assert_eq!(self.writing, 0);
        found.reads.sort();
        found
    }
}

/// Reads random sectors of the first half, and writes the second half sequentially.
#[test]
fn fewer_active_units_make_reads_faster_and_writes_slower_within_one_run() {
    let config = FtlConfig { active_pus: 8, over_provisioning: 0.25, ..FtlConfig::default() };
    let reads_first = PuScheduling::ReadPriority { suspend: None };
    let mut bed = Harness::new(drive(48, reads_first), config);
    let half = bed.sectors() / 2;
    bed.fill(half);
    let load = Load { reads: 1, writes: 4, long: 64, write_interval: Nanos(0), burst: None };
    let mut at = half;
    let found: Vec<LoadResult> = [None, Some(2), Some(0)]
        .into_iter()
        .map(|active| {
            if let Some(active) = active {
                bed.pblk.set_active_pus(active).unwrap();
            }
            // The remaining contents of the buffer are written with the previous setting.
            let settle = Nanos::from_millis(50);
            let next = |at: &mut u64| {
                *at += 64;
                *at - 64
            };
            bed.run(load, settle, |rng| rng.below(half), |_| next(&mut at));
            bed.run(load, Nanos::from_millis(400), |rng| rng.below(half), |_| next(&mut at))
        })
        .collect();
    for (active, f) in [8, 2, 8].iter().zip(&found) {
        println!(
            "{active} active: {:.1} MB/s, reads {} mean {:.0} us p90 {} p99 {}",
            f.written(),
            f.reads.len(),
            f.mean(),
            f.read(90.0),
            f.read(99.0)
        );
        assert_eq!(f.stats.gc_relocations, 0, "nothing but the number of units is to be seen");
    }
    let [wide, narrow, again] = &found[..] else { unreachable!() };
    // Proportional: a unit of 16 KB in 900 us on each parallel unit.
    let share = narrow.written() / wide.written();
    assert!((0.22..0.28).contains(&share), "{share}");
    assert!((again.written() / wide.written() - 1.0).abs() < 0.03);
    // Nearly one read in two finds its unit writing with all units active, and one in eight with
    // few.
    assert!(wide.read(75.0) > Nanos::from_micros(400), "{}", wide.read(75.0));
    assert!(narrow.read(75.0) < Nanos::from_micros(120), "{}", narrow.read(75.0));
    assert!(narrow.mean() < 0.5 * wide.mean());
    assert!((again.mean() / wide.mean() - 1.0).abs() < 0.1);
    assert!(bed.pblk.set_active_pus(9).is_err());
    assert_eq!(bed.pblk.ftl().active_pus(), 8);
}

/// Partly written chunks occupy most of the write buffer, because their data is not readable from
/// media yet. The buffer still makes progress.
#[test]
fn half_written_chunks_do_not_stall_fewer_units() {
    // The amounts written before leave the chunks of open lines at different write pointers.
    for before in [0, 20, 40, 200] {
        let [wide, narrow, again, later] = half_written(before);
        println!("after {before} ms: {wide:.1}, {narrow:.1}, {again:.1}, {later:.1} MB/s");
        // Four at a time, and up to as many of those left open: eight of sixteen.
        assert!((0.2..=0.5).contains(&(narrow / wide)), "{narrow} of {wide}");
        // The chunks left open are written further for about 50 ms.
        assert!(again / wide > 0.75, "{again} of {wide}");
        assert!((again / wide - 1.0).abs() < 0.1 || before > 0, "{again} of {wide}");
        assert!((later / wide - 1.0).abs() < 0.1, "{later} of {wide}");
    }
}

/// Returns bandwidths in MB/s, after `before` milliseconds of writes: to all parallel units, to
/// four, to all of them in the first 50 ms, and to all in the following 50 ms.
fn half_written(before: u64) -> [f64; 4] {
    let mut config = drive(48, PuScheduling::ReadPriority { suspend: None });
    if let MediaConfig::Nand(nand) = &mut config.media {
        nand.paired_page_distance = 15;
    }
    // No checkpoints, so that only the effect of partly written chunks is measured.
    let ftl =
        FtlConfig { over_provisioning: 0.25, checkpoint_sectors: 1 << 20, ..FtlConfig::default() };
    let mut bed = Harness::new(config, ftl);
    let load = Load { reads: 0, writes: 4, long: 64, write_interval: Nanos(0), burst: None };
    let mut at = 0;
    let mut write = |bed: &mut Harness, ms| {
        let next = |_: &mut Rng| {
            at += 64;
            at - 64
        };
        bed.run(load, Nanos::from_millis(ms), |_| 0, next).written()
    };
    write(&mut bed, before);
    let wide = write(&mut bed, 50);
    bed.pblk.set_active_pus(4).unwrap();
    write(&mut bed, 10);
    let narrow = write(&mut bed, 100);
    bed.pblk.set_active_pus(0).unwrap();
    write(&mut bed, 10);
    let again = write(&mut bed, 50);
    [wide, narrow, again, write(&mut bed, 50)]
}

/// Creates a device that is full and was overwritten once.
fn worn(policy: PuScheduling, ftl: FtlConfig) -> Harness {
    let mut bed = Harness::new(drive(48, policy), FtlConfig { over_provisioning: 0.25, ..ftl });
    let all = bed.sectors();
    bed.fill(all);
    bed.drive.set_zero_latency(true);
    for _ in 0..all / 4 {
        let lba = bed.rng.below(all - 4);
        bed.pblk.submit(bed.now, Request::write(lba, 4, Payload::BitBucket, 0)).unwrap();
        assert_eq!(bed.poll().len(), 1);
    }
    bed.drive.set_zero_latency(false);
    bed
}

#[test]
fn gc_that_yields_shortens_reads_in_bursts_at_the_same_cost() {
    let burst = Some((Nanos::from_millis(20), Nanos::from_millis(30)));
    let load =
        Load { reads: 8, writes: 16, long: 4, write_interval: Nanos::from_micros(400), burst };
    let run = |policy, gc_yields, line_metadata| {
        let gc_read_priority = gc_yields;
        let config = FtlConfig { gc_read_priority, line_metadata, ..FtlConfig::default() };
        let mut bed = worn(policy, config);
        let all = bed.sectors();
        bed.run(load, Nanos::from_millis(500), |r| r.below(all), |r| r.below(all - 4));
        let time = Nanos::from_millis(4_000);
        let f = bed.run(load, time, |r| r.below(all), |r| r.below(all - 4));
        println!(
            "{policy:?}, {gc_yields:?}: reads {} mean {:.0} us p99 {} p99.9 {}; {:.1} MB/s, \
             amplification {:.3}, longest stall {}",
            f.reads.len(),
            f.mean(),
            f.read(99.0),
            f.read(99.9),
            f.written(),
            f.amplification(),
            f.longest_stall
        );
        f
    };
    let auto = FtlConfig::default().line_metadata;
    for policy in [PuScheduling::Fifo, PuScheduling::ReadPriority { suspend: None }] {
        let plain = run(policy, GcReadPriority::Off, auto);
        let same_cost = |f: &LoadResult| {
            assert!((f.written() / plain.written() - 1.0).abs() < 0.02);
            assert!((f.amplification() / plain.amplification() - 1.0).abs() < 0.05);
            assert!(f.longest_stall < Nanos::from_millis(20), "{}", f.longest_stall);
        };
        let any = run(policy, GcReadPriority::Global, auto);
        same_cost(&any);
        assert!(any.mean() < 0.85 * plain.mean(), "{} {}", any.mean(), plain.mean());
        assert!(any.read(99.0).0 <= plain.read(99.0).0);
        // One read in a thousand waits for an erase (3 ms, and 60 us of its own), or for at most
        // two programs where GC defers to reads: those of host data and line metadata, which are
        // not deferred. With their transfers (41 us each at 400 MB/s, or behind others on the
        // channel) that is 2 ms, a ratio of 0.65.
        assert!(any.read(99.9).0 < plain.read(99.9).0 * 7 / 10);
        // Without metadata of lines there is one program before such a read, or none.
        let off = LineMetadata::Off;
        let [plain_off, any_off] =
            [run(policy, GcReadPriority::Off, off), run(policy, GcReadPriority::Global, off)];
        assert!(any_off.read(99.9).0 < plain_off.read(99.9).0 * 6 / 10);
        // What waits where a read waits is not what the next read finds.
        let pus = run(policy, GcReadPriority::PerPu, auto);
        same_cost(&pus);
        assert!((pus.mean() / plain.mean() - 1.0).abs() < 0.1);
    }
}

/// If reads and writes never end, GC proceeds as if it did not defer.
#[test]
fn gc_that_yields_proceeds_when_reads_never_end() {
    let load = Load { reads: 32, writes: 16, long: 4, write_interval: Nanos(0), burst: None };
    let run = |gc_yields| {
        let mut bed = worn(
            PuScheduling::Fifo,
            FtlConfig { gc_read_priority: gc_yields, ..FtlConfig::default() },
        );
        let all = bed.sectors();
        bed.run(load, Nanos::from_millis(200), |r| r.below(all), |r| r.below(all - 4));
        bed.run(load, Nanos::from_millis(2_000), |r| r.below(all), |r| r.below(all - 4))
    };
    let plain = run(GcReadPriority::Off);
    for gc_yields in [GcReadPriority::PerPu, GcReadPriority::Global] {
        let f = run(gc_yields);
        println!("{gc_yields:?}: {:.1} of {:.1} MB/s", f.written(), plain.written());
        assert!((f.written() / plain.written() - 1.0).abs() < 0.05);
        assert!((f.amplification() / plain.amplification() - 1.0).abs() < 0.05);
        assert!(f.longest_stall < Nanos::from_millis(30), "{}", f.longest_stall);
    }
}

#[test]
fn the_limiters_curve_shows_where_each_kind_settles() {
    for kind in [RateLimiterKind::Proportional, RateLimiterKind::PID] {
        let ftl =
            FtlConfig { rate_limiter: kind, gc_high_watermark_lines: 4, ..FtlConfig::default() };
        let mut bed = worn(PuScheduling::Fifo, ftl);
        let all = bed.sectors();
        bed.pblk.restart_limiter_curve();
        let load = Load { reads: 0, writes: 16, long: 4, write_interval: Nanos(0), burst: None };
        let f = bed.run(load, Nanos::from_millis(6_000), |_| 0, |r| r.below(all - 4));
        let (low, high) = bed.pblk.ftl().limiter().watermarks();
        let curve = bed.pblk.limiter_curve();
        assert!((200..=512).contains(&curve.len()), "{}", curve.len());
        assert!(curve.windows(2).all(|w| w[0].at <= w[1].at && w[0].written < w[1].written));
        let end = &curve[curve.len() / 2..];
        let mean =
            |of: &dyn Fn(&LimiterSample) -> f64| end.iter().map(of).sum::<f64>() / end.len() as f64;
        let level = mean(&|s| (s.free as f64 - low as f64) / (high - low) as f64);
        let share = mean(&|s| s.host_share);
        println!(
            "{kind:?}: settles at {level:.2} between the levels, share {share:.3}, amplification \
             {:.3}, longest stall {}, {:.1} MB/s",
            f.amplification(),
            f.longest_stall,
            f.written()
        );
        assert!((share - 1.0 / f.amplification()).abs() < 0.06, "{share}");
        match kind {
            RateLimiterKind::Proportional => {
                assert!((level - share).abs() < 0.02, "{level} {share}")
            }
            RateLimiterKind::Pid { .. } => assert!((level - 0.5).abs() < 0.15, "{level}"),
        }
        // Two lines are below the watermark, and hosts wait for one victim at most.
        assert!(end.iter().all(|s| s.free_min + 8_192 > low), "the reserve is touched");
        assert!(f.longest_stall < Nanos::from_millis(40), "{}", f.longest_stall);
    }
}
