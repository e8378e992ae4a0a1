//! `sluice calibrate`: what this machine costs, and whether it keeps up with a drive in real time.
//!
//! | file | noun |
//! |---|---|
//! | [`queue`] | submit, complete, poll: a queue pair in process |
//! | [`threads`] | reading the clock, waking, sleeping, not being run |
//! | [`copies`] | copying 4 KiB, cached and not |
//! | [`socket`] | the way of an NBD client: a request and its reply over a Unix socket |
//! | [`verdict`] | a drive's closed-form limits against these costs |
//! | [`sheet`] | all of it as a table, as lines for a scenario, as JSON |
//!
//! Costs are medians where not said otherwise, so that what else runs on the machine shows in the
//! 99th percentiles and in the longest stall, and not in what a scenario is given.

pub mod copies;
pub mod queue;
pub mod report;
pub mod socket;
#[cfg(test)]
mod tests;
pub mod threads;
pub mod verdict;

use clock::Nanos;

use crate::bench::{AllowedCpus, BenchError, RunLength};
use crate::cli::args::CalibrateArgs;
use crate::cli::output::{Output, is_standard};
use crate::cli::{CliError, load_scenario, print_or_stderr};

pub use copies::CopyCosts;
pub use queue::QueueCosts;
pub use socket::{RoundTrip, SocketCosts};
pub use threads::ThreadCosts;
pub use verdict::{DriveVerdict, Feasibility, ModelCost, ModelSource};

/// What this machine costs.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineCosts {
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Threads that wanted a CPU before measuring began, the last minute's average; `None` where
    /// the system does not say.
    pub load: Option<f64>,
    /// Reading the clock, waking, sleeping, not being run.
    pub threads: ThreadCosts,
    /// A queue pair in process.
    pub queue: QueueCosts,
    /// Copying 4 KiB.
    pub copies: CopyCosts,
    /// A request and its reply over a Unix socket.
    pub socket: SocketCosts,
}

/// What the host spends per I/O: `[host]` of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCpuCosts {
    /// From the job's decision to the doorbell.
    pub submit: Nanos,
    /// From the completion entry to the job.
    pub complete: Nanos,
}

impl MachineCosts {
    /// Measures this machine: a few seconds with [`RunLength::Full`].
    ///
    /// # Errors
    /// When the system refuses memory, sockets or threads.
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

    /// Whether other programs were at work on half of the CPUs or more: then the costs are those of a
    /// busy machine.
    pub fn is_busy(&self) -> bool {
        self.load.is_some_and(|load| 2.0 * load >= self.cpus as f64)
    }

    /// What the host spends per I/O on a queue pair in process.
    pub fn in_process(&self) -> HostCpuCosts {
        HostCpuCosts { submit: self.queue.submit.p50, complete: self.queue.complete.p50 }
    }

    /// What the host spends per I/O of an NBD client, whose system calls and sleep are part of it:
    /// the way over the socket and that on the queue pair.
    pub fn through_nbd(&self) -> HostCpuCosts {
        let (trip, queue) = (self.socket.typical(), self.in_process());
        HostCpuCosts {
            submit: trip.submit.p50 + queue.submit,
            complete: trip.complete.p50 + queue.complete,
        }
    }
}

/// The first number of `/proc/loadavg`.
fn load_average() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok().filter(|load: &f64| load.is_finite())
}

/// Runs `sluice calibrate …`.
///
/// # Errors
/// A scenario that is wrong, a measurement that could not be made, a file that cannot be written.
pub fn run(args: &CalibrateArgs) -> Result<(), CliError> {
    // A mistake in the scenario is told before anything is measured.
    let scenario = args.scenario.as_deref().map(load_scenario).transpose()?;
    let mut output = args.json.as_deref().map(Output::open).transpose()?;
    let effort = if args.quick { RunLength::Quick } else { RunLength::Full };
    let machine = MachineCosts::measure(effort)?;
    let model = ModelCost { per_command: machine.queue.echo, source: ModelSource::Echo };
    let verdicts = scenario.as_ref().map(|s| verdict::judge(s, &machine, model));
    let judged = scenario.as_ref().zip(verdicts.as_deref());
    let is_taken = args.json.as_deref().is_some_and(is_standard);
    let told = print_or_stderr(&report::text(&machine, judged, model), is_taken);
    match &mut output {
        Some(output) => {
            told.and(output.write(&format!("{:#}\n", report::json(&machine, judged, model))))
        }
        None => told,
    }
}
