//! The table of system calls of x86-64 Linux: for each call, whether a process may make it while
//! writes that it believes to be done are still pending.
//!
//! [`SystemCall::effect`] gives one of four answers. A pure call changes nothing that another
//! process, a person or a file can show. A call on the volume is ordered by the service of the
//! volume. Output leaves both, and waits. Calls that the table does not know wait as well.
//!
//! Most answers depend on the object of the call: a `write` to a file of the volume is not a
//! `write` to a socket. The caller finds out what the object is, and passes it as an [`Object`].
//!
//! [`SystemCall::stops_paper_rule`] is the rule of [Spec14 §3]: every call with a side effect
//! stops a speculation, also on the volume.
//!
//! A filter of system calls ([`SystemCall::stop`]) sees numbers and arguments, and no objects: it
//! stops every call that waits on some object outside of the volume.
//!
//! The crate has no dependencies and allocates nothing, so that code in a signal handler can use it.

#![forbid(unsafe_code)]

mod object;
mod rows;
mod rule;
mod stop;

pub use object::Object;
pub use rows::{CALLS_MAX, calls, find};
pub use rule::{CallTransfer, Effect, Operands, Rule, SystemCall};
pub use stop::StopCondition;
