//! Programs that work between their I/Os (`[[process]]`), by each strategy of [Spec14 §2].

// guarantee: V-14

use scenario::Scenario;
use serde_json::Value;
use sluice_sim::{MachineRejection, MachineRunError, SimError, SimOptions, simulate};

use super::machine_completion::{fixed, model, path, run, time};

const HOST: &str = "[host]\nmachine = \"machine.toml\"\n";
const IOS: u64 = 600;

/// A process of `IOS` writes with these keys besides its I/Os'.
fn process(keys: &str) -> String {
    format!(
        "[[process]]\nname = \"program\"\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"64m\"\n\
         number_ios = {IOS}\n{keys}\n"
    )
}

/// Runs a process on a drive on which every I/O takes `us`, on a machine on which interrupts take 500 ns
/// and switches 1000 ns, and else nothing.
fn measure(us: u32, keys: &str) -> Value {
    let text = format!("{}{HOST}{}", fixed(us), process(keys));
    run(&model(1, [300, 200, 1000]), &text)
}

/// Time from the start to the last completion.
fn elapsed(result: &Value) -> u64 {
    result["sluice"]["elapsed_ns"].as_u64().unwrap()
}

fn of_process(result: &Value) -> &Value {
    &result["sluice"]["drives"][0]["jobs"][0]["process"]
}

fn number(result: &Value, key: &str) -> u64 {
    of_process(result)[key].as_u64().unwrap()
}

/// Returns the mean time from one I/O to the next, in nanoseconds, without the first switch to the
/// process; the last I/O has no work after it.
fn round(result: &Value) -> f64 {
    (elapsed(result) - 1000) as f64 / IOS as f64
}

fn assert_near(measured: f64, expected: f64, what: &str) {
    // The first and the last round differ.
    let part = 2.5 / IOS as f64;
    assert!((measured / expected - 1.0).abs() < part, "{what}: {measured}, expected {expected}");
}

#[test]
fn each_strategy_takes_the_time_of_its_closed_form() {
    for device in [2_u32, 10, 40] {
        let td = f64::from(device) * 1000.0;
        let round = |keys: &str| round(&measure(device, keys));
        let compute = 7000.0;
        let block = round("strategy = \"block\"\ncompute = \"7us\"");
        assert_near(block, compute + td, "block");
        let held = round("strategy = \"yield\"\ncompute = \"7us\"");
        // No other thread has the core meanwhile, so that there is no switch.
        assert_near(held, compute + td + 500.0, "yield");
        let speculate = round("strategy = \"speculate\"\ncompute = \"7us\"");
        assert_near(speculate, f64::max(compute, td), "speculate");
        let keys =
            "strategy = \"speculate\"\ncompute = \"7us\"\nwindow = \"3us\"\ncheckpoint = \"900ns\"";
        assert_near(round(keys), 4000.0 + 900.0 + f64::max(3000.0, td), "window and checkpoint");
        for depth in [2, 3] {
            let keys = format!(
                "strategy = \"prefetch\"\ncompute = \"7us\"\niodepth = {depth}\nrw = \"randread\""
            );
            let text = process(&keys).replacen("rw = \"randwrite\"\n", "", 1);
            let result =
                run(&model(1, [300, 200, 1000]), &format!("{}{HOST}{text}", fixed(device)));
            let prefetch = (elapsed(&result) - 1000) as f64 / IOS as f64;
            assert_near(prefetch, f64::max(compute, td / f64::from(depth)), "prefetch");
        }
    }
}

#[test]
fn a_flush_is_a_part_of_the_write_before_it() {
    let result = measure(10, "strategy = \"block\"\ncompute = \"7us\"\nfsync = 1");
    assert_near(round(&result), 7000.0 + 20_000.0, "write and flush");
    assert_eq!(number(&result, "compute_ns"), IOS * 7000);
}

