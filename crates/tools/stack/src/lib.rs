//! The stack of one drive: the drive and the host software on it, built from a [`DriveSpec`].
//!
//! [`Stack`] has the drive and the block device; [`AssembledDrive`] has the drive and the handles
//! of an application. [`precondition`](precondition()) brings a stack to a state with zero-latency
//! media.

#![forbid(unsafe_code)]

mod assembled;
mod block_layer_counts;
mod co_simulate;
mod core_queues;
mod duplicate;
mod live;
pub mod named_target;
mod partition_stack;
mod precondition;
mod precondition_marker;
mod prepare;
pub mod steady_state;
pub mod target_layers;

use std::sync::Arc;

use block::{BlockLayer, DeviceDriver, Features, Raw};
use controller::Controller;
use driver::{ControllerHandle, ControllerInfo, DriverError, LowLevelDriver, NvmeDevice};
use ftl::journal::JournalError;
use ftl::{FtlConfig, RecoveryError};
use lnvm::{JOURNAL_OWNER, TargetKind};
use nvme::{Address, ChunkId, DeviceL2pLog, VendorExtensions};
use pblk::{
    DeviceL2pEntries, DriveQueue, Pblk, PblkError, Rrpc, RrpcError, Sharded, ShardedConfig,
    ShardedError,
};
use scenario::choice::{BLOCK_REQUESTS, Impossible};
use scenario::{BlockLayerSpec, DriveSpec, HostTarget, NamedTarget};
use time::{Component, Nanos};
use transport::Port;

pub use assembled::{AssembledDrive, HostHandles};
pub use block_layer_counts::{BlockLayerCounts, CoreCounts, DispatchCounts, StagingCounts};
pub use co_simulate::{RunObserver, co_simulate};
pub use core_queues::{BlockLayerQueue, CoreQueue, CoreQueues, StackBlockLayer};
pub use live::{DriveSnapshot, DriveThreadState, SnapshotCell, SnapshotSource};
pub use precondition::precondition;
pub use precondition_marker::{PreconditionMarker, image, is_fresh, stores_data, with_overlay};
pub use prepare::{HOST_VECTOR, PrepareError, PrepareEvent, prepare_drive};
pub use target_layers::ShardCounts;

use named_target::{NamedError, TargetShare};

/// A drive and the block device of the host on it. The submitter polls the device, and the runner
/// polls the drive. The two share only the queue pair (ARCHITECTURE.md, R1).
#[derive(Debug)]
pub struct Stack {
    /// The drive.
    pub drive: Controller,
    /// The block device.
    pub device: CoreQueues,
    /// The port between drive and host, to set wakers on.
    pub port: Arc<Port>,
    /// The admin queue, unless the device owns it.
    controller: Option<ControllerHandle>,
    /// Result of preconditioning until steady state, if that was requested.
    pub steady: Option<steady_state::SteadyResult>,
}

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
        source: pblk::ShardedError,
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
    /// Scrubbing is configured, but the target does not support it.
    #[error(
        "drive {name}: its target is neither a pblk nor an rrpc, and only those read data that nobody \
         asks for: remove `scrub`"
    )]
    Scrub {
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
}

/// Maximum number of polls of the drive for one admin command.
const ADMIN_POLL_LIMIT: u64 = 10_000_000;

/// Number of entries of the queue pair, unless the drive supports fewer.
const DEPTH: u16 = 4096;

/// Features of targets in addition to reads and writes; each payload must be one segment.
const TARGET_FEATURES: Features =
    Features { segments: 0, fua: true, discard: true, write_zeroes: true, extents: true };

impl StackError {
    /// Returns whether the error is a usage error: the user's request is invalid.
    pub fn is_usage(&self) -> bool {
        match self {
            StackError::Impossible(_)
            | StackError::Partitioned { .. }
            | StackError::PreconditionMisfit { .. } => true,
            StackError::Named(e) => e.is_usage(),
            _ => false,
        }
    }
}

