//! The keys of `[drive]` about its interface to hosts beyond plain commands: suspension by hint, the
//! controller memory buffer, the drive's own map.

use clock::Nanos;
use drive::{CmbConfig, OpenChannelConfig, PersonalityKind, SuspendConfig};
use media::{DataStore, MediaConfig};

use super::error::Problem;
use super::ranges::STEP_TIME;
use super::section::{Result, Section, Value};
use super::source::Place;

/// What a suspension costs unless said: none is quoted by the papers, so the middle of what data
/// sheets allow.
const SUSPEND: SuspendConfig = SuspendConfig {
    suspend: Nanos::from_micros(25),
    resume: Nanos::from_micros(25),
    max_per_operation: 8,
};

/// Bytes of a controller memory buffer at most, as drives have it.
const CMB_MOST: u64 = 64 << 30;

/// The keys being read, and where they were.
#[derive(Clone, Debug, Default)]
pub(super) struct InterfaceDraft {
    suspend_hint: (Option<SuspendConfig>, Option<Place>),
    dual_map: (bool, Option<Place>),
    cmb: (u64, Option<Place>),
    cmb_protected: (bool, Option<Place>),
}

impl InterfaceDraft {
    /// Reads the keys that a `[drive]` section has about its interface.
    pub(super) fn read(&mut self, s: &mut Section<'_>) -> Result<()> {
        if let Some(value) = s.get("suspend_hint") {
            self.suspend_hint = (suspension(&value)?, Some(value.place()));
        }
        let place = s.set("dual_map", &mut self.dual_map.0, |v| v.boolean())?;
        self.dual_map.1 = place.or(self.dual_map.1.take());
        let place = s.set("cmb", &mut self.cmb.0, |v| v.size())?;
        self.cmb.1 = place.or(self.cmb.1.take());
        let place = s.set("cmb_protected", &mut self.cmb_protected.0, |v| v.boolean())?;
        self.cmb_protected.1 = place.or(self.cmb_protected.1.take());
        Ok(())
    }

    /// Forgets where keys were: they come from a preset.
    pub(super) fn forget_places(&mut self) {
        (self.suspend_hint.1, self.dual_map.1) = (None, None);
        (self.cmb.1, self.cmb_protected.1) = (None, None);
    }

    /// What the open-channel personality offers. Keys that a preset has for it do nothing in
    /// another; `whole` is where to point when no key of the scenario is to blame.
    pub(super) fn open_channel(
        &self,
        personality: PersonalityKind,
        media: &MediaConfig,
        whole: &Place,
    ) -> Result<OpenChannelConfig> {
        let conflict = |place: &Place, message: &str, help: String| {
            Err(place.error(Problem::Conflict { message: message.into(), help }))
        };
        if personality != PersonalityKind::OpenChannel {
            let keys = [("suspend_hint", &self.suspend_hint.1), ("dual_map", &self.dual_map.1)];
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
        if let (true, MediaConfig::Nand(nand)) = (self.dual_map.0, media) {
            let place = self.dual_map.1.as_ref().unwrap_or(whole);
            if nand.data == DataStore::None {
                return conflict(
                    place,
                    "a medium that keeps nothing has nothing to map",
                    "set data = \"memory\" or \"file\", or remove `dual_map`".into(),
                );
            }
            if (nand.geometry.oob_bytes as usize) < ftl::Oob::BYTES {
                return conflict(
                    place,
                    "the drive reads logical addresses from out-of-band bytes",
                    "set geometry.oob_bytes to 16 or more, or remove `dual_map`".into(),
                );
            }
        }
        let (suspend_on_hint, dual_map) = (self.suspend_hint.0, self.dual_map.0);
        Ok(OpenChannelConfig { suspend_on_hint, dual_map })
    }

    /// The controller memory buffer, if there is one.
    pub(super) fn cmb(&self, whole: &Place) -> Result<Option<CmbConfig>> {
        let (bytes, protected) = (self.cmb.0, self.cmb_protected.0);
        if bytes == 0 {
            return match &self.cmb_protected.1 {
                Some(place) if protected => Err(place.error(Problem::Conflict {
                    message: "there is no controller memory buffer to protect".into(),
                    help: "set cmb to its size, such as \"64M\", or remove `cmb_protected`".into(),
                })),
                _ => Ok(None),
            };
        }
        if nvme::CmbSize::of(bytes).is_none() || bytes > CMB_MOST {
            return Err(self.cmb.1.as_ref().unwrap_or(whole).error(Problem::Conflict {
                message: format!("no register can tell of a memory buffer of {bytes} bytes"),
                help: "set cmb to a multiple of 4k up to 64G, from 4G on of 64k".into(),
            }));
        }
        Ok(Some(CmbConfig { bytes, protected }))
    }
}

/// Whether programs and erases can be suspended, and what that costs.
pub(super) fn suspension(value: &Value<'_>) -> Result<Option<SuspendConfig>> {
    if let Ok(on) = value.boolean() {
        return Ok(on.then_some(SUSPEND));
    }
    let mut section = value.section().map_err(|_| {
        value
            .wrong("true, false, or { suspend = \"…us\", resume = \"…us\", max_per_operation = n }")
    })?;
    let mut suspend = SUSPEND;
    section.set("suspend", &mut suspend.suspend, |v| v.duration_in(&STEP_TIME))?;
    section.set("resume", &mut suspend.resume, |v| v.duration_in(&STEP_TIME))?;
    section
        .set("max_per_operation", &mut suspend.max_per_operation, |v| v.u32_in(&(0..=65_535)))?;
    section.finish()?;
    Ok(Some(suspend))
}
