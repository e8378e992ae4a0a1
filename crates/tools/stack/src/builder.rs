//! [`StackBuilder`]: builds the drives of a scenario and the devices of its paths.
//!
//! Each drive or target beneath a path has a host of its own at the drive. The hosts of a set's
//! members share their memory, so that one payload reaches all of them. Building takes no virtual
//! time, apart from preconditioning until steady state.

use std::num::NonZeroU16;
use std::sync::Arc;

use block::{BlockDevice, Stripe, StripeError};
use controller::Controller;
use kv::Kv;
use lnvm::TargetKind;
use mem::AddressSpace;
use scenario::{Beneath, DriveSpec, HostTarget, PathSpec, Precondition, Scenario, SetSpec};
use time::{Nanos, VirtualRunner};
use transport::Port;
use workload::{JobLimits, KeyLimits, KeyValueDevice};

use super::host::{attach_kv, block_layer_over};
use super::precondition::precondition_host;
use super::steady_state::SteadyResult;
use super::{CoreQueue, CoreQueues, HostOptions, Stack, StackError, StackHost, with_overlay};

impl CoreQueue for Stripe<CoreQueues> {}

/// Options of building the drives of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildOptions {
    /// Interrupt vector that a drive raises, if the hosts sleep.
    pub vector: Option<u16>,
    /// Whether images of drives are modified. Otherwise they are only read, and writes stay in
    /// memory.
    pub write_images: bool,
}

/// The drives of a scenario while the devices of its paths are built.
#[derive(Debug)]
pub struct StackBuilder {
    drives: Vec<Controller>,
    /// Whether the blocks of a drive itself have been preconditioned.
    preconditioned: Vec<bool>,
}

/// A drive or target beneath a path, with its host.
#[derive(Debug)]
struct Member {
    beneath: Beneath,
    /// Index of the drive.
    drive: usize,
    host: StackHost,
}

/// The devices beneath a path.
#[derive(Debug)]
enum OpenDevices {
    /// Block devices.
    Blocks(Vec<Member>),
    /// A key-value target on the drive with this index, and the port of its host.
    Keys { kv: Box<Kv>, drive: usize, port: Arc<Port> },
}

/// The device of a path's jobs.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a path has one, which is moved once")]
pub enum JobTarget {
    /// A block device.
    Blocks(CoreQueues),
    /// A key-value target.
    Keys(Box<KeyValueDevice>),
}

/// A path whose members have hosts, and no device yet.
#[derive(Debug)]
pub struct OpenPath {
    spec: PathSpec,
    /// The set that the path is over, with its stripe size in sectors.
    set: Option<(SetSpec, u32)>,
    devices: OpenDevices,
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
    /// The ports of its hosts, to set wakers on.
    pub ports: Vec<Arc<Port>>,
    /// Result of preconditioning until steady state, if that was requested.
    pub steady: Option<SteadyResult>,
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
        let (mut drives, mut hosts) = (Vec::new(), Vec::new());
        for (index, plan) in scenario.drives.iter().enumerate() {
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
            drives.push(drive);
            hosts.push(host);
        }
        let mut builder = StackBuilder { preconditioned: vec![false; drives.len()], drives };
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
        let plan = scenario.drive_spec(spec.over);
        if let HostTarget::Named(named) = &plan.target
            && named.kind == Some(TargetKind::Kv)
        {
            let drive = scenario.drive_of(spec.over);
            let host = HostOptions { vector: options.vector, ..HostOptions::default() };
            let running = &mut self.drives[drive];
            let (kv, port) = attach_kv(running, &options.plan(plan.clone()), named, &host)?;
            let devices = OpenDevices::Keys { kv: Box::new(kv), drive, port };
            return Ok(OpenPath { spec, set: None, devices });
        }
        let memory = AddressSpace::default();
        let set = match spec.over {
            Beneath::Set(i) => Some(scenario.composition.sets[i].clone()),
            Beneath::Drive(_) | Beneath::Target(_) => None,
        };
        let mut members = Vec::new();
        for beneath in scenario.members(spec.over) {
            let drive = scenario.drive_of(beneath);
            let plan = scenario.drive_spec(beneath);
            // A block layer over a single drive creates the queues that it needs.
            let raw_queues = match (&spec.config.block_layer, &set) {
                (Some(layer), Some(_)) => {
                    layer.hardware_queues(plan.config.controller.max_io_queues)
                }
                _ => 1,
            };
            let raw_queues = NonZeroU16::new(raw_queues).unwrap_or(NonZeroU16::MIN);
            let host = match ready[drive].take() {
                Some(host) => host,
                None => {
                    let (vector, memory) = (options.vector, memory.clone());
                    let options_of_host = HostOptions { vector, memory, raw_queues };
                    let running = &mut self.drives[drive];
                    StackHost::attach(running, &options.plan(plan), &options_of_host)?
                }
            };
            members.push(Member { beneath, drive, host });
        }
        let sector = members.first().map_or(1, |m| m.host.device.limits().sector_bytes.max(1));
        let set = set.map(|set| {
            let sectors = u32::try_from(set.stripe_bytes / u64::from(sector)).unwrap_or(u32::MAX);
            (set, sectors)
        });
        Ok(OpenPath { spec, set, devices: OpenDevices::Blocks(members) })
    }

    /// Returns the drives, in the order of the scenario.
    pub fn into_drives(self) -> Vec<Controller> {
        self.drives
    }
}

