//! Tables of the rules of a drive, as their administrator reads and changes them between two inputs.

use rules::{RuleTableError, TableId, TableKind};

use super::config::DriveRulesError;
use super::{APP, DriveRules};
use crate::controller::Controller;

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

/// The tables of a drive's rules by their names in the program.
impl Controller {
    /// Returns the number of a table of the rule program.
    ///
    /// # Errors
    /// [`DriveRulesError::NoRules`], [`DriveRulesError::Table`].
    pub fn rule_table(&self, name: &str) -> Result<TableId, DriveRulesError> {
        let rules = self.commands.rules.as_deref().ok_or(DriveRulesError::NoRules)?;
        let tables = &rules.engine.program().program().tables;
        let found = tables.iter().position(|table| table.name == name);
        found.map(TableId::from_index).ok_or_else(|| DriveRulesError::Table {
            table: name.to_owned(),
            key: 0,
            error: RuleTableError::Unknown,
        })
    }

    /// Returns an element of an array, or the value of a key of a map: 0 if it is absent. For a key of
    /// a set, it is 1 if the set has it.
    ///
    /// # Errors
    /// [`DriveRulesError::NoRules`], [`DriveRulesError::Table`].
    pub fn rule_table_value(&self, table: TableId, key: u64) -> Result<u64, DriveRulesError> {
        let rules = self.commands.rules.as_deref().ok_or(DriveRulesError::NoRules)?;
        let declared = rules.engine.program().program().tables.get(table.index());
        let value = match declared.map(|declared| declared.kind) {
            Some(TableKind::Set(_)) => rules.engine.contains(APP, table, key).map(u64::from),
            _ => rules.engine.load(APP, table, key),
        };
        value.map_err(|error| table_error(rules, table, key, error))
    }

    /// Changes a table of the rule program: one entry after the other, all of them between two inputs.
    /// A power cut and an installation remove what was stored in a volatile table.
    ///
    /// # Errors
    /// [`DriveRulesError::NoRules`]; [`DriveRulesError::Table`] with the first entry that the table does not
    /// take. Those before it are stored.
    pub fn edit_rule_table(
        &mut self,
        table: TableId,
        edits: &[RuleTableEdit],
    ) -> Result<(), DriveRulesError> {
        let rules = self.commands.rules.as_deref_mut().ok_or(DriveRulesError::NoRules)?;
        for edit in edits {
            let (key, change) = match *edit {
                RuleTableEdit::Set { key, value } => {
                    let is_set = rules.engine.program().program().tables.get(table.index());
                    let is_set = is_set.is_some_and(|t| matches!(t.kind, TableKind::Set(_)));
                    match is_set {
                        true => (key, Err(RuleTableError::OtherKind)),
                        false => (key, rules.engine.store(APP, table, key, value)),
                    }
                }
                RuleTableEdit::Add { key } => {
                    let is_map = rules.engine.program().program().tables.get(table.index());
                    let is_map = is_map.is_some_and(|t| matches!(t.kind, TableKind::Map { .. }));
                    match is_map {
                        true => (key, Err(RuleTableError::OtherKind)),
                        false => (key, rules.engine.insert(APP, table, key)),
                    }
                }
                RuleTableEdit::Remove { key } => (key, rules.engine.remove(APP, table, key)),
            };
            match change {
                // The drive does not take programs with durable tables of integers.
                Ok(_) => {}
                Err(error) => return Err(table_error(rules, table, key, error)),
            }
        }
        Ok(())
    }
}

fn table_error(
    rules: &DriveRules,
    table: TableId,
    key: u64,
    error: RuleTableError,
) -> DriveRulesError {
    let declared = rules.engine.program().program().tables.get(table.index());
    let name = declared.map_or_else(|| table.to_string(), |declared| declared.name.clone());
    DriveRulesError::Table { table: name, key, error }
}
