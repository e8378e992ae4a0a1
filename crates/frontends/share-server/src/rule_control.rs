//! [`RuleControl`]: the rules of a drive or a target, read and replaced on the thread that owns it.

use std::fmt;
use std::sync::Arc;

use controller::{Controller, DriveRuleStats, DriveRulesError, RuleTableEdit, RuleTableInfo};
use event::RealClock;
use nvme::{RuleTableAction, RuleTableEntry};
use rules::{RuleGrant, RuleLimits, TableId};
use serde::{Deserialize, Serialize};
use share_proto::{Code, ProtocolError, ResourceName, ValuePart};

use super::owner_call::{OwnerChannel, OwnerStopped};

/// Values of a table in a message at most.
const VALUES_MAX: u32 = (ValuePart::LEN_MAX / size_of::<u64>()) as u32;

/// Why the rules of a drive or a target are neither read nor replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleControlError {
    /// The drive does not take the program, or has no rules.
    #[error(transparent)]
    Refused(#[from] DriveRulesError),
    /// The target does not take the program.
    #[error("{0}")]
    Target(String),
    /// A target has no parked requests to end.
    #[error("a target parks no request: one that no rule matches has ended at once")]
    NothingParked,
    /// The thread that owns the drive has ended, or does not answer.
    #[error(transparent)]
    Stopped(#[from] OwnerStopped),
}

/// The rules of a drive or a target: what a program may use, and the counters of the program.
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
    /// The tables of the program, in the order of their numbers.
    pub tables: Vec<RuleTableInfo>,
    /// The counters.
    pub stats: DriveRuleStats,
}

impl RuleReport {
    /// Creates the report of rules with these limits, tables and counters.
    pub fn new(
        limits: &RuleLimits,
        tables: Vec<RuleTableInfo>,
        stats: DriveRuleStats,
    ) -> RuleReport {
        let RuleLimits { grant, sector_bytes, lines } = limits;
        RuleReport {
            units: grant.units,
            unit_sectors: grant.unit_sectors,
            sector_bytes: *sector_bytes,
            lines: *lines,
            table_bytes: grant.table_bytes,
            command_ops: grant.command_ops,
            background_ops: grant.background_ops,
            tables,
            stats,
        }
    }

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

/// A table of the rules of a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleTableKey {
    /// By its number in the program.
    Number(u8),
    /// By its name.
    Name(String),
}

impl From<u8> for RuleTableKey {
    fn from(number: u8) -> RuleTableKey {
        RuleTableKey::Number(number)
    }
}

impl From<&str> for RuleTableKey {
    fn from(name: &str) -> RuleTableKey {
        RuleTableKey::Name(name.to_owned())
    }
}

impl RuleTableKey {
    fn find(&self, drive: &Controller) -> Result<TableId, DriveRulesError> {
        match self {
            RuleTableKey::Number(number) => Ok(TableId::new(*number)),
            RuleTableKey::Name(name) => drive.rule_table(name),
        }
    }
}

/// The rules of a drive or a target, for threads other than the one that owns it.
pub trait RuleOwner: Send + Sync {
    /// Returns what programs may use, and the counters.
    ///
    /// # Errors
    /// [`RuleControlError`].
    fn report(&self) -> Result<RuleReport, RuleControlError>;

    /// Installs a program in its encoded form. Returns the number of commands that no rule of it
    /// matches, which stay parked.
    ///
    /// # Errors
    /// [`RuleControlError`]; nothing has changed.
    fn install(&self, program: Vec<u8>) -> Result<u64, RuleControlError>;

    /// Adds a part of a program from a byte on; the first one is at 0.
    ///
    /// # Errors
    /// [`RuleControlError`].
    fn upload(&self, offset: u64, part: Vec<u8>) -> Result<(), RuleControlError>;

    /// Installs the parts that were uploaded, as [`install`](RuleOwner::install) does.
    ///
    /// # Errors
    /// [`RuleControlError`].
    fn install_uploaded(&self) -> Result<u64, RuleControlError>;

    /// Ends the parked commands of an operation, or all of them. Returns their number.
    ///
    /// # Errors
    /// [`RuleControlError`].
    fn reject(&self, op: Option<String>) -> Result<u64, RuleControlError>;

    /// Changes entries of a table, in order and between two inputs.
    ///
    /// # Errors
    /// [`RuleControlError`]; the entries before the one that the table does not take are stored.
    fn edit_table(
        &self,
        table: RuleTableKey,
        edits: Vec<RuleTableEdit>,
    ) -> Result<(), RuleControlError>;

    /// Returns the values of `count` consecutive keys of a table, from `first` on: the elements of an
    /// array, the values of a map (0 of an absent key), or 1 for each key that a set has.
    ///
    /// # Errors
    /// [`RuleControlError`], also for indices past the end of an array.
    fn table_values(
        &self,
        table: RuleTableKey,
        first: u64,
        count: u32,
    ) -> Result<Vec<u64>, RuleControlError>;
}

/// Access to the rules of a drive or a target, for any thread but the one that owns it.
#[derive(Clone)]
pub struct RuleControl(Arc<dyn RuleOwner>);

