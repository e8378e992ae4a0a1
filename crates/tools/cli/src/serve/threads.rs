//! [`Layout`]: the distribution of paths and drives over threads; and the thread of a drive.

use std::io;
use std::thread::{self, Builder, JoinHandle};

use block::notify::{CompletionMethod, CompletionPolicy};
use event::{IdlePolicy, RealRunner, StopHandle, Waker};
use stack::DriveThreadState;
use time::{Component, Nanos};

use super::ServeError;
use super::prepared::PreparedHost;

/// Distribution of the work of paths and their drives over threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threads {
    /// Each path has one server with all queues of its device. It submits on the first core's queue
    /// and polls all. The first path's server polls the drives.
    One,
    /// Each drive has a thread, and each core of a path has one with a server.
    Several,
}

impl Threads {
    /// Returns the requested distribution for `paths` paths that have drives in common, with up to
    /// `cores` cores. The default is one thread on a machine without cores for two per drive beside
    /// one for the clients, unless there are several paths or cores.
    fn choose(asked: Option<u8>, drives: usize, paths: usize, cores: usize) -> Threads {
        let machine = thread::available_parallelism().map_or(1, usize::from);
        match asked {
            Some(1) => Threads::One,
            Some(_) => Threads::Several,
            None if cores > 1 || paths > 1 || machine > 2 * drives => Threads::Several,
            None => Threads::One,
        }
    }
}

/// Distribution of paths and drives over threads. Paths that have drives in common are a group, and
/// end together.
#[derive(Debug)]
pub(super) struct Layout {
    /// Number of the group of each path: the index of its first path.
    pub(super) group_of_host: Vec<usize>,
    /// Number of the group of each drive, which no path has if the drive has none.
    pub(super) group_of_drive: Vec<usize>,
    /// Distribution of each path's group.
    pub(super) threads: Vec<Threads>,
    pub(super) idle: IdlePolicy,
}

impl Layout {
    /// Distributes the work of `hosts` over `drives` drives; `asked` is the number of threads as
    /// requested.
    pub(super) fn new(hosts: &[PreparedHost], drives: usize, asked: Option<u8>) -> Layout {
        let beneath: Vec<&[usize]> = hosts.iter().map(|host| &host.drives[..]).collect();
        let (group_of_host, group_of_drive) = groups(&beneath, drives);
        let members = |group: usize| {
            let all = group_of_host.iter().zip(hosts);
            all.filter(move |(of_host, _)| **of_host == group).map(|(_, host)| host)
        };
        let threads_of = |group: &usize| {
            let cores = members(*group).map(|host| host.device.cores()).max().unwrap_or(1);
            Threads::choose(asked, drives, members(*group).count(), cores)
        };
        let threads: Vec<Threads> = group_of_host.iter().map(threads_of).collect();
        let servers = hosts.iter().zip(&threads).map(|(host, threads)| match threads {
            Threads::One => 1,
            Threads::Several => host.device.cores(),
        });
        let servers: Vec<usize> = servers.collect();
        let machine = thread::available_parallelism().map_or(1, usize::from);
        // With fewer cores than threads, a thread that spins keeps the one that it waits for from
        // running. A drive and its only server are exempt.
        let are_pairs = servers.iter().all(|servers| *servers == 1)
            && hosts.iter().all(|host| host.drives.len() == 1)
            && (0..hosts.len()).all(|host| group_of_host[host] == host);
        let crowded = drives + servers.iter().sum::<usize>() > machine;
        let spin_time = if crowded && !are_pairs { Some(Nanos::ZERO) } else { None };
        let usual = IdlePolicy::default();
        let idle = IdlePolicy { spin_time: spin_time.unwrap_or(usual.spin_time), ..usual };
        Layout { group_of_host, group_of_drive, threads, idle }
    }

    /// Returns the path whose first server polls a drive; `None` for a drive with its own thread.
    pub(super) fn polling_host(&self, drive: usize) -> Option<usize> {
        let group = self.group_of_drive[drive];
        let host = self.group_of_host.iter().position(|of_host| *of_host == group)?;
        (self.threads[host] == Threads::One).then_some(host)
    }
}

