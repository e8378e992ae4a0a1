//! [`NamedTarget`]: the settings of a scenario for a target in the partition table of its drive
//! ([LightNVM17 §4.1]).
//!
//! The table has the kind and the layout of the target, which cannot change. A scenario that also
//! sets them is refused if it differs. Other settings, such as the victim policy, may change
//! between two openings.

use std::path::Path;

use ftl::FtlConfig;
use lnvm::{
    NewTarget, PuSet, QuotaLimits, Sharing, TargetEntry as Entry, TargetKind, TargetOptions,
};

use super::error::{ProblemKind, ScenarioError};
use super::source::{SourceSpan, SourceText};

/// A target's name, and the scenario's settings for it.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTarget {
    /// Name of the target.
    pub name: String,
    /// Kind of the target, if the scenario sets it.
    pub kind: Option<TargetKind>,
    /// Its parallel units, if the scenario declares the target. It is then created on a drive
    /// whose partition table does not have it.
    pub pus: Option<PuSet>,
    /// Layout options that the scenario sets.
    pub options: TargetOptions,
    /// FTL settings of the scenario for a `pblk` and for an `rrpc`.
    pub(super) pblk: FtlConfig,
    pub(super) rrpc: FtlConfig,
    pub(super) span: SourceSpan,
    /// Spans of the keys that must agree with the table.
    pub(super) spans: Vec<(&'static str, SourceSpan)>,
}

impl NamedTarget {
    /// Removes the location in the text of the scenario, so that targets with equal settings are
    /// equal. Later errors have no location.
    pub fn clear_source(&mut self) {
        self.span = SourceSpan { source: SourceText::new(Path::new(""), ""), span: 0..0 };
        self.spans.clear();
    }

    /// Returns the FTL configuration of this target on drive `drive`: the layout of the table's
    /// `entry`, and the other settings of the scenario.
    ///
    /// # Errors
    /// [`ProblemKind::Conflict`] at the key that differs from the table.
    pub fn ftl_config(&self, drive: &str, entry: &Entry) -> Result<FtlConfig, ScenarioError> {
        self.check_entry(drive, entry)?;
        let chosen = if entry.spec.kind == TargetKind::Rrpc { self.rrpc } else { self.pblk };
        let usual = match entry.spec.kind {
            TargetKind::Rrpc => pblk::Rrpc::config(),
            _ => FtlConfig::default(),
        };
        // All of the target's parallel units may be fewer than those of the drive.
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
        // The id prevents the use of another target's journal.
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

    /// Returns the target to create, if the scenario declares it.
    pub fn declaration(&self) -> Option<NewTarget> {
        Some(NewTarget {
            name: self.name.clone(),
            kind: self.kind?,
            pus: self.pus.clone()?,
            sharing: Sharing::Exclusive,
            options: self.options,
            limits: QuotaLimits::default(),
        })
    }

    /// Checks that `entry` on drive `drive` has the kind and the parallel units that the scenario
    /// sets.
    ///
    /// # Errors
    /// [`ProblemKind::Conflict`] at the key.
    pub fn check_entry(&self, drive: &str, entry: &Entry) -> Result<(), ScenarioError> {
        self.check_kind(drive, entry)?;
        match self.pus.as_ref().filter(|pus| **pus != entry.spec.pus) {
            Some(pus) => Err(self.conflict("pus", drive, pus, &entry.spec.pus)),
            None => Ok(()),
        }
    }

    /// Checks that `entry` on drive `drive` has the kind that the scenario sets.
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
