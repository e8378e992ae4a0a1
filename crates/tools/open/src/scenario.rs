//! Opens a drive of a scenario. The drive is built and preconditioned without advancing time, then
//! runs on a thread of its own in real time.
//!
//! | drive | device | queues |
//! |---|---|---|
//! | block or null personality | `DeviceKind::Drive` | queue pairs, as many as the drive grants |
//! | open-channel with `[target]` | `DeviceKind::Target` | one, or one per shard of a `pblk` |
//! | open-channel without `[target]` | `DeviceKind::Drive` | queue pairs for vector commands |
//! | any of the first two with a block layer | `DeviceKind::Target` | one per core of the block layer |
//! | controller of this machine (`kind = "pci"`) without a block layer | `DeviceKind::Controller` | queue pairs |
//! | SATA drive, file, kernel's device, controller | `DeviceKind::Target` | one per core of the block layer, else one |
//! | a path with a log | `DeviceKind::Target` | one per core of the block layer, else one |
//! | a set | `DeviceKind::Target` | one per core of the block layer, else one |
//!
//! In a scenario with named paths, the device is a path, and only its drives are powered on.

use std::time::Duration;

use driver::pci::PciDriver;
use event::RealClock;
use scenario::choice::Impossible;
use scenario::{Beneath, DriveKind, HostTarget, PathSpec, Scenario};
use stack::{
    AssembledDrive, DevicePort, HostHandles, JobTarget, Notification, PreparedPaths, StackError,
    prepare_drive, prepare_paths, target_layers,
};
use time::Nanos;
use user_io::{IoDevice, NoRegionReason, TargetConfig};

use super::controller;
use super::drive_thread::{DriveThreadGuard, PoweredDevice};
use super::locked_queue::{RuleTarget, lock_rule_targets};
use super::target_queue::TargetQueues;
use super::{DriveControl, OpenOptions, TargetOpenError};

/// Opens a drive of a scenario, or one of its paths, if it names paths; `name` selects one of
/// several. The scenario's jobs are not run, and its settings of virtual time have no effect.
///
/// The drives are shut down and their images closed when the device and all objects created from it
/// have been dropped.
///
/// # Errors
/// [`TargetOpenError`].
pub fn open_scenario(
    scenario: &Scenario,
    name: Option<&str>,
    options: &OpenOptions,
) -> Result<(IoDevice, DriveControl), TargetOpenError> {
    options.refuse_read_only("a drive of a scenario")?;
    options.refuse_timeout("a drive of a scenario")?;
    options.refuse_doorbells("a drive of a scenario")?;
    if options.queues == Some(0) {
        let (option, value) = ("queues", "0".to_owned());
        let (what, allowed) = ("a drive of a scenario".into(), "1 or more".into());
        return Err(TargetOpenError::Option { option, value, what, allowed });
    }
    let with_log;
    let scenario = match options.log {
        Some(size) => {
            with_log = scenario.with_region_log(name, size).map_err(|error| match error {
                Impossible::LogSize { device, bytes, allowed } => {
                    let value = bytes.to_string();
                    TargetOpenError::Option { option: "log", value, what: device, allowed }
                }
                error => StackError::from(error).into(),
            })?;
            &with_log
        }
        None => scenario,
    };
    let path = match scenario.composition.is_empty() {
        true => None,
        false => Some(scenario.select_path(name)?),
    };
    // A drive without blocks takes vector commands.
    if let Some(path @ PathSpec { over: Beneath::Target(_), .. }) = &path {
        scenario.check_block_path(path)?;
    }
    let reduced = path.as_ref().map(|path| scenario.reduced_to(path));
    let alone = reduced.as_ref().filter(|alone| alone.composition.is_empty());
    let (plan, layer) = match alone {
        Some(alone) => (alone.drives.first(), &alone.path.block_layer),
        None if path.is_none() => {
            (scenario.drives.get(select_drive(scenario, name)?), &scenario.path.block_layer)
        }
        None => (None, &None),
    };
    if let (Some(plan), None) = (plan, layer)
        && let DriveKind::Pci(pci) = &plan.kind
    {
        // An application has queues of its own at a controller, which are supervised.
        let opened = controller::open(pci.address, pci.namespace, PciDriver::VfioPci, options);
        let device = opened.map_err(|error| match error {
            TargetOpenError::Controller(source) => {
                let name = plan.config.name.clone();
                TargetOpenError::Stack(Box::new(StackError::Pci { name, source }))
            }
            other => other,
        })?;
        return Ok((device, DriveControl::default()));
    }
    let over = match &path {
        Some(path) => path.over,
        None => Beneath::Drive(select_drive(scenario, name)?),
    };
    let rule_targets = rule_targets(scenario, over);
    let assembled = match &reduced {
        // A path to one drive is that drive with this path.
        Some(alone) if alone.composition.is_empty() => assemble_drive(alone, 0, options)?,
        Some(set) => assemble_path(set, options)?,
        None => assemble_drive(scenario, select_drive(scenario, name)?, options)?,
    };
    let Assembled { name, drives, host, now: prepared } = assembled;
    let completion = path.as_ref().map_or(scenario.path.completion, |path| path.config.completion);
    let name = path.map_or(name, |path| path.name);
    let no_thread = |source| TargetOpenError::Thread { drive: name.clone(), source };
    let mut regions =
        drives.iter().flat_map(|d| &d.ports).filter_map(DevicePort::persistent_region);
    let region = match (regions.next(), regions.next()) {
        (Some(region), None) => Ok(region),
        (None, _) => Err(NoRegionReason::NoRegion),
        (Some(_), Some(_)) => Err(NoRegionReason::Several),
    };
    // Real time continues from the drives' time after preconditioning.
    let clock = RealClock::starting_at(prepared);
    let start = |host| DriveThreadGuard::start(drives, clock, options, host);
    let (device, view) = match host {
        HostHandles::Controller(controller) => {
            let granted = controller.info().io_queues;
            check_queues(options.queues, granted, &name)?;
            let (keeper, view) = start(None).map_err(no_thread)?;
            (IoDevice::drive(*controller, keeper).with_completion(completion), view)
        }
        HostHandles::Queues(mut device) => {
            device.start_handler(clock).map_err(no_thread)?;
            let config = TargetConfig {
                features: device.features(),
                polls_idle_queues: target_layers::has_shards(&mut *device),
            };
            let mut queues = device.into_queues();
            let locked = lock_rule_targets(&mut queues, &rule_targets);
            let (ends, queues) = TargetQueues::from_devices(queues);
            let (keeper, mut view) = start(Some(ends)).map_err(no_thread)?;
            let device = IoDevice::target(name.clone(), queues, config, keeper)?;
            for target in locked {
                let (drive, rules) = target.into_control(device.clock());
                view.set_target_rules(&drive, &rules);
            }
            (device.with_completion(completion).with_region(region), view)
        }
    };
    check_depth(options.depth, &device)?;
    while device.clock().now() < prepared {
        std::thread::sleep(Duration::from_nanos(prepared.since(device.clock().now()).0));
    }
    Ok((device, view))
}

