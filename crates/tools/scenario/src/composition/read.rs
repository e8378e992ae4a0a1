//! Reading of `[[target]]`, `[[set]]` and `[[path]]`, and the rules of what may be over what.

use block::notify::CompletionPolicy;
use controller::{NAMESPACES_MAX, PmrConfig, PmrStore};
use lnvm::{PuSet, TargetKind, is_name};
use media::MediaConfig;
use nvme::PuId;

use super::{Beneath, LOG, MEMBERS_MAX, PathSpec, SetSpec, TargetSpec};
use crate::choice::{BLOCK_LAYER, BLOCK_REQUESTS, Impossible};
use crate::error::ProblemKind;
use crate::keys::job::JobRefs;
use crate::section::{Result, Section, Value};
use crate::target::TargetBuilder;
use crate::{BlockLayerSpec, DriveKind, DriveSpec, HostTarget, PathConfig, Scenario};

/// Default size of a stripe in bytes [HIOPS14 §4].
const STRIPE_BYTES: u64 = 128 << 10;

/// The allowed names of targets, sets and paths.
const NAME: &str = "1 to 32 letters, digits, `-`, `_` and `.`, the first a letter or digit";

/// The sections of a composition.
#[derive(Default)]
pub(crate) struct CompositionSections<'a> {
    targets: Vec<Section<'a>>,
    sets: Vec<Section<'a>>,
    paths: Vec<Section<'a>>,
}

impl<'a> CompositionSections<'a> {
    /// Returns the sections. A single `[target]` or `[path]` is unnamed, and not among them.
    pub(crate) fn new(
        target: Option<&Value<'a>>,
        set: Option<&Value<'a>>,
        path: Option<&Value<'a>>,
    ) -> Result<CompositionSections<'a>> {
        let list = |value: Option<&Value<'a>>, name: &str| match value {
            Some(value) if value.items().is_some() => value.sections(name),
            _ => Ok(Vec::new()),
        };
        Ok(CompositionSections {
            targets: list(target, "target")?,
            sets: set.map_or(Ok(Vec::new()), |value| value.sections("set"))?,
            paths: list(path, "path")?,
        })
    }
}

impl Scenario {
    /// Reads the composition of a scenario whose drives and `[path]` have been read.
    pub(crate) fn read_composition(&mut self, sections: CompositionSections<'_>) -> Result<()> {
        for section in sections.targets {
            let target = self.read_target(section)?;
            self.composition.targets.push(target);
        }
        for section in sections.sets {
            let set = self.read_set(section)?;
            self.composition.sets.push(set);
        }
        // Names of later paths are known to earlier ones, for the message.
        let mut names = Vec::new();
        for section in &sections.paths {
            names.extend(section.peek_string("name"));
        }
        for section in sections.paths {
            let path = self.read_path(section, &names)?;
            self.composition.paths.push(path);
        }
        Ok(())
    }

    /// Returns the names of the devices that a path or a set can be over, in order.
    fn devices(&self) -> Vec<(&str, Beneath)> {
        let drives = (0..self.drives.len()).map(Beneath::Drive);
        let targets = (0..self.composition.targets.len()).map(Beneath::Target);
        let sets = (0..self.composition.sets.len()).map(Beneath::Set);
        drives.chain(targets).chain(sets).map(|d| (self.device_name(d), d)).collect()
    }

    /// Reads the name of a device, which no other has.
    fn read_name(&self, s: &mut Section<'_>, what: &str) -> Result<String> {
        let Some(value) = s.get("name") else {
            return Err(s.missing("name", format!("by which {what}")));
        };
        let name = value.string()?;
        if !is_name(name) {
            return Err(value.refuse(NAME));
        }
        if self.devices().iter().any(|(other, _)| *other == name) {
            let message = format!("\"{name}\" is the name of another drive, target or set");
            return Err(value.conflict(message, "give each a `name` of its own"));
        }
        Ok(name.to_owned())
    }

