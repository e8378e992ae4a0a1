//! [`StackDevice`]: the block device on top of a stack.

use block::{BlockDevice, Raw};
use controller::Controller;
use driver::ControllerHandle;
use ftl::FtlStats;
use lnvm::ScrubConfig;
use pblk::{Pblk, Rrpc};
use time::{Component, Nanos};

use super::{BlockLayerDevice, ShardCounts, Shards};

/// A block device, wherever the FTL runs. Calls are dispatched by one match, so that job code is
/// not compiled for each variant.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one per drive; a box would cost the raw path a load"
)]
pub enum StackDevice {
    /// FTL in the drive; requests go directly to its queue pair.
    Raw(Raw),
    /// FTL in the host: pblk over vector commands.
    Pblk(Box<Pblk>),
    /// FTL in the host: sharded pblk, one shard per submitting core.
    Shards(Box<Shards>),
    /// FTL in the host: rrpc over vector commands and the device L2P.
    Rrpc(Box<Rrpc>),
    /// FTL in the drive; requests go through the block layer's queues.
    BlockLayer(Box<BlockLayerDevice>),
}

impl StackDevice {
    /// Returns the block layer, if there is one.
    pub fn block_layer(&self) -> Option<&BlockLayerDevice> {
        match self {
            StackDevice::BlockLayer(cores) => Some(cores),
            StackDevice::Raw(_)
            | StackDevice::Pblk(_)
            | StackDevice::Shards(_)
            | StackDevice::Rrpc(_) => None,
        }
    }

    /// Makes an FTL in the host write a checkpoint without advancing time, so that the next
    /// recovery has nothing to scan.
    ///
    /// The snapshot on power-down is described in [LightNVM17 §4.2.2]. All writes must have been
    /// flushed. An FTL that cannot write a checkpoint is left unchanged; recovery then finds the
    /// flushed data by a scan.
    pub fn checkpoint(&mut self, now: Nanos, drive: &mut Controller) {
        self.begin_checkpoint();
        drive.set_zero_latency(true);
        while self.is_checkpointing() && self.poll(now) | drive.poll(now) {}
        drive.set_zero_latency(false);
    }

    /// Enables scrubbing on targets that support it; returns `false` for others.
    pub(super) fn set_scrub(&mut self, config: ScrubConfig) -> bool {
        match self {
            StackDevice::Pblk(pblk) => pblk.set_scrub(config),
            StackDevice::Shards(shards) => shards.set_scrub(config),
            StackDevice::Rrpc(rrpc) => rrpc.set_scrub(config),
            StackDevice::Raw(_) | StackDevice::BlockLayer(_) => return false,
        }
        true
    }

    /// Subscribes to media events of the drive, if the target handles them. Otherwise, and for a
    /// drive that sends no events, returns the admin queue to the caller.
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

    /// Requests a checkpoint of an FTL in the host.
    pub fn begin_checkpoint(&mut self) {
        match self {
            StackDevice::Pblk(pblk) => pblk.checkpoint(),
            StackDevice::Shards(shards) => shards.checkpoint(),
            StackDevice::Raw(_) | StackDevice::Rrpc(_) | StackDevice::BlockLayer(_) => {}
        }
    }

    /// Returns whether a checkpoint is in progress.
    pub fn is_checkpointing(&self) -> bool {
        match self {
            StackDevice::Pblk(pblk) => pblk.ftl().is_checkpointing(),
            StackDevice::Shards(shards) => shards.is_checkpointing(),
            StackDevice::Raw(_) | StackDevice::Rrpc(_) | StackDevice::BlockLayer(_) => false,
        }
    }

    /// Returns counters and free lines of the FTL in the host, summed over shards; `None` if there
    /// is none.
    pub fn ftl_snapshot(&self) -> Option<(FtlStats, f64)> {
        match self {
            StackDevice::Pblk(p) => Some((*p.stats(), p.ftl().free_lines())),
            StackDevice::Rrpc(r) => Some((*r.stats(), r.ftl().free_lines())),
            StackDevice::Shards(s) => Some((s.ftl_stats(), s.free_lines())),
            StackDevice::Raw(_) | StackDevice::BlockLayer(_) => None,
        }
    }

    /// Returns the counters of each shard; empty for a device without shards.
    pub fn shard_counts(&self) -> Vec<ShardCounts> {
        match self {
            StackDevice::Shards(shards) => shards.counts(),
            _ => Vec::new(),
        }
    }

    /// Returns mutable access to the block layer, if there is one.
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
    block::delegate_block_device!(self => each!; poll, deadline);
}

impl BlockDevice for StackDevice {
    block::delegate_block_device!(self => each!);
}
