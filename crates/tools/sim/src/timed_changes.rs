//! [`TimedChanges`]: the changes of settings (`[[at]]`) and the faults (`[[fault]]`) that a scenario
//! has at instants of the run.

use controller::FaultError;
use ftl::{ControlChange, ControlError};
use scenario::{Beneath, ChangedSettings, Scenario, TimedChange};
use stack::target_layers;
use time::Nanos;

use crate::SimError;
use crate::hosted::{HostChangeError, HostedPath};
use crate::sim_run::SimRun;

/// Remedy for a change that an FTL refuses.
const OPENED_FOR: &str = "change it to a value that the device was opened for";

/// The changes of a scenario during its run.
///
/// A change takes place when everything before its instant has happened, and nothing at it.
pub(super) struct TimedChanges<'s> {
    scenario: &'s Scenario,
    /// Start of the jobs.
    started: Nanos,
    /// Changes that have not taken place, in the order of their times.
    pending: &'s [TimedChange],
}

impl<'s> TimedChanges<'s> {
    /// Returns the changes of a run that starts now, after checking that its devices accept them.
    ///
    /// # Errors
    /// [`SimError::Scenario`] with file and line.
    pub(super) fn start(
        scenario: &'s Scenario,
        started: Nanos,
        run: &mut SimRun,
    ) -> Result<TimedChanges<'s>, SimError> {
        let changes = TimedChanges { scenario, started, pending: &scenario.changes };
        for timed in changes.pending {
            changes.visit(timed, run, None)?;
        }
        Ok(changes)
    }

    /// Returns whether all changes have taken place.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the instant of the next change; [`Nanos::MAX`] if there is none.
    pub(super) fn deadline(&self) -> Nanos {
        self.pending.first().map_or(Nanos::MAX, |timed| self.started + timed.time)
    }

    /// Applies the changes that are due.
    ///
    /// # Errors
    /// [`SimError::Scenario`] with file and line.
    pub(super) fn apply(&mut self, now: Nanos, run: &mut SimRun) -> Result<(), SimError> {
        while let [timed, rest @ ..] = self.pending
            && self.started + timed.time <= now
        {
            self.visit(timed, run, Some(now))?;
            run.wake_all();
            self.pending = rest;
        }
        Ok(())
    }

    /// Checks that every change has taken place.
    ///
    /// # Errors
    /// [`SimError::Scenario`] for the first change after the end of the jobs.
    pub(super) fn finish(&self, now: Nanos) -> Result<(), SimError> {
        let Some(timed) = self.pending.first() else { return Ok(()) };
        let elapsed = now.since(self.started);
        let what = match timed.settings {
            ChangedSettings::Fault { .. } => "fault",
            ChangedSettings::Ftl { .. } | ChangedSettings::Group { .. } => "change",
        };
        let message = format!("the jobs end after {elapsed}, before this {what} at {}", timed.time);
        let help = "let a job run longer (`runtime` with `time_based`), or move it".into();
        Err(self.scenario.conflict_in_line(timed.line, message, help).into())
    }

    /// Checks the changes of one instant, or applies them if it is `now`.
    fn visit(
        &self,
        timed: &TimedChange,
        run: &mut SimRun,
        now: Option<Nanos>,
    ) -> Result<(), SimError> {
        match &timed.settings {
            ChangedSettings::Ftl { device, changes } => {
                for (change, line) in changes {
                    self.visit_one(*device, (change, *line), run, now).map_err(|refused| {
                        let name = self.scenario.device_name(*device);
                        self.refused(name, *line, &refused.to_string(), OPENED_FOR)
                    })?;
                }
            }
            ChangedSettings::Group { path, group, changes } => {
                // The scenario has checked these.
                let Some(now) = now else { return Ok(()) };
                for (change, line) in changes {
                    let of_path = &mut run.paths[*path];
                    let changed = match &of_path.hosted {
                        Some(hosted) => hosted.change_group(now, *group, *change, *line),
                        None => match of_path.device_mut() {
                            Some(device) => {
                                target_layers::change_group(device, now, *group, *change)
                            }
                            None => Err(change.unsupported(*group)),
                        }
                        .map_err(HostChangeError::from),
                    };
                    changed.map_err(|refused| self.refused_by_path(*path, *line, &refused))?;
                }
            }
            ChangedSettings::Fault { drive, fault } => {
                let device = run.devices[run.drives[*drive].device].nvme_mut();
                let kind = fault.kind();
                let injected =
                    device.map_or(Err(FaultError::NoFlash { kind }), |device| match now {
                        Some(now) => device.inject_fault(now, *fault),
                        None => device.check_fault(fault),
                    });
                injected.map_err(|refused| {
                    let name = &self.scenario.drives[*drive].config.name;
                    let message = format!("\"{name}\" cannot have this fault: {refused}");
                    let help = "see docs/faults.md for the faults that a drive can have".into();
                    self.scenario.conflict_in_line(timed.line, message, help)
                })?;
            }
        }
        Ok(())
    }

    fn refused(&self, name: &str, line: usize, why: &str, help: &str) -> SimError {
        let message = format!("\"{name}\" refuses the change: {why}");
        self.scenario.conflict_in_line(line, message, help.into()).into()
    }

    fn refused_by_path(&self, path: usize, line: usize, refused: &HostChangeError) -> SimError {
        let help = match refused {
            HostChangeError::Ftl(_) => OPENED_FOR,
            HostChangeError::Group(_) => "see docs/scenario.md, `[[at]]`",
        };
        self.refused(&self.scenario.paths()[path].name, line, &refused.to_string(), help)
    }

    /// Checks that the threads of a modeled machine have applied all changes that they were given.
    ///
    /// # Errors
    /// [`SimError::Scenario`] with file and line.
    pub(super) fn check_hosted(&self, run: &SimRun) -> Result<(), SimError> {
        for (index, path) in run.paths.iter().enumerate() {
            if let Some((line, refused)) = path.hosted.as_ref().and_then(HostedPath::refused) {
                return Err(self.refused_by_path(index, line, &refused));
            }
        }
        Ok(())
    }

    fn visit_one(
        &self,
        device: Beneath,
        (change, line): (&ControlChange, usize),
        run: &mut SimRun,
        now: Option<Nanos>,
    ) -> Result<(), HostChangeError> {
        let scenario = self.scenario;
        if let Beneath::Drive(i) = device
            && !scenario.is_on_host(device)
        {
            let drive = run.devices[run.drives[i].device].nvme_mut().ok_or(ControlError::NoFtl)?;
            let result = match now {
                Some(_) => drive.apply_change(change),
                None => drive.ftl().ok_or(ControlError::NoFtl)?.check_change(change),
            };
            return result.map_err(HostChangeError::from);
        }
        let (path, member) = scenario.path_to(device).ok_or(ControlError::NoFtl)?;
        // The layers of a set are visited in the order of its members.
        let members = scenario.members(scenario.paths()[path].over);
        let on_host = members[..member].iter().filter(|member| scenario.is_on_host(**member));
        let before = on_host.count();
        let only = (members.len() > 1).then_some(before);
        if let (Some(now), Some(hosted)) = (now, &run.paths[path].hosted) {
            return hosted.change_ftl(now, only, *change, line);
        }
        let device = run.paths[path].device_mut().ok_or(ControlError::NoFtl)?;
        let result = match now {
            Some(_) => target_layers::apply_change(device, only, change),
            None => target_layers::check_change(device, only, change),
        };
        result.map_err(HostChangeError::from)
    }
}
