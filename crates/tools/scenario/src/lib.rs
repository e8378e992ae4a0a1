//! [`Scenario`]: one TOML file that configures drives, the host stack and the jobs.
//!
//! [`Scenario::load`] reads a file and checks it completely. An error ([`ScenarioError`]) has its
//! location and the allowed values. Every key that no reader requests is an error; no key is
//! ignored.

#![forbid(unsafe_code)]

pub mod capacity;
pub mod choice;
mod composition;
mod error;
mod fault;
pub mod format;
mod hints;
mod host;
mod keys;
mod named_target;
pub mod presets;
mod ranges;
mod renamed;
mod rule_programs;
mod section;
mod source;
mod target;
#[cfg(test)]
mod tests;
mod timed_change;
pub mod units;
pub mod user;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use controller::{DriveConfig, PersonalityKind};
use media::MediaConfig;

pub use ::machine::MachineModel;
pub use block::notify::{CompletionMethod, CompletionPolicy};
pub use capacity::{Capacity, DriveCapacityError};
pub use composition::{
    Beneath, Composition, MEMBERS_MAX, PathSpec, RegionLog, SetSpec, TargetSpec, UnknownPath,
};
pub use error::{InvalidScenario, ProblemKind, ScenarioError};
pub use fault::{FaultValue, parse_fault, read_fault};
pub use host::machine::{HostKernel, HostMachine, ThisMachine};
pub use host::{HostConfig, PathConfig, QueueModelKind};
pub use keys::ahci_keys::AhciUplink;
pub use keys::drive_kind::DriveKind;
pub use keys::export_keys::{ExportAddress, ExportSpec, ServeSpec};
pub use keys::job::JobTable;
pub use keys::layer_keys::BlockLayerSpec;
pub use keys::precondition_keys::{Amount, Fill, Overwrite, Precondition, StateFolder, Until};
pub use keys::process_keys::{ProcessSpec, ProcessStrategy, ProgramWork};
pub use keys::real_keys::{FileDrive, KernelDrive, PciDrive};
pub use keys::share_keys::{ShareSpan, ShareSpec};
pub use named_target::NamedTarget;
pub use renamed::FormerSpelling;
pub use target::{HostTarget, RulesTarget};
pub use timed_change::{ChangedSettings, TimedChange, read_change};

use choice::{BLOCK_REQUESTS, Impossible};
use composition::CompositionSections;
use keys::drive_keys::{DriveBuilder, parse_toml};
use keys::drive_kind::KindWord;
use keys::export_keys::ExportReader;
use keys::job::JobRefs;
use section::Section;
use source::SourceText;
use target::TargetBuilder;

use crate::format::printable;

/// A checked scenario: each of its drives is possible and can host its FTL.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Path of the file as given.
    pub file: PathBuf,
    /// Text of the file.
    pub text: Arc<str>,
    /// Name in results: the `title`, or the file's name without its extension.
    pub title: String,
    /// The question that the scenario answers, as a sentence (`question`); may be empty.
    pub question: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The drives, at least one, with unique names.
    pub drives: Vec<DriveSpec>,
    /// Path of I/O to the drives, unless the composition has paths.
    pub path: PathConfig,
    /// Named targets, sets and paths.
    pub composition: Composition,
    /// Costs of the host's side, and its AHCI controller.
    pub host: HostConfig,
    /// State of the drives when the jobs begin.
    pub precondition: Precondition,
    /// The jobs in the scenario, and behind them the processes.
    pub jobs: Vec<JobTable>,
    /// Job files that the scenario names, relative to its directory, each with its line.
    pub job_files: Vec<(PathBuf, usize)>,
    /// Changes of settings (`[[at]]`) and faults (`[[fault]]`) during the run, in the order of their
    /// times.
    pub changes: Vec<TimedChange>,
    /// Settings of `sluice serve`.
    pub serving: ServeSpec,
    /// Former spellings of keys and values in the text, which work for one more release.
    pub former_spellings: Vec<FormerSpelling>,
}

