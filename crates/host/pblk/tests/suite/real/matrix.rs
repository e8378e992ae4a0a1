//! The error matrix: read, program and erase failures at rates up to 1 in 100, alone and combined,
//! and a die failure, for pblk on the emulated drive.
//!
//! The oracle tracks the value of every logical sector and whether the media can return it:
//! whenever the map has a new location of the sector, the oracle reads the medium directly.
//! Invariants:
//!
//! - A sector that the media can return is read, with the last acknowledged data.
//! - A sector that the media cannot return fails individually with a media error, also after
//!   relocations.
//! - Without spare capacity, writes fail with CAPACITY_EXCEEDED and reads still succeed.
//! - All this holds after a power cut, with one exception: if the latest version is unreadable, an
//!   older version may reappear, because the existence of the latest one cannot be detected.
//!
//! A failing seed is printed; `SLUICE_SEED=n cargo test -p sluice-pblk real::matrix`
//! replays it, `SLUICE_CASES` sets the number of seeds.

// guarantee: D-26, D-58

use ftl::{FtlConfig, L2pEntry};
use media::{ErrorModel, InjectedFault, MediaError, PhysSector};
use nvme::{PuId, Status};

use super::harness::{Bench, SECTOR, Shape, UNPAIRED, USUAL, config, copying};

/// Returns an error model: with probability `read` a sector is unreadable each time it is written,
/// with probability `program` a page's program fails, and with probability `erase` an erase fails.
///
/// Read errors are bit errors with a code that corrects none: a sector of n bits has one with
/// probability 1 - exp(-n·rber), drawn once per program.
fn errors(read: f64, program: f64, erase: f64) -> ErrorModel {
    ErrorModel {
        program_fail: program,
        erase_fail: erase,
        rber: -(1.0 - read).ln() / (SECTOR * 8) as f64,
        rber_growth: 1.0,
        ecc_bits: 0,
        ..ErrorModel::default()
    }
}

/// Which logical sectors the media can return.
struct MediaOracle {
    location: Vec<L2pEntry>,
    /// Whether the data is on the medium only, and the medium cannot return it.
    uncorrectable: Vec<bool>,
    /// All values that the sector ever had.
    ever: Vec<Vec<u64>>,
}

impl MediaOracle {
    fn new(b: &Bench) -> MediaOracle {
        let n = b.sectors() as usize;
        let ever = b.model.iter().map(|value| vec![*value]).collect();
        MediaOracle { location: vec![L2pEntry::Unmapped; n], uncorrectable: vec![false; n], ever }
    }

    /// Checks the current location of a sector.
    fn check_location(&mut self, b: &mut Bench, lba: u64) {
        let at = b.pblk.ftl().location(lba).expect("all of the map is in memory");
        let place = &mut self.location[lba as usize];
        if *place == at {
            return;
        }
        *place = at;
        if let L2pEntry::Flash(phys) = at {
            let nand = b.drive().nand_mut().unwrap();
            match nand.check_read(PhysSector(phys.get())) {
                Ok(_) => {}
                Err(MediaError::Uncorrectable { .. } | MediaError::DieFailed { .. }) => {
                    self.uncorrectable[lba as usize] = true;
                }
                // The mapped location was programmed and is paired, or is known to be lost.
                Err(e) => assert!(
                    self.uncorrectable[lba as usize],
                    "sector {lba} is where nothing is: {e}"
                ),
            }
        }
    }

    fn check_all_locations(&mut self, b: &mut Bench) {
        (0..b.sectors()).for_each(|lba| self.check_location(b, lba));
    }

    /// Checks sectors that may have been relocated since the last check. A buffered sector can move
    /// to the medium and back to the buffer without a program in between; all other relocations
    /// take a program.
    fn track_moves(&mut self, b: &mut Bench, programs: &mut u64) {
        if b.pblk.stats().programs != *programs {
            *programs = b.pblk.stats().programs;
            return self.check_all_locations(b);
        }
        for lba in 0..self.location.len() {
            if matches!(self.location[lba], L2pEntry::Buffer(_)) {
                self.check_location(b, lba as u64);
            }
        }
    }

    /// Tracks relocations while `run` executes, because sectors may be relocated more than once.
    fn track_while<T>(
        &mut self,
        b: &mut Bench,
        run: impl FnOnce(&mut Bench, &mut dyn FnMut(&mut Bench, u64)) -> T,
    ) -> T {
        let mut programs = b.pblk.stats().programs;
        run(b, &mut |b, _| self.track_moves(b, &mut programs))
    }

