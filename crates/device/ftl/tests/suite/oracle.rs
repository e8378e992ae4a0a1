//! Random commands with failures and power cuts against an oracle. For every sector, the oracle
//! keeps the last durable value and the values that may have replaced it. A failing seed is printed;
//! replay it with `SLUICE_SEED=n cargo test -p sluice-ftl --test suite oracle::`. `SLUICE_CASES` sets
//! the number of seeds.

// guarantee: D-01, D-06, D-07, D-31, D-35

mod seeds;

use crate::common;
use nvme::ChunkId;

use common::golden::{CallHash, assert_calls};
use common::{TestFlash, geometry, map_cache_min, with_metadata};
use ftl::{
    ChunkReport, FlashGeometry, Ftl, FtlConfig, FtlStats, GcReadPriority, HostStream, LineMetadata,
    P2lLocation, RateLimiterKind, VictimPolicyKind,
};
use nvme::Status;
use rng::Rng;
use seeds::{FOUND, FOUND_REWRITTEN, FOUND_SMALL, number, seeds};
use testkit::oracle::{SearchOrder, SectorModel};
use time::Nanos;

struct Case {
    ftl: Ftl,
    flash: TestFlash,
    config: FtlConfig,
    oracle: Vec<SectorModel>,
    rng: Rng,
    value: u64,
    tag: u64,
    failing: bool,
    /// Counters of the FTLs that power cuts ended.
    stats: FtlStats,
    controls: Rng,
    /// Reads in flight, with the value that each must return whenever it completes: the FTL looks
    /// up a sector once.
    reads: Vec<(u64, u64)>,
    /// Whether the number of active parallel units changes, and reads are left in flight.
    steers: bool,
    /// Relative frequency of events other than commands, mostly power cuts.
    mishaps: u64,
    /// Power cuts while a line was opened ahead.
    ahead: u64,
    /// Chooses when the FTL rewrites units that are on the media but not readable yet.
    rewrites: Option<Rng>,
    /// Chooses the streams of writes, if the FTL has the stream of hot data.
    streams: Option<Rng>,
    hot_writes: u64,
}

/// The chunk size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunks {
    /// 4 to 15 write units, or more.
    Any,
    /// 3 to 6 write units; power is cut often.
    Small,
}

/// Draws a rate limiter of either kind, with random gains.
fn limiter(rng: &mut Rng) -> RateLimiterKind {
    match rng.below(4) {
        0 | 1 => RateLimiterKind::Proportional,
        2 => RateLimiterKind::PID,
        _ => RateLimiterKind::Pid { kp: rng.f64() * 3.0, ki: rng.f64() * 2.0, kd: rng.f64() },
    }
}

impl Case {
    fn new(seed: u64, size: Chunks) -> Case {
        Case::build(seed, size, false)
    }

    /// Creates a case whose writes go to both streams of the host.
    fn with_streams(seed: u64, size: Chunks) -> Case {
        let (streams, rewrites) = (Rng::new(seed ^ 0x407_57e), Rng::new(seed ^ 0x4e_e3a1));
        let rewrites = Some(rewrites).filter(|_| seed.is_multiple_of(3));
        Case { streams: Some(streams), rewrites, ..Case::build(seed, size, true) }
    }

