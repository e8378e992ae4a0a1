//! [`RecoveryError`]: reasons why the contents of the media cannot be used.

use crate::ids::Lba;
use nvme::PhysSector;

use crate::NewFtlError;
use crate::durability::journal::JournalError;
use crate::durability::snapshot::ConfigMismatch;

/// Reasons why the contents of the media cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The configuration does not fit the flash.
    #[error(transparent)]
    New(#[from] NewFtlError),
    /// The journal belongs to another owner, or has another version.
    #[error("the layer's journal: {0}")]
    Journal(JournalError),
    /// The drive or the configuration differs from the one that was written.
    #[error("{0}: open it with the geometry and configuration that it was written with")]
    ConfigMismatch(ConfigMismatch),
    /// The drive's map is invalid: a sector that it names was never written, or is named twice.
    #[error("the drive's map has {lba} at flat {phys}: {what}")]
    InvalidDeviceL2p {
        /// The logical sector.
        lba: Lba,
        /// The flat physical sector that the map names.
        phys: PhysSector,
        /// Description of the contradiction.
        what: &'static str,
    },
    /// The drive's map is empty, but there is data.
    #[error(
        "the drive's map is empty, but flat {phys} holds {lba}: the map was lost, \
         or this was written without one; restore it, or reset the chunks if what is there is not needed"
    )]
    DeviceL2pLost {
        /// A logical sector.
        lba: Lba,
        /// The flat physical sector.
        phys: PhysSector,
    },
    /// Operations were not reported.
    #[error("the recovery was ended before all of it was done")]
    Unfinished,
    /// No readable sector was written by an FTL.
    #[error(
        "none of {sectors} readable sectors, the first of them flat {first}, was written by a \
         translation layer: reset the chunks if what is there is not needed"
    )]
    Foreign {
        /// Sectors.
        sectors: u64,
        /// The first, flat.
        first: PhysSector,
    },
    /// A sector is beyond the capacity of this configuration.
    #[error(
        "flat {phys} holds {lba}, but this configuration makes only {sectors}: \
         open the drive with the over_provisioning, active_pus and streams that it was written with"
    )]
    OtherLayout {
        /// The sector, flat.
        phys: PhysSector,
        /// Logical sector that the entry names.
        lba: Lba,
        /// Number of logical sectors, map pages included.
        sectors: u32,
    },
}
