//! [`HostBell`]: the host's end of a doorbell, wherever it is.

use std::sync::atomic::Ordering;

use crate::Port;
use crate::shadow::{DoorbellCounts, ShadowDoorbell};

/// A doorbell that the host rings: a register, and a word in memory before it if it has one.
#[derive(Debug)]
pub(crate) struct HostBell {
    /// Offset of its register.
    register: usize,
    memory: Option<Box<ShadowDoorbell>>,
}

impl HostBell {
    /// The one whose register is at `register`.
    pub(crate) fn new(register: usize) -> HostBell {
        HostBell { register, memory: None }
    }

    /// It is in memory, too, from now on, if it has a place there; it was not rung yet.
    pub(crate) fn shadow(&mut self, memory: Option<ShadowDoorbell>) {
        self.memory = memory.map(Box::new);
    }

    /// Takes over the place in memory that another end of the same doorbell had, which the drive has
    /// forgotten.
    pub(crate) fn inherit(&mut self, from: &mut HostBell) {
        self.memory = from.memory.take();
        if let Some(memory) = &mut self.memory {
            memory.renew();
        }
    }

    /// How often it was rung, if it is in memory.
    pub(crate) fn counts(&self) -> Option<DoorbellCounts> {
        self.memory.as_ref().map(|memory| memory.counts)
    }

    /// It has this value from now on. The drive is not woken.
    #[inline]
    pub(crate) fn ring(&mut self, port: &Port, value: u16) {
        if self.memory.is_none() || self.asks(value) {
            self.write(port, value);
        }
    }

    /// Writes the register once more, if it may have been left out: a controller that was told of everything
    /// may have missed it all the same.
    pub(crate) fn ring_again(&mut self, port: &Port) {
        if let Some(memory) = &mut self.memory {
            let last = memory.repeat();
            self.write(port, last);
        }
    }

    /// Whether the register must be written, too.
    #[inline(never)]
    fn asks(&mut self, value: u16) -> bool {
        self.memory.as_mut().is_none_or(|memory| memory.set(value))
    }

    #[inline]
    fn write(&self, port: &Port, value: u16) {
        port.doorbells().half_word(self.register).store(value.into(), Ordering::Release);
    }
}