    fn build(seed: u64, size: Chunks, hot_stream: bool) -> Case {
        let mut rng = Rng::new(seed);
        // These choices are drawn separately, so that older seeds keep their meaning.
        let mut controls = Rng::new(seed ^ 0xc0_7201);
        let channels = 1 + rng.below(3) as u32;
        let pus = 1 + rng.below(3) as u32;
        let unit = [1, 2, 4, 6][rng.below(4) as usize];
        let units = 4 + rng.below(12) as u32;
        let pair = [0, 0, 1, 2, 3][rng.below(5) as usize].min(units - 1) * unit;
        let chunks = 24 + rng.below(24) as u32;
        // Larger chunks have space for line metadata.
        let large = seed % 3 == 1;
        let sectors = unit * units * if large { 3 } else { 1 };
        let mut geometry = geometry(channels, pus, chunks, sectors, unit, pair);
        // The parameters of the map cache are drawn separately, so that older seeds keep their
        // meaning.
        let mut paging = Rng::new(seed ^ 0x9a6e);
        let paged = paging.chance(0.25);
        if paged {
            // Many map pages, and a write buffer that pins few of them.
            (geometry.groups, geometry.pus) = (1, if paging.chance(0.8) { 1 } else { 2 });
            let unit = if paging.chance(0.8) { 1 } else { 2 };
            (geometry.ws_min, geometry.ws_opt) = (unit, unit);
            geometry.mw_cunits = [0, 0, 0, 1, 2][paging.below(5) as usize] * unit;
            geometry.sectors = unit * (24 + paging.below(48) as u32);
            geometry.chunks = 40 + paging.below(20) as u32;
        }
        if size == Chunks::Small {
            let units = 3 + paging.below(4) as u32;
            let unit = geometry.ws_opt;
            geometry.sectors = unit * units;
            geometry.mw_cunits = [0, 0, 1, 2][paging.below(4) as usize].min(units - 2) * unit;
            geometry.chunks = 8 + paging.below(30) as u32;
        }
        let mut shape = FlashGeometry::from_geometry(&geometry);
        let policies =
            [VictimPolicyKind::Greedy, VictimPolicyKind::CostBenefit, VictimPolicyKind::Fifo];
        let config = FtlConfig {
            over_provisioning: 0.07 + rng.f64() * 0.5,
            active_pus: (rng.below(u64::from(channels * pus) + 1) as u32).min(shape.pus),
            victim_policy: policies[rng.below(3) as usize],
            hot_cold: rng.chance(0.5),
            hot_stream,
            gc_low_watermark_lines: 1 + rng.below(2) as u32,
            gc_high_watermark_lines: 1 + rng.below(3) as u32,
            write_buffer_sectors: 0,
            checkpoint_sectors: [0, 1, 200, 1_000][rng.below(4) as usize],
            gc_queue_depth_units: rng.below(20) as u32,
            map_cache_sectors: 0,
            instance_id: if hot_stream { seed as u32 % 4 } else { 0 },
            dynamic_wear_leveling: seed.is_multiple_of(2),
            static_wear_leveling: [0, 1, 3][seed as usize % 3],
            rate_limiter: limiter(&mut controls),
            gc_read_priority: [GcReadPriority::Off, GcReadPriority::PerPu, GcReadPriority::Global]
                [controls.below(3) as usize],
            vector_copy: false,
            atomic_writes: false,
            owner_bytes: 0,
            addressing: ftl::SectorAddressing::Logical,
            line_metadata: LineMetadata::Off,
            p2l_location: P2lLocation::Memory,
        };
        let config = if seed % 8 == 7 { config } else { with_metadata(&shape, &config) };
        // Lines with space for metadata may keep their P2L there.
        let media = FtlConfig { p2l_location: P2lLocation::Media, ..config };
        let total = shape.total_chunks();
        let mut config = match ftl::CapacityPlan::new(&shape, &media, total, total) {
            Ok(_) if !seed.is_multiple_of(3) => media,
            _ => config,
        };
        if size == Chunks::Small {
            // A map this small fits in memory, but its pages are read from the media after a power
            // cut.
            config.map_cache_sectors = if paged { 1 << 20 } else { 0 };
        } else if paged {
            config.over_provisioning += 0.08;
            config.gc_queue_depth_units = config.gc_queue_depth_units.clamp(1, 4);
            let least = map_cache_min(&shape, &config);
            let more = [0, 0, 0, 1, 5, 1_000][paging.below(6) as usize];
            config.map_cache_sectors = least + more;
        }
        let ftl = loop {
            match Ftl::new(shape, config, |_| ChunkReport::Free) {
                Ok(ftl) => break ftl,
                // Adds chunks until the geometry is large enough, to have as few as possible.
                Err(_) if size == Chunks::Small && geometry.chunks < 400 => {
                    geometry.chunks += 1 + geometry.chunks / 8;
                    shape = FlashGeometry::from_geometry(&geometry);
                }
                Err(e) => panic!("the geometry is too small: {e}"),
            }
        };
        let mut flash = TestFlash::new(shape, true, ftl.slots(), seed ^ 0xf1a5);
        // In half of the cases completions are reported in any order, except with seeds that once
        // failed.
        let found = [&FOUND_SMALL[..], &FOUND, &FOUND_REWRITTEN].concat().contains(&seed);
        if !found && Rng::new(seed ^ 0x0_4de4).chance(0.5) {
            flash.reorder(seed);
        }
        let failing = rng.chance(0.3);
        if failing {
            flash.program_fail = 0.002;
            flash.erase_fail = 0.005;
        }
        let sectors = ftl.sectors() as usize;
        let oracle = vec![SectorModel::new(0); sectors];
        let steers = controls.chance(0.5);
        let reads = Vec::new();
        let mut case = Case {
            ftl,
            flash,
            config,
            oracle,
            rng,
            value: 0,
            tag: 0,
            failing,
            stats: FtlStats::default(),
            controls,
            reads,
            steers,
            mishaps: if size == Chunks::Small { 6 } else { 2 },
            ahead: 0,
            rewrites: None,
            streams: None,
            hot_writes: 0,
        };
        case.steer();
        case
    }

