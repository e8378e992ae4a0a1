//! Map pages that become unreadable during host I/O: several requests at a time, garbage
//! collection, chunks that go offline, and power cuts at any moment.
//!
//! A sector must return its latest value, with two exceptions.
//!
//! It may be uncorrectable if a chunk that held a copy of it went offline. It may also be
//! uncorrectable if its map page was lost, newer versions may have been in that chunk or in other
//! unreadable units, and the FTL cannot know: power was cut before, or the P2L is not in memory.
//!
//! It may return an older value if it was trimmed and its map page was lost and rebuilt from
//! copies; or if it was lost before, and the map page that recorded this was lost while power was
//! off. A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-ftl --test
//! suite rebuild::`.

// guarantee: D-06, D-36

use crate::common;
use nvme::ChunkId;

use std::collections::{BTreeMap, BTreeSet};

use common::{TestFlash, geometry, map_cache_min, with_metadata};
use ftl::{ChunkReport, FlashGeometry, Ftl, FtlConfig, FtlStats, LineMetadata, P2lLocation};
use nvme::Status;
use rng::Rng;
use time::Nanos;

const NOW: Nanos = Nanos(0);

/// Logical sectors per map page, with sectors of 512 bytes.
const PAGE: u64 = 112;

#[derive(Clone, Debug, Default)]
struct Sector {
    now: u64,
    /// Values possible after a power cut.
    possible: BTreeSet<u64>,
    ever: BTreeSet<u64>,
    /// Whether the sector may be uncorrectable, and whether a trim may be undone: now, or after a
    /// power cut.
    fails: bool,
    fails_cut: bool,
    untrimmed: bool,
    untrimmed_cut: bool,
    /// Whether the sector was uncorrectable, which perhaps only its map page records.
    was_lost: bool,
    busy: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write(u64),
    Trim,
}

