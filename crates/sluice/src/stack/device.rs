//! [`StackDevice`]: the block device on top of a stack.

use block::{BlockDevice, Completion, Limits, QueueFull, Raw, Request};
use clock::{Component, Nanos, Waker};
use drive::Controller;
use driver::ControllerHandle;
use ftl::FtlStats;
use lightnvm::subsystem::ScrubConfig;
use lightnvm::{Pblk, Rrpc};
use ring::AddressSpace;

use super::{BlockLayerDevice, ShardCounts, Shards};

/// A block device, whoever manages the flash: one match per call, so that jobs need not be compiled
/// for every way.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one per drive; a box would cost the raw path a load"
)]
pub enum StackDevice {
    /// The drive: straight to its queue pair.
    Raw(Raw),
    /// The host: pblk over vector commands.
    Pblk(Box<Pblk>),
    /// The host: pblk in shards, one for each core that submits.
    Shards(Box<Shards>),
    /// The host: rrpc over vector commands and the drive's own map.
    Rrpc(Box<Rrpc>),
    /// The drive: through the block layer's queues.
    BlockLayer(Box<BlockLayerDevice>),
}

impl StackDevice {
    /// The block layer, if there is one.
    pub fn block_layer(&self) -> Option<&BlockLayerDevice> {
        match self {
            StackDevice::BlockLayer(cores) => Some(cores),
            StackDevice::Raw(_)
            | StackDevice::Pblk(_)
            | StackDevice::Shards(_)
            | StackDevice::Rrpc(_) => None,
        }
    }

    /// Has a translation layer on the host make a checkpoint of the map, without letting time pass, so
    /// that the next opening has nothing to look for (LightNVM paper section 4.2.2: the snapshot on
    /// power-down). Everything must have been flushed. A layer that cannot is left as it is: what
    /// was flushed is found again without.
    pub fn checkpoint(&mut self, now: Nanos, drive: &mut Controller) {
        self.begin_checkpoint();
        drive.set_zero_latency(true);
        while self.is_checkpointing() && self.poll(now) | drive.poll(now) {}
        drive.set_zero_latency(false);
    }

    /// Has cold data looked after, by those that do; `false` for others.
    pub(super) fn set_scrub(&mut self, config: ScrubConfig) -> bool {
        match self {
            StackDevice::Pblk(pblk) => pblk.set_scrub(config),
            StackDevice::Shards(shards) => shards.set_scrub(config),
            StackDevice::Rrpc(rrpc) => rrpc.set_scrub(config),
            StackDevice::Raw(_) | StackDevice::BlockLayer(_) => return false,
        }
        true
    }

    /// Listens to what the drive tells of its media, if that is anything to it. Gives the admin queue
    /// back otherwise: to a drive that tells nothing there is nothing to hear.
    pub(super) fn subscribe_events(
        &mut self,
        controller: Box<ControllerHandle>,
    ) -> Option<Box<ControllerHandle>> {
        let watched = match self {
            StackDevice::Pblk(pblk) => pblk.subscribe_events(controller),
            StackDevice::Shards(shards) => match shards.handles_mut().first_mut() {
                Some(first) => first.subscribe_events(controller),
                None => return Some(controller),
            },
            StackDevice::Rrpc(rrpc) => rrpc.subscribe_events(controller),
            StackDevice::Raw(_) | StackDevice::BlockLayer(_) => return Some(controller),
        };
        watched.err().map(|(controller, _)| controller)
    }

    /// Asks for a checkpoint, if there is a map of the host's.
    pub fn begin_checkpoint(&mut self) {
        match self {
            StackDevice::Pblk(pblk) => pblk.checkpoint(),
            StackDevice::Shards(shards) => shards.checkpoint(),
            StackDevice::Raw(_) | StackDevice::Rrpc(_) | StackDevice::BlockLayer(_) => {}
        }
    }

    /// Whether one is being made.
    pub fn is_checkpointing(&self) -> bool {
        match self {
            StackDevice::Pblk(pblk) => pblk.ftl().is_checkpointing(),
            StackDevice::Shards(shards) => shards.is_checkpointing(),
            StackDevice::Raw(_) | StackDevice::Rrpc(_) | StackDevice::BlockLayer(_) => false,
        }
    }

    /// Counters and free lines of the translation layer on the host, of all shards together; `None` if
    /// there is none.
    pub fn ftl_snapshot(&self) -> Option<(FtlStats, f64)> {
        match self {
            StackDevice::Pblk(p) => Some((*p.stats(), p.ftl().free_lines())),
            StackDevice::Rrpc(r) => Some((*r.stats(), r.ftl().free_lines())),
            StackDevice::Shards(s) => Some((s.ftl_stats(), s.free_lines())),
            StackDevice::Raw(_) | StackDevice::BlockLayer(_) => None,
        }
    }

    /// What each shard has done; none of a device that has no shards.
    pub fn shard_counts(&self) -> Vec<ShardCounts> {
        match self {
            StackDevice::Shards(shards) => shards.counts(),
            _ => Vec::new(),
        }
    }

    /// The same, to change it.
    pub fn block_layer_mut(&mut self) -> Option<&mut BlockLayerDevice> {
        match self {
            StackDevice::BlockLayer(cores) => Some(cores),
            StackDevice::Raw(_)
            | StackDevice::Pblk(_)
            | StackDevice::Shards(_)
            | StackDevice::Rrpc(_) => None,
        }
    }
}

macro_rules! each {
    ($self:ident, $d:ident => $e:expr) => {
        match $self {
            StackDevice::Raw($d) => $e,
            StackDevice::Pblk($d) => $e,
            StackDevice::Shards($d) => $e,
            StackDevice::Rrpc($d) => $e,
            StackDevice::BlockLayer($d) => $e,
        }
    };
}

impl Component for StackDevice {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        each!(self, d => d.poll(now))
    }
    #[inline]
    fn deadline(&self) -> Nanos {
        each!(self, d => d.deadline())
    }
}

impl BlockDevice for StackDevice {
    #[inline]
    fn limits(&self) -> &Limits {
        each!(self, d => d.limits())
    }
    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        each!(self, d => d.submit(now, request))
    }
    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        each!(self, d => d.reap())
    }
    fn memory(&self) -> &AddressSpace {
        each!(self, d => d.memory())
    }
    fn set_waker(&mut self, waker: Waker) {
        each!(self, d => d.set_waker(waker));
    }
}