/// One drive of a scenario, with the target that manages its flash.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveSpec {
    /// Its kind.
    pub kind: DriveKind,
    /// The NVMe drive; of a drive of another kind, its name, its size and its sectors.
    pub config: DriveConfig,
    /// Target between the drive and the jobs.
    pub target: HostTarget,
    /// Number of pblk's shards, if configured. The default is one, unless the caller of `open` asks
    /// for more.
    pub shards: Option<u32>,
    /// Scrub of pblk, if configured.
    pub scrub: Option<lnvm::ScrubConfig>,
    /// Preset that the drive is based on.
    pub preset: Option<String>,
    /// Capacity through its FTL, in the drive or in the target; `None` without one.
    pub capacity: Option<Capacity>,
    /// Namespace that the host connects to; `None` for the first one.
    pub namespace: Option<u32>,
    /// Application of the drive's rules that the host is attached to; `None` for the whole drive.
    pub app: Option<String>,
    /// Whether the scenario sets a seed for this drive.
    seed_given: bool,
}

/// Default seed of a scenario.
pub const DEFAULT_SEED: u64 = 1;

/// Returns the seed of the drive at `index`, so that drives of one scenario fail differently.
fn seed_of(seed: u64, index: usize) -> u64 {
    seed.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// [`ScenarioError::Read`] if the file cannot be read, otherwise the first problem in it.
    pub fn load(file: &Path) -> Result<Scenario, ScenarioError> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| ScenarioError::Read { path: file.to_path_buf(), source })?;
        Scenario::parse(file, &text)
    }

    /// Parses the text of a scenario. Messages and relative paths in the text refer to `file`.
    ///
    /// ```
    /// use std::path::Path;
    /// use sluice_scenario::Scenario;
    ///
    /// let text = "[drive]\npreset = \"femu-default\"\ngeometry.chunks = 512\n";
    /// let scenario = Scenario::parse(Path::new("big.toml"), text)?;
    /// // The journal takes the chunks of one line.
    /// assert_eq!(scenario.drives[0].capacity.unwrap().lines, 511);
    ///
    /// let wrong = Scenario::parse(Path::new("big.toml"), &text.replace("512", "0")).unwrap_err();
    /// assert!(wrong.to_string().starts_with("big.toml:3:19: impossible geometry: chunks is 0"));
    /// # Ok::<(), sluice_scenario::ScenarioError>(())
    /// ```
    ///
    /// # Errors
    /// The first problem.
    pub fn parse(file: &Path, text: &str) -> Result<Scenario, ScenarioError> {
        let source = SourceText::new(file, text);
        let table = parse_toml(&source)?;
        let mut root = Section::root(&source, &table);
        let mut scenario = Scenario {
            file: file.to_path_buf(),
            text: source.text.clone(),
            title: file
                .file_stem()
                .map_or_else(String::new, |s| printable(&s.to_string_lossy()).into_owned()),
            question: String::new(),
            seed: DEFAULT_SEED,
            drives: Vec::new(),
            path: PathConfig::default(),
            composition: Composition::default(),
            host: HostConfig::default(),
            precondition: Precondition::default(),
            jobs: Vec::new(),
            job_files: Vec::new(),
            changes: Vec::new(),
            serving: ServeSpec::default(),
            former_spellings: Vec::new(),
        };
        root.set("title", &mut scenario.title, |v| v.printable().map(str::to_owned))?;
        root.set("question", &mut scenario.question, |v| v.printable().map(str::to_owned))?;
        root.set("seed", &mut scenario.seed, |v| v.u64())?;
        root.set("job_files", &mut scenario.job_files, keys::job::read_files)?;
        let drives = match root.get("drive") {
            Some(value) => value.sections("drive")?,
            None => Vec::new(),
        };
        let path = root.get("path");
        let unnamed_path = path.as_ref().filter(|value| value.items().is_none());
        if let Some(value) = unnamed_path {
            scenario.path = PathConfig::read(value.section()?)?;
        }
        root.set("host", &mut scenario.host, |v| HostConfig::read(v.section()?))?;
        root.set("ahci", &mut scenario.host.ahci, |v| AhciUplink::read(v.section()?))?;
        let precondition = root.get("precondition");
        if let Some(value) = &precondition {
            scenario.precondition = Precondition::read(value.section()?)?;
        }
        let target_value = root.get("target");
        let unnamed_target = target_value.as_ref().filter(|value| value.items().is_none());
        let target =
            unnamed_target.map(|value| TargetBuilder::read(value.section()?)).transpose()?;
        let set = root.get("set");
        let composition =
            CompositionSections::new(target_value.as_ref(), set.as_ref(), path.as_ref())?;
        let jobs = match root.get("job") {
            Some(value) => value.sections("job")?,
            None => Vec::new(),
        };
        let processes = match root.get("process") {
            Some(value) => value.sections("process")?,
            None => Vec::new(),
        };
        let changes = match root.get("at") {
            Some(value) => value.sections("at")?,
            None => Vec::new(),
        };
        let faults = match root.get("fault") {
            Some(value) => value.sections("fault")?,
            None => Vec::new(),
        };
        let shares = match root.get("partition") {
            Some(value) => value.sections("partition")?,
            None => Vec::new(),
        };
        let exports = match root.get("export") {
            Some(value) => value.sections("export")?,
            None => Vec::new(),
        };
        if drives.is_empty() {
            // A section under another name is the more likely mistake, and the better message.
            let missing = root.missing(
                "drive",
                "give it a [drive] section, for example with preset = \"mqsim-default-small\"",
            );
            root.finish()?;
            return Err(missing);
        }
        root.finish()?;
        scenario.read_drives(drives, target.as_ref())?;
        scenario.read_composition(composition)?;
        if let (Some(value), false) = (&precondition, scenario.precondition.is_none()) {
            let mut named = scenario.drives.iter().filter(|drive| drive.has_names());
            if let Some(drive) = named.next() {
                let (drive, user) = (drive.config.name.clone(), "[precondition]");
                let why = Impossible::NamedSectors { drive, user };
                return Err(value.source_span().error(why.into()));
            }
        }
        if let Some(value) = unnamed_path {
            for path in scenario.paths() {
                if let Some(layer) = &scenario.path.block_layer {
                    scenario.check_layer(layer, &mut value.section()?, path.over)?;
                }
                scenario.check_method(&scenario.path, &mut value.section()?, path.over)?;
                scenario.check_namespace(&scenario.path, &mut value.section()?, path.over)?;
                if scenario.path.app.is_some() {
                    scenario.check_app(&scenario.path, &value.section()?, path.over)?;
                }
                scenario.check_log(&scenario.path, &mut value.section()?, path.over)?;
            }
            let namespace = scenario.path.namespace;
            scenario.drives.iter_mut().for_each(|drive| drive.namespace = namespace);
            let app = &scenario.path.app;
            scenario.drives.iter_mut().for_each(|drive| drive.app.clone_from(app));
        }
        scenario.add_application_paths()?;
        let names: Vec<_> = scenario.drives.iter().map(|d| d.config.name.clone()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for section in shares {
            scenario.serving.shares.push(ShareSpec::read(section, &names)?);
        }
        let paths = scenario.paths();
        for section in exports {
            let export = ExportReader { scenario: &scenario }.read(section, &paths)?;
            scenario.serving.exports.push(export);
        }
        for (index, section) in jobs.iter().enumerate() {
            let (mut job, named) = keys::job::read(section, index, "job")?;
            if let Some(value) = &named.app {
                job.path = Some((scenario.path_of_app(value, &named, &paths)?, value.line()));
            }
            scenario.check_job(&job, &named, &paths)?;
            scenario.jobs.push(job);
        }
        for (index, section) in processes.into_iter().enumerate() {
            scenario.read_process(section, index, &paths)?;
        }
        scenario.check_processes()?;
        scenario.changes = timed_change::read_changes(&scenario, changes, faults)?;
        scenario.former_spellings = source.former.sorted();
        Ok(scenario)
    }

    /// Checks the names to which a job refers.
    fn check_job(
        &self,
        job: &JobTable,
        refs: &JobRefs<'_>,
        paths: &[PathSpec],
    ) -> Result<(), ScenarioError> {
        let mut over = paths.iter().find(|path| matches!(path.over, Beneath::Drive(0)));
        if let Some(value) = &refs.path {
            if self.composition.is_empty() {
                let message = "`path` is the name of a [[path]], and the scenario has none";
                return Err(value.conflict(message, "name a `drive` instead"));
            }
            let name = value.string()?;
            over = paths.iter().find(|path| path.name == name);
            if over.is_none() {
                let names: Vec<&str> = paths.iter().map(|path| path.name.as_str()).collect();
                return Err(value.refuse_name(&names));
            }
        } else if !self.composition.is_empty() {
            over = if let [only] = paths { Some(only) } else { None };
        }
        if refs.app.is_some()
            && let Some((name, _)) = &job.path
        {
            over = paths.iter().find(|path| path.name == *name);
        }
        if let Some(value) = &refs.drive {
            if !self.composition.is_empty() {
                let message = "a scenario with named targets, sets or paths has jobs on paths";
                return Err(value.conflict(message, "name a `path` instead"));
            }
            let name = value.string()?;
            if self.drive(name).is_none() {
                let names: Vec<&str> = self.drives.iter().map(|d| d.config.name.as_str()).collect();
                return Err(value.refuse_name(&names));
            }
            over = paths.iter().find(|path| path.name == name);
        }
        let Some(over) = over else {
            let names: Vec<&str> = paths.iter().map(|path| path.name.as_str()).collect();
            let (message, help) = (
                format!("job {} has no path", job.name),
                format!("set `path` to one of: {}", names.join(", ")),
            );
            return Err(self.conflict_in_line(job.line, message, help));
        };
        let has_units = job.pairs.iter().any(|(key, _, _)| key == "pus");
        if !self.composition.paths.is_empty() && self.has_units(over.over) && !has_units {
            self.check_blocks(over.over, BLOCK_REQUESTS).map_err(|why| match &refs.path {
                Some(value) => value.source_span().error(why.into()),
                None => self.conflict_in_line(job.line, why.to_string(), why.help()),
            })?;
        }
        if let (Some(place), None) = (&refs.group, &over.config.block_layer) {
            return Err(place.error(ProblemKind::Conflict {
                message: "groups are the block layer's, and `raw` has none".into(),
                help: "set path.queue_model = \"sq\" or \"mq\", or remove `group`".into(),
            }));
        }
        Ok(())
    }

    /// Reads a process. The strategy that it does not name is that of its path.
    fn read_process(
        &mut self,
        mut section: Section<'_>,
        index: usize,
        paths: &[PathSpec],
    ) -> Result<(), ScenarioError> {
        let name = section.peek_string("path").or_else(|| section.peek_string("drive"));
        let path = match name {
            Some(name) => paths.iter().find(|path| path.name == name),
            None => paths.first(),
        };
        let default = path.and_then(|path| ProcessStrategy::of_path(&path.config));
        let (job, named) = keys::job::read_process(&mut section, index, default)?;
        self.check_job(&job, &named, paths)?;
        if self.host.machine.is_none() && self.host.this_machine.is_none() {
            let message = format!("process {} works on a core, and the host has none", job.name);
            let help = "set [host] machine, for example to \"i7-4770\"".into();
            return Err(self.conflict_in_line(job.line, message, help));
        }
        self.jobs.push(job);
        Ok(())
    }

    /// Has the paths of processes wait as the strategies need it. Checks that they can, and that a
    /// path on which programs go on has processes only.
    fn check_processes(&mut self) -> Result<(), ScenarioError> {
        let paths = self.paths();
        let mut waits: HashMap<String, CompletionPolicy> = HashMap::new();
        for path in &paths {
            let named = |job: &JobTable| job.path.as_ref().or(job.drive.as_ref()).cloned();
            let is_here = |job: &&JobTable| match named(job) {
                Some((name, _)) => name == path.name,
                None => path.name == paths[0].name,
            };
            for job in self.jobs.iter().filter(is_here) {
                let Some(process) = &job.process else {
                    if path.config.speculate {
                        let message = format!("job {} has no program that could go on", job.name);
                        let help = "make it a [[process]], or set another `completion`".into();
                        return Err(self.conflict_in_line(job.line, message, help));
                    }
                    continue;
                };
                let given = waits.get(&path.name).copied().or(path.config.completion);
                let Some(policy) = process.completion(given) else {
                    let (name, word) = (&job.name, process.strategy.word());
                    let message =
                        format!("process {name}: `{word}` on a path that waits otherwise");
                    let help = "remove the path's `completion`, or give the process its own path";
                    return Err(self.conflict_in_line(job.line, message, help.into()));
                };
                waits.insert(path.name.clone(), policy);
            }
        }
        if self.composition.is_empty() {
            // One unnamed path serves all drives.
            self.path.completion = waits.into_values().next().or(self.path.completion);
            return Ok(());
        }
        for path in &mut self.composition.paths {
            path.config.completion = waits.get(&path.name).copied().or(path.config.completion);
        }
        Ok(())
    }

    fn read_drives(
        &mut self,
        sections: Vec<Section<'_>>,
        target: Option<&TargetBuilder>,
    ) -> Result<(), ScenarioError> {
        for (index, mut section) in sections.into_iter().enumerate() {
            let whole = section.source_span();
            let at_name = section.get("name").map(|value| value.source_span());
            let plan = match KindWord::read(&mut section)? {
                KindWord::Nvme => {
                    DriveBuilder::read(section, None)?.finish(index, self.seed, target)?
                }
                KindWord::Null => {
                    let null = Some(PersonalityKind::Null);
                    DriveBuilder::read(section, null)?.finish(index, self.seed, target)?
                }
                KindWord::Ahci => keys::ahci_keys::read(section, index, target)?,
                KindWord::File => keys::real_keys::read_file(section, index, target)?,
                KindWord::Kernel => keys::real_keys::read_kernel(section, index, target)?,
                KindWord::Pci => keys::real_keys::read_pci(section, index, target)?,
            };
            self.check_ahci_port(&plan).map_err(|problem| whole.error(problem))?;
            if self.drive(&plan.config.name).is_some() {
                let place = at_name.as_ref().unwrap_or(&whole);
                return Err(place.error(ProblemKind::Conflict {
                    message: format!("two drives are called \"{}\"", plan.config.name),
                    help: "give each a `name` of its own".into(),
                }));
            }
            self.drives.push(plan);
        }
        Ok(())
    }

    /// Returns a conflict in a line of the scenario, counted from 1, for an error with a caret.
    pub fn conflict_in_line(&self, line: usize, message: String, help: String) -> ScenarioError {
        let source = SourceText::new(&self.file, &self.text);
        let lines = self.text.split_inclusive('\n');
        let start: usize = lines.clone().take(line.saturating_sub(1)).map(str::len).sum();
        let text = lines.clone().nth(line.saturating_sub(1)).unwrap_or_default();
        let indent = text.len() - text.trim_start().len();
        let span = start + indent..start + text.trim_end().len().max(indent);
        ScenarioError::new(&source, span, ProblemKind::Conflict { message, help })
    }

    /// Returns the drive with this name.
    pub fn drive(&self, name: &str) -> Option<&DriveSpec> {
        self.drives.iter().find(|d| d.config.name == name)
    }

    /// Gives the numbers of the machine that runs the program, if the host is that machine
    /// (`machine = "this"`). Without them it cannot be simulated.
    ///
    /// # Errors
    /// [`ScenarioError::Invalid`] if `vary` names no number of this machine, or makes it impossible.
    pub fn set_this_machine(&mut self, model: &MachineModel) -> Result<(), ScenarioError> {
        if let Some(this) = &self.host.this_machine {
            let source = SourceText::new(&self.file, &self.text);
            self.host.machine = Some(this.measured(model, &source)?);
            self.host.this_machine = None;
        }
        Ok(())
    }

    /// Replaces the seed, including that of every drive without a seed of its own.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
        for (index, drive) in self.drives.iter_mut().enumerate() {
            if let (MediaConfig::Nand(nand), false) = (&mut drive.config.media, drive.seed_given) {
                nand.seed = seed_of(seed, index);
            }
        }
    }
}

impl DriveSpec {
    /// Returns the size in bytes of a block as hosts address the drive.
    pub fn sector_bytes(&self) -> u32 {
        self.config.lba_bytes()
    }

    /// Returns whether the drive accepts block requests, itself or through a target.
    pub fn is_block_device(&self) -> bool {
        self.config.personality != PersonalityKind::OpenChannel || self.target != HostTarget::None
    }

    /// Returns whether the sectors of the drive have names instead of logical blocks.
    pub fn has_names(&self) -> bool {
        self.config.ftl.addressing.is_named()
    }
}
