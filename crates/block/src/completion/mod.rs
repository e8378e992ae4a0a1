//! Completion strategies for threads that wait for their requests (HIOPS).
//!
//! ```text
//!            ┌ coop: also collect, and issue for others ┐
//! thread ── submit ──▶ staging FIFO ──▶ tags ──▶ device │
//!    ▲         └──────────┬── non-blocking: whoever frees a tag, else the queue run
//!    │ wake                                             │
//!    └── post-processing ◀── steering ◀── collect ◀── interrupt, or a poll thread's timer
//!          lazy: the thread; else the handler, the soft interrupt, the interrupt thread
//! ```
//!
//! Nothing here fetches, steers, stages or issues: that is the single-queue block layer
//! ([`QueueModel::SingleQueue`](crate::Layout)), of which every thread and every context has an end. A
//! strategy says who does which part of it, in which context.
//!
//! | file | noun |
//! |---|---|
//! | [`blocking`](Blocking) | the set-up: drives, threads and contexts; changing the strategy |
//! | [`strategy`](Strategy) | the choices, and the paper's systems by name |
//! | [`hybrid`](Hybrid) | when to poll and when to rely on interrupts |
//! | [`member`](Member), [`striped`](StripeLayout) | a queue as a drive; several drives as one |
//! | [`line`](Source) | where interrupts come from |
//! | [`waiter`](Waiter) | a thread's end: submit, sleep, go on |
//! | [`transfer`](Transfer) | what a thread asks for |
//! | `desk` | its request until it is finished, whoever does it |
//! | `common` | what threads and contexts share |
//! | `collector` | a context's ends of the block layers |
//! | [`contexts`](Placement), `timer` | the threads that stand for a kernel's contexts |
//! | [`stats`](CompletionStats) | what all of them have done |

mod blocking;
mod contexts;
mod hybrid;
mod interrupt_line;
mod member;
mod reaper;
mod shared;
mod stats;
mod strategy;
mod striped;
mod timer;
mod transfer;
mod waiter;
mod waiter_slot;

pub use blocking::{Blocking, BlockingConfig, BlockingError};
pub use contexts::Placement;
pub use hybrid::{Hybrid, HybridStats, Load, Mode};
pub use interrupt_line::{InterruptLine, InterruptSource};
pub use member::StripeMember;
pub use stats::{CompletionStats, ContextKind, ContextStats, WaiterStats, WaiterTotals};
pub use strategy::{Interrupt, Issue, Notify, Strategy, StrategyError};
pub use striped::{StripeFragment, StripeLayout};
pub use transfer::Transfer;
pub use waiter::{BlockingQueue, WaitError, Waiter};
