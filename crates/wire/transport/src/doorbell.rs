//! [`DoorbellWriter`]: the host's end of a doorbell, in a register, optionally in the doorbell
//! buffer, and optionally with a stamp.

use std::sync::atomic::Ordering;

use mem::SharedWord;

use crate::Port;
use crate::doorbell_stamp::StampWriter;
use crate::shadow_doorbell::{DoorbellStats, ShadowDoorbell};

/// A doorbell that the host writes: a register, and what it writes before it, if enabled.
#[derive(Debug)]
pub(crate) struct DoorbellWriter {
    register: SharedWord,
    before: Option<Box<BeforeRegister>>,
}

/// The words that the host writes before the register of a doorbell.
#[derive(Debug, Default)]
struct BeforeRegister {
    /// The time of the write.
    stamp: Option<StampWriter>,
    /// The word in the doorbell buffer.
    shadow: Option<ShadowDoorbell>,
}

impl DoorbellWriter {
    /// Creates a doorbell whose register is at offset `register` of the port's doorbells.
    pub(crate) fn new(port: &Port, register: usize) -> DoorbellWriter {
        let register = SharedWord::new(port.doorbells().clone(), register);
        DoorbellWriter { register, before: None }
    }

    /// Whether writes are stamped.
    #[inline]
    pub(crate) fn has_stamp(&self) -> bool {
        self.before.as_ref().is_some_and(|before| before.stamp.is_some())
    }

    /// Stamps all later writes.
    #[cold]
    pub(crate) fn enable_stamp(&mut self, stamp: StampWriter) {
        self.before.get_or_insert_default().stamp = Some(stamp);
    }

    fn shadow(&self) -> Option<&ShadowDoorbell> {
        self.before.as_ref()?.shadow.as_ref()
    }

    fn shadow_mut(&mut self) -> Option<&mut ShadowDoorbell> {
        self.before.as_mut()?.shadow.as_mut()
    }

    /// Uses the doorbell buffer from now on, if it has a word for this doorbell, before the first
    /// write.
    pub(crate) fn enable_shadow(&mut self, memory: Option<ShadowDoorbell>) {
        if let Some(memory) = memory {
            self.before.get_or_insert_default().shadow = Some(memory);
        }
    }

    /// Takes over the doorbell buffer word of an earlier end of this doorbell, after the drive has
    /// deleted the queue.
    pub(crate) fn take_over_state(&mut self, from: &mut DoorbellWriter) {
        let mut memory = from.before.as_mut().and_then(|before| before.shadow.take());
        if let Some(memory) = &mut memory {
            memory.reset();
        }
        self.enable_shadow(memory);
    }

    /// Returns the counters, if the doorbell buffer is in use.
    pub(crate) fn stats(&self) -> Option<DoorbellStats> {
        self.shadow().map(|memory| memory.stats)
    }

    /// Writes a new value. Does not wake the drive.
    #[inline]
    pub(crate) fn ring(&mut self, value: u16) {
        if self.before.is_none() || self.write_before_register(value) {
            self.write_register(value);
        }
    }

    /// Writes the register again, if an earlier write may have been omitted: the controller may
    /// have missed the value in the doorbell buffer.
    pub(crate) fn rewrite_register(&mut self) {
        if let Some(memory) = self.shadow_mut() {
            let last = memory.record_rewrite();
            self.write_register(last);
        }
    }

    /// Writes the stamp and the word in the doorbell buffer. Returns whether the register must be
    /// written as well.
    #[inline(never)]
    fn write_before_register(&mut self, value: u16) -> bool {
        let Some(before) = &mut self.before else { return true };
        if let Some(stamp) = &before.stamp {
            stamp.write();
        }
        before.shadow.as_mut().is_none_or(|memory| memory.update_and_check_event(value))
    }

    #[inline]
    fn write_register(&self, value: u16) {
        self.register.get().store(value.into(), Ordering::Release);
    }
}
