//! [`StackBuilder`]: builds the drives of a scenario and the devices of its paths.
//!
//! Each drive or target beneath a path has a host of its own at the drive. The hosts of a set's
//! members share their memory, so that one payload reaches all of them. Building takes no virtual
//! time, apart from preconditioning until steady state.

use std::collections::BTreeSet;
use std::num::NonZeroU16;

use block::notify::NotifyConfig;
use block::{BlockDevice, MemberSchedule, Stripe, StripeError};
use controller::Controller;
use kv::Kv;
use lnvm::TargetKind;
use mem::AddressSpace;
use scenario::choice::Impossible;
use scenario::{
    Beneath, DriveKind, DriveSpec, HostTarget, PathConfig, PathSpec, Precondition, Scenario,
    SetSpec,
};
use time::{Nanos, VirtualRunner};
use workload::{JobLimits, KeyLimits, KeyValueDevice, ParallelUnits};

use super::host::ahci::connect as connect_ahci;
use super::host::open::{open_kv, open_units};
use super::host::real::open as open_real;
use super::host::write_log::{LogPlan, check_without_log, open_log};
use super::host::{attach_with, block_layer_over};
use super::precondition::{precondition_host, precondition_or_load};
use super::steady_state::SteadyResult;
use super::{
    CoreQueue, CoreQueues, DevicePort, EmulatedDevice, HostOptions, Notification, Stack,
    StackError, StackHost, StateUse, is_fresh, with_overlay,
};

impl CoreQueue for Stripe<CoreQueues> {}

/// Options of building the drives of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildOptions {
    /// Interrupt vector that a drive raises, if the hosts sleep.
    pub vector: Option<u16>,
    /// Whether images of drives are modified. Otherwise they are only read, and writes stay in
    /// memory.
    pub write_images: bool,
    /// Whether devices without logical blocks are opened for jobs on parallel units. Otherwise paths
    /// over them are refused.
    pub parallel_units: bool,
}

/// The drives of a scenario while the devices of its paths are built.
#[derive(Debug)]
pub struct StackBuilder {
    devices: Vec<EmulatedDevice>,
    /// By drive of the scenario: index of its device. The drives at an AHCI controller share one.
    device_of: Vec<usize>,
    /// The time at which all devices are initialized.
    ready_at: Nanos,
    /// The drives, namespaces and applications whose blocks have been preconditioned.
    preconditioned: BTreeSet<(usize, u32, Option<String>)>,
    /// How drives came to their states, by name, if states are kept.
    state_uses: Vec<(String, StateUse)>,
    /// By drive of the scenario: whether it had no data when it was powered on.
    fresh: Vec<bool>,
}

/// A drive or target beneath a path, with its host.
#[derive(Debug)]
struct Member {
    beneath: Beneath,
    /// Index of the drive.
    drive: usize,
    /// The drive with the target of this host.
    plan: DriveSpec,
    host: StackHost,
}

/// The devices beneath a path.
#[derive(Debug)]
enum OpenDevices {
    /// A drive or a target.
    One(Box<Member>),
    /// A set, with its stripe size in sectors.
    Set { name: String, stripe: u32, members: Vec<Member> },
    /// A key-value target on the drive with this index, and the port of its host.
    Keys { kv: Box<Kv>, drive: usize, port: DevicePort },
    /// Parallel units of the drive with this index, and the port of their host.
    Units { units: Box<ParallelUnits>, drive: usize, port: DevicePort },
}

/// The device of a path's jobs.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a path has one, which is moved once")]
pub enum JobTarget {
    /// A block device.
    Blocks(CoreQueues),
    /// A key-value target.
    Keys(Box<KeyValueDevice>),
    /// Parallel units.
    Units(Box<ParallelUnits>),
}

/// A path whose members have hosts, and no device yet.
#[derive(Debug)]
pub struct OpenPath {
    spec: PathSpec,
    devices: OpenDevices,
    /// Whether a device beneath it was preconditioned.
    is_preconditioned: bool,
}