    fn read_target(&self, mut s: Section<'_>) -> Result<TargetSpec> {
        let place = s.source_span();
        let name = self.read_name(&mut s, "paths and sets refer to it")?;
        let names: Vec<&str> = self.drives.iter().map(|d| d.config.name.as_str()).collect();
        let drive = match (s.get("drive"), &self.drives[..]) {
            (Some(value), _) => {
                let word = value.string()?;
                let found = names.iter().position(|name| *name == word);
                found.ok_or_else(|| value.refuse_name(&names))?
            }
            (None, [_]) => 0,
            (None, _) => {
                return Err(s.missing("drive", format!("there are several: {}", names.join(", "))));
            }
        };
        let plan = &self.drives[drive];
        let at_pus = s.get("pus");
        let builder = TargetBuilder::read(s)?;
        let drive_name = &plan.config.name;
        let HostTarget::Named(mut target) = builder.finish(plan.sector_bytes()) else {
            return Err(place.error(ProblemKind::Conflict {
                message: format!("target {name} has the kind \"none\", so that it is no device"),
                help: "remove the section, or give it another kind".into(),
            }));
        };
        Impossible::check_flash(plan.config.personality, || format!("target {name}"))
            .map_err(|why| builder.kind_span_or_section().error(why.into()))?;
        let pus = at_pus.as_ref().map(|value| read_pus(value, plan)).transpose()?;
        if target.kind == Some(TargetKind::Rrpc) && !plan.config.open_channel.device_l2p {
            return Err(builder.kind_span_or_section().error(Impossible::NoDeviceMap.into()));
        }
        if plan.target != HostTarget::None {
            return Err(place.error(ProblemKind::Conflict {
                message: format!(
                    "drive {drive_name} has {} on all of its parallel units, so that none is left for \
                     target {name}",
                    plan.target.label()
                ),
                help: "remove [target], or make it a [[target]] with `pus`".into(),
            }));
        }
        match &at_pus {
            Some(value) if target.kind.is_none() => {
                let message = format!("target {name} is declared here, and its kind is not known");
                return Err(
                    value.conflict(message, "add kind = \"pblk\", \"rrpc\", \"kv\" or \"ppa\"")
                );
            }
            None if !plan.has_image() => {
                let at = builder.name_span().unwrap_or(&place);
                return Err(at.error(ProblemKind::forgotten_target(&name)));
            }
            _ => {}
        }
        for other in self.composition.targets.iter().filter(|other| other.drive == drive) {
            if let (Some(pus), Some(value), Some(taken)) = (&pus, &at_pus, &other.target.pus)
                && !pus.is_disjoint(taken)
            {
                let common = pus.intersection(taken);
                let message = format!(
                    "target {} of drive {drive_name} has the parallel units {common}, too",
                    other.target.name
                );
                return Err(value.conflict(message, "give each target units of its own"));
            }
        }
        builder.shards(plan.pus(), plan.config.controller.max_io_queues)?;
        let scrub = builder.scrub(plan.sector_bytes())?;
        if let Some(value) = &at_pus {
            target.spans.push(("pus", value.source_span()));
        }
        target.pus = pus;
        Ok(TargetSpec { drive, target: *target, scrub })
    }

    fn read_set(&self, mut s: Section<'_>) -> Result<SetSpec> {
        let name = self.read_name(&mut s, "paths refer to it")?;
        let Some(list) = s.get("members") else {
            return Err(s.missing("members", "the names of drives or targets"));
        };
        let Some(items) = list.items() else {
            return Err(list.wrong_type("a list of the names of drives or targets"));
        };
        if !(1..=MEMBERS_MAX).contains(&items.len()) {
            return Err(list.conflict(
                format!("set {name} has {} members", items.len()),
                format!("allowed: 1 to {MEMBERS_MAX}"),
            ));
        }
        let mut members: Vec<Beneath> = Vec::new();
        for item in &items {
            let member = self.find_device(item, &[])?;
            let word = self.device_name(member).to_owned();
            if let Beneath::Set(_) = member {
                let message = format!("\"{word}\" is a set, and a stripe of stripes is a stripe");
                return Err(item.conflict(message, "list its members instead"));
            }
            if members.contains(&member) {
                let message = format!("set {name} has the member \"{word}\" twice");
                return Err(item.conflict(message, "list each member once"));
            }
            self.check_owner(member, item)?;
            self.check_blocks_at(member, item, BLOCK_REQUESTS)?;
            let plan = &self.drives[self.drive_of(member)];
            for other in &members {
                Impossible::check_memory(plan, &self.drives[self.drive_of(*other)])
                    .map_err(|why| item.source_span().error(why.into()))?;
            }
            let bytes = plan.sector_bytes();
            if let Some(first) = members.first() {
                let expected = self.drives[self.drive_of(*first)].sector_bytes();
                // The sectors of a real device are known when it is opened.
                if bytes != expected && bytes != 0 && expected != 0 {
                    let first = self.device_name(*first);
                    let message = format!(
                        "\"{word}\" has sectors of {bytes} bytes, and \"{first}\" of {expected}: a \
                         stripe has one sector size"
                    );
                    return Err(item.conflict(message, "combine drives with equal sectors"));
                }
            }
            members.push(member);
        }
        let sectors =
            members.iter().map(|member| self.drives[self.drive_of(*member)].sector_bytes());
        let sector = u64::from(sectors.max().unwrap_or(1).max(1));
        let mut stripe_bytes = STRIPE_BYTES.next_multiple_of(sector);
        s.set("stripe", &mut stripe_bytes, |v| match v.size()? {
            bytes if bytes > 0 && bytes.is_multiple_of(sector) && bytes / sector < 1 << 31 => {
                Ok(bytes)
            }
            _ => Err(v.refuse(format!("multiples of the sector size, {sector} bytes"))),
        })?;
        s.finish()?;
        Ok(SetSpec { name, members, stripe_bytes })
    }

