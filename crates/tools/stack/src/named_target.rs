//! [`TargetShare`]: a target of a drive's partition table and its chunks ([LightNVM17 §4.1]).
//!
//! The media manager runs only while the drive is initialized, because the chunks of a target do
//! not change while it is open. A rejected open changes nothing on the media.

use std::path::PathBuf;

use driver::{ControllerHandle, DriverError};
use ftl::FtlConfig;
use lnvm::{
    MediaManager, MediaManagerConfig, MediaManagerError, NewTarget, RATED_CYCLES,
    TargetEntry as Entry, TargetKind,
};
use media::MediaConfig;
use nvme::{ChunkDescriptor, VendorExtensions};
use ocssd::vector::{MemoryError, VectorQueue};
use scenario::{DriveSpec, NamedTarget, ScenarioError};
use time::Nanos;

use super::image;

/// Entries of the media manager's queue pair.
const DEPTH: u16 = 256;

/// Error of opening a named target.
#[derive(Debug, thiserror::Error)]
pub enum NamedError {
    /// The image of the drive does not exist.
    #[error(
        "target {target} of drive {drive} cannot be opened: the drive does not exist yet, there is \
         no image {}; `sluice target create` makes both", image.display()
    )]
    NoImage {
        /// Name of the drive.
        drive: String,
        /// Name of the target.
        target: String,
        /// Expected path of the image.
        image: PathBuf,
    },
    /// The drive has no partition table.
    #[error(
        "target {target} of drive {drive} cannot be opened: the drive has no partition table, no target \
         was ever made on it; `sluice target create` makes it"
    )]
    NoTable {
        /// Name of the drive.
        drive: String,
        /// Name of the target.
        target: String,
    },
    /// The drive is in use, or cannot be powered on for another reason.
    #[error("target {target} of drive {drive} cannot be opened: {source}")]
    Drive {
        /// Name of the drive.
        drive: String,
        /// Name of the target.
        target: String,
        /// Cause of the error.
        #[source]
        source: controller::DriveError,
    },
    /// The target has a kind that cannot be opened here.
    #[error("target {target} of drive {drive} is of kind {kind}, and {why}")]
    Kind {
        /// Name of the drive.
        drive: String,
        /// Name of the target.
        target: String,
        /// Kind of the target.
        kind: TargetKind,
        /// Required kind.
        why: &'static str,
    },
    /// Another target already uses the device L2P. A drive has only one.
    #[error(
        "target {target} ({kind}) of drive {drive} cannot be opened: target {other} ({other_kind}) is \
         on the same drive, and the drive's one map (dual_map) cannot tell their sectors apart"
    )]
    DeviceL2pInUse {
        /// Name of the drive.
        drive: String,
        /// Name of the target.
        target: String,
        /// Kind of the target.
        kind: TargetKind,
        /// Name of the conflicting target.
        other: String,
        /// Kind of the conflicting target.
        other_kind: TargetKind,
    },
    /// The media manager returned an error.
    #[error(transparent)]
    Core(#[from] MediaManagerError),
    /// The scenario contradicts the partition table.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A command to the drive failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Memory for commands cannot be allocated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl NamedError {
    /// Returns whether the error is a usage error: the user's request is invalid.
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

/// A target's share of a drive.
#[derive(Debug)]
pub struct TargetShare {
    /// Entry in the partition table.
    pub entry: Entry,
    /// Per chunk: whether the target owns it, including bad chunks.
    pub owned: Vec<bool>,
    /// Chunk descriptors that the drive reports.
    pub chunks: Vec<ChunkDescriptor>,
}

impl TargetShare {
    /// Returns whether the target owns a chunk.
    pub fn has_chunk(&self, chunk: u32) -> bool {
        self.owned.get(chunk as usize).is_some_and(|owned| *owned)
    }

    /// Returns the FTL configuration for a block device on this share.
    ///
    /// # Errors
    /// [`NamedError::Scenario`].
    pub fn ftl_config(&self, drive: &str, named: &NamedTarget) -> Result<FtlConfig, NamedError> {
        Ok(named.ftl_config(drive, &self.entry)?)
    }
}

/// Checks that the drive of a named target exists, because powering it on would create its image.
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

/// Returns the media manager's configuration for a drive.
pub fn subsystem_config(plan: &DriveSpec, seed: u64) -> MediaManagerConfig {
    let rated_cycles = match &plan.config.media {
        MediaConfig::Nand(nand) if nand.errors.endurance > 0 => nand.errors.endurance,
        MediaConfig::Nand(nand) => nand.cell.rated_cycles(),
        MediaConfig::Pcm(_) | MediaConfig::Null { .. } => RATED_CYCLES,
    };
    MediaManagerConfig { rated_cycles, seed, ..MediaManagerConfig::default() }
}

/// Finds a target of a powered-on drive and assigns its chunks. `check` can reject the target
/// before anything is changed. A target that the drive lacks is created, if `declared` has it.
///
/// # Errors
/// [`NamedError`].
pub fn find(
    plan: &DriveSpec,
    name: &str,
    declared: Option<NewTarget>,
    controller: &mut ControllerHandle,
    progress: &mut dyn FnMut(),
    check: &dyn Fn(&Entry) -> Result<(), NamedError>,
) -> Result<TargetShare, NamedError> {
    let info = controller.info().clone();
    let total = info.open_channel.map_or(0, |oc| oc.geometry.total_chunks());
    let report = controller.chunks(0, total, progress)?;
    let depth = DEPTH.min(plan.config.controller.queue_depth);
    let pair = controller.create_queue_pair(depth, None, progress)?;
    let queue = VectorQueue::new(pair, controller.port().clone(), &info)?;
    let seed = match &plan.config.media {
        MediaConfig::Nand(nand) => nand.seed,
        MediaConfig::Pcm(_) | MediaConfig::Null { .. } => 0,
    };
    let config = subsystem_config(plan, seed);
    let mut subsystem = MediaManager::open(&info, &report, queue, Nanos::ZERO, config, progress)?;
    let created = match declared.filter(|new| subsystem.target(&new.name).is_err()) {
        Some(new) => subsystem.create(new, progress).map(|_| ()),
        None => Ok(()),
    };
    let found = created
        .map_err(NamedError::from)
        .and_then(|()| read_share(&mut subsystem, plan, name, &info, progress, check));
    // Close the media manager cleanly in any case, so that its next start does not write.
    let closed = subsystem.close(progress);
    let found = found?;
    closed?;
    let pair = subsystem.into_queue().into_queue();
    controller.delete_queue_pair(pair, &mut |_| {}, progress)?;
    // The media manager may have erased dirty chunks meanwhile.
    let chunks = controller.chunks(0, total, progress)?;
    Ok(TargetShare { chunks, ..found })
}

fn read_share(
    subsystem: &mut MediaManager,
    plan: &DriveSpec,
    name: &str,
    info: &driver::ControllerInfo,
    progress: &mut dyn FnMut(),
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
    // A target that uses the device L2P uses it exclusively; targets that do not use it may store
    // any values there.
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
    subsystem.allocate_all(id, progress)?;
    let chunks = subsystem.table().chunks().len() as u32;
    let owned = (0..chunks).map(|chunk| subsystem.table().is_owned_by(id, chunk)).collect();
    subsystem.close_target(id);
    Ok(TargetShare { entry, owned, chunks: Vec::new() })
}
