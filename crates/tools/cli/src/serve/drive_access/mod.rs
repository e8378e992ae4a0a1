//! [`named_injectors`]: injectors of faults into served drives, by name; [`named_namespaces`]: access
//! to their namespaces.

pub(super) mod target_rules;

use event::RealClock;
use scenario::{DriveKind, parse_fault};
use share_server::{FaultInjectionError, FaultInjector, NamespaceControl};

use crate::serve::service::ServedDrive;

/// Returns the name of each emulated NVMe drive, and the injector of its faults. The thread that owns
/// the drive injects them, at the time of its `clock`.
pub(super) fn named_injectors(
    drives: &[ServedDrive],
    clock: RealClock,
) -> Vec<(String, FaultInjector)> {
    let nvme = drives.iter().filter(|drive| drive.plan.kind == DriveKind::Nvme);
    let injector = |drive: &ServedDrive| {
        let owner = drive.owner.clone();
        let injector = FaultInjector::new(move |text| {
            let fault = parse_fault(text)
                .map_err(|error| FaultInjectionError::Text(error.problem_text()))?;
            Ok(owner.call(move |drive| drive.inject_fault(clock.now(), fault))??)
        });
        (drive.plan.config.name.clone(), injector)
    };
    nvme.map(injector).collect()
}

/// Returns the name of each emulated NVMe drive, and the access to its namespaces, whose thread polls
/// it in the time of `clock`.
pub(super) fn named_namespaces(
    drives: &[ServedDrive],
    clock: RealClock,
) -> Vec<(String, NamespaceControl)> {
    let nvme = drives.iter().filter(|drive| drive.plan.kind == DriveKind::Nvme);
    let control = |drive: &ServedDrive| {
        let control = NamespaceControl::new(drive.owner.clone(), clock);
        (drive.plan.config.name.clone(), control)
    };
    nvme.map(control).collect()
}