/// Returns the policy of a server's thread that learns of completions by `completion`. The default is
/// to poll while there is work, as `hybrid`.
pub(super) fn server_idle_policy(
    completion: Option<CompletionPolicy>,
    default: IdlePolicy,
) -> IdlePolicy {
    let Some(CompletionPolicy { method, poll_interval }) = completion else { return default };
    match (method, poll_interval) {
        (CompletionMethod::Poll, None) => IdlePolicy { spin_time: Nanos::MAX, ..default },
        (CompletionMethod::Poll, Some(interval)) => {
            IdlePolicy { spin_time: Nanos::ZERO, poll_interval: interval, ..default }
        }
        (CompletionMethod::Hybrid, _) => default,
        (CompletionMethod::Interrupt | CompletionMethod::Lazy | CompletionMethod::Coop, _) => {
            IdlePolicy { spin_time: Nanos::ZERO, ..default }
        }
    }
}

/// Returns the number of the group of each path and each drive; `beneath` has the drives of each
/// path.
fn groups(beneath: &[&[usize]], drives: usize) -> (Vec<usize>, Vec<usize>) {
    let mut of_drive: Vec<usize> = (0..drives).map(|drive| beneath.len() + drive).collect();
    for (path, own) in beneath.iter().enumerate() {
        let joined: Vec<usize> = own.iter().map(|drive| of_drive[*drive]).collect();
        let first = joined.iter().copied().min().unwrap_or(path).min(path);
        for group in of_drive.iter_mut().filter(|group| joined.contains(group)) {
            *group = first;
        }
    }
    let of_path = |own: &&[usize]| own.first().map_or(0, |drive| of_drive[*drive]);
    (beneath.iter().map(of_path).collect(), of_drive)
}

/// The drives that a server polls.
#[derive(Debug, Default)]
pub(super) struct LocalDrives(pub(super) Vec<(usize, DriveThreadState)>);

impl Component for LocalDrives {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        for (_, drive) in &mut self.0 {
            moved |= drive.poll(now);
        }
        moved
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.0.iter().map(|(_, drive)| drive.deadline()).min().unwrap_or(Nanos::MAX)
    }
}

/// The drive's own thread.
#[derive(Debug)]
pub(super) struct DriveThread {
    pub(super) stopper: StopHandle,
    pub(super) handle: JoinHandle<(io::Result<()>, DriveThreadState)>,
}

impl DriveThread {
    /// # Errors
    /// [`ServeError::Threads`].
    pub(super) fn start(
        name: &str,
        runner: RealRunner,
        mut live: DriveThreadState,
        bell: ExitNotifier,
    ) -> Result<DriveThread, ServeError> {
        let stopper = runner.stop_handle();
        let handle = Builder::new().name(format!("drive {name}")).spawn(move || {
            let _bell = bell;
            let result = runner.run(&mut live);
            (result, live)
        });
        Ok(DriveThread { stopper, handle: handle.map_err(ServeError::Threads)? })
    }
}

/// Wakes the waker when a thread ends, in any way.
#[derive(Debug)]
pub(super) struct ExitNotifier(pub(super) Waker);

impl Drop for ExitNotifier {
    fn drop(&mut self) {
        self.0.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_common_drives_are_a_group() {
        // Two paths over drive 0; a set of 1 and 2; a path over 2 that joins the set; 3 alone; 4
        // without a path.
        let (paths, drives) = groups(&[&[0], &[1, 2], &[0], &[3], &[2]], 5);
        assert_eq!(paths, [0, 1, 0, 3, 1]);
        assert_eq!(drives, [0, 1, 1, 3, 9]);
        // A later path joins two groups.
        let (paths, drives) = groups(&[&[0], &[1], &[1, 0]], 2);
        assert_eq!(paths, [0, 0, 0]);
        assert_eq!(drives, [0, 0]);
    }
}
