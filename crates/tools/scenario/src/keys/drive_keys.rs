//! The keys of `[drive]` and `[[drive]]`: a preset, the changes to it, and the controller.

use controller::{
    ArbitrationConfig, ControllerConfig, DriveConfig, MediaScrubConfig, NamespaceLayout,
    NullConfig, PersonalityKind, PuScheduling, SuspendConfig, TransferConfig, WriteBuffer,
};
use media::MediaConfig;
use time::Nanos;
use toml::de::DeTable;

use super::drive_kind::{DriveKind, read_name};
use super::ftl_keys::FtlBuilder;
use super::interface_keys::{InterfaceBuilder, read_latency_monitor, read_registers, suspension};
use super::media_keys::{MediaBuilder, MediaKind};
use crate::capacity::Capacity;
use crate::capacity::sizing::Sizing;
use crate::choice::Impossible;
use crate::error::{ProblemKind, ScenarioError};
use crate::format::bytes_binary;
use crate::presets;
use crate::ranges::{AGE, STEP_TIME};
use crate::rule_programs::drive_rules::RulesBuilder;
use crate::section::{Keyword, Result, Section, Value};
use crate::source::{SourceSpan, SourceText};
use crate::target::{HostTarget, TargetBuilder};
use crate::{DriveSpec, seed_of};

#[derive(Clone, Copy, Debug, PartialEq)]
enum BufferKind {
    None,
    Volatile,
    PowerLossProtected,
}

/// Builder of a drive: the preset first, the scenario's keys on top.
#[derive(Clone, Debug)]
pub(crate) struct DriveBuilder {
    /// Span of the drive's section, or of its preset's name. Errors point to it if no key of the
    /// scenario is the cause.
    section_span: SourceSpan,
    pub(crate) name: Option<(String, SourceSpan)>,
    preset: Option<String>,
    personality: (PersonalityKind, Option<SourceSpan>),
    media: MediaBuilder,
    blocks: BlockKeys,
    ftl: FtlBuilder,
    controller: ControllerConfig,
    pus: PuKeys,
    buffer: (BufferKind, u64, Option<SourceSpan>),
    null: NullConfig,
    interface: InterfaceBuilder,
    rules: RulesBuilder,
    scrub: Option<DriveScrubBuilder>,
    pub(crate) target: Option<TargetBuilder>,
}

/// The keys of the logical blocks: their size, and the namespaces of a new drive.
#[derive(Clone, Debug, Default)]
struct BlockKeys {
    bytes: Option<(u32, SourceSpan)>,
    namespaces: Option<(NamespaceLayout, SourceSpan)>,
}

/// The keys of the parallel units: scheduling, registers and transfers.
#[derive(Clone, Debug)]
struct PuKeys {
    policy: PuScheduling,
    page_register: bool,
    cache_program: bool,
    transfers: TransferConfig,
}

/// Scrub of the drive's own FTL, and the span of its key.
#[derive(Clone, Debug)]
struct DriveScrubBuilder {
    bytes_per_sec: u64,
    interval: Nanos,
    span: SourceSpan,
}

impl DriveScrubBuilder {
    fn read(value: &Value<'_>) -> Result<Option<DriveScrubBuilder>> {
        let mut s = value.section()?;
        let (mut bytes_per_sec, mut repeat_after) = (0, Nanos::from_secs(2_592_000));
        if s.set("rate", &mut bytes_per_sec, |v| v.rate_or_none())?.is_none() {
            return Err(s.missing("rate", "how much is read, such as \"1MB/s\"; 0 for none"));
        }
        s.set("interval", &mut repeat_after, |v| v.duration_in(&AGE))?;
        s.finish()?;
        Ok(Some(DriveScrubBuilder {
            bytes_per_sec,
            interval: repeat_after,
            span: value.source_span(),
        }))
    }

