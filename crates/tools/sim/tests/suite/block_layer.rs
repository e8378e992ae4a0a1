//! The block layer in scenarios: every path gives the same data, and the effects of merging,
//! schedulers and limits.

// guarantee: B-17

use std::path::Path;

use block::trace::blktrace::{BlktraceReader, RecordBody};
use scenario::Scenario;
use serde_json::Value;
use sluice_sim::{BlockLayerCounts, SimOptions, SimOutcome, TraceOutput, simulate, to_json};

/// A small drive with a hardware queue of 31 tags.
const DRIVE: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 16, pages = 32 }\ncontroller = { queue_depth = 32 }\n";

/// Reads take 100 us, and the drive executes 31 of them at a time.
const FIXED: &str = "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\n\
    null = { latency = \"100us\" }\ncontroller = { queue_depth = 32 }\n";

fn run(text: &str) -> SimOutcome {
    let scenario = Scenario::parse(Path::new("s.toml"), text).unwrap_or_else(|e| panic!("{e}"));
    let outcome = simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(outcome.failures(), [""; 0]);
    outcome
}

fn block_layer_counts(outcome: &SimOutcome) -> &BlockLayerCounts {
    outcome.paths[0].block_layer.as_ref().expect("a block layer")
}

/// Returns requests per second of a job's reads.
fn iops(outcome: &SimOutcome, job: usize) -> f64 {
    outcome.paths[0].run.jobs[job].directions[0].iops()
}

fn mean(outcome: &SimOutcome, job: usize) -> f64 {
    outcome.paths[0].run.jobs[job].directions[0].lat.mean()
}

/// All configurations of the layer.
const SHAPES: [&str; 9] = [
    "queue_model = \"raw\"\n",
    "queue_model = \"sq\"\n",
    "queue_model = \"mq\"\n",
    "queue_model = \"sq\"\ncores = 3\n",
    "queue_model = \"mq\"\ncores = 3\n",
    "queue_model = \"mq\"\ncores = 4\nqueues = 2\nscheduler = \"deadline\"\n",
    "queue_model = \"mq\"\ncores = 4\nsockets = 2\nstaging = \"socket\"\nqueues = 1\n",
    "queue_model = \"mq\"\ncores = 4\nstaging = \"device\"\nscheduler = \"kyber\"\nqueue_depth = 8\n",
    "queue_model = \"mq\"\ncores = 4\nqueues = 3\nstaging = \"device\"\nscheduler = \"fair\"\nmerge = false\n",
];

/// Returns the results without the times.
fn job_results(outcome: &SimOutcome) -> Vec<(String, [u64; 2], [u64; 2])> {
    let jobs = outcome.paths[0].run.jobs.iter();
    jobs.map(|j| {
        let [read, write, _] = &j.directions;
        (j.spec.name.clone(), [read.ios, read.bytes], [write.ios, write.bytes])
    })
    .collect()
}

/// Returns drives and targets beneath the block layer, with their maximum number of hardware
/// queues.
fn beneath() -> [(String, u16); 4] {
    let open_channel = format!("{DRIVE}personality = \"open-channel\"\ndevice_l2p = true\n");
    [
        (DRIVE.into(), 4),
        (format!("{open_channel}[target]\nkind = \"pblk\"\n"), 1),
        (format!("{open_channel}[target]\nkind = \"pblk\"\nshards = 2\n"), 2),
        (format!("{open_channel}[target]\nkind = \"rrpc\"\n"), 1),
    ]
}

/// Returns whether a configuration asks for no more than this many hardware queues.
fn fits(shape: &str, queues: u16) -> bool {
    (queues + 1..4).all(|n| !shape.contains(&format!("queues = {n}\n")))
}

#[test]
fn the_data_is_the_same_whatever_the_path() {
    // Every write is read back and compared, during garbage collection and with flushes in between.
    let jobs = "[precondition]\nfill = \"sequential\"\n\
        [[job]]\nname = \"a\"\nrw = \"randwrite\"\nbs = \"4k\"\niodepth = 16\nsize = \"2m\"\n\
        verify = \"crc32c\"\nfsync = 50\nend_fsync = 1\n\
        [[job]]\nname = \"b\"\nrw = \"write\"\nbs = \"16k\"\niodepth = 40\noffset = \"2m\"\nsize = \"2m\"\n\
        verify = \"crc32c\"\nnumjobs = 2\noffset_increment = \"2m\"\n\
        [[job]]\nname = \"c\"\nrw = \"randread\"\nbs = \"64k\"\noffset = \"8m\"\nsize = \"2m\"\nstonewall = 1\n";
    for (drive, queues) in beneath() {
        data_is_the_same_on(&drive, queues, jobs);
    }
}

