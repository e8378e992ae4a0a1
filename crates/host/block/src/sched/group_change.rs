//! [`GroupChange`]: a new weight or rate of a group, while its requests wait and are executed.

use super::error::SchedError;
use crate::Group;

/// A change of a group's weight, or of one of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupChange {
    /// The weight, in `1..=1000`, for a scheduler that shares the device among groups.
    Weight(u16),
    /// The rate of a limit that the group has. Its burst changes in proportion.
    Rate {
        /// The limit.
        of: LimitKind,
        /// Tokens per second.
        per_sec: u64,
    },
}

/// A limit of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// Operations that read, per second.
    ReadOperations,
    /// Bytes read per second.
    ReadBytes,
    /// Operations that write, per second.
    WriteOperations,
    /// Bytes written per second.
    WriteBytes,
}

impl LimitKind {
    /// Returns the name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            LimitKind::ReadOperations => "read operations",
            LimitKind::ReadBytes => "read bytes",
            LimitKind::WriteOperations => "write operations",
            LimitKind::WriteBytes => "write bytes",
        }
    }
}

impl GroupChange {
    /// Returns the error of a scheduler that has nothing to change.
    pub fn unsupported(self, group: Group) -> SchedError {
        match self {
            GroupChange::Weight(_) => SchedError::NoWeights,
            GroupChange::Rate { of, .. } => SchedError::NoLimit { group: group.0, what: of.name() },
        }
    }
}