    /// Returns the configuration for a drive. `manages` tells whether the drive manages its flash.
    fn config(&self, manages: bool, sector_bytes: u32) -> Result<MediaScrubConfig> {
        if !manages {
            return Err(self.span.error(ProblemKind::Conflict {
                message: "only a drive that manages its flash reads it by itself".into(),
                help: "remove `scrub`, set personality = \"block\" over NAND, or give [target] a \
                       `scrub`"
                    .into(),
            }));
        }
        let sectors = self.bytes_per_sec.div_ceil(u64::from(sector_bytes.max(1)));
        let sectors_per_sec = u32::try_from(sectors).unwrap_or(u32::MAX);
        Ok(MediaScrubConfig { sectors_per_sec, pass_interval_min: self.interval })
    }
}

/// Limits of a logical block in bytes.
const LBA_BYTES_MIN: u32 = 512;
const LBA_BYTES_MAX: u32 = 65536;

/// Reads the size of a logical block.
fn read_lba_bytes(value: &Value<'_>) -> Result<u32> {
    match value.size_u32()? {
        bytes if bytes.is_power_of_two() && (LBA_BYTES_MIN..=LBA_BYTES_MAX).contains(&bytes) => {
            Ok(bytes)
        }
        _ => Err(value.refuse(format!(
            "a power of two from {LBA_BYTES_MIN} to {LBA_BYTES_MAX}, at most the drive's sector_bytes"
        ))),
    }
}

/// The size of the namespace that has the capacity that the others leave.
const REST: &str = "rest";

/// Reads the sizes of namespaces.
fn read_namespaces(value: &Value<'_>) -> Result<NamespaceLayout> {
    let Some(items) = value.items().filter(|items| !items.is_empty()) else {
        return Err(value.wrong_type("a list of sizes, such as [\"4G\", \"rest\"]"));
    };
    let size = |item: &Value<'_>| match item.string() {
        Ok(REST) => Ok(None),
        _ => item.size().map(Some),
    };
    let sizes = items.iter().map(size).collect::<Result<Vec<_>>>()?;
    NamespaceLayout::of_sizes(&sizes).map_err(|error| {
        value.conflict(error.to_string(), "allowed: 1 to 32 sizes; one may be \"rest\"")
    })
}

/// A personality, and whether it has rules.
const PERSONALITIES: [Keyword<'static, (PersonalityKind, bool)>; 4] = [
    Keyword("null", (PersonalityKind::Null, false)),
    Keyword("block", (PersonalityKind::Block, false)),
    Keyword("rules", (PersonalityKind::Block, true)),
    Keyword("open-channel", (PersonalityKind::OpenChannel, false)),
];

impl DriveBuilder {
    /// Reads the section of one drive, which has the personality `only` if it is given.
    pub(crate) fn read(
        mut section: Section<'_>,
        only: Option<PersonalityKind>,
    ) -> Result<DriveBuilder> {
        let mut draft = DriveBuilder {
            section_span: section.source_span(),
            name: None,
            preset: None,
            personality: (PersonalityKind::Block, None),
            media: MediaBuilder::default(),
            blocks: BlockKeys::default(),
            ftl: FtlBuilder::from_config(DriveConfig::default_ftl()),
            controller: ControllerConfig::default(),
            pus: PuKeys {
                policy: PuScheduling::Fifo,
                page_register: true,
                cache_program: true,
                transfers: TransferConfig::default(),
            },
            buffer: (BufferKind::None, 0, None),
            null: NullConfig::default(),
            interface: InterfaceBuilder::default(),
            rules: RulesBuilder::default(),
            scrub: None,
            target: None,
        };
        if let Some(value) = section.get("preset") {
            draft.apply_preset(&value)?;
        }
        draft.read_keys(&mut section)?;
        if let Some(only) = only {
            match &draft.personality {
                (other, Some(at)) if *other != only => {
                    return Err(at.error(ProblemKind::Conflict {
                        message: "a drive with kind = \"null\" has the null personality".into(),
                        help: "remove `personality`, or set kind = \"nvme\"".into(),
                    }));
                }
                (_, at) => draft.personality = (only, at.clone()),
            }
        }
        section.finish()?;
        Ok(draft)
    }

