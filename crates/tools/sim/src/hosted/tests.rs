//! Methods of completion on a modeled machine: a drive that loses a completion, and the contexts that
//! fetch.

// guarantee: B-70
// guarantee: B-71

use std::path::Path;

use controller::Fault;
use scenario::Scenario;
use time::{Nanos, VirtualRunner};
use workload::{IoCpuCosts, JobCounts};

use super::MachineRunError;
use crate::{SimError, SimOptions};

/// Counts of a run.
#[derive(Debug)]
struct Counts {
    completed: u64,
    failed: u64,
    timeouts: u64,
    resets: u64,
    /// By endpoint of the block layer: completions that it fetched for others.
    fetched: Vec<u64>,
    elapsed: Nanos,
}

/// Runs 64 reads of each of `cores` jobs on a drive that takes 20 us, whose queue 1 may lose its next
/// completion.
fn run(path: &str, cores: u32, loses: bool) -> Result<Counts, SimError> {
    let text = format!(
        "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\nnull = {{ latency = \"20us\" }}\n\
         [host]\nmachine = \"i7-4770\"\n[path]\n{path}[[job]]\nrw = \"randread\"\nbs = \"4k\"\n\
         iodepth = 4\nnumber_ios = 64\nsize = \"64m\"\nnumjobs = {cores}\n"
    );
    let scenario = Scenario::parse(Path::new("s.toml"), &text)?;
    let (mut runner, mut options) = (VirtualRunner::new(), SimOptions::default());
    let (jobs, _) = crate::jobs(&scenario, &scenario.paths(), &[])?;
    let costs = IoCpuCosts::default();
    let (mut run, _, hosted) = crate::prepare(&scenario, jobs, costs, &mut runner, &mut options)?;
    let started = runner.now();
    if loses {
        let drive = run.devices[0].nvme_mut().unwrap();
        drive.inject_fault(started, Fault::LostCompletion { queue: 1 }).unwrap();
    }
    let machine = scenario.host.machine.as_ref().unwrap();
    let mut recording = crate::Recording::start(&scenario, &mut options, false, &mut run)?;
    let mut sampler = crate::Sampler::start(started, &mut run);
    let mut changes = crate::TimedChanges::start(&scenario, started, &mut run)?;
    let parts =
        crate::RunParts { recording: &mut recording, sampler: &mut sampler, changes: &mut changes };
    let mut tick = |_, _| true;
    let (_, ended) = super::run(&mut run, machine, hosted, started, parts, &mut tick)?;
    let faults = run.devices[0].nvme_mut().unwrap().faults();
    assert!(faults.iter().all(|fault| fault.count == Some(1)), "{path}{faults:?}");
    let path = &mut run.paths[0];
    let jobs = path.result.as_ref().unwrap().jobs.iter();
    let sum = |count: fn(&JobCounts) -> u64| jobs.clone().map(|job| count(&job.requests)).sum();
    let (completed, failed) = (sum(|job| job.completed), sum(|job| job.failed));
    let elapsed = ended.since(started);
    let mut counts =
        Counts { completed, failed, timeouts: 0, resets: 0, fetched: Vec::new(), elapsed };
    if let Some(layer) = path.device_mut().unwrap().block_layer() {
        for queue in layer.counters().dispatch() {
            counts.timeouts += queue.timeouts.get();
            counts.resets += queue.resets.get();
        }
        let endpoints = layer.counters().submitters().iter();
        counts.fetched = endpoints.map(|stats| stats.reaped_for_others.get()).collect();
    }
    Ok(counts)
}

#[test]
fn a_lost_completion_ends_with_a_timeout_an_abort_and_a_reset_under_each_method() {
    let methods = [
        ("completion = \"poll\"", &["sq", "mq"][..]),
        ("poll_interval = \"50us\"", &["sq", "mq"]),
        ("completion = \"interrupt\"", &["sq", "mq"]),
        ("completion = \"hybrid\"", &["sq", "mq"]),
        ("completion = \"lazy\"", &["sq"]),
        ("completion = \"coop\"", &["sq"]),
    ];
    for (method, models) in methods {
        for model in models {
            for cores in [1, 3] {
                let path = format!(
                    "queue_model = \"{model}\"\ncores = {cores}\n{method}\ntimeout = \"2ms\"\n\
                     abort_timeout = \"1ms\"\n"
                );
                let counts = run(&path, cores, true).unwrap_or_else(|e| panic!("{path}{e}"));
                assert_eq!((counts.completed, counts.failed), (64 * u64::from(cores), 0), "{path}");
                assert_eq!((counts.timeouts, counts.resets), (1, 1), "{path}");
                let late = Nanos::from_millis(3)..Nanos::from_millis(8);
                assert!(late.contains(&counts.elapsed), "{path}{}", counts.elapsed);
            }
        }
    }
}

#[test]
fn a_thread_without_a_block_layer_that_sleeps_for_a_lost_completion_is_an_error_with_its_name() {
    // A scenario with this fault is refused: the host would wait forever.
    match run("completion = \"interrupt\"\n", 1, true) {
        Err(SimError::Machine(MachineRunError::Engine(machine::EngineError::Deadlock {
            tasks,
            ..
        }))) => assert_eq!(tasks, ["drive0: queue 0"]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn submitters_fetch_for_others_only_if_they_cooperate() {
    let fetched = |method: &str| {
        let path =
            format!("queue_model = \"sq\"\ncores = 8\nmerge = false\ncompletion = \"{method}\"\n");
        let mut fetched = run(&path, 8, false).unwrap().fetched;
        // The context has the last endpoint.
        let by_context = fetched.pop().unwrap();
        (by_context, fetched.iter().sum::<u64>())
    };
    assert_eq!(fetched("lazy"), (8 * 64, 0));
    let (by_context, by_submitters) = fetched("coop");
    assert!(by_submitters > 0 && by_context < 8 * 64, "{by_context} {by_submitters}");
}

// guarantee: B-74
#[test]
fn this_machine_without_its_numbers_is_refused() {
    let text = "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\n[host]\nmachine = \"this\"\n\
        [[job]]\nrw = \"read\"\nbs = \"4k\"\nsize = \"1m\"\n";
    let mut scenario = Scenario::parse(Path::new("a.toml"), text).unwrap();
    let run = |scenario: &Scenario| crate::simulate(scenario, SimOptions::default());
    let error = run(&scenario).map(|_| ()).unwrap_err();
    let told = "a.toml: the numbers of machine = \"this\" are not known here";
    assert!(error.is_usage() && error.to_string().starts_with(told), "{error}");
    let model = scenario::MachineModel::built_in("i7-4770").unwrap();
    scenario.set_this_machine(&model).unwrap();
    let machine = run(&scenario).unwrap().diagnostics.machine.unwrap();
    assert!(machine.summary().starts_with("host i7-4770: "), "{}", machine.summary());
}
