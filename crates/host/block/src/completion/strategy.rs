//! [`Strategy`]: how requests of waiting threads are issued, and how their completions are
//! delivered.
//!
//! A strategy consists of four choices ([HIOPS14 §3.3], [HIOPS14 fig. 6]), which the paper adds
//! step by step. Its systems are named combinations of them ([`Strategy::NAMES`]).

use time::Nanos;

use super::hybrid::HybridConfig;

/// The context that issues requests which found no tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    /// A background context: the context that frees a tag triggers a queue run ([HIOPS14 fig. 2],
    /// *f*; Linux's SCSI).
    Blocking,
    /// The context that frees a tag, from a software FIFO ([HIOPS14 §3.3], non-blocking I/O).
    NonBlocking,
}

/// The steps between an interrupt and the waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The handler fetches events. A soft interrupt post-processes them and wakes the waiter
    /// ([HIOPS14 fig. 2], *b* to *e*).
    SoftIrq,
    /// The handler wakes a thread, which does the rest ([HIOPS14 fig. 2], *h* to *j*).
    ThreadedIrq,
    /// The handler does everything.
    Direct,
}

/// How the host is notified of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// By interrupts.
    Interrupt(Interrupt),
    /// By a thread that polls on a timer. Interrupts are masked.
    Poll {
        /// Time from the end of one poll to the next.
        interval: Nanos,
    },
    /// By interrupts or polling, according to the load.
    Hybrid(HybridConfig),
}

/// How requests are issued and completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// The context that issues requests which found no tag.
    pub issue: Issue,
    /// How the host is notified of completions.
    pub notify: Notify,
    /// Whether waiters post-process their own requests after they have been woken ([HIOPS14 §3.3],
    /// lazy I/O processing).
    pub lazy: bool,
    /// Whether waiters reap completions and issue requests for others whenever they run ([HIOPS14
    /// §3.3], cooperative I/O processing; with [`Notify::Poll`], opportunistic poll).
    pub coop: bool,
}

/// Maximum poll interval.
const INTERVAL_MAX: Nanos = Nanos::from_secs(1);

impl Strategy {
    /// Linux's SCSI path: the baseline of \[HIOPS14\].
    pub const SCSI: Strategy = Strategy {
        issue: Issue::Blocking,
        notify: Notify::Interrupt(Interrupt::SoftIrq),
        lazy: false,
        coop: false,
    };

    /// Linux's first NVMe driver: issued directly, completed by a threaded interrupt.
    pub const NVME: Strategy = Strategy {
        issue: Issue::NonBlocking,
        notify: Notify::Interrupt(Interrupt::ThreadedIrq),
        lazy: false,
        coop: false,
    };

    /// The first step of [HIOPS14 fig. 8]: the handler does everything.
    pub const NON_BLOCKING: Strategy = Strategy {
        issue: Issue::NonBlocking,
        notify: Notify::Interrupt(Interrupt::Direct),
        lazy: false,
        coop: false,
    };

    /// The second step of [HIOPS14 fig. 8].
    pub const LAZY: Strategy = Strategy { lazy: true, ..Strategy::NON_BLOCKING };

    /// The third step of [HIOPS14 fig. 8], *IRQ I/O* of [HIOPS14 fig. 7].
    pub const HIOPS_IRQ: Strategy = Strategy { coop: true, ..Strategy::LAZY };

    /// Returns *Poll I/O* of [HIOPS14 fig. 7], *w/ Coop Poll* of [HIOPS14 fig. 9].
    pub const fn hiops_poll(interval: Nanos) -> Strategy {
        Strategy { notify: Notify::Poll { interval }, ..Strategy::HIOPS_IRQ }
    }

    /// Returns *Async poll* of [HIOPS14 fig. 9].
    pub const fn async_poll(interval: Nanos) -> Strategy {
        Strategy { notify: Notify::Poll { interval }, ..Strategy::LAZY }
    }

    /// Returns a strategy that switches between [`HIOPS_IRQ`](Strategy::HIOPS_IRQ) and
    /// [`hiops_poll`](Strategy::hiops_poll).
    pub const fn hiops_hybrid(hybrid: HybridConfig) -> Strategy {
        Strategy { notify: Notify::Hybrid(hybrid), ..Strategy::HIOPS_IRQ }
    }

