//! [`NamedTarget`]: what a scenario says of a target that is in the partition table of its drive (LightNVM
//! paper section 4.1).
//!
//! The table says what the target is, and how it lays its data out; that cannot change. A scenario
//! may say it as well, and is refused where the two differ. It may choose what can change from one
//! opening to the next: the victim policy and the like.

use ftl::FtlConfig;
use lightnvm::subsystem::{Target as Entry, TargetKind, TargetOptions};

use super::error::{ProblemKind, ScenarioError};
use super::source::SourceSpan;

/// A target by its name, and what the scenario says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTarget {
    /// Its name.
    pub name: String,
    /// What it is, if the scenario says so.
    pub kind: Option<TargetKind>,
    /// How it lays its data out, where the scenario says so.
    pub options: TargetOptions,
    /// The translation layer that the scenario chooses for a `pblk`, and for an `rrpc`.
    pub(super) pblk: FtlConfig,
    pub(super) rrpc: FtlConfig,
    pub(super) span: SourceSpan,
    /// Where those of its keys are that the table has a say in.
    pub(super) spans: Vec<(&'static str, SourceSpan)>,
}

impl NamedTarget {
    /// The translation layer of the entry of this name on drive `drive`: what the table says, and the
    /// scenario's choices beside it.
    ///
    /// # Errors
    /// [`ProblemKind::Conflict`] at the key that says something else than the table.
    pub fn ftl_config(&self, drive: &str, entry: &Entry) -> Result<FtlConfig, ScenarioError> {
        self.check_kind(drive, entry)?;
        let chosen = if entry.spec.kind == TargetKind::Rrpc { self.rrpc } else { self.pblk };
        let usual = match entry.spec.kind {
            TargetKind::Rrpc => lightnvm::Rrpc::config(),
            _ => FtlConfig::default(),
        };
        // All of its parallel units are not all of the drive's.
        let pus = u32::try_from(entry.spec.pus.len()).unwrap_or(u32::MAX);
        let wide = |active: u32| if active == 0 { pus } else { active };
        let options = &entry.spec.options;
        let over_provisioning = options.over_provisioning.unwrap_or(usual.over_provisioning);
        let active_pus = wide(options.active_pus.unwrap_or(usual.active_pus));
        let hot_cold = options.hot_cold.unwrap_or(usual.hot_cold);
        let asked = &self.options;
        if let Some(op) = asked.over_provisioning.filter(|op| *op != over_provisioning) {
            return Err(self.conflict("over_provisioning", drive, op, over_provisioning));
        }
        if let Some(active) = asked.active_pus.filter(|n| wide(*n) != active_pus) {
            return Err(self.conflict("active_pus", drive, active, active_pus));
        }
        if let Some(yes) = asked.hot_cold.filter(|yes| *yes != hot_cold) {
            return Err(self.conflict("separate_gc_stream", drive, yes, hot_cold));
        }
        // So that nobody takes the journal of another target for this one's.
        let uid = entry.uid.0;
        let name = [uid, uid >> 32, uid >> 64, uid >> 96].iter().fold(0, |a, b| a ^ *b as u32);
        Ok(FtlConfig {
            over_provisioning,
            active_pus,
            hot_cold,
            instance_id: name | 1 << 31,
            ..chosen
        })
    }

    /// Whether the entry of this name on drive `drive` is what the scenario says that it is.
    ///
    /// # Errors
    /// [`ProblemKind::Conflict`] at the key.
    pub fn check_kind(&self, drive: &str, entry: &Entry) -> Result<(), ScenarioError> {
        match self.kind.filter(|kind| *kind != entry.spec.kind) {
            Some(kind) => Err(self.conflict("kind", drive, kind, entry.spec.kind)),
            None => Ok(()),
        }
    }

    fn conflict(
        &self,
        key: &'static str,
        drive: &str,
        here: impl std::fmt::Display,
        there: impl std::fmt::Display,
    ) -> ScenarioError {
        let place = self.spans.iter().find(|(k, _)| *k == key).map_or(&self.span, |(_, at)| at);
        let name = &self.name;
        place.error(ProblemKind::Conflict {
            message: format!(
                "the scenario says {key} = {here} of target {name}, and the partition table of drive \
                 {drive} says {there}"
            ),
            help: format!("remove `{key}`, or make another target: it decides where data is"),
        })
    }
}
