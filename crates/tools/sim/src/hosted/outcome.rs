//! [`MachineOutcome`]: what the host's processors did during a run.

use std::cmp::Reverse;
use std::collections::HashMap;

use machine::{CoreState, CoreTimes, EngineReport, MachineModel, TaskReport};
use report::{HostTimeState, HostTimes};
use scenario::HostKernel;
use scenario::format::{count, duration};
use serde_json::{Map, Value, json};
use time::Nanos;

use super::program::ProcessOutcome;

/// Maximum number of contexts whose runs are in the text.
const CONTEXTS_MAX: usize = 8;

/// The time of the host's hardware threads, by what they did.
#[derive(Clone, Debug)]
pub struct MachineOutcome {
    model: MachineModel,
    kernel: HostKernel,
    report: EngineReport,
    /// Number of completed requests.
    requests: u64,
    /// By path: the work of each of its jobs that is a process; empty if none is.
    processes: HashMap<String, Vec<Option<ProcessOutcome>>>,
}

impl MachineOutcome {
    pub(super) fn new(
        model: MachineModel,
        kernel: HostKernel,
        report: EngineReport,
        requests: u64,
        processes: HashMap<String, Vec<Option<ProcessOutcome>>>,
    ) -> MachineOutcome {
        MachineOutcome { model, kernel, report, requests, processes }
    }

