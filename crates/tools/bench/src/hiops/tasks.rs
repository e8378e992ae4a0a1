//! [`Tasks`]: context switches and CPU time of the host's threads, from `/proc/self/task`.
//!
//! `getrusage` counts the complete process, including the controller's thread, which stands for
//! other hardware.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use event::RealClock;
use time::Nanos;

/// Counters of the threads of this process, without the excluded ones, at one time.
///
/// The counters of a thread end with it: sums over all threads can fall, differences per thread
/// cannot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Counters by thread ID.
    threads: BTreeMap<u32, TaskCounters>,
    /// Time in the middle of the reading.
    time: Nanos,
}

/// Counters of a thread, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounters {
    /// Context switches because the thread had nothing to do.
    pub voluntary: u64,
    /// Context switches because another thread was scheduled.
    pub involuntary: u64,
    /// CPU time.
    pub cpu: Nanos,
}

/// Counters of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskInterval {
    /// The sum over threads of what was added.
    pub added: TaskCounters,
    /// Its length.
    pub time: Nanos,
}

impl Tasks {
    /// Returns the counters so far, without those of the threads `except`.
    ///
    /// # Errors
    /// If `/proc` does not provide them.
    pub fn read(clock: RealClock, except: &[u32]) -> io::Result<Tasks> {
        let (mut threads, begin) = (BTreeMap::new(), clock.now());
        for entry in fs::read_dir("/proc/self/task")? {
            let entry = entry?;
            let Some(id) = entry.file_name().to_str().and_then(|id| id.parse().ok()) else {
                continue;
            };
            if except.contains(&id) {
                continue;
            }
            // A thread may have ended meanwhile.
            let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
            let schedstat = fs::read_to_string(entry.path().join("schedstat")).ok();
            threads.insert(id, TaskCounters::parse(&status, schedstat.as_deref()));
        }
        Ok(Tasks { threads, time: Nanos((begin.0 + clock.now().0) / 2) })
    }

    /// Returns the interval since `before`.
    ///
    /// A thread that began meanwhile counts in full, one that ended meanwhile not at all.
    #[must_use]
    pub fn since(&self, before: &Tasks) -> TaskInterval {
        let mut added = TaskCounters::default();
        for (id, now) in &self.threads {
            let old = before.threads.get(id).copied().unwrap_or_default();
            // A thread with the ID of one that ended starts at zero.
            added.voluntary += now.voluntary.saturating_sub(old.voluntary);
            added.involuntary += now.involuntary.saturating_sub(old.involuntary);
            added.cpu += now.cpu.since(old.cpu);
        }
        TaskInterval { added, time: self.time.since(before.time) }
    }
}

impl TaskCounters {
    /// Returns the context switches of both kinds.
    pub fn switches(&self) -> u64 {
        self.voluntary + self.involuntary
    }

    /// Reads the contents of `status` and `schedstat`. On a kernel without the latter, CPU time is
    /// unknown, and 0.
    fn parse(status: &str, schedstat: Option<&str>) -> TaskCounters {
        let count = |key: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(key))?;
            value.strip_prefix(':')?.trim().parse().ok()
        };
        let on_cpu = schedstat.and_then(|stat| stat.split(' ').next()?.parse().ok());
        TaskCounters {
            voluntary: count("voluntary_ctxt_switches").unwrap_or(0),
            involuntary: count("nonvoluntary_ctxt_switches").unwrap_or(0),
            cpu: Nanos(on_cpu.unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks<const N: usize>(time: u64, threads: [(u32, u64, u64); N]) -> Tasks {
        let counters = |(id, voluntary, cpu)| {
            (id, TaskCounters { voluntary, involuntary: 1, cpu: Nanos(cpu) })
        };
        Tasks { threads: threads.into_iter().map(counters).collect(), time: Nanos(time) }
    }

    #[test]
    fn a_thread_that_sleeps_switches() {
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let clock = RealClock::start();
        let before = Tasks::read(clock, &[]).unwrap();
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let after = Tasks::read(clock, &[]).unwrap();
        let TaskInterval { added, time } = after.since(&before);
        assert!(added.voluntary >= 20 && added.switches() >= added.voluntary, "{added:?}");
        assert!(time >= Nanos::from_millis(20));
        let others = Tasks::read(clock, &[me]).unwrap();
        assert!(after.threads.contains_key(&me) && !others.threads.contains_key(&me));
    }

    #[test]
    fn a_thread_that_ends_takes_nothing_from_the_others() {
        let before = tasks(100, [(1, 5, 40), (2, 1_000, 9_000)]);
        let after = tasks(400, [(1, 25, 70), (3, 2, 5)]);
        let added = TaskCounters { voluntary: 22, involuntary: 1, cpu: Nanos(35) };
        assert_eq!(after.since(&before), TaskInterval { added, time: Nanos(300) });
    }

    #[test]
    fn counters_are_read_from_both_files() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t49\nnonvoluntary_ctxt_switches:\t2\n";
        let read = TaskCounters::parse(status, Some("63129618 282279 52\n"));
        let expected = TaskCounters { voluntary: 49, involuntary: 2, cpu: Nanos(63_129_618) };
        assert_eq!(read, expected);
        assert_eq!(
            TaskCounters::parse(status, None),
            TaskCounters { cpu: Nanos::ZERO, ..expected }
        );
        assert_eq!(TaskCounters::parse("", Some("")), TaskCounters::default());
    }
}