/// The device of a path.
#[derive(Debug)]
pub struct PathDevice {
    /// Name of the path.
    pub name: String,
    /// Indices of its drives in the scenario, in the order of the members of a set.
    pub drives: Vec<usize>,
    /// The device.
    pub device: JobTarget,
    /// The parts of the drives that the hosts share, to set wakers on.
    pub ports: Vec<DevicePort>,
    /// Result of preconditioning until steady state, if that was requested.
    pub steady: Option<SteadyResult>,
    /// The schedule of the members of a set, inactive. Its devices are those of
    /// [`StackBuilder::into_devices`].
    pub schedule: Option<MemberSchedule>,
}

impl StackBuilder {
    /// Powers the drives on and initializes the hosts of all paths, which are returned in the order
    /// of [`Scenario::paths`]. `reuse` may provide the stack of a drive that has one path, in the
    /// state after preconditioning.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn open(
        scenario: &Scenario,
        options: BuildOptions,
        reuse: &mut dyn FnMut(&DriveSpec) -> Option<Stack>,
    ) -> Result<(StackBuilder, Vec<OpenPath>), StackError> {
        let specs = scenario.paths();
        let (mut devices, mut hosts) = (Vec::new(), Vec::new());
        let mut device_of = Vec::with_capacity(scenario.drives.len());
        let (mut ready_at, mut at_ports, mut ahci) = (Nanos::ZERO, None, None);
        let fresh = scenario.drives.iter().map(is_fresh).collect();
        for (index, plan) in scenario.drives.iter().enumerate() {
            if plan.sata().is_some() {
                if at_ports.is_none()
                    && let Some(opened) = connect_ahci(scenario)?
                {
                    ready_at = opened.ready_at;
                    at_ports = Some(opened.hosts.into_iter());
                    ahci = Some(devices.len());
                    devices.push(opened.device);
                }
                device_of.extend(ahci);
                hosts.push(at_ports.as_mut().and_then(Iterator::next));
                continue;
            }
            if plan.is_real() {
                device_of.push(devices.len());
                devices.push(EmulatedDevice::Real(plan.config.name.clone()));
                hosts.push(None);
                continue;
            }
            let mut users = specs.iter().flat_map(|spec| scenario.members(spec.over));
            let only = users.find(|member| scenario.drive_of(*member) == index);
            // The target's name is part of the messages.
            let plan = only.map_or_else(|| plan.clone(), |member| scenario.drive_spec(member));
            let (drive, host) = match reuse(&plan) {
                Some(stack) => {
                    let (drive, host) = stack.split();
                    (drive, Some(host))
                }
                None => (Stack::power_on(&options.plan(plan))?, None),
            };
            device_of.push(devices.len());
            devices.push(EmulatedDevice::Nvme(drive));
            hosts.push(host);
        }
        let preconditioned = BTreeSet::new();
        let state_uses = Vec::new();
        let mut builder =
            StackBuilder { devices, device_of, ready_at, preconditioned, state_uses, fresh };
        let mut paths = Vec::with_capacity(specs.len());
        for spec in specs {
            paths.push(builder.open_path(scenario, spec, options, &mut hosts)?);
        }
        Ok((builder, paths))
    }

    fn open_path(
        &mut self,
        scenario: &Scenario,
        spec: PathSpec,
        options: BuildOptions,
        ready: &mut [Option<StackHost>],
    ) -> Result<OpenPath, StackError> {
        let mut plan = scenario.drive_spec(spec.over);
        plan.namespace = spec.config.namespace;
        plan.app.clone_from(&spec.config.app);
        if let HostTarget::Named(named) = &plan.target
            && named.kind == Some(TargetKind::Kv)
        {
            let drive = scenario.drive_of(spec.over);
            let host = HostOptions { vector: options.vector, ..HostOptions::default() };
            let plan = options.plan(plan.clone());
            let running = self.nvme_mut(drive, &plan)?;
            let keeps_data = running.stores_data();
            let (kv, port) = attach_with(running, &plan, &host, |controller, port, progress| {
                open_kv(&plan, named, controller, port, host.vector, keeps_data, progress)
            })?;
            let port = DevicePort::Nvme(port);
            let devices = OpenDevices::Keys { kv: Box::new(kv), drive, port };
            return Ok(OpenPath::new(spec, devices));
        }
        if options.parallel_units && scenario.has_units(spec.over) {
            let drive = scenario.drive_of(spec.over);
            let host = HostOptions { vector: options.vector, ..HostOptions::default() };
            let plan = options.plan(plan);
            let running = self.nvme_mut(drive, &plan)?;
            let (units, port) = attach_with(running, &plan, &host, |controller, _, progress| {
                open_units(&plan, controller, host.vector, progress)
            })?;
            let port = DevicePort::Nvme(port);
            let devices = OpenDevices::Units { units: Box::new(units), drive, port };
            return Ok(OpenPath::new(spec, devices));
        }
        let Beneath::Set(set) = spec.over else {
            // On an emulated drive a block layer creates the queues that it needs.
            let queues = match plan.is_real() {
                true => queues_of(&spec, &plan),
                false => NonZeroU16::MIN,
            };
            let with = (queues, AddressSpace::default());
            let member = self.open_member((scenario, spec.over), plan, options, with, ready)?;
            return Ok(OpenPath::new(spec, OpenDevices::One(Box::new(member))));
        };
        let SetSpec { name, members, stripe_bytes } = &scenario.composition.sets[set];
        // A controller of this machine and an AHCI controller have memory of their own. A set has at most
        // one such controller, and its other hosts use that memory as well.
        for member in members {
            let drive = scenario.drive_of(*member);
            let plan = &scenario.drives[drive];
            if let DriveKind::Pci(_) = plan.kind {
                ready[drive] =
                    Some(open_real(plan, queues_of(&spec, plan), AddressSpace::default())?);
            }
        }
        let own = |member: &Beneath| ready[scenario.drive_of(*member)].as_ref();
        let memory = members.iter().find_map(own).map(|host| host.device.memory().clone());
        let memory = memory.unwrap_or_default();
        let mut opened = Vec::with_capacity(members.len());
        for beneath in members {
            let drive = &scenario.drives[scenario.drive_of(*beneath)];
            let with = (queues_of(&spec, drive), memory.clone());
            let plan = scenario.drive_spec(*beneath);
            opened.push(self.open_member((scenario, *beneath), plan, options, with, ready)?);
        }
        let sector_bytes =
            opened.first().map_or(1, |member: &Member| member.host.device.limits().sector_bytes);
        if !stripe_bytes.is_multiple_of(sector_bytes.into()) {
            let (name, stripe_bytes) = (name.clone(), *stripe_bytes);
            return Err(StackError::StripeSectors { name, stripe_bytes, sector_bytes });
        }
        let stripe = u32::try_from(stripe_bytes / u64::from(sector_bytes)).unwrap_or(u32::MAX);
        let devices = OpenDevices::Set { name: name.clone(), stripe, members: opened };
        Ok(OpenPath::new(spec, devices))
    }

    fn open_member(
        &mut self,
        (scenario, beneath): (&Scenario, Beneath),
        plan: DriveSpec,
        options: BuildOptions,
        (raw_queues, memory): (NonZeroU16, AddressSpace),
        ready: &mut [Option<StackHost>],
    ) -> Result<Member, StackError> {
        let drive = scenario.drive_of(beneath);
        let mut plan = options.plan(plan);
        if let Some(host) = ready[drive].take() {
            plan.config.name.clone_from(&scenario.drives[drive].config.name);
            return Ok(Member { beneath, drive, plan, host });
        }
        if plan.is_real() {
            let host = open_real(&plan, raw_queues, memory)?;
            return Ok(Member { beneath, drive, plan, host });
        }
        let host = HostOptions { vector: options.vector, memory, raw_queues };
        let host = StackHost::attach(self.nvme_mut(drive, &plan)?, &plan, &host)?;
        plan.config.name.clone_from(&scenario.drives[drive].config.name);
        Ok(Member { beneath, drive, plan, host })
    }

    /// Returns the NVMe drive with this index in the scenario.
    fn nvme_mut(&mut self, drive: usize, plan: &DriveSpec) -> Result<&mut Controller, StackError> {
        self.devices[self.device_of[drive]].nvme_mut().ok_or_else(|| {
            let (drive, kind) = (plan.config.name.clone(), plan.kind.word());
            Impossible::NoNvmeQueues { user: "a second host", drive, kind }.into()
        })
    }

    /// Returns the time at which all devices are initialized: zero, apart from AHCI controllers.
    pub fn ready_at(&self) -> Nanos {
        self.ready_at
    }

    /// Returns how drives came to their states, by name; empty unless states are kept.
    pub fn state_uses(&self) -> &[(String, StateUse)] {
        &self.state_uses
    }

    /// Returns the devices, and the index of that of each drive, in the order of the scenario.
    pub fn into_devices(self) -> (Vec<EmulatedDevice>, Vec<usize>) {
        (self.devices, self.device_of)
    }
}

