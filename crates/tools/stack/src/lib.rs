//! The stack of one drive: the drive and the host software on it, built from a [`DriveSpec`].
//!
//! [`Stack`] has the drive and the block device; [`AssembledDrive`] has the drive and the handles
//! of an application. [`precondition`](precondition()) brings a stack to a state with zero-latency
//! media.

#![forbid(unsafe_code)]

mod assembled;
mod block_layer_counts;
mod builder;
mod co_simulate;
mod core_queues;
mod error;
mod host;
mod live;
pub mod named_target;
mod partition_stack;
mod precondition;
mod prepare;
pub mod target_layers;
mod target_rules;

use block::{AtomicLimits, Features};
use controller::Controller;
use driver::ControllerHandle;
use pblk::{Pblk, Rrpc};
use scenario::choice::Impossible;
use scenario::{BlockLayerSpec, DriveSpec, HostTarget};
use time::Nanos;

pub use assembled::{AssembledDrive, HostHandles};
pub use block_layer_counts::{BlockLayerCounts, CoreCounts, DispatchCounts, StagingCounts};
pub use builder::{BuildOptions, JobTarget, OpenPath, PathDevice, StackBuilder};
pub use co_simulate::{RunObserver, co_simulate};
pub use core_queues::{BlockLayerQueue, CoreQueue, CoreQueues, Notification, StackBlockLayer};
pub use error::StackError;
pub use host::device::{AhciDevice, DevicePort, EmulatedDevice, SimulatedDevice};
pub use host::write_log::log_stats;
pub use host::{HostOptions, StackHost};
pub use live::{DriveSnapshot, DriveThreadState, SnapshotCell, SnapshotSource};
pub use precondition::marker::{PreconditionMarker, image, is_fresh, stores_data, with_overlay};
pub use precondition::state_cache::StateUse;
pub use precondition::state_file::StateError;
pub use precondition::state_key::StateKey;
pub use precondition::{precondition, precondition_stack, steady_state};
pub use prepare::{
    HOST_VECTOR, PrepareError, PrepareEvent, PreparedPaths, keep_states, prepare_drive,
    prepare_paths,
};
pub use target_layers::ShardCounts;
pub use target_rules::{TargetAccess, target_rule_control};
pub use write_log::WriteLogStats;

/// A drive and the block device of the host on it. The submitter polls the device, and the runner
/// polls the drive. The two share only the queue pair (ARCHITECTURE.md, R1).
#[derive(Debug)]
pub struct Stack {
    /// The drive.
    pub drive: Controller,
    /// The block device.
    pub device: CoreQueues,
    /// The port between drive and host, to set wakers on.
    pub port: DevicePort,
    /// The admin queue, unless the device owns it.
    controller: Option<ControllerHandle>,
    /// Result of preconditioning until steady state, if that was requested.
    pub steady: Option<steady_state::SteadyResult>,
}

/// Checks that a drive is an emulated NVMe drive.
fn check_nvme(plan: &DriveSpec) -> Result<(), StackError> {
    Ok(Impossible::check_nvme(plan, "a stack of one drive")?)
}

/// Maximum number of polls of the drive for one admin command.
const ADMIN_POLL_LIMIT: u64 = 10_000_000;

/// Number of entries of the queue pair, unless the drive supports fewer.
const DEPTH: u16 = 4096;

/// Features of targets in addition to reads and writes; each payload must be one segment.
const TARGET_FEATURES: Features = Features {
    segments: 0,
    fua: true,
    discard: true,
    write_zeroes: true,
    extents: true,
    atomic: AtomicLimits::NONE,
};

impl Stack {
    /// Powers the drive on and initializes the host's side without advancing time. `vector` is the
    /// interrupt vector that the drive raises, if the host sleeps.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn build(plan: &DriveSpec, vector: Option<u16>) -> Result<Stack, StackError> {
        StackHost::check_device(plan)?;
        let mut drive = Stack::power_on(plan)?;
        let options = HostOptions { vector, ..HostOptions::default() };
        let host = StackHost::attach(&mut drive, plan, &options)?;
        Ok(Stack::join(drive, host))
    }

    /// Powers a drive on, without a host.
    ///
    /// # Errors
    /// [`StackError::Drive`], [`StackError::Named`].
    pub fn power_on(plan: &DriveSpec) -> Result<Controller, StackError> {
        let name = &plan.config.name;
        check_nvme(plan)?;
        if let HostTarget::Named(target) = &plan.target
            && target.pus.is_none()
        {
            named_target::check_image(plan, &target.name).map_err(StackError::Named)?;
        }
        Controller::new(plan.config.clone()).map_err(|source| match plan.target.name() {
            Some(target) => {
                let (drive, target) = (name.clone(), target.to_owned());
                StackError::Named(named_target::NamedError::Drive { drive, target, source })
            }
            None => StackError::Drive { name: name.clone(), source },
        })
    }

    fn join(drive: Controller, host: StackHost) -> Stack {
        let StackHost { device, port, controller, steady } = host;
        Stack { drive, device, port, controller, steady }
    }

    fn split(self) -> (Controller, StackHost) {
        let Stack { drive, device, port, controller, steady } = self;
        (drive, StackHost { device, port, controller, steady })
    }

    /// Inserts the block layer `plan` between the users of the device and what is beneath: see
    /// [`StackHost::with_block_layer`].
    ///
    /// # Errors
    /// [`StackError`].
    pub fn with_block_layer(
        self,
        plan: &BlockLayerSpec,
        now: Nanos,
        notification: Notification,
    ) -> Result<Stack, StackError> {
        let (mut drive, host) = self.split();
        let host = host.with_block_layer(&mut drive, plan, now, notification)?;
        Ok(Stack::join(drive, host))
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
