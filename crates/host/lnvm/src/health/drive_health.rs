//! [`DriveHealth`]: bad chunks, wear, and remaining endurance. A host that manages flash must know
//! its wear [LightNVM17 §2.2, §4.1].
//!
//! The remaining budget is the sum over all good chunks of unused rated cycles times the chunk
//! size. The host bytes in this budget depend on the write amplification of the targets, which is a
//! parameter. Counters of the drive are reported separately, because those of an emulated drive
//! restart at each power-on.

use nvme::{Geometry, HealthLog};

use crate::{ChunkAllocator, ChunkUse};

/// Number of bins of the histogram.
pub const WEAR_BINS: usize = 16;

/// Number of chunks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkCounts {
    /// All chunks.
    pub total: u32,
    /// Chunks of the partition table.
    pub reserved: u32,
    /// Chunks owned by targets.
    pub owned: u32,
    /// Erased chunks without owner.
    pub free: u32,
    /// Chunks without owner that must be erased.
    pub dirty: u32,
    /// Chunks without owner that hold unknown data.
    pub orphaned: u32,
    /// Chunks that were bad when the drive was registered.
    pub factory_bad: u32,
    /// Chunks that became bad later.
    pub grown_bad: u32,
}

impl ChunkCounts {
    /// Returns the number of chunks that are not bad.
    pub fn good(&self) -> u32 {
        self.total - self.factory_bad - self.grown_bad
    }
}

/// Wear of the good chunks, in cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WearSpread {
    /// Minimum.
    pub min: u32,
    /// Average.
    pub mean: f64,
    /// Maximum.
    pub max: u32,
    /// Number of chunks by sixteenths of the rated cycles; the last bin includes chunks beyond the
    /// rating.
    pub bins: [u32; WEAR_BINS],
}

/// The fields of the drive's health log that the host uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveCounters {
    /// Percentage of the life used.
    pub percentage_used: u8,
    /// Available spare in percent.
    pub available_spare: u8,
    /// Critical warning bits of the log.
    pub critical_warning: u8,
    /// Number of unrecovered errors.
    pub media_errors: u64,
    /// Bytes written by hosts, in steps of 512,000.
    pub bytes_written: u128,
    /// Number of power losses without notification.
    pub unsafe_shutdowns: u64,
}

/// The health of a drive.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveHealth {
    /// Chunks by state.
    pub chunks: ChunkCounts,
    /// Wear of the good chunks.
    pub wear: WearSpread,
    /// Rated cycles of a chunk.
    pub rated_cycles: u32,
    /// Size of a chunk in bytes.
    pub chunk_bytes: u64,
    /// Counters of the drive, if its log was read.
    pub drive: Option<DriveCounters>,
}

/// Warranty terms of a drive, and its use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warranty {
    /// Total warranty in years.
    pub years: f64,
    /// Age of the drive in years.
    pub age_years: f64,
    /// Media bytes written per host byte, at least 1.
    pub write_amplification: f64,
}

/// The remaining part of a warranty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Endurance {
    /// Bytes that the media could write when new, without bad chunks.
    pub media_bytes: f64,
    /// Bytes that the media can still write.
    pub media_bytes_remaining: f64,
    /// Bytes that hosts can still write.
    pub host_bytes_remaining: f64,
    /// Remaining share of the budget, 0 to 1.
    pub remaining_ratio: f64,
    /// Drive writes per day over the whole warranty, for a new drive.
    pub dwpd: f64,
    /// Drive writes per day over the remaining days; 0 if no days or no budget remain.
    pub dwpd_remaining: f64,
    /// Remaining days of the warranty.
    pub days_remaining: f64,
}

const DAYS_PER_YEAR: f64 = 365.25;

impl DriveHealth {
    /// Computes the health of an allocator's drive; `log` is the drive's health log, if it was
    /// read.
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

    /// Returns the wear difference between the most and the least worn good chunk, in cycles.
    pub fn wear_range(&self) -> u32 {
        self.wear.max - self.wear.min
    }

    /// Computes what remains of a warranty. Invalid values are clamped to valid ones: a negative age
    /// to 0, a write amplification below 1 to 1.
    pub fn endurance(&self, warranty: &Warranty) -> Endurance {
        let good = f64::from(self.chunks.good());
        let rated = f64::from(self.rated_cycles);
        let chunk = self.chunk_bytes as f64;
        let media_bytes = good * rated * chunk;
        // Chunks beyond their rating contribute no budget, but do not reduce that of others. The
        // mean is exact as long as there is no such chunk.
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
        // 3000 cycles over five years are 3000 / 1826.25 drive writes per day, and a third of that
        // with a write amplification of three.
        let terms = Warranty { years: 5.0, age_years: 0.0, write_amplification: 3.0 };
        let new = health(0.0).endurance(&terms);
        assert!((new.dwpd - 3000.0 / 1826.25 / 3.0).abs() < 1e-9);
        assert_eq!(new.dwpd, new.dwpd_remaining);
        assert_eq!(new.media_bytes, 980.0 * 3000.0 * f64::from(1 << 24));
        // Half of the budget used in a quarter of the time leaves two thirds of the rate.
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