    /// Creates a case with rewrites.
    fn rewriting(seed: u64, size: Chunks) -> Case {
        Case { rewrites: Some(Rng::new(seed ^ 0x4e_e3a1)), ..Case::new(seed, size) }
    }

    /// Rewrites the units of one open chunk, or of all, that wait for their paired pages. Power may
    /// be cut meanwhile.
    fn rewrite(&mut self) {
        let Some(mut choices) = self.rewrites.take() else { return };
        if choices.chance(0.15) {
            let open: Vec<(ChunkId, u32, u32)> = self.ftl.open_chunks().collect();
            let all = choices.chance(0.2);
            for (chunk, readable, written) in open {
                assert!(readable <= written, "{chunk}: {readable} of {written}");
                if all || choices.chance(0.4) {
                    self.ftl.rewrite_buffered(chunk);
                }
            }
            // A chunk that does not exist, is free or is closed: there is nothing to rewrite.
            self.ftl.rewrite_buffered(ChunkId(
                choices.below(2 * u64::from(self.flash.geometry.total_chunks())) as u32,
            ));
            if choices.chance(0.7) {
                self.ftl.kick(Nanos(0), &mut self.flash);
            }
            if choices.chance(0.1) {
                for _ in 0..choices.below(12) {
                    self.flash.step(&mut self.ftl);
                }
                self.cut_power();
            }
        }
        self.rewrites = Some(choices);
    }

    /// Changes the number of active parallel units; the FTL may refuse it.
    fn steer(&mut self) {
        if !self.steers || !self.controls.chance(0.3) {
            return;
        }
        let most = self.ftl.capacity_plan().active_pus;
        let asked = self.controls.below(u64::from(most) + 2) as u32;
        let before = self.ftl.active_pus();
        match self.ftl.set_active_pus(asked) {
            Ok(()) => assert_eq!(self.ftl.active_pus(), if asked == 0 { most } else { asked }),
            Err(e) => assert_eq!((asked, e.max, self.ftl.active_pus()), (most + 1, most, before)),
        }
    }

    /// Starts a read without waiting for it, so that garbage collection may avoid its parallel
    /// unit.
    fn leave_a_read(&mut self) {
        if !self.steers || self.reads.len() > 4 {
            return;
        }
        let lba = self.controls.below(self.oracle.len() as u64);
        self.tag += 1;
        let tag = self.tag | 1 << 63;
        self.flash.requests.insert(tag, vec![u64::MAX]);
        self.ftl.read(Nanos(0), tag, lba, 1, &mut self.flash);
        self.reads.push((tag, self.oracle[lba as usize].value()));
    }

    /// Checks the value that a read in flight has returned, if the completed request is one of
    /// those.
    fn on_completed(&mut self, tag: u64) {
        if let Some(i) = self.reads.iter().position(|(t, _)| *t == tag) {
            let (_, expected) = self.reads.swap_remove(i);
            let found = self.flash.requests.remove(&tag).unwrap();
            assert_eq!(found[0], expected);
        }
    }

