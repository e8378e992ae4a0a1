//! The keys of `[drive]` for its host interface beyond plain commands: suspension by hint, the
//! controller memory buffer, the persistent memory region, the device L2P, protection information,
//! registers, the latency monitor.

use controller::{
    CmbConfig, ControllerConfig, DriveConfig, OpenChannelConfig, PersonalityKind, PmrConfig,
    PmrStore, RegionCosts, RegisterConfig, SuspendConfig,
};
use media::{DataStore, MediaConfig};
use nvme::ProtectionType;
use time::Nanos;

use crate::error::ProblemKind;
use crate::ranges::{MEDIA_TIME, STEP_TIME};
use crate::section::{Keyword, Result, Section, Value};
use crate::source::SourceSpan;

/// Default cost of a suspension. The papers quote none; the values are in the middle of the range
/// in data sheets.
const SUSPEND: SuspendConfig = SuspendConfig {
    suspend: Nanos::from_micros(25),
    resume: Nanos::from_micros(25),
    max_per_operation: 8,
};

/// Maximum size of a controller memory buffer in bytes.
const CMB_BYTES_MAX: u64 = 64 << 30;

/// Builder of the interface settings, with the spans of their keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct InterfaceBuilder {
    suspend_hint: (Option<SuspendConfig>, Option<SourceSpan>),
    device_l2p: (bool, Option<SourceSpan>),
    cmb: (u64, Option<SourceSpan>),
    cmb_persistent: (bool, Option<SourceSpan>),
    protection: (Option<ProtectionType>, Option<SourceSpan>),
    pmr: (Option<PmrConfig>, Option<SourceSpan>),
}

impl InterfaceBuilder {
    /// Reads the interface keys of a `[drive]` section.
    pub(crate) fn read(&mut self, s: &mut Section<'_>) -> Result<()> {
        if let Some(value) = s.get("suspend_hint") {
            self.suspend_hint = (suspension(&value)?, Some(value.source_span()));
        }
        let place = s.set("device_l2p", &mut self.device_l2p.0, |v| v.boolean())?;
        self.device_l2p.1 = place.or(self.device_l2p.1.take());
        let place = s.set("cmb", &mut self.cmb.0, |v| v.size())?;
        self.cmb.1 = place.or(self.cmb.1.take());
        let place = s.set("cmb_persistent", &mut self.cmb_persistent.0, |v| v.boolean())?;
        self.cmb_persistent.1 = place.or(self.cmb_persistent.1.take());
        let kinds = [Keyword("none", None), Keyword("type1", Some(ProtectionType::Type1))];
        let place = s.set("protection", &mut self.protection.0, |v| v.choice(&kinds))?;
        self.protection.1 = place.or(self.protection.1.take());
        if let Some(value) = s.get("pmr") {
            self.pmr = (Some(persistent_region(&value)?), Some(value.source_span()));
        }
        Ok(())
    }

    /// Clears the spans of keys, which come from a preset.
    pub(crate) fn clear_spans(&mut self) {
        (self.suspend_hint.1, self.device_l2p.1) = (None, None);
        (self.cmb.1, self.cmb_persistent.1, self.protection.1) = (None, None, None);
        self.pmr.1 = None;
    }

    /// Returns the settings of the open-channel personality. Other personalities ignore the keys of
    /// a preset for it. Errors point to `whole` if no key of the scenario is the cause.
    pub(crate) fn open_channel(
        &self,
        personality: PersonalityKind,
        media: &MediaConfig,
        whole: &SourceSpan,
    ) -> Result<OpenChannelConfig> {
        let conflict = |place: &SourceSpan, message: &str, help: String| {
            Err(place.error(ProblemKind::Conflict { message: message.into(), help }))
        };
        if personality != PersonalityKind::OpenChannel {
            let keys = [("suspend_hint", &self.suspend_hint.1), ("device_l2p", &self.device_l2p.1)];
            for (key, place) in keys {
                let Some(place) = place else { continue };
                return conflict(
                    place,
                    "only hosts that manage the flash give hints or share a map",
                    format!("set personality = \"open-channel\", or remove `{key}`"),
                );
            }
            return Ok(OpenChannelConfig::default());
        }
        if let (true, MediaConfig::Nand(nand)) = (self.device_l2p.0, media) {
            let place = self.device_l2p.1.as_ref().unwrap_or(whole);
            if nand.data == DataStore::None {
                return conflict(
                    place,
                    "a medium that keeps nothing has nothing to map",
                    "set data = \"memory\" or \"file\", or remove `device_l2p`".into(),
                );
            }
            if (nand.geometry.oob_bytes as usize) < ftl::Oob::BYTES {
                return conflict(
                    place,
                    "the drive reads logical addresses from out-of-band bytes",
                    "set geometry.oob_bytes to 16 or more, or remove `device_l2p`".into(),
                );
            }
        }
        let (suspend_on_hint, dual_map) = (self.suspend_hint.0, self.device_l2p.0);
        Ok(OpenChannelConfig { suspend_on_hint, device_l2p: dual_map })
    }

