//! Scenarios on a modeled machine (`[host] machine`).

use scenario::Scenario;
use serde_json::Value;
use sluice_sim::{MachineRejection, MachineRunError, SimError, SimOptions, simulate, to_json};

/// A machine on which nothing takes time, with this many cores.
fn free_model(cores: u32) -> String {
    let mut text = format!(
        "name = \"free\"\nabout = \"nothing takes time\"\n[processor]\n\
         sockets = {{ value = 1, source = \"test\" }}\n\
         cores = {{ value = {cores}, source = \"test\" }}\n\
         threads_per_core = {{ value = 1, source = \"test\" }}\n\
         ghz = {{ value = 1, source = \"test\" }}\n\
         cycles_per_instruction = {{ value = 0, source = \"test\" }}\n\
         smt_percent = {{ value = 100, source = \"test\" }}\n[lines]\n"
    );
    for line in ["hit", "read_socket", "write_socket", "socket_shared"] {
        text += &format!("{line} = {{ cycles = 0, source = \"test\" }}\n");
    }
    text
}

/// Parses a scenario beside sheets for 1 to 8 cores.
fn scenario(text: &str) -> Scenario {
    let folder = tempfile::tempdir().unwrap();
    for cores in 1..=8 {
        std::fs::write(folder.path().join(format!("free-{cores}.toml")), free_model(cores))
            .unwrap();
    }
    Scenario::parse(&folder.path().join("test.toml"), text).unwrap()
}

pub(super) fn run(text: &str) -> Value {
    to_json(&simulate(&scenario(text), SimOptions::default()).unwrap())
}

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\ngeometry.chunks = 16\n";
pub(super) const OPEN_CHANNEL: &str = "[drive]\npreset = \"femu-default\"\ngeometry.chunks = 24\n\
    personality = \"open-channel\"\n";
const FILL: &str = "[precondition]\nfill = \"sequential\"\n";

fn job(rw: &str, depth: u32, numjobs: u32) -> String {
    format!(
        "[[job]]\nname = \"j\"\nrw = \"{rw}\"\nbs = \"4k\"\nsize = \"2m\"\niodepth = {depth}\n\
         numjobs = {numjobs}\n"
    )
}

/// Checks that each hardware thread's states sum to the time that was measured.
pub(super) fn assert_sums(machine: &Value) {
    let measured = machine["measured_ns"].as_u64().unwrap();
    for thread in machine["hardware_threads"].as_array().unwrap() {
        let sum: u64 =
            thread.as_object().unwrap().values().map(|time| time.as_u64().unwrap()).sum();
        assert_eq!(sum, measured);
    }
}

// guarantee: V-08
#[test]
fn a_machine_on_which_nothing_takes_time_gives_the_results_of_no_machine() {
    let pblk = format!("{OPEN_CHANNEL}[target]\nkind = \"pblk\"\n");
    let shards = format!("{pblk}shards = 2\n");
    let mq = "[path]\nqueue_model = \"mq\"\ncores = 4\n";
    // A core per job, and a hardware queue per core: with a shared one, the queues of a path without
    // a machine take turns in being polled first.
    let stacks = [
        (DRIVE.to_owned(), 1),
        (format!("{DRIVE}{mq}"), 4),
        (pblk.clone(), 1),
        (format!("{pblk}[path]\nqueue_model = \"mq\"\n"), 1),
        (format!("{OPEN_CHANNEL}device_l2p = true\n[target]\nkind = \"rrpc\"\n"), 1),
    ];
    for (stack, cores) in stacks {
        for (rw, depth) in [("randread", 1), ("randread", 16), ("randrw", 8), ("randwrite", 4)] {
            let rest = format!("{FILL}{}", job(rw, depth, cores));
            let mut without = run(&format!("{stack}{rest}"));
            let host = format!("[host]\nmachine = \"free-{cores}.toml\"\n");
            let mut with = run(&format!("{stack}{host}{rest}"));
            assert_sums(&with["sluice"]["machine"]);
            for result in [&mut without, &mut with] {
                let section = result["sluice"].as_object_mut().unwrap();
                for key in ["scenario", "parameters", "machine", "notes"] {
                    section.remove(key);
                }
            }
            assert_eq!(without["jobs"], with["jobs"], "{stack}{rw} {depth}");
        }
    }
    // Shards exchange requests: those of one instant in the order in which the shards are polled,
    // which rotates without a machine. These jobs never do something at the same instant.
    let reads = |start: &str, name: &str| {
        let job = job("randread", 1, 1).replace("\"j\"", &format!("\"{name}\""));
        format!("{}startdelay = \"{start}\"\n", job.replace("2m", "1m"))
    };
    let jobs = format!("{}{}", reads("0", "first"), reads("13us", "second"));
    let without = run(&format!("{shards}{FILL}{jobs}"));
    let with = run(&format!("{shards}[host]\nmachine = \"free-2.toml\"\n{FILL}{jobs}"));
    assert_eq!(without["jobs"], with["jobs"]);
    // The shard without a job serves the other one's.
    let one = job("randrw", 4, 1);
    let with = run(&format!("{shards}[host]\nmachine = \"free-2.toml\"\n{FILL}{one}"));
    let without = run(&format!("{shards}{FILL}{one}"));
    assert_eq!(without["jobs"][0]["read"]["total_ios"], with["jobs"][0]["read"]["total_ios"]);
}