impl BuildOptions {
    /// Returns a drive as it is powered on.
    fn plan(self, plan: DriveSpec) -> DriveSpec {
        if self.write_images { plan } else { with_overlay(&plan) }
    }
}

impl OpenPath {
    fn new(spec: PathSpec, devices: OpenDevices) -> OpenPath {
        OpenPath { spec, devices, is_preconditioned: false }
    }

    /// Returns the name of the path.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns the limits of the device that the path will have without its block layer.
    ///
    /// # Errors
    /// [`StackError::Stripe`].
    pub fn limits(&self) -> Result<JobLimits, StackError> {
        Ok(match &self.devices {
            OpenDevices::One(member) => {
                let mut limits = *member.host.device.limits();
                // The last sector has the label of the log.
                limits.sectors -= u64::from(self.spec.config.log.is_some() && limits.sectors > 0);
                JobLimits::Blocks(limits)
            }
            OpenDevices::Set { name, stripe, members } => {
                let devices = members.iter().map(|member| &member.host.device);
                let (limits, _) = Stripe::<CoreQueues>::limits_of(devices, *stripe)
                    .map_err(|source| StackError::Stripe { name: name.clone(), source })?;
                JobLimits::Blocks(limits)
            }
            OpenDevices::Keys { kv, .. } => {
                let (value_bytes_max, queue_depth) = (kv.layout().value_bytes(), kv.queue_depth());
                JobLimits::Keys(KeyLimits { value_bytes_max, queue_depth })
            }
            OpenDevices::Units { units, .. } => JobLimits::Units(units.unit_limits().clone()),
        })
    }

