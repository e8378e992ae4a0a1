//! [`SimRun`]: the drives and paths of a scenario during the run.

use block::{BlockDevice, MemberSchedule, Request};
use collections::MinTree;
use kv::{Kv, KvRequest};
use pblk::TargetRuleStats;
use stack::steady_state::SteadyResult;
use stack::{
    CoreQueues, EmulatedDevice, JobTarget, PathDevice, ShardCounts, SimulatedDevice, target_layers,
};
use time::{Component, Nanos};
use workload::{
    IoCpuCosts, JobRunner, JobSpec, KeyValueDevice, ParallelUnits, RunError, RunResult,
};

use crate::hosted::HostedPath;

/// Maximum number of polls of device and drives for a flush.
const FLUSH_POLL_LIMIT: u32 = 10_000_000;

/// A drive during the run.
pub(super) struct DriveRun {
    pub(super) name: String,
    /// Index of its device.
    pub(super) device: usize,
    /// Its port, if the device is an AHCI controller.
    pub(super) port: Option<usize>,
    pub(super) media_before: Option<media::MediaStats>,
    pub(super) ftl_before: Option<ftl::FtlStats>,
}

/// A path with its jobs during the run.
pub(super) struct PathRun {
    pub(super) name: String,
    /// Indices of its drives; the first is the one of its tracepoints.
    pub(super) drives: Vec<usize>,
    pub(super) host: Option<PathJobRunner>,
    /// Device of a path without jobs.
    pub(super) idle: Option<JobTarget>,
    pub(super) ftl_before: Option<ftl::FtlStats>,
    pub(super) shards_before: Vec<ShardCounts>,
    pub(super) rules_before: Vec<TargetRuleStats>,
    pub(super) steady: Option<SteadyResult>,
    /// Names of the jobs that run on a modeled machine.
    pub(super) hosted_names: Vec<String>,
    /// The path, while a modeled machine runs the jobs.
    pub(super) hosted: Option<HostedPath>,
    /// Results of jobs that ran on a modeled machine.
    pub(super) result: Option<RunResult>,
    /// The schedule of the members, if the path is over a set.
    members: Option<MemberSchedule>,
}

/// The jobs of a path, on blocks, on keys or on parallel units.
pub(super) enum PathJobRunner {
    Blocks(Box<JobRunner<CoreQueues>>),
    Keys(Box<JobRunner<KeyValueDevice>>),
    Units(Box<JobRunner<ParallelUnits>>),
}

/// Calls a method of the runner of any kind.
macro_rules! with_runner {
    ($host:expr, $runner:ident => $call:expr) => {
        match $host {
            PathJobRunner::Blocks($runner) => $call,
            PathJobRunner::Keys($runner) => $call,
            PathJobRunner::Units($runner) => $call,
        }
    };
}

impl PathJobRunner {
    /// Prepares jobs on a device.
    pub(super) fn new(
        device: JobTarget,
        jobs: Vec<JobSpec>,
        costs: IoCpuCosts,
        seed: u64,
    ) -> Result<PathJobRunner, RunError> {
        Ok(match device {
            JobTarget::Blocks(device) => {
                PathJobRunner::Blocks(Box::new(JobRunner::new(device, jobs, costs, seed)?))
            }
            JobTarget::Keys(device) => {
                PathJobRunner::Keys(Box::new(JobRunner::new(*device, jobs, costs, seed)?))
            }
            JobTarget::Units(device) => {
                PathJobRunner::Units(Box::new(JobRunner::new(*device, jobs, costs, seed)?))
            }
        })
    }

    pub(super) fn open_logs(&mut self, first: usize) -> Result<usize, RunError> {
        with_runner!(self, runner => runner.open_logs(first))
    }

    pub(super) fn progress(&self) -> f64 {
        with_runner!(self, runner => runner.progress())
    }

    pub(super) fn stop(&mut self) {
        with_runner!(self, runner => runner.stop());
    }

    pub(super) fn finish(self) -> Result<RunResult, RunError> {
        with_runner!(self, runner => runner.finish())
    }
}