fn data_is_the_same_on(drive: &str, queues: u16, jobs: &str) {
    let raw = run(&format!("{drive}[path]\n{}{jobs}", SHAPES[0]));
    assert_eq!(job_results(&raw).len(), 4);
    assert!(raw.paths[0].block_layer.is_none());
    for shape in SHAPES[1..].iter().filter(|shape| fits(shape, queues)) {
        let outcome = run(&format!("{drive}[path]\n{shape}{jobs}"));
        assert_eq!(job_results(&outcome), job_results(&raw), "{shape}");
        let counts = block_layer_counts(&outcome);
        assert_eq!(counts.stat.in_flight, 0, "{shape}");
        let (reads, writes) = (counts.stat.reads(), counts.stat.writes());
        let requests = reads.ios + reads.merges + writes.ios + writes.merges;
        // 2 MiB of 4 KiB and twice 2 MiB of 16 KiB, written and read back; 2 MiB of 64 KiB.
        assert_eq!(requests, 2 * (512 + 2 * 128) + 32, "{shape}");
        let issued: u64 = counts.dispatch.iter().map(|q| q.issued).sum();
        let ended: u64 = counts.dispatch.iter().map(|q| q.completed).sum();
        assert_eq!(issued, ended, "{shape}");
        assert!(
            counts.dispatch.iter().all(|q| q.spurious + q.orphans + q.timeouts == 0),
            "{shape}"
        );
    }
}

#[test]
fn two_runs_are_the_same_to_the_byte() {
    let jobs = "[[job]]\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 40\nsize = \"4m\"\nnumjobs = 5\n\
                norandommap = true\n";
    for shape in SHAPES {
        let text = format!("{DRIVE}[path]\n{shape}{jobs}");
        let once = || to_json(&run(&text)).to_string();
        assert_eq!(once(), once(), "{shape}");
    }
}

/// Returns the JSON without the counters of attempts: a traced run polls more often, and so
/// attempts more often.
fn without_tries(outcome: &SimOutcome) -> Value {
    let mut json = to_json(outcome);
    let layer = &mut json["sluice"]["drives"][0]["block_layer"];
    for (queues, key) in [("cores", "sleeps"), ("dispatch_queues", "no_tag")] {
        for queue in layer[queues].as_array_mut().unwrap() {
            queue[key].take();
        }
    }
    json
}

#[test]
fn watching_changes_nothing() {
    let jobs = "[[job]]\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 40\nsize = \"1m\"\nnumjobs = 5\n\
                [[job]]\nrw = \"write\"\nbs = \"4k\"\niodepth = 20\nsize = \"1m\"\n";
    for (drive, queues) in beneath() {
        watching_changes_nothing_on(&drive, queues, jobs);
    }
}

fn watching_changes_nothing_on(drive: &str, queues: u16, jobs: &str) {
    let dir = tempfile::tempdir().unwrap();
    for (i, shape) in SHAPES.iter().enumerate().skip(1).filter(|(_, shape)| fits(shape, queues)) {
        let text = format!("{drive}[path]\n{shape}{jobs}");
        let scenario = Scenario::parse(Path::new("s.toml"), &text).unwrap();
        let (trace, blktrace) =
            (dir.path().join(format!("{i}.json")), dir.path().join(i.to_string()));
        let options = SimOptions {
            trace: Some(TraceOutput::create(&trace).unwrap()),
            blktrace: Some(blktrace.clone()),
            ..SimOptions::default()
        };
        let watched = simulate(&scenario, options).unwrap();
        assert_eq!(watched.untraced_events, 0);
        assert!(without_tries(&watched) == without_tries(&run(&text)), "{shape}");

        // The records of the files must equal the counters.
        let cores = block_layer_counts(&watched).cores.len();
        let (mut issued, mut completed, mut queued) = (0, 0, 0);
        for core in 0..cores {
            let path = blktrace.join(format!("drive0.blktrace.{core}"));
            for record in BlktraceReader::open(&path).unwrap() {
                match record.unwrap().body {
                    RecordBody::Queued => queued += 1,
                    RecordBody::Issued => issued += 1,
                    RecordBody::Completed => completed += 1,
                    _ => {}
                }
            }
        }
        let commands: u64 = block_layer_counts(&watched).dispatch.iter().map(|q| q.issued).sum();
        assert_eq!((queued, issued), (6 * 256, commands), "{shape}");
        assert!(completed >= commands, "{shape}: {completed} of {commands}");
        let events: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
        let events = events.as_array().unwrap();
        let begun = |name: &str| {
            let is = |e: &&Value| e["ph"] == "b" && e["pid"] == 2 && e["name"] == name;
            events.iter().filter(is).count()
        };
        assert_eq!(begun("read") + begun("write"), 6 * 256, "{shape}");
        assert!(events.iter().any(|e| e["pid"] == 1 && e["ph"] == "X"), "the drive's spans");
    }
}

