//! [`StackHost`]: the host's side of one drive, which may have several hosts.

pub(super) mod ahci;
pub(super) mod device;
pub(super) mod open;
pub(super) mod real;
pub(super) mod write_log;

use std::num::NonZeroU16;
use std::sync::Arc;

use block::{DeviceDriver, Raw};
use controller::{AccessPolicy, AccessScope, Controller};
use driver::{ControllerHandle, NvmeDevice};
use mem::AddressSpace;
use scenario::choice::{BLOCK_REQUESTS, Impossible};
use scenario::{BlockLayerSpec, DriveSpec, HostTarget};
use time::{Component, Nanos};
use transport::Port;

use super::{
    ADMIN_POLL_LIMIT, CoreQueues, DEPTH, HostHandles, Notification, StackError, steady_state,
    target_layers,
};
use device::DevicePort;

/// Options of a host of a drive.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Interrupt vector that the drive raises, if the host sleeps.
    pub vector: Option<u16>,
    /// Memory of the host, which hosts of other drives may share.
    pub memory: AddressSpace,
    /// Number of queue pairs on a drive without a target: a core of the device for each.
    pub raw_queues: NonZeroU16,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        let (memory, raw_queues) = (AddressSpace::default(), NonZeroU16::MIN);
        HostOptions { vector: None, memory, raw_queues }
    }
}

/// The host's side of a drive: a block device on queue pairs of its own.
#[derive(Debug)]
pub struct StackHost {
    /// The block device.
    pub device: CoreQueues,
    /// The part of the drive that the host shares, to set wakers on.
    pub port: DevicePort,
    /// The admin queue, unless the device owns it.
    pub(super) controller: Option<ControllerHandle>,
    /// Result of preconditioning until steady state, if that was requested.
    pub steady: Option<steady_state::SteadyResult>,
}

impl StackHost {
    /// Attaches a host to a drive that is powered on, and initializes the host's side without
    /// advancing time. The drive may have other hosts; a target's chunks are its own.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn attach(
        drive: &mut Controller,
        plan: &DriveSpec,
        options: &HostOptions,
    ) -> Result<StackHost, StackError> {
        let name = plan.config.name.clone();
        StackHost::check_device(plan)?;
        let port = attach_port(drive, plan, options)?;
        // Initialization takes no time of the run: the reads of recovery complete immediately.
        drive.set_zero_latency(true);
        let device = open::init_device(plan, drive, &port, options, name);
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
        Ok(StackHost { device, port: DevicePort::Nvme(port), controller, steady: None })
    }

    /// Checks that there are logical blocks for block requests.
    pub(super) fn check_device(plan: &DriveSpec) -> Result<(), StackError> {
        let (personality, has_target) = (plan.config.personality, plan.target != HostTarget::None);
        let name = &plan.config.name;
        Impossible::check_logical_blocks(personality, has_target, name, BLOCK_REQUESTS)?;
        match &plan.target {
            HostTarget::Named(target) => Ok(Impossible::check_blocks(&target.name, target.kind)?),
            _ => Ok(()),
        }
    }

    /// Inserts the block layer `plan` between the users of the device and what is beneath: the
    /// drive's queue pairs, or the queues of the target.
    ///
    /// The change takes place at the instant `now` without advancing time. Nothing may be
    /// outstanding. In real time, hardware queue `i` of the drive raises interrupt vector `i`.
    ///
    /// Preconditioning comes first, so its resulting state does not depend on the block layer.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn with_block_layer(
        self,
        drive: &mut Controller,
        plan: &BlockLayerSpec,
        now: Nanos,
        notification: Notification,
    ) -> Result<StackHost, StackError> {
        let (steady, port) = (self.steady.clone(), self.port.clone());
        let name = drive.config().name.clone();
        let controller = match self.into_handles(drive, now)? {
            HostHandles::Controller(controller) => *controller,
            HostHandles::Queues(queues) => {
                let device = block_layer_over(*queues, plan, notification, name)?;
                return Ok(StackHost { device, port, controller: None, steady });
            }
        };
        let depth = DEPTH.min(drive.config().controller.queue_depth);
        let queues = plan.hardware_queues(controller.info().io_queues);
        drive.set_zero_latency(true);
        let mut progress = || {
            drive.poll(now);
        };
        let interrupts = notification.uses_interrupts();
        let opened = NvmeDevice::open(controller, queues, depth, interrupts, &mut progress)
            .map_err(|source| StackError::Raw { name: name.clone(), source })
            .and_then(|driver| {
                CoreQueues::open_layer(driver, plan, notification)
                    .map_err(|source| StackError::BlockLayer { name, source })
            });
        drive.set_zero_latency(false);
        drive.reset_stats();
        Ok(StackHost { device: opened?, port, controller: None, steady })
    }

    /// Returns the handles of an application at the instant `now`. A drive that manages its flash
    /// returns its controller without I/O queues; other hosts return their target.
    ///
    /// # Errors
    /// [`StackError::Driver`] if the drive does not delete the queue.
    pub(super) fn into_handles(
        self,
        drive: &mut Controller,
        now: Nanos,
    ) -> Result<HostHandles, StackError> {
        let StackHost { device, controller, .. } = self;
        let features = device.features();
        let (raw, mut controller) = match (device.into_only::<Raw>(), controller) {
            (Ok(raw), Some(controller)) => (raw, controller),
            (Ok(raw), None) => {
                return Ok(HostHandles::Queues(Box::new(CoreQueues::single(*raw, features))));
            }
            (Err(device), _) => return Ok(HostHandles::Queues(device)),
        };
        let name = drive.config().name.clone();
        drive.set_zero_latency(true);
        let mut progress = || {
            drive.poll(now);
        };
        let pair = raw.into_queue().0.into_pair();
        let deleted = controller.delete_queue_pair(pair, &mut |_| {}, &mut progress);
        drive.set_zero_latency(false);
        deleted.map_err(|source| StackError::Driver { name, source })?;
        Ok(HostHandles::Controller(Box::new(controller)))
    }
}

