//! `[target]`: the target that manages the flash of an open-channel drive. It is a target over the
//! whole drive, or a named one of its partition table.

use ftl::FtlConfig;
use lnvm::{ScrubConfig, TargetKind};
use media::MediaConfig;
use pblk::TargetRulesConfig;

use super::capacity::Capacity;
use super::error::ProblemKind;
use super::keys::ftl_keys::FtlBuilder;
use super::named_target::NamedTarget;
use super::ranges::AGE;
use super::rule_programs::target_rules::TargetRuleKeys;
use super::section::{Keyword, Result, Section};
use super::source::SourceSpan;

/// Target on the host, which converts block requests to vector commands.
#[derive(Clone, Debug, PartialEq)]
pub enum HostTarget {
    /// No target: the drive manages its flash, or the flash is not managed.
    None,
    /// `pblk`, an FTL on the host ([LightNVM17 §4.2]).
    Pblk(FtlConfig),
    /// `rrpc`, an FTL on the host that uses the device L2P, with the settings of [Thesis15 ch. 6
    /// §4.3].
    Rrpc(FtlConfig),
    /// `pblk` whose requests and victims rules decide about, the software rule engine of [Thesis15
    /// ch. 7].
    Rules(Box<RulesTarget>),
    /// A target of the drive's partition table, which has its kind.
    Named(Box<NamedTarget>),
}

/// A target with rules.
#[derive(Clone, Debug, PartialEq)]
pub struct RulesTarget {
    /// The FTL that executes.
    pub ftl: FtlConfig,
    /// The rules that decide.
    pub rules: TargetRulesConfig,
}

impl HostTarget {
    /// Returns the configuration of its FTL on the host, if it has one.
    pub fn ftl(&self) -> Option<&FtlConfig> {
        match self {
            HostTarget::None | HostTarget::Named(_) => None,
            HostTarget::Pblk(config) | HostTarget::Rrpc(config) => Some(config),
            HostTarget::Rules(target) => Some(&target.ftl),
        }
    }

    /// Mutable access to the configuration of its FTL on the host, if it has one.
    pub(crate) fn ftl_mut(&mut self) -> Option<&mut FtlConfig> {
        match self {
            HostTarget::None | HostTarget::Named(_) => None,
            HostTarget::Pblk(config) | HostTarget::Rrpc(config) => Some(config),
            HostTarget::Rules(target) => Some(&mut target.ftl),
        }
    }

    /// Returns a description for messages.
    pub fn label(&self) -> String {
        match self {
            HostTarget::None => "nobody on the host".into(),
            HostTarget::Pblk(_) => "pblk".into(),
            HostTarget::Rrpc(_) => "rrpc".into(),
            HostTarget::Rules(_) => "rules".into(),
            HostTarget::Named(named) => format!("target {}", named.name),
        }
    }

    /// Returns its name in the drive's partition table, if it is a named target.
    pub fn name(&self) -> Option<&str> {
        match self {
            HostTarget::Named(named) => Some(&named.name),
            HostTarget::None | HostTarget::Pblk(_) | HostTarget::Rrpc(_) | HostTarget::Rules(_) => {
                None
            }
        }
    }
}

/// Maximum number of shards.
const SHARDS_MAX: u32 = pblk::ShardedConfig::SHARDS_MAX;

#[derive(Clone, Copy, Debug, PartialEq)]
enum MediaKind {
    None,
    Pblk,
    Rrpc,
    Rules,
    Kv,
    Ppa,
}

/// Builder of a target.
#[derive(Clone, Debug)]
pub(super) struct TargetBuilder {
    section_span: SourceSpan,
    kind: MediaKind,
    kind_span: Option<SourceSpan>,
    name: Option<(String, SourceSpan)>,
    ftl: FtlBuilder,
    /// FTL settings based on the defaults of `rrpc`.
    rrpc: FtlBuilder,
    scrub: Option<ScrubBuilder>,
    /// The rules of a target of that kind.
    rules: Option<TargetRuleKeys>,
    /// Number of shards and its span.
    shards: Option<(u32, SourceSpan)>,
}

/// Scrub settings and their span.
#[derive(Clone, Debug)]
struct ScrubBuilder {
    bytes_per_sec: u64,
    config: ScrubConfig,
    span: SourceSpan,
}

impl ScrubBuilder {
    fn read(mut section: Section<'_>) -> Result<ScrubBuilder> {
        let mut draft = ScrubBuilder {
            bytes_per_sec: 0,
            config: ScrubConfig::default(),
            span: section.source_span(),
        };
        let rate = section.set("rate", &mut draft.bytes_per_sec, |v| v.rate_or_none())?;
        if rate.is_none() {
            return Err(section.missing("rate", "how much is read, such as \"1MB/s\"; 0 for none"));
        }
        let c = &mut draft.config;
        section.set("min_age", &mut c.cold_after, |v| v.duration_in(&AGE))?;
        section.set("interval", &mut c.repeat_after, |v| v.duration_in(&AGE))?;
        section.finish()?;
        Ok(draft)
    }