    fn range(&mut self) -> (u64, u32) {
        let n = 1 + self.rng.below(12).min(self.oracle.len() as u64 - 1) as u32;
        // Half of the commands go to one eighth of the sectors.
        let span = if self.rng.chance(0.5) { self.oracle.len() / 8 } else { self.oracle.len() };
        let span = span.max(n as usize);
        (self.rng.below((span - n as usize + 1) as u64), n)
    }

    fn wait(&mut self, tag: u64) -> Status {
        for _ in 0..200_000 {
            while let Some(done) = self.ftl.pop_completion() {
                if done.tag == tag {
                    return done.status;
                }
                self.on_completed(done.tag);
            }
            self.flash.step(&mut self.ftl);
        }
        panic!(
            "request {tag} never completes: {:?} {:?}\n{:?}",
            self.ftl.stats(),
            self.ftl.capacity_plan(),
            self.ftl.debug_state()
        );
    }

    fn write(&mut self) {
        let (lba, n) = self.range();
        self.tag += 1;
        let zeroes = self.rng.chance(0.1);
        let durable = self.rng.chance(0.1);
        let values: Vec<u64> =
            (0..u64::from(n)).map(|i| if zeroes { 0 } else { self.value + i + 1 }).collect();
        self.value += u64::from(n);
        self.flash.requests.insert(self.tag, values.clone());
        let stream = self.stream_of_next();
        if zeroes {
            self.ftl.write_zeroes_to(stream, self.tag, lba, n, durable);
        } else {
            self.ftl.write_to(stream, self.tag, lba, n, durable);
        }
        self.ftl.kick(Nanos(0), &mut self.flash);
        let status = self.wait(self.tag);
        self.flash.requests.remove(&self.tag);
        // A request that failed may have been admitted in part.
        assert!(
            status.is_success() || self.failing && status.is(Status::CAPACITY_EXCEEDED),
            "{status}: {:?} {:?}\n{}",
            self.ftl.stats(),
            self.ftl.capacity_plan(),
            self.ftl.debug_state()
        );
        for (sector, value) in self.oracle[lba as usize..].iter_mut().zip(values) {
            let order = sector.send_next(value);
            if status.is_success() {
                sector.complete_at(order);
                if durable {
                    sector.set_durable(order);
                }
            }
        }
        if !status.is_success() {
            self.see(lba, n);
        }
    }

    /// Chooses the stream of the next write. In half of the cases one of the streams is rare.
    fn stream_of_next(&mut self) -> HostStream {
        let share = [0.5, 0.98, 0.5, 0.02][self.config.instance_id as usize % 4];
        let is_hot = self.streams.as_mut().is_some_and(|rng| rng.chance(share));
        self.hot_writes += u64::from(is_hot);
        if is_hot { HostStream::Hot } else { HostStream::Host }
    }

    /// Reads the sectors of a failed request, and records their values in the oracle.
    fn see(&mut self, lba: u64, n: u32) {
        let found = self.read_sectors(lba, n);
        for (sector, value) in self.oracle[lba as usize..].iter_mut().zip(found) {
            sector.observe(value, None, SearchOrder::OldestFirst).unwrap_or_else(|wrong| {
                panic!("a sector {wrong}");
            });
        }
    }

    fn trim(&mut self) {
        let (lba, n) = self.range();
        self.tag += 1;
        self.ftl.trim(self.tag, lba, n);
        self.ftl.kick(Nanos(0), &mut self.flash);
        let status = self.wait(self.tag);
        // If no unit can be written any more, the FTL cannot evict a dirty map page for another.
        let may_fail = self.failing && self.config.map_cache_sectors > 0;
        assert!(
            status.is_success() || may_fail && status.is(Status::CAPACITY_EXCEEDED),
            "{status}: {:?}\n{}",
            self.ftl.stats(),
            self.ftl.debug_state()
        );
        for sector in &mut self.oracle[lba as usize..][..n as usize] {
            let order = sector.send_next(0);
            sector.complete_at(order);
        }
        if !status.is_success() {
            self.see(lba, n);
        }
    }

    fn flush(&mut self) {
        self.tag += 1;
        self.ftl.flush(Nanos(0), self.tag, &mut self.flash);
        let status = self.wait(self.tag);
        assert!(status.is_success() || self.failing && status.is(Status::CAPACITY_EXCEEDED));
        for sector in self.oracle.iter_mut().filter(|_| status.is_success()) {
            sector.settle();
        }
    }

