//! [`AssembledDrive`]: a drive and the handles that an application has of it (\[NVMeDirect16\],
//! figure 1). The handles are the controller, for queues of the application's own, or a target's
//! queues, one per core.
//!
//! Bringing a drive up takes no virtual time. Nothing is outstanding when the drive is handed over.

use std::sync::Arc;

use controller::Controller;
use driver::ControllerHandle;
use scenario::DriveSpec;
use time::{Component, Nanos};
use transport::Port;

use super::{ADMIN_POLL_LIMIT, CoreQueues, DevicePort, Stack, StackError};

/// A drive and the host's handles.
#[derive(Debug)]
pub struct AssembledDrive {
    /// The drive.
    pub drive: Controller,
    /// The port between drive and host, to set wakers on.
    pub port: DevicePort,
    /// The host's handles.
    pub host: HostHandles,
}

/// Handles of a host to a drive.
#[derive(Debug)]
pub enum HostHandles {
    /// The admin queue, to create queues with.
    Controller(Box<ControllerHandle>),
    /// The queues of a target or of a block layer, one per core.
    Queues(Box<CoreQueues>),
}

impl Stack {
    /// Disassembles the stack at the instant `now`. A drive that manages its flash returns its
    /// controller without I/O queues; other stacks return their target.
    ///
    /// # Errors
    /// [`StackError::Driver`] if the drive does not delete the queue.
    pub fn into_assembled(self, now: Nanos) -> Result<AssembledDrive, StackError> {
        let (mut drive, host) = self.split();
        let port = host.port.clone();
        let host = host.into_handles(&mut drive, now)?;
        Ok(AssembledDrive { drive, port, host })
    }
}

impl AssembledDrive {
    /// Powers a drive on and initializes its controller, without a target on the host.
    ///
    /// # Errors
    /// [`StackError::Drive`], [`StackError::Memory`], [`StackError::Driver`].
    pub fn without_host(plan: &DriveSpec) -> Result<AssembledDrive, StackError> {
        let (mut drive, port) = power_on(plan)?;
        let controller = attach(&mut drive, &port);
        drive.set_zero_latency(false);
        drive.reset_stats();
        let held = HostHandles::Controller(Box::new(controller?));
        Ok(AssembledDrive { drive, port: DevicePort::Nvme(port), host: held })
    }
}

/// Powers the drive on with zero latency; returns it and its port.
fn power_on(plan: &DriveSpec) -> Result<(Controller, Arc<Port>), StackError> {
    let name = || plan.config.name.clone();
    super::check_nvme(plan)?;
    let drive = Controller::new(plan.config.clone());
    let mut drive = drive.map_err(|source| StackError::Drive { name: name(), source })?;
    let port = drive.attach().map_err(|source| StackError::Memory { name: name(), source })?;
    drive.set_zero_latency(true);
    Ok((drive, port))
}

fn attach(drive: &mut Controller, port: &Arc<Port>) -> Result<ControllerHandle, StackError> {
    let name = drive.config().name.clone();
    let mut progress = || {
        drive.poll(Nanos::ZERO);
    };
    ControllerHandle::connect(port.clone(), &mut progress, ADMIN_POLL_LIMIT)
        .map_err(|source| StackError::Driver { name, source })
}
