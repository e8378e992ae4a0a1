//! Methods of completion on a modeled machine (`[host] machine` with `[path] completion`).

// guarantee: B-70

use scenario::Scenario;
use serde_json::{Value, json};
use sluice_sim::{MachineRejection, MachineRunError, SimError, SimOptions, simulate, to_json};

/// A machine on which only interrupts and switches take time: `entry`, `exit`, `switch`, in ns.
pub(super) fn model(cores: u32, [entry, exit, switch]: [u32; 3]) -> String {
    let number = |key: &str, unit: &str, value: u32| {
        format!("{key} = {{ {unit} = {value}, source = \"test\" }}\n")
    };
    let value = |key: &str, value: u32| number(key, "value", value);
    let processor = [("sockets", 1), ("cores", cores), ("threads_per_core", 1), ("ghz", 1)];
    let mut text = "name = \"m\"\nabout = \"few things take time\"\n[processor]\n".to_owned();
    text.extend(processor.map(|(key, number)| value(key, number)));
    text += &value("cycles_per_instruction", 0);
    text += &format!("{}[lines]\n", value("smt_percent", 100));
    let lines = ["hit", "read_socket", "write_socket", "socket_shared"];
    text.extend(lines.map(|key| number(key, "ns", 0)));
    let (switch, wake) = (number("switch", "ns", switch), number("remote_wake", "ns", 0));
    let (entry, exit) = (number("entry", "ns", entry), number("exit", "ns", exit));
    format!("{text}[threads]\n{switch}{wake}[interrupts]\n{entry}{exit}")
}

/// Runs a scenario beside `model`, which is its `machine.toml`.
pub(super) fn run(model: &str, text: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("machine.toml"), model).unwrap();
    let scenario = Scenario::parse(&folder.path().join("test.toml"), text).unwrap();
    to_json(&simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{e}\n{text}")))
}

const HOST: &str = "[host]\nmachine = \"machine.toml\"\n";

/// Every command takes this many microseconds, whatever is outstanding.
pub(super) fn fixed(us: u32) -> String {
    format!(
        "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\nnull = {{ latency = \"{us}us\" }}\n"
    )
}

fn job(depth: u32, numjobs: u32) -> String {
    format!(
        "[[job]]\nname = \"reads\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = {depth}\n\
         number_ios = 640\nsize = \"64m\"\nnumjobs = {numjobs}\n"
    )
}

pub(super) fn path(model: &str, cores: u32, keys: &str) -> String {
    let cores = if model == "raw" { String::new() } else { format!("cores = {cores}\n") };
    format!("[path]\nqueue_model = \"{model}\"\n{cores}{keys}\n")
}

fn clat(result: &Value, what: &str) -> f64 {
    result["jobs"][0]["read"]["clat_ns"][what].as_f64().unwrap()
}

/// Returns the time of a hardware thread in a state.
pub(super) fn time(result: &Value, core: usize, state: &str) -> u64 {
    result["sluice"]["machine"]["hardware_threads"][core][state].as_u64().unwrap()
}

fn interrupts(result: &Value) -> f64 {
    result["sluice"]["machine"]["interrupts_per_request"].as_f64().unwrap()
}

#[test]
fn where_nothing_takes_time_each_method_gives_the_results_of_no_machine() {
    let poll = "poll_interval = \"64us\"";
    let [interrupt, hybrid, lazy, coop] =
        ["interrupt", "hybrid", "lazy", "coop"].map(|word| format!("completion = \"{word}\""));
    let cases = [
        ("raw", 1, poll),
        ("mq", 4, poll),
        ("sq", 1, poll),
        ("raw", 1, &interrupt),
        ("raw", 1, &hybrid),
        ("mq", 4, &hybrid),
        ("sq", 1, &lazy),
        ("sq", 1, &coop),
    ];
    for (queues, cores, keys) in cases {
        for (us, depth) in [(100, 1), (100, 16), (20, 1), (20, 4)] {
            let text = format!("{}{}", fixed(us), path(queues, cores, keys));
            let without = run("", &format!("{text}{}", job(depth, cores)));
            let with = run(&model(cores, [0; 3]), &format!("{text}{HOST}{}", job(depth, cores)));
            assert_eq!(without["jobs"], with["jobs"], "{text}{depth}");
        }
    }
}

#[test]
fn a_timer_polls_at_multiples_of_its_interval_and_its_interrupt_takes_time() {
    let text = format!("{}{HOST}{}", fixed(100), path("raw", 1, "poll_interval = \"64us\""));
    let result = run(&model(1, [300, 200, 1000]), &format!("{text}{}", job(1, 1)));
    // The core switches to the thread for 1 us. Later the thread submits 500 ns after a tick, and
    // notices the completion 500 ns after the second one from then.
    assert_eq!((clat(&result, "max"), clat(&result, "min")), (128_000.0, 127_500.0));
    assert_eq!(interrupts(&result), 2.0);
    assert_eq!(time(&result, 0, "interrupt_ns"), 640 * 2 * 500);
    assert_eq!((time(&result, 0, "spin_ns"), time(&result, 0, "switch_ns")), (0, 1000));
    // A timer that is due later than a job's next request does not delay it.
    let paced = format!("{}rate_iops = 20000\n", job(8, 1));
    let result = run(&model(1, [300, 200, 1000]), &format!("{text}{paced}"));
    let iops = result["jobs"][0]["read"]["iops"].as_f64().unwrap();
    assert!((19_900.0..20_100.0).contains(&iops), "{iops}");
}

