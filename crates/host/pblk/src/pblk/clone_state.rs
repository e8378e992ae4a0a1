//! [`Pblk::clone_state_from`]: copies the state of one device to another.

use super::Pblk;
use super::maintenance::PblkHealth;

impl Pblk {
    /// Copies the FTL and the write buffer of `other` to this device. The queue pair and the admin
    /// queue are not changed.
    ///
    /// Both devices and their drives must have the same configuration, and the state of `other`'s
    /// drive must be copied to this device's drive as well. Returns `false`, and changes nothing of
    /// the FTL, if either device has requests or commands in flight, a scrub, a superblock
    /// maintainer, or recorded media events.
    ///
    /// # Panics
    /// If there is no address space for the copy.
    pub fn clone_state_from(&mut self, other: &Pblk) -> bool {
        let plain = |pblk: &Pblk| {
            // The FTL may have unfinished work, provided that no command of it is on the drive.
            pblk.flash.requests.outstanding() == 0
                && pblk.flash.queue().outstanding() == 0
                && pblk.completed.is_empty()
                && pblk.pending_lookups.is_empty()
                && !pblk.maintenance.has_tasks()
                && pblk.maintenance.stats() == PblkHealth::default()
        };
        if self.limits != other.limits || !plain(self) || !plain(other) {
            return false;
        }
        if !self.flash.clone_state_from(&other.flash) {
            return false;
        }
        self.ftl = other.ftl.clone();
        self.recovery_stats = other.recovery_stats;
        (self.kick, self.has_new_requests) = (other.kick, other.has_new_requests);
        self.maintenance.clone_state_from(&other.maintenance);
        true
    }
}
