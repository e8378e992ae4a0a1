//! [`Sample`]: measurements of one interval with one strategy.

use block::completion::{CompletionStats, ContextKind, ContextStats};
use time::Nanos;

use super::tasks::TaskInterval;
use crate::{BenchError, Samples};

/// Measurements of an interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Number of completed requests.
    pub requests: u64,
    /// Number of those that failed.
    pub failed: u64,
    /// Completed requests per second.
    pub iops: f64,
    /// Bytes read per second.
    pub bytes_per_second: f64,
    /// Context switches of the host's threads per request.
    pub switches_per_io: f64,
    /// Share of one CPU that the host's threads used.
    pub host_cpu: f64,
    /// CPU time of the host's threads per request.
    pub cpu_per_io: Nanos,
    /// Mean time of a request.
    pub latency: Nanos,
    /// Share of completions that other threads found.
    pub stolen: f64,
    /// Runs of the interrupt's handler per request.
    pub handler_runs_per_io: f64,
    /// Completions found per run of the handler.
    pub handler_found_per_run: f64,
    /// CPU time of the handler's runs: median, 99th percentile and maximum.
    pub handler_cpu: [Nanos; 3],
    /// Wall-clock time of the handler's runs: median, 99th percentile and maximum.
    pub handler_wall: [Nanos; 3],
    /// Share of the time for which a hybrid polled.
    pub polling: f64,
}

impl Sample {
    /// Returns the difference of two readings that are `time` apart, with handler runs counted from
    /// the first. `tasks` is what the host's threads added in an interval of its own, because
    /// reading it takes time.
    pub fn from_difference(
        before: &CompletionStats,
        after: &CompletionStats,
        tasks: TaskInterval,
        time: Nanos,
    ) -> Sample {
        let TaskInterval { added: tasks, time: their_time } = tasks;
        let (seconds, their_seconds) = (time.as_secs_f64(), their_time.as_secs_f64());
        let requests = after.waiters.requests - before.waiters.requests;
        let per_io = |count: u64| count as f64 / requests.max(1) as f64;
        let latency = after.waiters.latency.since(before.waiters.latency);
        let none = None::<&ContextStats>;
        let hard = (before.context(ContextKind::HardIrq), after.context(ContextKind::HardIrq));
        let (old, new) = if hard.0.is_some() { hard } else { (none, none) };
        let found = new.map_or(0, |n| n.found) - old.map_or(0, |o| o.found);
        let runs = new.map_or(0, |n| n.wall.count);
        let quantiles = |of: &dyn Fn(&ContextStats, f64) -> Nanos| {
            [0.5, 0.99, 1.0].map(|q| new.map_or(Nanos::ZERO, |context| of(context, q)))
        };
        let polling = match (before.hybrid, after.hybrid) {
            (Some(before), Some(after)) => {
                after.poll_time.since(before.poll_time).as_secs_f64() / seconds
            }
            _ => 0.0,
        };
        Sample {
            requests,
            failed: after.waiters.failed - before.waiters.failed,
            iops: requests as f64 / seconds,
            bytes_per_second: (after.waiters.bytes - before.waiters.bytes) as f64 / seconds,
            switches_per_io: per_io(tasks.switches()) * seconds / their_seconds,
            host_cpu: tasks.cpu.as_secs_f64() / their_seconds,
            cpu_per_io: Nanos((per_io(tasks.cpu.0) * seconds / their_seconds) as u64),
            latency: Nanos(latency.0 / requests.max(1)),
            stolen: per_io(after.waiters.stolen - before.waiters.stolen),
            handler_runs_per_io: per_io(runs),
            handler_found_per_run: found as f64 / runs.max(1) as f64,
            handler_cpu: quantiles(&|context, q| context.cpu.quantile(q)),
            handler_wall: quantiles(&|context, q| context.wall.quantile(q)),
            polling: polling.min(1.0),
        }
    }
}

/// One figure of every sample.
pub(super) fn figures(
    samples: &[Sample],
    of: impl Fn(&Sample) -> f64,
) -> Result<Samples, BenchError> {
    let no_value = || BenchError::NoValue { case: "hiops".into(), metric: "sample" };
    Samples::new(samples.iter().map(of).collect()).ok_or_else(no_value)
}