    fn apply_preset(&mut self, value: &Value<'_>) -> Result<()> {
        let name = value.string()?;
        let preset = presets::find(name).ok_or_else(|| {
            let names: Vec<&str> = presets::all().iter().map(|p| p.name).collect();
            value.refuse_name(&names)
        })?;
        let source = SourceText::new(preset.file_name().as_ref(), preset.text);
        let table = parse_toml(&source)?;
        let mut root = Section::root(&source, &table);
        if let Some(drive) = root.get("drive") {
            let mut section = drive.section()?;
            self.read_keys(&mut section)?;
            section.finish()?;
        }
        root.finish()?;
        self.media.clear_spans();
        self.ftl.clear_spans();
        self.interface.clear_spans();
        self.name = None;
        self.personality.1 = None;
        self.buffer.2 = None;
        self.section_span = value.source_span();
        self.preset = Some(preset.name.to_owned());
        Ok(())
    }

    fn read_keys(&mut self, s: &mut Section<'_>) -> Result<()> {
        if let Some(name) = read_name(s)? {
            self.name = Some(name);
        }
        let mut word = (self.personality.0, self.rules.is_chosen);
        let place = s.set("personality", &mut word, |v| v.choice(&PERSONALITIES))?;
        if place.is_some() {
            (self.personality, self.rules.is_chosen) = ((word.0, place), word.1);
        }
        self.rules.read(s)?;
        self.media.read(s)?;
        if let Some(value) = s.get("lba_bytes") {
            self.blocks.bytes = Some((read_lba_bytes(&value)?, value.source_span()));
        }
        if let Some(value) = s.get("namespaces") {
            self.blocks.namespaces = Some((read_namespaces(&value)?, value.source_span()));
        }
        self.ftl.read_of_drive(s)?;
        s.set("page_register", &mut self.pus.page_register, |v| v.boolean())?;
        s.set("cache_program", &mut self.pus.cache_program, |v| v.boolean())?;
        s.set("cache_read", &mut self.pus.transfers.cache_read, |v| v.boolean())?;
        s.set("dedicated_read_register", &mut self.pus.transfers.dedicated_read_register, |v| {
            v.boolean()
        })?;
        s.set("page_transfers", &mut self.pus.transfers.by_page, |v| v.boolean())?;
        self.read_pu_policy(s)?;
        self.interface.read(s)?;
        if let Some(value) = s.get("write_buffer") {
            self.read_buffer(&value)?;
        }
        if let Some(value) = s.get("controller") {
            self.read_controller(value.section()?)?;
        }
        if let Some(value) = s.get("null") {
            let mut null = value.section()?;
            null.set("latency", &mut self.null.latency, |v| v.duration_in(&STEP_TIME))?;
            null.set("bandwidth", &mut self.null.bytes_per_sec, |v| v.rate_or_none())?;
            null.finish()?;
        }
        if let Some(value) = s.get("target") {
            self.target = Some(TargetBuilder::read(value.section()?)?);
        }
        Ok(())
    }

    fn read_pu_policy(&mut self, s: &mut Section<'_>) -> Result<()> {
        let policies =
            [Keyword("fifo", PuScheduling::Fifo), Keyword("read-priority", read_priority(None))];
        s.set("pu_scheduling", &mut self.pus.policy, |v| v.choice(&policies))?;
        let Some(value) = s.get("suspend") else {
            return Ok(());
        };
        if self.pus.policy == PuScheduling::Fifo {
            return Err(value.source_span().error(ProblemKind::Conflict {
                message: "a parallel unit that works in order of arrival suspends nothing".into(),
                help: "set pu_scheduling = \"read-priority\", or remove `suspend`".into(),
            }));
        }
        self.pus.policy = read_priority(suspension(&value)?);
        Ok(())
    }

    fn read_buffer(&mut self, value: &Value<'_>) -> Result<()> {
        let kinds = [
            Keyword("none", BufferKind::None),
            Keyword("volatile", BufferKind::Volatile),
            Keyword("power-loss-protected", BufferKind::PowerLossProtected),
        ];
        let mut s = value.section().map_err(|_| {
            value.wrong_type("a table such as { kind = \"volatile\", size = \"16M\" }")
        })?;
        let (kind, size) = (&mut self.buffer.0, &mut self.buffer.1);
        s.set("kind", kind, |v| v.choice(&kinds))?;
        let at = s.set("size", size, |v| v.size())?;
        if self.buffer.0 != BufferKind::None && self.buffer.1 == 0 {
            let help = "how many bytes the buffer holds, such as \"16M\"; or kind = \"none\"";
            return Err(match at {
                Some(at) => at.error(ProblemKind::Conflict {
                    message: "the write buffer's size is 0".into(),
                    help: format!("set {help}"),
                }),
                None => s.missing("size", help),
            });
        }
        s.finish()?;
        self.buffer.2 = Some(at.unwrap_or_else(|| value.source_span()));
        Ok(())
    }