#[test]
fn a_hybrid_thread_polls_with_its_interrupt_masked_and_then_sleeps() {
    let measure = |us: u32| {
        let text = format!("{}{HOST}{}", fixed(us), path("raw", 1, "completion = \"hybrid\""));
        run(&model(1, [300, 200, 1000]), &format!("{text}{}", job(1, 1)))
    };
    let busy = measure(20);
    assert_eq!((clat(&busy, "mean"), interrupts(&busy)), (20_000.0, 0.0));
    assert_eq!((time(&busy, 0, "spin_ns"), time(&busy, 0, "idle_ns")), (640 * 20_000, 0));
    // 50 us of polls, 50 of sleep, and the interrupt.
    let idle = measure(100);
    assert_eq!((clat(&idle, "mean"), interrupts(&idle)), (100_500.0, 1.0));
    let times = ["spin_ns", "idle_ns", "interrupt_ns"].map(|state| time(&idle, 0, state));
    assert_eq!(times, [640 * 50_000, 640 * 50_000, 640 * 500]);
}

#[test]
fn an_interrupt_context_fetches_for_the_threads_of_a_shared_queue() {
    let measure = |method: &str, cores: u32, depth: u32, model: &str| {
        let keys = format!("completion = \"{method}\"\nmerge = false");
        let text = format!("{}{HOST}{}", fixed(100), path("sq", cores, &keys));
        run(model, &format!("{text}{}", job(depth, cores)))
    };
    let costs = model(4, [300, 200, 1000]);
    for method in ["lazy", "coop"] {
        // The only thread runs where its interrupts do: after the handler has ended.
        let one = measure(method, 1, 1, &costs);
        assert_eq!((clat(&one, "mean"), interrupts(&one)), (100_500.0, 1.0), "{method}");
        assert_eq!(time(&one, 0, "interrupt_ns"), 640 * 500, "{method}");
        // Of several, only the first hardware thread has interrupts.
        let four = measure(method, 4, 1, &costs);
        for core in 1..4 {
            assert_eq!(time(&four, core, "interrupt_ns"), 0, "{method}");
        }
        let threads = four["sluice"]["machine"]["threads"].as_array().unwrap();
        assert_eq!(threads.len(), 5, "{method}");
        assert!(threads.iter().any(|task| task["name"] == "drive0: interrupt"), "{method}");
        for job in four["jobs"].as_array().unwrap() {
            assert_eq!(job["read"]["total_ios"], 640, "{method}");
        }
        let deep = measure(method, 4, 16, &costs);
        assert!(interrupts(&deep) < 1.0, "{method}: {}", interrupts(&deep));
        assert_eq!(deep["sluice"]["failures"], json!([]));
        assert_eq!(deep, measure(method, 4, 16, &costs), "{method}");
    }
}

#[test]
fn every_method_keeps_the_data() {
    let drive = "[drive]\npreset = \"femu-default\"\ndata = \"memory\"\n\
        geometry = { channels = 2, pus = 4, chunks = 48, pages = 32 }\n";
    let verify = "[[job]]\nname = \"a\"\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 16\nsize = \"4m\"\n\
        verify = \"crc32c\"\nfsync = 32\n";
    let pblk = "personality = \"open-channel\"\n[target]\nkind = \"pblk\"\n";
    let methods = [
        ("raw", "poll_interval = \"20us\""),
        ("mq", "poll_interval = \"20us\""),
        ("raw", "completion = \"hybrid\""),
        ("sq", "completion = \"hybrid\""),
        ("sq", "completion = \"lazy\""),
        ("sq", "completion = \"coop\""),
    ];
    for target in ["", pblk] {
        for (queues, keys) in methods {
            let host = "[host]\nmachine = \"i7-4770\"\n";
            let text = format!("{drive}{target}{}{host}{verify}", path(queues, 1, keys));
            let result = run("", &text);
            assert_eq!(result["sluice"]["failures"], json!([]), "{queues} {keys}");
            assert!(result["jobs"][0]["read"]["total_ios"].as_u64().unwrap() >= 1024, "{keys}");
        }
    }
}

#[test]
fn threads_that_sleep_need_a_model_with_the_costs_of_it() {
    let whole = model(1, [0; 3]);
    let (bare, _) = whole.split_once("[threads]").unwrap();
    for (queues, keys, named) in [
        ("raw", "poll_interval = \"64us\"", "poll_interval"),
        ("raw", "completion = \"hybrid\"", "completion = \"hybrid\""),
        ("sq", "completion = \"lazy\"", "completion = \"lazy\""),
        ("sq", "completion = \"coop\"", "completion = \"coop\""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("machine.toml"), bare).unwrap();
        let text = format!("{}{HOST}{}{}", fixed(100), path(queues, 1, keys), job(1, 1));
        let scenario = Scenario::parse(&folder.path().join("test.toml"), &text).unwrap();
        let error = simulate(&scenario, SimOptions::default()).unwrap_err();
        let SimError::Machine(MachineRunError::Refused(rejection)) = error else {
            panic!("{error}");
        };
        let (path, machine) = ("drive0".to_owned(), "m".to_owned());
        let completion = named.to_owned();
        assert_eq!(rejection, MachineRejection::NoInterruptCosts { path, machine, completion });
    }
}
