//! [`Lane`]: a drive with its jobs, during the run.

use block::Device;
use clock::{Component, Nanos};
use workload::Host;

use crate::stack::steady::SteadyResult;
use crate::stack::{ShardCounts, StackDevice};

/// A drive with its jobs, during the run.
pub(super) struct Lane {
    /// The number of the drive, for tracepoints.
    pub(super) index: u16,
    pub(super) name: String,
    pub(super) drive: drive::Drive,
    pub(super) host: Option<Host<StackDevice>>,
    /// The device of a drive without jobs.
    pub(super) idle: Option<StackDevice>,
    pub(super) ftl_before: Option<ftl::FtlStats>,
    pub(super) media_before: Option<media::MediaStats>,
    pub(super) shards_before: Vec<ShardCounts>,
    /// Whether what it holds is to be on its image in the end.
    pub(super) keeps_image: bool,
    pub(super) steady: Option<SteadyResult>,
}

impl Component for Lane {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        tracepoint::enter(self.index);
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

impl Lane {
    pub(super) fn done(&self) -> bool {
        self.host.as_ref().is_none_or(Host::done)
    }

    pub(super) fn device(&self) -> Option<&StackDevice> {
        self.host.as_ref().map(Host::device).or(self.idle.as_ref())
    }

    pub(super) fn device_mut(&mut self) -> Option<&mut StackDevice> {
        match &mut self.host {
            Some(host) => Some(host.device_mut()),
            None => self.idle.as_mut(),
        }
    }

    /// The names of its jobs, clones counted one by one.
    pub(super) fn job_names(&self) -> Vec<String> {
        self.host
            .as_ref()
            .map(|host| host.job_names().map(str::to_owned).collect())
            .unwrap_or_default()
    }

    pub(super) fn sector_bytes(&self) -> u32 {
        self.device().map_or(0, |device| device.limits().sector_bytes)
    }

    /// Counters and free lines of the translation layer, on whichever side it runs.
    pub(super) fn ftl_view(&self) -> Option<(ftl::FtlStats, f64)> {
        ftl_view(self.device(), &self.drive)
    }
}

pub(super) fn ftl_view(
    device: Option<&StackDevice>,
    drive: &drive::Drive,
) -> Option<(ftl::FtlStats, f64)> {
    let host = device.and_then(StackDevice::ftl_view);
    host.or_else(|| drive.ftl().map(|f| (*f.stats(), f.free_lines())))
}