/// The drives and paths of a scenario during the run.
pub(super) struct SimRun {
    pub(super) devices: Vec<EmulatedDevice>,
    pub(super) drives: Vec<DriveRun>,
    pub(super) paths: Vec<PathRun>,
    /// Number of polls of paths and devices.
    pub(super) polls: u64,
    schedule: PollSchedule,
    /// Number of paths at the front of `paths` that are done.
    done: usize,
    /// By path: the drive that it alone uses, if it uses one.
    own_drives: Vec<Option<usize>>,
    /// By drive: the path that has the drive alone.
    own_paths: Vec<Option<usize>>,
}

/// Index of a path, or of a device with that of its first drive.
#[derive(Clone, Copy)]
enum Polled {
    Path(usize),
    Device { device: usize, drive: usize },
}

/// Number of paths and devices up to which all of them are polled at each step: one of each.
///
/// Counters of attempts (`no_tag`) depend on the number of polls, and so do the recorded results of
/// one drive.
const ALWAYS_POLLED_MAX: usize = 2;

/// Which paths and devices must be polled, and when.
///
/// A component is polled at its deadline, a device after progress of a path over it, and a path after
/// its own progress and after a device posted something. Other polls would find nothing, because a
/// path and a device share only the queues between them. Of a path over a set, only the members that
/// the device concerns are polled, and progress concerns only the devices of the members that made
/// it ([`MemberSchedule`]). A step therefore costs no more with more drives, but for the search in
/// `ready`.
struct PollSchedule {
    /// The order of polling: the paths of each device, then the device. A path over several drives
    /// is among those of the first.
    order: Vec<Polled>,
    /// By index in `order`: the devices of a path, or the paths over a device.
    peers: Vec<Vec<usize>>,
    /// By device: its index in `order`.
    devices: Vec<usize>,
    /// By index in `order`: the time of the next poll; [`Nanos::ZERO`] if it is due.
    ready: MinTree<Nanos>,
}

impl PollSchedule {
    /// Returns the schedule in which everything is to be polled. `devices` has the devices of each
    /// path.
    fn new(order: Vec<Polled>, devices: &[Vec<usize>]) -> PollSchedule {
        let is_peer = |polled: &Polled, other: &Polled| match (*polled, *other) {
            (Polled::Path(path), Polled::Device { device, .. })
            | (Polled::Device { device, .. }, Polled::Path(path)) => {
                devices[path].contains(&device)
            }
            _ => false,
        };
        let peers_of = |polled: &Polled| {
            let others = order.iter().enumerate().filter(|(_, other)| is_peer(polled, other));
            others.map(|(index, _)| index).collect()
        };
        let peers = order.iter().map(peers_of).collect();
        let ready = MinTree::with_len(order.len(), Nanos::MAX);
        let count = order.iter().filter(|polled| matches!(polled, Polled::Device { .. })).count();
        let mut index_of = vec![0; count];
        for (index, polled) in order.iter().enumerate() {
            if let Polled::Device { device, .. } = polled {
                index_of[*device] = index;
            }
        }
        let mut schedule = PollSchedule { order, peers, devices: index_of, ready };
        schedule.wake_all();
        schedule
    }

    fn wake_all(&mut self) {
        (0..self.order.len()).for_each(|index| self.ready.set(index, Nanos::ZERO));
    }

    /// Has the peers of the component at `index` polled, which may find something new.
    #[inline]
    fn wake_peers(&mut self, index: usize, paths: &[PathRun]) {
        let members_of = |path: usize| paths[path].members.as_ref();
        match self.order[index] {
            Polled::Path(path) if let Some(members) = members_of(path) => {
                members.drain_touched(|device| self.ready.set(self.devices[device], Nanos::ZERO));
            }
            Polled::Path(_) => {
                self.peers[index].iter().for_each(|peer| self.ready.set(*peer, Nanos::ZERO));
            }
            Polled::Device { device, .. } => {
                for peer in &self.peers[index] {
                    self.ready.set(*peer, Nanos::ZERO);
                    if let Polled::Path(path) = self.order[*peer]
                        && let Some(members) = members_of(path)
                    {
                        members.wake_device(device);
                    }
                }
            }
        }
    }
}

