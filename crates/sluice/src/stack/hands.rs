//! [`Hands`]: a drive, and what an application holds of it itself (NVMeDirect figure 1): the controller,
//! of which it makes queues of its own, or a target's ends, one per core.
//!
//! Bringing a drive up takes no time of the drive's. Nothing is outstanding when it is given away.

use std::sync::Arc;

use clock::{Component, Nanos};
use drive::Drive;
use driver::Controller;
use lightnvm::ShardHandle;
use ring::Port;

use super::{PATIENCE, Stack, StackDevice, StackError};
use crate::scenario::DrivePlan;

/// A drive and what a host holds of it.
#[derive(Debug)]
pub struct Hands {
    /// The drive.
    pub drive: Drive,
    /// The connection between them, to set wakers on.
    pub port: Arc<Port>,
    /// The host's side.
    pub held: Held,
}

/// What a host holds of a drive.
#[derive(Debug)]
pub enum Held {
    /// The admin queue: queues are to be made.
    Controller(Box<Controller>),
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
    pub fn into_hands(self, now: Nanos) -> Result<Hands, StackError> {
        let Stack { mut drive, device, port, controller, .. } = self;
        let (raw, mut controller) = match (device, controller) {
            (StackDevice::Raw(raw), Some(controller)) => (raw, controller),
            (StackDevice::Shards(shards), _) => {
                return Ok(Hands { drive, port, held: Held::Shards(shards.into_handles()) });
            }
            (device, _) => return Ok(Hands { drive, port, held: Held::Target(Box::new(device)) }),
        };
        let name = drive.config().name.clone();
        drive.set_instant(true);
        let mut pump = || {
            drive.poll(now);
        };
        let pair = raw.into_queue().0.into_pair();
        let deleted = controller.delete_queue_pair(pair, &mut |_| {}, &mut pump);
        drive.set_instant(false);
        deleted.map_err(|source| StackError::Driver { name, source })?;
        Ok(Hands { drive, port, held: Held::Controller(Box::new(controller)) })
    }
}

impl Hands {
    /// Powers a drive on and brings its controller up, whoever is to manage the flash.
    ///
    /// # Errors
    /// [`StackError::Drive`], [`StackError::Memory`], [`StackError::Driver`].
    pub fn bare(plan: &DrivePlan) -> Result<Hands, StackError> {
        let (mut drive, port) = power_on(plan)?;
        let controller = attach(&mut drive, &port);
        drive.set_instant(false);
        drive.reset_stats();
        let held = Held::Controller(Box::new(controller?));
        Ok(Hands { drive, port, held })
    }
}

/// The drive with power, taking no time, and its port.
fn power_on(plan: &DrivePlan) -> Result<(Drive, Arc<Port>), StackError> {
    let name = || plan.config.name.clone();
    let drive = Drive::new(plan.config.clone());
    let mut drive = drive.map_err(|source| StackError::Drive { name: name(), source })?;
    let port = drive.attach().map_err(|source| StackError::Memory { name: name(), source })?;
    drive.set_instant(true);
    Ok((drive, port))
}

fn attach(drive: &mut Drive, port: &Arc<Port>) -> Result<Controller, StackError> {
    let name = drive.config().name.clone();
    let mut pump = || {
        drive.poll(Nanos::ZERO);
    };
    Controller::attach(port.clone(), &mut pump, PATIENCE)
        .map_err(|source| StackError::Driver { name, source })
}
