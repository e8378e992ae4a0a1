//! [`Prepared`]: the drives and hosts of a [`ServePlan`] before their threads start, preconditioned.

use controller::Controller;
use scenario::choice::Impossible;
use scenario::{DriveKind, DriveSpec, PathSpec, Scenario};
use stack::{
    CoreQueues, DevicePort, EmulatedDevice, HOST_VECTOR, JobTarget, Notification, PathDevice,
    PreparedPaths, Stack, StackError, prepare_drive, prepare_paths,
};
use time::Nanos;

use super::plan::{NbdPlan, ServePlan};
use super::sharing::PartitionTableBuilder;
use super::{ServeError, ServeEvent};

/// A drive, or an AHCI controller with its drives.
#[derive(Debug)]
pub(super) struct PreparedDrive {
    /// Its drives, at least one, each with its index in the scenario.
    pub(super) specs: Vec<(usize, DriveSpec)>,
    pub(super) drive: EmulatedDevice,
    pub(super) is_shared: bool,
}

/// The host's side of a path that NBD serves.
#[derive(Debug)]
pub(super) struct PreparedHost {
    pub(super) plan: NbdPlan,
    /// The drives among the prepared ones, in the order of the members of a set.
    pub(super) drives: Vec<usize>,
    /// The port at each of these drives.
    pub(super) ports: Vec<DevicePort>,
    pub(super) device: CoreQueues,
}

/// The drives and the hosts.
pub(super) struct Prepared {
    pub(super) drives: Vec<PreparedDrive>,
    pub(super) hosts: Vec<PreparedHost>,
    /// The partitions at each socket.
    pub(super) tables: Vec<PartitionTableBuilder>,
    /// The drives' current time.
    pub(super) now: Nanos,
}

