//! [`OwnershipEvidence`]: whether an FTL wrote the contents of the media.

use crate::ids::NO_SECTOR;
use nvme::PhysSector;

use super::RecoveryError;

/// Numbers of read sectors that an FTL wrote, and of others.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnershipEvidence {
    has_own: bool,
    foreign_sectors: u64,
    first_foreign: PhysSector,
}

impl OwnershipEvidence {
    /// Creates the state without reads.
    pub(super) fn none() -> OwnershipEvidence {
        OwnershipEvidence { has_own: false, foreign_sectors: 0, first_foreign: NO_SECTOR }
    }

    /// Records a sector that a translation layer has written.
    pub(super) fn record_own(&mut self) {
        self.has_own = true;
    }

    /// Records a sector that no translation layer has written.
    pub(super) fn record_foreign(&mut self, phys: PhysSector) {
        self.foreign_sectors += 1;
        self.first_foreign = self.first_foreign.min(phys);
    }

    /// Checks that at least one of the sectors read was written by an FTL.
    ///
    /// # Errors
    /// [`RecoveryError::Foreign`].
    pub(super) fn verify(&self) -> Result<(), RecoveryError> {
        if self.has_own || self.foreign_sectors == 0 {
            return Ok(());
        }
        Err(RecoveryError::Foreign { sectors: self.foreign_sectors, first: self.first_foreign })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_foreign_sectors_alone_are_refused() {
        let mut evidence = OwnershipEvidence::none();
        assert!(evidence.verify().is_ok());
        [9, 4, 7].into_iter().for_each(|phys| evidence.record_foreign(PhysSector(phys)));
        let refused = evidence.verify();
        assert!(
            matches!(refused, Err(RecoveryError::Foreign { sectors: 3, first: PhysSector(4) })),
            "{refused:?}"
        );
        evidence.record_own();
        assert!(evidence.verify().is_ok());
    }
}