struct Case {
    ftl: Ftl,
    flash: TestFlash,
    config: FtlConfig,
    rng: Rng,
    sectors: Vec<Sector>,
    busy: BTreeMap<u64, (u64, Kind)>,
    tag: u64,
    value: u64,
    /// Map pages that were lost. The counters below concern chunks that went offline.
    lost: BTreeSet<u64>,
    kills: bool,
    killed: u32,
    /// Whether there were unreadable sectors other than the latest map pages.
    hidden: bool,
    errors: u64,
    cuts_in_scans: u32,
    stats: FtlStats,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut rng = Rng::new(seed);
        let pus = 1 + rng.below(3) as u32;
        let pair = rng.below(3) as u32;
        let shape =
            FlashGeometry::from_geometry(&geometry(1, pus, 40, 32 + rng.below(64) as u32, 1, pair));
        let mut config = FtlConfig {
            over_provisioning: 0.5 + 0.5 * rng.f64(),
            hot_cold: rng.chance(0.5),
            checkpoint_sectors: [0, 200, 1_000][rng.below(3) as usize],
            line_metadata: LineMetadata::Off,
            gc_queue_depth_units: 1 + rng.below(4) as u32,
            ..FtlConfig::default()
        };
        if rng.chance(0.7) {
            config = with_metadata(&shape, &config);
        }
        if config.line_metadata == LineMetadata::On && rng.chance(0.5) {
            config.p2l_location = P2lLocation::Media;
        }
        config.map_cache_sectors = map_cache_min(&shape, &config);
        config.map_cache_sectors += [0, 0, 1, 4][rng.below(4) as usize];
        // In half of the cases only map pages become unreadable.
        let clean = rng.chance(0.5);
        let kills = !clean && rng.chance(0.8);
        let ftl = Ftl::new(shape, config, |_| ChunkReport::Free).expect("a geometry that fits");
        let mut flash = TestFlash::new(shape, true, ftl.slots(), seed ^ 0x5a17);
        (flash.lazy, flash.heals) = (true, clean);
        // In half of the cases completions are reported in any order.
        if Rng::new(seed ^ 0x0_4de4).chance(0.5) {
            flash.reorder(seed);
        }
        let blank = Sector { possible: BTreeSet::from([0]), ..Sector::default() };
        let sectors = vec![blank; ftl.sectors() as usize];
        let (busy, lost, stats) = (BTreeMap::new(), BTreeSet::new(), FtlStats::default());
        let (tag, value, killed, cuts_in_scans) = (0, 0, 0, 0);
        Case {
            ftl,
            flash,
            config,
            rng,
            sectors,
            busy,
            tag,
            value,
            lost,
            kills,
            killed,
            hidden: false,
            errors: 0,
            cuts_in_scans,
            stats,
        }
    }

    /// Whether a lost map page can be rebuilt exactly.
    fn finds_all(&self) -> bool {
        self.config.p2l_location == P2lLocation::Memory && self.flash.cuts == 0
    }

    /// Marks the sectors of lost pages that may be wrong from now on.
    fn mark_at_risk(&mut self) {
        if self.finds_all() {
            return;
        }
        self.find_hidden_units();
        let pages = std::mem::take(&mut self.lost);
        for s in pages.iter().flat_map(|p| p * PAGE..(p + 1) * PAGE) {
            let Some(s) = self.sectors.get_mut(s as usize) else { continue };
            s.untrimmed |= s.now == 0;
            s.untrimmed_cut |= s.untrimmed || s.possible.contains(&0);
            s.fails |= self.hidden;
            s.fails_cut |= s.fails;
        }
        self.lost = pages;
    }

    /// Records whether there are unreadable units that nothing describes.
    fn find_hidden_units(&mut self) {
        let all = self.sectors.len() as u64;
        let places: Vec<_> =
            self.lost.iter().filter_map(|p| self.flash.newest((all + p) as u32)).collect();
        let hidden = self.flash.unreadable.iter().any(|phys| !places.contains(phys));
        self.hidden |= hidden || self.killed > 0 || self.flash.has_torn();
    }

    fn submit(&mut self) {
        let mut lba = self.rng.below(self.sectors.len() as u64);
        if self.rng.chance(0.5) && !self.lost.is_empty() {
            let page = self.rng.below(self.lost.len() as u64) as usize;
            let page = self.lost.iter().nth(page).copied().unwrap_or(0);
            lba = (page * PAGE + self.rng.below(PAGE)).min(self.sectors.len() as u64 - 1);
        }
        if self.sectors[lba as usize].busy {
            return;
        }
        let kind = match self.rng.below(10) {
            0..5 => {
                self.value += 1;
                Kind::Write(self.value)
            }
            5 => Kind::Trim,
            _ => Kind::Read,
        };
        self.begin(lba, kind);
    }

    fn begin(&mut self, lba: u64, kind: Kind) {
        self.tag += 1;
        let s = &mut self.sectors[lba as usize];
        s.busy = true;
        self.busy.insert(self.tag, (lba, kind));
        match kind {
            Kind::Read => {
                self.flash.requests.insert(self.tag, vec![u64::MAX]);
                self.ftl.read(NOW, self.tag, lba, 1, &mut self.flash);
            }
            Kind::Write(value) => {
                s.possible.insert(value);
                s.ever.insert(value);
                self.flash.requests.insert(self.tag, vec![value]);
                self.ftl.write(self.tag, lba, 1, false);
                self.ftl.kick(NOW, &mut self.flash);
            }
            Kind::Trim => {
                s.possible.insert(0);
                self.ftl.trim(self.tag, lba, 1);
                self.ftl.kick(NOW, &mut self.flash);
            }
        }
        self.reap();
    }

    /// Checks the completed requests. Returns the status of a request that is not a read, write or
    /// trim of the case.
    fn reap(&mut self) -> Option<Status> {
        let mut other = None;
        while let Some(done) = self.ftl.pop_completion() {
            let values = self.flash.requests.remove(&done.tag);
            let Some((lba, kind)) = self.busy.remove(&done.tag) else {
                other = Some(done.status);
                continue;
            };
            let s = &mut self.sectors[lba as usize];
            s.busy = false;
            match kind {
                Kind::Read if done.status.is_success() => {
                    let value = values.map(|v| v[0]).unwrap_or_default();
                    let old = s.untrimmed && (s.ever.contains(&value) || value == 0);
                    assert!(value == s.now || old, "sector {lba} holds {value}: {s:?}");
                }
                Kind::Read => {
                    self.errors += 1;
                    if !s.fails {
                        self.mark_at_risk();
                    }
                    let s = &mut self.sectors[lba as usize];
                    s.was_lost = true;
                    assert!(s.fails, "sector {lba}: {}, {s:?}", done.status);
                }
                Kind::Write(value) if done.status.is_success() => {
                    (s.now, s.fails, s.untrimmed) = (value, false, false);
                }
                Kind::Trim if done.status.is_success() => {
                    (s.now, s.fails, s.untrimmed) = (0, false, false);
                }
                Kind::Write(_) | Kind::Trim => panic!("sector {lba}: {}", done.status),
            }
        }
        other
    }

    fn step(&mut self) {
        let going = self.flash.step(&mut self.ftl);
        assert!(going || self.ftl.has_completion(), "stuck: {}", self.ftl.debug_state());
    }

    fn flush(&mut self) {
        while !self.busy.is_empty() {
            self.step();
            self.reap();
        }
        self.tag += 1;
        self.ftl.flush(NOW, self.tag, &mut self.flash);
        let status = loop {
            if let Some(status) = self.reap() {
                break status;
            }
            self.step();
        };
        assert!(status.is_success(), "{status}");
        for s in &mut self.sectors {
            s.possible = BTreeSet::from([s.now]);
            (s.fails_cut, s.untrimmed_cut) = (s.fails, s.untrimmed);
        }
    }

    fn lose_page(&mut self) {
        let page = self.rng.below(self.ftl.capacity_plan().map_pages.into());
        if self.flash.heals {
            // A checkpoint lets the FTL know the lost sector's contents even after a power cut.
            self.flush();
            self.ftl.checkpoint();
            self.ftl.kick(NOW, &mut self.flash);
            while self.ftl.is_checkpointing() {
                self.step();
                self.reap();
            }
        }
        let Some(at) = self.flash.newest((self.sectors.len() as u64 + page) as u32) else { return };
        self.flash.unreadable.insert(at);
        self.lost.insert(page);
        self.mark_at_risk();
    }

    fn kill(&mut self) {
        let chunk = self.rng.below(self.flash.geometry.total_chunks().into()) as u32;
        if self.killed == 2 || self.flash.dead[chunk as usize] {
            return;
        }
        self.killed += 1;
        for lba in self.flash.kill(chunk) {
            match u64::from(lba).checked_sub(self.sectors.len() as u64) {
                None => {
                    let s = &mut self.sectors[lba as usize];
                    (s.fails, s.fails_cut, s.was_lost) = (true, true, true);
                }
                Some(page) => _ = self.lost.insert(page),
            }
        }
        self.mark_at_risk();
        self.ftl.chunk_offline(ChunkId(chunk));
        self.ftl.kick(NOW, &mut self.flash);
        self.reap();
        self.flush();
    }

    fn cut(&mut self) {
        let stats = *self.ftl.stats();
        self.cuts_in_scans += u32::from(stats.rebuild_reads > 0 && stats.pages_rebuilt == 0);
        self.stats = self.stats.plus(&stats);
        let cache = self.ftl.map_cache();
        assert!(cache.resident_max <= cache.frames, "{cache:?}");
        assert_eq!((stats.map_mismatches, stats.map_pages_lost), (0, 0), "{stats:?}");
        self.ftl = self.flash.power_cut(self.config);
        if self.rng.chance(0.5) {
            // Locations without a current map page become readable again.
            let all = self.sectors.len() as u64;
            let pages = self.lost.iter().filter_map(|p| self.flash.newest((all + p) as u32));
            let places: BTreeSet<u32> = pages.collect();
            self.flash.unreadable.retain(|phys| places.contains(phys));
        }
        self.mark_at_risk();
        // The loss of a sector is forgotten with its page, if the page has not been read since
        // power-on.
        for s in self.lost.iter().flat_map(|p| p * PAGE..(p + 1) * PAGE) {
            let Some(s) = self.sectors.get_mut(s as usize) else { continue };
            s.untrimmed_cut |= s.was_lost;
        }
        self.flash.requests.clear();
        self.busy.clear();
        for s in &mut self.sectors {
            s.busy = false;
            (s.fails, s.untrimmed) = (s.fails || s.fails_cut, s.untrimmed || s.untrimmed_cut);
        }
        if self.rng.chance(0.3) {
            // Power is cut again while the FTL rebuilds pages.
            for _ in 0..1 + self.rng.below(4) {
                self.glance();
            }
            (0..self.rng.below(60)).for_each(|_| _ = self.flash.step(&mut self.ftl));
            return self.cut();
        }
        for lba in 0..self.sectors.len() as u64 {
            self.read_after_cut(lba);
        }
    }

    /// Starts a read without waiting for its completion.
    fn glance(&mut self) {
        self.tag += 1;
        self.flash.requests.insert(self.tag, vec![0]);
        let lba = self.rng.below(self.sectors.len() as u64);
        self.ftl.read(NOW, self.tag, lba, 1, &mut self.flash);
    }

    /// Reads a sector after a power cut.
    fn read_after_cut(&mut self, lba: u64) {
        self.tag += 1;
        self.flash.requests.insert(self.tag, vec![u64::MAX]);
        self.ftl.read(NOW, self.tag, lba, 1, &mut self.flash);
        let status = loop {
            match self.ftl.pop_completion() {
                Some(done) if done.tag == self.tag => break done.status,
                Some(_) => {}
                None => self.step(),
            }
        };
        let value = self.flash.requests.remove(&self.tag).map(|v| v[0]).unwrap_or_default();
        let s = &mut self.sectors[lba as usize];
        if status.is_success() {
            let old = s.untrimmed && (s.ever.contains(&value) || value == 0);
            let fine = s.possible.contains(&value) || old;
            assert!(fine, "sector {lba} holds {value} after a power cut: {s:?}");
            s.now = value;
        } else {
            self.errors += 1;
            if !s.fails {
                self.mark_at_risk();
            }
            let s = &mut self.sectors[lba as usize];
            s.was_lost = true;
            assert!(s.fails, "sector {lba} after a power cut: {status}, {s:?}");
        }
        let s = &mut self.sectors[lba as usize];
        s.possible = BTreeSet::from([s.now]);
        (s.fails_cut, s.untrimmed_cut) = (s.fails, s.untrimmed);
    }

    fn run(&mut self) {
        // Writes every page.
        for lba in 0..self.sectors.len() as u64 {
            self.value += 1;
            self.begin(lba, Kind::Write(self.value));
            while self.busy.len() > 8 {
                self.step();
                self.reap();
            }
        }
        self.flush();
        for _ in 0..1_500 + self.rng.below(1_500) {
            match self.rng.below(300) {
                0..3 => self.lose_page(),
                3 => self.flush(),
                4 if self.kills && self.rng.chance(0.6) => self.kill(),
                5 if self.rng.chance(0.4) => self.cut(),
                _ if self.busy.len() < 8 => self.submit(),
                _ => {}
            }
            for _ in 0..self.rng.below(4) {
                self.flash.step(&mut self.ftl);
                self.reap();
            }
        }
        self.flush();
        self.cut();
        self.stats = self.stats.plus(self.ftl.stats());
    }
}

