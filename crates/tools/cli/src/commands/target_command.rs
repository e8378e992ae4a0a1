//! `sluice target`: creates, lists, limits and removes the targets of an open-channel drive
//! ([LightNVM17 §4.1]).
//!
//! The drive belongs to a scenario and is stored in an image. The command powers it on, executes
//! with zero latency, and shuts it down cleanly. The image is locked meanwhile, so other processes
//! cannot use it. A refused command does not modify the image.

use controller::Controller;
use driver::ControllerHandle;
use lnvm::{
    ChunkRate, MediaManager, MediaManagerError, NewTarget, QuotaLimits, Sharing, TargetOptions,
    Warranty,
};
use media::{DataStore, MediaConfig};
use nvme::HealthLog;
use ocssd::vector::VectorQueue;
use scenario::{DriveSpec, Scenario};
use stack::image;
use stack::named_target::subsystem_config;
use time::{Component, Nanos};

use crate::args::{
    LimitOrNone, TargetArgs, TargetCreateArgs, TargetDrive, TargetInfoArgs, TargetLimitArgs,
    TargetListArgs, TargetRemoveArgs,
};
use crate::{CliError, print, target_table};

/// Maximum number of polls of the drive for a command.
const ADMIN_POLL_LIMIT: u64 = 10_000_000;
/// Number of entries of the queue pair.
const DEPTH: u16 = 256;

impl From<MediaManagerError> for CliError {
    fn from(error: MediaManagerError) -> CliError {
        if error.is_usage_error() {
            CliError::Usage(error.to_string())
        } else {
            CliError::Other(error.to_string())
        }
    }
}

/// Runs `sluice target …`.
///
/// # Errors
/// [`CliError`] for an invalid request or a failure.
pub fn run(args: &TargetArgs) -> Result<(), CliError> {
    match args {
        TargetArgs::Create(args) => create(args),
        TargetArgs::List(args) => list(args),
        TargetArgs::Info(args) => info(args),
        TargetArgs::Limit(args) => limit(args),
        TargetArgs::Remove(args) => remove(args),
    }
}

fn create(args: &TargetCreateArgs) -> Result<(), CliError> {
    let (scenario, plan) = select_drive(&args.on)?;
    let new = spec(args)?;
    if image(&plan).is_some_and(|image| !image.exists()) {
        // Check the target on a copy of the plan first, so that an invalid one does not create a
        // drive.
        let mut imagined = plan.clone();
        if let MediaConfig::Nand(nand) = &mut imagined.config.media {
            nand.data = DataStore::Memory;
        }
        with_drive(&imagined, scenario.seed, "make a target on", |s, _, _| Ok(s.check(&new)?))?;
    }
    let doing = format!("make target {} on", new.name);
    let text = with_drive(&plan, scenario.seed, &doing, |s, _, progress| {
        let id = s.create(new.clone(), progress)?;
        match s.table().target(id) {
            Some(target) if args.on.json => Ok(target_table::target_json(s, target)),
            Some(target) => Ok(target_table::target_text(s, target)),
            None => Err(CliError::Other(format!("target {} is gone", new.name))),
        }
    })?;
    print(&text)
}

fn list(args: &TargetListArgs) -> Result<(), CliError> {
    let (scenario, plan) = select_drive(&args.on)?;
    check_image_exists(&plan)?;
    let text = with_drive(&plan, scenario.seed, "list the targets of", |s, _, _| {
        Ok(if args.on.json { target_table::list_json(s) } else { target_table::list_text(s) })
    })?;
    print(&text)
}

