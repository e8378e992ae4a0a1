//! [`Composition`]: the named targets, sets and paths of a scenario: `[[target]]`, `[[set]]` and
//! `[[path]]`.
//!
//! A path is over a drive, a target or a set; a set is striped over drives or targets. A target and
//! the member of a set have one owner, because two would each write what the other does not know.
//! The paths of a scenario without `[[path]]` are the devices that nothing else is over, each with
//! the settings of `[path]`.

mod read;

use std::path::PathBuf;

use controller::{PmrConfig, PmrStore};
use lnvm::{ScrubConfig, TargetKind};

use super::choice::{BLOCK_REQUESTS, Impossible};
use super::host::{LOG_SIZES, is_log_size};
use super::{
    DriveSpec, ExportSpec, HostTarget, NamedTarget, PathConfig, Scenario, ServeSpec, ShareSpec,
};

pub(super) use read::CompositionSections;

/// Size of a log that a program adds to a path ([`Scenario::with_region_log`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionLog {
    /// That of the persistent memory region.
    Whole,
    /// Bytes: a multiple of 64, from 64 KiB to the size of the region.
    Bytes(u64),
}

/// The name of a log in messages.
const LOG: &str = "a log";

/// A device that a path or a set is over. The indices are those of [`Scenario::drives`],
/// [`Composition::targets`] and [`Composition::sets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Beneath {
    /// A drive, with the target of the unnamed `[target]`, if there is one.
    Drive(usize),
    /// A named target.
    Target(usize),
    /// A set.
    Set(usize),
}

/// A named target on some parallel units of a drive ([LightNVM17 §4.1]).
#[derive(Clone, Debug, PartialEq)]
pub struct TargetSpec {
    /// Index of its drive.
    pub drive: usize,
    /// Its name, and the settings of the scenario.
    pub target: NamedTarget,
    /// Scrub, if configured.
    pub scrub: Option<ScrubConfig>,
}

/// Drives or targets that are one device, striped (RAID 0).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpec {
    /// Name of the set.
    pub name: String,
    /// The members, 1 to [`MEMBERS_MAX`] drives or targets with equal sector sizes.
    pub members: Vec<Beneath>,
    /// Size of a stripe in bytes, a multiple of the sector size.
    pub stripe_bytes: u64,
}

/// A path of I/O to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSpec {
    /// Name of the path.
    pub name: String,
    /// The device that it leads to.
    pub over: Beneath,
    /// Its settings.
    pub config: PathConfig,
    /// Line of its `over`; 1 if no `[[path]]` declares it.
    pub line: usize,
}

/// The named targets, sets and paths of a scenario; all empty if it has none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Composition {
    /// The targets.
    pub targets: Vec<TargetSpec>,
    /// The sets.
    pub sets: Vec<SetSpec>,
    /// The paths.
    pub paths: Vec<PathSpec>,
}

/// The error of a name that is not the one of a path, or of none where there are several.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}: name one of its paths: {}", file.display(), self.problem(), paths.iter()
    .map(|path| format!("#{path}")).collect::<Vec<_>>().join(", "))]
pub struct UnknownPath {
    /// Path of the scenario.
    pub file: PathBuf,
    /// The name.
    pub asked: Option<String>,
    /// Names of the paths in the scenario.
    pub paths: Vec<String>,
}

impl UnknownPath {
    fn problem(&self) -> String {
        match &self.asked {
            Some(name) => format!("it has no path \"{name}\""),
            None => "it has several paths".into(),
        }
    }
}

/// Maximum number of members of a set.
pub const MEMBERS_MAX: usize = 64;

impl Composition {
    /// Returns whether the scenario names neither targets nor sets nor paths: each drive then has
    /// one path, named after it.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.sets.is_empty() && self.paths.is_empty()
    }

    /// Returns whether `device` is a member of a set.
    fn is_member(&self, device: Beneath) -> bool {
        self.sets.iter().any(|set| set.members.contains(&device))
    }
}

