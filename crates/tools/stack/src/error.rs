//! [`StackError`]: the errors of building a stack.

use std::path::PathBuf;

use ftl::RecoveryError;
use ftl::journal::JournalError;
use lnvm::JOURNAL_OWNER;
use pblk::{PblkError, RrpcError, ShardedError, SuperblockError};
use scenario::choice::Impossible;
use write_log::WriteLogError;

use super::{StateError, named_target};

/// Error of building a stack.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// The drive could not be powered on.
    #[error("drive {name}: {source}")]
    Drive {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: controller::DriveError,
    },
    /// The driver cannot initialize the controller.
    #[error("drive {name}: {source}")]
    Driver {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: driver::DriverError,
    },
    /// The AHCI controller cannot be powered on.
    #[error("the AHCI controller of drive {name}: {source}")]
    AhciDevice {
        /// Name of the controller's first drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: controller::AhciConfigError,
    },
    /// The driver cannot initialize the AHCI controller.
    #[error("the AHCI controller of drive {name}: {source}")]
    AhciHost {
        /// Name of the controller's first drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: driver::AhciError,
    },
    /// The file, the block device or the kernel's character device cannot be opened.
    #[error("drive {name}: {source}")]
    File {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: driver::UringError,
    },
    /// The controller of this machine cannot be opened.
    #[error("drive {name}: {source}")]
    Pci {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: driver::pci::PciError,
    },
    /// The NVMe block device cannot be created.
    #[error("drive {name}: {source}")]
    Raw {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: driver::NvmeDeviceError,
    },
    /// The block layer cannot be created on the device.
    #[error("drive {name}: {source}")]
    BlockLayer {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: block::BlockError,
    },
    /// pblk cannot be opened on the drive.
    #[error("drive {name}: {source}")]
    Pblk {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: pblk::PblkError,
    },
    /// The target does not take the rule program.
    #[error("drive {name}: {source}")]
    Rules {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: pblk::TargetRulesError,
    },
    /// rrpc cannot be opened on the drive.
    #[error("drive {name}: {source}")]
    Rrpc {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: pblk::RrpcError,
    },
    /// Sharded pblk cannot be opened on the drive.
    #[error("drive {name}: {source}")]
    Shards {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: ShardedError,
    },
    /// The image of the drive was made by a pblk with another number of shards.
    #[error(
        "the image of drive {name} has {shards} shard{}, not {wanted}: set target.shards = {shards}, \
         or remove the image",
        if *shards == 1 { "" } else { "s" }
    )]
    OtherShards {
        /// Name of the drive.
        name: String,
        /// Number of shards of the image; 1 for a pblk without shards.
        shards: u32,
        /// Number of shards of the scenario.
        wanted: u32,
    },
    /// The named target does not exist or cannot be opened.
    #[error(transparent)]
    Named(named_target::NamedError),
    /// The named target exists but cannot be opened on its chunks.
    #[error("target {target} of drive {drive}: {source}")]
    Target {
        /// Name of the drive.
        drive: String,
        /// Name of the target.
        target: String,
        /// Cause of the error.
        #[source]
        source: RrpcError,
    },
    /// A target needs the whole drive, but the drive has a partition table.
    #[error(
        "drive {name} has a partition table, so no target can have the whole drive: give [target] the \
         name of one of its targets (`sluice target list`): {source}"
    )]
    Partitioned {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: pblk::PblkError,
    },
    /// The rules of the drive have no such application.
    #[error("drive {name}: {source}")]
    Application {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: controller::DriveRulesError,
    },
    /// The host cannot be confined to a part of the drive.
    #[error("drive {name}: its host cannot have a part of it: {source}")]
    Confined {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: controller::AttachError,
    },
    /// The target cannot be the hardware queues of a block layer.
    #[error("drive {name}: its target cannot be beneath a block layer: {source}")]
    Queues {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: block::DeviceDriverError,
    },
    /// The key-value target cannot be opened on its chunks.
    #[error("target {target} of drive {drive}: {source}")]
    Kv {
        /// Name of the drive.
        drive: String,
        /// Name of the target.
        target: String,
        /// Cause of the error.
        #[source]
        source: kv::KvOpenError,
    },
    /// The parallel units of the drive cannot be addressed.
    #[error("drive {name}: {source}")]
    Units {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: ocssd::OcssdError,
    },
    /// The scenario has no path.
    #[error("{}: no device has a path", file.display())]
    NoPath {
        /// Path of the scenario.
        file: PathBuf,
    },
    /// The members of a set cannot be striped.
    #[error("set {name}: {source}")]
    Stripe {
        /// Name of the set.
        name: String,
        /// Cause of the error.
        #[source]
        source: block::StripeError,
    },
    /// A stripe of a set is not a multiple of its members' sectors, which are known when they are
    /// opened.
    #[error(
        "set {name}: a stripe of {stripe_bytes} bytes is no multiple of sectors of {sector_bytes} \
         bytes"
    )]
    StripeSectors {
        /// Name of the set.
        name: String,
        /// Size of a stripe in bytes.
        stripe_bytes: u64,
        /// Sector size in bytes.
        sector_bytes: u32,
    },
    /// Scrubbing is configured, but the target does not support it.
    #[error(
        "drive {name}: its target is neither a pblk nor an rrpc, and only those read data that nobody \
         asks for: remove `scrub`"
    )]
    Scrub {
        /// Name of the drive.
        name: String,
    },
    /// The log of a path cannot be opened, or a device is opened without the log that may have its
    /// data.
    #[error("the log of drive {name}: {source}")]
    Log {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: WriteLogError,
    },
    /// A path has a log, and the drive gives its host no persistent memory region.
    #[error("drive {name} gives its host no persistent memory region for the log of a path")]
    NoRegion {
        /// Name of the drive.
        name: String,
    },
    /// Memory cannot be allocated.
    #[error("drive {name}: {source}")]
    Memory {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: std::io::Error,
    },
    /// The choices of the scenario do not combine.
    #[error("{0}: {help}", help = .0.help())]
    Impossible(#[from] Impossible),
    /// A preconditioning job does not fit the drive.
    #[error("the scenario's [precondition] does not fit drive {name}: {message}")]
    PreconditionMisfit {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        message: String,
    },
    /// Preconditioning failed.
    #[error("preconditioning drive {name}: {message}")]
    Precondition {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        message: String,
    },
    /// A kept state cannot be used. Neither the drive nor the file is changed.
    #[error(
        "the state of drive {name}: {source}; remove the file, or precondition without kept states"
    )]
    State {
        /// Name of the drive.
        name: String,
        /// Cause of the error.
        #[source]
        source: StateError,
    },
    /// No state of a scenario's drives can be kept.
    #[error(
        "{}: no state can be kept: it needs a [precondition] without `until`, and an NVMe drive \
         without an image, with at most an unsharded target of its own", .file.display()
    )]
    NothingToKeep {
        /// The scenario.
        file: PathBuf,
    },
    /// The caller stopped preconditioning.
    #[error("preconditioning drive {name}: stopped")]
    Stopped {
        /// Name of the drive.
        name: String,
    },
}

