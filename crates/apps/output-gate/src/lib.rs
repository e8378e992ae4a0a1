//! Stops the output of a program and of all its descendants: a filter of system calls
//! (`seccomp(2)`) that the program inherits, and the supervisor's end of it.
//!
//! [`FilterInstaller`] makes a [`Command`](std::process::Command) install the filter before the
//! program is executed. Every call that the [table](syscall_table) does not know as harmless then
//! stops, whether the C library makes it, the program itself, a signal handler or a descendant
//! without the preload library. The supervisor receives it as a [`StoppedCall`] from the
//! [`Listener`], and lets it go, has it fail, or makes it later if it only sends data
//! ([`DataSend`]). Calls whose instruction is the one at [`exec_proto::gate::CALL_END`] pass: the
//! preload library has made the supervisor's check itself.
//!
//! # Guarantees
//!
//! - No call that waits for some object by the table passes the filter, except through the gate.
//! - The calls of 32-bit programs fail, as the table does not describe them.
//! - Without a supervisor, stopped calls fail with `ENOSYS`: the kernel answers them when the last
//!   descriptor of the listener is closed.
//! - The filter cannot be removed. A process with the filter gains no privileges from set-user-ID
//!   programs (`PR_SET_NO_NEW_PRIVS`), which could not have the filter otherwise.
//!
//! # References
//!
//! docs/speculation.md; `seccomp_unotify(2)`.

mod data_send;
mod filter;
mod install;
mod listener;

pub use data_send::{DataSend, copy_descriptor};
pub use filter::{FilterInstruction, filter};
pub use install::FilterInstaller;
pub use listener::{Listener, StoppedCall};