#[test]
fn pages_that_are_lost_are_found_again_whatever_goes_on() {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let seeds: Vec<u64> = match number("SLUICE_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("SLUICE_CASES").unwrap_or(150)).collect(),
    };
    let (mut killed, mut cuts, mut in_scans) = (0, 0, 0);
    let (mut errors, mut strict) = (0, 0);
    let mut all = FtlStats::default();
    for seed in seeds {
        let result = std::panic::catch_unwind(|| {
            let mut case = Case::new(seed);
            case.run();
            let strict = u32::from(!case.hidden);
            (case.killed, case.flash.cuts, case.cuts_in_scans, case.stats, case.errors, strict)
        });
        match result {
            Ok((k, c, s, stats, e, f)) => {
                (killed, cuts, in_scans) = (killed + k, cuts + c, in_scans + s);
                (errors, strict) = (errors + e, strict + f);
                all = all.plus(&stats);
            }
            Err(panic) => {
                eprintln!(
                    "seed {seed} fails; replay it with SLUICE_SEED={seed} cargo test -p sluice-ftl \
                     --test suite rebuild::"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!(
        "{killed} chunks gone, {cuts} power cuts, {in_scans} of them in scans; {} pages rebuilt, {} \
         sectors read for it, {} lines reclaimed; {errors} errors, none in {strict} cases",
        all.pages_rebuilt, all.rebuild_reads, all.lines_reclaimed
    );
    let met = [killed.into(), in_scans.into(), strict.into(), all.pages_rebuilt, all.rebuild_reads];
    let met = met.into_iter().chain([all.lines_reclaimed]);
    assert!(met.into_iter().all(|n: u64| n > 0) || number("SLUICE_SEED").is_some());
}
