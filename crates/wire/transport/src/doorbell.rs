//! [`DoorbellWriter`]: the host's end of a doorbell, in a register and optionally in the doorbell
//! buffer.

use std::sync::atomic::Ordering;

use crate::Port;
use crate::shadow_doorbell::{DoorbellStats, ShadowDoorbell};

/// A doorbell that the host writes: a register, and before it a word in the doorbell buffer, if
/// enabled.
#[derive(Debug)]
pub(crate) struct DoorbellWriter {
    /// Offset of its register.
    register: usize,
    shadow_doorbell: Option<Box<ShadowDoorbell>>,
}

impl DoorbellWriter {
    /// Creates a doorbell whose register is at offset `register`.
    pub(crate) fn new(register: usize) -> DoorbellWriter {
        DoorbellWriter { register, shadow_doorbell: None }
    }

    /// Uses the doorbell buffer from now on, if it has a word for this doorbell, before the first
    /// write.
    pub(crate) fn enable_shadow(&mut self, memory: Option<ShadowDoorbell>) {
        self.shadow_doorbell = memory.map(Box::new);
    }

    /// Takes over the doorbell buffer word of an earlier end of this doorbell, after the drive has
    /// deleted the queue.
    pub(crate) fn take_over_state(&mut self, from: &mut DoorbellWriter) {
        self.shadow_doorbell = from.shadow_doorbell.take();
        if let Some(memory) = &mut self.shadow_doorbell {
            memory.reset();
        }
    }

    /// Returns the counters, if the doorbell buffer is in use.
    pub(crate) fn stats(&self) -> Option<DoorbellStats> {
        self.shadow_doorbell.as_ref().map(|memory| memory.stats)
    }

    /// Writes a new value. Does not wake the drive.
    #[inline]
    pub(crate) fn ring(&mut self, port: &Port, value: u16) {
        if self.shadow_doorbell.is_none() || self.needs_register_write(value) {
            self.write_register(port, value);
        }
    }

    /// Writes the register again, if an earlier write may have been omitted: the controller may
    /// have missed the value in the doorbell buffer.
    pub(crate) fn rewrite_register(&mut self, port: &Port) {
        if let Some(memory) = &mut self.shadow_doorbell {
            let last = memory.record_rewrite();
            self.write_register(port, last);
        }
    }

    /// Whether the register must be written as well.
    #[inline(never)]
    fn needs_register_write(&mut self, value: u16) -> bool {
        self.shadow_doorbell.as_mut().is_none_or(|memory| memory.update_and_check_event(value))
    }

    #[inline]
    fn write_register(&self, port: &Port, value: u16) {
        port.doorbells().atomic_u32(self.register).store(value.into(), Ordering::Release);
    }
}
