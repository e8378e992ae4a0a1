//! The keys of a flash translation layer, which `[drive.ftl]` and `[target]` share.

use ftl::{FtlConfig, GcYields, LineMetadata, RateLimiterKind, ReverseMapKind, VictimPolicyKind};
use lightnvm::core::TargetOptions;

use super::section::{Result, Section, Value};
use super::source::Place;

/// A translation layer being read, and where its keys were.
#[derive(Clone, Debug, Default)]
pub(super) struct FtlDraft {
    config: FtlConfig,
    buffer_bytes: Option<u64>,
    checkpoint_bytes: Option<u64>,
    map_cache_bytes: Option<u64>,
    places: Vec<(&'static str, Place)>,
}

const POLICIES: [(&str, VictimPolicyKind); 4] = [
    ("greedy", VictimPolicyKind::Greedy),
    ("cost-benefit", VictimPolicyKind::CostBenefit),
    ("fifo", VictimPolicyKind::Fifo),
    ("cost", VictimPolicyKind::Cost),
];

const REVERSE_MAPS: [(&str, ReverseMapKind); 2] =
    [("memory", ReverseMapKind::Memory), ("media", ReverseMapKind::Media)];
const YIELDS: [(&str, GcYields); 3] =
    [("never", GcYields::Never), ("busy-pus", GcYields::BusyPus), ("any-read", GcYields::AnyRead)];

const LIMITERS: [(&str, RateLimiterKind); 2] =
    [("share", RateLimiterKind::Share), ("pid", RateLimiterKind::PID)];

/// A kind by its name, or a table of it with the controller's gains.
fn read_limiter(value: &Value<'_>) -> Result<RateLimiterKind> {
    if value.string().is_ok() {
        return value.choice(&LIMITERS);
    }
    let mut s = value
        .section()
        .map_err(|_| value.wrong("\"share\", \"pid\", or a table with `kind` and its gains"))?;
    let mut kind = RateLimiterKind::PID;
    s.set("kind", &mut kind, |v| v.choice(&LIMITERS))?;
    if let RateLimiterKind::Pid { kp, ki, kd } = &mut kind {
        for (key, gain) in [("kp", kp), ("ki", ki), ("kd", kd)] {
            s.set(key, gain, |v| v.number(0.0..=RateLimiterKind::GAIN_MOST))?;
        }
    }
    s.finish()?;
    Ok(kind)
}

/// Whether lines have metadata: all, none, or all if it fits.
fn read_line_metadata(value: &Value<'_>) -> Result<LineMetadata> {
    if value.string().is_ok() {
        return value.choice(&[("where-it-fits", LineMetadata::WhereItFits)]);
    }
    match value.boolean() {
        Ok(true) => Ok(LineMetadata::On),
        Ok(false) => Ok(LineMetadata::Off),
        Err(_) => Err(value.wrong("true, false or \"where-it-fits\"")),
    }
}

impl FtlDraft {
    /// A draft that begins with these choices.
    pub(super) fn of(config: FtlConfig) -> FtlDraft {
        FtlDraft { config, ..FtlDraft::default() }
    }

    /// Reads the keys that the section has.
    pub(super) fn read(&mut self, section: &mut Section<'_>) -> Result<()> {
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
            ("hot_cold", section.set("hot_cold", &mut c.hot_cold, |v| v.boolean())?),
            ("reserve_lines", section.set("reserve_lines", &mut c.reserve_lines, |v| v.u32())?),
            ("gc_start_lines", section.set("gc_start_lines", &mut c.gc_start_lines, |v| v.u32())?),
            (
                "gc_window_units",
                section
                    .set("gc_window_units", &mut c.gc_window_units, |v| v.u32_in(&(0..=65_536)))?,
            ),
            (
                "checkpoint",
                section.set("checkpoint", &mut self.checkpoint_bytes, |v| v.size().map(Some))?,
            ),
            (
                "map_cache",
                section.set("map_cache", &mut self.map_cache_bytes, |v| v.size().map(Some))?,
            ),
            (
                "wear_levelling",
                section.set("wear_levelling", &mut c.wear_levelling, |v| v.boolean())?,
            ),
            (
                "line_metadata",
                section.set("line_metadata", &mut c.line_metadata, read_line_metadata)?,
            ),
            (
                "reverse_map",
                section.set("reverse_map", &mut c.reverse_map, |v| v.choice(&REVERSE_MAPS))?,
            ),
            ("static_wear", section.set("static_wear", &mut c.static_wear, |v| v.u32())?),
            ("rate_limiter", section.set("rate_limiter", &mut c.rate_limiter, read_limiter)?),
            ("gc_yields", section.set("gc_yields", &mut c.gc_yields, |v| v.choice(&YIELDS))?),
            ("buffer", section.set("buffer", &mut self.buffer_bytes, |v| v.size().map(Some))?),
        ];
        self.places.extend(places.into_iter().filter_map(|(key, place)| Some((key, place?))));
        Ok(())
    }

    /// Where a key was last set, if it was.
    pub(super) fn place(&self, key: &str) -> Option<&Place> {
        self.places.iter().rev().find(|(k, _)| *k == key).map(|(_, place)| place)
    }

    /// Bytes of the layer's write buffer, if they were asked for, and where; 0 is what the geometry needs.
    pub(super) fn buffer(&self) -> Option<(u64, &Place)> {
        Some((self.buffer_bytes.filter(|bytes| *bytes > 0)?, self.place("buffer")?))
    }

    /// The value of `over_provisioning`, `active_pus` and `hot_cold`, where they were set.
    pub(super) fn options(&self) -> TargetOptions {
        let c = &self.config;
        TargetOptions {
            over_provisioning: self.place("over_provisioning").map(|_| c.over_provisioning),
            active_pus: self.place("active_pus").map(|_| c.active_pus),
            hot_cold: self.place("hot_cold").map(|_| c.hot_cold),
        }
    }

    /// Forgets where keys were: they come from a preset.
    pub(super) fn forget_places(&mut self) {
        self.places.clear();
    }

    pub(super) fn config(&self, sector_bytes: u32) -> FtlConfig {
        let mut config = self.config;
        let sectors = |bytes: u64| {
            u32::try_from(bytes.div_ceil(u64::from(sector_bytes.max(1)))).unwrap_or(u32::MAX)
        };
        if let Some(bytes) = self.buffer_bytes {
            config.buffer_sectors = sectors(bytes);
        }
        if let Some(bytes) = self.checkpoint_bytes {
            config.checkpoint_sectors = sectors(bytes);
        }
        if let Some(bytes) = self.map_cache_bytes {
            // No more than that; but not 0, which is all of the map.
            let whole = bytes / u64::from(sector_bytes.max(1));
            let least = u64::from(bytes > 0);
            config.map_cache_sectors = u32::try_from(whole.max(least)).unwrap_or(u32::MAX);
        }
        config
    }
}
