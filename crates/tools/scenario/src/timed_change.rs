//! [`TimedChange`]: `[[at]]`, a change of settings at an instant of the run; [`read_change`]: the
//! change of one setting of a running server.

use std::path::Path;

use controller::PersonalityKind;
use ftl::ControlChange;
use lnvm::TargetKind;
use time::Nanos;

use crate::keys::drive_keys::parse_toml;
use crate::keys::ftl_keys::{POLICIES, read_limiter};
use crate::section::{Result, Section, Value};
use crate::source::SourceText;
use crate::{Beneath, HostTarget, Scenario};

/// Changes of the settings of one FTL at an instant.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedChange {
    /// Time since the start of the jobs.
    pub time: Nanos,
    /// The drive or target.
    pub device: Beneath,
    /// The changes, each with the line of its key.
    pub changes: Vec<(ControlChange, usize)>,
    /// Line of the time.
    pub line: usize,
}

/// Reads a change from a key of `[[at]]` and its value, as they are in a scenario. A value that is
/// not TOML is a string.
///
/// # Errors
/// [`ScenarioError`](crate::ScenarioError) with the problem that a scenario with this key would
/// have.
pub fn read_change(key: &str, value: &str) -> Result<ControlChange> {
    let line = |value: &str| SourceText::new(Path::new("at.toml"), &format!("{key:?} = {value}\n"));
    let mut source = line(value);
    if value.contains('\n') || parse_toml(&source).is_err() {
        source = line(&format!("{value:?}"));
    }
    let table = parse_toml(&source)?;
    let mut section = Section::root(&source, &table);
    section.name = "at".into();
    let changes = read_settings(&mut section)?;
    let missing = section.missing("active_pus", "or another setting");
    section.finish()?;
    changes.first().map(|(change, _)| *change).ok_or(missing)
}

/// Reads the settings that a section changes, each with the line of its key.
fn read_settings(s: &mut Section<'_>) -> Result<Vec<(ControlChange, usize)>> {
    let mut changes = Vec::new();
    if let Some(value) = s.get("active_pus") {
        changes.push((ControlChange::ActivePus(value.u32()?), value.line()));
    }
    if let Some(value) = s.get("rate_limiter") {
        changes.push((ControlChange::RateLimiter(read_limiter(&value)?), value.line()));
    }
    if let Some(value) = s.get("victim_policy") {
        changes.push((ControlChange::VictimPolicy(value.choice(&POLICIES)?), value.line()));
    }
    Ok(changes)
}

/// Reads the changes of a scenario whose devices and paths have been read, in the order of their
/// times.
pub(crate) fn read_changes(
    scenario: &Scenario,
    sections: Vec<Section<'_>>,
) -> Result<Vec<TimedChange>> {
    let reader = ChangeReader { scenario };
    let changes: Result<Vec<TimedChange>> =
        sections.into_iter().map(|section| reader.read(section)).collect();
    let mut changes = changes?;
    changes.sort_by_key(|change| change.time);
    Ok(changes)
}

struct ChangeReader<'a> {
    scenario: &'a Scenario,
}

impl ChangeReader<'_> {
    fn read(&self, mut s: Section<'_>) -> Result<TimedChange> {
        let Some(at) = s.get("time") else {
            return Err(s.missing("time", "the time since the start of the jobs, such as \"10s\""));
        };
        let (time, line) = (at.duration()?, at.line());
        let device = self.read_changed_device(&mut s)?;
        let changes = read_settings(&mut s)?;
        if changes.is_empty() {
            let keys = "one of `active_pus`, `rate_limiter` and `victim_policy`";
            return Err(at.conflict("nothing changes at this time", format!("set {keys}")));
        }
        s.finish()?;
        Ok(TimedChange { time, device, changes, line })
    }

    /// Reads the device of a change: the only one with an FTL unless it is named.
    fn read_changed_device(&self, s: &mut Section<'_>) -> Result<Beneath> {
        let drives = (0..self.scenario.drives.len()).map(Beneath::Drive).collect::<Vec<_>>();
        let targets = (0..self.scenario.composition.targets.len()).map(Beneath::Target);
        let targets = targets.collect::<Vec<_>>();
        let (value, devices) = match (s.get("target"), s.get("drive")) {
            (Some(_), Some(drive)) => {
                let message = "a change is of a target or of a drive";
                return Err(drive.conflict(message, "remove one of both keys"));
            }
            (Some(value), None) => (value, targets),
            (None, Some(value)) => (value, drives),
            (None, None) => {
                let all = drives.into_iter().chain(targets);
                let with_ftl: Vec<Beneath> = all.filter(|device| self.has_ftl(*device)).collect();
                let names = with_ftl.iter().map(|device| self.scenario.device_name(*device));
                return match with_ftl[..] {
                    [only] => Ok(only),
                    [] => Err(s.missing("target", "no device of the scenario has an FTL")),
                    _ => {
                        let names = names.collect::<Vec<_>>().join(", ");
                        Err(s.missing("target", format!("or `drive`; there are several: {names}")))
                    }
                };
            }
        };
        let names: Vec<&str> =
            devices.iter().map(|device| self.scenario.device_name(*device)).collect();
        let word = value.string()?;
        let found = devices.iter().find(|device| self.scenario.device_name(**device) == word);
        let device = *found.ok_or_else(|| value.refuse_name(&names))?;
        self.check_changed_device(device, &value)?;
        Ok(device)
    }

    fn check_changed_device(&self, device: Beneath, value: &Value<'_>) -> Result<()> {
        let name = self.scenario.device_name(device);
        if !self.has_ftl(device) {
            let message = format!("\"{name}\" has no FTL whose settings could change");
            return Err(value.conflict(message, "name a pblk, an rrpc, or a drive with its own"));
        }
        if self.scenario.is_on_host(device) && self.scenario.path_to(device).is_none() {
            let message = format!("no path leads to \"{name}\", so that it is not opened");
            return Err(value.conflict(message, "give it a [[path]]"));
        }
        Ok(())
    }

    /// Returns whether a device has an FTL: a target on the host, or a drive's own.
    fn has_ftl(&self, device: Beneath) -> bool {
        let is_block = |kind: Option<TargetKind>| kind.is_none_or(TargetKind::is_block);
        match device {
            Beneath::Target(_) => is_block(self.scenario.kind_of(device)),
            Beneath::Drive(i) => match &self.scenario.drives[i].target {
                HostTarget::None => {
                    let drive = &self.scenario.drives[i];
                    drive.config.personality == PersonalityKind::Block && drive.capacity.is_some()
                }
                HostTarget::Named(target) => is_block(target.kind),
                HostTarget::Pblk(_) | HostTarget::Rrpc(_) => true,
            },
            Beneath::Set(_) => false,
        }
    }
}