    fn config(&self, sector_bytes: u32) -> ScrubConfig {
        let sectors = self.bytes_per_sec.div_ceil(u64::from(sector_bytes.max(1)));
        let sectors_per_sec = u32::try_from(sectors).unwrap_or(u32::MAX);
        ScrubConfig { sectors_per_sec, wear_gap_cycles: None, ..self.config }
    }
}

impl TargetBuilder {
    pub(super) fn read(mut section: Section<'_>) -> Result<TargetBuilder> {
        let mut draft = TargetBuilder {
            section_span: section.source_span(),
            kind: MediaKind::None,
            kind_span: None,
            name: None,
            ftl: FtlBuilder::default(),
            rrpc: FtlBuilder::from_config(pblk::Rrpc::config()),
            scrub: None,
            rules: None,
            shards: None,
        };
        let kinds = [
            Keyword("none", MediaKind::None),
            Keyword("pblk", MediaKind::Pblk),
            Keyword("rrpc", MediaKind::Rrpc),
            Keyword("rules", MediaKind::Rules),
            Keyword("kv", MediaKind::Kv),
            Keyword("ppa", MediaKind::Ppa),
        ];
        if let Some(value) = section.get("name") {
            let name = value.string()?;
            if !lnvm::is_name(name) {
                let allowed =
                    "1 to 32 letters, digits, `-`, `_` and `.`, the first a letter or digit";
                return Err(value.refuse(allowed));
            }
            draft.name = Some((name.to_owned(), value.source_span()));
        }
        match (section.get("kind"), &draft.name) {
            (None, Some(_)) => {}
            (None, None) => {
                let help = "allowed: \"none\", \"pblk\", \"rrpc\", \"rules\"; or give it the `name` of a target \
                            that `sluice target create` has made";
                return Err(section.missing("kind", help));
            }
            (Some(value), name) => {
                let now = if name.is_some() { &kinds[..] } else { &kinds[..4] };
                let word = value.string()?;
                if name.is_none() && kinds[4..].iter().any(|kind| kind.0 == word) {
                    let message = format!("a {word} has no logical blocks: paths and jobs name it");
                    let help = "declare it as [[target]], with a `name` and over it a [[path]]; or give \
                                the `name` of a target that `sluice target create` has made";
                    return Err(value.conflict(message, help));
                }
                draft.kind = value.choice(now)?;
                if let (Some((name, _)), MediaKind::Rules) = (name, draft.kind) {
                    let message = format!(
                        "target {name} is one of several on its drive, and rules are for a whole one"
                    );
                    return Err(value.conflict(message, "remove `name`, or set kind = \"pblk\""));
                }
                draft.kind_span = Some(value.source_span());
            }
        }
        // A target of kind "none" may keep its other keys, so that one line disables it.
        draft.ftl.read(&mut section)?;
        draft.rrpc.read(&mut section)?;
        draft.ftl.read_atomic(&mut section)?;
        match draft.kind {
            MediaKind::Rules => draft.rules = Some(TargetRuleKeys::read(&mut section)?),
            kind => {
                let is_disabled = kind == MediaKind::None && draft.name.is_none();
                TargetRuleKeys::refuse(&mut section, is_disabled)?;
            }
        }
        let is_other = matches!(draft.kind, MediaKind::Rrpc | MediaKind::Kv | MediaKind::Ppa);
        if let (true, Some(place)) = (is_other, draft.ftl.atomic_span(&draft.section_span)) {
            return Err(place.error(ProblemKind::Conflict {
                message: "only the writes of pblk can be atomic".into(),
                help: "set target.kind = \"pblk\", or remove `atomic`".into(),
            }));
        }
        section.set("scrub", &mut draft.scrub, |v| ScrubBuilder::read(v.section()?).map(Some))?;
        if let Some(value) = section.get("shards") {
            let shards = value.u32()?;
            if !(1..=SHARDS_MAX).contains(&shards) {
                return Err(
                    value.refuse(format!("1 to {SHARDS_MAX}, one for each core that writes"))
                );
            }
            draft.shards = Some((shards, value.source_span()));
        }
        section.finish()?;
        Ok(draft)
    }

