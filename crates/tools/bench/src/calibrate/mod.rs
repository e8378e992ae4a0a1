//! Calibration (`sluice calibrate`): measures the costs of this machine, and judges whether it
//! keeps up with a drive in real time.
//!
//! Costs are medians unless stated otherwise. Other programs on the machine affect the 99th
//! percentiles and the longest stall, but not the values for a scenario.

pub mod copies;
pub mod drive_run;
pub mod kept_machine;
pub mod machine_model;
pub mod queue;
pub mod report;
pub mod socket;
#[cfg(test)]
mod tests;
pub mod threads;
pub mod verdict;

use event::AllowedCpus;
use time::Nanos;

use crate::{BenchError, RunLength};

pub use copies::CopyCosts;
pub use kept_machine::{KeptMachine, KeptMachineError};
pub use queue::QueueCosts;
pub use socket::{RoundTrip, SocketCosts};
pub use threads::ThreadCosts;
pub use verdict::{CommandCpu, DriveCost, DriveVerdict, Feasibility, MeasuredDrive};

/// Costs of this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineCosts {
    /// Number of CPUs that this process may use.
    pub cpus: usize,
    /// Load average of the last minute before the measurement: threads that wanted a CPU. `None` if
    /// the system does not provide it.
    pub load: Option<f64>,
    /// Clock reads, wake-ups, sleeps and stalls.
    pub threads: ThreadCosts,
    /// A queue pair in process.
    pub queue: QueueCosts,
    /// Copying 4 KiB.
    pub copies: CopyCosts,
    /// A request and its reply over a Unix socket.
    pub socket: SocketCosts,
}

/// CPU time of the host per I/O: `[host]` of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCpuCosts {
    /// From the job's decision to the doorbell.
    pub submit: Nanos,
    /// From the completion entry to the job.
    pub complete: Nanos,
}

impl MachineCosts {
    /// Measures this machine; takes a few seconds with [`RunLength::Full`].
    ///
    /// # Errors
    /// [`BenchError`] if the system refuses memory, sockets or threads.
    pub fn measure(effort: RunLength) -> Result<MachineCosts, BenchError> {
        let cores = AllowedCpus::allowed();
        let load = load_average();
        let threads = threads::measure(effort, &cores)?;
        Ok(MachineCosts {
            cpus: cores.count(),
            load,
            threads,
            queue: queue::measure(effort, &cores)?,
            copies: copies::measure(effort, &cores)?,
            socket: socket::measure(effort, &cores)?,
        })
    }

    /// Returns whether other programs used half of the CPUs or more. If so, the costs are those of
    /// a busy machine.
    pub fn is_busy(&self) -> bool {
        self.load.is_some_and(|load| 2.0 * load >= self.cpus as f64)
    }

    /// Returns the host's CPU time per I/O on a queue pair in process.
    pub fn in_process(&self) -> HostCpuCosts {
        HostCpuCosts { submit: self.queue.submit.p50, complete: self.queue.complete.p50 }
    }

    /// Returns the host's CPU time per I/O of an NBD client. It covers the path over the socket,
    /// including system calls and sleep, and the path over the queue pair.
    pub fn through_nbd(&self) -> HostCpuCosts {
        let (trip, queue) = (self.socket.typical(), self.in_process());
        HostCpuCosts {
            submit: trip.submit.p50 + queue.submit,
            complete: trip.complete.p50 + queue.complete,
        }
    }
}

/// Returns the first number of `/proc/loadavg`.
fn load_average() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok().filter(|load: &f64| load.is_finite())
}
