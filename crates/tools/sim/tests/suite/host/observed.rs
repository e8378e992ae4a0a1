//! Tests of a run on a modeled machine while it goes on: runs of contexts, traces, samples, and
//! changes and faults at instants.

use std::fs::File;
use std::path::Path;

use block::trace::blktrace::{BlktraceReader, RecordBody};
use scenario::Scenario;
use serde_json::Value;
use sluice_sim::{SimError, SimOptions, SimOutcome, TraceOutput, simulate, to_json, to_variant};

const HOST: &str = "[host]\nmachine = \"i7-4770\"\n";
const DRIVE: &str = "[drive]\npreset = \"femu-default\"\ndata = \"memory\"\n\
    geometry = { channels = 4, pus = 2, chunks = 24, pages = 32 }\n\
    [precondition]\nfill = \"sequential\"\n";
const PBLK: &str = "[[drive]]\nname = \"oc\"\npreset = \"femu-default\"\npersonality = \"open-channel\"\n\
    geometry = { channels = 4, pus = 2, chunks = 48, pages = 32 }\n\
    [[target]]\nname = \"t\"\nkind = \"pblk\"\npus = \"0-7\"\n";
const INTERRUPTS: &str = "completion = \"interrupt\"\n";

fn try_run(text: &str, options: SimOptions<'_>) -> Result<SimOutcome, SimError> {
    simulate(&Scenario::parse(Path::new("s.toml"), text)?, options)
}

