//! [`Raw`]: straight to a driver's queue pair.

/// The raw path.
#[derive(Debug)]
pub struct Raw;