#[test]
fn contiguous_writes_become_fewer_commands() {
    let jobs = "[[job]]\nrw = \"write\"\nbs = \"4k\"\niodepth = 32\nsize = \"8m\"\n";
    let commands = |path: &str| {
        let outcome = run(&format!("{DRIVE}[path]\n{path}{jobs}"));
        (
            outcome.drives[0].drive.writes,
            outcome.paths[0].block_layer.as_ref().map_or(0, |l| l.merges()),
        )
    };
    assert_eq!(commands("queue_model = \"raw\"\n"), (2048, 0));
    assert_eq!(commands("queue_model = \"mq\"\nmerge = false\n"), (2048, 0));
    for block in ["sq", "mq"] {
        let (writes, merges) = commands(&format!("queue_model = \"{block}\"\n"));
        assert_eq!(writes + merges, 2048, "every request is a command or is merged into one");
        assert!(writes <= 2048 / 4, "{writes}");
    }
}

/// Runs a job with a deep queue and one with a shallow queue, on a core each, with one hardware
/// queue.
fn deep_and_shallow(scheduler: &str) -> SimOutcome {
    run(&format!(
        "{FIXED}[path]\nqueue_model = \"mq\"\ncores = 2\nqueues = 1\nstaging = \"device\"\nmerge = false\n\
         scheduler = {scheduler}\n\
         [[job]]\nname = \"deep\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = 256\ntime_based = true\n\
         runtime = \"1s\"\n\
         [[job]]\nname = \"shallow\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = 1\ntime_based = true\n\
         runtime = \"1s\"\n"
    ))
}

#[test]
fn a_deep_job_does_not_starve_a_shallow_one_under_fair() {
    let (none, fair) = (deep_and_shallow("\"none\""), deep_and_shallow("\"fair\""));
    // FIFO order: a shallow request waits behind 256 others, which take 256 / 31 rounds.
    assert!(mean(&none, 1) > 800_000.0, "{}", mean(&none, 1));
    // Fair order: it waits at most for the requests at the device.
    assert!(mean(&fair, 1) <= 200_000.0, "{}", mean(&fair, 1));
    assert!(iops(&fair, 1) > 4.0 * iops(&none, 1));
    // The drive executes as many requests with both: 31 in 100 us.
    for outcome in [&none, &fair] {
        let all = iops(outcome, 0) + iops(outcome, 1);
        assert!((300_000.0..=311_000.0).contains(&all), "{all}");
    }
}

#[test]
fn the_demo_shows_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../demo/fairness.toml");
    let text = std::fs::read_to_string(path).unwrap().replace("\"1s\"", "\"100ms\"");
    let none = text.replace("scheduler = \"fair\"", "scheduler = \"none\"");
    let latencies = [text, none].map(|text| mean(&run(&text), 1));
    assert!(latencies[0] < latencies[1] / 2.0, "{latencies:?}");
}

#[test]
fn cores_take_turns_at_a_hardware_queue() {
    let job = "[[job]]\nrw = \"randread\"\nbs = \"4k\"\niodepth = 128\ntime_based = true\n\
               runtime = \"200ms\"\n";
    for path in [
        "queue_model = \"mq\"\nqueues = 1\n",
        "queue_model = \"mq\"\nstaging = \"device\"\n",
        "queue_model = \"sq\"\n",
    ] {
        let outcome =
            run(&format!("{FIXED}[path]\n{path}cores = 3\nmerge = false\n{}", job.repeat(3)));
        let rates = [0, 1, 2].map(|job| iops(&outcome, job));
        let (least, most) =
            (rates.iter().copied().fold(f64::MAX, f64::min), rates[0].max(rates[1]).max(rates[2]));
        assert!(most < 1.05 * least, "{path}: {rates:?}");
    }
}