fn run(text: &str) -> SimOutcome {
    try_run(text, SimOptions::default()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn job(rw: &str, rest: &str) -> String {
    format!("[[job]]\nname = \"j\"\nrw = \"{rw}\"\nbs = \"4k\"\niodepth = 4\n{rest}")
}

/// A path with a queue per job.
fn path(model: &str, cores: u32, rest: &str) -> String {
    format!("[path]\nqueue_model = \"{model}\"\ncores = {cores}\n{rest}")
}

/// Runs with a trace; returns the outcome and the events.
fn traced(text: &str, slowest: usize) -> (SimOutcome, Vec<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("trace.json");
    let trace =
        TraceOutput { name: name.clone(), file: File::create(&name).unwrap(), truncate: false };
    let options = SimOptions { trace: Some(trace), slowest, ..SimOptions::default() };
    let outcome = try_run(text, options).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let events: Value = serde_json::from_str(&std::fs::read_to_string(name).unwrap()).unwrap();
    (outcome, events.as_array().unwrap().clone())
}

/// Nanoseconds of a time in microseconds.
fn nanos(time: &Value) -> u64 {
    (time.as_f64().unwrap() * 1000.0).round() as u64
}

// guarantee: V-10
#[test]
fn a_trace_has_the_time_of_each_hardware_thread_by_state() {
    let two = job("randread", "size = \"1m\"\nnumjobs = 3\n");
    let stacks = [
        path("mq", 3, ""),
        path("sq", 3, ""),
        path("mq", 3, INTERRUPTS),
        path("sq", 3, INTERRUPTS),
    ];
    for stack in stacks {
        let text = format!("{DRIVE}{stack}{HOST}{two}");
        let (outcome, events) = traced(&text, 0);
        let json = to_json(&outcome);
        // A trace changes nothing.
        assert_eq!(json, to_json(&run(&text)), "{stack}");
        let named = |what: &'static str| events.iter().filter(move |event| event["name"] == what);
        let host = named("process_name")
            .find(|event| event["args"]["name"] == "host: i7-4770")
            .expect("the process of the host")["pid"]
            .clone();
        let tracks = named("thread_name").filter(|event| event["pid"] == host).count();
        assert_eq!(tracks, 8);
        for (index, times) in
            json["sluice"]["machine"]["hardware_threads"].as_array().unwrap().iter().enumerate()
        {
            let slices = || {
                let own = move |e: &&Value| e["tid"] == index + 1 && e["ph"] == "X";
                events.iter().filter(|e| e["pid"] == host).filter(own)
            };
            let mut until = 0;
            for slice in slices() {
                assert!(nanos(&slice["ts"]) >= until, "{slice}");
                until = nanos(&slice["ts"]) + nanos(&slice["dur"]);
            }
            for (state, time) in times.as_object().unwrap() {
                let state = state.strip_suffix("_ns").unwrap().replace('_', " ");
                if state == "idle" {
                    continue;
                }
                let of_state = slices().filter(|slice| {
                    slice["name"].as_str().unwrap().ends_with(&format!("({state})"))
                });
                let sum: u64 = of_state.map(|slice| nanos(&slice["dur"])).sum();
                assert_eq!(sum, time.as_u64().unwrap(), "{stack}{index} {state}");
            }
        }
        // Every request of the block layer begins and ends.
        let begins = |phase: &str| events.iter().filter(|e| e["ph"] == phase).count();
        assert_eq!(begins("b"), begins("e"), "{stack}");
        let reads = events.iter().filter(|e| e["ph"] == "X" && e["name"] == "read");
        let slots = reads.filter(|e| e["args"]["sectors"].is_u64()).count();
        assert_eq!(slots, 3 * 256, "a slice per request");
    }
}

#[test]
fn requests_on_a_machine_are_explained_as_without_one() {
    let three = job("randrw", "size = \"1m\"\nnumjobs = 3\n");
    for stack in [path("mq", 3, ""), path("sq", 3, INTERRUPTS), String::new()] {
        let (outcome, _) = traced(&format!("{DRIVE}{stack}{HOST}{three}"), 50);
        let explanation = outcome.paths[0].explanation.as_ref().expect("an explanation");
        assert_eq!((explanation.slowest.len(), explanation.jobs.len()), (50, 3));
        let mut jobs = [0; 3];
        for request in &explanation.slowest {
            jobs[request.job as usize] += 1;
            let waits: u64 = request.waits.iter().map(|wait| wait.time.0).sum();
            assert_eq!(waits, request.latency.0, "{request:?}");
            let unknown = request.waits.iter().filter(|wait| {
                wait.kind == report::explain::WaitKind::Unexplained && wait.time.0 > 0
            });
            assert_eq!(unknown.count(), 0, "{request:?}");
        }
        assert!(jobs.iter().all(|count| *count > 0), "{jobs:?}");
        let slowest = explanation.slowest[0].latency.0;
        let max = outcome.paths[0].run.jobs.iter().flat_map(|job| &job.directions);
        assert_eq!(slowest, max.map(|direction| direction.lat.max().0).max().unwrap(), "{stack}");
    }
}

#[test]
fn the_events_of_the_block_layer_are_complete() {
    let folder = tempfile::tempdir().unwrap();
    for model in ["mq", "sq"] {
        let dir = folder.path().join(model);
        let options = SimOptions { blktrace: Some(dir.clone()), ..SimOptions::default() };
        let three = job("randread", "size = \"1m\"\nnumjobs = 3\n");
        let text = format!("{DRIVE}{}{HOST}{three}", path(model, 3, ""));
        let outcome = try_run(&text, options).unwrap();
        assert_eq!(outcome.untraced_events, 0);
        let mut counts = [0u64; 3];
        for core in 0..3 {
            let name = dir.join(format!("drive0.blktrace.{core}"));
            for record in BlktraceReader::open(&name).unwrap() {
                let index = match record.unwrap().body {
                    RecordBody::Queued => 0,
                    RecordBody::Issued => 1,
                    RecordBody::Completed => 2,
                    _ => continue,
                };
                counts[index] += 1;
            }
        }
        let layer = outcome.paths[0].block_layer.as_ref().expect("a block layer");
        let commands: u64 = layer.dispatch.iter().map(|queue| queue.issued).sum();
        // Adjacent requests are merged.
        assert!(commands > 700, "{commands}");
        assert_eq!(counts, [768, commands, commands], "{model}");
    }
}

#[test]
fn the_runs_of_each_context_have_a_distribution() {
    let folder = tempfile::tempdir().unwrap();
    let model = super::machine::interrupting_model(2);
    std::fs::write(folder.path().join("machine.toml"), model).unwrap();
    let text = format!(
        "{DRIVE}{}[host]\nmachine = \"machine.toml\"\n{}",
        path("mq", 2, INTERRUPTS),
        job("randread", "size = \"1m\"\nnumjobs = 2\n").replace("iodepth = 4", "iodepth = 1")
    );
    let scenario = Scenario::parse(&folder.path().join("s.toml"), &text).unwrap();
    let outcome = simulate(&scenario, SimOptions::default()).unwrap();
    let result = to_json(&outcome);
    let threads = result["sluice"]["machine"]["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 4);
    for thread in threads {
        let number = |key: &str| thread[key].as_u64().unwrap();
        assert!(number("runs") > 50, "{thread}");
        let (p50, p99, max) =
            (number("run_p50_ns"), number("run_p99_ns"), number("longest_run_ns"));
        assert!(p50 <= p99 && p99 <= max, "{thread}");
    }
    // Entry and exit of a handler, each time.
    let handler = &threads[1];
    assert_eq!(handler["name"], "drive0: queue 0: interrupt");
    for key in ["run_p50_ns", "run_p99_ns", "longest_run_ns"] {
        assert_eq!(handler[key], 500, "{handler}");
    }
    assert_eq!(handler["time_ns"].as_u64().unwrap(), 500 * handler["runs"].as_u64().unwrap());
    let remarks = to_variant(&outcome).remarks;
    let lines: Vec<_> = remarks.iter().filter(|line| line.starts_with("runs of ")).collect();
    assert_eq!(lines.len(), 4, "{remarks:?}");
    assert!(lines.iter().all(|line| line.contains("p50") && line.contains("max")), "{lines:?}");
    let host = to_variant(&outcome).host.expect("times of the host");
    assert_eq!((host.machine.as_str(), host.threads.len()), ("free", 2));
    let measured = result["sluice"]["machine"]["measured_ns"].as_u64().unwrap();
    assert!(host.threads.iter().all(|thread| thread.iter().sum::<u64>() == measured));
}

#[test]
fn the_translation_layer_is_sampled_during_the_run() {
    let writes = job("randwrite", "io_size = \"160m\"\nnorandommap = true\n");
    for stack in [DRIVE, PBLK] {
        let series = |host: &str| {
            let result = to_json(&run(&format!("{stack}{host}{writes}")));
            let section = &result["sluice"];
            let of = section.get("paths").unwrap_or(&section["drives"]);
            let over_time = of[0]["over_time"].as_object().expect("a time series").clone();
            let sectors: Vec<u64> = over_time["host_sectors_written"]
                .as_array()
                .unwrap()
                .iter()
                .map(|sectors| sectors.as_u64().unwrap())
                .collect();
            sectors
        };
        let (with, without) = (series(HOST), series(""));
        let whole: u64 = without.iter().sum();
        assert_eq!(with.iter().sum::<u64>(), whole, "{stack}");
        // The host takes little of the time, so that the drive is filled as fast.
        assert!(with.len().abs_diff(without.len()) <= 1 + without.len() / 10);
        let half = |series: &[u64]| series[..series.len() / 2].iter().sum::<u64>() as f64;
        let (with, without) = (half(&with), half(&without));
        assert!((with / without - 1.0).abs() < 0.05, "{stack} {with} {without}");
    }
}

fn at(time: &str, rest: &str) -> String {
    format!("[[at]]\ntime = \"{time}\"\n{rest}\n")
}

fn fault(at: &str, kind: &str, keys: &str) -> String {
    format!("[[fault]]\nat = \"{at}\"\nkind = \"{kind}\"\n{keys}\n")
}

fn completed(outcome: &SimOutcome) -> u64 {
    outcome.paths[0].run.jobs.iter().map(|job| job.requests.completed).sum()
}

// guarantee: B-68
#[test]
fn settings_change_at_their_instants_on_a_machine() {
    let writes = "[[job]]\nrw = \"write\"\nbs = \"64k\"\niodepth = 8\ntime_based = true\nruntime = \"40ms\"\n";
    for completion in ["", "[[path]]\nname = \"p\"\nover = \"t\"\ncompletion = \"interrupt\"\n"] {
        let stack = format!("{PBLK}{completion}{HOST}");
        let whole = completed(&run(&format!("{stack}{writes}"))) as f64;
        let one_at = |time: &str, active: u32| {
            let change = at(time, &format!("target = \"t\"\nactive_pus = {active}"));
            completed(&run(&format!("{stack}{writes}{change}"))) as f64 / whole
        };
        let (start, half) = (one_at("0s", 1), one_at("20ms", 1));
        assert!(start < 0.3, "{start}");
        assert!((start + 0.3..0.75).contains(&half), "{half}");
        assert_eq!(one_at("20ms", 0), 1.0, "the number that it has");
    }
    // Shards, each with a thread of its own.
    let shards = PBLK
        .replace("[[drive]]\nname = \"oc\"", "[drive]")
        .replace("[[target]]\nname = \"t\"", "[target]")
        .replace("pus = \"0-7\"", "shards = 2");
    let two = format!("{writes}numjobs = 2\n");
    let whole = completed(&run(&format!("{shards}{HOST}{two}"))) as f64;
    let change = at("20ms", "active_pus = 1");
    let half = completed(&run(&format!("{shards}{HOST}{two}{change}"))) as f64;
    assert!(half < 0.8 * whole, "{half} of {whole}");
    // A group of the block layer, whose rate is that of its limit.
    let limits = "[[path.limit]]\ngroup = 1\nread_iops = 10000\nburst = \"1ms\"\n";
    let reads = job("randread", "time_based = true\nruntime = \"40ms\"\ngroup = 1\n");
    for completion in ["", INTERRUPTS] {
        let stack = path("mq", 1, &format!("{completion}{limits}"));
        let text = format!("{DRIVE}{stack}{HOST}{reads}");
        let before = completed(&run(&text)) as f64;
        assert!((0.95..1.1).contains(&(before / 400.0)), "{before}");
        let change = at("20ms", "group = 1\nread_iops = 1000");
        let after = completed(&run(&format!("{text}{change}"))) as f64;
        assert!((0.95..1.1).contains(&(after / 220.0)), "{after} of {before}");
    }
}

#[test]
fn faults_on_a_machine_end_every_request_once() {
    let reads = "[[job]]\nname = \"j\"\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 8\ntime_based = true\n\
        runtime = \"12ms\"\ncontinue_on_error = \"all\"\nnumjobs = 2\n";
    let lost = fault("5ms", "lost-completion", "queue = 1");
    let timeouts = "timeout = \"2ms\"\nabort_timeout = \"1ms\"\n";
    for model in ["mq", "sq"] {
        for completion in ["completion = \"poll\"\n", INTERRUPTS] {
            let stack = path(model, 2, &format!("{completion}{timeouts}"));
            let faults = [
                fault("5ms", "power-cut", ""),
                fault("5ms", "power-cut", "after_ops = 3"),
                fault("5ms", "die-failure", "pu = 3"),
                fault("5ms", "stalled-queue", "queue = 1\nduration = \"1ms\""),
                lost.clone(),
                (0..8).map(|pu| fault("5ms", "die-failure", &format!("pu = {pu}"))).collect(),
                // The drive does not recover, as one that was removed.
                (0..8)
                    .map(|pu| fault("5ms", "die-failure", &format!("pu = {pu}")))
                    .chain([fault("5ms", "power-cut", "")])
                    .collect(),
            ];
            for fault in faults {
                let text = format!("{DRIVE}{stack}{HOST}{reads}{fault}");
                let outcome = run(&text);
                for job in &outcome.paths[0].run.jobs {
                    let requests = &job.requests;
                    let ended = requests.completed + requests.failed;
                    assert_eq!(requests.issued, ended, "{text}");
                    assert!(ended > 100, "{text}");
                }
                let failed: u64 =
                    outcome.paths[0].run.jobs.iter().map(|job| job.requests.failed).sum();
                let recovers = fault.contains("stalled") || fault.contains("lost");
                assert!(recovers == (failed == 0), "{failed} failed: {text}");
                assert_eq!(to_json(&outcome), to_json(&run(&text)), "{text}");
            }
        }
    }
}

/// Every die becomes so slow that no command ends in the time of the run, after resets of the queue
/// either: each request ends by its timeouts, whichever way its thread waits for it.
#[test]
fn a_device_that_never_completes_ends_every_request_under_each_method() {
    let reads =
        job("randread", "time_based = true\nruntime = \"8ms\"\ncontinue_on_error = \"all\"\n");
    let timeouts = "timeout = \"2ms\"\nabort_timeout = \"1ms\"\n";
    let slow = |pu| fault("5ms", "slow-die", &format!("pu = {pu}\nfactor = 1000000.0"));
    let stalled: String = (0..8).map(slow).collect();
    let (lazy, coop) = ("completion = \"lazy\"\n", "completion = \"coop\"\n");
    let (poll, hybrid) = ("completion = \"poll\"\n", "completion = \"hybrid\"\n");
    let interval = "poll_interval = \"20us\"\n";
    for (model, methods) in [
        ("mq", &[poll, interval, INTERRUPTS, hybrid][..]),
        ("sq", &[poll, interval, INTERRUPTS, hybrid, lazy, coop]),
    ] {
        for method in methods {
            let stack = path(model, 1, &format!("{method}{timeouts}"));
            let text = format!("{DRIVE}{stack}{HOST}{reads}{stalled}");
            let outcome = run(&text);
            let requests = &outcome.paths[0].run.jobs[0].requests;
            assert_eq!(requests.issued, requests.completed + requests.failed, "{text}");
            assert!(requests.failed >= 4 && requests.completed > 100, "{requests:?} {text}");
        }
    }
}

/// Faults at every nanosecond of a request's completion, and thus while the handler of its interrupt
/// runs.
#[test]
fn a_fault_during_an_interrupt_ends() {
    let read = "[[job]]\nname = \"j\"\nrw = \"randread\"\nbs = \"4k\"\nsize = \"64k\"\n\
        continue_on_error = \"all\"\n";
    let interrupts = path("mq", 1, INTERRUPTS);
    let text = format!("{DRIVE}{interrupts}{HOST}{read}");
    let latency = run(&text).paths[0].run.jobs[0].directions[0].lat.min().0;
    let machine = to_json(&run(&text))["sluice"]["machine"].clone();
    assert!(machine["interrupts_per_request"].as_f64().unwrap() >= 1.0);
    for before in (0..3_000).step_by(150) {
        let at = format!("{}ns", latency - before);
        for kind in ["power-cut", "die-failure"] {
            let keys = if kind == "die-failure" { "pu = 0" } else { "" };
            let outcome = run(&format!("{text}{}", fault(&at, kind, keys)));
            let requests = &outcome.paths[0].run.jobs[0].requests;
            let ended = requests.completed + requests.failed;
            assert_eq!((requests.issued, ended), (16, 16), "{kind} at {at}");
            assert!(kind == "die-failure" || requests.failed <= 1, "{kind} at {at}");
        }
    }
}

#[test]
fn changes_that_cannot_be_are_refused_in_their_line_on_a_machine() {
    let refused = |text: &str, says: &[&str]| {
        let error = try_run(text, SimOptions::default()).map(|_| ()).unwrap_err().to_string();
        for part in says {
            assert!(error.contains(part), "{error} without {part}");
        }
    };
    let reads = job("randread", "size = \"64k\"\n");
    let late = at("1s", "victim_policy = \"fifo\"");
    refused(&format!("{DRIVE}{HOST}{reads}{late}"), &["before this change at 1.00s"]);
    let late = fault("1s", "power-cut", "");
    refused(&format!("{DRIVE}{HOST}{reads}{late}"), &["before this fault"]);
    // Known only when it is due.
    let unwritten = DRIVE.replace("[precondition]\nfill = \"sequential\"\n", "");
    let due = fault("1us", "uncorrectable", "lba = 5");
    refused(&format!("{unwritten}{HOST}{reads}{due}"), &["s.toml:", "is not written"]);
}

#[test]
fn stages_of_jobs_wait_for_those_of_other_threads() {
    let names = ["first", "second", "third"];
    let jobs: String = names
        .iter()
        .zip([2, 1, 3])
        .map(|(name, clones)| {
            let job = job("randread", &format!("size = \"256k\"\nnumjobs = {clones}\n"));
            let wall = if *name == "first" { "" } else { "stonewall = true\n" };
            job.replace("\"j\"", &format!("\"{name}\"")) + wall
        })
        .collect();
    let times = |outcome: &SimOutcome| {
        let jobs = outcome.paths[0].run.jobs.iter();
        jobs.map(|job| (job.started.0, job.ended.0)).collect::<Vec<_>>()
    };
    for completion in ["completion = \"poll\"\n", INTERRUPTS] {
        let outcome = run(&format!("{DRIVE}{}{HOST}{jobs}", path("mq", 3, completion)));
        assert_eq!(completed(&outcome), 6 * 64);
        let times = times(&outcome);
        let first = times[0].1.max(times[1].1);
        assert!(times[2].0 >= first, "{times:?}");
        // The next stage begins as soon as its threads notice.
        assert!(times[2].0 - first < 20_000, "{times:?}");
        for third in &times[3..] {
            assert!(third.0 >= times[2].1 && third.0 - times[2].1 < 20_000, "{times:?}");
        }
    }
}

#[test]
fn jobs_on_one_queue_verify_their_data() {
    let jobs = job("write", "size = \"256k\"\nverify = \"crc32c\"\n")
        + &job("randwrite", "size = \"256k\"\nverify = \"crc32c\"\nstonewall = true\n");
    for completion in ["", "[path]\ncompletion = \"interrupt\"\n"] {
        let outcome = run(&format!("{DRIVE}{completion}{HOST}{jobs}"));
        assert_eq!(outcome.failures(), [""; 0]);
        let verified = outcome.paths[0].run.jobs.iter().map(|job| job.requests.verified);
        assert_eq!(verified.collect::<Vec<_>>(), [64, 64]);
    }
}
