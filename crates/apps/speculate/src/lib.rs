//! I/O speculation in a program's own code \[Spec14\]: it goes on as if an I/O had succeeded, and waits
//! before others could see what depends on it.
//!
//! - [`SpeculativeHandle`]: writes and flushes return at once, in order. [`SpeculativeHandle::externalize`]
//!   waits for all of them, before output. A [`Ticket`] stands for a buffer that is being written:
//!   the program gives the buffer away, so that none is copied (the cost that \[Spec14 §4.4\] names).
//! - [`ReadGraph`]: lookups as state machines of pure reads, which are issued before their results are
//!   needed: all children that a lookup may need, and those of other lookups.
//!
//! Both work over a [`user_io::Handle`], and with it over each device that a program can open.

#![forbid(unsafe_code)]

mod error;
mod graph;
mod handle;
mod ticket;

pub use error::{FailedOperation, RefusedWrite, SpeculateError};
pub use graph::{GraphLookup, GraphRead, GraphStats, GraphStep, ReadGraph};
pub use handle::{SpeculateStats, SpeculativeHandle};
pub use ticket::Ticket;
