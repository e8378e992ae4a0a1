//! [`TimedChange`]: a change at an instant of the run, of settings (`[[at]]`) or by a fault (`[[fault]]`); [`read_change`]: the
//! change of one setting of a running server.

use std::path::Path;

use block::Group;
use block::sched::{GroupChange, LimitKind};
use controller::{Fault, PersonalityKind};
use ftl::ControlChange;
use lnvm::TargetKind;
use time::Nanos;

use crate::fault::read_faults;
use crate::keys::drive_keys::parse_toml;
use crate::keys::ftl_keys::{POLICIES, read_limiter};
use crate::keys::layer_keys::{block_sector, check_scheduler, read_group};
use crate::section::{Result, Section, Value};
use crate::source::SourceText;
use crate::{Beneath, HostTarget, Scenario};

/// Changes of the settings of one FTL, or of one group of jobs, or a fault of a drive, at an instant.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedChange {
    /// Time since the start of the jobs.
    pub time: Nanos,
    /// The settings.
    pub settings: ChangedSettings,
    /// Line of the time.
    pub line: usize,
}

/// The settings that change at an instant, each with the line of its key.
#[derive(Clone, Debug, PartialEq)]
pub enum ChangedSettings {
    /// Settings of an FTL.
    Ftl {
        /// The drive or target.
        device: Beneath,
        /// The changes.
        changes: Vec<(ControlChange, usize)>,
    },
    /// The weight and the rates of a group in the block layer of a path.
    Group {
        /// Index of the path in [`Scenario::paths`].
        path: usize,
        /// The group.
        group: Group,
        /// The changes.
        changes: Vec<(GroupChange, usize)>,
    },
    /// A fault of a drive.
    Fault {
        /// Index of the drive in [`Scenario::drives`].
        drive: usize,
        /// The fault.
        fault: Fault,
    },
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

/// Options of `sluice target limit`, as keys.
const QUOTA_KEYS: [&str; 3] = ["max_chunks", "chunks_per_second", "burst"];

/// Reads the settings that a section changes, each with the line of its key.
fn read_settings(s: &mut Section<'_>) -> Result<Vec<(ControlChange, usize)>> {
    if let Some((key, value, _)) = s.pairs().iter().find(|(key, ..)| QUOTA_KEYS.contains(key)) {
        let message = format!("`{key}` does not change while a target is open, nor do its chunks");
        return Err(value.conflict(message, "change it before, with `sluice target limit`"));
    }
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

/// The keys of a group, and its limits.
const LIMITS: [(&str, LimitKind); 4] = [
    ("read_iops", LimitKind::ReadOperations),
    ("write_iops", LimitKind::WriteOperations),
    ("read_bw", LimitKind::ReadBytes),
    ("write_bw", LimitKind::WriteBytes),
];

/// Reads the weight and the rates that a section changes, each with its value.
fn read_group_changes<'a>(s: &mut Section<'a>) -> Result<Vec<(GroupChange, Value<'a>)>> {
    let mut changes = Vec::new();
    if let Some(value) = s.get("weight") {
        changes.push((GroupChange::Weight(value.u16_from(0)?), value));
    }
    for (key, of) in LIMITS {
        let Some(value) = s.get(key) else { continue };
        let is_bytes = matches!(of, LimitKind::ReadBytes | LimitKind::WriteBytes);
        let per_sec = if is_bytes { value.bandwidth()? } else { value.u64()? };
        changes.push((GroupChange::Rate { of, per_sec }, value));
    }
    Ok(changes)
}

/// Reads the changes and faults of a scenario whose devices, paths and jobs have been read, in the
/// order of their times. At one instant, changes of settings come first.
pub(crate) fn read_changes(
    scenario: &Scenario,
    sections: Vec<Section<'_>>,
    faults: Vec<Section<'_>>,
) -> Result<Vec<TimedChange>> {
    let reader = ChangeReader { scenario };
    let changes: Result<Vec<TimedChange>> =
        sections.into_iter().map(|section| reader.read(section)).collect();
    let mut changes = changes?;
    changes.extend(read_faults(scenario, faults)?);
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
        let (path, group) = (s.get("path"), s.get("group"));
        let of_group = read_group_changes(&mut s)?;
        if path.is_some() || group.is_some() || !of_group.is_empty() {
            let settings = self.read_group_settings(s, &at, (path, group), of_group)?;
            return Ok(TimedChange { time, settings, line });
        }
        let device = self.read_changed_device(&mut s)?;
        let changes = read_settings(&mut s)?;
        if changes.is_empty() {
            let keys = "one of `active_pus`, `rate_limiter` and `victim_policy`";
            return Err(at.conflict("nothing changes at this time", format!("set {keys}")));
        }
        s.finish()?;
        Ok(TimedChange { time, settings: ChangedSettings::Ftl { device, changes }, line })
    }