#[test]
fn only_outputs_wait_for_the_ios_before_them() {
    for (device, outputs) in [(10, 6), (40, 6), (40, 20), (10, 1)] {
        let keys = format!(
            "strategy = \"speculate\"\ncompute = \"7us\"\nwindow = \"1us\"\noutputs = {outputs}"
        );
        let result = measure(device, &keys);
        let (td, count) = (f64::from(device) * 1000.0, f64::from(outputs));
        let of_output = (count - 1.0) * 7000.0 + f64::max(1000.0, td) + 6000.0;
        assert_near(round(&result), of_output / count, "outputs");
        let expected = IOS / outputs as u64;
        assert_eq!(number(&result, "outputs"), expected, "{result}");
        assert_eq!(number(&result, "delayed_outputs"), expected);
        assert_eq!(number(&result, "delay_ns"), expected * (u64::from(device) - 1) * 1000);
        assert_eq!(number(&result, "checkpoints"), 0);
    }
    // No output waits where the device is faster than the window.
    let result = measure(2, "strategy = \"speculate\"\ncompute = \"7us\"");
    assert_eq!((number(&result, "outputs"), number(&result, "delayed_outputs")), (IOS, 0));
}

#[test]
fn the_time_of_the_core_is_the_programs_work_its_waits_and_its_checkpoints() {
    let keys = "strategy = \"speculate\"\ncompute = \"7us\"\nwindow = \"3us\"\ncheckpoint = \"fork\"\n\
                memory = \"64M\"";
    let result = measure(200, keys);
    // 50 us, and 950 us for each GiB.
    let fork = 50_000 + 950_000 / 16;
    assert_eq!(number(&result, "checkpoint_ns"), IOS * fork);
    assert_eq!(time(&result, 0, "kernel_ns"), IOS * fork);
    let compute = number(&result, "compute_ns");
    // It works before the first I/O, too, and not after the last output.
    assert_eq!(compute, IOS * 7000 + 3000);
    assert_eq!(time(&result, 0, "application_ns"), compute);
    assert_eq!(time(&result, 0, "spin_ns"), number(&result, "delay_ns"));
    assert_eq!(number(&result, "delay_ns"), IOS * 197_000);
    // A process that yields leaves the core to others.
    let result = measure(200, "strategy = \"yield\"\ncompute = \"7us\"");
    assert_eq!(time(&result, 0, "spin_ns"), 0);
    assert!(time(&result, 0, "idle_ns") >= (IOS - 1) * 198_000, "{result}");
    // Instructions take the machine's time: 0.6 cycles each at 3.4 GHz.
    let text = format!(
        "{}[host]\nmachine = \"i7-4770\"\n{}",
        fixed(10),
        process("strategy = \"block\"\ncompute = 10000")
    );
    let result = run("", &text);
    let each = number(&result, "compute_ns") / IOS;
    assert!((1764..=1765).contains(&each), "{each}");
}

/// A process on hardware thread 0 that writes once, and has this much work, in us, before.
fn other_work(us: u64) -> String {
    format!(
        "[[process]]\nname = \"other\"\npath = \"other\"\nrw = \"write\"\nbs = \"4k\"\nnumber_ios = 1\n\
         strategy = \"block\"\ncompute = \"{us}us\"\ncore = 0\n"
    )
}

