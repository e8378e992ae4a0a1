//! Read retries of a page with more bit errors than ECC corrects ([LightNVM17 §2.2]: ECC, then
//! threshold tuning).
//!
//! Every retry leaves a fraction of the bit errors
//! ([`retry_error_fraction`](crate::ErrorModel::retry_error_fraction)), until ECC corrects them or
//! [`read_retries`](crate::ErrorModel::read_retries) is reached. The number of retries of a sector
//! is deterministic, as its bit errors are. The drive asks for the number, charges the time, and
//! then reads.

use super::Nand;
use crate::chunk::PROGRAMMING;
use crate::{MediaError, PhysSector};

impl Nand {
    /// Returns the number of read retries of a sector, until success or the maximum. Returns 0 if
    /// the first attempt succeeds, or if retries cannot help (unwritten sector or bad chunk).
    /// Returns the maximum if the data is uncorrectable. Changes no counters.
    #[inline]
    pub fn retries_needed(&mut self, phys: PhysSector) -> u32 {
        if self.config.errors.read_retries == 0 { 0 } else { self.find_retries(phys) }
    }

    fn find_retries(&mut self, phys: PhysSector) -> u32 {
        let most = self.config.errors.read_retries;
        let (chunk, sector) = self.layout.split(phys);
        let Some(record) = self.records.get(chunk.0 as usize).copied() else { return 0 };
        let simple = record.without(PROGRAMMING).has_no_flags()
            && sector < self.paired_pages.readable_sectors(record.write_pointer());
        if !simple {
            let counts = self.stats;
            let looked = self.check_readable(phys, chunk, sector, record);
            self.stats = counts;
            match looked {
                Ok(()) => {}
                Err(
                    MediaError::Torn { .. }
                    | MediaError::FailedUnit { .. }
                    | MediaError::Uncorrectable { .. },
                ) => return most,
                Err(_) => return 0,
            }
        }
        let factor = self.aging.as_ref().map_or(1.0, |a| a.rber_factor(chunk));
        match &mut self.bit_error_model {
            None => 0,
            Some(errors) => {
                let bits = errors.sample_sector(phys, record.wear(), factor);
                retries_to_correct(
                    bits,
                    errors.ecc_bits(),
                    self.config.errors.retry_error_fraction,
                    most,
                )
                .0
            }
        }
    }
}

/// Returns the number of retries, at most `most`, until `bits` errors are no more than `ecc_bits`,
/// and the errors that remain.
pub(super) fn retries_to_correct(bits: u32, ecc_bits: u32, leaves: f64, most: u32) -> (u32, u32) {
    let (mut left, mut retries) = (f64::from(bits), 0);
    while left as u32 > ecc_bits && retries < most {
        left *= leaves;
        retries += 1;
    }
    (retries, left as u32)
}

#[cfg(test)]
mod tests {
    use super::retries_to_correct;

    #[test]
    fn repetitions_leave_a_share() {
        assert_eq!(retries_to_correct(40, 40, 0.5, 5), (0, 40));
        assert_eq!(retries_to_correct(41, 40, 0.5, 5), (1, 20));
        assert_eq!(retries_to_correct(41, 40, 0.5, 0), (0, 41));
        assert_eq!(retries_to_correct(1000, 40, 0.5, 5), (5, 31));
        assert_eq!(retries_to_correct(1000, 40, 0.5, 4), (4, 62), "not enough");
        assert_eq!(retries_to_correct(1000, 40, 1.0, 3), (3, 1000), "they do not help");
        assert_eq!(retries_to_correct(1000, 40, 0.0, 3), (1, 0));
    }
}