    /// Sets the protection information of a drive that is complete otherwise.
    pub(crate) fn protect(&self, drive: &mut DriveConfig, whole: &SourceSpan) -> Result<()> {
        let (kind, place) = &self.protection;
        let Some(kind) = *kind else { return Ok(()) };
        let conflict = |message: String, help: String| {
            let place = place.as_ref().unwrap_or(whole);
            Err(place.error(ProblemKind::Conflict { message, help }))
        };
        let remove = "or remove `protection`";
        let nand = match (&drive.media, drive.personality) {
            (MediaConfig::Nand(nand), PersonalityKind::Block) => nand,
            (MediaConfig::Nand(_), _) => {
                return conflict(
                    "the host manages the out-of-band bytes of an open-channel drive, where \
                     protection information would be"
                        .into(),
                    format!("set personality = \"block\", {remove}"),
                );
            }
            _ => {
                return conflict(
                    "only NAND has the out-of-band bytes for protection information".into(),
                    "remove `protection`".into(),
                );
            }
        };
        if nand.data == DataStore::None {
            return conflict(
                "a drive that stores no data has nothing to protect".into(),
                format!("set data = \"memory\" or \"file\", {remove}"),
            );
        }
        let (has, needs) = (nand.geometry.oob_bytes, drive.protected_oob_bytes());
        if has < needs {
            return conflict(
                format!(
                    "a sector has {has} out-of-band bytes, and needs 16 for the FTL and 8 for the \
                     protection information of each logical block"
                ),
                format!("set geometry.oob_bytes to {needs} or more, {remove}"),
            );
        }
        drive.protection = Some(kind);
        Ok(())
    }

    /// Refuses state in files beside an image, which flushes to the host's device do not cover.
    pub(crate) fn check_host_flush(&self, whole: &SourceSpan) -> Result<()> {
        let beside = [("device_l2p", &self.device_l2p), ("cmb_persistent", &self.cmb_persistent)];
        for (key, (is_set, place)) in beside {
            if *is_set {
                return Err(place.as_ref().unwrap_or(whole).error(ProblemKind::Conflict {
                    message: format!("`{key}` is in a file that flush = \"host\" does not cover"),
                    help: format!("set flush = \"process\", or remove `{key}`"),
                }));
            }
        }
        if let Some(PmrConfig { store: PmrStore::Emulated { .. }, .. }) = &self.pmr.0 {
            return Err(self.pmr.1.as_ref().unwrap_or(whole).error(ProblemKind::Conflict {
                message: "`pmr` is in a file that flush = \"host\" does not cover".into(),
                help: "set flush = \"process\", give `pmr` a file with `dax`, or remove `pmr`"
                    .into(),
            }));
        }
        Ok(())
    }

    /// Returns the persistent memory region, if there is one.
    pub(crate) fn pmr(&self) -> Option<PmrConfig> {
        self.pmr.0.clone()
    }

    /// Returns the controller memory buffer, if there is one.
    pub(crate) fn cmb(&self, whole: &SourceSpan) -> Result<Option<CmbConfig>> {
        let (bytes, protected) = (self.cmb.0, self.cmb_persistent.0);
        if bytes == 0 {
            return match &self.cmb_persistent.1 {
                Some(place) if protected => Err(place.error(ProblemKind::Conflict {
                    message: "there is no controller memory buffer to protect".into(),
                    help: "set cmb to its size, such as \"64M\", or remove `cmb_persistent`".into(),
                })),
                _ => Ok(None),
            };
        }
        if nvme::CmbSize::from_size_bytes(bytes).is_none() || bytes > CMB_BYTES_MAX {
            return Err(self.cmb.1.as_ref().unwrap_or(whole).error(ProblemKind::Conflict {
                message: format!("no register can tell of a memory buffer of {bytes} bytes"),
                help: "set cmb to a multiple of 4k up to 64G, from 4G on of 64k".into(),
            }));
        }
        Ok(Some(CmbConfig { bytes, protected }))
    }
}

