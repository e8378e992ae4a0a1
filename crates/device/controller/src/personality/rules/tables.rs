//! Tables of the rules of a drive or a target, as an administrator reads and changes them between two
//! inputs.

use nvme::{RuleTableAction, RuleTableEntry};
use rules::{AppId, RuleEngine, RuleTableError, TableChange, TableDeclaration, TableId, TableKind};
use serde::{Deserialize, Serialize};

use super::DriveRules;
use super::config::DriveRulesError;

/// A table of the program of a drive or a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleTableInfo {
    /// Its name.
    pub name: String,
    /// Its kind, as the language has it: `addr`, `u32`, `set<u64>`, `map<u32,u64>` …
    pub kind: String,
    /// Elements, or keys at most.
    pub capacity: u64,
    /// Whether its contents survive a power cut.
    pub durable: bool,
}

/// A change of an entry of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleTableEdit {
    /// Stores an element of an array, or the value of a key of a map.
    Set {
        /// The index or the key.
        key: u64,
        /// The element or the value; its lower bits are stored.
        value: u64,
    },
    /// Adds a key to a set.
    Add {
        /// The key.
        key: u64,
    },
    /// Removes a key from a set or a map. It may be absent.
    Remove {
        /// The key.
        key: u64,
    },
}

impl RuleTableEdit {
    /// Creates the change that an action makes with an entry.
    pub fn new(action: RuleTableAction, entry: RuleTableEntry) -> RuleTableEdit {
        let (key, value) = (entry.key.get(), entry.value.get());
        match action {
            RuleTableAction::Set => RuleTableEdit::Set { key, value },
            RuleTableAction::Add => RuleTableEdit::Add { key },
            RuleTableAction::Remove => RuleTableEdit::Remove { key },
        }
    }
}

impl DriveRules {
    /// Returns the tables of the program, in their order.
    pub(crate) fn tables(&self) -> Vec<RuleTableInfo> {
        RuleTableInfo::of(&self.engine)
    }

    /// Returns the number of a table of the program.
    ///
    /// # Errors
    /// [`DriveRulesError::Table`].
    pub(crate) fn table(&self, name: &str) -> Result<TableId, DriveRulesError> {
        table_named(&self.engine, name)
    }

    /// Returns the element or the value of a key; for a key of a set, 1 if the set has it.
    ///
    /// # Errors
    /// [`DriveRulesError::Table`].
    pub(crate) fn table_value(&self, table: TableId, key: u64) -> Result<u64, DriveRulesError> {
        table_value(&self.engine, table, key)
    }

    /// Changes one entry after the other.
    ///
    /// # Errors
    /// [`DriveRulesError::Table`] with the first entry that the table does not take.
    pub(crate) fn edit_table(
        &mut self,
        table: TableId,
        edits: &[RuleTableEdit],
    ) -> Result<(), DriveRulesError> {
        let durable = &mut self.durable;
        edit_table(&mut self.engine, table, edits, &mut |change| durable.push(change))
    }
}

impl RuleTableInfo {
    /// Returns the tables of the program of an engine, in their order.
    pub fn of(engine: &RuleEngine) -> Vec<RuleTableInfo> {
        let declared = &engine.program().program().tables;
        let table = |table: &TableDeclaration| RuleTableInfo {
            name: table.name.clone(),
            kind: table.kind.to_string(),
            capacity: table.capacity,
            durable: table.is_durable,
        };
        declared.iter().map(table).collect()
    }
}

/// Returns the application and the kind of a table; an application without tables if there is no such
/// table.
fn declared(engine: &RuleEngine, table: TableId) -> (AppId, Option<TableKind>) {
    let declared = engine.program().program().tables.get(table.index());
    declared.map_or((AppId::GLOBAL, None), |declared| (declared.app, Some(declared.kind)))
}

/// Returns the number of a table of the program of an engine.
///
/// # Errors
/// [`DriveRulesError::Table`].
pub fn table_named(engine: &RuleEngine, name: &str) -> Result<TableId, DriveRulesError> {
    let tables = &engine.program().program().tables;
    let found = tables.iter().position(|table| table.name == name);
    let unknown = || DriveRulesError::Table {
        table: name.to_owned(),
        key: 0,
        error: RuleTableError::Unknown,
    };
    found.map(TableId::from_index).ok_or_else(unknown)
}

/// Returns the element or the value of a key; for a key of a set, 1 if the set has it.
///
/// # Errors
/// [`DriveRulesError::Table`].
pub fn table_value(engine: &RuleEngine, table: TableId, key: u64) -> Result<u64, DriveRulesError> {
    let (app, kind) = declared(engine, table);
    let value = match kind {
        Some(TableKind::Set(_)) => engine.contains(app, table, key).map(u64::from),
        _ => engine.load(app, table, key),
    };
    value.map_err(|error| table_error(engine, table, key, error))
}

/// Changes one entry after the other. `record` takes the changes of durable tables.
///
/// # Errors
/// [`DriveRulesError::Table`] with the first entry that the table does not take.
pub fn edit_table(
    engine: &mut RuleEngine,
    table: TableId,
    edits: &[RuleTableEdit],
    record: &mut dyn FnMut(TableChange),
) -> Result<(), DriveRulesError> {
    let (app, kind) = declared(engine, table);
    let (is_set, is_map) = match kind {
        Some(TableKind::Set(_)) => (true, false),
        Some(TableKind::Map { .. }) => (false, true),
        _ => (false, false),
    };
    for edit in edits {
        let other = Err(RuleTableError::OtherKind);
        let (key, change) = match *edit {
            RuleTableEdit::Set { key, .. } if is_set => (key, other),
            RuleTableEdit::Set { key, value } => (key, engine.store(app, table, key, value)),
            RuleTableEdit::Add { key } if is_map => (key, other),
            RuleTableEdit::Add { key } => (key, engine.insert(app, table, key)),
            RuleTableEdit::Remove { key } => (key, engine.remove(app, table, key)),
        };
        let change = change.map_err(|error| table_error(engine, table, key, error))?;
        change.into_iter().for_each(&mut *record);
    }
    Ok(())
}

fn table_error(
    engine: &RuleEngine,
    table: TableId,
    key: u64,
    error: RuleTableError,
) -> DriveRulesError {
    let declared = engine.program().program().tables.get(table.index());
    let name = declared.map_or_else(|| table.to_string(), |declared| declared.name.clone());
    DriveRulesError::Table { table: name, key, error }
}