    /// Checks that write buffers have at least a write unit, and less than the drive.
    fn check_buffers(
        &self,
        media: &MediaConfig,
        capacity: Option<&Capacity>,
        target: Option<&TargetBuilder>,
    ) -> Result<()> {
        let (unit, holds) = match (media, capacity) {
            (MediaConfig::Nand(nand), Some(capacity)) => {
                let sector = u64::from(nand.geometry.sector_bytes);
                (u64::from(nand.write_unit()) * sector, capacity.logical_bytes())
            }
            (MediaConfig::Pcm(pcm), _) => (u64::from(pcm.sector_bytes), pcm.bytes),
            _ => return Ok(()),
        };
        // The drive numbers the slots of its buffer with 24 bits.
        let most = holds.min(u64::from(self.media.sector_bytes()) << 24);
        let check = |what: &str, bytes: u64, place: Option<&SourceSpan>| {
            let problem = if bytes < unit {
                format!("{what} of {bytes} bytes, smaller than a write unit of {unit} bytes")
            } else if bytes > most {
                let (bytes, holds) = (bytes_binary(bytes), bytes_binary(holds));
                format!("{what} of {bytes}, on a drive that holds {holds}")
            } else {
                return Ok(());
            };
            Err(place.unwrap_or(&self.section_span).error(ProblemKind::Conflict {
                message: problem,
                help: format!("allowed: {} to {}", bytes_binary(unit), bytes_binary(most)),
            }))
        };
        if self.buffer.0 != BufferKind::None && self.personality.0 == PersonalityKind::Block {
            check("a write buffer", self.buffer.1, self.buffer.2.as_ref())?;
        }
        let layers = [Some(&self.ftl), target.map(TargetBuilder::ftl)];
        for (bytes, place) in layers.into_iter().flatten().filter_map(FtlBuilder::write_buffer) {
            check("a layer's buffer", bytes, Some(place))?;
        }
        Ok(())
    }

    fn read_controller(&mut self, mut s: Section<'_>) -> Result<()> {
        let c = &mut self.controller;
        s.set("fetch_latency", &mut c.fetch_latency, |v| v.duration_in(&STEP_TIME))?;
        s.set("completion_latency", &mut c.completion_latency, |v| v.duration_in(&STEP_TIME))?;
        s.set("dma_bandwidth", &mut c.dma_bytes_per_sec, |v| v.rate_or_none())?;
        s.set("dma_in_bandwidth", &mut c.dma_to_device_bytes_per_sec, |v| v.rate_or_none())?;
        s.set("max_io_queues", &mut c.max_io_queues, |v| v.u16_from(1))?;
        s.set("queue_depth", &mut c.queue_depth, |v| v.u16_from(2))?;
        s.set("doorbell_buffer", &mut c.doorbell_buffer, |v| v.boolean())?;
        s.set("registers", &mut c.registers, read_registers)?;
        s.set("latency_monitor", &mut c.latency_monitor, read_latency_monitor)?;
        s.set("scrub", &mut self.scrub, DriveScrubBuilder::read)?;
        if let Some(value) = s.get("arbitration") {
            c.arbitration = read_arbitration(&value)?;
        }
        s.finish()
    }

