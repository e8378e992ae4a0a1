//! [`TargetShare`]: a target of a drive's partition table, and what it has of the drive (LightNVM paper
//! section 4.1). The subsystem is there while the drive comes up and no longer: which chunks a target has
//! does not change while it is open.
//!
//! What is refused changes nothing on the media.

use std::path::PathBuf;

use clock::Nanos;
use driver::{ControllerHandle, DriverError};
use ftl::FtlConfig;
use lightnvm::subsystem::{
    MediaManager, MediaManagerConfig, MediaManagerError, RATED_CYCLES, Target as Entry, TargetKind,
};
use lightnvm::vector::{MemoryError, VectorQueue};
use media::MediaConfig;
use nvme::{ChunkDescriptor, VendorExtensions};

use crate::scenario::{DriveSpec, NamedTarget, ScenarioError};
use crate::serve::image;

/// Entries of the subsystem's queue pair.
const DEPTH: u16 = 256;

/// Why a named target cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum NamedError {
    /// The drive was never powered on.
    #[error(
        "target {target} of drive {drive} cannot be opened: the drive does not exist yet, there is \
         no image {}; `sluice target create` makes both", image.display()
    )]
    NoImage {
        /// The drive.
        drive: String,
        /// The target.
        target: String,
        /// Where its image would be.
        image: PathBuf,
    },
    /// No target was ever made on the drive.
    #[error(
        "target {target} of drive {drive} cannot be opened: the drive has no partition table, no target \
         was ever made on it; `sluice target create` makes it"
    )]
    NoTable {
        /// The drive.
        drive: String,
        /// The target.
        target: String,
    },
    /// Somebody else has the drive, or it cannot be powered on for another reason.
    #[error("target {target} of drive {drive} cannot be opened: {source}")]
    Drive {
        /// The drive.
        drive: String,
        /// The target.
        target: String,
        /// Why.
        #[source]
        source: drive::DriveError,
    },
    /// The target is of another kind than is needed.
    #[error("target {target} of drive {drive} is of kind {kind}, and {why}")]
    Kind {
        /// The drive.
        drive: String,
        /// The target.
        target: String,
        /// What it is.
        kind: TargetKind,
        /// What is needed.
        why: &'static str,
    },
    /// A drive has one map, and two targets that would write in it.
    #[error(
        "target {target} ({kind}) of drive {drive} cannot be opened: target {other} ({other_kind}) is \
         on the same drive, and the drive's one map (dual_map) cannot tell their sectors apart"
    )]
    DeviceL2pInUse {
        /// The drive.
        drive: String,
        /// The target.
        target: String,
        /// Its kind.
        kind: TargetKind,
        /// The target that is in its way.
        other: String,
        /// That one's kind.
        other_kind: TargetKind,
    },
    /// The partition table refuses.
    #[error(transparent)]
    Core(#[from] MediaManagerError),
    /// The scenario says something else than the table.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The drive could not be talked to.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// No memory for commands.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl NamedError {
    /// Whether what was asked is at fault.
    pub fn is_usage(&self) -> bool {
        match self {
            NamedError::Core(e) => e.is_usage_error(),
            NamedError::NoImage { .. }
            | NamedError::NoTable { .. }
            | NamedError::Kind { .. }
            | NamedError::DeviceL2pInUse { .. }
            | NamedError::Scenario(_) => true,
            NamedError::Drive { .. } | NamedError::Driver(_) | NamedError::Memory(_) => false,
        }
    }
}

/// What a target has of a drive.
#[derive(Debug)]
pub struct TargetShare {
    /// Its entry in the partition table.
    pub entry: Entry,
    /// Of each chunk whether it is the target's, bad ones included.
    pub owned: Vec<bool>,
    /// What the drive says of its chunks.
    pub chunks: Vec<ChunkDescriptor>,
}

impl TargetShare {
    /// Whether a chunk is the target's.
    pub fn has_chunk(&self, chunk: u32) -> bool {
        self.owned.get(chunk as usize).is_some_and(|owned| *owned)
    }

    /// The translation layer that a block device makes of it.
    ///
    /// # Errors
    /// [`NamedError::Scenario`].
    pub fn ftl_config(&self, drive: &str, named: &NamedTarget) -> Result<FtlConfig, NamedError> {
        Ok(named.ftl_config(drive, &self.entry)?)
    }
}