#[test]
fn weights_share_a_busy_device() {
    let job =
        "rw = \"randread\"\nbs = \"4k\"\niodepth = 128\ntime_based = true\nruntime = \"1s\"\n";
    // Commands complete one after the other, so that shares are not rounded to whole rounds of 31.
    let drive = FIXED.replace("queue_depth = 32", "queue_depth = 32, dma_bandwidth = \"1GB/s\"");
    let outcome = run(&format!(
        "{drive}[path]\nqueue_model = \"sq\"\ncores = 2\nmerge = false\n\
         scheduler = {{ kind = \"fair\", weights = [300, 100] }}\n[[job]]\n{job}[[job]]\n{job}"
    ));
    let ratio = iops(&outcome, 0) / iops(&outcome, 1);
    assert!((2.95..=3.05).contains(&ratio), "{ratio}");
}

#[test]
fn limits_hold() {
    // Without limits, the drive executes 310,000 requests per second.
    let job = |group, bs: &str, depth| {
        format!(
            "[[job]]\nrw = \"randread\"\nbs = \"{bs}\"\niodepth = {depth}\ntime_based = true\n\
             runtime = \"2s\"\nramp_time = \"100ms\"\ngroup = {group}\n"
        )
    };
    for block in [
        "queue_model = \"sq\"",
        "queue_model = \"mq\"\ncores = 3\nstaging = \"device\"",
        "queue_model = \"mq\"",
    ] {
        let outcome = run(&format!(
            "{FIXED}[path]\n{block}\nmerge = false\n\
             [[path.limit]]\ngroup = 1\nread_iops = 10000\nburst = \"1ms\"\n\
             [[path.limit]]\ngroup = 2\nread_bw = \"81.92MB/s\"\nburst = \"1ms\"\n{}{}{}",
            job(1, "4k", 64),
            job(2, "16k", 64),
            job(0, "4k", 8)
        ));
        let [operations, bytes, free] = [0, 1, 2].map(|job| iops(&outcome, job));
        assert!((9_900.0..=10_100.0).contains(&operations), "{block}: {operations}");
        assert!((4_950.0..=5_050.0).contains(&bytes), "{block}: {bytes}");
        assert!(
            (79_000.0..=80_100.0).contains(&free),
            "jobs without a limit must not be throttled: {block}: {free}"
        );
    }
}

#[test]
fn a_full_core_makes_its_jobs_wait() {
    let outcome = run(&format!(
        "{FIXED}[path]\nqueue_model = \"mq\"\nqueue_depth = 4\n\
         [[job]]\nrw = \"randread\"\nbs = \"4k\"\niodepth = 16\nsize = \"4m\"\n"
    ));
    assert_eq!(outcome.paths[0].run.jobs[0].directions[0].ios, 1024);
    let counts = block_layer_counts(&outcome);
    assert!(counts.cores[0].sleeps > 0);
    // Four requests at a time, 100 us each.
    assert_eq!(outcome.elapsed.0, 1024 / 4 * 100_000);
    assert_eq!(counts.dispatch[0].depth.len(), 3, "depths of 1, 2, and 3 to 4");
}

#[test]
fn preconditioning_leaves_the_same_state_and_is_not_counted() {
    let jobs = "[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n\
        [[job]]\nrw = \"randread\"\nbs = \"4k\"\nsize = \"400k\"\n";
    let state = |path: &str| {
        let outcome = run(&format!("{DRIVE}[path]\nqueue_model = {path}\n{jobs}"));
        let requests = outcome.paths[0].block_layer.as_ref().map(|l| l.stat.to_string());
        (outcome.drives[0].drive.media.as_ref().map(|m| (m.programs, m.erases)), requests)
    };
    let ((raw, none), (mq, stat)) = (state("\"raw\""), state("\"mq\""));
    assert_eq!((raw, none), (mq, None));
    assert!(stat.unwrap().starts_with("100 0 800 "), "100 reads of 8 sectors of 512 bytes");
}