    /// Returns the checked drive with its target. `target` is that of the scenario, `index` the
    /// index of the drive.
    pub(crate) fn finish(
        &self,
        index: usize,
        seed: u64,
        target: Option<&TargetBuilder>,
    ) -> Result<DriveSpec> {
        let (personality, kind) = self.personality_and_kind()?;
        let at_personality = self.personality.1.as_ref().unwrap_or(&self.section_span);
        let drive_seed = self.media.seed.unwrap_or_else(|| seed_of(seed, index));
        let media = self.media.finish(kind, drive_seed, &self.section_span)?;
        let sector_bytes = self.media.sector_bytes();
        let mut ftl = self.ftl.config(sector_bytes);
        ftl.hot_stream = self.rules.has_hot_stream();
        ftl.owner_bytes = self.rules.owner_bytes();
        if self.rules.has_names(&media, &ftl) {
            controller::name_sectors(&mut ftl);
        }
        let target_draft = self.target.as_ref().or(target);
        let mut target = target_draft.map_or(HostTarget::None, |t| t.finish(sector_bytes));
        let patrol = target_draft.map_or(Ok(None), |t| t.scrub(sector_bytes))?;
        if let (true, Some(draft)) = (target != HostTarget::None, target_draft) {
            Impossible::check_flash(personality, || target.label())
                .map_err(|why| draft.kind_span_or_section().error(why.into()))?;
        }
        if let (HostTarget::Named(named), Some(place)) =
            (&target, target_draft.and_then(TargetBuilder::name_span))
            && !matches!(&media, MediaConfig::Nand(nand) if nand.data.writes_image())
        {
            return Err(place.error(ProblemKind::forgotten_target(&named.name)));
        }
        let pus = match &media {
            MediaConfig::Nand(nand) => nand.geometry.total_pus(),
            MediaConfig::Pcm(_) | MediaConfig::Null { .. } => 0,
        };
        let io_queues = self.controller.max_io_queues;
        let shards = target_draft.map_or(Ok(None), |t| t.shards(pus, io_queues))?;
        let drive_map = matches!(target, HostTarget::Rrpc(_));
        let asked = self.media.capacity();
        let capacity = match (&media, personality, target.ftl_mut()) {
            (MediaConfig::Nand(nand), PersonalityKind::Block, _) => {
                let place =
                    |key: &str| self.ftl.span(key).or_else(|| self.media.span(key)).cloned();
                let (place, whole) = (&place, &self.section_span);
                let sizing = Sizing {
                    nand,
                    shards: None,
                    has_device_l2p: false,
                    in_drive: true,
                    span_of: place,
                    section_span: whole,
                };
                Some(sizing.finish(&mut ftl, asked)?)
            }
            (MediaConfig::Nand(nand), _, Some(config)) => {
                let place = |key: &str| {
                    let of_target = target_draft.and_then(|t| t.span(key));
                    of_target.or_else(|| self.media.span(key)).cloned()
                };
                let (place, whole) = (&place, &self.section_span);
                let sizing = Sizing {
                    nand,
                    shards,
                    has_device_l2p: drive_map,
                    in_drive: false,
                    span_of: place,
                    section_span: whole,
                };
                Some(sizing.finish(config, asked)?)
            }
            (MediaConfig::Nand(_), ..) => {
                if let Some((_, place)) = asked {
                    return Err(place.error(ProblemKind::Conflict {
                        message:
                            "without a translation layer, the capacity of NAND follows from its \
                                  geometry"
                                .into(),
                        help: "set geometry.chunks instead, or a [target]".into(),
                    }));
                }
                None
            }
            _ => None,
        };
        self.check_buffers(&media, capacity.as_ref(), target_draft)?;
        if let Some(draft) = target_draft {
            draft.finish_rules(&mut target, &media, capacity.as_ref())?;
        }
        let write_buffer = match self.buffer {
            (BufferKind::None, _, _) => WriteBuffer::None,
            (BufferKind::Volatile, bytes, _) => WriteBuffer::Volatile { bytes },
            (BufferKind::PowerLossProtected, bytes, _) => WriteBuffer::PowerLossProtected { bytes },
        };
        if write_buffer != WriteBuffer::None
            && self.buffer.2.is_some()
            && personality != PersonalityKind::Block
        {
            let place = self.buffer.2.as_ref().unwrap_or(at_personality);
            return Err(place.error(ProblemKind::Conflict {
                message: "only the block personality has a write buffer".into(),
                help: "set personality = \"block\", or remove `write_buffer`".into(),
            }));
        }
        let name = match &self.name {
            Some((name, _)) => name.clone(),
            None => format!("drive{index}"),
        };
        let open_channel = self.interface.open_channel(personality, &media, &self.section_span)?;
        if let (HostTarget::Rrpc(_), Some(draft), false) =
            (&target, target_draft, open_channel.device_l2p)
        {
            return Err(draft.kind_span_or_section().error(Impossible::NoDeviceMap.into()));
        }
        let manages =
            matches!(media, MediaConfig::Nand(_)) && personality == PersonalityKind::Block;
        let patrol_of = |p: &DriveScrubBuilder| p.config(manages, sector_bytes);
        if media.data().flushes_to_host() {
            self.interface.check_host_flush(&self.section_span)?;
        }
        let controller = ControllerConfig {
            namespaces: self.namespaces(manages, capacity.as_ref())?,
            cmb: self.interface.cmb(&self.section_span)?,
            scrub: self.scrub.as_ref().map(patrol_of).transpose()?,
            ..self.controller
        };
        let mut config = DriveConfig {
            name,
            personality,
            media,
            controller,
            pu_scheduling: self.pus.policy,
            page_register: self.pus.page_register,
            cache_program: self.pus.cache_program,
            transfers: self.pus.transfers,
            write_buffer: match personality {
                PersonalityKind::Block => write_buffer,
                _ => WriteBuffer::None,
            },
            ftl,
            null: self.null,
            open_channel,
            lba_bytes: self.lba_bytes(kind, personality)?,
            protection: None,
            pmr: self.interface.pmr(),
            rules: None,
        };
        self.interface.protect(&mut config, &self.section_span)?;
        self.ftl.check_atomic(&config, &self.section_span)?;
        config.rules = self.rules.finish(&config, capacity.as_ref(), at_personality)?;
        // The FTLs of several applications have capacities of their own.
        let has_several_apps = |rules: &controller::DriveRulesConfig| rules.app_names().len() > 1;
        let capacity = capacity.filter(|_| !config.rules.as_ref().is_some_and(has_several_apps));
        Ok(DriveSpec {
            kind: DriveKind::Nvme,
            config,
            target,
            shards,
            scrub: patrol,
            preset: self.preset.clone(),
            capacity,
            namespace: None,
            app: None,
            seed_given: self.media.seed.is_some(),
        })
    }