impl Scenario {
    /// Returns the paths of the scenario. Without `[[path]]` there is one for each device that
    /// nothing else is over, named after it, in the order of drives, targets and sets; none for
    /// targets of kind `ppa`.
    pub fn paths(&self) -> Vec<PathSpec> {
        let named = &self.composition;
        if !named.paths.is_empty() {
            return named.paths.clone();
        }
        let has_targets = |drive: usize| named.targets.iter().any(|target| target.drive == drive);
        let drives = (0..self.drives.len()).filter(|drive| !has_targets(*drive));
        let devices = drives
            .map(Beneath::Drive)
            .chain((0..named.targets.len()).map(Beneath::Target))
            .chain((0..named.sets.len()).map(Beneath::Set));
        let path = |over| PathSpec {
            name: self.device_name(over).to_owned(),
            over,
            config: self.path.clone(),
            line: 1,
        };
        // Physical addresses are for programs.
        let is_free = |device: &Beneath| {
            !named.is_member(*device) && self.kind_of(*device) != Some(TargetKind::Ppa)
        };
        devices.filter(is_free).map(path).collect()
    }

    /// Returns the scenario with a log in the persistent memory region of the drive beneath the path of
    /// this name, or the only one. A path that has a log keeps it, if `size` allows.
    ///
    /// # Errors
    /// [`Impossible`]. An unknown path is no error: the scenario is unchanged.
    pub fn with_region_log(
        &self,
        name: Option<&str>,
        size: RegionLog,
    ) -> Result<Scenario, Impossible> {
        let mut scenario = self.clone();
        let Ok(path) = self.select_path(name) else { return Ok(scenario) };
        let wrong_size = |bytes, allowed| {
            let device = format!("\"{}\"", self.device_name(path.over));
            Err(Impossible::LogSize { device, bytes, allowed })
        };
        match (path.config.log, size) {
            (None, _) => {}
            (Some(has), RegionLog::Bytes(bytes)) if has != bytes => {
                return wrong_size(bytes, format!("{has}, as `log` of the scenario"));
            }
            (Some(_), _) => return Ok(scenario),
        }
        let device = format!("\"{}\"", self.device_name(path.over));
        let no_region = Impossible::NoRegionForLog { device };
        if let Beneath::Set(_) = path.over {
            return Err(no_region);
        }
        self.check_blocks(path.over, LOG)?;
        let region = match &self.drives[self.drive_of(path.over)].config.pmr {
            Some(PmrConfig { store: PmrStore::Emulated { bytes }, .. }) => *bytes,
            Some(PmrConfig { store: PmrStore::Dax { path }, .. }) => {
                path.metadata().map_or(0, |file| file.len())
            }
            None => return Err(no_region),
        };
        let bytes = match size {
            RegionLog::Whole => region,
            RegionLog::Bytes(bytes) if bytes > region => {
                return wrong_size(bytes, format!("up to {region}, the size of `pmr`"));
            }
            RegionLog::Bytes(bytes) if !is_log_size(bytes) => {
                return wrong_size(bytes, LOG_SIZES.into());
            }
            RegionLog::Bytes(bytes) => bytes,
        };
        match scenario.composition.paths.iter_mut().find(|one| one.name == path.name) {
            Some(named) => named.config.log = Some(bytes),
            None => scenario.path.log = Some(bytes),
        }
        Ok(scenario)
    }

    /// Returns the path of this name, or the only one.
    ///
    /// # Errors
    /// [`UnknownPath`].
    pub fn select_path(&self, name: Option<&str>) -> Result<PathSpec, UnknownPath> {
        let mut paths = self.paths();
        let found = match name {
            Some(name) => paths.iter().position(|path| path.name == name),
            None => (paths.len() == 1).then_some(0),
        };
        match found {
            Some(index) => Ok(paths.swap_remove(index)),
            None => Err(UnknownPath {
                file: self.file.clone(),
                asked: name.map(str::to_owned),
                paths: paths.into_iter().map(|path| path.name).collect(),
            }),
        }
    }

    /// Returns the path that leads to a drive or target, by its index in [`paths`](Scenario::paths),
    /// and the index of the device among the members.
    pub fn path_to(&self, device: Beneath) -> Option<(usize, usize)> {
        let paths: Vec<PathSpec> = self.paths();
        paths.iter().enumerate().find_map(|(path, spec)| {
            let member = self.members(spec.over).iter().position(|member| *member == device)?;
            Some((path, member))
        })
    }