    fn read_sectors(&mut self, lba: u64, n: u32) -> Vec<u64> {
        self.tag += 1;
        self.flash.requests.insert(self.tag, vec![u64::MAX; n as usize]);
        self.ftl.read(Nanos(0), self.tag, lba, n, &mut self.flash);
        assert!(self.wait(self.tag).is_success());
        self.flash.requests.remove(&self.tag).unwrap()
    }

    fn read(&mut self) {
        let (lba, n) = self.range();
        let values = self.read_sectors(lba, n);
        for (i, value) in values.into_iter().enumerate() {
            assert_eq!(value, self.oracle[lba as usize + i].value(), "sector {}", lba as usize + i);
        }
    }

    fn cut_power(&mut self) {
        // A power cut may directly follow another, with no write in between.
        for _ in 0..1 + self.rng.below(2) {
            self.stats = self.stats.plus(self.ftl.stats());
            self.ahead += u64::from(self.ftl.lines_ahead() > 0);
            let cache = self.ftl.map_cache();
            assert!(cache.resident_max <= cache.frames, "{cache:?}");
            assert_eq!(self.stats.map_mismatches, 0, "map pages differ from the media");
            assert_eq!(self.stats.map_sectors_lost, 0, "map sectors were lost without a cause");
            self.ftl = self.flash.power_cut(self.config);
            // Power may also be cut during the work that the FTL continues after a recovery.
            if self.config.map_cache_sectors > 0 && self.rng.chance(0.5) {
                self.ftl.kick(Nanos(0), &mut self.flash);
                for _ in 0..self.rng.below(80) {
                    self.flash.step(&mut self.ftl);
                }
            }
        }
        self.flash.requests.clear();
        self.reads.clear();
        self.steer();
        let sectors = self.oracle.len();
        let mut at = 0;
        while at < sectors {
            let n = 50.min(sectors - at);
            for (i, value) in self.read_sectors(at as u64, n as u32).into_iter().enumerate() {
                let sector = &mut self.oracle[at + i];
                let result = sector.observe(value, None, SearchOrder::OldestFirst);
                if let Err(wrong) = result {
                    let recovery = self.flash.recoveries.last();
                    panic!("after a power cut, sector {} {wrong}; {recovery:?}", at + i);
                }
                // The value that the recovery found is durable.
                sector.settle();
            }
            at += n;
        }
    }

    fn run(&mut self) {
        let commands = 200 + self.rng.below(1_500);
        self.execute(commands);
        self.flush();
        self.flash.settle(&mut self.ftl);
        while let Some(done) = self.ftl.pop_completion() {
            self.on_completed(done.tag);
        }
        assert!(self.reads.is_empty(), "some reads did not complete");
        assert!(
            self.ftl.is_idle() || self.failing,
            "the FTL is not idle: {}",
            self.ftl.debug_state()
        );
        self.cut_power();
    }

    /// Executes this many commands.
    fn execute(&mut self, commands: u64) {
        for _ in 0..commands {
            self.steer();
            self.rewrite();
            if self.steers && self.controls.chance(0.2) {
                self.leave_a_read();
            }
            match self.rng.below(100) {
                0..60 => self.write(),
                60..68 => self.trim(),
                68..72 => self.flush(),
                n if n >= 72 && n < 100 - self.mishaps => self.read(),
                _ if self.rng.chance(0.6) => self.cut_power(),
                _ => {
                    let chunk = self.rng.below(self.flash.geometry.total_chunks().into()) as u32;
                    let open = self.ftl.open_chunks().nth(chunk as usize % 8).map(|(c, ..)| c);
                    match open {
                        Some(open) if chunk % 3 != 2 => self.ftl.refresh(open),
                        _ => self.ftl.refresh(ChunkId(chunk)),
                    };
                }
            }
            for _ in 0..self.rng.below(6) {
                self.flash.step(&mut self.ftl);
            }
        }
    }
}

// guarantee: D-08

