//! The state of an idle device, to be copied or saved: the FTL and the write buffer.
//!
//! The queue pair and the admin queue are not part of it: a device that takes the state over is
//! opened as the other was, and its drive takes over the state of the other's drive.

use std::borrow::Cow;

use ftl::{Ftl, RecoveryStats};
use serde::{Deserialize, Serialize};
use time::Nanos;

use super::Pblk;
use super::buffer_memory::SlotContents;
use super::maintenance::PblkHealth;

/// The state of an idle device, as read from its saved form. [`Pblk::restore`] takes it.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedPblk<'a> {
    ftl: Cow<'a, Ftl>,
    /// The write buffer; `None` if contents are not stored.
    buffer: Option<SlotContents>,
    recovery_stats: Option<RecoveryStats>,
    kick: bool,
    has_new_requests: bool,
    next_checkpoint: Nanos,
}

impl Pblk {
    /// Returns the state to be saved. Returns `None` if it is not complete: requests or commands
    /// are in flight, or the device has rules, a scrub, a superblock maintainer, or recorded media
    /// events.
    pub fn state_to_save(&self) -> Option<SavedPblk<'_>> {
        // The FTL may have unfinished work, provided that no command of it is on the drive.
        let is_idle = self.flash.requests.outstanding() == 0
            && self.flash.queue().outstanding() == 0
            && !self.flash.has_deferred()
            && self.completed.is_empty()
            && self.pending_lookups.is_empty();
        let is_plain = self.flash.rules.is_none()
            && !self.maintenance.has_tasks()
            && self.maintenance.stats() == PblkHealth::default();
        (is_idle && is_plain).then(|| SavedPblk {
            ftl: Cow::Borrowed(&self.ftl),
            buffer: self.flash.buffer_contents(),
            recovery_stats: self.recovery_stats,
            kick: self.kick,
            has_new_requests: self.has_new_requests,
            next_checkpoint: self.maintenance.next_checkpoint(),
        })
    }

    /// Takes over the state of a device with the same configuration. Its drive's state must be
    /// taken over as well. Returns `false`, and changes nothing, if the states do not fit.
    pub fn restore(&mut self, state: SavedPblk<'_>) -> bool {
        let is_plain = self.state_to_save().is_some();
        let fits = state.ftl.geometry() == self.ftl.geometry()
            && state.ftl.capacity_plan() == self.ftl.capacity_plan();
        if !is_plain || !fits || !self.flash.restore_buffer(state.buffer.as_ref()) {
            return false;
        }
        self.ftl = state.ftl.into_owned();
        self.recovery_stats = state.recovery_stats;
        (self.kick, self.has_new_requests) = (state.kick, state.has_new_requests);
        self.maintenance.set_next_checkpoint(state.next_checkpoint);
        true
    }
}
