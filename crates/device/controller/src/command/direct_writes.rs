//! Writes that reach the drive's FTL without commands, for preconditioning: with zero latency and
//! without data, what a queue pair and a command add to a write is time alone.
//!
//! The drive runs its FTL, its flash array and their events in the same order as for the commands of
//! one host, so that its state afterwards is the same.

use nvme::Status;
use time::Nanos;

use crate::Controller;
use crate::controller::Personality;

/// Marks the tags of direct writes among those of commands, in the FTL.
pub(crate) const DIRECT_TAG: u64 = 1 << 63;

impl Controller {
    /// Whether the drive takes direct writes: it has an FTL, its media store no data, it has no
    /// restricted host, and it runs with [zero latency](Controller::set_zero_latency).
    pub fn takes_direct_writes(&self) -> bool {
        self.zero_latency
            && self.queues.ports.iter().all(|port| port.access.is_none())
            && matches!(&self.personality, Personality::Block(drive) if !drive.stores_data())
    }

    /// Queues a write of `sectors` sectors from `lba` on. It is executed by the next
    /// [`run_direct_writes`](Controller::run_direct_writes). Tags are below 2^63 − 1.
    ///
    /// # Panics
    /// If the drive takes no direct writes ([`takes_direct_writes`](Controller::takes_direct_writes)).
    pub fn write_directly(&mut self, tag: u64, lba: u64, sectors: u32) {
        match &mut self.personality {
            Personality::Block(drive) if !drive.stores_data() => {
                drive.write_directly(DIRECT_TAG | tag, lba, sectors, self.admin.cache_enabled());
            }
            _ => panic!("the drive takes no direct writes"),
        }
    }

    /// Processes everything that is due by `now`. Returns whether there was anything.
    pub fn run_direct_writes(&mut self, now: Nanos) -> bool {
        self.process_until::<false>(now).0
    }

    /// Removes and returns the tag and the status of a completed direct write.
    pub fn pop_direct_write(&mut self) -> Option<(u64, Status)> {
        match &mut self.personality {
            Personality::Block(drive) => drive.pop_direct_write(),
            _ => None,
        }
    }
}
