//! Calls by path: names, attributes and directories.

pub(crate) mod attributes;
pub(crate) mod dirwalk;
pub(crate) mod listing;
pub(crate) mod path_calls;
pub(crate) mod paths;
pub(crate) mod stat;