    fn read_path(&self, mut s: Section<'_>, paths: &[&str]) -> Result<PathSpec> {
        let Some(value) = s.get("name") else {
            return Err(s.missing("name", "by which jobs refer to it"));
        };
        let name = value.string()?.to_owned();
        if !is_name(&name) {
            return Err(value.refuse(NAME));
        }
        if self.composition.paths.iter().any(|path| path.name == name) {
            let message = format!("two paths are called \"{name}\"");
            return Err(value.conflict(message, "give each a `name` of its own"));
        }
        let Some(value) = s.get("over") else {
            return Err(s.missing("over", "the name of a drive, a target or a set"));
        };
        let (over, line) = (self.find_device(&value, paths)?, value.line());
        let config = PathConfig::read_keys(&mut s)?;
        self.check_owner(over, &value)?;
        match &config.block_layer {
            Some(_) => self.check_blocks_at(over, &value, BLOCK_LAYER)?,
            // Jobs on keys go straight to a key-value target, and jobs on parallel units to those.
            None if self.kind_of(over) == Some(TargetKind::Kv) => {}
            None if self.has_units(over) => self.check_units(over, &value)?,
            None => self.check_blocks_at(over, &value, BLOCK_REQUESTS)?,
        }
        if let Beneath::Drive(drive) = over {
            // Each path is a host of its own, with at least one queue pair.
            let has = usize::from(self.drives[drive].config.controller.max_io_queues);
            let paths = self.composition.paths.iter().filter(|path| path.over == over).count();
            if paths >= has {
                let message = format!(
                    "drive {} has {has} I/O queues, and as many paths",
                    self.drives[drive].config.name
                );
                return Err(value.conflict(message, "raise the drive's controller.max_io_queues"));
            }
        }
        if let Some(layer) = &config.block_layer {
            self.check_layer(layer, &mut s, over)?;
        }
        self.check_method(&config, &mut s, over)?;
        self.check_namespace(&config, &mut s, over)?;
        self.check_app(&config, &s, over)?;
        self.check_log(&config, &mut s, over)?;
        s.finish()?;
        Ok(PathSpec { name, over, config, line })
    }

    /// Returns the device of this name. `paths` are names that are no devices.
    fn find_device(&self, value: &Value<'_>, paths: &[&str]) -> Result<Beneath> {
        let word = value.string()?;
        let devices = self.devices();
        if let Some((_, device)) = devices.iter().find(|(name, _)| *name == word) {
            return Ok(*device);
        }
        let names: Vec<&str> = devices.iter().map(|(name, _)| *name).collect();
        if paths.contains(&word) {
            let message = format!("\"{word}\" is a path, and a path is over a device");
            return Err(value.conflict(message, format!("allowed: {}", names.join(", "))));
        }
        Err(value.refuse_name(&names))
    }

    /// Checks that `device` has no other owner.
    fn check_owner(&self, device: Beneath, value: &Value<'_>) -> Result<()> {
        let set = self.composition.sets.iter().find(|set| set.members.contains(&device));
        let path = self.composition.paths.iter().find(|path| path.over == device);
        let owner = match (set, path.filter(|_| !self.is_shareable(device))) {
            (Some(set), _) => format!("set {}", set.name),
            (None, Some(path)) => format!("path {}", path.name),
            (None, None) => return Ok(()),
        };
        if let Some(drive) = self.at_ahci(device) {
            let users = format!("{owner} and another");
            return Err(value
                .source_span()
                .error(Impossible::OneCommandList { drive, users }.into()));
        }
        let device = format!("\"{}\"", self.device_name(device));
        Err(value.source_span().error(Impossible::SecondOwner { device, owner }.into()))
    }