    /// Returns the configured number of shards, on a drive with `pus` parallel units and
    /// `io_queues` I/O queues.
    ///
    /// # Errors
    /// If there are more shards than either, and for a target without shards.
    pub(super) fn shards(&self, pus: u32, io_queues: u16) -> Result<Option<u32>> {
        let Some((shards, place)) = &self.shards else { return Ok(None) };
        let conflict = |message: String, help: &str| {
            Err(place.error(ProblemKind::Conflict { message, help: help.into() }))
        };
        match (&self.name, self.kind) {
            // Disabled.
            (None, MediaKind::None) => return Ok(None),
            (Some(_), MediaKind::None) if self.kind_span.is_some() => return Ok(None),
            (None, MediaKind::Pblk) => {}
            (Some((name, _)), _) => {
                return conflict(
                    format!(
                        "target {name} is one of several on its drive, and shards are for a whole one"
                    ),
                    "remove `shards`, or `name`",
                );
            }
            (None, MediaKind::Rrpc | MediaKind::Rules | MediaKind::Kv | MediaKind::Ppa) => {
                return conflict(
                    "only pblk can be opened in shards".into(),
                    "remove `shards`, or set target.kind = \"pblk\"",
                );
            }
        }
        if *shards > pus {
            let help = format!("allowed: 1 to {}", pus.min(SHARDS_MAX));
            return conflict(
                format!("{shards} shards, but the drive has {pus} parallel units"),
                &help,
            );
        }
        if *shards > u32::from(io_queues) {
            let help =
                format!("allowed: 1 to {io_queues}, or raise the drive's controller.max_io_queues");
            return conflict(
                format!(
                    "{shards} shards have a queue each, but the drive has {io_queues} I/O queues"
                ),
                &help,
            );
        }
        Ok(Some(*shards))
    }

    /// Returns the target. That with rules has no program yet, which
    /// [`finish_rules`](TargetBuilder::finish_rules) compiles.
    pub(super) fn finish(&self, sector_bytes: u32) -> HostTarget {
        let kind = match (&self.name, self.kind) {
            (_, MediaKind::None) if self.kind_span.is_some() => return HostTarget::None,
            (None, MediaKind::Pblk) => return HostTarget::Pblk(self.ftl.config(sector_bytes)),
            (None, MediaKind::Rrpc) => return HostTarget::Rrpc(self.rrpc.config(sector_bytes)),
            (_, MediaKind::Rules) => {
                let hot_stream = self.rules.as_ref().is_some_and(TargetRuleKeys::has_hot_stream);
                let ftl = FtlConfig { hot_stream, ..self.ftl.config(sector_bytes) };
                let rules = TargetRulesConfig::default();
                return HostTarget::Rules(Box::new(RulesTarget { ftl, rules }));
            }
            (_, MediaKind::None) => None,
            (_, MediaKind::Pblk) => Some(TargetKind::Pblk),
            (_, MediaKind::Rrpc) => Some(TargetKind::Rrpc),
            (_, MediaKind::Kv) => Some(TargetKind::Kv),
            (_, MediaKind::Ppa) => Some(TargetKind::Ppa),
        };
        let Some((name, place)) = &self.name else { return HostTarget::None };
        let places = ["over_provisioning", "active_pus", "separate_gc_stream"]
            .into_iter()
            .filter_map(|key| Some((key, self.ftl.span(key)?.clone())));
        HostTarget::Named(Box::new(NamedTarget {
            name: name.clone(),
            kind,
            pus: None,
            options: self.ftl.options(),
            pblk: self.ftl.config(sector_bytes),
            rrpc: self.rrpc.config(sector_bytes),
            span: place.clone(),
            spans: places.chain(self.kind_span.clone().map(|at| ("kind", at))).collect(),
        }))
    }

    /// Compiles the program of a target with rules on a drive with these media.
    ///
    /// # Errors
    /// If the program is not accepted.
    pub(super) fn finish_rules(
        &self,
        target: &mut HostTarget,
        media: &MediaConfig,
        capacity: Option<&Capacity>,
    ) -> Result<()> {
        match (target, &self.rules) {
            (HostTarget::Rules(target), Some(keys)) => {
                keys.finish(target, media, capacity, self.kind_span_or_section())
            }
            _ => Ok(()),
        }
    }

    /// Returns the span of its name, if it is a target of the partition table.
    pub(super) fn name_span(&self) -> Option<&SourceSpan> {
        self.name.as_ref().map(|(_, place)| place)
    }

    /// Returns its scrub configuration, if configured.
    ///
    /// # Errors
    /// For a target without a scrub.
    pub(super) fn scrub(&self, sector_bytes: u32) -> Result<Option<ScrubConfig>> {
        let Some(patrol) = &self.scrub else { return Ok(None) };
        match self.kind {
            MediaKind::None if self.name.is_none() => Ok(None),
            // The kind of a named target is known when it is opened.
            MediaKind::None | MediaKind::Pblk | MediaKind::Rrpc | MediaKind::Rules => {
                Ok(Some(patrol.config(sector_bytes)))
            }
            MediaKind::Kv | MediaKind::Ppa => Err(patrol.span.error(ProblemKind::Conflict {
                message: "only pblk and rrpc read data that nobody asks for".into(),
                help: "remove `scrub`, or set target.kind = \"pblk\"".into(),
            })),
        }
    }

    /// Returns the keys of its FTL.
    pub(super) fn ftl(&self) -> &FtlBuilder {
        &self.ftl
    }

    pub(super) fn span(&self, key: &str) -> Option<&SourceSpan> {
        if key == "shards" {
            return self.shards.as_ref().map(|(_, place)| place);
        }
        self.ftl.span(key)
    }

    pub(super) fn kind_span_or_section(&self) -> &SourceSpan {
        self.kind_span.as_ref().or(self.name_span()).unwrap_or(&self.section_span)
    }
}