    /// Returns the namespaces of a new drive. `manages` tells whether the drive manages its flash.
    fn namespaces(&self, manages: bool, capacity: Option<&Capacity>) -> Result<NamespaceLayout> {
        let Some((layout, place)) = &self.blocks.namespaces else {
            return Ok(NamespaceLayout::default());
        };
        let conflict = |message: String, help: &str| {
            Err(place.error(ProblemKind::Conflict { message, help: help.into() }))
        };
        if !manages {
            return conflict(
                "only a drive that manages its flash has several namespaces".into(),
                "remove `namespaces`, or set personality = \"block\" over NAND",
            );
        }
        let has_rest = layout.sizes().any(|size| size.is_none());
        let bytes = layout.sizes().flatten().fold(u64::from(has_rest), u64::saturating_add);
        match capacity.map(Capacity::logical_bytes) {
            Some(has) if bytes > has => conflict(
                format!(
                    "namespaces of {} or more, on a drive that holds {}",
                    bytes_binary(bytes),
                    bytes_binary(has)
                ),
                "make them smaller, or give the drive more capacity",
            ),
            _ => Ok(*layout),
        }
    }

    /// Returns the size of a logical block that is smaller than a sector of the media.
    fn lba_bytes(&self, kind: MediaKind, personality: PersonalityKind) -> Result<Option<u32>> {
        let Some((lba_bytes, place)) = &self.blocks.bytes else { return Ok(None) };
        let (lba_bytes, sector) = (*lba_bytes, self.media.sector_bytes());
        let conflict = |message: String, help: String| {
            Err(place.error(ProblemKind::Conflict { message, help }))
        };
        if lba_bytes > sector {
            return conflict(
                format!(
                    "a logical block of {lba_bytes} bytes is larger than a sector of the drive, which \
                     has {sector}"
                ),
                format!("set lba_bytes to a power of two from {LBA_BYTES_MIN} to {sector}"),
            );
        }
        match (kind, personality) {
            _ if lba_bytes == sector => Ok(None),
            (_, PersonalityKind::OpenChannel) => conflict(
                format!(
                    "the host of an open-channel drive addresses physical sectors of {sector} bytes, \
                     and only a drive with its own FTL has smaller blocks"
                ),
                "set personality = \"block\", or remove `lba_bytes`".into(),
            ),
            (MediaKind::Pcm, _) => conflict(
                format!("phase-change memory is written in place in sectors of {sector} bytes"),
                format!("set geometry.sector_bytes = {lba_bytes} instead of `lba_bytes`"),
            ),
            _ => Ok(Some(lba_bytes)),
        }
    }