    /// Preconditions the drives and targets beneath the path, each drive once, starting at an
    /// instant of `runner`. Drives for which `needs` returns `false` keep their state, and so do
    /// key-value targets and parallel units, which jobs load. `progress` is called with values from
    /// 0 to 1 and returns whether to continue.
    ///
    /// # Errors
    /// [`StackError`]; [`StackError::Stopped`] if `progress` returns `false`.
    pub fn precondition(
        &mut self,
        builder: &mut StackBuilder,
        what: &Precondition,
        needs: impl Fn(usize) -> bool,
        runner: &mut VirtualRunner,
        seed: u64,
        progress: &mut dyn FnMut(f64) -> bool,
    ) -> Result<(), StackError> {
        let members = match &mut self.devices {
            OpenDevices::One(member) => std::slice::from_mut(&mut **member),
            OpenDevices::Set { members, .. } => members,
            OpenDevices::Keys { .. } | OpenDevices::Units { .. } => return Ok(()),
        };
        let count = members.len() as f64;
        for (i, member) in members.iter_mut().enumerate() {
            let Member { beneath, drive, plan, host } = member;
            if !needs(*drive) {
                continue;
            }
            if matches!(beneath, Beneath::Drive(_))
                && !builder.preconditioned.insert((
                    *drive,
                    plan.namespace.unwrap_or(1),
                    plan.app.clone(),
                ))
            {
                continue;
            }
            self.is_preconditioned = true;
            let mut tell = |part: f64| progress((i as f64 + part) / count);
            let name = &plan.config.name;
            match &mut builder.devices[builder.device_of[*drive]] {
                EmulatedDevice::Nvme(running) if matches!(beneath, Beneath::Drive(_)) => {
                    let used =
                        precondition_or_load(plan, running, host, what, runner, seed, &mut tell)?;
                    builder.state_uses.extend(used.map(|used| (name.clone(), used)));
                }
                EmulatedDevice::Nvme(running) => {
                    precondition_host(name, running, host, what, runner, seed, &mut tell)?;
                }
                EmulatedDevice::Ahci(running) => {
                    precondition_host(name, running, host, what, runner, seed, &mut tell)?;
                }
                // It is not preconditioned: see `prepare_paths`.
                EmulatedDevice::Real(_) => {}
            }
        }
        Ok(())
    }