    /// Checks that `device`, which `value` names, has logical blocks for `user`.
    pub(crate) fn check_blocks_at(
        &self,
        device: Beneath,
        value: &Value<'_>,
        user: &'static str,
    ) -> Result<()> {
        self.check_blocks(device, user).map_err(|why| value.source_span().error(why.into()))
    }

    /// Checks that no target has parallel units of a drive that a path is over.
    fn check_units(&self, device: Beneath, value: &Value<'_>) -> Result<()> {
        let Beneath::Drive(drive) = device else { return Ok(()) };
        match self.composition.targets.iter().find(|target| target.drive == drive) {
            Some(TargetSpec { target, .. }) => {
                let device = format!("\"{}\"", self.device_name(device));
                let owner = format!("target {}", target.name);
                Err(value.source_span().error(Impossible::SecondOwner { device, owner }.into()))
            }
            None => Ok(()),
        }
    }

    /// Returns whether several hosts can use a device: a drive that maps its logical blocks itself.
    fn is_shareable(&self, device: Beneath) -> bool {
        matches!(device, Beneath::Drive(i) if self.drives[i].target == HostTarget::None)
            && !self.has_units(device)
            && self.at_ahci(device).is_none()
    }

    /// Returns the name of a drive that is at an AHCI port.
    fn at_ahci(&self, device: Beneath) -> Option<String> {
        match device {
            Beneath::Drive(i) => self.drives[i].sata().map(|_| self.drives[i].config.name.clone()),
            Beneath::Target(_) | Beneath::Set(_) => None,
        }
    }

    /// Checks that completions of a device can be noticed as `config` says; `section` has its keys.
    pub(crate) fn check_method(
        &self,
        config: &PathConfig,
        section: &mut Section<'_>,
        over: Beneath,
    ) -> Result<()> {
        let works_by_vectors = match over {
            Beneath::Drive(i) => !self.drives[i].is_block_device(),
            _ => self.kind_of(over).is_some_and(|kind| !kind.is_block()),
        };
        if config.completion.unwrap_or_default() == CompletionPolicy::default() || !works_by_vectors
        {
            return Ok(());
        }
        match section.get("poll_interval").or(section.get("completion")) {
            Some(value) => {
                let device = self.device_name(over).to_owned();
                Err(value.source_span().error(Impossible::NoCompletionMethod { device }.into()))
            }
            None => Ok(()),
        }
    }

    /// Checks that a device has the namespace of a path; `section` has its keys.
    pub(crate) fn check_namespace(
        &self,
        config: &PathConfig,
        section: &mut Section<'_>,
        over: Beneath,
    ) -> Result<()> {
        let (Some(nsid), Some(value)) = (config.namespace, section.get("namespace")) else {
            return Ok(());
        };
        let name = self.device_name(over);
        let plan = match over {
            Beneath::Drive(i) => &self.drives[i],
            Beneath::Target(_) | Beneath::Set(_) => {
                let message = format!("\"{name}\" is no drive, and has no namespaces");
                return Err(value.conflict(message, "remove `namespace`, or name a drive"));
            }
        };
        if plan.kind != DriveKind::Nvme || plan.target != HostTarget::None {
            let message = format!("\"{name}\" is no emulated NVMe drive without a target");
            return Err(value.conflict(message, "remove `namespace`"));
        }
        let count = plan.config.controller.namespaces.count();
        match (1..=count).contains(&nsid) {
            true => Ok(()),
            // Hosts can have created others on an image.
            false if plan.has_image() && nsid > 0 && nsid <= NAMESPACES_MAX as u32 => Ok(()),
            false => Err(value.refuse(format!("1 to {count}, the namespaces of drive {name}"))),
        }
    }