    /// Reads the changes of a group, after its keys and those of its weight and rates.
    fn read_group_settings(
        &self,
        mut s: Section<'_>,
        at: &Value<'_>,
        (path, group): (Option<Value<'_>>, Option<Value<'_>>),
        changes: Vec<(GroupChange, Value<'_>)>,
    ) -> Result<ChangedSettings> {
        for key in ["target", "drive", "active_pus", "rate_limiter", "victim_policy"] {
            if let Some(value) = s.get(key) {
                let message = "a change is of an FTL or of a group of jobs";
                return Err(value.conflict(message, "make two sections [[at]] of it"));
            }
        }
        let Some(group_value) = group else {
            return Err(s.missing("group", "the `group` of the jobs whose weight or rate changes"));
        };
        let group = read_group(&group_value)?;
        let paths = self.scenario.paths();
        let names: Vec<&str> = paths.iter().map(|path| path.name.as_str()).collect();
        let index = match (&path, &paths[..]) {
            (Some(value), _) => {
                let name = value.string()?;
                let found = names.iter().position(|path| *path == name);
                found.ok_or_else(|| value.refuse_name(&names))?
            }
            (None, [_]) => 0,
            (None, _) => {
                let help = format!("there are several: {}", names.join(", "));
                return Err(s.missing("path", help));
            }
        };
        let name = names[index];
        let Some(layer) = &paths[index].config.block_layer else {
            let message = format!("groups are the block layer's, and path \"{name}\" has none");
            let help = "set its queue_model = \"sq\" or \"mq\"";
            return Err(path.as_ref().unwrap_or(&group_value).conflict(message, help));
        };
        if !self.has_group(&names, index, group) {
            let message = format!("no job of path \"{name}\" is in group {}", group.0);
            let help = "name the `group` of a job, or 0 for jobs without one";
            return Err(group_value.conflict(message, help));
        }
        s.finish()?;
        if changes.is_empty() {
            let keys = "`weight`, `read_iops`, `write_iops`, `read_bw` and `write_bw`";
            let help = format!("set one of {keys}");
            return Err(at.conflict("nothing changes at this time", help));
        }
        let scheduling = layer.config(block_sector()).scheduler;
        let mut with_lines = Vec::with_capacity(changes.len());
        for (change, value) in changes {
            check_scheduler(&value.source_span(), scheduling.check_change(group, change))?;
            with_lines.push((change, value.line()));
        }
        Ok(ChangedSettings::Group { path: index, group, changes: with_lines })
    }

    /// Returns whether a path, one of those with these `names`, has jobs of a group. Those of job
    /// files are in group 0. Without names, a path is called as its drive.
    fn has_group(&self, names: &[&str], path: usize, group: Group) -> bool {
        group == Group(0)
            || self.scenario.jobs.iter().filter(|job| job.group == group).any(|job| {
                let name = job.path.as_ref().or(job.drive.as_ref());
                name.map_or(path == 0, |(name, _)| name == names[path])
            })
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
                HostTarget::Pblk(_) | HostTarget::Rrpc(_) | HostTarget::Rules(_) => true,
            },
            Beneath::Set(_) => false,
        }
    }
}
