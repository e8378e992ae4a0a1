//! [`named_rules`]: access to the rules of served drives and targets, by name.
//!
//! The rules of a drive belong to the thread that polls the drive, those of a target to the server of a
//! core.

use event::RealClock;
use scenario::{DriveKind, HostTarget, Scenario};
use share_server::RuleControl;
use stack::target_rule_control;

use crate::serve::ftl_control::{HostTargetOwner, host_targets};
use crate::serve::service::ServedDrive;
use crate::serve::unit::ServedUnit;

/// Returns the name of each emulated NVMe drive, and the access to its rules, or to those of its target
/// with rules. The threads that own them have the time of `clock`.
pub(in crate::serve) fn named_rules(
    scenario: &Scenario,
    drives: &[ServedDrive],
    units: &[ServedUnit],
    clock: RealClock,
) -> Vec<(String, RuleControl)> {
    let targets = host_targets(scenario, units);
    let nvme = drives.iter().filter(|drive| drive.plan.kind == DriveKind::Nvme);
    let control = |drive: &ServedDrive| {
        let name = drive.plan.config.name.clone();
        let target = targets.iter().find(|target| target.name == name);
        let owner =
            target.and_then(|target| target.owners.iter().find_map(HostTargetOwner::target));
        let control = match (&drive.plan.target, owner) {
            (HostTarget::Rules(_), Some((owner, only))) => {
                target_rule_control(owner.clone(), only, clock)
            }
            _ => RuleControl::new(drive.owner.clone(), clock),
        };
        (name, control)
    };
    nvme.map(control).collect()
}