#[test]
fn changes_and_faults_come_at_the_same_instants_as_without_a_machine() {
    let drive = format!("{DRIVE}data = \"memory\"\n{FILL}");
    let changes = "[[at]]\ntime = \"4ms\"\nvictim_policy = \"fifo\"\n\
        [[fault]]\nat = \"2ms\"\nkind = \"slow-die\"\npu = 1\nfactor = 8\nduration = \"2ms\"\n\
        [[fault]]\nat = \"3ms\"\nkind = \"read-failure\"\nrate = 0.05\nduration = \"2ms\"\n\
        [[fault]]\nat = \"5ms\"\nkind = \"power-cut\"\nafter_ops = 3\n\
        [[fault]]\nat = \"6ms\"\nkind = \"stalled-queue\"\nqueue = 1\nduration = \"1ms\"\n";
    for (path, cores) in [("", 1), ("[path]\nqueue_model = \"mq\"\ncores = 4\n", 4)] {
        let jobs = job("randrw", 8, cores).replace("2m", "4m");
        let jobs =
            format!("{jobs}time_based = true\nruntime = \"9ms\"\ncontinue_on_error = \"all\"\n");
        let host = format!("[host]\nmachine = \"free-{cores}.toml\"\n");
        let [without, with] =
            ["", &host].map(|host| run(&format!("{drive}{path}{host}{jobs}{changes}")));
        assert_eq!(with["jobs"], without["jobs"], "{path}");
        assert_eq!(with["sluice"]["faults"], without["sluice"]["faults"], "{path}");
        let drive = |result: &Value| result["sluice"]["drives"][0].clone();
        for key in ["over_time", "commands", "ftl"] {
            assert!(drive(&without)[key].is_object(), "{key}");
            assert_eq!(drive(&with)[key], drive(&without)[key], "{path}{key}");
        }
        assert!(with["sluice"]["faults"][2]["count"].as_u64().unwrap() > 0, "{path}");
    }
}

#[test]
fn a_request_takes_the_steps_of_the_host_and_the_time_of_the_drive() {
    let host = "[host]\nmachine = \"i7-4770\"\n";
    let result = run(&format!("{DRIVE}{host}{FILL}{}", job("randread", 1, 1)));
    let machine = &result["sluice"]["machine"];
    assert_sums(machine);
    assert_eq!(machine["hardware_threads"].as_array().unwrap().len(), 8);
    // 190 and 100 instructions of 0.6 cycles at 3.4 GHz; looks are 60 instructions long.
    let driver = machine["ns_per_request"]["driver"].as_f64().unwrap();
    assert!((driver - 51.2).abs() < 0.5, "{driver}");
    let mean = result["jobs"][0]["read"]["lat_ns"]["mean"].as_f64().unwrap();
    assert!((40_051.0..40_062.0).contains(&mean), "{mean}");
    let elapsed = result["sluice"]["elapsed_ns"].as_f64().unwrap();
    assert!((elapsed / 512.0 - mean).abs() < 10.0, "{elapsed}");
    assert_eq!(machine["busiest"]["hardware_thread"], 0);
    assert_eq!(machine["busiest"]["state"], "driver");
    // The kernel's time is a lump of each request.
    let kernel = format!("{host}kernel = \"linux-3.10\"\n");
    let result = run(&format!("{DRIVE}{kernel}{FILL}{}", job("randread", 1, 1)));
    assert_eq!(result["sluice"]["machine"]["ns_per_request"]["kernel"], 975.0);
    let later = result["jobs"][0]["read"]["lat_ns"]["mean"].as_f64().unwrap();
    assert!((later - mean - 975.0).abs() < 11.0, "{later}");
}

