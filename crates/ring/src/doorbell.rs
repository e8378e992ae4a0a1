//! [`DoorbellWriter`]: the host's end of a doorbell, wherever it is.

use std::sync::atomic::Ordering;

use crate::Port;
use crate::shadow_doorbell::{DoorbellStats, ShadowDoorbell};

/// A doorbell that the host rings: a register, and a word in memory before it if it has one.
#[derive(Debug)]
pub(crate) struct DoorbellWriter {
    /// Offset of its register.
    register: usize,
    shadow_doorbell: Option<Box<ShadowDoorbell>>,
}

impl DoorbellWriter {
    /// The one whose register is at `register`.
    pub(crate) fn new(register: usize) -> DoorbellWriter {
        DoorbellWriter { register, shadow_doorbell: None }
    }

    /// It is in memory, too, from now on, if it has a place there; it was not rung yet.
    pub(crate) fn enable_shadow(&mut self, memory: Option<ShadowDoorbell>) {
        self.shadow_doorbell = memory.map(Box::new);
    }

    /// Takes over the place in memory that another end of the same doorbell had, which the drive has
    /// forgotten.
    pub(crate) fn take_over_state(&mut self, from: &mut DoorbellWriter) {
        self.shadow_doorbell = from.shadow_doorbell.take();
        if let Some(memory) = &mut self.shadow_doorbell {
            memory.reset();
        }
    }

    /// How often it was rung, if it is in memory.
    pub(crate) fn stats(&self) -> Option<DoorbellStats> {
        self.shadow_doorbell.as_ref().map(|memory| memory.stats)
    }

    /// It has this value from now on. The drive is not woken.
    #[inline]
    pub(crate) fn ring(&mut self, port: &Port, value: u16) {
        if self.shadow_doorbell.is_none() || self.needs_register_write(value) {
            self.write_register(port, value);
        }
    }

    /// Writes the register once more, if it may have been left out: a controller that was told of everything
    /// may have missed it all the same.
    pub(crate) fn rewrite_register(&mut self, port: &Port) {
        if let Some(memory) = &mut self.shadow_doorbell {
            let last = memory.record_rewrite();
            self.write_register(port, last);
        }
    }

    /// Whether the register must be written, too.
    #[inline(never)]
    fn needs_register_write(&mut self, value: u16) -> bool {
        self.shadow_doorbell.as_mut().is_none_or(|memory| memory.update_and_check_event(value))
    }

    #[inline]
    fn write_register(&self, port: &Port, value: u16) {
        port.doorbells().atomic_u32(self.register).store(value.into(), Ordering::Release);
    }
}
