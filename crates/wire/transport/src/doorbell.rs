//! [`DoorbellWriter`]: the host's end of a doorbell, in a register and optionally in the doorbell
//! buffer.

use std::sync::atomic::Ordering;

use mem::SharedWord;

use crate::Port;
use crate::shadow_doorbell::{DoorbellStats, ShadowDoorbell};

/// A doorbell that the host writes: a register, and before it a word in the doorbell buffer, if
/// enabled.
#[derive(Debug)]
pub(crate) struct DoorbellWriter {
    register: SharedWord,
    shadow_doorbell: Option<Box<ShadowDoorbell>>,
}

impl DoorbellWriter {
    /// Creates a doorbell whose register is at offset `register` of the port's doorbells.
    pub(crate) fn new(port: &Port, register: usize) -> DoorbellWriter {
        let register = SharedWord::new(port.doorbells().clone(), register);
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
    pub(crate) fn ring(&mut self, value: u16) {
        if self.shadow_doorbell.is_none() || self.needs_register_write(value) {
            self.write_register(value);
        }
    }

    /// Writes the register again, if an earlier write may have been omitted: the controller may
    /// have missed the value in the doorbell buffer.
    pub(crate) fn rewrite_register(&mut self) {
        if let Some(memory) = &mut self.shadow_doorbell {
            let last = memory.record_rewrite();
            self.write_register(last);
        }
    }

    /// Whether the register must be written as well.
    #[inline(never)]
    fn needs_register_write(&mut self, value: u16) -> bool {
        self.shadow_doorbell.as_mut().is_none_or(|memory| memory.update_and_check_event(value))
    }

    #[inline]
    fn write_register(&self, value: u16) {
        self.register.get().store(value.into(), Ordering::Release);
    }
}
