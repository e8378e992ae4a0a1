//! [`DriveThreadGuard`]: owns the threads of a device's drives and shuts them down.
//! [`DriveControl`]: reads the counters of such drives, injects faults into them, and changes their
//! namespaces.
//!
//! Guarantee: when the guard has been dropped, the threads have ended, the host's targets are
//! flushed and have written a checkpoint, the drives' write buffers are on their media, and their
//! images are synced.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{Builder, JoinHandle};

use controller::{
    Controller, DriveRulesError, DriveStats, Fault, FaultError, FaultRecord, NamespaceError,
    NamespaceRequest, RuleTableEdit,
};
use event::{AllowedCpus, RealClock, RealRunner, StopHandle, ThreadUse};
use nvme::RULE_TABLE_ENTRIES_MAX;
use rules_lang::{CompileOptions, RuleSourceError};
use share_server::{
    NamespaceControl, NamespaceControlError, NamespaceListing, OwnerChannel, OwnerStopped,
    RuleControl, RuleControlError, RuleReport, RuleTableKey,
};
use stack::{
    DevicePort, DriveSnapshot, DriveThreadState, EmulatedDevice, SnapshotCell, SnapshotSource,
};

use super::target_queue::TargetQueues;
use super::{CloseError, OpenOptions};

/// A device to start a thread for, and the parts of it that hosts in this process share.
#[derive(Debug)]
pub(super) struct PoweredDevice {
    /// The device.
    pub(super) device: EmulatedDevice,
    /// The part of it that each host shares.
    pub(super) ports: Vec<DevicePort>,
}

/// Owns the threads of a device's drives; shuts the drives down when dropped.
#[derive(Debug)]
pub(super) struct DriveThreadGuard {
    clock: RealClock,
    threads: Vec<DriveThread>,
    /// The host's side of the drives, which is closed before them; nothing if the owners of queues
    /// have deleted them.
    target: Option<Arc<TargetQueues>>,
    close_errors: Option<Sender<CloseError>>,
    /// Devices of this machine, which are closed after the host's side.
    real: Vec<DevicePort>,
}

/// The thread of one drive.
#[derive(Debug)]
struct DriveThread {
    name: String,
    stopper: StopHandle,
    thread: JoinHandle<(io::Result<()>, DriveThreadState)>,
}

/// Reads the counters of a device's drives, injects faults into them, and changes their namespaces,
/// from any thread. It costs a drive's thread one load per iteration.
#[derive(Clone, Debug, Default)]
pub struct DriveControl {
    cells: Vec<SnapshotSource<DriveSnapshot>>,
    /// The emulated NVMe drives.
    owners: Vec<DriveOwner>,
}

/// An emulated NVMe drive, and the way to its thread.
#[derive(Clone, Debug)]
struct DriveOwner {
    name: String,
    channel: OwnerChannel<Controller>,
    clock: RealClock,
    /// The rules of its target on the host, if that has some.
    target_rules: Option<RuleControl>,
}

