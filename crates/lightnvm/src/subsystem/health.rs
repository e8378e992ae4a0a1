//! [`Health`]: bad chunks, wear, and what is left of the drive's life (LightNVM paper sections 2.2 and
//! 4.1: a host that manages flash must know how worn it is).
//!
//! The budget is what the rated cycles leave: for every good chunk the cycles that it has not used,
//! times its bytes. What a user can write of that depends on the write amplification of the targets,
//! which is an argument. What the drive itself counts is shown beside it and not mixed in: its
//! counters begin with each power-on of an emulated drive.

use nvme::{Geometry, HealthLog};

use super::{ChunkAllocator, ChunkUse};

/// Bins of the histogram.
pub const WEAR_BINS: usize = 16;

/// How many chunks are what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkCounts {
    /// All.
    pub total: u32,
    /// The partition table's.
    pub reserved: u32,
    /// Some target's.
    pub owned: u32,
    /// Nobody's, and erased.
    pub free: u32,
    /// Nobody's, and to be erased.
    pub dirty: u32,
    /// Nobody's, with data that nobody knows.
    pub orphaned: u32,
    /// Bad when the drive was registered.
    pub factory_bad: u32,
    /// Gone bad since.
    pub grown_bad: u32,
}

impl ChunkCounts {
    /// Chunks that are not bad.
    pub fn good(&self) -> u32 {
        self.total - self.factory_bad - self.grown_bad
    }
}

/// The wear of the good chunks, in cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WearSpread {
    /// Of the least worn.
    pub min: u32,
    /// On average.
    pub mean: f64,
    /// Of the most worn.
    pub max: u32,
    /// Chunks by sixteenths of the rated cycles; those beyond are in the last bin.
    pub bins: [u32; WEAR_BINS],
}

/// What of the drive's health log a host looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveCounters {
    /// Life used, percent.
    pub percentage_used: u8,
    /// Spare left, percent.
    pub available_spare: u8,
    /// Warnings, as the log has them.
    pub critical_warning: u8,
    /// Errors that were not recovered.
    pub media_errors: u64,
    /// Written by hosts, in bytes, in steps of 512,000.
    pub bytes_written: u128,
    /// Power losses without notice.
    pub unsafe_shutdowns: u64,
}

/// How a drive is.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveHealth {
    /// Chunks by what they are.
    pub chunks: ChunkCounts,
    /// Wear of the good ones.
    pub wear: WearSpread,
    /// Cycles that a chunk is good for.
    pub rated_cycles: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// What the drive counts, if it was asked.
    pub drive: Option<DriveCounters>,
}

/// What a drive is sold with, and how it is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warranty {
    /// Years from the first day.
    pub years: f64,
    /// Years gone.
    pub age_years: f64,
    /// Bytes that the media writes for each byte of a user, at least 1.
    pub write_amplification: f64,
}

/// What is left of a warranty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Endurance {
    /// Bytes that the media could write when it was new, bad chunks not counted.
    pub media_bytes: f64,
    /// Bytes that it still can.
    pub media_bytes_remaining: f64,
    /// Bytes that users still can.
    pub host_bytes_remaining: f64,
    /// Part of the budget that is left, 0 to 1.
    pub remaining_ratio: f64,
    /// Times that the whole drive could be written every day over the whole warranty when it was
    /// new.
    pub dwpd: f64,
    /// Times that it can be on every day that is left; 0 when none is, or no budget.
    pub dwpd_remaining: f64,
    /// Days that are left.
    pub days_remaining: f64,
}

const DAYS_PER_YEAR: f64 = 365.25;

impl DriveHealth {
    /// The health of a pool's drive; `log` is the drive's health log, if it was read.
    pub fn new(pool: &ChunkAllocator, geometry: &Geometry, log: Option<&HealthLog>) -> DriveHealth {
        let mut chunks = ChunkCounts::default();
        let mut wear = WearSpread { min: u32::MAX, ..WearSpread::default() };
        let rated_cycles = pool.wear().rated_cycles();
        let mut cycles_used = 0u64;
        for (chunk, entry) in (0..).zip(pool.table().chunks()) {
            chunks.total += 1;
            match entry.state {
                ChunkUse::Free => chunks.free += 1,
                ChunkUse::Owned => chunks.owned += 1,
                ChunkUse::Dirty => chunks.dirty += 1,
                ChunkUse::Reserved => chunks.reserved += 1,
                ChunkUse::FactoryBad => chunks.factory_bad += 1,
                ChunkUse::GrownBad => chunks.grown_bad += 1,
            }
            if matches!(entry.state, ChunkUse::FactoryBad | ChunkUse::GrownBad) {
                continue;
            }
            let cycles = pool.wear().cycles(chunk);
            cycles_used += u64::from(cycles);
            (wear.min, wear.max) = (wear.min.min(cycles), wear.max.max(cycles));
            let bin = u64::from(cycles) * WEAR_BINS as u64 / u64::from(rated_cycles);
            wear.bins[(bin as usize).min(WEAR_BINS - 1)] += 1;
        }
        chunks.orphaned = pool.orphaned_chunks().count() as u32;
        chunks.free -= chunks.orphaned;
        match chunks.good() {
            0 => wear.min = 0,
            good => wear.mean = cycles_used as f64 / f64::from(good),
        }
        let drive = log.map(|log| DriveCounters {
            percentage_used: log.percentage_used,
            available_spare: log.available_spare,
            critical_warning: log.critical_warning,
            media_errors: clamp(log.media_errors.get()),
            bytes_written: log.data_units_written.get().saturating_mul(512_000),
            unsafe_shutdowns: clamp(log.unsafe_shutdowns.get()),
        });
        let chunk_bytes = u64::from(geometry.sectors) * u64::from(geometry.sector_bytes);
        DriveHealth { chunks, wear, rated_cycles, chunk_bytes, drive }
    }