/// Opens a block device on the chunks of a named target. `map` has the contents of the device L2P.
fn open_named(
    share: &TargetShare,
    config: FtlConfig,
    (map, totals): (Vec<Option<Address>>, DeviceL2pLog),
    info: &ControllerInfo,
    queue: DriveQueue,
    progress: &mut dyn FnMut(),
    keeps_data: bool,
) -> Result<CoreQueues, RrpcError> {
    let owned = |chunk: ChunkId| share.has_chunk(chunk.get());
    let chunks = &share.chunks;
    if share.entry.spec.kind != TargetKind::Rrpc {
        let pblk = Pblk::open_on(info, chunks, &owned, queue, config, progress, keeps_data)?;
        return Ok(CoreQueues::single(pblk, TARGET_FEATURES));
    }
    let map = DeviceL2pEntries { entries: &map, totals };
    let rrpc = Rrpc::open_on(info, chunks, &owned, map, queue, config, progress)?;
    Ok(CoreQueues::single(rrpc, TARGET_FEATURES))
}

/// Opens the block layer `plan` on a driver.
fn open_block_layer<D: LowLevelDriver>(
    driver: &mut D,
    plan: &BlockLayerSpec,
    name: String,
) -> Result<CoreQueues, StackError>
where
    D::Queue: 'static,
{
    let features = driver.features();
    BlockLayer::open(driver, &plan.config(driver.limits().sector_bytes))
        .and_then(|(layer, queues)| {
            let device = CoreQueues::new(queues, features).ok_or(block::BlockError::NoQueues)?;
            Ok(device.with_block_layer(plan.name(), layer))
        })
        .map_err(|source| StackError::BlockLayer { name, source })
}

/// Returns the error of an FTL that cannot own the whole drive.
fn pblk_open_error(name: &str, source: PblkError) -> StackError {
    let name = name.to_owned();
    match source {
        PblkError::Recovery(RecoveryError::Journal(JournalError::Foreign {
            found: JOURNAL_OWNER,
            ..
        })) => StackError::Partitioned { name, source },
        source => StackError::Pblk { name, source },
    }
}

/// Reads the device L2P: the entry of each logical address, and a summary. Returns nothing for a
/// drive without one; the target reports that.
fn read_device_l2p(
    controller: &mut ControllerHandle,
    progress: &mut dyn FnMut(),
) -> Result<(Vec<Option<Address>>, DeviceL2pLog), DriverError> {
    let extensions = controller.info().open_channel.map(|oc| oc.extensions);
    let Some(extensions) = extensions.filter(|e| e.has(VendorExtensions::DEVICE_L2P)) else {
        return Ok((Vec::new(), DeviceL2pLog::default()));
    };
    let map = controller.dual_map(0, extensions.l2p_entries.get(), progress)?;
    Ok((map, controller.map_totals(progress)?))
}

