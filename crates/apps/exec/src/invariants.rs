//! [`ServiceViolation`]: an invariant of the file service that does not hold.

use std::fmt;

use collections::BrokenInvariant;
pub(crate) use collections::require_eq;

/// A part of the file service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServicePart {
    /// Processes and their slots.
    Sessions,
    /// Calls that are not answered.
    Calls,
    /// Posted writes without an operation.
    PostedWrites,
    /// Memory files of shared mappings.
    SharedMappings,
    /// Comparisons of shared mappings with the volume.
    MappingSync,
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
            ServicePart::PostedWrites => "posted writes",
            ServicePart::SharedMappings => "shared mappings",
            ServicePart::MappingSync => "mapping sync",
            ServicePart::Locks => "locks",
            ServicePart::Volume => "volume",
        })
    }
}

/// An invariant that does not hold.
pub type ServiceViolation = BrokenInvariant<ServicePart>;
