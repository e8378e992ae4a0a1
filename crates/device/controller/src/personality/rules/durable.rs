//! [`DurableTables`]: the durable tables of rules in the journal of the FTL, as the state that the FTL
//! keeps for its owner ([`ftl::OwnerChange`]).
//!
//! The state is the identity of an installation, and the image of the durable tables of its program. The
//! changes of an input are one record; those of an input that fetches sectors are a record per part
//! between two fetches, because other inputs see them there. An installation is one record, too: its
//! identity, and zeros.
//!
//! The identity is the hash of the program, and a number that non-volatile memory of the controller
//! counts: each installation has another one, and each start of the drive that discards tables. So tables
//! that the drive has discarded are never found again, whichever record becomes durable.
//!
//! Invariant: a record has the bytes that the tables have when it is made, and no input runs between its
//! changes and the record. So after a power cut the tables are as they were after one of the inputs.

use ftl::{Ftl, OwnerChange};
use rules::{RuleEngine, TableChange};

use super::{DriveRules, named};
use crate::DriveError;
use crate::controller::{Controller, Personality};
use crate::persistence::nonvolatile::{NonVolatile, SettingsSection};

/// Bytes of the hash of a program (FNV-1a of 128 bits).
const HASH_BYTES: usize = 16;

/// Bytes of the identity of an installation: the hash of its program, and its number.
pub(super) const IDENTITY_BYTES: u32 = 24;

/// Changes of durable tables that are not in the journal, and the identity of the installation.
#[derive(Debug)]
pub(super) struct DurableTables {
    identity: [u8; IDENTITY_BYTES as usize],
    changes: Vec<TableChange>,
    record: OwnerChange,
}

impl DurableTables {
    /// Creates the state of an installation of a program, in its encoded form, without changes.
    pub(super) fn new(program: &[u8], number: u64) -> DurableTables {
        let mut identity = [0; IDENTITY_BYTES as usize];
        identity[..HASH_BYTES].copy_from_slice(&hash_of(program));
        let mut tables =
            DurableTables { identity, changes: Vec::new(), record: OwnerChange::default() };
        tables.set_number(number);
        tables
    }

    fn set_number(&mut self, number: u64) {
        self.identity[HASH_BYTES..].copy_from_slice(&number.to_le_bytes());
    }

    /// Records that a rule or the host has changed an entry.
    pub(super) fn push(&mut self, change: TableChange) {
        self.changes.push(change);
    }

    /// Whether changes are to be recorded.
    #[inline]
    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Records the changes since the last record.
    fn record(&mut self, engine: &RuleEngine, ftl: &mut Ftl) {
        // The bytes of an entry are those of now, whichever change of it comes first.
        self.changes.sort_unstable_by_key(|change| (change.table, change.key));
        self.changes.dedup_by_key(|change| (change.table, change.key));
        for change in self.changes.drain(..) {
            engine.image_of(&change, |offset, bytes| {
                self.record.put(IDENTITY_BYTES + offset as u32, bytes);
            });
        }
        ftl.change_owner_state(&self.record);
        self.record.clear();
    }

    /// Records that the tables are those of the program, and have zeros, or no keys.
    fn record_cleared(&mut self, ftl: &mut Ftl) {
        self.changes.clear();
        if ftl.owner_state().is_empty() {
            return;
        }
        let mut change = OwnerChange::cleared();
        change.put(0, &self.identity);
        ftl.change_owner_state(&change);
    }

    /// Takes the tables of the program from the journal. If it has those of another installation, they are
    /// discarded.
    fn restore(&mut self, engine: &mut RuleEngine, ftl: &mut Ftl, settings: &mut NonVolatile) {
        self.changes.clear();
        self.set_number(installations(settings));
        let own = ftl.owner_state().split_first_chunk();
        let is_restored = match own {
            Some((identity, image)) if *identity == self.identity => engine.load_image(image),
            _ => false,
        };
        if !is_restored {
            engine.clear_durable();
            match next_installation(ftl, settings) {
                Ok(number) => self.set_number(number),
                Err(error) => {
                    tracing::warn!("discarded tables of rules are not recorded: {error}");
                }
            }
            self.record_cleared(ftl);
        }
    }
}

/// Returns the number of the last installation of a drive with durable tables.
fn installations(settings: &NonVolatile) -> u64 {
    let section = settings.section(SettingsSection::RuleInstallations);
    section.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Counts an installation in non-volatile memory, if the drive has memory for durable tables. Returns its
/// number.
///
/// # Errors
/// Those of [`NonVolatile::replace`]; the number is as before.
pub(super) fn next_installation(ftl: &Ftl, settings: &mut NonVolatile) -> Result<u64, DriveError> {
    if ftl.owner_state().is_empty() {
        return Ok(0);
    }
    let number = installations(settings).wrapping_add(1);
    settings.replace(SettingsSection::RuleInstallations, &number.to_le_bytes())?;
    Ok(number)
}

fn hash_of(program: &[u8]) -> [u8; HASH_BYTES] {
    let (basis, prime) = (0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, (1 << 88) + 0x13b);
    let hash = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(prime);
    program.iter().fold(basis, hash).to_le_bytes()
}

impl DriveRules {
    /// Records the changes of durable tables since the last record in the journal.
    pub(crate) fn record_changes(&mut self, ftl: &mut Ftl) {
        if self.durable.has_changes() {
            self.durable.record(&self.engine, ftl);
        }
    }
}

/// Records the changes of durable tables in the journal.
#[cold]
pub(crate) fn record(controller: &mut Controller) {
    let Personality::Block(drive) = &mut controller.personality else { return };
    if let Some(rules) = &mut controller.commands.rules
        && rules.durable.has_changes()
    {
        rules.record_changes(&mut drive.spaces.first);
        drive.kick = true;
    }
}

/// Records that a program was installed, whose tables have zeros, or no keys.
pub(super) fn record_installation(controller: &mut Controller) {
    let Personality::Block(drive) = &mut controller.personality else { return };
    if let Some(rules) = &mut controller.commands.rules {
        rules.durable.record_cleared(&mut drive.spaces.first);
        drive.kick = true;
    }
}

/// Takes the durable tables from the journal of a drive that was powered on.
pub(crate) fn restore(controller: &mut Controller) {
    let Personality::Block(drive) = &mut controller.personality else { return };
    if let Some(rules) = &mut controller.commands.rules {
        let settings = &mut drive.maintenance.settings;
        rules.durable.restore(&mut rules.engine, &mut drive.spaces.first, settings);
    }
    named::restore(controller);
}

/// Sets all tables to zeros, or removes their keys: the data that they are about is no more.
pub(crate) fn clear_tables(controller: &mut Controller) {
    if let Some(rules) = &mut controller.commands.rules {
        rules.engine.clear_volatile();
        rules.engine.clear_durable();
        record_installation(controller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_that_of_the_published_function() {
        // The test vectors of FNV-1a of 128 bits.
        let hash = |text: &str| u128::from_le_bytes(hash_of(text.as_bytes()));
        assert_eq!(hash(""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(hash("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_ne!(hash("ab"), hash("ba"));
    }
}
