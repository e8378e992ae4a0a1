//! Computes the memory that jobs need before anything is allocated.

use block::Limits;
use mem::PAGE_BYTES;

use crate::error::RunError;
use crate::job::JobSpec;
use crate::results::time_series::TimeSeries;
use crate::runner::worker::{self, JobThread};
use collections::Histogram;

/// Rejects jobs that need more memory than `available` bytes; `None` if the available memory is
/// unknown.
///
/// # Errors
/// [`RunError::TooLarge`] with the job that needs the most memory.
pub(crate) fn check(
    jobs: &[JobSpec],
    limits: &Limits,
    available: Option<u64>,
) -> Result<(), RunError> {
    let needs: Vec<u64> = jobs.iter().map(|spec| needed_bytes(spec, limits)).collect();
    let mut total = needs.iter().fold(0u64, |sum, need| sum.saturating_add(*need));
    if jobs.iter().any(|spec| spec.integrity.verify) {
        // VerifyState has a 4-byte sequence number per sector, and two words per record.
        let keys = jobs.iter().any(|spec| spec.keys.is_some());
        total = total.saturating_add(limits.sectors.saturating_mul(if keys { 8 } else { 4 }));
    }
    let Some(available) = available.filter(|available| total > *available) else {
        return Ok(());
    };
    let (largest, _) = needs.iter().enumerate().max_by_key(|(_, need)| **need).unwrap_or((0, &0));
    let spec = &jobs[largest];
    let remedy = match (spec.integrity.verify, spec.keys.is_some(), spec.depth() > 1) {
        (true, ..) => "`numjobs`, `iodepth` or `bs`, or leave `verify` out",
        (false, true, _) => "`numjobs`, `iodepth` or `bs`",
        (false, false, true) => "`numjobs` or `iodepth`",
        (false, false, false) => "`numjobs`",
    };
    Err(RunError::TooLarge {
        job: spec.name.clone(),
        jobs: spec.numjobs,
        iodepth: spec.depth(),
        need_bytes: total,
        available_bytes: available,
        remedy,
    })
}

/// Returns the memory that all clones of a job need, in bytes.
fn needed_bytes(spec: &JobSpec, limits: &Limits) -> u64 {
    let used = match &spec.replay {
        Some(_) => 3,
        None => spec.pattern.access.uses.iter().filter(|used| **used).count() as u64,
    };
    let slots = u64::from(worker::initial_slot_count(spec, limits));
    let mut each = size_of::<JobThread>() as u64 + TimeSeries::BYTES;
    each += used * 3 * Histogram::BYTES + slots * worker::SLOT_BYTES;
    if spec.has_payloads() {
        let bytes = spec.payload_bytes();
        let expected = match spec.keys {
            Some(_) => 4,
            None => bytes / u64::from(limits.sector_bytes.max(1)) * 4,
        };
        let payload = bytes.next_multiple_of(PAGE_BYTES as u64).saturating_add(expected);
        each = each.saturating_add(slots.saturating_mul(payload));
    }
    each.saturating_mul(spec.numjobs.into())
}

/// Returns the memory that the machine can provide without swapping, in bytes; `None` if it is
/// unknown.
pub fn available_memory() -> Option<u64> {
    meminfo("MemAvailable:")
}

/// Returns the value of a line of `/proc/meminfo`, in bytes.
pub(crate) fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            sector_bytes: 4096,
            sectors: 1 << 20,
            max_sectors: 64,
            optimal_sectors: 1,
            queue_depth: 65_536,
            volatile_cache: false,
            atomic: block::AtomicLimits::NONE,
        }
    }

    fn spec(numjobs: u32, iodepth: u32, verify: bool) -> JobSpec {
        let mut spec = JobSpec { numjobs, iodepth: Some(iodepth), ..JobSpec::new("many") };
        spec.integrity.verify = verify;
        spec
    }

    #[test]
    fn jobs_are_refused_by_what_they_need() {
        let small = [spec(1, 1, false)];
        assert!(check(&small, &limits(), Some(1 << 20)).is_ok());
        let huge = [spec(1, 1, false), spec(4096, 65_536, false)];
        assert!(check(&huge, &limits(), None).is_ok(), "a machine that does not say");
        let error = check(&huge, &limits(), Some(8 << 30)).unwrap_err();
        let RunError::TooLarge { need_bytes, jobs: 4096, iodepth: 65_536, .. } = &error else {
            panic!("{error}");
        };
        assert!(*need_bytes >= 4096 * 65_536 * worker::SLOT_BYTES, "{error}");
        assert!(error.to_string().contains("lower `numjobs` or `iodepth`"), "{error}");
        // A device with a short queue needs few slots.
        let shallow = Limits { queue_depth: 1023, ..limits() };
        assert!(check(&huge, &shallow, Some(8 << 30)).is_ok());
        // Verifying jobs have payload buffers for their full depth.
        let error = check(&[spec(64, 65_536, true)], &shallow, Some(8 << 30)).unwrap_err();
        assert!(error.to_string().contains("leave `verify` out"), "{error}");
    }

    #[test]
    fn the_machine_says_what_it_has() {
        let (available, total) = (available_memory().unwrap(), meminfo("MemTotal:").unwrap());
        assert!(available > 0 && available <= total, "{available} of {total}");
        assert_eq!(meminfo("NoSuchLine:"), None);
    }
}
