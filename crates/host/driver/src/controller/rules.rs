//! Tables of the rules of a drive, which a host of the whole drive reads and changes
//! (`docs/format/rule-program.md`).

use mem::PAGE_BYTES;
use nvme::{AdminCommand, RuleTableAction, RuleTableEntry};

use super::ControllerHandle;
use crate::DriverError;

/// Entries of a command: those of a page.
const ENTRIES: usize = PAGE_BYTES / RuleTableEntry::BYTES;

impl ControllerHandle {
    /// Changes entries of a table of the drive's rules, in order. `table` is its number in the program.
    ///
    /// # Errors
    /// [`DriverError::Command`] with the status of the first entry that the table does not take, such as
    /// [`Status::RULE_TABLE_FULL`](nvme::Status::RULE_TABLE_FULL). Those before it are stored.
    pub fn edit_rule_table(
        &mut self,
        table: u8,
        action: RuleTableAction,
        entries: &[RuleTableEntry],
        progress: &mut dyn FnMut(),
    ) -> Result<(), DriverError> {
        for entries in entries.chunks(ENTRIES) {
            let mut page = [0; PAGE_BYTES];
            for (bytes, entry) in page.chunks_mut(RuleTableEntry::BYTES).zip(entries) {
                bytes.copy_from_slice(&entry.to_bytes());
            }
            let entries = entries.len() as u32;
            let command = AdminCommand::RuleTableEdit { table, action, entries };
            self.admin.run_with_data(command, &page, progress)?;
        }
        Ok(())
    }

    /// Returns the values of `count` consecutive keys of a table of the drive's rules, from `first` on: the
    /// elements of an array, the values of a map (0 of an absent key), or 1 for each key that a set has.
    ///
    /// # Errors
    /// [`DriverError::Command`] with [`Status::RULE_INDEX`](nvme::Status::RULE_INDEX) past the end of an
    /// array, or another status.
    pub fn rule_table_values(
        &mut self,
        table: u8,
        first: u64,
        count: u32,
        progress: &mut dyn FnMut(),
    ) -> Result<Vec<u64>, DriverError> {
        let mut values = Vec::new();
        let mut page = [0; PAGE_BYTES];
        while values.len() < count as usize {
            let done = values.len();
            let entries = (count as usize - done).min(PAGE_BYTES / 8);
            let first = first.saturating_add(done as u64);
            let command = AdminCommand::RuleTableRead { table, first, entries: entries as u32 };
            let bytes = &mut page[..entries * 8];
            self.admin.read(command, bytes, progress)?;
            let (words, _) = bytes.as_chunks();
            values.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
        }
        Ok(values)
    }
}