impl Prepared {
    /// Powers the drives on, builds the hosts, and preconditions drives without data.
    ///
    /// # Errors
    /// [`ServeError`].
    pub(super) fn new(
        scenario: &Scenario,
        plan: &ServePlan,
        tell: &mut dyn FnMut(ServeEvent<'_>),
    ) -> Result<Prepared, ServeError> {
        let tables = plan.sockets.iter().map(|_| PartitionTableBuilder::new()).collect();
        let mut prepared =
            Prepared { drives: Vec::new(), hosts: Vec::new(), tables, now: Nanos::ZERO };
        let is_composed = !scenario.composition.is_empty();
        if is_composed && !plan.nbd.is_empty() {
            prepared.add_paths(scenario, plan, tell)?;
        }
        for index in 0..scenario.drives.len() {
            let nbd = plan.nbd_over(scenario, index).next().filter(|_| !is_composed);
            let socket = plan.sockets.iter().position(|socket| socket.drives.contains(&index));
            if nbd.is_some() || socket.is_some() {
                prepared.add_drive(scenario, index, (nbd, socket), tell)?;
            }
        }
        // The first of the exports at an endpoint is the default.
        let place = |host: &PreparedHost| {
            plan.nbd.iter().position(|nbd| nbd.path.name == host.plan.path.name)
        };
        prepared.hosts.sort_by_key(place);
        Ok(prepared)
    }

    /// Adds the paths of a composition that NBD serves.
    fn add_paths(
        &mut self,
        scenario: &Scenario,
        plan: &ServePlan,
        tell: &mut dyn FnMut(ServeEvent<'_>),
    ) -> Result<(), ServeError> {
        let paths: Vec<PathSpec> = plan.nbd.iter().map(|nbd| nbd.path.clone()).collect();
        let part = scenario.restricted_to(&paths);
        self.add_prepared(scenario, &part, plan.nbd.iter(), tell)
    }

    /// Prepares the drives and paths of a part of the scenario, whose exports are `plans`.
    fn add_prepared<'a>(
        &mut self,
        scenario: &Scenario,
        part: &Scenario,
        plans: impl Iterator<Item = &'a NbdPlan>,
        tell: &mut dyn FnMut(ServeEvent<'_>),
    ) -> Result<(), ServeError> {
        let PreparedPaths { devices, device_of, paths, now } =
            prepare_paths(part, &mut |event| tell(event.into()))?;
        self.now = self.now.max(now);
        let before = self.drives.len();
        for (device, drive) in devices.into_iter().enumerate() {
            // Each device is that of a drive, and the part has drives of the scenario only.
            let own = part.drives.iter().zip(&device_of).filter(|(_, of)| **of == device);
            let specs = own.map(|(plan, _)| {
                let mut names = scenario.drives.iter().map(|drive| &drive.config.name);
                let index = names.position(|name| *name == plan.config.name).unwrap_or(0);
                (index, plan.clone())
            });
            let specs = specs.collect();
            self.drives.push(PreparedDrive { specs, drive, is_shared: false });
        }
        for (plan, path) in plans.zip(paths) {
            let PathDevice { device, drives, ports, .. } = path;
            let JobTarget::Blocks(device) = device else {
                return Err(StackError::NoPath { file: scenario.file.clone() }.into());
            };
            let drives = drives.into_iter().map(|drive| before + device_of[drive]).collect();
            self.hosts.push(PreparedHost { plan: plan.clone(), drives, ports, device });
        }
        Ok(())
    }

    /// Adds a drive that has at most one host in this process. With a socket, NBD has a partition of
    /// it.
    fn add_drive(
        &mut self,
        scenario: &Scenario,
        index: usize,
        (nbd, socket): (Option<&NbdPlan>, Option<usize>),
        tell: &mut dyn FnMut(ServeEvent<'_>),
    ) -> Result<(), ServeError> {
        let plan = &scenario.drives[index];
        let has_log = nbd.map_or(scenario.path.log, |nbd| nbd.path.config.log).is_some();
        if let (Some(_), true) = (socket, has_log) {
            let (path, between) = (plan.config.name.clone(), "a log".to_owned());
            return Err(StackError::from(Impossible::NoQueuePairs { path, between }).into());
        }
        if let (None, Some(nbd)) = (socket, nbd)
            && (plan.kind != DriveKind::Nvme || has_log)
        {
            let part = scenario.restricted_to(std::slice::from_ref(&nbd.path));
            return self.add_prepared(scenario, &part, std::iter::once(nbd), tell);
        }
        let (placement, now) = match socket {
            None => prepare(scenario, index, plan, tell)
                .map(|(stack, now)| (HostPlacement::ThisProcess(Box::new(stack)), now))?,
            Some(socket) => {
                let table = &mut self.tables[socket];
                prepare_shared(scenario, index, plan, (table, nbd.is_some()), tell)?
            }
        };
        self.now = self.now.max(now);
        let position = self.drives.len();
        let drive = match (placement, nbd) {
            (HostPlacement::ThisProcess(stack), Some(nbd)) => {
                let Stack { drive, device, port, .. } = *stack;
                let (plan, drives, ports) = (nbd.clone(), vec![position], vec![port]);
                self.hosts.push(PreparedHost { plan, drives, ports, device });
                drive
            }
            (HostPlacement::ThisProcess(stack), None) => stack.drive,
            (HostPlacement::OtherProcesses(drive), _) => *drive,
        };
        let (specs, is_shared) = (vec![(index, plan.clone())], socket.is_some());
        self.drives.push(PreparedDrive { specs, drive: drive.into(), is_shared });
        Ok(())
    }
}

/// Builds the stack of a drive with the configured block layer and preconditions it; returns the
/// drive's current time.
pub(super) fn prepare(
    scenario: &Scenario,
    index: usize,
    plan: &DriveSpec,
    tell: &mut dyn FnMut(ServeEvent<'_>),
) -> Result<(Stack, Nanos), ServeError> {
    let (stack, now) = prepare_drive(scenario, index, plan, &mut |event| tell(event.into()))?;
    Ok((with_block_layer(scenario, stack, now)?, now))
}

fn with_block_layer(scenario: &Scenario, stack: Stack, now: Nanos) -> Result<Stack, ServeError> {
    match &scenario.path.block_layer {
        Some(layer) => {
            let notification = Notification::Real(scenario.path.completion);
            Ok(stack.with_block_layer(layer, now, notification)?)
        }
        None => Ok(stack),
    }
}

/// Location of a drive's hosts.
enum HostPlacement {
    /// A server in this process.
    ThisProcess(Box<Stack>),
    /// All hosts are in other processes.
    OtherProcesses(Box<Controller>),
}

/// Prepares a shared drive as [`prepare`] does, with NBD on a partition of it, or without NBD.
fn prepare_shared(
    scenario: &Scenario,
    index: usize,
    plan: &DriveSpec,
    (sharing, nbd): (&mut PartitionTableBuilder, bool),
    tell: &mut dyn FnMut(ServeEvent<'_>),
) -> Result<(HostPlacement, Nanos), ServeError> {
    let shared = "sharing a drive between processes (`--socket`)";
    Impossible::check_nvme(plan, shared).map_err(StackError::from)?;
    if !nbd && !plan.is_block_device() {
        // No FTL in this process manages the flash, so it cannot be preconditioned.
        let name = plan.config.name.clone();
        let drive = Controller::new(plan.config.clone())
            .map_err(|source| StackError::Drive { name, source })?;
        sharing.add(scenario, plan, &drive, false)?;
        return Ok((HostPlacement::OtherProcesses(Box::new(drive)), Nanos::ZERO));
    }
    let (stack, now) = prepare_drive(scenario, index, plan, &mut |event| tell(event.into()))?;
    match sharing.add(scenario, plan, &stack.drive, nbd)? {
        Some(part) => {
            let stack = stack.confine_to_partition(part, Some(HOST_VECTOR))?;
            Ok((HostPlacement::ThisProcess(Box::new(with_block_layer(scenario, stack, now)?)), now))
        }
        None => {
            let Stack { mut drive, device, port, .. } = stack;
            drop(device);
            // The port was attached above, so this succeeds.
            if let DevicePort::Nvme(port) = port {
                let _ = drive.detach(&port);
            }
            Ok((HostPlacement::OtherProcesses(Box::new(drive)), now))
        }
    }
}