    /// Returns the work of each job of a path that is a process, clones counted one by one; empty if
    /// none is.
    pub fn processes(&self, path: &str) -> &[Option<ProcessOutcome>] {
        self.processes.get(path).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the times of each hardware thread; they sum to the time elapsed.
    pub fn core_times(&self) -> &[CoreTimes] {
        &self.report.core_times
    }

    /// Returns the index of the busiest hardware thread, and its ledger; the first of several.
    pub fn busiest(&self) -> Option<(usize, &CoreTimes)> {
        let core_times = self.report.core_times.iter().enumerate();
        core_times.rev().max_by_key(|(_, times)| working(times))
    }

    /// Returns the share of time for which a hardware thread works, without looking: in percent.
    pub fn busy_percent(&self, times: &CoreTimes) -> f64 {
        100.0 * working(times).0 as f64 / self.report.measured.0.max(1) as f64
    }

    /// Returns nanoseconds per request in a state, summed over the hardware threads.
    pub fn nanos_per_request(&self, state: CoreState) -> f64 {
        let sum: u64 = self.report.core_times.iter().map(|times| times.time(state).0).sum();
        sum as f64 / self.requests.max(1) as f64
    }

    /// Returns the state in which the busiest hardware thread spends most of its work.
    pub fn bound_by(&self) -> Option<CoreState> {
        let (_, times) = self.busiest()?;
        let works = CoreState::all().filter(|state| is_work(*state));
        works.max_by_key(|state| times.time(*state))
    }

    /// Returns the line of the table.
    pub fn summary(&self) -> String {
        let Some((thread, times)) = self.busiest() else { return String::new() };
        let layers: Vec<String> = CoreState::all()
            .filter(|state| is_work(*state))
            .map(|state| (state, self.nanos_per_request(state)))
            .filter(|(_, nanos)| *nanos >= 0.5)
            .map(|(state, nanos)| format!("{} {nanos:.0}", state.word()))
            .collect();
        format!(
            "host {}: hardware thread {thread} works {:.1} % of the time; ns per request: {}; {:.2} \
             switches per request",
            self.model.name(),
            self.busy_percent(times),
            if layers.is_empty() { "none".to_owned() } else { layers.join(", ") },
            self.report.switches as f64 / self.requests.max(1) as f64,
        )
    }

    /// Returns the times for the report.
    pub fn host_times(&self) -> HostTimes {
        let state = |state: CoreState| HostTimeState {
            name: state.word().replace('_', " "),
            request_ns: is_work(state).then(|| self.nanos_per_request(state)),
            is_idle: state == CoreState::Idle,
        };
        let times = |times: &CoreTimes| CoreState::all().map(|state| times.time(state).0).collect();
        HostTimes {
            machine: self.model.name().to_owned(),
            states: CoreState::all().map(state).collect(),
            threads: self.report.core_times.iter().map(times).collect(),
        }
    }

    /// Returns a line for each context on the number and the lengths of its runs, those with the
    /// longest ones first, and for at most 8 contexts.
    pub fn run_lines(&self) -> Vec<String> {
        let mut tasks: Vec<&TaskReport> = self.report.tasks.iter().collect();
        tasks.retain(|task| task.runs.count() > 0);
        tasks.sort_by_key(|task| Reverse(task.runs.max()));
        let line = |task: &&TaskReport| {
            let at = |percent| duration(task.runs.percentile(percent).0);
            format!(
                "runs of {}: {}; p50 {}, p99 {}, max {}",
                task.name,
                count(task.runs.count()),
                at(50.0),
                at(99.0),
                duration(task.runs.max().0),
            )
        };
        let mut lines: Vec<String> = tasks.iter().take(CONTEXTS_MAX).map(line).collect();
        if let Some(more) = tasks.len().checked_sub(CONTEXTS_MAX + 1) {
            lines.push(format!("runs of {} more contexts are in the JSON", more + 1));
        }
        lines
    }

    /// Returns the section `machine` of the results.
    pub fn to_json(&self) -> Value {
        let per_request = |count: u64| count as f64 / self.requests.max(1) as f64;
        let states = |times: &CoreTimes| {
            let times = CoreState::all()
                .map(|state| (format!("{}_ns", state.word()), json!(times.time(state).0)));
            Value::Object(times.collect::<Map<_, _>>())
        };
        let by_state = CoreState::all()
            .filter(|state| is_work(*state))
            .map(|state| (state.word().to_owned(), json!(self.nanos_per_request(state))));
        let numbers = self.model.numbers().iter().map(|number| {
            json!({
                "key": number.key,
                "value": number.value,
                "unit": number.unit,
                "source": number.source,
            })
        });
        let task = |task: &TaskReport| {
            json!({
                "name": task.name,
                "runs": task.runs.count(),
                "time_ns": task.runs.total().0,
                "run_p50_ns": task.runs.percentile(50.0).0,
                "run_p99_ns": task.runs.percentile(99.0).0,
                "longest_run_ns": task.runs.max().0,
            })
        };
        let bound = self.busiest().zip(self.bound_by()).map(|((thread, times), state)| {
            json!({
                "hardware_thread": thread,
                "busy_percent": self.busy_percent(times),
                "state": state.word(),
            })
        });
        let kernel = self.kernel.request_costs(&self.model);
        json!({
            "name": self.model.name(),
            "about": self.model.about(),
            "kernel": {
                "name": self.kernel.word(),
                "request_ns": kernel.iter().map(|time| time.0).sum::<u64>(),
                "source": self.kernel.source(),
            },
            "numbers": numbers.collect::<Vec<_>>(),
            "measured_ns": self.report.measured.0,
            "hardware_threads": self.report.core_times.iter().map(states).collect::<Vec<_>>(),
            "ns_per_request": Value::Object(by_state.collect::<Map<_, _>>()),
            "switches_per_request": per_request(self.report.switches),
            "interrupts_per_request": per_request(self.report.interrupts),
            "remote_wakes_per_request": per_request(self.report.remote_wakes),
            "line_transfers": {
                "in_socket": self.report.traffic.in_socket,
                "on_board": self.report.traffic.on_board,
                "across_boards": self.report.traffic.across,
            },
            "threads": self.report.tasks.iter().map(task).collect::<Vec<_>>(),
            "busiest": bound,
        })
    }
}

/// Returns whether a hardware thread does something in a state that a request needs.
fn is_work(state: CoreState) -> bool {
    !matches!(state, CoreState::Idle | CoreState::Spin)
}

fn working(times: &CoreTimes) -> Nanos {
    times.busy() - times.time(CoreState::Spin)
}