#[test]
fn the_json_has_the_counters() {
    let outcome = run(&format!(
        "{DRIVE}[path]\nqueue_model = \"mq\"\ncores = 2\nqueues = 1\nstaging = \"core\"\n\
         [[job]]\nrw = \"write\"\nbs = \"4k\"\niodepth = 8\nsize = \"1m\"\nnumjobs = 2\n"
    ));
    let json = to_json(&outcome);
    assert_eq!(json["jobs"].as_array().map(Vec::len), Some(2), "every path reports both jobs");
    let layer = &json["sluice"]["drives"][0]["block_layer"];
    assert_eq!(layer["kind"], "mq");
    let lengths = ["cores", "staging_queues", "dispatch_queues"];
    assert_eq!(lengths.map(|key| layer[key].as_array().map_or(0, Vec::len)), [2, 2, 1]);
    for stat in [&layer["stat"], &layer["cores"][1]["stat"]] {
        assert_eq!(stat.as_str().map(|line| line.split(' ').count()), Some(17), "{stat}");
    }
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}"));
    let queue = &layer["dispatch_queues"][0];
    assert_eq!(number(&queue["issued"]) + number(&layer["merges"]), 512);
    let depth: u64 = queue["depth"].as_array().unwrap().iter().map(number).sum();
    assert_eq!(depth, number(&queue["issued"]));
    for key in ["requeued", "timeouts", "busy", "resets", "steered"] {
        number(&queue[key]);
    }
    assert_eq!(number(&layer["cores"][0]["sleeps"]), 0);
}

/// Asserts that the trace of each path has the requests of that path's job, and no others. Both
/// paths lead to the first drive of `drive`, over `devices`.
fn traces_of_two_paths_are_separate(drive: &str, devices: [&str; 2]) {
    let mut text = drive.to_owned();
    for (name, over) in ["x", "y"].into_iter().zip(devices) {
        text += &format!(
            "[[path]]\nname = \"{name}\"\nover = \"{over}\"\nqueue_model = \"mq\"\nmerge = false\n"
        );
    }
    // Both jobs have the tags of the first job of their path.
    text += "[[job]]\npath = \"x\"\nrw = \"randwrite\"\nbs = \"4k\"\niodepth = 8\nsize = \"4m\"\n\
        number_ios = 300\n\
        [[job]]\npath = \"y\"\nrw = \"write\"\nbs = \"8k\"\niodepth = 8\noffset = \"8m\"\n\
        size = \"4m\"\nnumber_ios = 500\n";
    let scenario = Scenario::parse(Path::new("s.toml"), &text).unwrap_or_else(|e| panic!("{e}"));
    let dir = tempfile::tempdir().unwrap();
    let blktrace = Some(dir.path().to_path_buf());
    let outcome = simulate(&scenario, SimOptions { blktrace, ..SimOptions::default() }).unwrap();
    assert_eq!((outcome.failures(), outcome.untraced_events), (vec![], 0));
    assert!(outcome.paths.iter().all(|path| path.drives == [0]));
    let expected = [("x", 300, 4096, 0..8192), ("y", 500, 8192, 16384..24576)];
    for (i, (name, count, bytes, sectors)) in expected.into_iter().enumerate() {
        let (mut queued, mut issued, mut completed) = (0, 0, 0);
        let file = dir.path().join(format!("{name}.blktrace.0"));
        for record in BlktraceReader::open(&file).unwrap() {
            let record = record.unwrap();
            assert_eq!(record.device.minor, i as u32, "{name}");
            match record.body {
                RecordBody::Queued => queued += 1,
                RecordBody::Issued => issued += 1,
                RecordBody::Completed => completed += 1,
                _ => continue,
            }
            assert_eq!(record.bytes, bytes, "{name}");
            assert!(sectors.contains(&record.sector), "{name}: sector {}", record.sector);
        }
        assert_eq!([queued, issued, completed], [count; 3], "{name}");
    }
}

#[test]
fn traces_of_paths_to_one_drive_have_the_requests_of_their_own_path() {
    let drive = "[[drive]]\nname = \"d\"\npreset = \"femu-default\"\n\
        geometry = { channels = 4, pus = 2, chunks = 64, pages = 64 }\n";
    traces_of_two_paths_are_separate(drive, ["d", "d"]);
    let target = |name: &str, pus: &str| {
        format!("[[target]]\nname = \"{name}\"\ndrive = \"d\"\nkind = \"pblk\"\npus = \"{pus}\"\n")
    };
    let targets = [target("left", "0-3"), target("right", "4-7")].concat();
    let drive = format!("{drive}personality = \"open-channel\"\n{targets}");
    traces_of_two_paths_are_separate(&drive, ["left", "right"]);
}
