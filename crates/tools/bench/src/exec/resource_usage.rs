//! [`ResourceUsage`]: resource usage of processes, as the kernel counts it (`proc(5)`).

use std::fs;
use std::ops::{Add, Sub};

use time::Nanos;

/// CPU time and context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ResourceUsage {
    /// User and system time, with the resolution of a clock tick.
    pub(super) cpu: Nanos,
    /// Number of times that a thread has gone to sleep.
    pub(super) sleeps: u64,
}

impl Add for ResourceUsage {
    type Output = ResourceUsage;

    fn add(self, other: ResourceUsage) -> ResourceUsage {
        ResourceUsage { cpu: self.cpu + other.cpu, sleeps: self.sleeps + other.sleeps }
    }
}

impl Sub for ResourceUsage {
    type Output = ResourceUsage;

    fn sub(self, before: ResourceUsage) -> ResourceUsage {
        let sleeps = self.sleeps.saturating_sub(before.sleeps);
        ResourceUsage { cpu: self.cpu.since(before.cpu), sleeps }
    }
}

/// Indices of the fields user and system in `/proc/PID/stat`, counted after the name.
const OWN: [usize; 2] = [11, 12];
const CHILDREN: [usize; 2] = [13, 14];

fn ticks(stat: &str, fields: [usize; 2]) -> Nanos {
    // The name may contain spaces and brackets.
    let behind = stat.rfind(')').map_or("", |at| &stat[at + 1..]);
    let words: Vec<&str> = behind.split_ascii_whitespace().collect();
    let sum: u64 = fields.iter().filter_map(|i| words.get(*i)?.parse::<u64>().ok()).sum();
    Nanos(sum * (1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)))
}

/// Returns the sum over these processes; a process that has ended counts as zero.
pub(super) fn usage_of(processes: &[u32]) -> ResourceUsage {
    processes.iter().map(|process| process_usage(*process)).fold(ResourceUsage::default(), Add::add)
}

fn process_usage(process: u32) -> ResourceUsage {
    let dir = format!("/proc/{process}");
    let stat = fs::read_to_string(format!("{dir}/stat")).unwrap_or_default();
    let threads = fs::read_dir(format!("{dir}/task")).into_iter().flatten().flatten();
    let switches = threads.map(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0)
    });
    ResourceUsage { cpu: ticks(&stat, OWN), sleeps: switches.sum() }
}

/// Returns the CPU time of this process's descendants that have ended and been waited for.
pub(super) fn children_cpu_time() -> Nanos {
    ticks(&fs::read_to_string("/proc/self/stat").unwrap_or_default(), CHILDREN)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_name_with_brackets_is_no_field() {
        let stat = "7 (a ) b (c) S 1 2 3 4 5 6 7 8 9 10 30 12 5 6 0";
        assert_eq!(ticks(stat, OWN).0 * 12, ticks(stat, [12, 12]).0 / 2 * 42);
        assert_eq!(ticks(stat, CHILDREN).0 * 42, ticks(stat, OWN).0 * 11);
        assert_eq!(ticks("", OWN), Nanos::ZERO);
    }

    #[test]
    fn work_and_sleep_are_counted() {
        let own = [std::process::id()];
        let before = usage_of(&own);
        let begin = Instant::now();
        while (usage_of(&own) - before).cpu < Nanos::from_millis(30) {
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
        std::thread::sleep(Duration::from_millis(1));
        assert!((usage_of(&own) - before).sleeps >= 1);
        assert_eq!(usage_of(&[u32::MAX]), ResourceUsage::default());
        let before = children_cpu_time();
        let mut work = Command::new("sh");
        let done = work.args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"]).status();
        assert!(done.unwrap().success() && children_cpu_time() > before);
    }
}
