//! The targets of a stack, wherever they are in it: their FTLs, counters, scrubs and checkpoints.
//!
//! Each function finds the targets by [`BlockDevice::visit_layers`], so that it works through a
//! block layer and on a core's queue alone.

use std::any::Any;

use block::sched::{GroupChange, SchedError};
use block::{BlockDevice, Group, Staging};
use driver::ControllerHandle;
use ftl::{CapacityPlan, ControlChange, ControlError, ControlSettings, Ftl, FtlConfig, FtlStats};
use lnvm::ScrubConfig;
use pblk::{Pblk, PblkHealth, Rrpc, ShardHandle, ShardStats, SuperblockHealth, TargetRuleStats};
use time::{Component, Nanos};

use super::{EmulatedDevice, SimulatedDevice};

/// A target, or a shard of one.
enum TargetLayer<'a> {
    Pblk(&'a mut Pblk),
    Rrpc(&'a mut Rrpc),
    Shard(&'a mut ShardHandle),
}

impl TargetLayer<'_> {
    fn apply(&mut self, change: &ControlChange) -> Result<(), ControlError> {
        match self {
            TargetLayer::Pblk(pblk) => pblk.apply_change(change),
            TargetLayer::Rrpc(rrpc) => rrpc.apply_change(change),
            TargetLayer::Shard(shard) => shard.apply_change(change),
        }
    }

    fn ftl(&self) -> &Ftl {
        match self {
            TargetLayer::Pblk(pblk) => pblk.ftl(),
            TargetLayer::Rrpc(rrpc) => rrpc.ftl(),
            TargetLayer::Shard(shard) => shard.pblk().ftl(),
        }
    }
}

/// Calls `visit` with each target of a device.
fn for_each_target(
    device: &mut (impl BlockDevice + ?Sized),
    visit: &mut dyn FnMut(TargetLayer<'_>),
) {
    device.visit_layers(&mut |layer: &mut dyn Any| {
        if let Some(pblk) = layer.downcast_mut() {
            visit(TargetLayer::Pblk(pblk));
        } else if let Some(rrpc) = layer.downcast_mut() {
            visit(TargetLayer::Rrpc(rrpc));
        } else if let Some(shard) = layer.downcast_mut() {
            visit(TargetLayer::Shard(shard));
        }
    });
}

/// Counters of a shard and its core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShardCounts {
    /// Counters of the shard's FTL.
    pub ftl: FtlStats,
    /// Free lines of the shard.
    pub free_lines: f64,
    /// Messages between the shard's core and other cores.
    pub core: ShardStats,
    /// Media events and the reactions to them.
    pub health: PblkHealth,
    /// State of the device's superblock, for the shard that maintains it.
    pub superblock: Option<SuperblockHealth>,
}

impl ShardCounts {
    fn from_handle(handle: &ShardHandle) -> ShardCounts {
        let ftl = handle.pblk().ftl();
        ShardCounts {
            ftl: *ftl.stats(),
            free_lines: ftl.free_lines(),
            core: *handle.stats(),
            health: handle.health(),
            superblock: handle.superblock_health(),
        }
    }

    /// Returns the difference to an earlier reading. `free_lines` is the current value; `health`
    /// and `superblock` count since the device was opened.
    #[must_use]
    pub fn since(&self, earlier: &ShardCounts) -> ShardCounts {
        ShardCounts {
            ftl: self.ftl.since(&earlier.ftl),
            core: self.core.since(&earlier.core),
            ..*self
        }
    }
}

/// Returns counters and free lines of the FTL in the host, summed over shards; `None` if there is
/// none.
pub fn ftl_snapshot(device: &mut (impl BlockDevice + ?Sized)) -> Option<(FtlStats, f64)> {
    let mut sum: Option<(FtlStats, f64)> = None;
    for_each_target(device, &mut |target| {
        let (stats, free_lines) = (target.ftl().stats(), target.ftl().free_lines());
        sum = Some(match sum {
            None => (*stats, free_lines),
            Some((before, lines)) => (before.plus(stats), lines + free_lines),
        });
    });
    sum
}

/// Returns the configuration and the capacities of the FTL in the host; `None` if there is none. Those
/// of shards, which have equal ones, are added up.
pub fn ftl_plan(device: &mut (impl BlockDevice + ?Sized)) -> Option<(FtlConfig, CapacityPlan)> {
    let mut sum: Option<(FtlConfig, CapacityPlan)> = None;
    for_each_target(device, &mut |target| {
        let (config, plan) = (target.ftl().config(), target.ftl().capacity_plan());
        let Some((_, sum)) = &mut sum else { return sum = Some((*config, *plan)) };
        sum.line_sectors += plan.line_sectors;
        sum.map_pages += plan.map_pages;
        sum.padding_reserve += plan.padding_reserve;
        sum.op_sectors += plan.op_sectors;
        sum.logical += plan.logical;
        sum.checkpoint_sectors += plan.checkpoint_sectors;
        sum.map_cache.write_reserve += plan.map_cache.write_reserve;
    });
    sum
}

/// Returns the counters of each shard; empty for a device without shards.
pub fn shard_counts(device: &mut (impl BlockDevice + ?Sized)) -> Vec<ShardCounts> {
    let mut counts = Vec::new();
    for_each_target(device, &mut |target| {
        if let TargetLayer::Shard(shard) = target {
            counts.push(ShardCounts::from_handle(shard));
        }
    });
    counts
}

/// Returns the counters of the rules of each target that has some, since it was opened.
pub fn rule_stats(device: &mut (impl BlockDevice + ?Sized)) -> Vec<TargetRuleStats> {
    let mut stats = Vec::new();
    for_each_target(device, &mut |target| {
        if let TargetLayer::Pblk(pblk) = target {
            stats.extend(pblk.rule_stats());
        }
    });
    stats
}

/// Calls `visit` with the target that has rules: with the one with index `only` in the order of the layers,
/// or else with the first one. Returns its result, or `None` if there is no such target, or if it has no
/// rules.
pub fn with_rule_target<T>(
    device: &mut (impl BlockDevice + ?Sized),
    only: Option<usize>,
    visit: impl FnOnce(&mut Pblk) -> T,
) -> Option<T> {
    let (mut index, mut visit, mut result) = (0, Some(visit), None);
    for_each_target(device, &mut |target| {
        let is_meant = only.is_none_or(|only| only == index);
        index += 1;
        if let (true, TargetLayer::Pblk(pblk)) = (is_meant, target)
            && pblk.rule_limits().is_some()
            && let Some(visit) = visit.take()
        {
            result = Some(visit(pblk));
        }
    });
    result
}

/// Returns whether the device has several shards. A request on a queue of one then needs polls of
/// the other queues.
pub fn has_shards(device: &mut (impl BlockDevice + ?Sized)) -> bool {
    let mut shards = 0;
    for_each_target(device, &mut |target| {
        shards += u32::from(matches!(target, TargetLayer::Shard(_)));
    });
    shards > 1
}

/// Returns the number of targets and shards that the device shows.
pub fn target_count(device: &mut (impl BlockDevice + ?Sized)) -> usize {
    let mut targets = 0;
    for_each_target(device, &mut |_| targets += 1);
    targets
}

/// Enables scrubbing on all targets. The rate is that of all shards together. Returns `false` if no
/// target supports it.
pub(super) fn set_scrub(device: &mut (impl BlockDevice + ?Sized), config: ScrubConfig) -> bool {
    let targets = target_count(device);
    let sectors_per_sec = config.sectors_per_sec.div_ceil(targets.max(1) as u32);
    let config = ScrubConfig { sectors_per_sec, ..config };
    for_each_target(device, &mut |target| match target {
        TargetLayer::Pblk(pblk) => pblk.set_scrub(config),
        TargetLayer::Rrpc(rrpc) => rrpc.set_scrub(config),
        TargetLayer::Shard(shard) => shard.set_scrub(config),
    });
    targets > 0
}

/// Checks a change of the FTLs in the host, see [`apply_change`].
///
/// # Errors
/// [`ControlError`].
pub fn check_change(
    device: &mut (impl BlockDevice + ?Sized),
    only: Option<usize>,
    change: &ControlChange,
) -> Result<(), ControlError> {
    try_each(device, only, &mut |target| target.ftl().check_change(change))
}

/// Changes a setting of the FTLs in the host: of the target with index `only` in the order of the
/// layers, or of all of them, which are the shards of one.
///
/// # Errors
/// [`ControlError`]; nothing changes.
pub fn apply_change(
    device: &mut (impl BlockDevice + ?Sized),
    only: Option<usize>,
    change: &ControlChange,
) -> Result<(), ControlError> {
    // All shards are checked before the first one changes.
    check_change(device, only, change)?;
    try_each(device, only, &mut |target| target.apply(change))
}

/// Changes a group's weight or rate in the block layer of a device, in all its staging queues.
///
/// # Errors
/// Those of [`Scheduler::change_group`](block::sched::Scheduler::change_group), also if the device
/// has no block layer.
pub fn change_group(
    device: &mut (impl BlockDevice + ?Sized),
    now: Nanos,
    group: Group,
    change: GroupChange,
) -> Result<(), SchedError> {
    let mut result = Err(change.unsupported(group));
    device.visit_layers(&mut |layer: &mut dyn Any| {
        if let Some(staging) = layer.downcast_mut::<Staging>() {
            result = staging.change_group(now, group, change);
        }
    });
    result
}

/// Returns the settings in force of the FTLs that [`apply_change`] with `only` changes, in the order
/// of the layers.
pub fn control_settings(
    device: &mut (impl BlockDevice + ?Sized),
    only: Option<usize>,
) -> Vec<ControlSettings> {
    let mut settings = Vec::new();
    // A visit fails only if there is no target.
    let _ = try_each(device, only, &mut |target| {
        settings.push(target.ftl().control_settings());
        Ok(())
    });
    settings
}

/// Calls `visit` with the target that is meant, or with all of them until one fails.
fn try_each(
    device: &mut (impl BlockDevice + ?Sized),
    only: Option<usize>,
    visit: &mut dyn FnMut(&mut TargetLayer<'_>) -> Result<(), ControlError>,
) -> Result<(), ControlError> {
    let (mut index, mut failed, mut result) = (0, false, Err(ControlError::NoFtl));
    for_each_target(device, &mut |mut target| {
        let is_meant = only.is_none_or(|only| only == index);
        index += 1;
        if is_meant && !failed {
            result = visit(&mut target);
            failed = result.is_err();
        }
    });
    result
}

/// Subscribes the first target to media events of the drive. Returns the admin queue to the caller
/// if there is no target, or if the drive sends no events.
pub(super) fn subscribe_events(
    device: &mut (impl BlockDevice + ?Sized),
    controller: ControllerHandle,
) -> Option<ControllerHandle> {
    let mut unused = Some(Box::new(controller));
    let mut first = true;
    for_each_target(device, &mut |target| {
        if !std::mem::take(&mut first) {
            return;
        }
        let Some(controller) = unused.take() else { return };
        let subscribed = match target {
            TargetLayer::Pblk(pblk) => pblk.subscribe_events(controller),
            TargetLayer::Rrpc(rrpc) => rrpc.subscribe_events(controller),
            TargetLayer::Shard(shard) => shard.subscribe_events(controller),
        };
        unused = subscribed.err().map(|(controller, _)| controller);
    });
    unused.map(|controller| *controller)
}

/// Requests a checkpoint of every FTL in the host that can write one.
pub fn begin_checkpoint(device: &mut (impl BlockDevice + ?Sized)) {
    for_each_target(device, &mut |target| match target {
        TargetLayer::Pblk(pblk) => pblk.checkpoint(),
        TargetLayer::Shard(shard) => shard.checkpoint(),
        // Its map is on the drive.
        TargetLayer::Rrpc(_) => {}
    });
}

/// Returns whether a checkpoint of an FTL in the host is in progress.
pub fn is_checkpointing(device: &mut (impl BlockDevice + ?Sized)) -> bool {
    let mut any = false;
    for_each_target(device, &mut |target| {
        any |= match target {
            TargetLayer::Rrpc(_) => false,
            target => target.ftl().is_checkpointing(),
        };
    });
    any
}

/// Makes every FTL in the host write a checkpoint without advancing time, so that the next recovery
/// has nothing to scan. `drives` are those beneath the device.
///
/// The snapshot on power-down is described in [LightNVM17 §4.2.2]. All writes must have been
/// flushed. An FTL that cannot write a checkpoint is left unchanged; recovery then finds the
/// flushed data by a scan.
pub fn checkpoint(
    device: &mut (impl BlockDevice + ?Sized),
    now: Nanos,
    drives: &mut [&mut EmulatedDevice],
) {
    begin_checkpoint(device);
    drives.iter_mut().for_each(|drive| drive.set_zero_latency(true));
    while is_checkpointing(device) {
        let mut moved = device.poll(now);
        for drive in &mut *drives {
            moved |= drive.poll(now);
        }
        if !moved {
            break;
        }
    }
    drives.iter_mut().for_each(|drive| drive.set_zero_latency(false));
}
