//! The log after a loss of power of its memory.

use block::BlockDevice;
use nvme::Status;

use crate::LogMemory;
use crate::log::WriteLog;

impl<D: BlockDevice, M: LogMemory> WriteLog<D, M> {
    /// Replays the log if the memory has lost its power, and returns whether it has. Writes that had
    /// not completed are stored again. Requests whose records may be lost fail.
    pub(crate) fn handle_power_cut(&mut self) -> bool {
        if !self.ring.lost_power() {
            return false;
        }
        self.stats.power_cuts += 1;
        self.stats.replayed_records += self.ring.replay_after_power_cut(&mut self.index);
        self.changes.on_power_cut();
        self.destager.on_power_cut();
        // A request that the device has not got must not take effect after the replay.
        self.fail_unsent();
        for request in self.appender.on_power_cut() {
            self.complete(request, Status::POWER_LOSS);
        }
        true
    }
}