#[test]
fn a_process_that_yields_gives_its_core_to_another() {
    let drives = "[[drive]]\nname = \"a\"\npersonality = \"null\"\ncapacity = \"64M\"\n\
                  null = { latency = \"200us\" }\n[[drive]]\nname = \"b\"\npersonality = \"null\"\n\
                  capacity = \"64M\"\nnull = { latency = 0 }\n\
                  [[path]]\nname = \"main\"\nover = \"a\"\n[[path]]\nname = \"other\"\nover = \"b\"\n";
    let measure = |strategy: &str| {
        let keys =
            format!("path = \"main\"\ncore = 0\nstrategy = \"{strategy}\"\ncompute = \"50us\"");
        let text = format!("{drives}{HOST}{}{}", process(&keys), other_work(200_000));
        let result = run(&model(2, [300, 200, 1000]), &text);
        assert_eq!(time(&result, 1, "idle_ns"), elapsed(&result), "one hardware thread works");
        let work = time(&result, 0, "application_ns");
        assert_eq!(work, IOS * 50_000 + 200_000_000);
        (time(&result, 0, "switch_ns") / 1000, time(&result, 0, "spin_ns"))
    };
    // Each write gives the core away and takes it back.
    let (switches, spins) = measure("yield");
    assert!((2 * IOS - 100..=2 * IOS + 20).contains(&switches), "{switches}");
    assert_eq!(spins, 0);
    // Time slices are milliseconds.
    let (switches, spins) = measure("block");
    assert!(switches < 100 && spins > IOS / 2 * 200_000, "{switches} {spins}");
}

#[test]
fn a_core_that_is_not_there_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |model: &str, core: u16| {
        std::fs::write(folder.path().join("machine.toml"), model).unwrap();
        let keys = format!("strategy = \"block\"\ncompute = \"7us\"\ncore = {core}");
        let text = format!("{}{HOST}{}", fixed(20), process(&keys));
        let scenario = Scenario::parse(&folder.path().join("test.toml"), &text).unwrap();
        match simulate(&scenario, SimOptions::default()) {
            Err(SimError::Machine(MachineRunError::Refused(why))) => Some(why),
            Err(other) => panic!("{other}"),
            Ok(_) => None,
        }
    };
    let threads = model(2, [0; 3]);
    let expected = |core, cores| MachineRejection::Core { core, machine: "m".into(), cores };
    assert_eq!(refused(&threads, 1), None);
    assert_eq!(refused(&threads, 2), Some(expected(2, 2)));
    let without = threads.split("[threads]").next().unwrap();
    assert_eq!(refused(without, 0), Some(expected(0, 2)));
}

#[test]
fn processes_work_on_queues_of_their_own() {
    let process = |name: &str, strategy: &str| {
        process(&format!("strategy = \"{strategy}\"\ncompute = \"7us\"")).replace("program", name)
    };
    let two = format!("{}{}", process("a", "speculate"), process("b", "speculate"));
    let layer = path("mq", 2, "");
    let result = run(&model(2, [0; 3]), &format!("{}{layer}{HOST}{two}", fixed(20)));
    let jobs = result["sluice"]["drives"][0]["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 2, "{result}");
    for job in jobs {
        assert_eq!(job["process"]["compute_ns"], (IOS + 1) * 7000);
        assert_eq!(job["process"]["delay_ns"], IOS * 13_000);
    }
    // With one queue the threads would wait for each other.
    let text = format!("{}{HOST}{two}", fixed(20));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("machine.toml"), model(2, [0; 3])).unwrap();
    let scenario = Scenario::parse(&folder.path().join("test.toml"), &text).unwrap();
    let refused = simulate(&scenario, SimOptions::default()).unwrap_err();
    let expected = MachineRejection::SharedThread { path: "drive0".into(), queues: 1, jobs: 2 };
    match refused {
        SimError::Machine(MachineRunError::Refused(found)) => assert_eq!(found, expected),
        other => panic!("{other}"),
    }
}

#[test]
fn a_job_beside_a_process_is_no_process() {
    let job =
        "[[job]]\nname = \"job\"\nrw = \"randread\"\nbs = \"4k\"\nsize = \"64m\"\nnumber_ios = 9\n";
    let both = format!("{job}{}", process("strategy = \"block\"\ncompute = \"7us\""));
    let text = format!("{}{}{HOST}{both}", fixed(20), path("mq", 2, ""));
    let result = run(&model(2, [0; 3]), &text);
    let jobs = result["sluice"]["drives"][0]["jobs"].as_array().unwrap();
    assert_eq!((jobs.len(), jobs[0]["jobname"].as_str()), (1, Some("program")), "{result}");
    assert_eq!(jobs[0]["process"]["strategy"], "block");
}