impl Stack {
    /// Powers the drive on and initializes the host's side without advancing time. `vector` is the
    /// interrupt vector that the drive raises, if the host sleeps.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn build(plan: &DriveSpec, vector: Option<u16>) -> Result<Stack, StackError> {
        let name = plan.config.name.clone();
        let (personality, has_target) = (plan.config.personality, plan.target != HostTarget::None);
        Impossible::check_logical_blocks(personality, has_target, &name, BLOCK_REQUESTS)?;
        if let Some(target) = plan.target.name() {
            named_target::check_image(plan, target).map_err(StackError::Named)?;
        }
        let mut drive =
            Controller::new(plan.config.clone()).map_err(|source| match plan.target.name() {
                Some(target) => {
                    let (drive, target) = (name.clone(), target.to_owned());
                    StackError::Named(named_target::NamedError::Drive { drive, target, source })
                }
                None => StackError::Drive { name: name.clone(), source },
            })?;
        let port =
            drive.attach().map_err(|source| StackError::Memory { name: name.clone(), source })?;
        // Initialization takes no time of the run: the reads of recovery complete immediately.
        drive.set_zero_latency(true);
        let device = Stack::init_device(plan, &mut drive, &port, vector, name);
        drive.set_zero_latency(false);
        drive.reset_stats();
        let (mut device, mut controller) = device?;
        if let Some(patrol) = plan.scrub
            && !target_layers::set_scrub(&mut device, patrol)
        {
            return Err(StackError::Scrub { name: plan.config.name.clone() });
        }
        if let Some(admin) = controller {
            controller = target_layers::subscribe_events(&mut device, admin);
        }
        Ok(Stack { device, drive, port, controller, steady: None })
    }

    /// Inserts the block layer `plan` between the users of the device and what is beneath: the
    /// drive's queue pairs, or the queues of the target.
    ///
    /// The change takes place at the instant `now` without advancing time. Nothing may be
    /// outstanding. With `interrupts`, hardware queue `i` of the drive raises interrupt vector `i`.
    ///
    /// Preconditioning comes first, so its resulting state does not depend on the block layer.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn with_block_layer(
        self,
        plan: &BlockLayerSpec,
        now: Nanos,
        interrupts: bool,
    ) -> Result<Stack, StackError> {
        let steady = self.steady.clone();
        let AssembledDrive { mut drive, port, host } = self.into_assembled(now)?;
        let name = drive.config().name.clone();
        let controller = match host {
            HostHandles::Controller(controller) => *controller,
            HostHandles::Queues(queues) => {
                let (count, features) = (queues.cores() as u16, queues.features());
                let queues = queues.into_hardware_queues(plan.hardware_queues(count));
                let mut driver = DeviceDriver::new(queues, features)
                    .map_err(|source| StackError::Queues { name: name.clone(), source })?;
                let device = open_block_layer(&mut driver, plan, name)?;
                return Ok(Stack { drive, device, port, controller: None, steady });
            }
        };
        let depth = DEPTH.min(drive.config().controller.queue_depth);
        let queues = plan.hardware_queues(controller.info().io_queues);
        drive.set_zero_latency(true);
        let mut progress = || {
            drive.poll(now);
        };
        let opened = NvmeDevice::open(controller, queues, depth, interrupts, &mut progress)
            .map_err(|source| StackError::Raw { name: name.clone(), source })
            .and_then(|mut driver| open_block_layer(&mut driver, plan, name));
        drive.set_zero_latency(false);
        drive.reset_stats();
        Ok(Stack { drive, device: opened?, port, controller: None, steady })
    }

    fn init_device(
        plan: &DriveSpec,
        drive: &mut Controller,
        port: &Arc<Port>,
        vector: Option<u16>,
        name: String,
    ) -> Result<(CoreQueues, Option<ControllerHandle>), StackError> {
        let keeps_data = drive.stores_data();
        let mut progress = || {
            drive.poll(Nanos::ZERO);
        };
        let failed = |source| StackError::Driver { name: name.clone(), source };
        let mut controller =
            ControllerHandle::connect(port.clone(), &mut progress, ADMIN_POLL_LIMIT)
                .map_err(failed)?;
        let share = match &plan.target {
            HostTarget::Named(named) => {
                Some(Stack::find_target_share(plan, named, &mut controller, &mut progress)?)
            }
            _ => None,
        };
        let depth = DEPTH.min(plan.config.controller.queue_depth);
        if let (HostTarget::Pblk(ftl), Some(shards @ 2..)) = (&plan.target, plan.shards) {
            let refused = |source| StackError::Shards { name: name.clone(), source };
            let granted = u32::from(controller.info().io_queues);
            if shards > granted {
                return Err(refused(ShardedError::Queues { queues: granted as usize, shards }));
            }
            let mut queues = Vec::with_capacity(shards as usize);
            for _ in 0..shards {
                let vector = controller.next_qid().filter(|_| vector.is_some());
                let pair = controller.create_queue_pair(depth, vector, &mut progress);
                queues.push(pair.map_err(failed)?);
            }
            let info = controller.info().clone();
            let all = info.open_channel.map_or(0, |oc| oc.geometry.total_chunks());
            let chunks = controller.chunks(0, all, &mut progress).map_err(failed)?;
            let (config, port) =
                (ShardedConfig { ftl: *ftl, ..ShardedConfig::new(shards) }, port.clone());
            let opened =
                Sharded::open(&info, &chunks, queues, port, config, &mut progress, keeps_data);
            let device = CoreQueues::new(opened.map_err(refused)?.into_shards(), TARGET_FEATURES)
                .ok_or_else(|| refused(ShardedError::Shards { shards, max: granted }))?;
            return Ok((device, Some(controller)));
        }
        let queue = controller.create_queue_pair(depth, vector, &mut progress).map_err(failed)?;
        let device = match &plan.target {
            HostTarget::None => Raw::from_pair(controller.info(), queue, port.clone())
                .map(|raw| CoreQueues::single(raw, controller.info().features))
                .map_err(|source| StackError::Raw { name: name.clone(), source }),
            HostTarget::Pblk(config) => {
                let all = controller.info().open_channel.map_or(0, |oc| oc.geometry.total_chunks());
                let chunks = controller.chunks(0, all, &mut progress).map_err(failed)?;
                Pblk::open(
                    controller.info(),
                    &chunks,
                    queue,
                    port.clone(),
                    *config,
                    &mut progress,
                    keeps_data,
                )
                .map(|pblk| CoreQueues::single(pblk, TARGET_FEATURES))
                .map_err(|source| pblk_open_error(&name, source))
            }
            HostTarget::Named(named) => {
                let Some((share, config)) = share else {
                    let (drive, user) = (name, BLOCK_REQUESTS);
                    return Err(Impossible::NoLogicalBlocks { drive, user }.into());
                };
                let known = read_device_l2p(&mut controller, &mut progress).map_err(failed)?;
                let info = controller.info();
                let parts = DriveQueue { queue, port: port.clone() };
                open_named(&share, config, known, info, parts, &mut progress, keeps_data).map_err(
                    |source| {
                        let (drive, target) = (name.clone(), named.name.clone());
                        StackError::Target { drive, target, source }
                    },
                )
            }
            HostTarget::Rrpc(config) => {
                let open_channel = controller.info().open_channel;
                let all = open_channel.map_or(0, |oc| oc.geometry.total_chunks());
                let chunks = controller.chunks(0, all, &mut progress).map_err(failed)?;
                let (map, totals) =
                    read_device_l2p(&mut controller, &mut progress).map_err(failed)?;
                let info = controller.info();
                let parts = DriveQueue { queue, port: port.clone() };
                let map = DeviceL2pEntries { entries: &map, totals };
                Rrpc::open(info, &chunks, map, parts, *config, &mut progress)
                    .map(|rrpc| CoreQueues::single(rrpc, TARGET_FEATURES))
                    .map_err(|source| match source {
                        RrpcError::Pblk(source) => pblk_open_error(&name, source),
                        source => StackError::Rrpc { name: name.clone(), source },
                    })
            }
        };
        Ok((device?, Some(controller)))
    }

    /// Finds the chunks of a named block device, and the FTL configuration for them.
    fn find_target_share(
        plan: &DriveSpec,
        named: &NamedTarget,
        controller: &mut ControllerHandle,
        progress: &mut dyn FnMut(),
    ) -> Result<(TargetShare, FtlConfig), StackError> {
        let drive = &plan.config.name;
        let check = |entry: &lnvm::TargetEntry| {
            // Report an unsupported kind before an impossible layout.
            named.check_kind(drive, entry)?;
            if !entry.spec.kind.is_block() {
                return Err(NamedError::Kind {
                    drive: drive.clone(),
                    target: named.name.clone(),
                    kind: entry.spec.kind,
                    why: "a block device is needed: pblk or rrpc; `sluice kv bench --name` runs on kv",
                });
            }
            named.ftl_config(drive, entry).map(|_| ()).map_err(NamedError::from)
        };
        let share = named_target::find(plan, &named.name, controller, progress, &check);
        let share = share.map_err(StackError::Named)?;
        let config = share.ftl_config(drive, named).map_err(StackError::Named)?;
        Ok((share, config))
    }

    /// Returns the counters of the FTL in the drive or in the host, summed over shards.
    pub fn ftl_stats(&mut self) -> Option<ftl::FtlStats> {
        let host = target_layers::ftl_snapshot(&mut self.device).map(|(stats, _)| stats);
        host.or_else(|| self.drive.ftl().map(|f| *f.stats()))
    }

    /// Returns the FTL in the drive or in the host; `None` if it is sharded or beneath a block
    /// layer.
    pub fn ftl(&self) -> Option<&ftl::Ftl> {
        let pblk = self.device.only::<Pblk>().map(Pblk::ftl);
        let host = pblk.or_else(|| self.device.only::<Rrpc>().map(Rrpc::ftl));
        host.or_else(|| self.drive.ftl())
    }
}