/// Why a drive of a device does not have a fault, or does not change its namespaces.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DriveControlError {
    /// The device has no such drive.
    #[error("no emulated NVMe drive {name} is behind the device; there are: {names}")]
    NoDrive {
        /// The name that was given.
        name: String,
        /// The names of the drives.
        names: String,
    },
    /// A drive must be named.
    #[error("several emulated NVMe drives are behind the device: name one of {names}")]
    Several {
        /// The names of the drives.
        names: String,
    },
    /// This process emulates no NVMe drive of the device.
    #[error(
        "no drive behind the device is an emulated NVMe drive of this process; `sluice admin` \
         reaches drives of `sluice serve`"
    )]
    NotEmulated,
    /// The drive cannot have the fault.
    #[error(transparent)]
    Refused(#[from] FaultError),
    /// The drive refuses the change of its namespaces, or it failed.
    #[error(transparent)]
    Namespaces(#[from] NamespaceError),
    /// A rule program is not accepted.
    #[error(transparent)]
    RuleSource(#[from] Box<RuleSourceError>),
    /// The drive does not take a rule program, or has no rules.
    #[error(transparent)]
    Rules(#[from] DriveRulesError),
    /// A target on the host does not take a rule program, or has no parked request.
    #[error("{0}")]
    TargetRules(String),
    /// The drive's thread has ended.
    #[error(transparent)]
    Stopped(#[from] OwnerStopped),
}

impl From<RuleControlError> for DriveControlError {
    fn from(error: RuleControlError) -> DriveControlError {
        match error {
            RuleControlError::Refused(error) => error.into(),
            RuleControlError::Stopped(stopped) => stopped.into(),
            error @ (RuleControlError::Target(_) | RuleControlError::NothingParked) => {
                DriveControlError::TargetRules(error.to_string())
            }
        }
    }
}

impl DriveOwner {
    fn namespaces(&self) -> NamespaceControl {
        NamespaceControl::new(self.channel.clone(), self.clock)
    }

    /// Returns the access to the rules of the drive, or of its target.
    fn rules(&self) -> RuleControl {
        let own = || RuleControl::new(self.channel.clone(), self.clock);
        self.target_rules.clone().unwrap_or_else(own)
    }
}

impl DriveControl {
    /// Returns the current counters of the drive, at most a fifth of a second old; of the first one
    /// of a set. `None` if the drive has never answered.
    pub fn stats(&self) -> Option<DriveStats> {
        self.all_stats()?.into_iter().next().map(|(_, stats)| stats)
    }

    /// Returns the name and the current counters of each emulated drive, as
    /// [`stats`](DriveControl::stats) does. `None` if one of them has never answered.
    pub fn all_stats(&self) -> Option<Vec<(String, DriveStats)>> {
        let snapshots = SnapshotCell::request_all(&self.cells)?;
        Some(snapshots.into_iter().flat_map(|seen| seen.drives).collect())
    }

    /// Makes a drive fail, now. `drive` names one of several drives; the only one if omitted.
    ///
    /// ```
    /// use controller::Fault;
    /// use media::PuId;
    /// use sluice_open::{OpenOptions, open_scenario};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = "drive = { preset = \"femu-default\", geometry = { chunks = 16 } }";
    /// let scenario = scenario::Scenario::parse("first.toml".as_ref(), text)?;
    /// let (device, control) = open_scenario(&scenario, None, &OpenOptions::default())?;
    /// control.inject_fault(None, Fault::DieFailure { pu: PuId(3) })?;
    /// assert_eq!(control.faults(None)?[0].count, Some(16));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`DriveControlError`]; nothing has changed.
    pub fn inject_fault(&self, drive: Option<&str>, fault: Fault) -> Result<(), DriveControlError> {
        let owner = self.owner(drive)?;
        let clock = owner.clock;
        Ok(owner.channel.call(move |drive| drive.inject_fault(clock.now(), fault))??)
    }

    /// Returns the faults that a drive had, oldest first. `drive` is as for
    /// [`inject_fault`](DriveControl::inject_fault).
    ///
    /// # Errors
    /// [`DriveControlError`] if there is no such drive, or its thread has ended.
    pub fn faults(&self, drive: Option<&str>) -> Result<Vec<FaultRecord>, DriveControlError> {
        Ok(self.owner(drive)?.channel.call(|drive| drive.faults())?)
    }

    /// Returns what rule programs of a drive, or of its target with `kind = "rules"`, may use, and the
    /// counters of the rules with the classes of commands that no rule matched. `drive` is as for [`inject_fault`](DriveControl::inject_fault).
    ///
    /// # Errors
    /// [`DriveControlError`] if there is no such drive, if it has no rules, or if its thread has ended.
    pub fn rules(&self, drive: Option<&str>) -> Result<RuleReport, DriveControlError> {
        Ok(self.owner(drive)?.rules().report()?)
    }

    /// Compiles a rule program for a drive with `personality = "rules"`, or for a target with
    /// `kind = "rules"`, and installs it (`docs/rules.md`). `name` names the program in errors. Returns the number of commands that no
    /// rule of it matches, which stay parked. `drive` is as for
    /// [`inject_fault`](DriveControl::inject_fault).
    ///
    /// ```
    /// use sluice_open::{OpenOptions, open_scenario};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = "drive = { preset = \"femu-default\", geometry = { chunks = 16 }, \
    ///             personality = \"rules\", rules = { template = \"throughput\" } }";
    /// let scenario = scenario::Scenario::parse("first.toml".as_ref(), text)?;
    /// let (device, control) = open_scenario(&scenario, None, &OpenOptions::default())?;
    /// let units = control.rules(None)?.units;
    /// let source = format!(
    ///     "app db {{ units = 0-{}, spare = 0.05 }}\n\
    ///      table map: addr[db.sectors] durable\n\
    ///      rule load when channel.app == db and header.read\n\
    ///        do header.addr = map[header.lba]; insert lun\n",
    ///     units - 1
    /// );
    /// assert_eq!(control.install_rules(None, "load.rules", source.as_bytes())?, 0);
    /// assert_eq!(control.rules(None)?.stats.rules[0].name, "load");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`DriveControlError`]; nothing has changed.
    pub fn install_rules(
        &self,
        drive: Option<&str>,
        name: &str,
        source: &[u8],
    ) -> Result<u64, DriveControlError> {
        let rules = self.owner(drive)?.rules();
        let limits = rules.report()?;
        let (grant, sector_bytes, lines) = (limits.grant(), limits.sector_bytes, limits.lines);
        let options = CompileOptions { grant, sector_bytes, lines };
        let verified = rules_lang::check(name.as_ref(), source, &options)?;
        Ok(rules.install(verified.program().encode())?)
    }

    /// Ends commands that no rule of a drive matches: those of an operation (`read`, `write` …), or all
    /// of them. A target parks none, so that this is an error. Returns their number. `drive` is as for [`inject_fault`](DriveControl::inject_fault).
    ///
    /// # Errors
    /// [`DriveControlError`]; nothing has changed.
    pub fn reject_misses(
        &self,
        drive: Option<&str>,
        op: Option<&str>,
    ) -> Result<u64, DriveControlError> {
        Ok(self.owner(drive)?.rules().reject(op.map(str::to_owned))?)
    }

    /// Changes entries of a table of the rules of a drive, in order and between two inputs. The number or
    /// the name of `table` is that in the program. `drive` is as for
    /// [`inject_fault`](DriveControl::inject_fault).
    ///
    /// # Errors
    /// [`DriveControlError`]; the entries before the one that the table does not take are stored.
    pub fn edit_rule_table(
        &self,
        drive: Option<&str>,
        table: impl Into<RuleTableKey>,
        edits: Vec<RuleTableEdit>,
    ) -> Result<(), DriveControlError> {
        Ok(self.owner(drive)?.rules().edit_table(table.into(), edits)?)
    }

    /// Returns the values of `count` consecutive keys of a table of the rules of a drive, from `first`
    /// on: the elements of an array, the values of a map (0 of an absent key), or 1 for each key that a
    /// set has. `drive` is as for [`inject_fault`](DriveControl::inject_fault).
    ///
    /// # Errors
    /// [`DriveControlError`], also for indices past the end of an array.
    pub fn rule_table_values(
        &self,
        drive: Option<&str>,
        table: impl Into<RuleTableKey>,
        first: u64,
        count: u32,
    ) -> Result<Vec<u64>, DriveControlError> {
        let (rules, mut values) = (self.owner(drive)?.rules(), Vec::new());
        let table = table.into();
        // The drive does nothing else meanwhile.
        while values.len() < count as usize {
            let done = values.len();
            let first = first.saturating_add(done as u64);
            let count = (count - done as u32).min(RULE_TABLE_ENTRIES_MAX);
            values.extend(rules.table_values(table.clone(), first, count)?);
        }
        Ok(values)
    }

    /// Returns the namespaces of a drive. `drive` is as for
    /// [`inject_fault`](DriveControl::inject_fault).
    ///
    /// # Errors
    /// [`DriveControlError`] if there is no such drive, or its thread has ended.
    pub fn namespaces(&self, drive: Option<&str>) -> Result<NamespaceListing, DriveControlError> {
        Ok(self.owner(drive)?.namespaces().list()?)
    }

    /// Changes the namespaces of a drive, as Namespace Management and Namespace Attachment do, and
    /// waits for the end of the change. Returns the identifier of a created namespace, and 0 for
    /// other requests. `drive` is as for [`inject_fault`](DriveControl::inject_fault).
    ///
    /// The device keeps the namespace that it has opened. Its requests fail while that is deleted or
    /// detached.
    ///
    /// ```
    /// use controller::NamespaceRequest;
    /// use sluice_open::{OpenOptions, open_scenario};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = "drive = { preset = \"femu-default\", geometry = { chunks = 16 }, \
    ///             namespaces = [\"8M\"] }";
    /// let scenario = scenario::Scenario::parse("first.toml".as_ref(), text)?;
    /// let (device, control) = open_scenario(&scenario, None, &OpenOptions::default())?;
    /// let create = NamespaceRequest::Create { bytes: Some(4 << 20) };
    /// let nsid = control.change_namespaces(None, create)?;
    /// control.change_namespaces(None, NamespaceRequest::Attach { nsid })?;
    /// assert_eq!(control.namespaces(None)?.namespaces.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`DriveControlError`]. The change goes on after [`NamespaceError::Unfinished`], which is
    /// returned after 20 s; otherwise nothing has changed.
    pub fn change_namespaces(
        &self,
        drive: Option<&str>,
        request: NamespaceRequest,
    ) -> Result<u32, DriveControlError> {
        let changed = self.owner(drive)?.namespaces().change(request);
        changed.map_err(|error| match error {
            NamespaceControlError::Refused(NamespaceError::Stopped) => OwnerStopped.into(),
            NamespaceControlError::Refused(error) => error.into(),
            NamespaceControlError::Stopped(stopped) => stopped.into(),
        })
    }

    /// Has a drive's calls for rules reach those of its target on the host.
    pub(super) fn set_target_rules(&mut self, drive: &str, rules: &RuleControl) {
        let own = self.owners.iter_mut().filter(|owner| owner.name == drive);
        own.for_each(|owner| owner.target_rules = Some(rules.clone()));
    }

    fn owner(&self, drive: Option<&str>) -> Result<&DriveOwner, DriveControlError> {
        let names = || {
            let names: Vec<&str> = self.owners.iter().map(|owner| owner.name.as_str()).collect();
            names.join(", ")
        };
        match (drive, &self.owners[..]) {
            (_, []) => Err(DriveControlError::NotEmulated),
            (None, [only]) => Ok(only),
            (None, _) => Err(DriveControlError::Several { names: names() }),
            (Some(name), owners) => {
                let found = owners.iter().find(|owner| owner.name == name);
                let no_drive = || DriveControlError::NoDrive { name: name.into(), names: names() };
                found.ok_or_else(no_drive)
            }
        }
    }
}

impl DriveThreadGuard {
    /// Starts the threads of the drives. All of them are pinned to `core`, if it is given.
    ///
    /// # Errors
    /// The error of the operating system, if it provides no thread or no descriptor.
    pub(super) fn start(
        drives: Vec<PoweredDevice>,
        clock: RealClock,
        options: &OpenOptions,
        target: Option<Arc<TargetQueues>>,
    ) -> io::Result<(DriveThreadGuard, DriveControl)> {
        let mut view = DriveControl::default();
        let (core, close_errors) = (options.drive_core, options.close_errors.clone());
        // After an error the guard ends the threads that have started.
        let threads = Vec::with_capacity(drives.len());
        let mut guard = DriveThreadGuard { clock, threads, target, close_errors, real: Vec::new() };
        for PoweredDevice { device: drive, ports } in drives {
            if let EmulatedDevice::Real(_) = drive {
                // It works by itself, and is open as long as its queues.
                guard.real.extend(ports);
                continue;
            }
            let runner = RealRunner::new(clock, options.drive_idle)?;
            for port in &ports {
                port.set_drive_waker(runner.waker())?;
            }
            let (stopper, cell) = (runner.stop_handle(), SnapshotCell::new());
            view.cells.push(SnapshotSource { cell: cell.clone(), waker: runner.waker() });
            let name = drive.name().to_owned();
            let is_nvme = matches!(drive, EmulatedDevice::Nvme(_));
            let mut live = DriveThreadState::new(drive, clock, cell, ThreadUse::OneComponent);
            if is_nvme {
                let channel = live.owner_channel(runner.waker());
                view.owners.push(DriveOwner {
                    name: name.clone(),
                    channel,
                    clock,
                    target_rules: None,
                });
            }
            let thread = Builder::new().name(format!("drive {name}")).spawn(move || {
                if let Some(core) = core {
                    AllowedCpus::allowed().pin(core);
                }
                let ran = runner.run(&mut live);
                (ran, live)
            })?;
            guard.threads.push(DriveThread { name, stopper, thread });
        }
        Ok((guard, view))
    }

    fn close(&mut self) -> Result<(), CloseError> {
        let threads = std::mem::take(&mut self.threads);
        threads.iter().for_each(|thread| thread.stopper.stop());
        let (mut live, mut first) = (Vec::new(), Ok(()));
        for DriveThread { name, thread, .. } in threads {
            let ended = match thread.join() {
                Ok((ran, drive)) => {
                    live.push(drive);
                    ran.map_err(|source| CloseError::Thread { drive: name, source })
                }
                Err(_) => Err(CloseError::Panicked { drive: name }),
            };
            first = first.and(ended);
        }
        // A target whose drive is lost cannot be flushed. The other drives are shut down in any
        // case, to save as much data as possible.
        let lost = matches!(first, Err(CloseError::Panicked { .. }));
        if let (Some(queues), false) = (self.target.take(), lost) {
            first = first.and(queues.close(&mut live, self.clock));
        }
        for drive in live {
            let name = drive.drive.name().to_owned();
            let down = drive.drive.shut_down();
            first = first.and(down.map_err(|source| CloseError::ShutDown { drive: name, source }));
        }
        first
    }
}

impl Drop for DriveThreadGuard {
    fn drop(&mut self) {
        if let (Err(error), Some(closed)) = (self.close(), &self.close_errors) {
            // The receiver may have been dropped if the caller ignores errors.
            let _ = closed.send(error);
        }
    }
}
