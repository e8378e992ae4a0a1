//! Flush at the end of a run that modifies a drive's image: flushes all acknowledged writes and
//! shuts the drive down cleanly.

use block::{BlockDevice, Request};
use stack::target_layers;
use time::{Component, Nanos};

use super::DriveRun;

/// Maximum number of polls of device and drive for a flush.
const FLUSH_POLL_LIMIT: u32 = 10_000_000;

impl DriveRun {
    /// Flushes, and makes an FTL in the host write a checkpoint, without advancing the time of the
    /// run. Nothing may be outstanding.
    pub(super) fn flush(&mut self, mut now: Nanos) {
        let DriveRun { host, idle, drive, .. } = self;
        let device = match host {
            Some(host) => host.device_mut(),
            None => match idle {
                Some(device) => device,
                None => return,
            },
        };
        drive.set_zero_latency(true);
        // A device that is full of its own requests accepts the flush when those have completed.
        let mut submitted = false;
        for _ in 0..FLUSH_POLL_LIMIT {
            submitted = submitted || device.submit(now, Request::flush(u64::MAX)).is_ok();
            let moved = device.poll(now) | drive.poll(now);
            if device.reap().is_some() {
                break;
            }
            match drive.deadline().min(device.deadline()) {
                _ if moved => {}
                Nanos::MAX => break,
                due => now = now.max(due),
            }
        }
        target_layers::checkpoint(device, now, drive);
        drive.set_zero_latency(false);
    }
}
