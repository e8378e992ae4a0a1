//! Brings a drive's image to rest after a run that is to change it: everything acknowledged is flushed,
//! and the drive is shut down as a host would do it.

use block::{BlockDevice, Request};
use clock::{Component, Nanos};

use super::DriveRun;

/// Polls of device and drive that a flush may take.
const FLUSH_POLL_LIMIT: u32 = 10_000_000;

impl DriveRun {
    /// Flushes, and has a translation layer on the host make a checkpoint, taking no time of the run.
    /// Nothing may be outstanding.
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
        // A device that is full of its own requests takes one when those have ended.
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
        device.checkpoint(now, drive);
        drive.set_zero_latency(false);
    }
}
