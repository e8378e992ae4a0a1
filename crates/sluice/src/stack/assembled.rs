//! [`AssembledDrive`]: a drive, and what an application holds of it itself (NVMeDirect figure 1): the controller,
//! of which it makes queues of its own, or a target's ends, one per core.
//!
//! Bringing a drive up takes no time of the drive's. Nothing is outstanding when it is given away.

use std::sync::Arc;

use clock::{Component, Nanos};
use drive::Controller;
use driver::ControllerHandle;
use lightnvm::ShardHandle;
use ring::Port;

use super::{ADMIN_POLL_LIMIT, Stack, StackDevice, StackError};
use crate::scenario::DriveSpec;

/// A drive and what a host holds of it.
#[derive(Debug)]
pub struct AssembledDrive {
    /// The drive.
    pub drive: Controller,
    /// The connection between them, to set wakers on.
    pub port: Arc<Port>,
    /// The host's side.
    pub host: HostHandles,
}

/// What a host holds of a drive.
#[derive(Debug)]
pub enum HostHandles {
    /// The admin queue: queues are to be made.
    Controller(Box<ControllerHandle>),
    /// A target with one end.
    Target(Box<StackDevice>),
    /// A target with an end per core.
    Shards(Vec<ShardHandle>),
}

impl Stack {
    /// Takes the stack apart at the instant `now`: a drive that manages its flash leaves its controller,
    /// with no queue made, and a target itself.
    ///
    /// # Errors
    /// [`StackError::Driver`] when the drive does not let go of the queue.
    pub fn into_assembled(self, now: Nanos) -> Result<AssembledDrive, StackError> {
        let Stack { mut drive, device, port, controller, .. } = self;
        let (raw, mut controller) = match (device, controller) {
            (StackDevice::Raw(raw), Some(controller)) => (raw, controller),
            (StackDevice::Shards(shards), _) => {
                return Ok(AssembledDrive {
                    drive,
                    port,
                    host: HostHandles::Shards(shards.into_handles()),
                });
            }
            (device, _) => {
                return Ok(AssembledDrive {
                    drive,
                    port,
                    host: HostHandles::Target(Box::new(device)),
                });
            }
        };
        let name = drive.config().name.clone();
        drive.set_zero_latency(true);
        let mut pump = || {
            drive.poll(now);
        };
        let pair = raw.into_queue().0.into_pair();
        let deleted = controller.delete_queue_pair(pair, &mut |_| {}, &mut pump);
        drive.set_zero_latency(false);
        deleted.map_err(|source| StackError::Driver { name, source })?;
        Ok(AssembledDrive { drive, port, host: HostHandles::Controller(Box::new(controller)) })
    }
}

impl AssembledDrive {
    /// Powers a drive on and brings its controller up, whoever is to manage the flash.
    ///
    /// # Errors
    /// [`StackError::Drive`], [`StackError::Memory`], [`StackError::Driver`].
    pub fn without_host(plan: &DriveSpec) -> Result<AssembledDrive, StackError> {
        let (mut drive, port) = power_on(plan)?;
        let controller = attach(&mut drive, &port);
        drive.set_zero_latency(false);
        drive.reset_stats();
        let held = HostHandles::Controller(Box::new(controller?));
        Ok(AssembledDrive { drive, port, host: held })
    }
}

/// The drive with power, taking no time, and its port.
fn power_on(plan: &DriveSpec) -> Result<(Controller, Arc<Port>), StackError> {
    let name = || plan.config.name.clone();
    let drive = Controller::new(plan.config.clone());
    let mut drive = drive.map_err(|source| StackError::Drive { name: name(), source })?;
    let port = drive.attach().map_err(|source| StackError::Memory { name: name(), source })?;
    drive.set_zero_latency(true);
    Ok((drive, port))
}

fn attach(drive: &mut Controller, port: &Arc<Port>) -> Result<ControllerHandle, StackError> {
    let name = drive.config().name.clone();
    let mut pump = || {
        drive.poll(Nanos::ZERO);
    };
    ControllerHandle::connect(port.clone(), &mut pump, ADMIN_POLL_LIMIT)
        .map_err(|source| StackError::Driver { name, source })
}