    /// The names that [`from_name`](Strategy::from_name) accepts.
    pub const NAMES: [&str; 8] = [
        "scsi",
        "nvme",
        "non-blocking",
        "lazy",
        "hiops-irq",
        "hiops-poll",
        "async-poll",
        "hiops-hybrid",
    ];

    /// Returns the strategy with this name; a polling one polls every `interval`.
    ///
    /// # Errors
    /// [`StrategyError::Name`], or the error of an invalid interval.
    pub fn from_name(name: &str, interval: Nanos) -> Result<Strategy, StrategyError> {
        let strategy = match name {
            "scsi" => Strategy::SCSI,
            "nvme" => Strategy::NVME,
            "non-blocking" => Strategy::NON_BLOCKING,
            "lazy" => Strategy::LAZY,
            "hiops-irq" => Strategy::HIOPS_IRQ,
            "hiops-poll" => Strategy::hiops_poll(interval),
            "async-poll" => Strategy::async_poll(interval),
            "hiops-hybrid" => Strategy::hiops_hybrid(HybridConfig::with_interval(interval)),
            _ => return Err(StrategyError::Name(name.into())),
        };
        strategy.validate()?;
        Ok(strategy)
    }

    /// Checks the strategy.
    ///
    /// # Errors
    /// [`StrategyError`].
    pub fn validate(&self) -> Result<(), StrategyError> {
        if self.lazy && self.notify == Notify::Interrupt(Interrupt::SoftIrq) {
            return Err(StrategyError::IdleSoftIrq);
        }
        let Some(interval) = self.interval() else { return Ok(()) };
        if interval == Nanos::ZERO || interval > INTERVAL_MAX {
            return Err(StrategyError::Interval(interval));
        }
        match self.notify {
            Notify::Hybrid(hybrid) => hybrid.validate(),
            _ => Ok(()),
        }
    }

    /// Returns whether some completions are only reported by interrupts. Such a strategy does not
    /// work with a device that has none.
    pub fn needs_interrupts(&self) -> bool {
        matches!(self.notify, Notify::Interrupt(_) | Notify::Hybrid(_))
    }

    /// Returns the interval of the poll thread, if the strategy uses it.
    pub(super) fn interval(&self) -> Option<Nanos> {
        match self.notify {
            Notify::Interrupt(_) => None,
            Notify::Poll { interval } => Some(interval),
            Notify::Hybrid(hybrid) => Some(hybrid.interval),
        }
    }
}

/// An invalid strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrategyError {
    /// No strategy has this name.
    #[error("there is no strategy `{0}`; there is {names}", names = Strategy::NAMES.join(", "))]
    Name(String),
    /// The poll interval is 0 or exceeds the maximum.
    #[error("the poll interval is {0:?}: it must be over 0 and at most 1 s")]
    Interval(Nanos),
    /// Waiters post-process, so that a soft interrupt has no work.
    #[error("lazy processing leaves a soft interrupt no work: use direct or threaded interrupts")]
    IdleSoftIrq,
    /// The window is shorter than the poll interval.
    #[error("the window of {window:?} is shorter than the poll interval of {interval:?}")]
    Window {
        /// The window.
        window: Nanos,
        /// The poll interval.
        interval: Nanos,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_strategy_that_makes_sense() {
        let mut seen = Vec::new();
        for name in Strategy::NAMES {
            let strategy = Strategy::from_name(name, Nanos::from_micros(16)).unwrap();
            assert!(!seen.contains(&strategy), "{name} is another one too");
            seen.push(strategy);
        }
        let error = Strategy::from_name("nonsense", Nanos::from_micros(16)).unwrap_err();
        assert!(error.to_string().contains("hiops-hybrid"), "{error}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for interval in [Nanos::ZERO, Nanos(INTERVAL_MAX.0 + 1), Nanos::MAX] {
            for name in ["hiops-poll", "async-poll", "hiops-hybrid"] {
                let error = Strategy::from_name(name, interval).unwrap_err();
                assert_eq!(error, StrategyError::Interval(interval), "{name}");
            }
        }
        let idle = Strategy { lazy: true, ..Strategy::SCSI };
        assert_eq!(idle.validate(), Err(StrategyError::IdleSoftIrq));
        assert_eq!(Strategy { lazy: true, ..Strategy::NVME }.validate(), Ok(()));
    }
}