/// Whether the drive of a named target can be powered on without being made by that.
///
/// # Errors
/// [`NamedError::NoImage`].
pub fn check_image(plan: &DriveSpec, target: &str) -> Result<(), NamedError> {
    match image(plan).filter(|image| !image.exists()) {
        None => Ok(()),
        Some(image) => Err(NamedError::NoImage {
            drive: plan.config.name.clone(),
            target: target.into(),
            image: image.into(),
        }),
    }
}

/// How the subsystem of a drive is configured.
pub fn subsystem_config(plan: &DriveSpec, seed: u64) -> MediaManagerConfig {
    let rated_cycles = match &plan.config.media {
        MediaConfig::Nand(nand) if nand.errors.endurance > 0 => nand.errors.endurance,
        MediaConfig::Nand(nand) => nand.cell.rated_cycles(),
        MediaConfig::Pcm(_) | MediaConfig::Null { .. } => RATED_CYCLES,
    };
    MediaManagerConfig { rated_cycles, seed, ..MediaManagerConfig::default() }
}

/// Finds a target of a drive that has power, and gives it the chunks that it is to have. `check` may
/// refuse it, before anything is changed.
///
/// # Errors
/// [`NamedError`].
pub fn find(
    plan: &DriveSpec,
    name: &str,
    controller: &mut ControllerHandle,
    pump: &mut dyn FnMut(),
    check: &dyn Fn(&Entry) -> Result<(), NamedError>,
) -> Result<TargetShare, NamedError> {
    let info = controller.info().clone();
    let total = info.open_channel.map_or(0, |oc| oc.geometry.total_chunks());
    let report = controller.chunks(0, total, pump)?;
    let depth = DEPTH.min(plan.config.controller.queue_depth);
    let pair = controller.create_queue_pair(depth, None, pump)?;
    let queue = VectorQueue::new(pair, controller.port().clone(), &info)?;
    let config = subsystem_config(plan, 0);
    let mut subsystem = MediaManager::open(&info, &report, queue, Nanos::ZERO, config, pump)?;
    let found = read_share(&mut subsystem, plan, name, &info, pump, check);
    // In order, whatever came of it: then the next one to look need not write.
    let closed = subsystem.close(pump);
    let found = found?;
    closed?;
    let pair = subsystem.into_queue().into_queue();
    controller.delete_queue_pair(pair, &mut |_| {}, pump)?;
    // What was lying dirty may have been erased meanwhile.
    let chunks = controller.chunks(0, total, pump)?;
    Ok(TargetShare { chunks, ..found })
}

fn read_share(
    subsystem: &mut MediaManager,
    plan: &DriveSpec,
    name: &str,
    info: &driver::ControllerInfo,
    pump: &mut dyn FnMut(),
    check: &dyn Fn(&Entry) -> Result<(), NamedError>,
) -> Result<TargetShare, NamedError> {
    let drive = || plan.config.name.clone();
    if !subsystem.is_registered() {
        return Err(NamedError::NoTable { drive: drive(), target: name.into() });
    }
    let entry = subsystem.target(name)?.clone();
    check(&entry)?;
    let has_map =
        info.open_channel.is_some_and(|oc| oc.extensions.has(VendorExtensions::DEVICE_L2P));
    // Who has the map has it alone; several that do not use it may fill it with what they like.
    let labels = |kind: TargetKind| kind.is_block();
    let in_the_way = |other: &&Entry| {
        let one_uses_it = [entry.spec.kind, other.spec.kind].contains(&TargetKind::Rrpc);
        other.id != entry.id && labels(other.spec.kind) && labels(entry.spec.kind) && one_uses_it
    };
    if let (true, Some(other)) = (has_map, subsystem.table().targets().iter().find(in_the_way)) {
        return Err(NamedError::DeviceL2pInUse {
            drive: drive(),
            target: name.into(),
            kind: entry.spec.kind,
            other: other.spec.name.clone(),
            other_kind: other.spec.kind,
        });
    }
    let id = subsystem.open_target(name)?;
    subsystem.allocate_all(id, pump)?;
    let chunks = subsystem.table().chunks().len() as u32;
    let owned = (0..chunks).map(|chunk| subsystem.table().is_owned_by(id, chunk)).collect();
    subsystem.close_target(id);
    Ok(TargetShare { entry, owned, chunks: Vec::new() })
}