impl StackError {
    /// Returns whether the error is a usage error: the user's request is invalid.
    pub fn is_usage(&self) -> bool {
        match self {
            StackError::Impossible(_)
            | StackError::StripeSectors { .. }
            | StackError::NoRegion { .. }
            | StackError::Partitioned { .. }
            | StackError::OtherShards { .. }
            | StackError::NothingToKeep { .. }
            | StackError::PreconditionMisfit { .. } => true,
            StackError::Named(e) => e.is_usage(),
            StackError::Log { source, .. } => {
                matches!(source, WriteLogError::TooSmall { .. } | WriteLogError::Size { .. })
            }
            StackError::Pci { source, .. } => source.is_usage_error(),
            _ => false,
        }
    }
}

/// Returns the error of an FTL that cannot own the whole drive.
pub(super) fn pblk_open_error(name: &str, source: PblkError) -> StackError {
    let name = name.to_owned();
    match source {
        PblkError::Recovery(RecoveryError::Journal(JournalError::Foreign {
            found: JOURNAL_OWNER,
            ..
        })) => StackError::Partitioned { name, source },
        PblkError::Sharded { shards: shards @ 2.. } => {
            StackError::OtherShards { name, shards, wanted: 1 }
        }
        source => StackError::Pblk { name, source },
    }
}

/// Returns the error of a sharded pblk.
pub(super) fn shards_open_error(name: &str, source: ShardedError) -> StackError {
    let name = name.to_owned();
    match source {
        ShardedError::Superblock(SuperblockError::LayoutMismatch {
            shards, wanted_shards, ..
        }) if shards != wanted_shards => {
            StackError::OtherShards { name, shards, wanted: wanted_shards }
        }
        ShardedError::Superblock(SuperblockError::Unsharded { wanted_shards }) => {
            StackError::OtherShards { name, shards: 1, wanted: wanted_shards }
        }
        source => StackError::Shards { name, source },
    }
}