    /// Checks that a path can have a log in the persistent memory of its drive; `section` has its
    /// keys.
    pub(crate) fn check_log(
        &self,
        config: &PathConfig,
        section: &mut Section<'_>,
        over: Beneath,
    ) -> Result<()> {
        let (Some(bytes), Some(value)) = (config.log, section.get("log")) else { return Ok(()) };
        let name = self.device_name(over);
        if let Beneath::Set(_) = over {
            let message = format!("\"{name}\" is a set, and a log is in the memory of one drive");
            return Err(value.conflict(message, "give the log to a path over a drive or target"));
        }
        self.check_blocks_at(over, &value, LOG)?;
        let drive = self.drive_of(over);
        let plan = &self.drives[drive];
        let Some(PmrConfig { store, .. }) = &plan.config.pmr else {
            let message = format!("drive {} has no persistent memory region", plan.config.name);
            return Err(value.conflict(message, "add `pmr` to the drive, or remove `log`"));
        };
        if let PmrStore::Emulated { bytes: region } = store
            && bytes > *region
        {
            let allowed = format!("up to {region} bytes, the size of `pmr`");
            return Err(value.refuse(allowed));
        }
        let mut others = self.composition.paths.iter().filter(|path| path.config.log.is_some());
        if let Some(other) = others.find(|path| self.drive_of(path.over) == drive) {
            let message = format!("path {} has a log in the memory of this drive", other.name);
            return Err(value.conflict(message, "give a log to one path of each drive"));
        }
        if self.host.machine.is_some() || self.host.this_machine.is_some() {
            let message = "the time of a log is not modeled on a [host] machine";
            return Err(value.conflict(message, "remove `log`, or `machine`"));
        }
        Ok(())
    }

    /// Checks that a block layer can be over a device; `section` has its keys.
    pub(crate) fn check_layer(
        &self,
        layer: &BlockLayerSpec,
        section: &mut Section<'_>,
        over: Beneath,
    ) -> Result<()> {
        let queues = section.get("queues");
        for member in self.members(over) {
            if let Some(value) = section.get("queue_model") {
                self.check_blocks_at(member, &value, BLOCK_LAYER)?;
            }
            let plan = self.drive_spec(member);
            let name = &plan.config.name;
            let has_target = plan.target != HostTarget::None;
            let (Some(asked), Some(value)) = (layer.queues, &queues) else { continue };
            if has_target {
                let contexts = plan.shards.unwrap_or(1);
                if u32::from(asked) > contexts {
                    let (target, drive) = (plan.target.label(), name.clone());
                    let why =
                        Impossible::SharedWriteContext { target, drive, contexts, queues: asked };
                    return Err(value.source_span().error(why.into()));
                }
                continue;
            }
            if asked > 1 && plan.sata().is_some() {
                let (drive, users) = (name.clone(), format!("{asked} hardware queues"));
                let why = Impossible::OneCommandList { drive, users };
                return Err(value.source_span().error(why.into()));
            }
            let has = plan.config.controller.max_io_queues;
            if asked > has {
                return Err(value.conflict(
                    format!("drive {name} has {has} I/O queues, not {asked}"),
                    format!("allowed: 1 to {has}, or raise the drive's controller.max_io_queues"),
                ));
            }
        }
        Ok(())
    }
}

/// Reads the parallel units of a target, such as `"0-3,8"`.
fn read_pus(value: &Value<'_>, plan: &DriveSpec) -> Result<PuSet> {
    let units = plan.pus();
    let allowed = || match units {
        0 => "a drive with parallel units".to_owned(),
        n => format!("units from 0 to {}, such as \"0-1\" or \"0,2\"", n - 1),
    };
    let pus: PuSet = value.string()?.parse().map_err(|_| value.refuse(allowed()))?;
    if pus.is_empty() || pus.last() >= Some(PuId(units)) {
        return Err(value.refuse(allowed()));
    }
    Ok(pus)
}

impl DriveSpec {
    /// Returns the number of parallel units; 0 for media without them.
    fn pus(&self) -> u32 {
        match &self.config.media {
            MediaConfig::Nand(nand) => nand.geometry.total_pus(),
            MediaConfig::Pcm(_) | MediaConfig::Null { .. } => 0,
        }
    }

    /// Returns whether the drive outlives the run in an image.
    fn has_image(&self) -> bool {
        matches!(&self.config.media, MediaConfig::Nand(nand) if nand.data.writes_image())
    }
}

impl DriveSpec {
    /// Returns the names of the applications of its rules, in the order of the program; none without rules.
    fn app_names(&self) -> Vec<String> {
        self.config.rules.as_ref().map_or_else(Vec::new, |rules| rules.app_names())
    }
}

