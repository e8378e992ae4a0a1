//! Completion strategies for threads that wait for their requests \[HIOPS14\].
//!
//! ```text
//!            ┌ coop: also reap, and issue for others ┐
//! thread ── submit ──▶ staging FIFO ──▶ tags ──▶ device
//!    ▲         └──────────┬── non-blocking: the context that frees a tag, else the queue run
//!    │ wake                                          │
//!    └── post-processing ◀── steering ◀── reaping ◀── interrupt, or a poll thread's timer
//!          lazy: the thread; else the handler, the soft interrupt, the interrupt thread
//! ```
//!
//! This module does not fetch, steer, stage or issue itself. The single-queue block layer
//! ([`QueueModel::SingleQueue`](crate::QueueModel)) does, and every thread and every context has an
//! endpoint of it. A [`Strategy`] decides which context does which part of the work.
//!
//! Concurrency: a [`Waiter`] belongs to its thread. Contexts are threads that [`Blocking`] starts
//! and stops. Lock order: a waiter slot, then a path of the block layer; no thread holds two slots.

mod blocking;
mod context_host;
mod contexts;
mod hybrid;
mod interrupt_line;
mod member;
mod reaper;
mod shared;
mod stats;
mod strategy;
mod timer;
mod transfer;
mod waiter;
mod waiter_slot;

pub use blocking::{Blocking, BlockingConfig, BlockingError, OpenedSet};
pub use context_host::{ContextHost, ContextInterval, ContextWork, RunningContext};
pub use contexts::Placement;
pub use hybrid::{ControllerLoad, HybridConfig, HybridStats, Mode};
pub use interrupt_line::{InterruptLine, InterruptSource};
pub use member::StripeMember;
pub use stats::{CompletionStats, ContextKind, ContextStats, WaiterStats, WaiterTotals};
pub use strategy::{Interrupt, Issue, Notify, Strategy, StrategyError};
pub use transfer::Transfer;
pub use waiter::{BlockingQueue, WaitError, Waiter};
