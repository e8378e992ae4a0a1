//! [`CompletionMethod`]: who notices the completions of a queue whose owner does not block, and who
//! finishes the requests ([HIOPS14 §3.3], [NVMeDirect16 §3.1]).
//!
//! | method | notices | finishes |
//! |---|---|---|
//! | `poll` | the submitter, which polls all the time or on a timer | the submitter |
//! | `interrupt` | the interrupt handler of the hardware queue | the handler, one after the other |
//! | `lazy` | the handler | each submitter its own |
//! | `coop` | the handler, or any submitter that submits meanwhile | each submitter its own |
//! | `hybrid` | the submitter while it is busy, else the handler | the submitter |
//!
//! In virtual time [`NotifiedQueue`] delays the completions of a hardware queue by what noticing and
//! finishing cost. In real time these are threads: a [`CompletionHandler`] is the context of the
//! interrupt beside the submitters that share a hardware queue, and the vector of a queue that one
//! core owns wakes this core. There each submitter finishes its own requests, so that `interrupt` on
//! a shared queue is `lazy`.
//!
//! On a modeled machine the contexts are tasks of it: each thread polls, sleeps until a timer, or has
//! a handler that wakes it; with `lazy` and `coop` the handler has an endpoint
//! ([`CompletionHandler::elsewhere`]).
//!
//! Threads that wait for one request each have the strategies of [`completion`](crate::completion).

mod handler;
mod queue;

use time::Nanos;

pub use handler::CompletionHandler;
pub use queue::{NotifiedDriver, NotifiedQueue, NotifyStats};

/// The context that notices completions, and the one that finishes the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CompletionMethod {
    /// The submitter polls.
    #[default]
    Poll,
    /// The interrupt handler finishes requests.
    Interrupt,
    /// The interrupt handler fetches completions, and submitters finish their requests.
    Lazy,
    /// As [`Lazy`](CompletionMethod::Lazy), and every submitter that runs fetches for all.
    Coop,
    /// The submitter polls while it is busy, and waits for interrupts while it is not.
    Hybrid,
}

impl CompletionMethod {
    /// All methods, in the order of the documentation.
    pub const ALL: &'static [CompletionMethod] = &[
        CompletionMethod::Poll,
        CompletionMethod::Interrupt,
        CompletionMethod::Lazy,
        CompletionMethod::Coop,
        CompletionMethod::Hybrid,
    ];

    /// Returns the word of a scenario for the method.
    pub const fn word(self) -> &'static str {
        match self {
            CompletionMethod::Poll => "poll",
            CompletionMethod::Interrupt => "interrupt",
            CompletionMethod::Lazy => "lazy",
            CompletionMethod::Coop => "coop",
            CompletionMethod::Hybrid => "hybrid",
        }
    }

    /// Returns whether a context besides the submitters must fetch completions, so that submitters
    /// and this context must share the hardware queue.
    pub const fn needs_handler(self) -> bool {
        matches!(self, CompletionMethod::Lazy | CompletionMethod::Coop)
    }

    /// Returns whether a context besides the submitters fetches completions of a hardware queue that
    /// they share.
    pub const fn uses_handler(self) -> bool {
        matches!(self, CompletionMethod::Interrupt) || self.needs_handler()
    }

    /// Returns whether the hardware queue raises interrupts.
    pub const fn uses_interrupts(self) -> bool {
        !matches!(self, CompletionMethod::Poll)
    }
}

/// Time after the last request or completion during which [`CompletionMethod::Hybrid`] polls.
pub const HYBRID_POLL_TIME: Nanos = Nanos::from_micros(50);

/// Maximum time between two polls.
pub const POLL_INTERVAL_MAX: Nanos = Nanos::from_secs(1);

/// A method with its parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionPolicy {
    /// The method.
    pub method: CompletionMethod,
    /// [`CompletionMethod::Poll`]: time from one poll to the next, above zero and at most
    /// [`POLL_INTERVAL_MAX`]; `None` polls all the time.
    pub poll_interval: Option<Nanos>,
}

/// The notification of a hardware queue in virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotifyConfig {
    /// The method and its parameter.
    pub policy: CompletionPolicy,
    /// Time from a completion entry to the first instruction of the context that the interrupt
    /// starts.
    pub interrupt_cost: Nanos,
    /// [`CompletionMethod::Interrupt`]: time for which the handler finishes one request. With the
    /// other methods each submitter spends it itself.
    pub finish_cost: Nanos,
}

impl NotifyConfig {
    /// Returns whether completions arrive without delay, so that no [`NotifiedQueue`] is needed.
    pub fn is_immediate(&self) -> bool {
        self.policy == CompletionPolicy::default()
    }
}
