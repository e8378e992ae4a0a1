//! [`Cores`]: the CPUs that this process may use, and threads pinned to them.

use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::BenchError;

/// The CPUs that this process may use, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedCpus {
    cpus: Vec<usize>,
}

impl AllowedCpus {
    /// Those that the calling thread may use now.
    pub fn allowed() -> AllowedCpus {
        let cpus = match sched_getaffinity(None) {
            Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
            // Without an answer threads are not pinned, but still counted.
            Err(_) => Vec::new(),
        };
        AllowedCpus { cpus }
    }

    /// How many threads can run at a time.
    pub fn count(&self) -> usize {
        match self.cpus.len() {
            0 => thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }

    /// The number of the `nth` CPU, counted round the end; `None` where it is not known.
    pub fn cpu(&self, nth: usize) -> Option<usize> {
        (!self.cpus.is_empty()).then(|| self.cpus[nth % self.cpus.len()])
    }

    /// Whether a spinning host and a spinning drive can run at a time.
    pub fn has_two(&self) -> bool {
        self.count() >= 2
    }

    /// Keeps the calling thread on the `nth` CPU, counted round the end. It stays there for good, so
    /// this is for threads of a measurement. A refusal costs precision and nothing else.
    pub fn pin(&self, nth: usize) {
        if self.cpus.is_empty() {
            return;
        }
        let mut set = CpuSet::new();
        set.set(self.cpus[nth % self.cpus.len()]);
        let _ = sched_setaffinity(None, &set);
    }

    /// Runs `work` on a thread of its own on the first CPU, and waits for it: the calling thread
    /// stays free to run anywhere.
    ///
    /// # Errors
    /// When there is no thread to be had; what `work` returns.
    pub fn on_first<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, BenchError> + Send,
    ) -> Result<T, BenchError> {
        thread::scope(|scope| {
            let thread = thread::Builder::new().spawn_scoped(scope, || {
                self.pin(0);
                work()
            })?;
            thread.join().map_err(|_| BenchError::Thread("a measurement"))?
        })
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
