//! Opens the device of a host: queue pairs, or a target on them.

use std::sync::Arc;

use block::Raw;
use controller::Controller;
use driver::{ConnectOptions, ControllerHandle, ControllerInfo, DriverError};
use ftl::FtlConfig;
use kv::{Kv, KvConfig};
use lnvm::TargetKind;
use nvme::{Address, ChunkId, DeviceL2pLog, VendorExtensions};
use ocssd::ppa::PuSet;
use ocssd::{OpenChannelSsd, ReportedChunk};
use pblk::{
    DeviceL2pEntries, DriveQueue, Pblk, Rrpc, RrpcError, Sharded, ShardedConfig, ShardedError,
};
use scenario::choice::{BLOCK_REQUESTS, Impossible};
use scenario::{DriveSpec, HostTarget, NamedTarget};
use time::{Component, Nanos};
use transport::Port;
use workload::ParallelUnits;

use super::HostOptions;
use crate::error::{pblk_open_error, shards_open_error};
use crate::named_target::{self, NamedError, TargetShare};
use crate::{ADMIN_POLL_LIMIT, CoreQueues, DEPTH, StackError, TARGET_FEATURES};

pub(super) fn init_device(
    plan: &DriveSpec,
    drive: &mut Controller,
    port: &Arc<Port>,
    options: &HostOptions,
    name: String,
) -> Result<(CoreQueues, Option<ControllerHandle>), StackError> {
    let vector = options.vector;
    let keeps_data = drive.stores_data();
    let mut progress = || {
        drive.poll(Nanos::ZERO);
    };
    let failed = |source| StackError::Driver { name: name.clone(), source };
    let options_of = connect_options(plan);
    let mut controller =
        ControllerHandle::connect_with(port.clone(), options_of, &mut progress, ADMIN_POLL_LIMIT)
            .map_err(failed)?;
    let share = match &plan.target {
        HostTarget::Named(named) => {
            Some(find_target_share(plan, named, &mut controller, &mut progress)?)
        }
        _ => None,
    };
    let depth = DEPTH.min(plan.config.controller.queue_depth);
    if let (HostTarget::Pblk(ftl), Some(shards @ 2..)) = (&plan.target, plan.shards) {
        let refused = |source| shards_open_error(&name, source);
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
        let opened = Sharded::open(&info, &chunks, queues, port, config, &mut progress, keeps_data);
        let device = CoreQueues::new(opened.map_err(refused)?.into_shards(), TARGET_FEATURES)
            .ok_or_else(|| refused(ShardedError::Shards { shards, max: granted }))?;
        return Ok((device, Some(controller)));
    }
    let queue = controller.create_queue_pair(depth, vector, &mut progress).map_err(failed)?;
    let device = match &plan.target {
        HostTarget::None => {
            let mut raw = Vec::new();
            let mut pair = Some(queue);
            while let Some(queue) = pair.take() {
                let made = Raw::from_pair(controller.info(), queue, port.clone());
                raw.push(made.map_err(|source| StackError::Raw { name: name.clone(), source })?);
                if raw.len() < usize::from(options.raw_queues.get()) {
                    let vector = controller.next_qid().filter(|_| vector.is_some());
                    let made = controller.create_queue_pair(depth, vector, &mut progress);
                    pair = Some(made.map_err(failed)?);
                }
            }
            let features = controller.info().features;
            CoreQueues::new(raw, features)
                .ok_or(StackError::BlockLayer { name, source: block::BlockError::NoQueues })
        }
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
        HostTarget::Rules(target) => {
            let all = controller.info().open_channel.map_or(0, |oc| oc.geometry.total_chunks());
            let chunks = controller.chunks(0, all, &mut progress).map_err(failed)?;
            let (info, port) = (controller.info(), port.clone());
            let opened =
                Pblk::open(info, &chunks, queue, port, target.ftl, &mut progress, keeps_data);
            let mut pblk = opened.map_err(|source| pblk_open_error(&name, source))?;
            pblk.install_rules(Nanos::ZERO, &target.rules)
                .map_err(|source| StackError::Rules { name: name.clone(), source })?;
            Ok(CoreQueues::single(pblk, TARGET_FEATURES))
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
            let (map, totals) = read_device_l2p(&mut controller, &mut progress).map_err(failed)?;
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

/// Returns the options of the connection of a drive's host: its namespace.
pub(super) fn connect_options(plan: &DriveSpec) -> ConnectOptions {
    ConnectOptions { nsid: plan.namespace, ..ConnectOptions::default() }
}

/// Finds the chunks of a named block device, and the FTL configuration for them.
fn find_target_share(
    plan: &DriveSpec,
    named: &NamedTarget,
    controller: &mut ControllerHandle,
    progress: &mut dyn FnMut(),
) -> Result<(TargetShare, FtlConfig), StackError> {
    let why = "a block device is needed: pblk or rrpc; `sluice kv bench --name` and jobs on keys run on kv";
    let layout = |entry: &lnvm::TargetEntry| {
        named.ftl_config(&plan.config.name, entry).map(|_| ()).map_err(NamedError::from)
    };
    let share =
        find_share(plan, named, (TargetKind::is_block, why), &layout, controller, progress)?;
    let config = share.ftl_config(&plan.config.name, named).map_err(StackError::Named)?;
    Ok((share, config))
}

/// Finds the chunks of a named target whose kind satisfies `kinds`, which says otherwise what is
/// needed, and whose layout satisfies `layout`.
fn find_share(
    plan: &DriveSpec,
    named: &NamedTarget,
    kinds: (impl Fn(TargetKind) -> bool, &'static str),
    layout: &dyn Fn(&lnvm::TargetEntry) -> Result<(), NamedError>,
    controller: &mut ControllerHandle,
    progress: &mut dyn FnMut(),
) -> Result<TargetShare, StackError> {
    let drive = &plan.config.name;
    let check = |entry: &lnvm::TargetEntry| {
        // Report an unsupported kind before an impossible layout.
        named.check_entry(drive, entry)?;
        if !kinds.0(entry.spec.kind) {
            return Err(NamedError::Kind {
                drive: drive.clone(),
                target: named.name.clone(),
                kind: entry.spec.kind,
                why: kinds.1,
            });
        }
        layout(entry)
    };
    let declared = named.declaration();
    named_target::find(plan, &named.name, declared, controller, progress, &check)
        .map_err(StackError::Named)
}

/// Opens the key-value target `named` on its chunks. `keeps_data` says whether the drive stores data.
pub(crate) fn open_kv(
    plan: &DriveSpec,
    named: &NamedTarget,
    mut controller: ControllerHandle,
    port: &Arc<Port>,
    vector: Option<u16>,
    keeps_data: bool,
    progress: &mut dyn FnMut(),
) -> Result<Kv, StackError> {
    let name = &plan.config.name;
    let failed = |source| StackError::Driver { name: name.clone(), source };
    let kinds = (|kind| kind == TargetKind::Kv, "jobs on keys need one of kind kv");
    let share = find_share(plan, named, kinds, &|_| Ok(()), &mut controller, progress)?;
    let depth = DEPTH.min(plan.config.controller.queue_depth);
    let queue = controller.create_queue_pair(depth, vector, progress).map_err(failed)?;
    let owned = |chunk| share.has_chunk(chunk);
    let (info, chunks, config) = (controller.info(), &share.chunks, KvConfig::default());
    Kv::open(info, chunks, &owned, queue, port.clone(), config, progress, keeps_data).map_err(
        |source| {
            let (drive, target) = (name.clone(), named.name.clone());
            StackError::Kv { drive, target, source }
        },
    )
}

/// Opens the parallel units of a target of kind `ppa`, or all of a drive without a target.
pub(crate) fn open_units(
    plan: &DriveSpec,
    mut controller: ControllerHandle,
    vector: Option<u16>,
    progress: &mut dyn FnMut(),
) -> Result<ParallelUnits, StackError> {
    let name = &plan.config.name;
    let share = match &plan.target {
        HostTarget::Named(named) => {
            let kinds =
                (|kind| kind == TargetKind::Ppa, "jobs on parallel units need one of kind ppa");
            Some(find_share(plan, named, kinds, &|_| Ok(()), &mut controller, progress)?)
        }
        _ => None,
    };
    let failed = |source| StackError::Units { name: name.clone(), source };
    let mut ssd = OpenChannelSsd::from_controller(controller, ADMIN_POLL_LIMIT).map_err(failed)?;
    let space = ssd.space();
    let pus = share.as_ref().map_or_else(|| PuSet::all(&space), |s| s.entry.spec.pus.clone());
    let chunks = ssd.chunks_on_pus(&pus, progress).map_err(failed)?;
    let owned = |chunk: ReportedChunk| {
        let index = space.chunk_index(chunk.address).ok().and_then(|i| u32::try_from(i).ok());
        let is_owned = share.as_ref().is_none_or(|s| index.is_some_and(|i| s.has_chunk(i)));
        is_owned.then_some(chunk)
    };
    let chunks = chunks.into_iter().map(owned).collect();
    // A ring holds one command fewer than it has entries.
    let depth = DEPTH.min(plan.config.controller.queue_depth).saturating_sub(1);
    let queue = ssd.create_queue(depth, vector, progress).map_err(failed)?;
    Ok(ParallelUnits::new(queue, space, pus, chunks))
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
