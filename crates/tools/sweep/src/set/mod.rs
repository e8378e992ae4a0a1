//! Settings: keys of a scenario with their values, and the text of a scenario that has them.

pub(crate) mod edit;
pub(crate) mod key_path;
pub(crate) mod setting;
