//! Entries of tables of the rules of a drive, as a host reads and changes them
//! (`docs/format/rule-program.md`).

use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::opcode::admin;
use crate::wire::wire;
use crate::{AdminCommand, Sqe, Status};

/// Entries of a Rule Table Edit or a Rule Table Read at most.
pub const RULE_TABLE_ENTRIES_MAX: u32 = 1 << 16;

/// The change that a Rule Table Edit makes with each of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RuleTableAction {
    /// Stores the value in an array, or as that of a key of a map.
    Set = 0,
    /// Adds the key to a set.
    Add = 1,
    /// Removes the key from a set or a map.
    Remove = 2,
}

impl RuleTableAction {
    /// Returns the action with a code.
    pub fn from_code(code: u32) -> Option<RuleTableAction> {
        match code {
            0 => Some(RuleTableAction::Set),
            1 => Some(RuleTableAction::Add),
            2 => Some(RuleTableAction::Remove),
            _ => None,
        }
    }
}

/// An entry of a table.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct RuleTableEntry {
    /// The key, or the index (bytes 7:0).
    pub key: U64,
    /// The value; zero for keys that are added or removed (bytes 15:8).
    pub value: U64,
}

wire!(RuleTableEntry, 16);

/// Parses a Rule Table Edit or a Rule Table Read.
///
/// # Errors
/// [`Status::INVALID_FIELD`] for an unknown action, reserved bits, and too many entries.
pub(super) fn parse(sqe: &Sqe) -> Result<AdminCommand, Status> {
    let (count, word) = (sqe.cdw10.get(), sqe.cdw11.get());
    if count >= RULE_TABLE_ENTRIES_MAX {
        return Err(Status::INVALID_FIELD);
    }
    let (table, entries) = (word as u8, count + 1);
    if sqe.opcode == admin::RULE_TABLE_READ {
        let first = u64::from(sqe.cdw12.get()) | u64::from(sqe.cdw13.get()) << 32;
        return match word >> 8 {
            0 => Ok(AdminCommand::RuleTableRead { table, first, entries }),
            _ => Err(Status::INVALID_FIELD),
        };
    }
    let action = RuleTableAction::from_code(word >> 8).ok_or(Status::INVALID_FIELD)?;
    Ok(AdminCommand::RuleTableEdit { table, action, entries })
}