/// Returns the targets with rules that a device consists of.
fn rule_targets(scenario: &Scenario, over: Beneath) -> Vec<RuleTarget> {
    let members = scenario.members(over);
    let on_host = members.iter().filter(|member| scenario.is_on_host(**member)).enumerate();
    let with_rules = on_host.filter_map(|(index, member)| match *member {
        Beneath::Drive(drive) if matches!(scenario.drives[drive].target, HostTarget::Rules(_)) => {
            let only = (members.len() > 1).then_some(index);
            Some(RuleTarget { drive: scenario.device_name(*member).to_owned(), only })
        }
        _ => None,
    });
    with_rules.collect()
}

/// The drives of a device and the host's side, before the threads start.
struct Assembled {
    name: String,
    drives: Vec<PoweredDevice>,
    host: HostHandles,
    /// The drives' current time.
    now: Nanos,
}

impl Assembled {
    fn one(hands: AssembledDrive, now: Nanos) -> Assembled {
        let AssembledDrive { drive, port, host } = hands;
        let name = drive.config().name.clone();
        let device = PoweredDevice { device: drive.into(), ports: vec![port] };
        Assembled { name, drives: vec![device], host, now }
    }
}

/// Builds the drives of the scenario's only path and its device.
fn assemble_path(scenario: &Scenario, options: &OpenOptions) -> Result<Assembled, TargetOpenError> {
    let PreparedPaths { devices, device_of, mut paths, now } =
        prepare_paths(scenario, &mut |_| {})?;
    let no_path = || StackError::NoPath { file: scenario.file.clone() };
    let path = paths.pop().ok_or_else(no_path)?;
    let JobTarget::Blocks(device) = path.device else {
        return Err(no_path().into());
    };
    let cores = device.cores();
    if let Some(asked) = options.queues.filter(|asked| usize::from(*asked) > cores) {
        let (option, value, what) = ("queues", asked.to_string(), format!("path {}", path.name));
        let allowed = format!("1 to {cores}: a block layer has a queue for each core (cores)");
        return Err(TargetOpenError::Option { option, value, what, allowed });
    }
    let powered = |device| PoweredDevice { device, ports: Vec::new() };
    let mut drives: Vec<_> = devices.into_iter().map(powered).collect();
    for (drive, port) in path.drives.iter().zip(path.ports) {
        drives[device_of[*drive]].ports.push(port);
    }
    let host = HostHandles::Queues(Box::new(device));
    Ok(Assembled { name: path.name, drives, host, now })
}

