//! The keys of an FTL, which `[drive.ftl]` and `[target]` share.

use controller::{DriveConfig, PersonalityKind};
use ftl::{
    FtlConfig, GcReadPriority, LineMetadata, P2lLocation, RateLimiterKind, VictimPolicyKind,
};
use lnvm::TargetOptions;
use media::MediaConfig;

use crate::error::ProblemKind;
use crate::section::{Keyword, Result, Section, Value};
use crate::source::SourceSpan;

/// Builder of an FTL configuration, with the spans of its keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct FtlBuilder {
    config: FtlConfig,
    write_buffer_bytes: Option<u64>,
    checkpoint_bytes: Option<u64>,
    l2p_cache_bytes: Option<u64>,
    spans: Vec<(&'static str, SourceSpan)>,
}

pub(crate) const POLICIES: [Keyword<'static, VictimPolicyKind>; 4] = [
    Keyword("greedy", VictimPolicyKind::Greedy),
    Keyword("cost-benefit", VictimPolicyKind::CostBenefit),
    Keyword("fifo", VictimPolicyKind::Fifo),
    Keyword("cost-wear", VictimPolicyKind::CostWear),
];

const P2L_LOCATIONS: [Keyword<'static, P2lLocation>; 2] =
    [Keyword("memory", P2lLocation::Memory), Keyword("media", P2lLocation::Media)];
const GC_READ_PRIORITIES: [Keyword<'static, GcReadPriority>; 3] = [
    Keyword("off", GcReadPriority::Off),
    Keyword("per-pu", GcReadPriority::PerPu),
    Keyword("global", GcReadPriority::Global),
];

const LIMITERS: [Keyword<'static, RateLimiterKind>; 2] =
    [Keyword("proportional", RateLimiterKind::Proportional), Keyword("pid", RateLimiterKind::PID)];

/// Reads a limiter: its name, or a table with its name and the gains of its controller.
pub(crate) fn read_limiter(value: &Value<'_>) -> Result<RateLimiterKind> {
    if value.string().is_ok() {
        return value.choice(&LIMITERS);
    }
    let mut s = value.section().map_err(|_| {
        value.wrong_type("\"proportional\", \"pid\", or a table with `kind` and its gains")
    })?;
    let mut kind = RateLimiterKind::PID;
    s.set("kind", &mut kind, |v| v.choice(&LIMITERS))?;
    if let RateLimiterKind::Pid { kp, ki, kd } = &mut kind {
        for (key, gain) in [("kp", kp), ("ki", ki), ("kd", kd)] {
            s.set(key, gain, |v| v.number(0.0..=RateLimiterKind::GAIN_MAX))?;
        }
    }
    s.finish()?;
    Ok(kind)
}

/// Reads whether lines have metadata: all, none, or all if it fits.
fn read_line_metadata(value: &Value<'_>) -> Result<LineMetadata> {
    if value.string().is_ok() {
        return value.choice(&[Keyword("auto", LineMetadata::Auto)]);
    }
    match value.boolean() {
        Ok(true) => Ok(LineMetadata::On),
        Ok(false) => Ok(LineMetadata::Off),
        Err(_) => Err(value.wrong_type("true, false or \"auto\"")),
    }
}

impl FtlBuilder {
    /// Returns a builder that starts from this configuration.
    pub(crate) fn from_config(config: FtlConfig) -> FtlBuilder {
        FtlBuilder { config, ..FtlBuilder::default() }
    }

    /// Reads the keys of the section.
    pub(crate) fn read(&mut self, section: &mut Section<'_>) -> Result<()> {
        let c = &mut self.config;
        let places = [
            ("active_pus", section.set("active_pus", &mut c.active_pus, |v| v.u32())?),
            (
                "over_provisioning",
                section.set("over_provisioning", &mut c.over_provisioning, |v| {
                    v.number(0.0..=100.0)
                })?,
            ),
            (
                "victim_policy",
                section.set("victim_policy", &mut c.victim_policy, |v| v.choice(&POLICIES))?,
            ),
            (
                "separate_gc_stream",
                section.set("separate_gc_stream", &mut c.hot_cold, |v| v.boolean())?,
            ),
            (
                "gc_low_watermark",
                section.set("gc_low_watermark", &mut c.gc_low_watermark_lines, |v| v.u32())?,
            ),
            (
                "gc_high_watermark",
                section.set("gc_high_watermark", &mut c.gc_high_watermark_lines, |v| v.u32())?,
            ),
            (
                "gc_queue_depth",
                section.set("gc_queue_depth", &mut c.gc_queue_depth_units, |v| {
                    v.u32_in(&(0..=65_536))
                })?,
            ),
            (
                "checkpoint_interval",
                section.set("checkpoint_interval", &mut self.checkpoint_bytes, |v| {
                    v.size().map(Some)
                })?,
            ),
            (
                "l2p_cache",
                section.set("l2p_cache", &mut self.l2p_cache_bytes, |v| v.size().map(Some))?,
            ),
            (
                "dynamic_wear_leveling",
                section
                    .set("dynamic_wear_leveling", &mut c.dynamic_wear_leveling, |v| v.boolean())?,
            ),
            (
                "line_metadata",
                section.set("line_metadata", &mut c.line_metadata, read_line_metadata)?,
            ),
            ("p2l", section.set("p2l", &mut c.p2l_location, |v| v.choice(&P2L_LOCATIONS))?),
            (
                "static_wear_leveling",
                section.set("static_wear_leveling", &mut c.static_wear_leveling, |v| v.u32())?,
            ),
            ("rate_limiter", section.set("rate_limiter", &mut c.rate_limiter, read_limiter)?),
            (
                "gc_read_priority",
                section.set("gc_read_priority", &mut c.gc_read_priority, |v| {
                    v.choice(&GC_READ_PRIORITIES)
                })?,
            ),
            ("vector_copy", section.set("vector_copy", &mut c.vector_copy, |v| v.boolean())?),
            (
                "write_buffer",
                section
                    .set("write_buffer", &mut self.write_buffer_bytes, |v| v.size().map(Some))?,
            ),
        ];
        self.spans.extend(places.into_iter().filter_map(|(key, place)| Some((key, place?))));
        Ok(())
    }

    /// Reads the keys of a `[drive]` section for its FTL.
    pub(crate) fn read_of_drive(&mut self, drive: &mut Section<'_>) -> Result<()> {
        self.read_atomic(drive)?;
        let Some(value) = drive.get("ftl") else { return Ok(()) };
        let mut section = value.section()?;
        self.read(&mut section)?;
        section.finish()
    }

    /// Reads whether writes are atomic, a key of `[drive]` and of `[target]`.
    pub(crate) fn read_atomic(&mut self, section: &mut Section<'_>) -> Result<()> {
        let place = section.set("atomic", &mut self.config.atomic_writes, |v| v.boolean())?;
        self.spans.extend(place.map(|place| ("atomic", place)));
        Ok(())
    }

    /// Returns the span of `atomic`, if writes are to be atomic: the key's, or `whole`.
    pub(crate) fn atomic_span<'a>(&'a self, whole: &'a SourceSpan) -> Option<&'a SourceSpan> {
        self.config.atomic_writes.then(|| self.span("atomic").unwrap_or(whole))
    }

    /// Refuses atomic writes where no FTL of the drive executes them.
    pub(crate) fn check_atomic(&self, drive: &DriveConfig, whole: &SourceSpan) -> Result<()> {
        let Some(place) = self.atomic_span(whole) else { return Ok(()) };
        let (message, help) = match (&drive.media, drive.personality) {
            (MediaConfig::Nand(_), PersonalityKind::Block) => return Ok(()),
            (_, PersonalityKind::OpenChannel) => (
                "writes of an open-channel drive are units of its flash, which the host manages",
                "set atomic in the `[target]`, or remove `atomic`",
            ),
            (MediaConfig::Pcm(_), PersonalityKind::Block) => (
                "a drive of PCM writes each sector in its place, and has no write unit",
                "remove `atomic`",
            ),
            _ => ("a drive that stores nothing has nothing to keep whole", "remove `atomic`"),
        };
        let problem = ProblemKind::Conflict { message: message.into(), help: help.into() };
        Err(place.error(problem))
    }

    /// Returns the span of a key's last setting, if it was set.
    pub(crate) fn span(&self, key: &str) -> Option<&SourceSpan> {
        self.spans.iter().rev().find(|(k, _)| *k == key).map(|(_, place)| place)
    }

    /// Returns the configured size of the FTL's write buffer in bytes, with its span; 0 stands for
    /// the size that the geometry requires.
    pub(crate) fn write_buffer(&self) -> Option<(u64, &SourceSpan)> {
        Some((self.write_buffer_bytes.filter(|bytes| *bytes > 0)?, self.span("write_buffer")?))
    }

    /// Returns the values of `over_provisioning`, `active_pus` and `hot_cold`, if they were set.
    pub(crate) fn options(&self) -> TargetOptions {
        let c = &self.config;
        TargetOptions {
            over_provisioning: self.span("over_provisioning").map(|_| c.over_provisioning),
            active_pus: self.span("active_pus").map(|_| c.active_pus),
            hot_cold: self.span("separate_gc_stream").map(|_| c.hot_cold),
        }
    }

    /// Clears the spans of keys, which come from a preset.
    pub(crate) fn clear_spans(&mut self) {
        self.spans.clear();
    }

    pub(crate) fn config(&self, sector_bytes: u32) -> FtlConfig {
        let mut config = self.config;
        let sectors = |bytes: u64| {
            u32::try_from(bytes.div_ceil(u64::from(sector_bytes.max(1)))).unwrap_or(u32::MAX)
        };
        if let Some(bytes) = self.write_buffer_bytes {
            config.write_buffer_sectors = sectors(bytes);
        }
        if let Some(bytes) = self.checkpoint_bytes {
            config.checkpoint_sectors = sectors(bytes);
        }
        if let Some(bytes) = self.l2p_cache_bytes {
            // Round down, but not to 0, which stands for the complete map.
            let whole = bytes / u64::from(sector_bytes.max(1));
            let least = u64::from(bytes > 0);
            config.map_cache_sectors = u32::try_from(whole.max(least)).unwrap_or(u32::MAX);
        }
        config
    }
}