#[test]
fn a_target_costs_what_its_statistics_show() {
    let pblk = format!("{OPEN_CHANNEL}[target]\nkind = \"pblk\"\n");
    let host = "[host]\nmachine = \"i7-4770\"\n";
    let target = |rw: &str| {
        let result = run(&format!("{pblk}{host}{FILL}{}", job(rw, 4, 1)));
        result["sluice"]["machine"]["ns_per_request"]["target"].as_f64().unwrap()
    };
    let per_instruction = 0.6 / 3.4;
    assert!((target("randread") - 351.0 * per_instruction).abs() < 1.0);
    // Writes, and what collection moves.
    assert!(target("randwrite") >= 411.0 * per_instruction - 1.0);
}

/// Reads of blocks that were never written take the drive no time, so that the host is the limit.
fn unwritten_reads(queue_model: &str, cores: u32) -> Value {
    let path = match queue_model {
        "raw" => String::new(),
        model => format!("[path]\nqueue_model = \"{model}\"\ncores = {cores}\n"),
    };
    let host = "[host]\nmachine = \"westmere-ex-8x10\"\n";
    run(&format!("{DRIVE}{path}{host}{}", job("randread", 32, cores)))
}

fn iops(result: &Value) -> f64 {
    let reads: u64 = result["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| &job["read"]["total_ios"])
        .map(|ios| ios.as_u64().unwrap())
        .sum();
    reads as f64 * 1e9 / result["sluice"]["elapsed_ns"].as_f64().unwrap()
}

#[test]
fn one_queue_is_bound_by_its_lock_and_many_are_not() {
    let [sq, mq] = ["sq", "mq"].map(|model| unwritten_reads(model, 8));
    let [one_sq, one_mq] = ["sq", "mq"].map(|model| unwritten_reads(model, 1));
    assert!(iops(&mq) > 6.0 * iops(&one_mq), "{} {}", iops(&mq), iops(&one_mq));
    assert!(iops(&sq) < 3.0 * iops(&one_sq), "{} {}", iops(&sq), iops(&one_sq));
    let waiting = |result: &Value| {
        assert_sums(&result["sluice"]["machine"]);
        result["sluice"]["machine"]["ns_per_request"]["lock_wait"].as_f64().unwrap()
    };
    assert!(waiting(&sq) > 100.0 && waiting(&mq) == 0.0, "{} {}", waiting(&sq), waiting(&mq));
    assert_eq!(sq["sluice"]["machine"]["busiest"]["state"], "lock_wait");
    assert!(sq["sluice"]["machine"]["line_transfers"]["in_socket"].as_u64().unwrap() > 1000);
}

// guarantee: V-09
#[test]
fn runs_on_a_machine_are_deterministic_and_more_threads_than_cores_share_them() {
    let host = "[host]\nmachine = \"i7-4770\"\n";
    let mq = "[path]\nqueue_model = \"mq\"\ncores = 12\n";
    let text = format!("{DRIVE}{mq}{host}{FILL}{}", job("randrw", 4, 12));
    let first = run(&text);
    assert_eq!(first, run(&text));
    let machine = &first["sluice"]["machine"];
    assert_sums(machine);
    assert!(machine["switches_per_request"].as_f64().unwrap() > 0.0);
    let threads = machine["threads"].as_array().unwrap();
    assert_eq!((threads.len(), &threads[11]["name"]), (12, &Value::from("drive0: queue 11")));
}

#[test]
fn what_a_machine_cannot_run_is_refused() {
    let host = "[host]\nmachine = \"i7-4770\"\n";
    let rejection = |rest: &str| {
        let text = format!("{rest}{host}");
        match simulate(&scenario(&text), SimOptions::default()) {
            Err(SimError::Machine(MachineRunError::Refused(rejection))) => rejection,
            other => panic!("{rest}: {:?}", other.err()),
        }
    };
    let drive = |rest: &str| format!("{DRIVE}{rest}");
    let one = job("randread", 1, 1);
    let memory = drive("data = \"memory\"\n");
    let verify = job("write", 1, 2) + "verify = \"crc32c\"\n";
    assert_eq!(
        rejection(&format!("{memory}[path]\nqueue_model = \"mq\"\ncores = 2\n{verify}")),
        MachineRejection::Verify { job: "j".into() }
    );
    let free = |text: &str| match simulate(&scenario(text), SimOptions::default()) {
        Err(SimError::Machine(MachineRunError::Refused(rejection))) => rejection,
        other => panic!("{text}: {:?}", other.err()),
    };
    let small = "[host]\nmachine = \"free-1.toml\"\n";
    let mq = "[path]\nqueue_model = \"mq\"\ncores = 2\n";
    let machine = "free".to_owned();
    assert_eq!(
        free(&drive(&format!("{mq}{small}{}", job("randread", 1, 2)))),
        MachineRejection::NoThreadCosts { machine: machine.clone(), threads: 2, cores: 1 }
    );
    let interrupts = "[path]\ncompletion = \"interrupt\"\n";
    assert_eq!(
        free(&drive(&format!("{interrupts}{small}{one}"))),
        MachineRejection::NoInterruptCosts {
            path: "drive0".into(),
            machine,
            completion: "completion = \"interrupt\"".into(),
        }
    );
}

#[test]
fn a_machine_with_one_job_verifies_its_data() {
    let host = "[host]\nmachine = \"i7-4770\"\n";
    let verify = job("write", 8, 1) + "verify = \"crc32c\"\n";
    let result = run(&format!("{DRIVE}data = \"memory\"\n{host}{verify}"));
    assert_eq!(result["sluice"]["failures"], serde_json::json!([]));
    assert_eq!(result["jobs"][0]["read"]["total_ios"], 512);
}

#[test]
fn a_model_with_a_number_without_a_source_is_an_error_of_the_scenario() {
    let folder = tempfile::tempdir().unwrap();
    let model = free_model(1).replacen(", source = \"test\"", "", 1);
    std::fs::write(folder.path().join("mine.toml"), model).unwrap();
    let text = format!("{DRIVE}[host]\nmachine = \"mine.toml\"\n");
    let error = Scenario::parse(&folder.path().join("test.toml"), &text).unwrap_err().to_string();
    assert!(
        error.contains("test.toml:5:11") && error.contains("missing field `source`"),
        "{error}"
    );
}

/// A machine whose interrupts and switches take 300, 200 and 1,000 ns.
pub(crate) fn interrupting_model(cores: u32) -> String {
    let number = |key: &str, ns: u32| format!("{key} = {{ ns = {ns}, source = \"test\" }}\n");
    let threads = number("switch", 1000) + &number("remote_wake", 0);
    let interrupts = number("entry", 300) + &number("exit", 200);
    format!("{}[threads]\n{threads}[interrupts]\n{interrupts}", free_model(cores))
}

#[test]
fn a_thread_that_sleeps_waits_for_its_interrupt_and_leaves_the_core_idle() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("machine.toml"), interrupting_model(4)).unwrap();
    let run = |path: &str, cores: u32| {
        let host = "[host]\nmachine = \"machine.toml\"\n";
        let text = format!("{DRIVE}{host}{path}{FILL}{}", job("randread", 1, cores));
        let scenario = Scenario::parse(&folder.path().join("test.toml"), &text).unwrap();
        to_json(&simulate(&scenario, SimOptions::default()).unwrap())
    };
    let lat = |result: &Value| result["jobs"][0]["read"]["lat_ns"]["mean"].as_f64().unwrap();
    let raw = "[path]\nqueue_model = \"raw\"\ncompletion = ";
    let [polled, woken] = ["\"poll\"", "\"interrupt\""].map(|c| run(&format!("{raw}{c}\n"), 1));
    // Entry and exit of the handler; the thread had the core last, so that it does not switch.
    assert_eq!(lat(&woken) - lat(&polled), 500.0);
    let machine = &woken["sluice"]["machine"];
    assert_sums(machine);
    assert_eq!(machine["interrupts_per_request"], 1.0);
    let time = |state: &str| machine["hardware_threads"][0][state].as_u64().unwrap();
    assert_eq!((time("interrupt_ns"), time("spin_ns")), (512 * 500, 0));
    assert!(time("idle_ns") > 512 * 30_000, "{}", time("idle_ns"));
    // Every queue of a block layer has an interrupt of its own.
    let mq = "[path]\nqueue_model = \"mq\"\ncores = 4\ncompletion = \"interrupt\"\n";
    let woken = run(mq, 4);
    assert_sums(&woken["sluice"]["machine"]);
    for thread in woken["sluice"]["machine"]["hardware_threads"].as_array().unwrap() {
        assert!(thread["interrupt_ns"].as_u64().unwrap() > 0, "{thread}");
    }
    // Threads that share a queue under a lock wake one another.
    let sq = mq.replace("mq", "sq");
    let woken = run(&sq, 4);
    let reads: u64 = woken["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["read"]["total_ios"].as_u64().unwrap())
        .sum();
    assert_eq!((reads, &woken["sluice"]["failures"]), (4 * 512, &serde_json::json!([])));
}