    /// Returns a copy of the path's drive and its host, built from `plan`, if the path has one drive
    /// for itself and the state can be copied: see [`Stack::duplicate`].
    ///
    /// # Errors
    /// [`StackError`].
    pub fn duplicate(
        &self,
        builder: &StackBuilder,
        plan: &DriveSpec,
    ) -> Result<Option<Stack>, StackError> {
        match &self.devices {
            OpenDevices::One(member) => match &builder.devices[builder.device_of[member.drive]] {
                EmulatedDevice::Nvme(drive) => {
                    Stack::duplicate_parts(drive, &member.host.device, plan)
                }
                EmulatedDevice::Ahci(_) | EmulatedDevice::Real(_) => Ok(None),
            },
            OpenDevices::Set { .. } | OpenDevices::Keys { .. } | OpenDevices::Units { .. } => {
                Ok(None)
            }
        }
    }

    /// Combines the members to the path's device, with the block layer of the path, at the instant
    /// `now` without advancing time. With `interrupts`, each hardware queue of a drive raises an
    /// interrupt vector.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn finish(
        self,
        builder: &mut StackBuilder,
        now: Nanos,
        notification: impl FnOnce(&PathConfig) -> Notification,
    ) -> Result<PathDevice, StackError> {
        let OpenPath { spec: PathSpec { name, config, .. }, devices, is_preconditioned } = self;
        let (layer, notification) = (config.block_layer.as_ref(), notification(&config));
        let mut schedule = None;
        let (drives, ports, steady, device) = match devices {
            OpenDevices::One(member) => {
                let Member { drive, plan, mut host, .. } = *member;
                let running = &mut builder.devices[builder.device_of[drive]];
                let name = name.clone();
                let has_layer_below = match running {
                    EmulatedDevice::Nvme(running) => match config.log {
                        Some(bytes) => {
                            let log = LogPlan { plan: &plan, bytes, is_preconditioned };
                            let (below, port) = (host.device, &host.port);
                            let device = open_log(below, port, running, &log, now, notification)?;
                            host = StackHost { device, ..host };
                            true
                        }
                        None => {
                            if !builder.fresh[drive] {
                                check_without_log(&mut host.device, running, &plan, now)?;
                            }
                            if let Some(layer) = layer {
                                host = host.with_block_layer(running, layer, now, notification)?;
                            }
                            false
                        }
                    },
                    EmulatedDevice::Ahci(_) | EmulatedDevice::Real(_) => layer.is_some(),
                };
                if let (Some(layer), true) = (layer, has_layer_below) {
                    let notification = match (config.log, notification) {
                        (Some(_), Notification::Virtual(_)) => {
                            Notification::Virtual(NotifyConfig::default())
                        }
                        _ => notification,
                    };
                    let StackHost { device, port, controller, steady } = host;
                    let device = block_layer_over(device, layer, notification, name)?;
                    host = StackHost { device, port, controller, steady };
                }
                let StackHost { mut device, port, steady, .. } = host;
                if layer.is_none() && config.log.is_none() {
                    device = device.with_notification(notification);
                }
                (vec![drive], vec![port], steady, JobTarget::Blocks(device))
            }
            OpenDevices::Set { name, stripe, mut members } => {
                for Member { drive, plan, host, .. } in &mut members {
                    if let (EmulatedDevice::Nvme(running), false) =
                        (&mut builder.devices[builder.device_of[*drive]], builder.fresh[*drive])
                    {
                        check_without_log(&mut host.device, running, plan, now)?;
                    }
                }
                let drives: Vec<usize> = members.iter().map(|member| member.drive).collect();
                let devices_of: Vec<usize> =
                    drives.iter().map(|drive| builder.device_of[*drive]).collect();
                let ports = members.iter().map(|member| member.host.port.clone()).collect();
                let steady = members.iter().find_map(|member| member.host.steady.clone());
                let devices = members.into_iter().map(|member| member.host.device).collect();
                let (mut device, of_members) = stripe_devices(devices, stripe, &devices_of)
                    .map_err(|source| StackError::Stripe { name: name.clone(), source })?;
                schedule = Some(of_members);
                device = match layer {
                    Some(layer) => block_layer_over(device, layer, notification, name)?,
                    None => device.with_notification(notification),
                };
                (drives, ports, steady, JobTarget::Blocks(device))
            }
            OpenDevices::Keys { kv, drive, port } => {
                let device = JobTarget::Keys(Box::new(KeyValueDevice::new(*kv)));
                (vec![drive], vec![port], None, device)
            }
            OpenDevices::Units { units, drive, port } => {
                (vec![drive], vec![port], None, JobTarget::Units(units))
            }
        };
        Ok(PathDevice { name, drives, device, ports, steady, schedule })
    }
}

