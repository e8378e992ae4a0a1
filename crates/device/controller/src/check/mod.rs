//! [`DriveViolation`]: an invariant of a part of the drive that does not hold. The parts check theirs
//! for [`Controller::check_invariants`](crate::Controller::check_invariants).

#[cfg(test)]
mod tests;

use std::fmt;

/// A part of the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrivePart {
    /// Parallel units, channels and their operations.
    NandArray,
    /// Commands in flight.
    Commands,
    /// Submission and completion queues of the hosts.
    Queues,
    /// The table of namespaces.
    Namespaces,
    /// The parts of applications in the translation layers.
    Spaces,
    /// The translation layer; the violation is that of [`ftl::Ftl::check_invariants`].
    Ftl,
}

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{part:?}: {invariant} is broken for {subject} {index}: expected {expected}, found {found}"
)]
pub struct DriveViolation {
    /// The part whose invariant it is.
    pub part: DrivePart,
    /// The invariant's name.
    pub invariant: &'static str,
    /// The kind of item that it does not hold for.
    pub subject: &'static str,
    /// Index of the item.
    pub index: u32,
    /// The value that the invariant asks for.
    pub expected: String,
    /// The value that is there.
    pub found: String,
}

/// Checks of one item of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriveCheck {
    pub(crate) part: DrivePart,
    pub(crate) subject: &'static str,
    pub(crate) index: u32,
}

impl DriveCheck {
    /// Requires a condition. `expected` and `found` describe the values of a violation.
    pub(crate) fn require(
        self,
        condition: bool,
        invariant: &'static str,
        expected: impl fmt::Display,
        found: impl fmt::Debug,
    ) -> Result<(), DriveViolation> {
        if condition {
            return Ok(());
        }
        let DriveCheck { part, subject, index } = self;
        let (expected, found) = (expected.to_string(), format!("{found:?}"));
        Err(DriveViolation { part, invariant, subject, index, expected, found })
    }

    /// Requires two values to be equal.
    pub(crate) fn equal<T: PartialEq + fmt::Debug>(
        self,
        invariant: &'static str,
        expected: T,
        found: T,
    ) -> Result<(), DriveViolation> {
        let is_equal = expected == found;
        self.require(is_equal, invariant, format_args!("{expected:?}"), found)
    }
}