    /// Checks that nothing in the scenario happens at an instant of virtual time or on a modeled core,
    /// for a drive in real time.
    ///
    /// # Errors
    /// [`Impossible::VirtualTime`], [`Impossible::ModeledProgram`].
    pub fn check_real_time(&self) -> std::result::Result<(), Impossible> {
        if let Some(change) = self.changes.first() {
            return Err(Impossible::VirtualTime { line: change.line });
        }
        if let Some(job) = self.jobs.iter().find(|job| job.process.is_some()) {
            return Err(Impossible::ModeledProgram { user: format!("process {}", job.name) });
        }
        match self.paths().into_iter().find(|path| path.config.speculate) {
            Some(path) => Err(Impossible::ModeledProgram { user: format!("path {}", path.name) }),
            None => Ok(()),
        }
    }

    /// Returns the name of a device.
    pub fn device_name(&self, device: Beneath) -> &str {
        match device {
            Beneath::Drive(i) => &self.drives[i].config.name,
            Beneath::Target(i) => &self.composition.targets[i].target.name,
            Beneath::Set(i) => &self.composition.sets[i].name,
        }
    }

    /// Returns the drives and targets that a device consists of: the members of a set, or the
    /// device itself.
    pub fn members(&self, device: Beneath) -> Vec<Beneath> {
        match device {
            Beneath::Set(i) => self.composition.sets[i].members.clone(),
            one => vec![one],
        }
    }

    /// Returns whether a device is a target on the host, named or of its drive. The host, not the
    /// drive, manages its flash.
    pub fn is_on_host(&self, device: Beneath) -> bool {
        match device {
            Beneath::Target(_) => true,
            Beneath::Drive(i) => self.drives[i].target != HostTarget::None,
            Beneath::Set(_) => false,
        }
    }

    /// Returns the kind of a named target, if the scenario sets it; `None` for other devices.
    pub fn kind_of(&self, device: Beneath) -> Option<TargetKind> {
        match device {
            Beneath::Target(i) => self.composition.targets[i].target.kind,
            Beneath::Drive(_) | Beneath::Set(_) => None,
        }
    }

    /// Returns whether a device is addressed by parallel units: a target of kind `ppa`, or an
    /// open-channel drive without a target.
    pub fn has_units(&self, device: Beneath) -> bool {
        match device {
            Beneath::Target(_) => self.kind_of(device) == Some(TargetKind::Ppa),
            Beneath::Drive(i) => !self.drives[i].is_block_device(),
            Beneath::Set(_) => false,
        }
    }

    /// Returns whether the sectors of `device` have names.
    pub fn has_names(&self, device: Beneath) -> bool {
        matches!(device, Beneath::Drive(i) if self.drives[i].has_names())
    }

    /// Checks that `device` has logical blocks for `user`.
    ///
    /// # Errors
    /// [`Impossible::NoLogicalBlocks`], [`Impossible::NoBlocksOnTarget`], [`Impossible::NamedSectors`].
    pub fn check_blocks(&self, device: Beneath, user: &'static str) -> Result<(), Impossible> {
        let name = self.device_name(device);
        match device {
            Beneath::Target(_) => Impossible::check_blocks(name, self.kind_of(device)),
            Beneath::Drive(i) => {
                if self.drives[i].has_names() {
                    return Err(Impossible::NamedSectors { drive: name.to_owned(), user });
                }
                let DriveSpec { config, target, .. } = &self.drives[i];
                let has_target = *target != HostTarget::None;
                Impossible::check_logical_blocks(config.personality, has_target, name, user)
            }
            // Its members have been checked.
            Beneath::Set(_) => Ok(()),
        }
    }

    /// Checks that a path leads to logical blocks for the block requests of a front end.
    ///
    /// # Errors
    /// The reason of [`check_blocks`](Scenario::check_blocks), with file and line.
    pub fn check_block_path(&self, path: &PathSpec) -> Result<(), super::ScenarioError> {
        self.check_blocks(path.over, BLOCK_REQUESTS)
            .map_err(|why| self.conflict_in_line(path.line, why.to_string(), why.help()))
    }

    /// Returns the index of the drive of a drive or target; the first one's of a set.
    pub fn drive_of(&self, device: Beneath) -> usize {
        match device {
            Beneath::Drive(i) => i,
            Beneath::Target(i) => self.composition.targets[i].drive,
            Beneath::Set(i) => {
                self.composition.sets[i].members.first().map_or(0, |first| self.drive_of(*first))
            }
        }
    }

