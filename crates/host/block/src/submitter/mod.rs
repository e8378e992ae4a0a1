//! The submitter's side of a queue: the requests of one core, from validation to the plug.

pub(crate) mod context;
pub(crate) mod io_hooks;
pub(crate) mod merge;
pub(crate) mod plug;
pub(crate) mod request_table;
