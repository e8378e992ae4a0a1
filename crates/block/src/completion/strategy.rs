//! [`Strategy`]: how requests of threads that wait for them are issued, and how their ends arrive.
//!
//! HIOPS section 3.3 and figure 6. Four choices, which the paper adds one after the other; its
//! systems are the named combinations of them ([`Strategy::NAMES`]).

use clock::Nanos;

use super::hybrid::Hybrid;

/// Who issues a request that found no tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    /// Nobody who frees a tag: it tells a background context, which runs the queue (HIOPS figure 2,
    /// *f*; Linux's SCSI).
    Blocking,
    /// Whoever frees a tag, from a software FIFO (HIOPS section 3.3, non-blocking I/O).
    NonBlocking,
}

/// What happens between an interrupt and the waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The handler fetches events; a soft interrupt post-processes them and wakes the waiter (HIOPS
    /// figure 2, *b* to *e*).
    SoftIrq,
    /// The handler wakes a thread, which does the rest (HIOPS figure 2, *h* to *j*).
    ThreadedIrq,
    /// The handler does everything.
    Direct,
}

/// How it is noticed that requests have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// By interrupts.
    Interrupt(Interrupt),
    /// By a thread that looks whenever a timer has run out. Interrupts are masked.
    Poll {
        /// From the end of one look to the next.
        interval: Nanos,
    },
    /// By one or the other, as the load goes.
    Hybrid(Hybrid),
}

/// How requests are issued and completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// Who issues what found no tag.
    pub issue: Issue,
    /// How ends are noticed.
    pub notify: Notify,
    /// Waiters post-process their own requests, after they have been woken (HIOPS section 3.3, lazy
    /// I/O processing).
    pub lazy: bool,
    /// Waiters find others' completions and issue others' requests whenever they come by (HIOPS
    /// section 3.3, cooperative I/O processing; with [`Notify::Poll`], opportunistic poll).
    pub coop: bool,
}

/// The longest interval: beyond a second a poll is no notification.
const INTERVAL_MAX: Nanos = Nanos::from_secs(1);

impl Strategy {
    /// Linux's SCSI path: the baseline of HIOPS.
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

    /// The first step of HIOPS figure 8: the handler does everything.
    pub const NON_BLOCKING: Strategy = Strategy {
        issue: Issue::NonBlocking,
        notify: Notify::Interrupt(Interrupt::Direct),
        lazy: false,
        coop: false,
    };

    /// Its second step.
    pub const LAZY: Strategy = Strategy { lazy: true, ..Strategy::NON_BLOCKING };

    /// Its third step, *IRQ I/O* of HIOPS figure 7.
    pub const HIOPS_IRQ: Strategy = Strategy { coop: true, ..Strategy::LAZY };

    /// *Poll I/O* of HIOPS figure 7, *w/ Coop Poll* of figure 9.
    pub const fn hiops_poll(interval: Nanos) -> Strategy {
        Strategy { notify: Notify::Poll { interval }, ..Strategy::HIOPS_IRQ }
    }

    /// *Async poll* of HIOPS figure 9.
    pub const fn async_poll(interval: Nanos) -> Strategy {
        Strategy { notify: Notify::Poll { interval }, ..Strategy::LAZY }
    }

    /// Switches between [`HIOPS_IRQ`](Strategy::HIOPS_IRQ) and
    /// [`hiops_poll`](Strategy::hiops_poll).
    pub const fn hiops_hybrid(hybrid: Hybrid) -> Strategy {
        Strategy { notify: Notify::Hybrid(hybrid), ..Strategy::HIOPS_IRQ }
    }

    /// The names that [`named`](Strategy::from_name) knows.
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

    /// The strategy of that name; those that poll do so every `interval`.
    ///
    /// # Errors
    /// [`StrategyError::Name`], or an interval that cannot be.
    pub fn from_name(name: &str, interval: Nanos) -> Result<Strategy, StrategyError> {
        let strategy = match name {
            "scsi" => Strategy::SCSI,
            "nvme" => Strategy::NVME,
            "non-blocking" => Strategy::NON_BLOCKING,
            "lazy" => Strategy::LAZY,
            "hiops-irq" => Strategy::HIOPS_IRQ,
            "hiops-poll" => Strategy::hiops_poll(interval),
            "async-poll" => Strategy::async_poll(interval),
            "hiops-hybrid" => Strategy::hiops_hybrid(Hybrid::with_interval(interval)),
            _ => return Err(StrategyError::Name(name.into())),
        };
        strategy.validate()?;
        Ok(strategy)
    }

    /// Whether the strategy makes sense.
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

    /// Whether requests may end by an interrupt alone: of a device that has none they would not.
    pub fn needs_interrupts(&self) -> bool {
        matches!(self.notify, Notify::Interrupt(_) | Notify::Hybrid(_))
    }

    /// The interval of the poll thread, if there is one.
    pub(super) fn interval(&self) -> Option<Nanos> {
        match self.notify {
            Notify::Interrupt(_) => None,
            Notify::Poll { interval } => Some(interval),
            Notify::Hybrid(hybrid) => Some(hybrid.interval),
        }
    }
}

/// A strategy that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrategyError {
    /// No strategy has this name.
    #[error("there is no strategy `{0}`; there is {names}", names = Strategy::NAMES.join(", "))]
    Name(String),
    /// A poll interval that is none.
    #[error("a poll interval of {0:?}: it is over 0 and up to 1 s")]
    Interval(Nanos),
    /// Waiters post-process, so that nothing is left for a soft interrupt.
    #[error("lazy processing leaves a soft interrupt nothing to do: use direct or threaded ones")]
    IdleSoftIrq,
    /// A window in which nothing can be counted.
    #[error("a window of {window:?} with polls every {interval:?}: it is at least one interval")]
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
