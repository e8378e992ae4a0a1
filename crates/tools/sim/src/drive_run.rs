//! [`DriveRun`]: a drive with its jobs during the run.

use block::BlockDevice;
use stack::steady_state::SteadyResult;
use stack::{CoreQueues, ShardCounts, target_layers};
use time::{Component, Nanos};
use workload::JobRunner;

/// A drive with its jobs during the run.
pub(super) struct DriveRun {
    /// Index of the drive, for tracepoints.
    pub(super) index: u16,
    pub(super) name: String,
    pub(super) drive: controller::Controller,
    pub(super) host: Option<JobRunner<CoreQueues>>,
    /// Device of a drive without jobs.
    pub(super) idle: Option<CoreQueues>,
    pub(super) ftl_before: Option<ftl::FtlStats>,
    pub(super) media_before: Option<media::MediaStats>,
    pub(super) shards_before: Vec<ShardCounts>,
    /// Whether the contents of the drive must be on its image at the end.
    pub(super) persist_image: bool,
    pub(super) steady: Option<SteadyResult>,
}

impl Component for DriveRun {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        tracepoint::set_drive(self.index);
        let host = self.host.as_mut().is_some_and(|h| h.poll(now));
        let drive = self.drive.poll(now);
        host | drive
    }
    #[inline]
    fn deadline(&self) -> Nanos {
        let host = self.host.as_ref().map_or(Nanos::MAX, Component::deadline);
        host.min(self.drive.deadline())
    }
}

impl DriveRun {
    pub(super) fn is_done(&self) -> bool {
        self.host.as_ref().is_none_or(JobRunner::is_done)
    }

    pub(super) fn device(&self) -> Option<&CoreQueues> {
        self.host.as_ref().map(JobRunner::device).or(self.idle.as_ref())
    }

    pub(super) fn device_mut(&mut self) -> Option<&mut CoreQueues> {
        match &mut self.host {
            Some(host) => Some(host.device_mut()),
            None => self.idle.as_mut(),
        }
    }

    /// Returns the names of the jobs, with clones counted one by one.
    pub(super) fn job_names(&self) -> Vec<String> {
        self.host
            .as_ref()
            .map(|host| host.job_names().map(str::to_owned).collect())
            .unwrap_or_default()
    }

    pub(super) fn sector_bytes(&self) -> u32 {
        self.device().map_or(0, |device| device.limits().sector_bytes)
    }

    /// Returns counters and free lines of the FTL in the drive or in the host.
    pub(super) fn ftl_snapshot(&mut self) -> Option<(ftl::FtlStats, f64)> {
        let host = self.device_mut().and_then(target_layers::ftl_snapshot);
        host.or_else(|| drive_ftl_snapshot(&self.drive))
    }
}

/// Returns counters and free lines of the FTL in a drive.
pub(super) fn drive_ftl_snapshot(drive: &controller::Controller) -> Option<(ftl::FtlStats, f64)> {
    drive.ftl().map(|f| (*f.stats(), f.free_lines()))
}
