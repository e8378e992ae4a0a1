//! Commands and completions: the entries of the queues, their typed forms, and the identifiers in their fields.

pub(crate) mod admin_command;
pub(crate) mod cqe;
pub mod feature;
pub(crate) mod io_command;
pub(crate) mod named_command;
pub mod opcode;
pub(crate) mod range;
pub(crate) mod rule_command;
pub(crate) mod rule_table;
pub(crate) mod sqe;
pub(crate) mod status;