    /// The difference between the most and the least worn good chunk, in cycles.
    pub fn wear_range(&self) -> u32 {
        self.wear.max - self.wear.min
    }

    /// What is left of a warranty. Numbers that cannot be (a negative age, an amplification below 1)
    /// count as the nearest that can.
    pub fn endurance(&self, warranty: &Warranty) -> Endurance {
        let good = f64::from(self.chunks.good());
        let rated = f64::from(self.rated_cycles);
        let chunk = self.chunk_bytes as f64;
        let media_bytes = good * rated * chunk;
        // Chunks beyond their rating have no budget, but take none from others either; the mean is
        // exact as long as none is.
        let left = (1.0 - self.wear.mean / rated).clamp(0.0, 1.0);
        let amplification = at_least(warranty.write_amplification, 1.0);
        let years = at_least(warranty.years, 0.0);
        let days = years * DAYS_PER_YEAR;
        let days_left = (years - at_least(warranty.age_years, 0.0)).max(0.0) * DAYS_PER_YEAR;
        let capacity = good * chunk;
        let per_day = |bytes: f64, days: f64| {
            if days > 0.0 && capacity > 0.0 { bytes / amplification / capacity / days } else { 0.0 }
        };
        Endurance {
            media_bytes,
            media_bytes_remaining: media_bytes * left,
            host_bytes_remaining: media_bytes * left / amplification,
            remaining_ratio: left,
            dwpd: per_day(media_bytes, days),
            dwpd_remaining: per_day(media_bytes * left, days_left),
            days_remaining: days_left,
        }
    }
}

fn at_least(value: f64, least: f64) -> f64 {
    if value.is_finite() { value.max(least) } else { least }
}

fn clamp(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(mean: f64) -> DriveHealth {
        DriveHealth {
            chunks: ChunkCounts {
                total: 1000,
                factory_bad: 5,
                grown_bad: 15,
                ..Default::default()
            },
            wear: WearSpread { min: 10, mean, max: 400, bins: [0; WEAR_BINS] },
            rated_cycles: 3000,
            chunk_bytes: 1 << 24,
            drive: None,
        }
    }

    #[test]
    fn the_warranty_is_arithmetic() {
        // 3000 cycles over five years are 3000 / 1826.25 drive writes per day, a third of that with
        // an amplification of three.
        let terms = Warranty { years: 5.0, age_years: 0.0, write_amplification: 3.0 };
        let new = health(0.0).endurance(&terms);
        assert!((new.dwpd - 3000.0 / 1826.25 / 3.0).abs() < 1e-9);
        assert_eq!(new.dwpd, new.dwpd_remaining);
        assert_eq!(new.media_bytes, 980.0 * 3000.0 * f64::from(1 << 24));
        // Half of the budget in a quarter of the time leaves two thirds of the rate.
        let used = health(1500.0).endurance(&Warranty { age_years: 1.25, ..terms });
        assert!((used.dwpd_remaining / used.dwpd - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(used.remaining_ratio, 0.5);
        assert_eq!(health(1500.0).wear_range(), 390);
    }

    #[test]
    fn what_is_used_up_is_zero_and_never_negative() {
        let terms = Warranty { years: 5.0, age_years: 6.0, write_amplification: 1.0 };
        let over = health(100.0).endurance(&terms);
        assert_eq!((over.days_remaining, over.dwpd_remaining), (0.0, 0.0));
        let worn = health(4000.0).endurance(&Warranty { age_years: 1.0, ..terms });
        assert_eq!(
            (worn.remaining_ratio, worn.media_bytes_remaining, worn.dwpd_remaining),
            (0.0, 0.0, 0.0)
        );
        let odd = Warranty { years: 5.0, age_years: -1.0, write_amplification: f64::NAN };
        let odd = health(0.0).endurance(&odd);
        assert!(odd.dwpd.is_finite() && odd.days_remaining == 5.0 * DAYS_PER_YEAR);
        let none = DriveHealth { chunks: ChunkCounts::default(), ..health(0.0) };
        assert_eq!(none.endurance(&terms).dwpd, 0.0);
    }
}