impl Component for SimRun {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let (mut any_moved, mut from) = (false, 0);
        let count = self.schedule.order.len();
        if count <= ALWAYS_POLLED_MAX {
            self.wake_all();
        }
        while let Some(index) = self.schedule.ready.first_at_most(from, count, now) {
            let (moved, next, has_news) = match self.schedule.order[index] {
                Polled::Path(i) => {
                    let path = &mut self.paths[i];
                    tracepoint::set_path(path.drives[0] as u16, i as u16);
                    let moved = path.poll(now);
                    (moved, if moved { Nanos::ZERO } else { path.deadline() }, moved)
                }
                Polled::Device { device, drive } => {
                    tracepoint::set_drive(drive as u16);
                    let device = &mut self.devices[device];
                    let posted = device.posted();
                    let moved = device.poll(now);
                    // A poll of an NVMe drive does all that is possible.
                    let settles = matches!(device, EmulatedDevice::Nvme(_));
                    let next = if moved && !settles { Nanos::ZERO } else { device.deadline() };
                    (moved, next, device.posted() != posted)
                }
            };
            self.schedule.ready.set(index, next);
            if has_news {
                self.schedule.wake_peers(index, &self.paths);
            }
            self.polls += 1;
            any_moved |= moved;
            from = index + 1;
        }
        any_moved
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.schedule.ready.min()
    }
}

impl PathRun {
    /// Returns the path before its jobs are prepared.
    pub(super) fn new(path: PathDevice) -> PathRun {
        let PathDevice { name, drives, mut device, steady, schedule, .. } = path;
        PathRun {
            name,
            drives,
            host: None,
            ftl_before: None,
            shards_before: match &mut device {
                JobTarget::Blocks(device) => target_layers::shard_counts(device),
                JobTarget::Keys(_) | JobTarget::Units(_) => Vec::new(),
            },
            rules_before: match &mut device {
                JobTarget::Blocks(device) => target_layers::rule_stats(device),
                JobTarget::Keys(_) | JobTarget::Units(_) => Vec::new(),
            },
            idle: Some(device),
            steady,
            hosted_names: Vec::new(),
            hosted: None,
            result: None,
            members: schedule,
        }
    }

    /// Has all members of a set polled at each poll: no schedule is told of their devices.
    pub(super) fn poll_all_members(&self) {
        self.members.iter().for_each(MemberSchedule::deactivate);
    }

    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let Some(host) = &mut self.host else { return false };
        with_runner!(host, runner => runner.poll(now))
    }

    fn deadline(&self) -> Nanos {
        let Some(host) = &self.host else { return Nanos::MAX };
        with_runner!(host, runner => runner.deadline())
    }

    fn is_done(&self) -> bool {
        self.host.as_ref().is_none_or(|host| with_runner!(host, runner => runner.is_done()))
    }

    /// Returns the block device; `None` for keys and parallel units.
    pub(super) fn device(&self) -> Option<&CoreQueues> {
        match (&self.host, &self.idle) {
            (Some(PathJobRunner::Blocks(host)), _) => Some(host.device()),
            (None, Some(JobTarget::Blocks(device))) => Some(device),
            _ => None,
        }
    }

    /// Returns mutable access to the block device; `None` for keys and parallel units.
    pub(super) fn device_mut(&mut self) -> Option<&mut CoreQueues> {
        match (&mut self.host, &mut self.idle) {
            (Some(PathJobRunner::Blocks(host)), _) => Some(host.device_mut()),
            (None, Some(JobTarget::Blocks(device))) => Some(device),
            _ => None,
        }
    }

    /// Returns the key-value target; `None` for other devices.
    pub(super) fn keys(&mut self) -> Option<&mut Kv> {
        match (&mut self.host, &mut self.idle) {
            (Some(PathJobRunner::Keys(host)), _) => Some(host.device_mut().kv_mut()),
            (None, Some(JobTarget::Keys(device))) => Some(device.kv_mut()),
            _ => None,
        }
    }

    /// Returns the names of the jobs, with clones counted one by one.
    pub(super) fn job_names(&self) -> Vec<String> {
        let Some(host) = &self.host else { return self.hosted_names.clone() };
        with_runner!(host, runner => runner.job_names().map(str::to_owned).collect())
    }

    pub(super) fn sector_bytes(&self) -> u32 {
        self.device().map_or(0, |device| device.limits().sector_bytes)
    }
}