    /// Overwrites random ranges until `sectors` were written, or a write fails.
    fn churn(&mut self, b: &mut Bench, sectors: u64) -> Status {
        let mut written = 0;
        while written < sectors {
            let n = 1 + b.rng.below(16);
            let lba = b.rng.below(b.sectors() - n + 1);
            let newest = b.model.iter().copied().max().unwrap_or_default();
            let range = lba as usize..(lba + n) as usize;
            let before = self.uncorrectable[range.clone()].to_vec();
            self.uncorrectable[range.clone()].fill(false);
            let status = self.track_while(b, |b, each| b.write_with(lba, n as u32, each));
            if !status.is_success() {
                // The write may have been accepted in part.
                for (gone, before) in self.uncorrectable[range].iter_mut().zip(before) {
                    *gone |= before;
                }
                for lba in lba..lba + n {
                    if let Ok(value) = b.read(lba)
                        && value != b.model[lba as usize]
                    {
                        assert!(value > newest, "sector {lba} holds what is older: {value}");
                        b.model[lba as usize] = value;
                        self.uncorrectable[lba as usize] = false;
                        self.ever[lba as usize].push(value);
                    }
                }
                self.check_all_locations(b);
                return status;
            }
            // If the write waits long for space, a sector may be written and lost before the last
            // sector is accepted.
            for lba in lba..lba + n {
                if self.uncorrectable[lba as usize] {
                    self.uncorrectable[lba as usize] = b.read(lba).is_err();
                }
            }
            self.location[range].fill(L2pEntry::Unmapped);
            for lba in lba..lba + n {
                self.ever[lba as usize].push(b.model[lba as usize]);
            }
            self.check_all_locations(b);
            written += n;
        }
        Status::SUCCESS
    }

    /// Reads all sectors: exactly the lost ones fail, the others have their expected contents.
    /// Returns the number of lost sectors.
    fn check(&mut self, b: &mut Bench, when: &str) -> usize {
        for lba in 0..b.sectors() {
            // GC proceeds while other sectors are read.
            self.check_location(b, lba);
            // GC may relocate sectors more than once meanwhile.
            let mut programs = b.pblk.stats().programs;
            let got = b.read_with(lba, &mut |b, _| self.track_moves(b, &mut programs));
            self.track_moves(b, &mut programs);
            self.check_location(b, lba);
            match got {
                Ok(value) => {
                    assert_eq!(value, b.model[lba as usize], "{when}: sector {lba}");
                    assert!(
                        !self.uncorrectable[lba as usize],
                        "{when}: sector {lba} cannot be had"
                    );
                }
                Err(status) => {
                    assert!(status.is_media_error(), "{when}: sector {lba}: {status}");
                    assert!(
                        self.uncorrectable[lba as usize],
                        "{when}: the media can return sector {lba}"
                    );
                }
            }
        }
        self.uncorrectable.iter().filter(|gone| **gone).count()
    }

    /// Cuts the power after a flush, and checks that every sector that the media can return is
    /// readable. Returns how many of the others have an older value.
    fn power_cycle(&mut self, b: &mut Bench) -> usize {
        self.check_all_locations(b);
        // A sector that is on the medium but still read from the write buffer may be damaged there.
        // Recovery then uses its previous location, which may be erased.
        let buffered = |lba: &u64| matches!(b.pblk.ftl().location(*lba), Some(L2pEntry::Buffer(_)));
        let buffered: Vec<u64> = (0..b.sectors()).filter(buffered).collect();
        b.power_cycle().unwrap();
        for lba in buffered {
            if let Some(L2pEntry::Flash(phys)) = b.pblk.ftl().location(lba) {
                let nand = b.drive().nand_mut().unwrap();
                self.uncorrectable[lba as usize] |=
                    nand.check_read(PhysSector(phys.get())).is_err();
            }
        }
        self.location.fill(L2pEntry::Unmapped);
        self.check_all_locations(b);
        let mut older = 0;
        for lba in
            (0..b.sectors()).filter(|lba| self.uncorrectable[*lba as usize]).collect::<Vec<_>>()
        {
            let Ok(value) = b.read(lba) else { continue };
            assert!(self.ever[lba as usize].contains(&value), "sector {lba} never held {value}");
            (b.model[lba as usize], self.uncorrectable[lba as usize]) = (value, false);
            older += 1;
        }
        self.check_all_locations(b);
        older
    }
}

/// Results of one case.
#[derive(Debug, Default)]
struct CaseResult {
    uncorrectable: usize,
    moved_lost: u64,
    full: bool,
    failures: u64,
}

/// Overwrites and reads all sectors, three times, with power cuts in between if reads do not fail.
fn case(errors: ErrorModel, seed: u64) -> CaseResult {
    case_with(errors, seed, USUAL, FtlConfig::default())
}