impl Scenario {
    /// Whether a drive, or a member of a set, has rules of several applications.
    fn has_several_apps(&self, over: Beneath) -> bool {
        self.members(over).iter().any(|member| match member {
            Beneath::Drive(drive) => self.drives[*drive].app_names().len() > 1,
            Beneath::Target(_) | Beneath::Set(_) => false,
        })
    }

    /// Checks that a path leads to an application of a drive with several, and that the drive has it;
    /// `section` has the keys of the path.
    pub(crate) fn check_app(
        &self,
        config: &PathConfig,
        section: &Section<'_>,
        over: Beneath,
    ) -> Result<()> {
        let apps = match over {
            Beneath::Drive(drive) => self.drives[drive].app_names(),
            Beneath::Target(_) | Beneath::Set(_) => Vec::new(),
        };
        let name = self.device_name(over);
        let names = apps.join(", ");
        let at = section.source_span();
        match &config.app {
            Some(app) if apps.contains(app) => Ok(()),
            Some(app) => {
                let message = format!("\"{name}\" has no application {app}");
                let help = match apps.is_empty() {
                    true => "remove `app`, or name a drive with rules".into(),
                    false => format!("allowed: {names}"),
                };
                Err(at.error(ProblemKind::Conflict { message, help }))
            }
            None if self.has_several_apps(over) => {
                let message = format!("the rules of \"{name}\" have several applications");
                let help = match apps.is_empty() {
                    true => "make a set of drives whose rules have one application".into(),
                    false => format!("set `app` to one of: {names}"),
                };
                Err(at.error(ProblemKind::Conflict { message, help }))
            }
            None => Ok(()),
        }
    }

    /// Adds a path for each application of a drive with several, named after it, to a scenario without
    /// `[[path]]`.
    ///
    /// # Errors
    /// If two drives have applications of one name, or a set has a member with several applications.
    pub(crate) fn add_application_paths(&mut self) -> Result<()> {
        let has_several = |drive: &DriveSpec| drive.app_names().len() > 1 && drive.app.is_none();
        if !self.composition.paths.is_empty() || !self.drives.iter().any(has_several) {
            return Ok(());
        }
        let mut paths: Vec<PathSpec> = Vec::new();
        for path in self.paths() {
            let apps = match path.over {
                Beneath::Drive(drive) if has_several(&self.drives[drive]) => {
                    self.drives[drive].app_names()
                }
                _ if path.config.app.is_none() && self.has_several_apps(path.over) => {
                    let name = self.device_name(path.over);
                    let message = format!("set {name} has a drive with several applications");
                    let help = "make a set of drives whose rules have one application";
                    return Err(self.conflict_in_line(path.line, message, help.into()));
                }
                _ => {
                    paths.push(path);
                    continue;
                }
            };
            for app in apps {
                if paths.iter().any(|path| path.name == app) {
                    let message = format!("two paths are called \"{app}\"");
                    let help = "declare each [[path]], with a `name` and an `app`";
                    return Err(self.conflict_in_line(path.line, message, help.into()));
                }
                let config = PathConfig { app: Some(app.clone()), ..path.config.clone() };
                paths.push(PathSpec { name: app, config, ..path.clone() });
            }
        }
        self.composition.paths = paths;
        Ok(())
    }

    /// Returns the name of the path that leads to the application that a job names.
    ///
    /// # Errors
    /// If there is no such path, or several, or the job names a path or a drive, too.
    pub(crate) fn path_of_app(
        &self,
        value: &Value<'_>,
        refs: &JobRefs<'_>,
        paths: &[PathSpec],
    ) -> Result<String> {
        let app = value.string()?;
        if refs.path.is_some() || refs.drive.is_some() {
            let message = "an application has a path of its own".to_owned();
            return Err(value.conflict(message, "remove `path` and `drive`, or `app`"));
        }
        let mut found = paths.iter().filter(|path| path.config.app.as_deref() == Some(app));
        match (found.next(), found.next()) {
            (Some(path), None) if !self.composition.is_empty() => Ok(path.name.clone()),
            (Some(_), Some(_)) => {
                let message = format!("several paths lead to an application {app}");
                Err(value.conflict(message, "name a `path` instead"))
            }
            _ => {
                let names: Vec<&str> =
                    paths.iter().filter_map(|path| path.config.app.as_deref()).collect();
                Err(value.refuse_name(&names))
            }
        }
    }
}
