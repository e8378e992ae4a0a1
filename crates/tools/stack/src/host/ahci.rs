//! The AHCI controller of a scenario and the hosts of its SATA drives, one for each.

use block::Raw;
use controller::AhciController;
use driver::{AhciHost, LowLevelDriver};
use scenario::Scenario;
use time::{Nanos, VirtualRunner};

use super::StackHost;
use super::device::{AhciDevice, DevicePort, EmulatedDevice};
use crate::precondition::marker::stores_data;
use crate::{ADMIN_POLL_LIMIT, CoreQueues, StackError};

/// The controller, the host of each of its drives by port, and the time at which they are ready.
pub(crate) struct AhciHosts {
    pub(crate) device: EmulatedDevice,
    pub(crate) hosts: Vec<StackHost>,
    pub(crate) ready_at: Nanos,
}

/// Powers the AHCI controller of a scenario on and initializes it and its drives, which takes
/// virtual time: that of the links and of each IDENTIFY DEVICE. Returns `None` without SATA drives.
///
/// # Errors
/// [`StackError::AhciDevice`], [`StackError::AhciHost`], [`StackError::Memory`].
pub(crate) fn connect(scenario: &Scenario) -> Result<Option<AhciHosts>, StackError> {
    let Some(config) = scenario.ahci() else { return Ok(None) };
    let plans: Vec<_> = scenario.sata_drives().map(|drive| &scenario.drives[drive]).collect();
    let names: Vec<String> = plans.iter().map(|plan| plan.config.name.clone()).collect();
    let Some(name) = names.first().cloned() else { return Ok(None) };
    let function =
        config.function().map_err(|source| StackError::Memory { name: name.clone(), source })?;
    let controller = AhciController::new(function.clone(), &config)
        .map_err(|source| StackError::AhciDevice { name: name.clone(), source })?;
    let keeps_data = plans.iter().any(|plan| stores_data(plan));
    let mut device = AhciDevice::new(controller, names, keeps_data);
    let mut runner = VirtualRunner::new();
    let mut progress = || {
        runner.step(&mut [&mut device], Nanos::MAX);
    };
    let mut host = AhciHost::connect(function.clone(), &mut progress, ADMIN_POLL_LIMIT)
        .map_err(|source| StackError::AhciHost { name, source })?;
    let features = host.features();
    let hosts = host.take_queues().into_iter().map(|queue| {
        let limits = queue.limits();
        StackHost {
            device: CoreQueues::single(Raw::new(queue, limits), features),
            port: DevicePort::Ahci(function.clone()),
            controller: None,
            steady: None,
        }
    });
    let hosts = hosts.collect();
    let mut device = EmulatedDevice::Ahci(device);
    super::device::SimulatedDevice::reset_stats(&mut device);
    Ok(Some(AhciHosts { device, hosts, ready_at: runner.now() }))
}