#[test]
fn chunks_of_a_few_write_units_never_run_short_of_space() {
    let seeds = seeds(300, &FOUND_SMALL);
    let (mut cuts, mut reclaimed) = (0, 0);
    let (mut failed, mut calls) = (vec![], CallHash::default());
    for seed in seeds {
        let run = || {
            let mut case = Case::new(seed, Chunks::Small);
            case.run();
            (case.flash.cuts, case.stats.lines_reclaimed, case.flash.calls)
        };
        match std::panic::catch_unwind(run) {
            Ok((cut, lines, hash)) => {
                (cuts, reclaimed) = (cuts + cut, reclaimed + lines);
                calls.fold(hash);
            }
            Err(_) => failed.push(seed),
        }
    }
    println!("{cuts} power cuts, {reclaimed} lines reclaimed");
    assert!(failed.is_empty(), "failing seeds: {failed:?}; replay one with SLUICE_SEED");
    assert_calls("oracle-small-chunks", calls);
}

#[test]
fn everything_flushed_survives_and_nothing_else_appears() {
    let seeds_were_given = number("SLUICE_SEED").is_some();
    let seeds = seeds(810, &FOUND);
    let (mut cuts, mut bounded, mut lines) = (0, 0, (0, 0));
    let mut all = FtlStats::default();
    let (mut paged, mut ahead, mut late) = (0, 0, 0);
    let mut calls = CallHash::default();
    for seed in seeds {
        if number("SLUICE_LOUD").is_some() {
            eprintln!("seed {seed}");
        }
        let result = std::panic::catch_unwind(|| {
            let mut case = Case::new(seed, Chunks::Any);
            case.run();
            let mut read = (0, 0);
            for stats in &case.flash.recoveries {
                read = (read.0 + stats.lines_by_metadata, read.1 + stats.lines_by_oob);
            }
            let met = (case.ahead, case.flash.late, case.flash.calls);
            (case.stats, case.flash.cuts, case.flash.recoveries.len(), read, met)
        });
        match result {
            Ok((stats, cut, recoveries, read, met)) => {
                (ahead, late) = (ahead + met.0, late + met.1);
                calls.fold(met.2);
                all = all.plus(&stats);
                paged += u64::from(stats.map_page_reads + stats.map_page_writes > 0);
                lines = (lines.0 + read.0, lines.1 + read.1);
                cuts += cut;
                bounded += recoveries;
            }
            Err(panic) => {
                eprintln!(
                    "seed {seed} fails; replay it with SLUICE_SEED={seed} cargo test -p sluice-ftl \
                     --test suite oracle::"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{cuts} power cuts, {ahead} with a line opened ahead, {bounded} recoveries");
    assert!(ahead > 0 || seeds_were_given, "power was never cut with a line opened ahead");
    println!("{late} programs reported after a later one of their chunk");
    assert!(late > 0 || seeds_were_given, "programs were always reported in order");
    println!("recoveries read {} lines by metadata and {} by out-of-band bytes", lines.0, lines.1);
    println!(
        "victims read: {} by metadata, {} by out-of-band bytes; {} lines closed without metadata",
        all.victims_read_by_metadata, all.victims_read_by_oob, all.lines_without_metadata
    );
    let met = [lines.0, lines.1, all.victims_read_by_metadata, all.victims_read_by_oob];
    assert!(met.iter().all(|n| *n > 0) || seeds_were_given, "{met:?}");
    assert!(all.lines_reclaimed > 0 || seeds_were_given, "garbage collection never ran");
    let pages = [all.map_page_reads, all.map_page_writes];
    println!("{paged} cases paged: {} map pages read, {} written", pages[0], pages[1]);
    assert!(pages[0].min(pages[1]) > 0 || seeds_were_given, "no map page was evicted");
    assert!(cuts >= 20_000 || seeds_were_given || number("SLUICE_CASES").is_some(), "{cuts} cuts");
    assert_calls("oracle", calls);
}

#[test]
fn what_is_rewritten_repeatedly_stays_what_it_is() {
    let (mut cuts, mut rescued, mut failed) = (0, 0, vec![]);
    let mut calls = CallHash::default();
    for seed in seeds(250, &FOUND_REWRITTEN) {
        for size in [Chunks::Small, Chunks::Any] {
            let run = || {
                let mut case = Case::rewriting(seed, size);
                case.run();
                (case.flash.cuts, case.stats.redispatched_sectors, case.flash.calls)
            };
            match std::panic::catch_unwind(run) {
                Ok((cut, sectors, hash)) => {
                    (cuts, rescued) = (cuts + cut, rescued + sectors);
                    calls.fold(hash);
                }
                Err(_) => {
                    eprintln!("seed {seed}, {size:?} fails");
                    failed.push((seed, size));
                }
            }
        }
    }
    println!("{cuts} power cuts, {rescued} sectors renewed");
    assert!(failed.is_empty(), "failing seeds: {failed:?}; replay one with SLUICE_SEED");
    assert!(rescued > 0 || number("SLUICE_SEED").is_some(), "nothing was rewritten");
    assert_calls("oracle-renewals", calls);
}

#[test]
fn a_rewrite_is_cut_after_every_operation() {
    let (mut cuts, mut renewals, mut failed) = (0, 0, vec![]);
    // A tenth of the seeds: every case is replayed once per operation.
    for seed in seeds(40, &[]).into_iter().take(500) {
        for size in [Chunks::Small, Chunks::Any] {
            let prepared = || {
                let mut case = Case::new(seed, size);
                case.execute(10 + seed % 50);
                let open: Vec<ChunkId> = case.ftl.open_chunks().map(|(chunk, ..)| chunk).collect();
                let before = case.ftl.stats().redispatched_sectors;
                open.into_iter().for_each(|chunk| case.ftl.rewrite_buffered(chunk));
                let renewed = case.ftl.stats().redispatched_sectors - before;
                case.ftl.kick(Nanos(0), &mut case.flash);
                (case, renewed)
            };
            let run = || {
                let (mut after, mut renewed) = (0, 0);
                loop {
                    let (mut case, sectors) = prepared();
                    let mut went = 0;
                    while went < after && case.flash.step(&mut case.ftl) {
                        went += 1;
                    }
                    renewed = sectors.max(renewed);
                    case.cut_power();
                    // Writes after the recovery must survive another power cut.
                    case.execute(5);
                    case.flush();
                    case.cut_power();
                    if went < after || renewed == 0 || after > 400 {
                        return (after, renewed);
                    }
                    after += 1;
                }
            };
            match std::panic::catch_unwind(run) {
                Ok((cut, sectors)) => (cuts, renewals) = (cuts + cut, renewals + sectors),
                Err(_) => {
                    eprintln!("seed {seed}, {size:?} fails");
                    failed.push((seed, size));
                }
            }
        }
    }
    println!("{cuts} cuts of renewals of {renewals} sectors");
    assert!(failed.is_empty(), "failing seeds: {failed:?}; replay one with SLUICE_SEED");
    assert!(renewals > 0 || number("SLUICE_SEED").is_some(), "nothing was rewritten");
}

// guarantee: B-128

#[test]
fn writes_of_both_streams_survive_power_cuts_in_their_order() {
    let (mut cuts, mut hot, mut lines, mut rescued, mut failed) = (0, 0, 0, 0, vec![]);
    for seed in seeds(400, &[]) {
        for size in [Chunks::Small, Chunks::Any] {
            let run = || {
                let mut case = Case::with_streams(seed, size);
                case.run();
                let Case { stats, flash, hot_writes, .. } = case;
                (flash.cuts, hot_writes, stats.lines_reclaimed, stats.redispatched_sectors)
            };
            match std::panic::catch_unwind(run) {
                Ok((cut, writes, reclaimed, sectors)) => {
                    (cuts, hot) = (cuts + cut, hot + writes);
                    (lines, rescued) = (lines + reclaimed, rescued + sectors);
                }
                Err(_) => failed.push((seed, size)),
            }
        }
    }
    println!(
        "{cuts} power cuts, {hot} hot writes, {lines} lines reclaimed, {rescued} sectors again"
    );
    assert!(failed.is_empty(), "failing seeds: {failed:?}; replay one with SLUICE_SEED");
    let is_usual = number("SLUICE_SEED").or(number("SLUICE_CASES")).is_none();
    assert!(cuts >= 40_000 || !is_usual, "{cuts} cuts");
    assert!(hot.min(lines).min(rescued) > 0 || !is_usual, "{hot} {lines} {rescued}");
}