/// Reads a persistent memory region.
fn persistent_region(value: &Value<'_>) -> Result<PmrConfig> {
    let mut s = value
        .section()
        .map_err(|_| value.wrong_type("{ size = \"64M\", store = \"…ns\", persist = \"…ns\" }"))?;
    let place = s.source_span();
    let conflict = |message: &str, help: &str| {
        Err(place.error(ProblemKind::Conflict { message: message.into(), help: help.into() }))
    };
    let mut size = None;
    if let Some(value) = s.get("size") {
        let bytes = value.size()?;
        if !PmrConfig::is_size(bytes) {
            return Err(value.refuse("a multiple of 4k, from 4k to 64G"));
        }
        size = Some(bytes);
    }
    let mut dax = None;
    s.set("dax", &mut dax, |v| Ok(Some(v.resolve(v.string()?))))?;
    let store = match (size, dax) {
        (Some(bytes), None) => PmrStore::Emulated { bytes },
        (None, Some(path)) => PmrStore::Dax { path },
        (Some(_), Some(_)) => {
            return conflict(
                "a region in a DAX file has the size of the file",
                "remove `size` or `dax`",
            );
        }
        (None, None) => {
            return conflict(
                "a persistent memory region without a size",
                "set size, such as \"64M\", or dax to the path of a file on persistent memory",
            );
        }
    };
    let mut costs = RegionCosts::default();
    s.set("store", &mut costs.store, |v| v.duration_in(&STEP_TIME))?;
    s.set("persist", &mut costs.persist, |v| v.duration_in(&STEP_TIME))?;
    s.finish()?;
    Ok(PmrConfig { store, costs })
}

/// Reads whether programs and erases can be suspended, and the cost of a suspension.
pub(crate) fn suspension(value: &Value<'_>) -> Result<Option<SuspendConfig>> {
    if let Ok(on) = value.boolean() {
        return Ok(on.then_some(SUSPEND));
    }
    let mut section = value.section().map_err(|_| {
        value.wrong_type(
            "true, false, or { suspend = \"…us\", resume = \"…us\", max_per_operation = n }",
        )
    })?;
    let mut suspend = SUSPEND;
    section.set("suspend", &mut suspend.suspend, |v| v.duration_in(&STEP_TIME))?;
    section.set("resume", &mut suspend.resume, |v| v.duration_in(&STEP_TIME))?;
    section
        .set("max_per_operation", &mut suspend.max_per_operation, |v| v.u32_in(&(0..=65_535)))?;
    section.finish()?;
    Ok(Some(suspend))
}

/// The longest time in whole seconds that CAP.TO can represent.
const READY_TIMEOUT_MAX: Nanos = Nanos::from_secs(127);

/// Reads whether hosts initialize the drive by its registers, and how long that takes.
pub(super) fn read_registers(value: &Value<'_>) -> Result<Option<RegisterConfig>> {
    if let Ok(has_registers) = value.boolean() {
        return Ok(has_registers.then(RegisterConfig::default));
    }
    let mut s = value
        .section()
        .map_err(|_| value.wrong_type("true, false, or a table with `ready_time` and `timeout`"))?;
    let mut registers = RegisterConfig::default();
    let timeout = Nanos(1)..=READY_TIMEOUT_MAX;
    s.set("ready_time", &mut registers.ready_time, |v| v.duration_in(&STEP_TIME))?;
    s.set("timeout", &mut registers.timeout, |v| v.duration_in(&timeout))?;
    s.finish()?;
    Ok(Some(registers))
}

/// Reads the thresholds of the latency monitor.
pub(super) fn read_latency_monitor(value: &Value<'_>) -> Result<Option<[Nanos; 4]>> {
    let allowed = "false, or four increasing durations, multiples of 5 ms up to 1280 ms";
    let Some(items) = value.items() else {
        return match value.boolean() {
            Ok(false) => Ok(None),
            _ => Err(value.refuse(allowed)),
        };
    };
    let mut thresholds = [Nanos::ZERO; 4];
    if items.len() != thresholds.len() {
        return Err(value.refuse(allowed));
    }
    for (threshold, item) in thresholds.iter_mut().zip(&items) {
        *threshold = item.duration_in(&MEDIA_TIME)?;
    }
    if !ControllerConfig::is_latency_monitor(&thresholds) {
        return Err(value.refuse(allowed));
    }
    Ok(Some(thresholds))
}
