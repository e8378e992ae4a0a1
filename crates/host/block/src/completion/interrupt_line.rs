//! [`InterruptLine`]: a controller's interrupt, as the strategies see it.
//!
//! As in [HIOPS14 §3.1], drivers expose their point of notification, and the layer above decides
//! what runs there. The members of a set share one line.

use std::fmt::Debug;
use std::sync::Arc;

use driver::{AhciHost, AhciInterrupt};
use event::Waker;

/// An interrupt line that several hardware queues share.
pub trait InterruptLine: Debug + Send + Sync {
    /// Sets the waker of the line. Called once, before any command is issued.
    fn connect(&self, waker: Waker);

    /// Returns the members with pending events, one bit each, whether the line is masked or not. A
    /// bit may stay set after the events were fetched, but none is missing.
    fn pending(&self) -> u64;

    /// Returns the members with pending events, and acknowledges them to the controller. Later
    /// completions raise the line again. The caller fetches the events.
    fn acknowledge(&self) -> u64;

    /// Masks the line, for polling.
    fn mask(&self);

    /// Unmasks the line. It is raised at once if events are pending.
    fn unmask(&self);
}

/// The source of interrupts.
#[derive(Clone, Debug)]
pub enum InterruptSource {
    /// One line for all members.
    SharedLine(Arc<dyn InterruptLine>),
    /// Each hardware queue has its own line, which is its waker. It cannot be masked: polling gets
    /// useless interrupts.
    PerQueue,
}

impl InterruptSource {
    /// Returns the line of an AHCI controller whose members are its queues, in order.
    pub fn ahci(host: &AhciHost) -> InterruptSource {
        let ports = host.drives().iter().map(|drive| drive.port).collect();
        InterruptSource::SharedLine(Arc::new(AhciInterruptLine {
            interrupt: host.interrupt(),
            ports,
        }))
    }

    /// Returns the members of `all` that may have pending events, without acknowledging them.
    #[inline]
    pub(super) fn pending(&self, all: u64) -> u64 {
        match self {
            InterruptSource::SharedLine(line) => line.pending() & all,
            InterruptSource::PerQueue => all,
        }
    }

    /// Returns the members of `all` that may have pending events, and acknowledges them.
    #[inline]
    pub(super) fn acknowledge(&self, all: u64) -> u64 {
        match self {
            InterruptSource::SharedLine(line) => line.acknowledge() & all,
            InterruptSource::PerQueue => all,
        }
    }

    /// Returns whether a handler that has fetched must raise itself again for remaining events.
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
    /// Port by member.
    ports: Box<[u8]>,
}

impl AhciInterruptLine {
    /// Returns the members at these ports.
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
