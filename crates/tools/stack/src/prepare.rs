//! [`prepare_drive`]: powers a drive of a scenario on for real time, and preconditions it if it is new.

use std::io;

use scenario::choice::Impossible;
use scenario::{DriveSpec, PathConfig, Scenario};
use time::{Nanos, VirtualRunner};

use super::host::write_log::check_without_log;
use super::{
    BuildOptions, EmulatedDevice, Notification, PathDevice, PreconditionMarker, Stack,
    StackBuilder, StackError, StateUse, is_fresh, precondition_stack,
};

/// Interrupt vector of the host's queue pair; vector 0 belongs to the admin queue.
pub const HOST_VECTOR: u16 = 1;

/// An event while a drive is prepared. Each has the name of the drive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PrepareEvent<'a> {
    /// The drive is being preconditioned; progress from 0 to 1.
    Preconditioning(&'a str, f64),
    /// The drive has an image already and keeps its contents.
    ImageKept(&'a str),
    /// How the drive came to its state, if states are kept.
    State(&'a str, &'a StateUse),
}

/// Error of [`prepare_drive`].
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The stack could not be built or preconditioned.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The marker of an incomplete image could not be written or removed.
    #[error("noting that an image is being preconditioned: {source}")]
    PreconditionMarker {
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
}

impl PrepareError {
    /// Returns whether the error is a usage error: the user's request is invalid.
    pub fn is_usage(&self) -> bool {
        match self {
            PrepareError::Stack(e) => e.is_usage(),
            PrepareError::PreconditionMarker { .. } => false,
        }
    }
}

/// Builds the stack of drive `index` of a scenario on the raw path, with interrupts on
/// [`HOST_VECTOR`]. A drive without data is preconditioned without advancing real time. Returns the
/// drive's current time.
///
/// # Errors
/// [`PrepareError`].
pub fn prepare_drive(
    scenario: &Scenario,
    index: usize,
    plan: &DriveSpec,
    tell: &mut dyn FnMut(PrepareEvent<'_>),
) -> Result<(Stack, Nanos), PrepareError> {
    scenario.check_real_time().map_err(StackError::from)?;
    let name = &plan.config.name;
    let fresh = is_fresh(plan);
    let mut stack = Stack::build(plan, Some(HOST_VECTOR))?;
    if !fresh {
        check_without_log(&mut stack.device, &mut stack.drive, plan, Nanos::ZERO)?;
    }
    if scenario.precondition.is_none() {
        return Ok((stack, Nanos::ZERO));
    }
    if !fresh {
        tell(PrepareEvent::ImageKept(name));
        return Ok((stack, Nanos::ZERO));
    }
    tell(PrepareEvent::Preconditioning(name, 0.0));
    let mark = PreconditionMarker::set(plan)
        .map_err(|source| PrepareError::PreconditionMarker { source })?;
    let mut runner = VirtualRunner::new();
    let seed = scenario.seed.wrapping_add(index as u64);
    let mut progress = |part| tell(PrepareEvent::Preconditioning(name, part));
    let what = &scenario.precondition;
    let (stack, used) = precondition_stack(stack, plan, what, &mut runner, seed, &mut progress)?;
    if let Some(used) = &used {
        tell(PrepareEvent::State(name, used));
    }
    mark.remove().map_err(|source| PrepareError::PreconditionMarker { source })?;
    Ok((stack, runner.now()))
}

/// Preconditions the drives of a scenario in virtual time and keeps their states in the folder of
/// the precondition.
///
/// # Errors
/// [`PrepareError`]; [`StackError::NothingToKeep`] if no state can be kept.
pub fn keep_states(
    scenario: &Scenario,
    tell: &mut dyn FnMut(PrepareEvent<'_>),
) -> Result<(), PrepareError> {
    for plan in &scenario.drives {
        Impossible::check_virtual(plan, "[precondition]").map_err(StackError::from)?;
    }
    let (mut builder, open) = StackBuilder::open(scenario, BuildOptions::default(), &mut |_| None)?;
    let mut runner = VirtualRunner::new();
    runner.advance_to(builder.ready_at());
    for mut path in open {
        let name = path.name().to_owned();
        let mut progress = |part| {
            tell(PrepareEvent::Preconditioning(&name, part));
            true
        };
        let (what, seed) = (&scenario.precondition, scenario.seed);
        path.precondition(&mut builder, what, |_| true, &mut runner, seed, &mut progress)?;
    }
    if builder.state_uses().is_empty() {
        return Err(StackError::NothingToKeep { file: scenario.file.clone() }.into());
    }
    for (name, used) in builder.state_uses() {
        tell(PrepareEvent::State(name, used));
    }
    Ok(())
}

/// The drives of a scenario and the devices of its paths, in real time.
#[derive(Debug)]
pub struct PreparedPaths {
    /// The devices to poll, in the order of the scenario. The drives at an AHCI controller are one.
    pub devices: Vec<EmulatedDevice>,
    /// By drive of the scenario: index of its device.
    pub device_of: Vec<usize>,
    /// The device of each path, with interrupts, in the order of [`Scenario::paths`].
    pub paths: Vec<PathDevice>,
    /// The drives' current time.
    pub now: Nanos,
}

/// Builds the drives and paths of a scenario, with interrupts. Drives without data are
/// preconditioned without advancing real time.
///
/// # Errors
/// [`PrepareError`].
pub fn prepare_paths(
    scenario: &Scenario,
    tell: &mut dyn FnMut(PrepareEvent<'_>),
) -> Result<PreparedPaths, PrepareError> {
    scenario.check_real_time().map_err(StackError::from)?;
    let fresh: Vec<bool> = scenario.drives.iter().map(is_fresh).collect();
    let preconditions = !scenario.precondition.is_none();
    if preconditions {
        for plan in &scenario.drives {
            Impossible::check_virtual(plan, "[precondition]").map_err(StackError::from)?;
        }
    }
    let options =
        BuildOptions { vector: Some(HOST_VECTOR), write_images: true, parallel_units: false };
    let (mut builder, mut open) = StackBuilder::open(scenario, options, &mut |_| None)?;
    let mut runner = VirtualRunner::new();
    runner.advance_to(builder.ready_at());
    let mut marks = Vec::new();
    for (plan, fresh) in scenario.drives.iter().zip(&fresh).filter(|_| preconditions) {
        if *fresh {
            let mark = PreconditionMarker::set(plan);
            marks.push(mark.map_err(|source| PrepareError::PreconditionMarker { source })?);
        } else {
            tell(PrepareEvent::ImageKept(&plan.config.name));
        }
    }
    for path in open.iter_mut().filter(|_| preconditions) {
        let name = path.name().to_owned();
        let mut progress = |part| {
            tell(PrepareEvent::Preconditioning(&name, part));
            true
        };
        let (what, seed) = (&scenario.precondition, scenario.seed);
        path.precondition(&mut builder, what, |i| fresh[i], &mut runner, seed, &mut progress)?;
    }
    for (name, used) in builder.state_uses() {
        tell(PrepareEvent::State(name, used));
    }
    for mark in marks {
        mark.remove().map_err(|source| PrepareError::PreconditionMarker { source })?;
    }
    let now = runner.now();
    let mut paths = Vec::with_capacity(open.len());
    for path in open {
        let notification = |config: &PathConfig| Notification::Real(config.completion);
        paths.push(path.finish(&mut builder, now, notification)?);
    }
    let (devices, device_of) = builder.into_devices();
    Ok(PreparedPaths { devices, device_of, paths, now })
}