#[test]
fn jobs_of_different_groups_share_a_queue() {
    let fair = "scheduler = { kind = \"fair\", by = \"group\", default_weight = 1 }\n";
    let weight = "[[at]]\ntime = \"0s\"\ngroup = 1\nweight = 4\n";
    let drive = "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\n\
        null = { latency = \"100us\" }\n\
        controller = { queue_depth = 32, dma_bandwidth = \"1GB/s\" }\n";
    let jobs: String = (0..2)
        .map(|group| {
            let job = job("randread", 64, 1).replace("\"j\"", &format!("\"j{group}\""));
            format!("{job}time_based = true\nruntime = \"100ms\"\ngroup = {group}\n")
        })
        .collect();
    for (model, cores) in [("mq", 1), ("sq", 1)] {
        let path = format!("[path]\nqueue_model = \"{model}\"\ncores = {cores}\n{fair}");
        let result = |host: &str| run(&format!("{drive}{path}{host}{jobs}{weight}"));
        let [without, with] = ["", "[host]\nmachine = \"free-1.toml\"\n"].map(result);
        assert_eq!(without["jobs"], with["jobs"], "{model}");
        let ios = |job: usize| with["jobs"][job]["read"]["total_ios"].as_f64().unwrap();
        let share = ios(1) / ios(0);
        assert!((3.0..5.0).contains(&share), "{model}: {share}");
    }
}