fn info(args: &TargetInfoArgs) -> Result<(), CliError> {
    let number = |what: &str, value: f64, least: f64| {
        if value.is_finite() && value >= least {
            return Ok(());
        }
        Err(CliError::Usage(format!("--{what} is {value}, but it must be {least} or more")))
    };
    number("warranty-years", args.warranty_years, 0.0)?;
    number("age-years", args.age_years, 0.0)?;
    number("write-amplification", args.write_amplification, 1.0)?;
    let warranty = Warranty {
        years: args.warranty_years,
        age_years: args.age_years,
        write_amplification: args.write_amplification,
    };
    let (scenario, plan) = select_drive(&args.on)?;
    check_image_exists(&plan)?;
    let text = with_drive(&plan, scenario.seed, "look at", |s, log, _| {
        Ok(match (&args.name, args.on.json) {
            (Some(name), true) => target_table::target_json(s, s.target(name)?),
            (Some(name), false) => target_table::target_text(s, s.target(name)?),
            (None, true) => target_table::drive_json(s, log, &warranty),
            (None, false) => target_table::drive_text(s, log, &warranty),
        })
    })?;
    print(&text)
}

fn remove(args: &TargetRemoveArgs) -> Result<(), CliError> {
    let (scenario, plan) = select_drive(&args.on)?;
    check_image_exists(&plan)?;
    let name = &args.name;
    let doing = format!("remove target {name} of");
    let text = with_drive(&plan, scenario.seed, &doing, |s, _, progress| {
        let chunks = s.holdings(s.target(name)?.id).owned;
        s.remove(name, args.factory, progress)?;
        Ok(target_table::removed(s, name, chunks, args.factory, args.on.json))
    })?;
    print(&text)
}

fn limit(args: &TargetLimitArgs) -> Result<(), CliError> {
    let rate = match args.chunks_per_second {
        Some(LimitOrNone::Max(rate)) => Some(Some(chunk_rate(rate, args.burst)?)),
        Some(LimitOrNone::None) if args.burst.is_some() => {
            let message = "--burst is of a rate, and --chunks-per-second is none";
            return Err(CliError::Usage(message.into()));
        }
        Some(LimitOrNone::None) => Some(None),
        None => None,
    };
    let (scenario, plan) = select_drive(&args.on)?;
    check_image_exists(&plan)?;
    let name = &args.name;
    let doing = format!("change the limits of target {name} of");
    let text = with_drive(&plan, scenario.seed, &doing, |s, _, progress| {
        let mut limits = s.target(name)?.spec.limits;
        match args.max_chunks {
            Some(LimitOrNone::Max(max)) => limits.max_chunks = Some(max),
            Some(LimitOrNone::None) => limits.max_chunks = None,
            None => {}
        }
        limits.rate = rate.unwrap_or(limits.rate);
        s.set_limits(name, limits, progress)?;
        let target = s.target(name)?;
        Ok(if args.on.json {
            target_table::target_json(s, target)
        } else {
            target_table::target_text(s, target)
        })
    })?;
    print(&text)
}

/// Returns a rate in chunks per second with a burst, 1 chunk unless given.
fn chunk_rate(rate: f64, burst: Option<u32>) -> Result<ChunkRate, CliError> {
    let milli = (rate * 1000.0).round();
    let fits = rate.is_finite() && (1.0..=f64::from(u32::MAX)).contains(&milli);
    let rate = ChunkRate::new(if fits { milli as u32 } else { 0 }, burst.unwrap_or(1));
    rate.ok_or_else(|| {
        let message = "--chunks-per-second must be 0.001 to 4,294,967, and --burst 1 or more";
        CliError::Usage(message.into())
    })
}

/// Returns the requested target.
fn spec(args: &TargetCreateArgs) -> Result<NewTarget, CliError> {
    let rate = args.chunks_per_second.map(|rate| chunk_rate(rate, args.burst)).transpose()?;
    Ok(NewTarget {
        name: args.name.clone(),
        kind: args.kind,
        pus: args.pus.clone(),
        sharing: if args.shared { Sharing::Shared } else { Sharing::Exclusive },
        options: TargetOptions {
            over_provisioning: args.over_provisioning,
            active_pus: args.active_pus,
            hot_cold: args.separate_gc_stream.or_else(|| {
                let former = args.hot_cold?;
                crate::warn_former_option("--hot-cold", "--separate-gc-stream");
                Some(former)
            }),
        },
        limits: QuotaLimits { max_chunks: args.max_chunks, rate },
    })
}

