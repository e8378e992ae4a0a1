//! [`named_ftls`]: access to the settings of the FTLs of served drives and targets, by name.
//!
//! A drive's own FTL belongs to the thread that polls the drive, a target to the server of a core, and
//! each shard of a target to a server of its own. All of them check a change before the first one
//! makes it, so that a refused change changes no shard.

use std::sync::{Mutex, PoisonError};

use controller::Controller;
use ftl::{ControlChange, ControlError, ControlSettings};
use scenario::{DriveKind, Scenario};
use share_server::{FtlControl, FtlControlError, OwnerChannel};
use stack::{CoreQueues, target_layers};

use super::service::ServedDrive;
use super::unit::ServedUnit;

/// The server of a core, and the number of targets and shards that its device shows.
#[derive(Debug)]
pub(super) struct CoreTargets {
    pub(super) owner: OwnerChannel<CoreQueues>,
    pub(super) targets: usize,
}

/// The owner of an FTL or of a shard.
#[derive(Debug)]
enum FtlOwner {
    /// The thread of a drive, with the drive's own FTL.
    Drive(OwnerChannel<Controller>),
    /// A server: the target with this index in its device, or all shards that the device shows.
    Target(OwnerChannel<CoreQueues>, Option<usize>),
}

/// A step of a change, or a reading.
#[derive(Clone, Copy, Debug)]
enum ControlStep {
    Read,
    Check(ControlChange),
    Apply(ControlChange),
}

impl FtlOwner {
    /// Executes a step on the owner's thread; returns the settings in force.
    fn run(&self, step: ControlStep) -> Result<Vec<ControlSettings>, FtlControlError> {
        let done = match self {
            FtlOwner::Drive(owner) => owner.call(move |drive| run_on_drive(drive, step))?,
            FtlOwner::Target(owner, only) => {
                let only = *only;
                owner.call(move |device| run_on_targets(device, only, step))?
            }
        };
        Ok(done?)
    }
}

fn run_on_drive(
    drive: &mut Controller,
    step: ControlStep,
) -> Result<Vec<ControlSettings>, ControlError> {
    let ftl = drive.ftl().ok_or(ControlError::NoFtl)?;
    match step {
        ControlStep::Read => {}
        ControlStep::Check(change) => ftl.check_change(&change)?,
        ControlStep::Apply(change) => drive.apply_change(&change)?,
    }
    Ok(drive.ftl().map(ftl::Ftl::control_settings).into_iter().collect())
}

fn run_on_targets(
    device: &mut CoreQueues,
    only: Option<usize>,
    step: ControlStep,
) -> Result<Vec<ControlSettings>, ControlError> {
    match step {
        ControlStep::Read => {}
        ControlStep::Check(change) => target_layers::check_change(device, only, &change)?,
        ControlStep::Apply(change) => target_layers::apply_change(device, only, &change)?,
    }
    Ok(target_layers::control_settings(device, only))
}

/// Returns the access to an FTL with these owners; without owners there is no FTL.
fn control(owners: Vec<FtlOwner>) -> FtlControl {
    // Changes at several sockets reach all shards in one order.
    let order = Mutex::new(());
    FtlControl::new(move |change| {
        let _one_at_a_time = order.lock().unwrap_or_else(PoisonError::into_inner);
        run_all(&owners, change, FtlOwner::run)
    })
}

/// Makes a change at all owners, if there is one and none of them refuses it. Returns the settings in
/// force.
fn run_all<O>(
    owners: &[O],
    change: Option<ControlChange>,
    run: impl Fn(&O, ControlStep) -> Result<Vec<ControlSettings>, FtlControlError>,
) -> Result<Vec<ControlSettings>, FtlControlError> {
    let each = |step| {
        let mut settings = Vec::new();
        for owner in owners {
            settings.extend(run(owner, step)?);
        }
        Ok(settings)
    };
    let Some(change) = change else { return each(ControlStep::Read) };
    each(ControlStep::Check(change))?;
    each(ControlStep::Apply(change))
}

/// Returns the owners of the target that is member `only` among the targets of a set, or of the only
/// target of a path.
fn target_owners(cores: &[CoreTargets], only: Option<usize>) -> Vec<FtlOwner> {
    let mut owners = Vec::new();
    let mut first = 0;
    for core in cores {
        let own = first..first + core.targets;
        first = own.end;
        let index = only.map(|only| only.wrapping_sub(own.start));
        if only.map_or(core.targets > 0, |only| own.contains(&only)) {
            owners.push(FtlOwner::Target(core.owner.clone(), index));
        }
    }
    owners
}

