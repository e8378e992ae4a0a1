//! [`Tasks`]: context switches and CPU time of the host's threads, from `/proc/self/task`.
//!
//! `getrusage` counts the complete process, including the controller's thread, which stands for
//! other hardware.

use std::fs;
use std::io;

use event::RealClock;
use time::Nanos;

/// Sums over the threads of this process, without the excluded ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Context switches because the thread had nothing to do.
    pub voluntary: u64,
    /// Context switches because another thread was scheduled.
    pub involuntary: u64,
    /// CPU time.
    pub cpu: Nanos,
    /// Time in the middle of the reading; for a difference, the time between.
    pub time: Nanos,
}

impl Tasks {
    /// Returns the sums so far, without the threads `except`.
    ///
    /// # Errors
    /// If `/proc` does not provide them.
    pub fn read(clock: RealClock, except: &[u32]) -> io::Result<Tasks> {
        let (mut tasks, begin) = (Tasks::default(), clock.now());
        for entry in fs::read_dir("/proc/self/task")? {
            let entry = entry?;
            let id = entry.file_name().to_str().and_then(|id| id.parse().ok());
            if id.is_some_and(|id: u32| except.contains(&id)) {
                continue;
            }
            // A thread may have ended meanwhile.
            let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
            for line in status.lines() {
                let Some((key, value)) = line.split_once(':') else { continue };
                let into = match key {
                    "voluntary_ctxt_switches" => &mut tasks.voluntary,
                    "nonvoluntary_ctxt_switches" => &mut tasks.involuntary,
                    _ => continue,
                };
                *into += value.trim().parse::<u64>().unwrap_or(0);
            }
            // On a kernel without schedstats, CPU time is unknown.
            if let Ok(time) = fs::read_to_string(entry.path().join("schedstat")) {
                let on_cpu = time.split(' ').next().and_then(|ns| ns.parse().ok());
                tasks.cpu += Nanos(on_cpu.unwrap_or(0));
            }
        }
        tasks.time = Nanos((begin.0 + clock.now().0) / 2);
        Ok(tasks)
    }

    /// Returns the difference to `before`.
    #[must_use]
    pub fn since(self, before: Tasks) -> Tasks {
        Tasks {
            voluntary: self.voluntary.saturating_sub(before.voluntary),
            involuntary: self.involuntary.saturating_sub(before.involuntary),
            cpu: self.cpu.since(before.cpu),
            time: self.time.since(before.time),
        }
    }

    /// Returns the context switches of both kinds.
    pub fn switches(&self) -> u64 {
        self.voluntary + self.involuntary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_switches() {
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let clock = RealClock::start();
        let before = Tasks::read(clock, &[]).unwrap();
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let after = Tasks::read(clock, &[]).unwrap().since(before);
        assert!(after.voluntary >= 20 && after.switches() >= after.voluntary, "{after:?}");
        let others = Tasks::read(clock, &[me]).unwrap();
        assert!(others.voluntary + 20 <= Tasks::read(clock, &[]).unwrap().voluntary);
    }
}
