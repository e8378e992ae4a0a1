//! `sluice target`: makes, lists and removes the targets of an open-channel drive (LightNVM paper
//! section 4.1).
//!
//! The drive is a scenario's, and lives in an image: the command powers it on, does what it was asked
//! in no time of the drive's, and shuts it down in order. While it does, nobody else has the image, nor
//! can the command have it while somebody else does. What is refused leaves the image as it is.

use clock::{Component, Nanos};
use drive::Drive;
use driver::Controller;
use lightnvm::core::{
    CoreError, Limits, NewTarget, Rate, Sharing, Subsystem, TargetOptions, Warranty,
};
use lightnvm::vector::VectorQueue;
use media::{DataStore, MediaConfig};
use nvme::HealthLog;

use super::args::{
    TargetArgs, TargetCreateArgs, TargetDrive, TargetInfoArgs, TargetListArgs, TargetRemoveArgs,
};
use super::{Failure, print, target_sheet};
use crate::scenario::{DrivePlan, Scenario};
use crate::serve::image;
use crate::stack::named::core_config;

/// Polls of the drive that a command may take.
const PATIENCE: u64 = 10_000_000;
/// Entries of the queue pair.
const DEPTH: u16 = 256;

impl From<CoreError> for Failure {
    fn from(error: CoreError) -> Failure {
        if error.is_usage() {
            Failure::Usage(error.to_string())
        } else {
            Failure::Other(error.to_string())
        }
    }
}

/// Runs `sluice target …`.
///
/// # Errors
/// What was asked wrongly, and what went wrong.
pub fn run(args: &TargetArgs) -> Result<(), Failure> {
    match args {
        TargetArgs::Create(args) => create(args),
        TargetArgs::List(args) => list(args),
        TargetArgs::Info(args) => info(args),
        TargetArgs::Remove(args) => remove(args),
    }
}

fn create(args: &TargetCreateArgs) -> Result<(), Failure> {
    let (scenario, plan) = chosen(&args.on)?;
    let new = spec(args)?;
    if image(&plan).is_some_and(|image| !image.exists()) {
        // A drive that does not exist yet is not made for a target that cannot be.
        let mut imagined = plan.clone();
        if let MediaConfig::Nand(nand) = &mut imagined.config.media {
            nand.data = DataStore::Memory;
        }
        with_drive(&imagined, scenario.seed, "make a target on", |s, _, _| Ok(s.check(&new)?))?;
    }
    let doing = format!("make target {} on", new.name);
    let text = with_drive(&plan, scenario.seed, &doing, |s, _, pump| {
        let id = s.create(new.clone(), pump)?;
        match s.table().target(id) {
            Some(target) if args.on.json => Ok(target_sheet::target_json(s, target)),
            Some(target) => Ok(target_sheet::target_text(s, target)),
            None => Err(Failure::Other(format!("target {} is gone", new.name))),
        }
    })?;
    print(&text)
}

fn list(args: &TargetListArgs) -> Result<(), Failure> {
    let (scenario, plan) = chosen(&args.on)?;
    must_exist(&plan)?;
    let text = with_drive(&plan, scenario.seed, "list the targets of", |s, _, _| {
        Ok(if args.on.json { target_sheet::list_json(s) } else { target_sheet::list_text(s) })
    })?;
    print(&text)
}

fn info(args: &TargetInfoArgs) -> Result<(), Failure> {
    let number = |what: &str, value: f64, least: f64| {
        if value.is_finite() && value >= least {
            return Ok(());
        }
        Err(Failure::Usage(format!("--{what} is {value}, but it must be {least} or more")))
    };
    number("warranty-years", args.warranty_years, 0.0)?;
    number("age-years", args.age_years, 0.0)?;
    number("write-amplification", args.write_amplification, 1.0)?;
    let warranty = Warranty {
        years: args.warranty_years,
        age_years: args.age_years,
        write_amplification: args.write_amplification,
    };
    let (scenario, plan) = chosen(&args.on)?;
    must_exist(&plan)?;
    let text = with_drive(&plan, scenario.seed, "look at", |s, log, _| {
        Ok(match (&args.name, args.on.json) {
            (Some(name), true) => target_sheet::target_json(s, s.target(name)?),
            (Some(name), false) => target_sheet::target_text(s, s.target(name)?),
            (None, true) => target_sheet::drive_json(s, log, &warranty),
            (None, false) => target_sheet::drive_text(s, log, &warranty),
        })
    })?;
    print(&text)
}

fn remove(args: &TargetRemoveArgs) -> Result<(), Failure> {
    let (scenario, plan) = chosen(&args.on)?;
    must_exist(&plan)?;
    let name = &args.name;
    let doing = format!("remove target {name} of");
    let text = with_drive(&plan, scenario.seed, &doing, |s, _, pump| {
        let chunks = s.holding(s.target(name)?.id).owned;
        s.remove(name, args.factory, pump)?;
        Ok(target_sheet::removed(s, name, chunks, args.factory, args.on.json))
    })?;
    print(&text)
}