impl BuildOptions {
    /// Returns a drive as it is powered on.
    fn plan(self, plan: DriveSpec) -> DriveSpec {
        if self.write_images { plan } else { with_overlay(&plan) }
    }
}

impl OpenPath {
    /// Returns the name of the path.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns the limits of the device that the path will have without its block layer.
    ///
    /// # Errors
    /// [`StackError::Stripe`].
    pub fn limits(&self) -> Result<JobLimits, StackError> {
        let members = match &self.devices {
            OpenDevices::Blocks(members) => members,
            OpenDevices::Keys { kv, .. } => {
                let (value_bytes_max, queue_depth) = (kv.layout().value_bytes(), kv.queue_depth());
                return Ok(JobLimits::Keys(KeyLimits { value_bytes_max, queue_depth }));
            }
        };
        let mut devices = members.iter().map(|member| &member.host.device);
        let blocks = match (&self.set, devices.next()) {
            (Some((set, stripe)), _) => {
                let devices = members.iter().map(|member| &member.host.device);
                Stripe::<CoreQueues>::limits_of(devices, *stripe)
                    .map(|(limits, _)| limits)
                    .map_err(|source| StackError::Stripe { name: set.name.clone(), source })?
            }
            (None, Some(only)) => *only.limits(),
            (None, None) => {
                let name = self.spec.name.clone();
                return Err(StackError::Stripe { name, source: StripeError::Members(0) });
            }
        };
        Ok(JobLimits::Blocks(blocks))
    }

    /// Preconditions the drives and targets beneath the path, each drive once, starting at an
    /// instant of `runner`. Drives for which `needs` returns `false` keep their state, and so do
    /// key-value targets, which jobs load.
    ///
    /// # Errors
    /// [`StackError`].
    pub fn precondition(
        &mut self,
        builder: &mut StackBuilder,
        what: &Precondition,
        needs: impl Fn(usize) -> bool,
        runner: &mut VirtualRunner,
        seed: u64,
        progress: &mut dyn FnMut(f64),
    ) -> Result<(), StackError> {
        let OpenDevices::Blocks(members) = &mut self.devices else { return Ok(()) };
        let count = members.len() as f64;
        for (i, member) in members.iter_mut().enumerate() {
            let Member { beneath, drive, host } = member;
            if !needs(*drive) {
                continue;
            }
            if matches!(beneath, Beneath::Drive(_))
                && std::mem::replace(&mut builder.preconditioned[*drive], true)
            {
                continue;
            }
            let running = &mut builder.drives[*drive];
            let mut tell = |part: f64| progress((i as f64 + part) / count);
            precondition_host(running, host, what, runner, seed, &mut tell)?;
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
            OpenDevices::Blocks(members) if members.len() == 1 => {
                let Member { drive, host, .. } = &members[0];
                Stack::duplicate_parts(&builder.drives[*drive], &host.device, plan)
            }
            OpenDevices::Blocks(_) | OpenDevices::Keys { .. } => Ok(None),
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
        interrupts: bool,
    ) -> Result<PathDevice, StackError> {
        let OpenPath { spec, set, devices } = self;
        let members = match devices {
            OpenDevices::Blocks(members) => members,
            OpenDevices::Keys { kv, drive, port } => {
                let (name, drives, ports) = (spec.name, vec![drive], vec![port]);
                let device = JobTarget::Keys(Box::new(KeyValueDevice::new(*kv)));
                return Ok(PathDevice { name, drives, device, ports, steady: None });
            }
        };
        let drives: Vec<usize> = members.iter().map(|member| member.drive).collect();
        let ports: Vec<_> = members.iter().map(|member| member.host.port.clone()).collect();
        let steady = members.iter().find_map(|member| member.host.steady.clone());
        let layer = spec.config.block_layer.as_ref();
        let name = spec.name;
        let mut devices = Vec::new();
        for Member { drive, host, .. } in members {
            devices.push(match (layer, &set) {
                (Some(layer), None) => {
                    let running = &mut builder.drives[drive];
                    host.with_block_layer(running, layer, now, interrupts)?.device
                }
                _ => host.device,
            });
        }
        let device = match (set, devices.pop()) {
            (None, Some(only)) => only,
            (set, last) => {
                devices.extend(last);
                let (set, stripe) =
                    set.map_or((name.clone(), 0), |(set, stripe)| (set.name, stripe));
                let device = stripe_devices(devices, stripe)
                    .map_err(|source| StackError::Stripe { name: set.clone(), source })?;
                match layer {
                    Some(layer) => block_layer_over(device, layer, set)?,
                    None => device,
                }
            }
        };
        let device = JobTarget::Blocks(device);
        Ok(PathDevice { name, drives, device, ports, steady })
    }
}

/// Stripes devices by `stripe` sectors, with as many queues as the member with the fewest has.
fn stripe_devices(devices: Vec<CoreQueues>, stripe: u32) -> Result<CoreQueues, StripeError> {
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
    let mut queues = Vec::with_capacity(cores);
    for _ in 0..cores {
        let devices = members.iter_mut().filter_map(Iterator::next).collect();
        queues.push(Stripe::new(devices, stripe)?);
    }
    CoreQueues::new(queues, Stripe::<CoreQueues>::features(features)).ok_or(StripeError::Members(0))
}