    /// Returns the drive of a drive or target with the target that manages its flash. A set has
    /// several: see [`members`](Scenario::members).
    pub fn drive_spec(&self, device: Beneath) -> DriveSpec {
        let drive = self.drives[self.drive_of(device)].clone();
        match device {
            Beneath::Target(i) => {
                let TargetSpec { target, scrub, .. } = &self.composition.targets[i];
                let target = HostTarget::Named(Box::new(target.clone()));
                DriveSpec { target, scrub: *scrub, ..drive }
            }
            Beneath::Drive(_) | Beneath::Set(_) => drive,
        }
    }

    /// Returns the scenario with one of its paths alone, and with the drives that it leads to. A
    /// path to a single drive or target becomes the unnamed path of a scenario with one drive. Jobs
    /// are left out.
    #[must_use]
    pub fn reduced_to(&self, path: &PathSpec) -> Scenario {
        let reduced = self.restricted_to(std::slice::from_ref(path));
        if let Beneath::Set(_) = path.over {
            return reduced;
        }
        let PathConfig { namespace, app, .. } = path.config.clone();
        let drive = DriveSpec { namespace, app, ..self.drive_spec(path.over) };
        // The path now has the name of the drive.
        let named =
            |export: &ExportSpec| ExportSpec { path: drive.config.name.clone(), ..export.clone() };
        let serving = ServeSpec {
            exports: reduced.serving.exports.iter().map(named).collect(),
            ..reduced.serving.clone()
        };
        Scenario {
            serving,
            drives: vec![drive],
            path: path.config.clone(),
            composition: Composition::default(),
            ..reduced
        }
    }

    /// Returns the scenario with some of its paths, and with the drives, targets and sets that these
    /// lead to. Jobs are left out.
    #[must_use]
    pub fn restricted_to(&self, paths: &[PathSpec]) -> Scenario {
        let sorted = |mut indices: Vec<usize>| {
            indices.sort_unstable();
            indices.dedup();
            indices
        };
        let members: Vec<Beneath> = paths.iter().flat_map(|path| self.members(path.over)).collect();
        let drives = sorted(members.iter().map(|member| self.drive_of(*member)).collect());
        let (mut targets, mut sets) = (Vec::new(), Vec::new());
        for device in members.iter().copied().chain(paths.iter().map(|path| path.over)) {
            match device {
                Beneath::Drive(_) => {}
                Beneath::Target(target) => targets.push(target),
                Beneath::Set(set) => sets.push(set),
            }
        }
        let (targets, sets) = (sorted(targets), sorted(sets));
        let index = |among: &[usize], one: usize| among.binary_search(&one).unwrap_or(0);
        let kept = |device: Beneath| match device {
            Beneath::Drive(i) => Beneath::Drive(index(&drives, i)),
            Beneath::Target(i) => Beneath::Target(index(&targets, i)),
            Beneath::Set(i) => Beneath::Set(index(&sets, i)),
        };
        let target = |i: &usize| {
            let target = &self.composition.targets[*i];
            TargetSpec { drive: index(&drives, target.drive), ..target.clone() }
        };
        let set = |i: &usize| {
            let set = &self.composition.sets[*i];
            let members = set.members.iter().map(|member| kept(*member)).collect();
            SetSpec { members, ..set.clone() }
        };
        let path = |path: &PathSpec| PathSpec { over: kept(path.over), ..path.clone() };
        let composition = Composition {
            targets: targets.iter().map(target).collect(),
            sets: sets.iter().map(set).collect(),
            paths: paths.iter().map(path).collect(),
        };
        let names: Vec<&str> =
            drives.iter().map(|i| self.drives[*i].config.name.as_str()).collect();
        let is_kept =
            |share: &&ShareSpec| share.drive.as_deref().is_none_or(|name| names.contains(&name));
        let has_path = |export: &&ExportSpec| paths.iter().any(|path| path.name == export.path);
        Scenario {
            drives: drives.iter().map(|drive| self.drives[*drive].clone()).collect(),
            jobs: Vec::new(),
            job_files: Vec::new(),
            serving: ServeSpec {
                shares: self.serving.shares.iter().filter(is_kept).cloned().collect(),
                exports: self.serving.exports.iter().filter(has_path).cloned().collect(),
            },
            path: PathConfig::default(),
            composition,
            ..self.clone()
        }
    }
}
