//! [`Hands`]: a drive, and what an application holds of it itself (NVMeDirect figure 1): the controller,
//! of which it makes queues of its own, or a target's ends, one per core.
//!
//! Bringing a drive up takes no time of the drive's. Nothing is outstanding when it is given away.

use std::sync::Arc;

use clock::{Component, Nanos};
use drive::Drive;
use driver::{Controller, QueuePair};
use lightnvm::{ShardHandle, Sharded, ShardedConfig, ShardedError};
use ring::Port;

use super::{DEPTH, PATIENCE, Stack, StackDevice, StackError};
use crate::scenario::{DrivePlan, Target};

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
        let Stack { mut drive, device, port, controller } = self;
        let (raw, mut controller) = match (device, controller) {
            (StackDevice::Raw(raw), Some(controller)) => (raw, controller),
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

    /// Powers an open-channel drive on and opens pblk on it in `shards` shards, one for each core that
    /// submits (LightNVM paper section 4.2.1), each with an interrupt vector of its own.
    ///
    /// # Errors
    /// [`StackError::Shards`]; [`StackError::NotABlockDevice`] when its target is not pblk on the whole
    /// drive; as for [`bare`](Hands::bare).
    pub fn sharded(plan: &DrivePlan, shards: u32) -> Result<Hands, StackError> {
        let name = plan.config.name.clone();
        let Target::Pblk(ftl) = &plan.target else {
            return Err(StackError::NotABlockDevice { name });
        };
        let (mut drive, port) = power_on(plan)?;
        let config = ShardedConfig { ftl: *ftl, ..ShardedConfig::new(shards) };
        let opened = open_shards(&mut drive, &port, config);
        drive.set_instant(false);
        drive.reset_stats();
        let held = Held::Shards(opened?);
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

fn open_shards(
    drive: &mut Drive,
    port: &Arc<Port>,
    config: ShardedConfig,
) -> Result<Vec<ShardHandle>, StackError> {
    let name = drive.config().name.clone();
    let (keeps_data, depth) = (drive.keeps_data(), drive.config().controller.queue_depth);
    let mut controller = attach(drive, port)?;
    let mut pump = || {
        drive.poll(Nanos::ZERO);
    };
    let failed = |source| StackError::Driver { name: name.clone(), source };
    let granted = u32::from(controller.info().io_queues);
    if config.shards > granted {
        let source = ShardedError::Queues { queues: granted as usize, shards: config.shards };
        return Err(StackError::Shards { name, source });
    }
    let mut queues: Vec<QueuePair> = Vec::new();
    for _ in 0..config.shards {
        let vector = controller.next_queue();
        let pair = controller.create_queue_pair(DEPTH.min(depth), vector, &mut pump);
        queues.push(pair.map_err(failed)?);
    }
    let info = controller.info().clone();
    let all = info.open_channel.map_or(0, |oc| oc.geometry.total_chunks());
    let chunks = controller.chunks(0, all, &mut pump).map_err(failed)?;
    let port = port.clone();
    Sharded::open(&info, &chunks, queues, port, config, &mut pump, keeps_data)
        .map(Sharded::into_handles)
        .map_err(|source| StackError::Shards { name: name.clone(), source })
}
