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
pub mod sheet;
pub mod socket;
#[cfg(test)]
mod tests;
pub mod threads;
pub mod verdict;

use clock::Nanos;

use crate::bench::{BenchError, Cores, Effort};
use crate::cli::args::CalibrateArgs;
use crate::cli::output::{Output, is_standard};
use crate::cli::{Failure, print_beside};
use crate::scenario::Scenario;

pub use copies::CopyCosts;
pub use queue::QueueCosts;
pub use socket::{SocketCosts, Trip};
pub use threads::ThreadCosts;
pub use verdict::{Answer, ModelCost, ModelSource, Verdict};

/// What this machine costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
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
pub struct HostCosts {
    /// From the job's decision to the doorbell.
    pub submit: Nanos,
    /// From the completion entry to the job.
    pub complete: Nanos,
}

impl Machine {
    /// Measures this machine: a few seconds with [`Effort::Full`].
    ///
    /// # Errors
    /// When the system refuses memory, sockets or threads.
    pub fn measure(effort: Effort) -> Result<Machine, BenchError> {
        let cores = Cores::allowed();
        let load = load_average();
        let threads = threads::measure(effort, &cores)?;
        Ok(Machine {
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
    pub fn in_process(&self) -> HostCosts {
        HostCosts { submit: self.queue.submit.p50, complete: self.queue.complete.p50 }
    }

    /// What the host spends per I/O of an NBD client, whose system calls and sleep are part of it:
    /// the way over the socket and that on the queue pair.
    pub fn through_nbd(&self) -> HostCosts {
        let (trip, queue) = (self.socket.usual(), self.in_process());
        HostCosts {
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
pub fn run(args: &CalibrateArgs) -> Result<(), Failure> {
    // A mistake in the scenario is told before anything is measured.
    let scenario = args.scenario.as_deref().map(Scenario::load).transpose()?;
    let mut output = args.json.as_deref().map(Output::open).transpose()?;
    let effort = if args.quick { Effort::Quick } else { Effort::Full };
    let machine = Machine::measure(effort)?;
    let model = ModelCost { per_command: machine.queue.echo, source: ModelSource::Echo };
    let verdicts = scenario.as_ref().map(|s| verdict::judge(s, &machine, model));
    let judged = scenario.as_ref().zip(verdicts.as_deref());
    let is_taken = args.json.as_deref().is_some_and(is_standard);
    let told = print_beside(&sheet::text(&machine, judged, model), is_taken);
    match &mut output {
        Some(output) => {
            told.and(output.write(&format!("{:#}\n", sheet::json(&machine, judged, model))))
        }
        None => told,
    }
}