    /// Returns the personality and the kind of medium. The medium follows from the personality
    /// unless it is given.
    fn personality_and_kind(&self) -> Result<(PersonalityKind, MediaKind)> {
        let personality = self.personality.0;
        let natural = match personality {
            PersonalityKind::Null => MediaKind::Null,
            PersonalityKind::Block | PersonalityKind::OpenChannel => MediaKind::Nand,
        };
        let kind = self.media.kind.unwrap_or(natural);
        let conflict = |message: &str, help: &str| {
            let place = self.personality.1.as_ref().or_else(|| self.media.span("media"));
            Err(place
                .unwrap_or(&self.section_span)
                .error(ProblemKind::Conflict { message: message.into(), help: help.into() }))
        };
        match (personality, kind) {
            (PersonalityKind::Null, MediaKind::Nand | MediaKind::Pcm) => conflict(
                "the null personality has no media",
                "set media = \"null\", or personality = \"block\"",
            ),
            (PersonalityKind::Block | PersonalityKind::OpenChannel, MediaKind::Null) => conflict(
                "null media keeps nothing, so only the null personality can stand before it",
                "set personality = \"null\", or media = \"nand\"",
            ),
            (PersonalityKind::OpenChannel, MediaKind::Pcm) => conflict(
                "phase-change memory is written in place and has no chunks to expose",
                "set personality = \"block\"",
            ),
            _ => Ok((personality, kind)),
        }
    }
}

fn read_priority(suspend: Option<SuspendConfig>) -> PuScheduling {
    PuScheduling::ReadPriority { suspend }
}

fn read_arbitration(value: &Value<'_>) -> Result<ArbitrationConfig> {
    let (round_robin, weighted) = (
        ArbitrationConfig::RoundRobin { burst: 8 },
        ArbitrationConfig::Weighted { burst: 8, high: 8, medium: 4, low: 1 },
    );
    let kinds = [Keyword("round-robin", round_robin), Keyword("weighted", weighted)];
    if value.string().is_ok() {
        return value.choice(&kinds);
    }
    let mut s = value.section().map_err(|_| {
        value.wrong_type("\"round-robin\", \"weighted\", or a table with `kind` and its numbers")
    })?;
    let mut arbitration = round_robin;
    s.set("kind", &mut arbitration, |v| v.choice(&kinds))?;
    let one_or_more = |v: &Value<'_>| v.u16_from(1);
    match &mut arbitration {
        ArbitrationConfig::RoundRobin { burst } => {
            s.set("burst", burst, one_or_more)?;
        }
        ArbitrationConfig::Weighted { burst, high, medium, low } => {
            s.set("burst", burst, one_or_more)?;
            s.set("high", high, one_or_more)?;
            s.set("medium", medium, one_or_more)?;
            s.set("low", low, one_or_more)?;
        }
    }
    s.finish()?;
    Ok(arbitration)
}

/// Parses a text as a TOML table.
pub(crate) fn parse_toml(source: &SourceText) -> Result<toml::Spanned<DeTable<'_>>> {
    DeTable::parse(&source.text).map_err(|e| {
        let span = e.span().unwrap_or(0..0);
        let mut message = e.message().to_owned();
        if source.path.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("toml")) {
            message +=
                "; a scenario is a .toml file, and job files of fio go beside one to `sluice sim`";
        }
        ScenarioError::new(source, span, ProblemKind::Syntax { message })
    })
}