/// Returns the name of each served drive and target, and the access to its settings. A drive whose
/// flash is managed on the host stands for its target.
pub(super) fn named_ftls(
    scenario: &Scenario,
    drives: &[ServedDrive],
    units: &[ServedUnit],
) -> Vec<(String, FtlControl)> {
    let mut named: Vec<(String, FtlControl)> = Vec::new();
    for drive in drives {
        let own = scenario::Beneath::Drive(drive.index);
        if scenario.is_on_host(own) {
            continue;
        }
        let owners = match drive.plan.kind {
            DriveKind::Nvme => vec![FtlOwner::Drive(drive.owner.clone())],
            _ => Vec::new(),
        };
        named.push((drive.plan.config.name.clone(), control(owners)));
    }
    for target in host_targets(scenario, units) {
        if !named.iter().any(|(other, _)| *other == target.name) {
            let owners = target.owners.into_iter().map(|owner| owner.0).collect();
            named.push((target.name, control(owners)));
        }
    }
    named
}

/// A target on the host, or all of the shards of one.
pub(super) struct HostTargetOwners {
    /// Its name, or that of its drive.
    pub(super) name: String,
    /// The owner of each shard.
    pub(super) owners: Vec<HostTargetOwner>,
}

/// The owner of a target or of a shard.
pub(super) struct HostTargetOwner(FtlOwner);

impl HostTargetOwner {
    /// Returns the server, and the index of the target in its device; `None` for its only one.
    pub(super) fn target(&self) -> Option<(&OwnerChannel<CoreQueues>, Option<usize>)> {
        match &self.0 {
            FtlOwner::Target(owner, only) => Some((owner, *only)),
            FtlOwner::Drive(_) => None,
        }
    }
}

/// Returns each target on the host that is served, once.
pub(super) fn host_targets(scenario: &Scenario, units: &[ServedUnit]) -> Vec<HostTargetOwners> {
    let mut found: Vec<HostTargetOwners> = Vec::new();
    for unit in units {
        let members = unit.over.map(|over| scenario.members(over)).unwrap_or_default();
        let targets = members.iter().filter(|member| scenario.is_on_host(**member));
        for (index, member) in targets.enumerate() {
            let name = scenario.device_name(*member);
            if found.iter().any(|other| other.name == name) {
                continue;
            }
            let only = (members.len() > 1).then_some(index);
            let owners = target_owners(&unit.cores, only).into_iter().map(HostTargetOwner);
            found.push(HostTargetOwners { name: name.to_owned(), owners: owners.collect() });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ftl::{ActivePusError, RateLimiterKind, VictimPolicyKind};

    use super::*;

    /// A shard of an FTL: its number of active units, and the maximum.
    type FakeShard = (Cell<u32>, u32);

    fn run(
        (active, max): &FakeShard,
        step: ControlStep,
    ) -> Result<Vec<ControlSettings>, FtlControlError> {
        let requested = match step {
            ControlStep::Check(ControlChange::ActivePus(count))
            | ControlStep::Apply(ControlChange::ActivePus(count)) => count,
            _ => active.get(),
        };
        if requested > *max {
            return Err(ControlError::from(ActivePusError { requested, max: *max }).into());
        }
        if matches!(step, ControlStep::Apply(_)) {
            active.set(requested);
        }
        Ok(vec![ControlSettings {
            active_pus: active.get(),
            active_pus_max: *max,
            rate_limiter: RateLimiterKind::Proportional,
            victim_policy: VictimPolicyKind::Greedy,
        }])
    }

    #[test]
    fn a_change_that_one_shard_refuses_changes_none() {
        let shards: [FakeShard; 3] = [(Cell::new(6), 6), (Cell::new(5), 5), (Cell::new(5), 5)];
        let active = || shards.each_ref().map(|(active, _)| active.get());
        let change = |count| run_all(&shards, Some(ControlChange::ActivePus(count)), run);
        let error = change(6).unwrap_err();
        assert!(matches!(error, FtlControlError::Refused(ControlError::ActivePus(_))), "{error}");
        assert_eq!(active(), [6, 5, 5]);
        assert_eq!(change(4).unwrap().len(), 3);
        assert_eq!(active(), [4, 4, 4]);
        change(6).unwrap_err();
        assert_eq!(active(), [4, 4, 4]);
        assert_eq!(run_all(&shards, None, run).unwrap().len(), 3);
        assert_eq!(run_all(&[], None, run).unwrap(), [], "a device without an FTL");
    }
}
