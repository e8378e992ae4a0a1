//! [`RuleControl`]: the rules of a drive, read and replaced on the thread that owns it.

use controller::{Controller, DriveRuleStats, DriveRulesError};
use event::RealClock;
use rules::RuleGrant;
use serde::{Deserialize, Serialize};
use share_proto::{Code, ProtocolError, ResourceName};

use super::owner_call::{OwnerChannel, OwnerStopped};

/// Why the rules of a drive are neither read nor replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleControlError {
    /// The drive does not take the program, or has no rules.
    #[error(transparent)]
    Refused(#[from] DriveRulesError),
    /// The thread that owns the drive has ended, or does not answer.
    #[error(transparent)]
    Stopped(#[from] OwnerStopped),
}

/// The rules of a drive: what a program may use, and the counters of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleReport {
    /// Parallel units.
    pub units: u32,
    /// Sectors of a parallel unit.
    pub unit_sectors: u64,
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// Lines that can be a victim at most.
    pub lines: u32,
    /// Bytes of all tables of a program at most.
    pub table_bytes: u64,
    /// Operations of a command at most.
    pub command_ops: u64,
    /// Operations of background rules at most.
    pub background_ops: u64,
    /// The counters.
    pub stats: DriveRuleStats,
}

impl RuleReport {
    /// Returns what a program may use.
    pub fn grant(&self) -> RuleGrant {
        RuleGrant {
            units: self.units,
            unit_sectors: self.unit_sectors,
            table_bytes: self.table_bytes,
            command_ops: self.command_ops,
            background_ops: self.background_ops,
            ..RuleGrant::default()
        }
    }
}

/// Access to the rules of a drive, for any thread but the one that owns it.
#[derive(Clone, Debug)]
pub struct RuleControl {
    owner: OwnerChannel<Controller>,
    clock: RealClock,
}

impl RuleControl {
    /// Creates the access to a drive, whose owner polls it in the time of `clock`.
    pub fn new(owner: OwnerChannel<Controller>, clock: RealClock) -> RuleControl {
        RuleControl { owner, clock }
    }

    /// Returns what programs may use, and the counters.
    ///
    /// # Errors
    /// [`RuleControlError`].
    pub fn report(&self) -> Result<RuleReport, RuleControlError> {
        let (limits, stats) =
            self.owner.call(|drive| (drive.rule_limits(), drive.stats().rules))?;
        let (limits, stats) = (limits?, stats.ok_or(DriveRulesError::NoRules)?);
        Ok(RuleReport {
            units: limits.grant.units,
            unit_sectors: limits.grant.unit_sectors,
            sector_bytes: limits.sector_bytes,
            lines: limits.lines,
            table_bytes: limits.grant.table_bytes,
            command_ops: limits.grant.command_ops,
            background_ops: limits.grant.background_ops,
            stats,
        })
    }

    /// Installs a program in its encoded form. Returns the number of commands that no rule of it
    /// matches, which stay parked.
    ///
    /// # Errors
    /// [`RuleControlError`]; nothing has changed.
    pub fn install(&self, program: Vec<u8>) -> Result<u64, RuleControlError> {
        let clock = self.clock;
        Ok(self.owner.call(move |drive| drive.install_rules(clock.now(), &program))??)
    }

    /// Adds a part of a program from a byte on; the first one is at 0.
    ///
    /// # Errors
    /// [`RuleControlError`].
    pub fn upload(&self, offset: u64, part: Vec<u8>) -> Result<(), RuleControlError> {
        Ok(self.owner.call(move |drive| drive.upload_rules(offset, &part))??)
    }

    /// Installs the parts that were uploaded, as [`install`](RuleControl::install) does.
    ///
    /// # Errors
    /// [`RuleControlError`].
    pub fn install_uploaded(&self) -> Result<u64, RuleControlError> {
        let clock = self.clock;
        Ok(self.owner.call(move |drive| drive.install_uploaded_rules(clock.now()))??)
    }

    /// Ends the parked commands of an operation, or all of them. Returns their number.
    ///
    /// # Errors
    /// [`RuleControlError`].
    pub fn reject(&self, op: Option<String>) -> Result<u64, RuleControlError> {
        Ok(self.owner.call(move |drive| drive.reject_rule_misses(op.as_deref()))??)
    }
}

/// A drive, and the access to its rules.
#[derive(Clone, Debug)]
pub struct NamedRules {
    /// Name of the drive.
    pub name: ResourceName,
    /// Its rules.
    pub control: RuleControl,
}

impl NamedRules {
    /// Returns the error of a message.
    pub(super) fn error(&self, error: RuleControlError) -> ProtocolError {
        let code = match error {
            RuleControlError::Refused(_) => Code::RuleProgram,
            RuleControlError::Stopped(_) => Code::Drive,
        };
        ProtocolError::new(code, format!("{}: {error}", self.name))
    }

    /// Returns the report as JSON.
    ///
    /// # Errors
    /// [`Code::RuleProgram`] of a drive without rules, [`Code::Drive`].
    pub(super) fn report_text(&self) -> Result<Vec<u8>, ProtocolError> {
        let report = self.control.report().map_err(|error| self.error(error))?;
        // Numbers and names only: this does not fail.
        Ok(serde_json::to_vec(&report).unwrap_or_default())
    }
}