impl fmt::Debug for RuleControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleControl").finish_non_exhaustive()
    }
}

impl std::ops::Deref for RuleControl {
    type Target = dyn RuleOwner;

    fn deref(&self) -> &(dyn RuleOwner + 'static) {
        &*self.0
    }
}

impl RuleControl {
    /// Creates the access to a drive, whose owner polls it in the time of `clock`.
    pub fn new(owner: OwnerChannel<Controller>, clock: RealClock) -> RuleControl {
        RuleControl(Arc::new(DriveRuleOwner { owner, clock }))
    }

    /// Creates the access to another owner of rules, such as a target.
    pub fn of(owner: impl RuleOwner + 'static) -> RuleControl {
        RuleControl(Arc::new(owner))
    }
}

/// The rules of a drive.
struct DriveRuleOwner {
    owner: OwnerChannel<Controller>,
    clock: RealClock,
}

impl RuleOwner for DriveRuleOwner {
    fn report(&self) -> Result<RuleReport, RuleControlError> {
        let (limits, tables, stats) = self
            .owner
            .call(|drive| (drive.rule_limits(), drive.rule_tables(), drive.stats().rules))?;
        let (limits, stats) = (limits?, stats.ok_or(DriveRulesError::NoRules)?);
        Ok(RuleReport::new(&limits, tables?, stats))
    }

    fn install(&self, program: Vec<u8>) -> Result<u64, RuleControlError> {
        let clock = self.clock;
        Ok(self.owner.call(move |drive| drive.install_rules(clock.now(), &program))??)
    }

    fn upload(&self, offset: u64, part: Vec<u8>) -> Result<(), RuleControlError> {
        Ok(self.owner.call(move |drive| drive.upload_rules(offset, &part))??)
    }

    fn install_uploaded(&self) -> Result<u64, RuleControlError> {
        let clock = self.clock;
        Ok(self.owner.call(move |drive| drive.install_uploaded_rules(clock.now()))??)
    }

    fn reject(&self, op: Option<String>) -> Result<u64, RuleControlError> {
        Ok(self.owner.call(move |drive| drive.reject_rule_misses(op.as_deref()))??)
    }

    fn edit_table(
        &self,
        table: RuleTableKey,
        edits: Vec<RuleTableEdit>,
    ) -> Result<(), RuleControlError> {
        let edit = move |drive: &mut Controller| {
            let table = table.find(drive)?;
            drive.edit_rule_table(table, &edits)
        };
        Ok(self.owner.call(edit)??)
    }

    fn table_values(
        &self,
        table: RuleTableKey,
        first: u64,
        count: u32,
    ) -> Result<Vec<u64>, RuleControlError> {
        let read = move |drive: &mut Controller| {
            let table = table.find(drive)?;
            let keys = (0..u64::from(count)).map(|n| first.saturating_add(n));
            keys.map(|key| drive.rule_table_value(table, key)).collect::<Result<Vec<u64>, _>>()
        };
        Ok(self.owner.call(read)??)
    }
}

/// A drive or a target, and the access to its rules.
#[derive(Clone, Debug)]
pub struct NamedRules {
    /// Name of the drive or target.
    pub name: ResourceName,
    /// Its rules.
    pub control: RuleControl,
}

impl NamedRules {
    /// Returns the error of a message.
    pub(super) fn error(&self, error: RuleControlError) -> ProtocolError {
        let code = match error {
            RuleControlError::Refused(_)
            | RuleControlError::Target(_)
            | RuleControlError::NothingParked => Code::RuleProgram,
            RuleControlError::Stopped(_) => Code::Drive,
        };
        ProtocolError::new(code, format!("{}: {error}", self.name))
    }

    /// Changes a table as a message demands. Returns the number of entries.
    ///
    /// # Errors
    /// [`Code::RuleProgram`] if the table does not take an entry, [`Code::Drive`].
    pub(super) fn edit_table(
        &self,
        table: u8,
        action: RuleTableAction,
        entries: &ValuePart,
    ) -> Result<u64, ProtocolError> {
        let (entries, _) = entries.bytes().as_chunks::<{ RuleTableEntry::BYTES }>();
        let edits: Vec<RuleTableEdit> = entries
            .iter()
            .map(|entry| RuleTableEdit::new(action, RuleTableEntry::from_bytes(*entry)))
            .collect();
        let count = edits.len() as u64;
        let edited = self.control.edit_table(RuleTableKey::Number(table), edits);
        edited.map(|()| count).map_err(|error| self.error(error))
    }

    /// Returns the values of keys of a table, as many as a message has.
    ///
    /// # Errors
    /// As [`edit_table`](NamedRules::edit_table).
    pub(super) fn table_values(
        &self,
        table: u8,
        first: u64,
        count: u32,
    ) -> Result<ValuePart, ProtocolError> {
        let count = count.min(VALUES_MAX);
        let values = self.control.table_values(RuleTableKey::Number(table), first, count);
        let values = values.map_err(|error| self.error(error))?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(ValuePart::of(&bytes, 0))
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