/// What is asked for.
fn spec(args: &TargetCreateArgs) -> Result<NewTarget, Failure> {
    let rate = match args.chunks_per_second {
        None => None,
        Some(rate) => {
            let milli = (rate * 1000.0).round();
            let fits = rate.is_finite() && (1.0..=f64::from(u32::MAX)).contains(&milli);
            let burst = args.burst.unwrap_or(1);
            let rate = Rate::new(if fits { milli as u32 } else { 0 }, burst);
            Some(rate.ok_or_else(|| {
                Failure::Usage(
                    "--chunks-per-second must be 0.001 to 4,294,967, and --burst 1 or more".into(),
                )
            })?)
        }
    };
    Ok(NewTarget {
        name: args.name.clone(),
        kind: args.kind,
        pus: args.pus.clone(),
        sharing: if args.shared { Sharing::Shared } else { Sharing::Exclusive },
        options: TargetOptions {
            over_provisioning: args.over_provisioning,
            active_pus: args.active_pus,
            hot_cold: args.hot_cold,
        },
        limits: Limits { max_chunks: args.max_chunks, rate },
    })
}

/// The drive that is meant, if it can have targets that survive the command.
fn chosen(on: &TargetDrive) -> Result<(Scenario, DrivePlan), Failure> {
    let scenario = Scenario::load(&on.scenario)?;
    let names: Vec<&str> = scenario.drives.iter().map(|d| d.config.name.as_str()).collect();
    let file = on.scenario.display();
    let plan = match (&on.drive, &scenario.drives[..]) {
        (Some(name), _) => scenario.drive(name).ok_or_else(|| {
            Failure::Usage(format!("{file} has no drive {name}; it has {}", names.join(", ")))
        })?,
        (None, [only]) => only,
        (None, _) => {
            let names = names.join(", ");
            return Err(Failure::Usage(format!("{file} has drives {names}: say --drive NAME")));
        }
    };
    let name = &plan.config.name;
    if plan.config.personality != drive::PersonalityKind::OpenChannel {
        return Err(CoreError::NotOpenChannel { drive: name.clone() }.into());
    }
    if image(plan).is_none() {
        return Err(Failure::Usage(format!(
            "drive {name} of {file} keeps nothing when this command ends: give it data = \"file\" \
             and a path, so that its targets survive"
        )));
    }
    let plan = plan.clone();
    Ok((scenario, plan))
}

fn must_exist(plan: &DrivePlan) -> Result<(), Failure> {
    match image(plan).filter(|image| !image.exists()) {
        None => Ok(()),
        Some(image) => Err(Failure::Usage(format!(
            "drive {} does not exist yet: there is no image {}; `sluice target create` makes it",
            plan.config.name,
            image.display()
        ))),
    }
}

/// Powers a drive on, does something with its subsystem, closes both. `doing` says what, for messages:
/// "list the targets of".
fn with_drive<T>(
    plan: &DrivePlan,
    seed: u64,
    doing: &str,
    work: impl FnOnce(&mut Subsystem, &HealthLog, &mut dyn FnMut()) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let name = plan.config.name.clone();
    let failed =
        |why: &dyn std::fmt::Display| Failure::Other(format!("cannot {doing} drive {name}: {why}"));
    let mut drive = Drive::new(plan.config.clone()).map_err(|e| failed(&e))?;
    let port = drive.attach().map_err(|e| failed(&e))?;
    drive.set_instant(true);
    let config = core_config(plan, seed);
    let mut pump = || {
        drive.poll(Nanos::ZERO);
    };
    let done = {
        let mut controller =
            Controller::attach(port.clone(), &mut pump, PATIENCE).map_err(|e| failed(&e))?;
        let total = controller.info().open_channel.map_or(0, |oc| oc.geometry.total_chunks());
        let report = controller.chunks(0, total, &mut pump).map_err(|e| failed(&e))?;
        let log = controller.health(&mut pump).map_err(|e| failed(&e))?;
        let depth = DEPTH.min(plan.config.controller.queue_depth);
        let pair = controller.create_queue_pair(depth, None, &mut pump).map_err(|e| failed(&e))?;
        let queue = VectorQueue::new(pair, port, controller.info()).map_err(|e| failed(&e))?;
        let info = controller.info().clone();
        let mut subsystem = Subsystem::open(&info, &report, queue, Nanos::ZERO, config, &mut pump)?;
        let done = work(&mut subsystem, &log, &mut pump);
        // In order, whatever came of it: then the next one to look need not write.
        let closed = subsystem.close(&mut pump);
        let done = done?;
        closed?;
        done
    };
    drive.shut_down().map_err(|e| failed(&e))?;
    Ok(done)
}
