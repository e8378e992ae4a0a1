//! The health of the flash: wear, the scrub of cold chunks, and the report of a drive's health.

pub(crate) mod drive_health;
pub(crate) mod scrub;
pub(crate) mod wear;
