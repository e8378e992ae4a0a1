//! [`ServiceViolation`]: an invariant of the file service that does not hold.

use std::fmt;

/// A part of the file service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServicePart {
    /// Processes and their slots.
    Sessions,
    /// Calls that are not answered.
    Calls,
    /// Locks of files.
    Locks,
    /// The volume.
    Volume,
}

impl fmt::Display for ServicePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServicePart::Sessions => "sessions",
            ServicePart::Calls => "calls",
            ServicePart::Locks => "locks",
            ServicePart::Volume => "volume",
        })
    }
}

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part}: {invariant} is broken for {subject}: expected {expected}, found {found}")]
pub struct ServiceViolation {
    /// The part whose invariant it is.
    pub part: ServicePart,
    /// The invariant's name.
    pub invariant: &'static str,
    /// The session, call or lock for which it does not hold.
    pub subject: String,
    /// The value that the invariant requires.
    pub expected: String,
    /// The actual value.
    pub found: String,
}

/// Returns a violation unless two values are equal.
pub(crate) fn require_eq<T: PartialEq + fmt::Debug>(
    part: ServicePart,
    invariant: &'static str,
    subject: impl fmt::Display,
    expected: T,
    found: T,
) -> Result<(), ServiceViolation> {
    if expected == found {
        return Ok(());
    }
    let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
    Err(ServiceViolation { part, invariant, subject: subject.to_string(), expected, found })
}