#[test]
fn parallel_units_are_a_device_of_a_machine() {
    let units = "[[target]]\nname = \"u\"\nkind = \"ppa\"\npus = \"0-7\"\n\
        [[path]]\nname = \"p\"\nover = \"u\"\n";
    let drive = OPEN_CHANNEL.replace("geometry.chunks", "data = \"memory\"\ngeometry.chunks");
    let jobs = "[[job]]\nname = \"j\"\npath = \"p\"\npus = \"0-3\"\nrw = \"randrw\"\nbs = \"16k\"\n\
        iodepth = 4\nsize = \"4m\"\nio_size = \"8m\"\nverify = \"crc32c\"\n";
    let result = |host: &str| run(&format!("{drive}{units}{host}{jobs}"));
    let [without, free] = ["", "[host]\nmachine = \"free-1.toml\"\n"].map(result);
    assert_eq!(free["jobs"], without["jobs"]);
    let with = result("[host]\nmachine = \"i7-4770\"\n");
    let machine = &with["sluice"]["machine"];
    assert_sums(machine);
    assert_eq!(
        (&with["sluice"]["failures"], &machine["threads"][0]["name"]),
        (&serde_json::json!([]), &Value::from("p: units"),)
    );
    // The driver's part of a request, and of resets of chunks.
    let driver = machine["ns_per_request"]["driver"].as_f64().unwrap();
    assert!((51.0..70.0).contains(&driver), "{driver}");
}

#[test]
fn a_set_of_drives_runs_on_a_machine() {
    let drive = |name: &str| DRIVE.replace("[drive]", &format!("[[drive]]\nname = \"{name}\""));
    let set = "[[set]]\nname = \"s\"\nmembers = [\"a\", \"b\"]\nstripe = \"64k\"\n\
        [[path]]\nname = \"p\"\nover = \"s\"\nqueue_model = \"mq\"\ncores = 2\n";
    let host = "[host]\nmachine = \"i7-4770\"\n";
    let stack = format!("{}{}{set}", drive("a"), drive("b"));
    let result = run(&format!("{stack}{host}{FILL}{}path = \"p\"\n", job("randread", 8, 2)));
    assert_sums(&result["sluice"]["machine"]);
    for drive in result["sluice"]["drives"].as_array().unwrap() {
        assert!(drive["commands"]["reads"].as_u64().unwrap() > 300, "{drive}");
    }
}