/// Attaches a host to a drive, or to the application of its rules that `plan` names.
fn attach_port(
    drive: &mut Controller,
    plan: &DriveSpec,
    options: &HostOptions,
) -> Result<Arc<Port>, StackError> {
    let name = || plan.config.name.clone();
    let failed = |source| StackError::Memory { name: name(), source };
    let space = options.memory.clone();
    let Some(app) = &plan.app else { return drive.attach_in(space).map_err(failed) };
    let app = drive
        .application(app)
        .map_err(|source| StackError::Application { name: name(), source })?;
    let port = match drive.config().controller.registers {
        Some(_) => Port::with_registers(space),
        None => Port::in_space(space),
    };
    let port = port.map_err(failed)?;
    let policy = AccessPolicy::for_scope(AccessScope::Application { app });
    let confined = |source| StackError::Confined { name: name(), source };
    drive.attach_as(&port, policy).map_err(confined)?;
    Ok(port)
}

/// Attaches a host without a block device to a drive that is powered on, without advancing time. `open`
/// gets its controller, the port between drive and host, and the function that polls the drive.
/// Returns its result and the port.
pub(super) fn attach_with<T>(
    drive: &mut Controller,
    plan: &DriveSpec,
    options: &HostOptions,
    open: impl FnOnce(ControllerHandle, &Arc<Port>, &mut dyn FnMut()) -> Result<T, StackError>,
) -> Result<(T, Arc<Port>), StackError> {
    let name = || plan.config.name.clone();
    let port = attach_port(drive, plan, options)?;
    drive.set_zero_latency(true);
    let mut progress = || {
        drive.poll(Nanos::ZERO);
    };
    let with = open::connect_options(plan);
    let opened =
        ControllerHandle::connect_with(port.clone(), with, &mut progress, ADMIN_POLL_LIMIT)
            .map_err(|source| StackError::Driver { name: name(), source })
            .and_then(|controller| open(controller, &port, &mut progress));
    drive.set_zero_latency(false);
    drive.reset_stats();
    Ok((opened?, port))
}

/// Opens the block layer `plan` over the queues of a target or of a set. `name` is that of the
/// drive or set.
pub(super) fn block_layer_over(
    queues: CoreQueues,
    plan: &BlockLayerSpec,
    notification: Notification,
    name: String,
) -> Result<CoreQueues, StackError> {
    let (count, features) = (queues.cores() as u16, queues.features());
    let queues = queues.into_hardware_queues(plan.hardware_queues(count));
    let driver = DeviceDriver::new(queues, features)
        .map_err(|source| StackError::Queues { name: name.clone(), source })?;
    CoreQueues::open_layer(driver, plan, notification)
        .map_err(|source| StackError::BlockLayer { name, source })
}
