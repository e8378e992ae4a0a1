//! [`Line`]: a controller's interrupt, as the strategies see it.
//!
//! HIOPS section 3.1: drivers expose their point of notification to the layer above, which runs
//! there what it likes. The members of a set share one line.

use std::fmt::Debug;
use std::sync::Arc;

use clock::Waker;
use driver::{AhciHost, AhciInterrupt};

/// An interrupt line that several hardware queues share.
pub trait InterruptLine: Debug + Send + Sync {
    /// Says whom the line wakes. Called once, before anything is issued.
    fn connect(&self, waker: Waker);

    /// The members that have something to say, one bit each, whether the line is masked or not. A bit
    /// may stay after somebody has fetched what there was, but none is missing.
    fn pending(&self) -> u64;

    /// The same, taken back from the controller: what ends from now on raises the line again. Whoever
    /// takes fetches.
    fn acknowledge(&self) -> u64;

    /// Raises nothing from now on, for who polls.
    fn mask(&self);

    /// Raises again; at once if there is a reason already.
    fn unmask(&self);
}

/// Where interrupts come from.
#[derive(Clone, Debug)]
pub enum InterruptSource {
    /// One line for all members.
    SharedLine(Arc<dyn InterruptLine>),
    /// Every hardware queue has a line of its own, its waker. It cannot be masked: who polls is
    /// interrupted all the same, for nothing.
    PerQueue,
}

impl InterruptSource {
    /// The line of an AHCI controller whose members are its queues, in order.
    pub fn ahci(host: &AhciHost) -> InterruptSource {
        let ports = host.drives().iter().map(|drive| drive.port).collect();
        InterruptSource::SharedLine(Arc::new(AhciInterruptLine {
            interrupt: host.interrupt(),
            ports,
        }))
    }

    /// The members, of `all`, that may have something to say; who asks takes nothing back.
    #[inline]
    pub(super) fn pending(&self, all: u64) -> u64 {
        match self {
            InterruptSource::SharedLine(line) => line.pending() & all,
            InterruptSource::PerQueue => all,
        }
    }

    /// The members, of `all`, that may have something to say, taken back.
    #[inline]
    pub(super) fn acknowledge(&self, all: u64) -> u64 {
        match self {
            InterruptSource::SharedLine(line) => line.acknowledge() & all,
            InterruptSource::PerQueue => all,
        }
    }

    /// Whether a handler that has fetched must be raised again.
    #[inline]
    pub(super) fn needs_reraise(&self) -> bool {
        match self {
            InterruptSource::SharedLine(line) => line.pending() != 0,
            InterruptSource::PerQueue => false,
        }
    }
}

/// The line of an AHCI controller.
#[derive(Debug)]
struct AhciInterruptLine {
    interrupt: AhciInterrupt,
    /// By member.
    ports: Box<[u8]>,
}

impl AhciInterruptLine {
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

impl InterruptLine for AhciInterruptLine {
    fn connect(&self, waker: Waker) {
        self.interrupt.set_line(waker);
    }

    #[inline]
    fn pending(&self) -> u64 {
        self.members(self.interrupt.pending())
    }

    #[inline]
    fn acknowledge(&self) -> u64 {
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