/// Returns the number of hardware queues that a path needs on a drive.
fn queues_of(spec: &PathSpec, drive: &DriveSpec) -> NonZeroU16 {
    let granted = drive.config.controller.max_io_queues;
    let queues = spec.config.block_layer.as_ref().map(|layer| layer.hardware_queues(granted));
    queues.and_then(NonZeroU16::new).unwrap_or(NonZeroU16::MIN)
}

/// Stripes devices by `stripe` sectors, with as many queues as the member with the fewest has.
/// `devices_of` has the index of the device of each member.
fn stripe_devices(
    devices: Vec<CoreQueues>,
    stripe: u32,
    devices_of: &[usize],
) -> Result<(CoreQueues, MemberSchedule), StripeError> {
    let cores = devices.iter().map(CoreQueues::cores).min().unwrap_or(0);
    let mut features = devices.first().map(CoreQueues::features).unwrap_or_default();
    for other in devices.iter().map(CoreQueues::features) {
        features.fua &= other.fua;
        features.discard &= other.discard;
        features.write_zeroes &= other.write_zeroes;
    }
    let mut members: Vec<_> = devices
        .into_iter()
        .map(|device| device.into_hardware_queues(cores as u16).into_iter())
        .collect();
    let schedule = MemberSchedule::new(devices_of, cores);
    let mut queues = Vec::with_capacity(cores);
    for queue in 0..cores {
        let devices = members.iter_mut().filter_map(Iterator::next).collect();
        queues.push(Stripe::new(devices, stripe)?.with_schedule(schedule.clone(), queue));
    }
    let features = Stripe::<CoreQueues>::features(features);
    let device = CoreQueues::new(queues, features).ok_or(StripeError::Members(0))?;
    Ok((device, schedule))
}
