//! [`Pblk::clone_state_from`]: one device in the state of another.

use super::Pblk;
use super::maintenance::PblkHealth;

impl Pblk {
    /// Takes over the state of `other`, a device of the same configuration without requests or commands
    /// under way, on a drive of the same configuration, whose state this device's drive takes over as well:
    /// the translation layer and the write buffer, each as a copy of its own. The queue pair and the admin
    /// queue stay. Returns whether it could: not from a device with something under way or a patrol, nor
    /// from one that has heard of its media.
    ///
    /// # Panics
    /// When there is no address space for the copy.
    pub fn clone_state_from(&mut self, other: &Pblk) -> bool {
        let plain = |pblk: &Pblk| {
            // The layer may be in the middle of something, as long as none of it is with the drive.
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