impl SimRun {
    /// Returns the run of devices and paths, from whose present state counters count. `drives` has
    /// the name of each drive and the index of its device. Each path has a drive at least.
    pub(super) fn new(
        devices: Vec<EmulatedDevice>,
        drives: impl Iterator<Item = (String, usize)>,
        paths: Vec<PathRun>,
    ) -> SimRun {
        let mut ports = vec![0; devices.len()];
        let drive = |(name, device): (String, usize)| {
            let nvme = devices[device].nvme();
            let port = ports[device];
            ports[device] += 1;
            DriveRun {
                name,
                device,
                port: nvme.is_none().then_some(port),
                media_before: nvme.and_then(|drive| drive.stats().media),
                ftl_before: devices[device].ftl().map(|ftl| *ftl.stats()),
            }
        };
        let drives: Vec<DriveRun> = drives.map(drive).collect();
        let mut users = vec![Vec::new(); drives.len()];
        for (index, path) in paths.iter().enumerate() {
            path.drives.iter().for_each(|drive| users[*drive].push(index));
        }
        let mut order = Vec::with_capacity(drives.len() + paths.len());
        for (drive, of_drive) in users.iter().enumerate() {
            let first = of_drive.iter().filter(|path| paths[**path].drives[0] == drive);
            order.extend(first.map(|path| Polled::Path(*path)));
            let device = drives[drive].device;
            if drives[drive + 1..].iter().all(|later| later.device != device) {
                let drive = drives.iter().position(|other| other.device == device);
                order.push(Polled::Device { device, drive: drive.unwrap_or(0) });
            }
        }
        let own_drive = |path: &PathRun| match path.drives[..] {
            [drive] if users[drive].len() == 1 => Some(drive),
            _ => None,
        };
        let own_drives: Vec<Option<usize>> = paths.iter().map(own_drive).collect();
        let own_path = |users: &Vec<usize>| match users[..] {
            [path] => own_drives[path].map(|_| path),
            _ => None,
        };
        let own_paths = users.iter().map(own_path).collect();
        let devices_of = |path: &PathRun| path.drives.iter().map(|i| drives[*i].device).collect();
        let devices_of: Vec<Vec<usize>> = paths.iter().map(devices_of).collect();
        let schedule = PollSchedule::new(order, &devices_of);
        let mut run =
            SimRun { devices, drives, paths, polls: 0, schedule, done: 0, own_drives, own_paths };
        run.paths
            .iter()
            .filter_map(|path| path.members.as_ref())
            .for_each(MemberSchedule::activate);
        for path in 0..run.paths.len() {
            let before = run.ftl_snapshot(path).map(|(stats, _)| stats);
            run.paths[path].ftl_before = before;
        }
        run
    }

    /// Returns the device of a drive.
    pub(super) fn device_of(&self, drive: usize) -> &EmulatedDevice {
        &self.devices[self.drives[drive].device]
    }

    /// Returns the indices of the paths whose first drive is `drive`.
    pub(super) fn paths_of(&self, drive: usize) -> impl Iterator<Item = usize> {
        (0..self.paths.len()).filter(move |path| self.paths[*path].drives[0] == drive)
    }

    /// Returns the names of the jobs on a drive as those of path `on` name them: with the path in
    /// front where it is another one. The order is that of [`Explainer::with_paths`].
    ///
    /// [`Explainer::with_paths`]: report::explain::Explainer::with_paths
    pub(super) fn job_names(&self, drive: usize, on: usize) -> Vec<String> {
        let of_path = |path: usize| {
            let PathRun { name, .. } = &self.paths[path];
            let named = move |job| if path == on { job } else { format!("{name}: {job}") };
            self.paths[path].job_names().into_iter().map(named)
        };
        self.paths_of(drive).flat_map(of_path).collect()
    }