fn select_drive(scenario: &Scenario, name: Option<&str>) -> Result<usize, TargetOpenError> {
    let names = || scenario.drives.iter().map(|d| d.config.name.clone()).collect();
    let found = match name {
        Some(name) => scenario.drives.iter().position(|d| d.config.name == name),
        None => (scenario.drives.len() == 1).then_some(0),
    };
    found.ok_or_else(|| TargetOpenError::WhichDrive {
        file: scenario.file.clone(),
        asked: name.map(str::to_owned),
        drives: names(),
    })
}

/// Builds drive `index` and the host's side and preconditions them.
fn assemble_drive(
    scenario: &Scenario,
    index: usize,
    options: &OpenOptions,
) -> Result<Assembled, TargetOpenError> {
    let plan = &scenario.drives[index];
    let what = || format!("drive {}", plan.config.name);
    let refused = |option, value: String, allowed: &str| {
        Err(TargetOpenError::Option { option, value, what: what(), allowed: allowed.into() })
    };
    if !plan.is_block_device() {
        if !scenario.precondition.is_none() {
            let allowed = "its flash has no FTL: give it a [target], or remove [precondition]";
            return refused("precondition", "set".into(), allowed);
        }
        return Ok(Assembled::one(AssembledDrive::without_host(plan)?, Nanos::ZERO));
    }
    if plan.kind != DriveKind::Nvme || scenario.path.log.is_some() {
        let (name, config) = (plan.config.name.clone(), scenario.path.clone());
        let alone = PathSpec { name, over: Beneath::Drive(index), config, line: 1 };
        return assemble_path(&scenario.reduced_to(&alone), options);
    }
    if let Some(layer) = &scenario.path.block_layer {
        let cores = layer.cores();
        if let Some(queues) = options.queues.filter(|queues| *queues > cores) {
            let allowed =
                format!("1 to {cores}: each core of the block layer has one (path.cores)");
            return refused("queues", queues.to_string(), &allowed);
        }
        let (stack, now) = prepare_drive(scenario, index, plan, &mut |_| {})?;
        let notification = Notification::Real(scenario.path.completion);
        let stack = stack.with_block_layer(layer, now, notification)?;
        return Ok(Assembled::one(stack.into_assembled(now)?, now));
    }
    // The number of shards is the number of queues, unless the scenario sets it.
    let shards = match (&plan.target, options.queues) {
        (HostTarget::None, _) | (_, None) => plan.shards,
        (_, Some(queues)) if u32::from(queues) <= plan.shards.unwrap_or(1) => plan.shards,
        (HostTarget::Pblk(_), Some(queues)) if plan.shards.is_none() => Some(queues.into()),
        (HostTarget::Pblk(_), Some(queues)) => {
            let shards = plan.shards.unwrap_or(1);
            let allowed = format!("1 to {shards}: the scenario says shards = {shards}");
            return refused("queues", queues.to_string(), &allowed);
        }
        (HostTarget::Rrpc(_) | HostTarget::Rules(_) | HostTarget::Named(_), Some(queues)) => {
            let allowed = "1: only a pblk on a whole drive has a queue for each of several cores";
            return refused("queues", queues.to_string(), allowed);
        }
    };
    let mut plan = plan.clone();
    plan.shards = shards;
    let (stack, now) = prepare_drive(scenario, index, &plan, &mut |_| {})?;
    Ok(Assembled::one(stack.into_assembled(now)?, now))
}

fn check_queues(asked: Option<u16>, granted: u16, name: &str) -> Result<(), TargetOpenError> {
    match asked {
        Some(asked) if asked > granted => Err(TargetOpenError::Option {
            option: "queues",
            value: asked.to_string(),
            what: format!("drive {name}"),
            allowed: format!(
                "1 to {granted}, which the drive grants: raise controller.max_io_queues"
            ),
        }),
        _ => Ok(()),
    }
}

pub(super) fn check_depth(asked: Option<u16>, device: &IoDevice) -> Result<(), TargetOpenError> {
    let granted = device.limits().queue_depth;
    match asked {
        Some(0) => Err(TargetOpenError::no_depth()),
        Some(asked) if u32::from(asked) > granted => Err(TargetOpenError::Option {
            option: "depth",
            value: asked.to_string(),
            what: format!("drive {}", device.name()),
            allowed: format!("1 to {granted}: for more, the scenario's controller.queue_depth"),
        }),
        _ => Ok(()),
    }
}