fn case_with(errors: ErrorModel, seed: u64, shape: Shape, ftl: FtlConfig) -> CaseResult {
    let mut b = Bench::new(config(shape, errors, seed), ftl);
    b.rng = rng::Rng::new(seed);
    let mut watch = MediaOracle::new(&b);
    let mut seen = CaseResult::default();
    for round in 0..3 {
        let twice = 2 * b.sectors();
        let status = watch.churn(&mut b, twice);
        seen.full = status.is(Status::CAPACITY_EXCEEDED);
        assert!(status.is_success() || seen.full, "round {round}: {status}");
        seen.uncorrectable = seen.uncorrectable.max(watch.check(&mut b, "at work"));
        let stats = b.pblk.stats();
        seen.moved_lost += stats.uncorrectable_sectors;
        seen.failures += stats.program_failures + stats.erase_failures;
        if seen.full {
            assert!(b.write(0, 1).is(Status::CAPACITY_EXCEEDED), "read-only");
            watch.check(&mut b, "read-only");
            break;
        }
        assert!(watch.track_while(&mut b, |b, each| b.flush_with(each)).is_success());
        if round == 1 {
            watch.track_while(&mut b, |b, each| b.checkpoint_with(each));
        }
        let older = watch.power_cycle(&mut b);
        assert!(older == 0 || errors.rber > 0.0, "{older} sectors hold what is older");
        watch.check(&mut b, "after a power cut");
    }
    seen
}

const RATES: [f64; 4] = [0.0, 0.000_1, 0.001, 0.01];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|v| v.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// Runs a case for every seed, and reports the failing one.
fn seeds(each: u64, run: impl Fn(u64) -> CaseResult) -> CaseResult {
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLUICE_CASES").unwrap_or(each),
    };
    let mut all = CaseResult::default();
    for seed in seeds {
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        let seen = run.unwrap_or_else(|why| {
            eprintln!("seed {seed} fails; replay it with SLUICE_SEED={seed}");
            std::panic::resume_unwind(why)
        });
        all.uncorrectable += seen.uncorrectable;
        all.moved_lost += seen.moved_lost;
        all.failures += seen.failures;
        all.full |= seen.full;
    }
    all
}

#[test]
fn reads_that_fail_at_any_rate_fail_alone() {
    for rate in RATES {
        let seen = seeds(2, |seed| case(errors(rate, 0.0, 0.0), seed));
        assert!(!seen.full && seen.failures == 0, "{rate}: {seen:?}");
        assert_eq!(rate == 0.0, seen.uncorrectable == 0, "{rate}: {seen:?}");
        assert!(rate < 0.01 || seen.moved_lost > 0, "some were moved: {seen:?}");
    }
}

#[test]
fn everything_fails_at_once_and_no_sector_is_lost_that_the_media_can_return() {
    for rate in RATES {
        let seen = seeds(2, |seed| case(errors(rate, rate, rate), seed));
        assert!(!seen.full || rate >= 0.001, "{rate}: {seen:?}");
        assert_eq!(rate == 0.0, seen.uncorrectable == 0, "{rate}: {seen:?}");
        assert!(rate < 0.001 || seen.failures > 0, "{rate}: {seen:?}");
        assert!(rate < 0.01 || seen.full, "so many chunks are not spare: {seen:?}");
    }
}

#[test]
fn copies_inside_of_the_drive_lose_no_sector_that_the_media_can_return() {
    for rate in RATES {
        let errors = errors(rate, rate, rate);
        let seen = seeds(2, |seed| case_with(errors, seed, UNPAIRED, copying()));
        assert!(!seen.full || rate >= 0.001, "{rate}: {seen:?}");
        assert_eq!(rate == 0.0, seen.uncorrectable == 0, "{rate}: {seen:?}");
        assert!(rate < 0.001 || seen.failures > 0, "{rate}: {seen:?}");
        assert!(rate < 0.01 || seen.full, "so many chunks are not spare: {seen:?}");
    }
    let reads = seeds(2, |seed| case_with(errors(0.01, 0.0, 0.0), seed, UNPAIRED, copying()));
    assert!(reads.moved_lost > 0 && reads.failures == 0, "{reads:?}");
}

#[test]
fn a_die_and_reads_that_fail_beside_it_take_their_own_sectors_and_no_others() {
    let seen = seeds(4, |seed| {
        let ftl = FtlConfig { over_provisioning: 0.6, ..FtlConfig::default() };
        let mut b = Bench::new(config(USUAL, errors(0.001, 0.0, 0.0), seed), ftl);
        b.rng = rng::Rng::new(seed);
        let mut watch = MediaOracle::new(&b);
        let all = b.sectors();
        assert!(watch.churn(&mut b, 2 * all).is_success());
        watch.check(&mut b, "before");
        let pu = (seed % 4) as u32;
        b.drive().nand_mut().unwrap().inject(InjectedFault::DieFailure { pu: PuId(pu) }).unwrap();
        // The sectors on the failed die are lost.
        watch.location.fill(L2pEntry::Unmapped);
        watch.check_all_locations(&mut b);
        let gone = watch.check(&mut b, "after");
        let share = gone as f64 / all as f64;
        assert!((0.15..0.35).contains(&share), "a quarter is gone: {share}");
        let status = watch.churn(&mut b, all);
        assert!(status.is_success(), "{status}");
        watch.check(&mut b, "without the die");
        CaseResult { uncorrectable: gone, ..CaseResult::default() }
    });
    assert!(seen.uncorrectable > 0);
}