    /// Returns the index of the path that has a drive alone.
    pub(super) fn path_of(&self, drive: usize) -> Option<usize> {
        self.own_paths[drive]
    }

    /// Returns counters and free lines of the FTL of a path: in the host, or in the drive that only
    /// this path uses.
    pub(super) fn ftl_snapshot(&mut self, path: usize) -> Option<(ftl::FtlStats, f64)> {
        let of_path = &mut self.paths[path];
        let host = match &of_path.hosted {
            Some(hosted) => hosted.ftl_snapshot(),
            None => of_path.device_mut().and_then(target_layers::ftl_snapshot),
        };
        host.or_else(|| drive_ftl_snapshot(self.device_of(self.own_drives[path]?)))
    }

    /// Returns whether the jobs of all paths have ended.
    pub(super) fn is_done(&mut self) -> bool {
        while self.paths.get(self.done).is_some_and(PathRun::is_done) {
            self.done += 1;
        }
        self.done == self.paths.len()
    }

    /// Returns the progress of the path that is behind all others, from 0 to 1.
    pub(super) fn progress(&mut self) -> f64 {
        self.hosts().map(|host| host.progress()).fold(1.0, f64::min)
    }

    /// Has everything polled, after a change from outside of the run.
    pub(super) fn wake_all(&mut self) {
        self.paths
            .iter()
            .filter_map(|path| path.members.as_ref())
            .for_each(MemberSchedule::wake_all);
        self.schedule.wake_all();
    }

    /// Returns the jobs of all paths.
    pub(super) fn hosts(&mut self) -> impl Iterator<Item = &mut PathJobRunner> {
        self.paths.iter_mut().filter_map(|path| path.host.as_mut())
    }

    /// Flushes a path, and makes an FTL in the host write a checkpoint, without advancing the time
    /// of the run. Nothing may be outstanding. The members of a set are polled at every poll from
    /// then on.
    pub(super) fn flush(&mut self, path: usize, mut now: Nanos) {
        let SimRun { devices: drives, paths, drives: named, .. } = self;
        let path = &mut paths[path];
        path.poll_all_members();
        let of_path: Vec<usize> = path.drives.iter().map(|drive| named[*drive].device).collect();
        let zero_latency = |drives: &mut [EmulatedDevice], on| {
            of_path.iter().for_each(|drive| drives[*drive].set_zero_latency(on));
        };
        let poll = |drives: &mut [EmulatedDevice], now| {
            of_path.iter().fold(false, |moved, i| drives[*i].poll(now) | moved)
        };
        if let Some(kv) = path.keys() {
            zero_latency(drives, true);
            // Its requests have been reaped, so that it takes one.
            let mut left = kv.submit(now, KvRequest::sync(u64::MAX)).is_ok();
            while left && (kv.poll(now) | poll(drives, now)) {
                left = kv.reap().is_none();
            }
            return zero_latency(drives, false);
        }
        let Some(device) = path.device_mut() else { return };
        zero_latency(drives, true);
        // A device that is full of its own requests accepts the flush when those have completed.
        let mut submitted = false;
        for _ in 0..FLUSH_POLL_LIMIT {
            submitted = submitted || device.submit(now, Request::flush(u64::MAX)).is_ok();
            let moved = device.poll(now) | poll(drives, now);
            if device.reap().is_some() {
                break;
            }
            let due = of_path.iter().map(|i| drives[*i].deadline()).min();
            match due.unwrap_or(Nanos::MAX).min(device.deadline()) {
                _ if moved => {}
                Nanos::MAX => break,
                due => now = now.max(due),
            }
        }
        target_layers::begin_checkpoint(device);
        while target_layers::is_checkpointing(device) && (device.poll(now) | poll(drives, now)) {}
        zero_latency(drives, false);
    }
}

/// Returns counters and free lines of the FTL in a drive.
pub(super) fn drive_ftl_snapshot(drive: &impl SimulatedDevice) -> Option<(ftl::FtlStats, f64)> {
    drive.ftl().map(|f| (*f.stats(), f.free_lines()))
}
