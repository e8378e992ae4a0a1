//! The health of the flash: refresh of lines, chunks that go offline, static wear leveling.

pub(crate) mod finish_line;
pub(crate) mod refresh;