/// Returns the selected drive, if it can have targets that outlive the command.
fn select_drive(on: &TargetDrive) -> Result<(Scenario, DriveSpec), CliError> {
    let scenario = crate::load_scenario(&on.scenario)?;
    let names: Vec<&str> = scenario.drives.iter().map(|d| d.config.name.as_str()).collect();
    let file = on.scenario.display();
    let plan = match (&on.drive, &scenario.drives[..]) {
        (Some(name), _) => scenario.drive(name).ok_or_else(|| {
            CliError::Usage(format!("{file} has no drive {name}; it has {}", names.join(", ")))
        })?,
        (None, [only]) => only,
        (None, _) => {
            let names = names.join(", ");
            return Err(CliError::Usage(format!("{file} has drives {names}: say --drive NAME")));
        }
    };
    let name = &plan.config.name;
    if plan.config.personality != controller::PersonalityKind::OpenChannel {
        return Err(MediaManagerError::NotOpenChannel { drive: name.clone() }.into());
    }
    if image(plan).is_none() {
        return Err(CliError::Usage(format!(
            "drive {name} of {file} keeps nothing when this command ends: give it data = \"file\" \
             and a path, so that its targets survive"
        )));
    }
    let plan = plan.clone();
    Ok((scenario, plan))
}

fn check_image_exists(plan: &DriveSpec) -> Result<(), CliError> {
    match image(plan).filter(|image| !image.exists()) {
        None => Ok(()),
        Some(image) => Err(CliError::Usage(format!(
            "drive {} does not exist yet: there is no image {}; `sluice target create` makes it",
            plan.config.name,
            image.display()
        ))),
    }
}

/// Powers a drive on, calls `work` with its media manager, and closes both. `doing` describes the
/// action for messages: "list the targets of".
fn with_drive<T>(
    plan: &DriveSpec,
    seed: u64,
    doing: &str,
    work: impl FnOnce(&mut MediaManager, &HealthLog, &mut dyn FnMut()) -> Result<T, CliError>,
) -> Result<T, CliError> {
    let name = plan.config.name.clone();
    let failed = |why: &dyn std::fmt::Display| {
        CliError::Other(format!("cannot {doing} drive {name}: {why}"))
    };
    let mut drive = Controller::new(plan.config.clone()).map_err(|e| failed(&e))?;
    let port = drive.attach().map_err(|e| failed(&e))?;
    drive.set_zero_latency(true);
    let config = subsystem_config(plan, seed);
    let mut progress = || {
        drive.poll(Nanos::ZERO);
    };
    let done = {
        let mut controller =
            ControllerHandle::connect(port.clone(), &mut progress, ADMIN_POLL_LIMIT)
                .map_err(|e| failed(&e))?;
        let total = controller.info().open_channel.map_or(0, |oc| oc.geometry.total_chunks());
        let report = controller.chunks(0, total, &mut progress).map_err(|e| failed(&e))?;
        let log = controller.health(&mut progress).map_err(|e| failed(&e))?;
        let depth = DEPTH.min(plan.config.controller.queue_depth);
        let pair =
            controller.create_queue_pair(depth, None, &mut progress).map_err(|e| failed(&e))?;
        let queue = VectorQueue::new(pair, port, controller.info()).map_err(|e| failed(&e))?;
        let info = controller.info().clone();
        let mut subsystem =
            MediaManager::open(&info, &report, queue, Nanos::ZERO, config, &mut progress)?;
        let done = work(&mut subsystem, &log, &mut progress);
        // Close the media manager cleanly in any case, so that its next start does not write.
        let closed = subsystem.close(&mut progress);
        let done = done?;
        closed?;
        done
    };
    drive.shut_down().map_err(|e| failed(&e))?;
    Ok(done)
}
