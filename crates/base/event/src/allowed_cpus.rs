//! [`AllowedCpus`]: the CPUs that this process may use, and threads pinned to them.

use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that this process may use, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedCpus {
    cpus: Vec<usize>,
}

impl AllowedCpus {
    /// Returns the CPUs that the calling thread may use now.
    pub fn allowed() -> AllowedCpus {
        let cpus = match sched_getaffinity(None) {
            Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
            // If the CPUs are unknown, threads are counted but not pinned.
            Err(_) => Vec::new(),
        };
        AllowedCpus { cpus }
    }

    /// Returns how many threads can run at the same time.
    pub fn count(&self) -> usize {
        match self.cpus.len() {
            0 => thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }

    /// Returns the id of the `nth` CPU, modulo the number of CPUs; `None` if it is unknown.
    pub fn cpu(&self, nth: usize) -> Option<usize> {
        (!self.cpus.is_empty()).then(|| self.cpus[nth % self.cpus.len()])
    }

    /// Returns whether a busy-polling host and a busy-polling drive can run at the same time.
    pub fn has_two(&self) -> bool {
        self.count() >= 2
    }

    /// Pins the calling thread to the `nth` CPU, modulo the number of CPUs. The thread stays
    /// pinned. A failure only costs precision.
    pub fn pin(&self, nth: usize) {
        if self.cpus.is_empty() {
            return;
        }
        let mut set = CpuSet::new();
        set.set(self.cpus[nth % self.cpus.len()]);
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_one_cpu() {
        let cores = AllowedCpus::allowed();
        assert!(cores.count() >= 1);
        let pinned = thread::spawn(move || {
            cores.pin(1);
            AllowedCpus::allowed().count()
        });
        assert_eq!(pinned.join().unwrap(), 1);
    }
}
