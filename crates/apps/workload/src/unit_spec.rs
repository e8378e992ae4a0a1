//! [`UnitSpec`]: the parallel units of a job on physical addresses, and the rules for such jobs.

use nvme::Geometry;
use ocssd::ppa::PuSet;

use crate::error::RunError;
use crate::job::{Direction, JobSpec};

/// The parallel units of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitSpec {
    /// Parallel units by the numbers of the drive (`pus`).
    pub pus: PuSet,
}

/// Limits of a device that is addressed by parallel units.
///
/// A sector of the device has the number `(unit * chunks + chunk) * sectors + sector`; units are
/// counted in the order of `pus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitLimits {
    /// The parallel units of the device, by the numbers of the drive.
    pub pus: PuSet,
    /// Geometry of the drive.
    pub geometry: Geometry,
    /// Maximum number of sectors of a command: whole write units.
    pub sectors_max: u32,
    /// Maximum number of outstanding commands.
    pub queue_depth: u32,
}

impl UnitLimits {
    /// Returns the number of sectors of the device.
    pub fn sectors(&self) -> u64 {
        let Geometry { chunks, sectors, .. } = self.geometry;
        self.pus.len() * u64::from(chunks) * u64::from(sectors)
    }

    /// Returns the numbers of the units of a job in the device.
    pub(crate) fn units_of(&self, spec: &UnitSpec) -> Vec<u32> {
        let numbered = (0..).zip(self.pus.iter());
        numbered.filter(|(_, pu)| spec.pus.contains(*pu)).map(|(unit, _)| unit).collect()
    }

    /// Returns the sectors of a job's block in a direction.
    pub(crate) fn block_sectors(&self, spec: &JobSpec, direction: Direction) -> u32 {
        let bytes = spec.pattern.block_sizes[direction as usize].first().map_or(0, |(b, _)| *b);
        u32::try_from(bytes / u64::from(self.geometry.sector_bytes.max(1))).unwrap_or(u32::MAX)
    }

    /// Checks that jobs fit the device, and that each parallel unit has one writer at a time.
    ///
    /// # Errors
    /// [`RunError::DeviceMismatch`], [`RunError::TwoWriters`].
    pub(crate) fn check(&self, jobs: &[JobSpec]) -> Result<(), RunError> {
        let mut writers: Vec<(&JobSpec, &UnitSpec)> = Vec::new();
        for (index, job) in jobs.iter().enumerate() {
            let Some(units) = &job.units else { continue };
            self.check_job(job, units)
                .map_err(|what| RunError::DeviceMismatch { job: job.name.clone(), what })?;
            if job.schedule.stonewall && index > 0 {
                writers.clear();
            }
            if !job.pattern.access.uses(Direction::Write) {
                continue;
            }
            let two = |other: &JobSpec, pus: PuSet| {
                Err(RunError::TwoWriters { job: job.name.clone(), other: other.name.clone(), pus })
            };
            if job.numjobs > 1 {
                return two(job, units.pus.clone());
            }
            for (other, taken) in &writers {
                if !units.pus.is_disjoint(&taken.pus) {
                    return two(other, units.pus.intersection(&taken.pus));
                }
            }
            writers.push((job, units));
        }
        Ok(())
    }

    fn check_job(&self, job: &JobSpec, units: &UnitSpec) -> Result<(), String> {
        let outside = units.pus.iter().filter(|pu| !self.pus.contains(*pu));
        let outside: PuSet = outside.collect();
        if !outside.is_empty() {
            return Err(format!(
                "its `pus` has the parallel units {outside}, and the path has {}",
                self.pus
            ));
        }
        let Geometry { sector_bytes, ws_min, ws_opt, sectors, .. } = self.geometry;
        let (sector, chunk) =
            (u64::from(sector_bytes), u64::from(sector_bytes) * u64::from(sectors));
        for direction in crate::parse::options::used_directions(&job.pattern.access) {
            let bytes = job.pattern.block_sizes[direction as usize].first().map_or(0, |(b, _)| *b);
            let (unit, name) = match direction {
                Direction::Write => (sector * u64::from(ws_min), "write units"),
                Direction::Read | Direction::Trim => (sector, "sectors"),
            };
            if bytes == 0 || unit == 0 || !bytes.is_multiple_of(unit) {
                return Err(format!(
                    "a {} block of {bytes} bytes is not in whole {name} of {unit} bytes; the drive \
                     writes best by {} bytes (`bs`)",
                    direction.name(),
                    sector * u64::from(ws_opt)
                ));
            }
            if bytes > chunk {
                return Err(format!(
                    "a {} block of {bytes} bytes is larger than a chunk of {chunk} bytes",
                    direction.name()
                ));
            }
        }
        Ok(())
    }

    /// Returns the number of chunks of each unit that a job uses: all, or those for its `size`.
    pub(crate) fn chunks_used(&self, job: &JobSpec, units: &UnitSpec) -> u32 {
        let Geometry { chunks, sectors, sector_bytes, .. } = self.geometry;
        let row = units.pus.len() * u64::from(sectors) * u64::from(sector_bytes);
        let whole = row * u64::from(chunks);
        let size = job.range.size.map_or(whole, |size| size.resolve(whole).min(whole));
        size.div_ceil(row.max(1)).clamp(1, chunks.into()) as u32
    }
}
