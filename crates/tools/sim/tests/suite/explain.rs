//! Explanations of latencies: on every path, the waits of a request have reasons and add up to its
//! latency; explaining does not change results; small drives have waits that are known exactly.

// guarantee: B-13, B-17

use std::collections::BTreeSet;
use std::path::Path;

use report::explain::{Explained, WaitKind};
use scenario::Scenario;
use serde_json::Value;
use sluice_sim::{Explanation, SimOptions, SimOutcome, TraceOutput, simulate, to_json};
use tracepoint::{ArrayOp, Cause, RequestOp};

fn scenario(text: &str) -> Scenario {
    Scenario::parse(Path::new("explain.toml"), text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn explain(text: &str, slowest: usize) -> SimOutcome {
    simulate(&scenario(text), SimOptions { slowest, ..SimOptions::default() })
        .unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn explanation(outcome: &SimOutcome) -> &Explanation {
    outcome.paths[0].explanation.as_ref().expect("the run was explained")
}

/// Eight parallel units, 96 MiB.
fn drive(personality: &str, more: &str) -> String {
    format!(
        "[drive]\npreset = \"femu-default\"\n\
         geometry = {{ channels = 2, pus = 4, chunks = 24, pages = 128 }}\n\
         timing = {{ read = \"40us\", program = \"200us\", erase = \"2ms\", channel = \"400MB/s\" }}\n\
         personality = \"{personality}\"\n{more}\n"
    )
}

const JOBS: &str = "[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n\
    [[job]]\nname = \"writers\"\nrw = \"randwrite\"\nbs = \"8k\"\nio_size = \"12m\"\niodepth = 8\nfsync = 50\n\
    numjobs = 2\n\
    [[job]]\nname = \"readers\"\nrw = \"randread\"\nbs = \"4k\"\nio_size = \"8m\"\niodepth = 4\n\
    [[job]]\nname = \"stream\"\nrw = \"read\"\nbs = \"64k\"\nio_size = \"8m\"\niodepth = 2\n\
    [[job]]\nname = \"trims\"\nrw = \"randtrim\"\nbs = \"64k\"\nio_size = \"4m\"\n";

/// Writes of a block and of several units and blocks, some of them to the same units.
const PARTS: &str = "[[job]]\nname = \"parts\"\nrw = \"randwrite\"\nbs = \"512\"\nsize = \"256k\"\n\
    io_size = \"512k\"\niodepth = 16\n\
    [[job]]\nname = \"spans\"\nrw = \"randrw\"\nbs = \"9k\"\nio_size = \"4m\"\niodepth = 4\n";

/// Scenarios with every personality, target, layer and policy in the path of a request.
fn all_paths() -> Vec<(&'static str, String)> {
    let with_jobs = |text: String| text + JOBS;
    let buffered = "ftl = { over_provisioning = 0.3 }\n\
        write_buffer = { kind = \"volatile\", size = \"2M\" }";
    let oc = |more: &str, target: &str| {
        drive("open-channel", more) + &format!("[target]\nover_provisioning = 0.3\n{target}\n")
    };
    vec![
        ("block", with_jobs(drive("block", buffered))),
        ("write through", with_jobs(drive("block", "ftl = { over_provisioning = 0.3 }"))),
        (
            "small blocks",
            with_jobs(drive("block", &format!("lba_bytes = 512\n{buffered}"))) + PARTS,
        ),
        (
            "small blocks, write through",
            with_jobs(drive("block", "lba_bytes = 512\nftl = { over_provisioning = 0.3 }")) + PARTS,
        ),
        (
            "reads first",
            with_jobs(drive(
                "block",
                &format!(
                    "pu_scheduling = \"read-priority\"\nsuspend = {{ suspend = \"5us\", resume = \"5us\", \
                     max_per_operation = 4 }}\n{buffered}"
                ),
            )),
        ),
        (
            "cached reads",
            with_jobs(drive(
                "block",
                &format!("cache_read = true\npage_transfers = true\n{buffered}"),
            )),
        ),
        (
            "map cache",
            // The map has half as many pages again as the cache holds.
            with_jobs(drive("block", "ftl = { over_provisioning = 0.3, l2p_cache = \"280k\" }"))
                .replace("chunks = 24", "chunks = 128"),
        ),
        (
            "controller",
            with_jobs(drive(
                "block",
                &format!(
                    "controller = {{ fetch_latency = \"1us\", completion_latency = \"1us\", dma_bandwidth = \"1GB/s\" }}\n{buffered}"
                ),
            )),
        ),
        (
            "host",
            with_jobs(drive("block", buffered))
                + "[host]\nsubmit_cost = \"2us\"\ncomplete_cost = \"3us\"\n",
        ),
        (
            "mq",
            with_jobs(drive("block", buffered))
                + "[path]\nqueue_model = \"mq\"\ncores = 4\nqueues = 2\n",
        ),
        (
            "sq",
            with_jobs(drive("block", &format!("controller = {{ queue_depth = 4 }}\n{buffered}")))
                + "[path]\nqueue_model = \"sq\"\ncores = 3\nscheduler = \"deadline\"\n",
        ),
        ("pblk", with_jobs(oc("", "kind = \"pblk\""))),
        ("pblk, few PUs", with_jobs(oc("", "kind = \"pblk\"\nactive_pus = 2"))),
        (
            "pblk, map cache",
            with_jobs(oc("", "kind = \"pblk\"\nactive_pus = 2\nl2p_cache = \"280k\""))
                .replace("chunks = 24", "chunks = 128"),
        ),
        ("shards", with_jobs(oc("", "kind = \"pblk\"\nshards = 2"))),
        ("rrpc", with_jobs(oc("device_l2p = true", "kind = \"rrpc\""))),
        (
            "sq, pblk",
            with_jobs(oc("", "kind = \"pblk\""))
                + "[path]\nqueue_model = \"sq\"\ncores = 3\nscheduler = \"deadline\"\n",
        ),
        (
            "sq, shards",
            with_jobs(oc("", "kind = \"pblk\"\nshards = 2"))
                + "[path]\nqueue_model = \"sq\"\ncores = 2\n",
        ),
        (
            "mq, shards",
            with_jobs(oc("", "kind = \"pblk\"\nshards = 2"))
                + "[path]\nqueue_model = \"mq\"\ncores = 4\n",
        ),
        (
            "mq, rrpc",
            with_jobs(oc("device_l2p = true", "kind = \"rrpc\""))
                + "[path]\nqueue_model = \"mq\"\ncores = 4\nstaging = \"device\"\n",
        ),
        (
            "pcm",
            "[drive]\nmedia = \"pcm\"\ncapacity = \"64M\"\n\
             geometry = { channels = 2, pus = 4, sector_bytes = 4096 }\n\
             timing = { read = \"5us\", program = \"7us\", channel = \"1GB/s\" }\n"
                .to_owned()
                + JOBS,
        ),
        (
            "null",
            "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\n\
             null = { latency = \"20us\", bandwidth = \"500MB/s\" }\n"
                .to_owned()
                + JOBS,
        ),
    ]
}

/// Large enough to keep every request of a run.
const ALL: usize = 1 << 20;

#[test]
fn waits_add_up_and_have_a_reason_on_every_path() {
    for (name, text) in all_paths() {
        let outcome = explain(&text, ALL);
        let explanation = explanation(&outcome);
        let requests = &explanation.slowest;
        let jobs = &outcome.paths[0].run.jobs;
        let measured: u64 = jobs
            .iter()
            .map(|j| j.directions.iter().map(|d| d.ios).sum::<u64>() + j.sync.count())
            .sum();
        assert_eq!(requests.len() as u64, measured, "{name}: each request is explained once");
        for r in requests {
            let sum: u64 = r.waits.iter().map(|w| w.time.0).sum();
            assert_eq!(sum, r.latency.0, "{name}: {r:?}");
            let mut at = r.start;
            for wait in &r.waits {
                assert_eq!(
                    wait.start, at,
                    "{name}: waits must be in order and without gaps: {r:?}"
                );
                assert!(wait.time.0 > 0, "{name}: {r:?}");
                assert_ne!(wait.kind, WaitKind::Unexplained, "{name}: {r:#?}");
                at += wait.time;
            }
        }
        assert!(requests.is_sorted_by_key(|r| std::cmp::Reverse(r.latency)), "{name}");
        // The explained latencies must equal those measured by the jobs.
        for (i, job) in jobs.iter().enumerate() {
            for (op, direction) in
                [(RequestOp::Read, 0), (RequestOp::Write, 1), (RequestOp::Trim, 2)]
            {
                let of = requests.iter().filter(|r| r.job as usize == i && r.op == op);
                let (count, sum) = of.fold((0u64, 0u64), |(n, s), r| (n + 1, s + r.latency.0));
                let lat = &job.directions[direction].lat;
                assert_eq!(count, lat.count(), "{name}, job {i}");
                if count > 0 {
                    let mean = sum as f64 / count as f64;
                    assert!((mean - lat.mean()).abs() < 1.0, "{name}: {mean} {}", lat.mean());
                }
            }
        }
        for breakdown in &explanation.breakdowns {
            for band in &breakdown.bands {
                let sum: u64 = band.waits.iter().map(|(_, time)| time.0).sum();
                assert_eq!(sum, band.total.0, "{name}: {breakdown:?}");
            }
        }
    }
}

fn without_explanation(outcome: &SimOutcome) -> Value {
    let mut value = to_json(outcome);
    for drive in value["sluice"]["drives"].as_array_mut().into_iter().flatten() {
        if let Some(drive) = drive.as_object_mut() {
            drive.remove("slowest");
            drive.remove("latency_breakdown");
        }
    }
    value
}

#[test]
fn explaining_changes_no_result_and_repeats_itself() {
    for (name, text) in all_paths() {
        let plain = explain(&text, 0);
        assert_eq!(plain.paths[0].explanation, None);
        let first = explain(&text, 10);
        assert_eq!(without_explanation(&plain), without_explanation(&first), "{name}");
        let second = explain(&text, 10);
        assert_eq!(to_json(&first).to_string(), to_json(&second).to_string(), "{name}");
    }
}

/// Returns the reasons of a request's waits, with their times in microseconds.
fn wait_reasons(request: &Explained) -> Vec<(WaitKind, u64)> {
    request.waits.iter().map(|w| (w.kind, w.time.0 / 1_000)).collect()
}

/// One parallel unit; a read takes 40 us in the array, and 10 us on the channel.
const ONE_PU: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 1, pus = 1, chunks = 16, pages = 64 }\n\
    timing = { read = \"40us\", program = \"200us\", erase = \"2ms\", channel = \"409.6MB/s\" }\n";

#[test]
fn the_second_of_two_reads_waits_for_array_and_register_of_the_first() {
    let text = ONE_PU.to_owned()
        + "page_register = false\n[precondition]\nfill = \"sequential\"\n\
           [[job]]\nname = \"pair\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = 2\nnumber_ios = 2\n";
    let outcome = explain(&text, 2);
    let [second, first] = &explanation(&outcome).slowest[..] else { panic!("two requests") };
    let own = [(WaitKind::Array(ArrayOp::Read), 40), (WaitKind::Transfer, 10)];
    assert_eq!(wait_reasons(first), own);
    let waits = wait_reasons(second);
    let job = Some(0);
    let user = report::explain::ResourceUser { cause: Cause::Host, job };
    let expected = [
        (WaitKind::PuBusy(ArrayOp::Read, user), 40),
        (WaitKind::RegisterBusy(user), 10),
        own[0],
        own[1],
    ];
    assert_eq!(waits, expected);
    assert_eq!(second.latency.0, 100_000);
}

#[test]
fn a_durable_write_is_its_transfer_and_its_program() {
    let text =
        ONE_PU.to_owned() + "[[job]]\nname = \"w\"\nrw = \"write\"\nbs = \"4k\"\nnumber_ios = 4\n";
    let outcome = explain(&text, 4);
    let [first, .., write] = &explanation(&outcome).slowest[..] else { panic!("four requests") };
    // The first request waits until the journal has recorded the opening of a line.
    assert_eq!(first.waits[0].kind, WaitKind::Placement);
    assert_eq!(
        wait_reasons(write),
        [(WaitKind::Transfer, 10), (WaitKind::Array(ArrayOp::Program), 200)]
    );
}

#[test]
fn the_host_pays_before_and_after() {
    let text = ONE_PU.to_owned()
        + "[host]\nsubmit_cost = \"2us\"\ncomplete_cost = \"3us\"\n[precondition]\nfill = \"sequential\"\n\
           [[job]]\nname = \"r\"\nrw = \"randread\"\nbs = \"4k\"\nnumber_ios = 1\n";
    let outcome = explain(&text, 1);
    let [read] = &explanation(&outcome).slowest[..] else { panic!("one request") };
    let expected = [
        (WaitKind::HostSubmit, 2),
        (WaitKind::Array(ArrayOp::Read), 40),
        (WaitKind::Transfer, 10),
        (WaitKind::HostComplete, 3),
    ];
    assert_eq!(wait_reasons(read), expected);
}

/// Returns the reasons that occur among the requests of one operation.
fn reasons(outcome: &SimOutcome, op: RequestOp) -> BTreeSet<String> {
    let requests = explanation(outcome).slowest.iter().filter(|r| r.op == op);
    requests.flat_map(|r| r.waits.iter().map(|w| w.kind.code())).collect()
}

#[test]
fn reads_name_the_collection_that_they_waited_for_on_drive_and_host() {
    for name in ["block", "pblk", "shards", "rrpc"] {
        let (_, text) = all_paths().into_iter().find(|(n, _)| *n == name).unwrap();
        let outcome = explain(&text, ALL);
        let reads = reasons(&outcome, RequestOp::Read);
        for reason in ["pu_erase_gc", "pu_program_gc", "pu_read_gc", "pu_program_host", "transfer"]
        {
            assert!(reads.contains(reason), "{name}: no {reason} in {reads:?}");
        }
        let writes = reasons(&outcome, RequestOp::Write);
        let full = ["write_buffer_full", "gc_limiter"].iter().any(|r| writes.contains(*r));
        assert!(full, "{name}: {writes:?}");
        let flushes = reasons(&outcome, RequestOp::Flush);
        assert!(flushes.contains("array_program"), "{name}: {flushes:?}");
    }
}

#[test]
fn each_part_of_the_stack_is_named_where_it_is_in_the_way() {
    for (name, op, reason) in [
        ("map cache", RequestOp::Read, "map_page"),
        ("pblk, map cache", RequestOp::Read, "map_page"),
        ("small blocks", RequestOp::Write, "array_read"),
        ("small blocks", RequestOp::Write, "unit_change"),
        ("small blocks, write through", RequestOp::Write, "array_read"),
        ("small blocks, write through", RequestOp::Write, "array_program"),
        ("reads first", RequestOp::Flush, "suspended"),
        ("controller", RequestOp::Read, "dma"),
        ("controller", RequestOp::Read, "fetch"),
        ("controller", RequestOp::Read, "complete"),
        ("controller", RequestOp::Read, "dma_busy"),
        ("sq", RequestOp::Read, "block_layer"),
        ("rrpc", RequestOp::Read, "target"),
        ("pcm", RequestOp::Read, "pcm_array"),
        ("pcm", RequestOp::Read, "pcm_array_busy"),
        ("pcm", RequestOp::Write, "pcm_channel"),
        ("null", RequestOp::Read, "null"),
        ("null", RequestOp::Write, "null_busy"),
        ("host", RequestOp::Write, "host_submit"),
    ] {
        let (_, text) = all_paths().into_iter().find(|(n, _)| *n == name).unwrap();
        let found = reasons(&explain(&text, ALL), op);
        assert!(found.contains(reason), "{name}: no {reason} in {found:?}");
    }
}

#[test]
fn every_reason_is_documented() {
    let docs = std::fs::read_to_string("../../../docs/report.md").unwrap();
    let causes = ["host", "gc", "map", "metadata", "journal", "scrub"];
    for (name, text) in all_paths() {
        let outcome = explain(&text, ALL);
        for wait in explanation(&outcome).slowest.iter().flat_map(|r| &r.waits) {
            let code = wait.kind.code();
            let base = code.strip_suffix("_busy").unwrap_or(&code);
            let base = match causes.iter().find_map(|c| base.strip_suffix(&format!("_{c}"))) {
                Some("pu_read" | "pu_program" | "pu_erase") => "pu_OP_CAUSE".to_owned(),
                Some(base) => format!("{base}_CAUSE"),
                None => base.to_owned(),
            };
            let base = if base.starts_with("array_") { "array_OP" } else { &base };
            assert!(docs.contains(&format!("`{base}`")), "{name}: {code} is not in docs/report.md");
        }
    }
}

#[test]
fn drives_of_one_scenario_are_explained_apart() {
    let one = drive("block", "name = \"a\"\nftl = { over_provisioning = 0.3 }");
    let two = drive(
        "open-channel",
        "name = \"b\"\ntarget = { kind = \"pblk\", over_provisioning = 0.3 }",
    );
    let text = one.replace("[drive]", "[[drive]]")
        + &two.replace("[drive]", "[[drive]]")
        + "[precondition]\nfill = \"sequential\"\n\
           [[job]]\nname = \"x\"\ndrive = \"a\"\nrw = \"randread\"\nbs = \"4k\"\nnumber_ios = 50\n\
           [[job]]\nname = \"y\"\ndrive = \"b\"\nrw = \"randread\"\nbs = \"4k\"\nnumber_ios = 70\n";
    let outcome = explain(&text, ALL);
    for (drive, (jobs, count)) in outcome.paths.iter().zip([("x", 50), ("y", 70)]) {
        let explanation = drive.explanation.as_ref().unwrap();
        assert_eq!(
            (&explanation.jobs[..], explanation.slowest.len()),
            (&[jobs.to_owned()][..], count)
        );
        let reasons = explanation.slowest.iter().flat_map(|r| &r.waits);
        assert!(reasons.into_iter().all(|w| w.kind != WaitKind::Unexplained));
    }
}

/// Runs a scenario; returns the outcome and the events of its trace.
fn trace(text: &str) -> (SimOutcome, Vec<Value>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    let output = TraceOutput::create(&path).unwrap();
    let options = SimOptions { slowest: ALL, trace: Some(output), ..SimOptions::default() };
    let outcome = simulate(&scenario(text), options).unwrap();
    let events = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    (outcome, events)
}

#[test]
fn traces_have_every_request_its_waits_and_arrows_to_its_operations() {
    for name in ["block", "pblk", "shards", "rrpc", "mq", "pcm", "null"] {
        let (_, text) = all_paths().into_iter().find(|(n, _)| *n == name).unwrap();
        let (outcome, events) = trace(&text);
        let slices = |name: &str| -> Vec<&Value> {
            events.iter().filter(|e| e["ph"] == "X" && e["name"] == name).collect()
        };
        // The slots of jobs have process numbers above 10,000.
        let jobs = |e: &&&Value| e["pid"].as_u64().is_some_and(|pid| pid > 10_000);
        let requests = |op: &str| slices(op).iter().filter(jobs).count() as u64;
        let run = &outcome.paths[0].run.jobs;
        for (i, op) in ["read", "write", "trim"].into_iter().enumerate() {
            let done: u64 = run.iter().map(|job| job.directions[i].ios).sum();
            assert_eq!(requests(op), done, "{name}: {op}");
        }
        let numbered: BTreeSet<u64> = events
            .iter()
            .filter(|e| e["ph"] == "X" && e["pid"].as_u64().is_some_and(|pid| pid > 10_000))
            .filter_map(|e| e["args"]["request"].as_u64())
            .collect();
        let arrows = |phase: &str| -> Vec<u64> {
            let ends = events.iter().filter(|e| e["ph"] == phase && e["cat"] == "flow");
            let mut ids: Vec<u64> = ends
                .map(|e| u64::from_str_radix(&e["id"].as_str().unwrap()[2..], 16).unwrap())
                .collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(arrows("s"), arrows("f"), "{name}");
        if matches!(name, "pcm" | "null") {
            continue;
        }
        // Operations of requests have the number of their request, and each has an arrow.
        let of_requests = events.iter().filter(|e| {
            let array = ["read", "program", "erase"].iter().any(|op| e["name"] == *op);
            let request = e["args"]["request"].as_u64();
            e["ph"] == "X"
                && e["pid"] == 1
                && array
                && request.is_some_and(|r| numbered.contains(&r))
        });
        assert_eq!(of_requests.count(), arrows("s").len(), "{name}");
        assert!(arrows("s").len() > 1_000, "{name}");
        for cause in ["host", "gc"] {
            assert!(events.iter().any(|e| e["args"]["cause"] == cause), "{name}: {cause}");
        }
        assert!(slices("program").iter().any(|e| e["args"]["lba"].is_u64()), "{name}");
        let reclaimed = outcome.paths[0].ftl.unwrap().lines_reclaimed;
        let gc = events.iter().filter(|e| e["ph"] == "b" && e["name"] == "GC of a line").count();
        assert!(gc > 0 && gc as u64 <= reclaimed, "{name}: {gc} of {reclaimed}");
        assert!(events.iter().any(|e| e["ph"] == "b" && e["name"] == "flush"), "{name}");
        // The counters exclude preconditioning, as in the table.
        let last = events.iter().rfind(|e| e["name"] == "write amplification").unwrap();
        let shown = outcome.paths[0].ftl.unwrap().write_amplification().unwrap();
        assert!((last["args"]["value"].as_f64().unwrap() - shown).abs() < 1e-9, "{name}");
    }
}

#[test]
fn traces_of_runs_on_several_threads_do_not_mix() {
    let paths = all_paths();
    let texts: Vec<&str> = ["block", "pblk", "mq", "rrpc"]
        .map(|name| paths.iter().find(|(n, _)| *n == name).unwrap().1.as_str())
        .to_vec();
    let alone: Vec<_> = texts.iter().map(|text| trace(text)).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = texts.iter().map(|text| scope.spawn(|| trace(text))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for ((alone, together), text) in alone.iter().zip(&together).zip(&texts) {
        assert!(alone.1 == together.1, "the trace depends on other threads: {text}");
        assert_eq!(to_json(&alone.0), to_json(&together.0), "{text}");
    }
}
