//! [`Line`]: a controller's interrupt, as the strategies see it.
//!
//! HIOPS section 3.1: drivers expose their point of notification to the layer above, which runs
//! there what it likes. The members of a set share one line.

use std::fmt::Debug;
use std::sync::Arc;

use clock::Waker;
use driver::{AhciHost, AhciInterrupt};

/// An interrupt line that several hardware queues share.
pub trait Line: Debug + Send + Sync {
    /// Says whom the line wakes. Called once, before anything is issued.
    fn connect(&self, waker: Waker);

    /// The members that have something to say, one bit each, whether the line is masked or not. A bit
    /// may stay after somebody has fetched what there was, but none is missing.
    fn pending(&self) -> u64;

    /// The same, taken back from the controller: what ends from now on raises the line again. Whoever
    /// takes fetches.
    fn take(&self) -> u64;

    /// Raises nothing from now on, for who polls.
    fn mask(&self);

    /// Raises again; at once if there is a reason already.
    fn unmask(&self);
}

/// Where interrupts come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// One line for all members.
    Line(Arc<dyn Line>),
    /// Every hardware queue has a line of its own, its waker. It cannot be masked: who polls is
    /// interrupted all the same, for nothing.
    Queues,
}

impl Source {
    /// The line of an AHCI controller whose members are its queues, in order.
    pub fn ahci(host: &AhciHost) -> Source {
        let ports = host.drives().iter().map(|drive| drive.port).collect();
        Source::Line(Arc::new(AhciLine { interrupt: host.interrupt(), ports }))
    }

    /// The members, of `all`, that may have something to say; who asks takes nothing back.
    #[inline]
    pub(super) fn pending(&self, all: u64) -> u64 {
        match self {
            Source::Line(line) => line.pending() & all,
            Source::Queues => all,
        }
    }

    /// The members, of `all`, that may have something to say, taken back.
    #[inline]
    pub(super) fn take(&self, all: u64) -> u64 {
        match self {
            Source::Line(line) => line.take() & all,
            Source::Queues => all,
        }
    }

    /// Whether a handler that has fetched must be raised again.
    #[inline]
    pub(super) fn is_raised_again(&self) -> bool {
        match self {
            Source::Line(line) => line.pending() != 0,
            Source::Queues => false,
        }
    }
}

/// The line of an AHCI controller.
#[derive(Debug)]
struct AhciLine {
    interrupt: AhciInterrupt,
    /// By member.
    ports: Box<[u8]>,
}

impl AhciLine {
    /// The members at these ports.
    #[inline]
    fn members(&self, ports: u32) -> u64 {
        if ports == 0 {
            return 0;
        }
        let mut members = 0;
        for (member, port) in self.ports.iter().enumerate() {
            members |= u64::from(ports >> (port % 32) & 1) << (member % 64);
        }
        members
    }
}

impl Line for AhciLine {
    fn connect(&self, waker: Waker) {
        self.interrupt.set_line(waker);
    }

    #[inline]
    fn pending(&self) -> u64 {
        self.members(self.interrupt.pending())
    }

    #[inline]
    fn take(&self) -> u64 {
        let pending = self.interrupt.pending();
        if pending != 0 {
            self.interrupt.acknowledge(pending);
        }
        self.members(pending)
    }

    fn mask(&self) {
        self.interrupt.mask();
    }

    fn unmask(&self) {
        self.interrupt.unmask();
    }
}
