//! `sluice bench` and `sluice calibrate`: output and exit codes. The measurements are as short as
//! possible, and no timing is asserted.

// guarantee

use std::process::{Command, Output};

use serde_json::Value;

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Runs `sluice bench`; a busy machine may miss some bounds.
fn bench(args: &[&str]) -> Output {
    let out = sluice(&[&["bench"], args].concat());
    assert!(matches!(out.status.code(), Some(0 | 3)), "{}", text(&out.stderr));
    // The exit code follows from the verdicts, except for the expected misses.
    let failed = text(&out.stdout).contains("\"verdict\":\"fail\"");
    assert!(failed || out.status.success() || !args.contains(&"--json"), "{}", text(&out.stderr));
    out
}

#[test]
fn bench_ring_prints_one_object_per_line() {
    let out = bench(&["ring", "--json", "--quick"]);
    let lines: Vec<Value> = text(&out.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in {line}")))
        .collect();
    assert!(lines.len() >= 12);
    for line in &lines {
        let object = line.as_object().unwrap();
        for key in object.keys() {
            let known = ["bench", "case", "metric", "value", "unit", "samples", "min", "max"];
            let compared = ["reference", "ratio", "bound", "verdict"];
            let is_known = [&known[..], &compared].concat().contains(&key.as_str());
            assert!(is_known, "{key} in {line}");
        }
        assert_eq!(line["bench"], "ring");
        assert!(line["case"].is_string() && line["metric"].is_string() && line["unit"].is_string());
        assert!(line["value"].as_f64().is_some_and(|v| v.is_finite() && v >= 0.0), "{line}");
        if let Some(reference) = object.get("reference") {
            assert!(reference["what"].is_string() && reference["value"].is_number(), "{line}");
        }
    }
    for case in ["bare rings, one thread, batch 1", "queue pair, one thread, batch 32"] {
        let compared = |l: &&Value| l["case"] == case && l["ratio"].is_number();
        assert_eq!(lines.iter().filter(compared).count(), 1, "{case}");
    }
}

#[test]
fn bench_block_compares_the_variants() {
    let out = bench(&["block", "--json", "--quick"]);
    let lines: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for way in ["mq, no merging", "mq", "sq", "mq, traced"] {
        for load in ["QD 32, 32 at a time", "QD 32, 8 at a time", "QD 1, 1 at a time"] {
            let case = format!("null, {way}, {load}");
            let line = lines.iter().find(|l| l["case"] == case.as_str()).expect(&case);
            assert!(line["ratio"].as_f64().unwrap() > 0.0, "{line}");
        }
    }
    for metric in ["latency_p50", "latency_p99", "latency_max", "share_over_1ms"] {
        assert_eq!(lines.iter().filter(|l| l["metric"] == metric).count(), 16, "{metric}");
    }
    assert_eq!(lines.iter().filter(|l| l["metric"] == "iops").count(), 10);
}

#[test]
fn bench_hiops_measures_every_figure() {
    let out = bench(&["hiops", "--json", "--quick"]);
    let lines: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let has = |case: &str, metric: &str| {
        let found = lines.iter().filter(|l| l["case"] == case && l["metric"] == metric);
        assert_eq!(found.count(), 1, "{case}: {metric}");
    };
    for size in ["0.5 KB", "64 KB"] {
        for strategy in ["SCSI", "NVMe", "IRQ I/O (coop + lazy)", "poll I/O (coop + lazy)"] {
            has(&format!("{size} reads, 16 threads, {strategy}"), "iops");
            has(&format!("{size} reads, 16 threads, {strategy}"), "context_switches_per_io");
        }
    }
    for step in ["SCSI", "non-blocking", "+lazy", "+coop"] {
        for metric in ["cpu_p50", "cpu_p99", "cpu_max"] {
            has(&format!("handler, 0.5 KB reads, 16 threads, {step}"), metric);
        }
    }
    has("0.5 KB reads, 16 threads, async poll every 16 us", "iops");
    has("0.5 KB reads, 16 threads, with coop poll every 16 us", "iops");
    has("0.5 KB reads, 1 threads, hybrid", "iops");
}

#[test]
fn bench_lightnvm_judges_what_has_a_bound() {
    let out = bench(&["lightnvm", "--json", "--quick"]);
    let lines: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |case: &str, metric: &str| {
        let mut found = lines.iter().filter(|l| l["case"] == case && l["metric"] == metric);
        let row = found.next().unwrap_or_else(|| panic!("{case}: {metric}"));
        assert!(found.next().is_none(), "duplicate row {case}: {metric}");
        row
    };
    // In each row with a bound, the verdict must follow from the value and the bound.
    let mut verdicts = [0, 0];
    for line in &lines {
        assert_eq!(line["bench"], "lightnvm");
        let Some(bound) = line.get("bound") else {
            assert!(line.get("verdict").is_none(), "{line}");
            continue;
        };
        let value = line["value"].as_f64().unwrap();
        let least = bound.get("least").map_or(f64::MIN, |l| l.as_f64().unwrap());
        let most = bound.get("most").map_or(f64::MAX, |m| m.as_f64().unwrap());
        assert!(least > f64::MIN || most < f64::MAX, "{line}");
        let holds = (least..=most).contains(&value);
        assert_eq!(line["verdict"], if holds { "pass" } else { "fail" }, "{line}");
        verdicts[usize::from(holds)] += 1;
    }
    assert!(verdicts[1] > 0, "{verdicts:?}");
    // Virtual-time results that follow from the preset's timing alone; they are the same on every
    // machine.
    for (case, bandwidth) in [
        ("vector I/O, one PU, 64 KB writes, QD 4", 65_536.0 / 1390.0),
        ("vector I/O, one PU, 4 KB random reads, QD 1", 4096.0 / (58.5 + 4096.0 / 280.0)),
        ("vector I/O, one PU, 4 KB sequential reads, QD 1", 4096.0 / (24.375 + 4096.0 / 280.0)),
        ("vector I/O, one PU, 64 KB sequential reads, QD 4", 280.0),
    ] {
        let row = row(case, "bandwidth");
        assert!((row["value"].as_f64().unwrap() / bandwidth - 1.0).abs() < 0.01, "{row}");
        assert_eq!((&row["verdict"], &row["reference"]["what"]), (&"pass".into(), &"paper".into()));
    }
    for active in [128, 4] {
        for what in ["256 KB random reads", "256 KB writes"] {
            row(&format!("pblk, {active} active PUs, mixed, {what}"), "bandwidth");
        }
    }
    let at = |side: &str, percent: u32, metric: &str| {
        let case = format!("{side}, 4 KB random reads, {percent} % writes");
        row(&case, metric)["value"].as_f64().unwrap()
    };
    for metric in ["latency_p50", "latency_p99", "latency_p99_99"] {
        let apart = |percent| at("vector I/O, channels of their own", percent, metric);
        assert_eq!(apart(0), apart(50), "{metric}");
    }
    let managed = |percent| at("drive-managed", percent, "latency_p99_9");
    assert!(managed(20) > 5.0 * managed(0), "reads must wait for programs");
    for fails in ["reads fail", "programs fail", "erases fail", "all of them fail"] {
        let case = format!("pblk, {fails}, 1 in 100");
        for metric in ["lost", "hidden", "other_errors"] {
            assert_eq!(row(&case, metric)["verdict"], "pass", "{case}: {metric}");
        }
    }
    for what in ["reads", "writes"] {
        for threads in ["1 thread", "2 threads"] {
            let case = format!("host, 4 KB random {what} in 4 GiB, {threads}, 32 at a time");
            assert!(row(&case, "pblk_adds").get("verdict").is_some());
        }
    }
    for data in ["data in memory", "no data"] {
        for cores in ["drive on a core of its own", "one core"] {
            let case = format!("host at work, 4 KB random overwrites, QD 128, {data}, {cores}");
            assert!(row(&case, "iops")["value"].as_f64().unwrap() > 0.0);
            assert!(row(&case, "write_amplification")["value"].as_f64().unwrap() > 1.0);
            assert!(row(&case, "latency_max").get("verdict").is_some());
        }
    }
}

#[test]
fn bench_direct_measures_every_part() {
    let out = bench(&["direct", "--json", "--quick"]);
    let lines: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["bench"] == "direct"));
    let row = |case: &str, metric: &str| {
        let mut found = lines.iter().filter(|l| l["case"] == case && l["metric"] == metric);
        let row = found.next().unwrap_or_else(|| panic!("{case}: {metric}"));
        assert!(found.next().is_none(), "duplicate row {case}: {metric}");
        row
    };
    let most = &row("null, queue and handle, QD 32", "ns_per_command")["bound"]["most"];
    assert_eq!(*most, 60.0);
    for policy in ["scheduler deadline", "2 lanes in turns", "a seat at a shared queue"] {
        let row = row(&format!("null, {policy}, QD 32"), "ns_per_command");
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
    let hit = row("null, cache hits in 512 KiB, QD 32", "ns_per_command");
    assert_eq!(hit["reference"]["what"], "copies of 4 KB from 512 KiB");
    // fio is optional; without it these rows have no verdict.
    let fio = row("file", "fio_is_there")["value"] == 1.0;
    for depth in [1, 4] {
        let case = format!("file, 4 KB random reads, QD {depth}, sleeping");
        for metric in ["iops", "latency_mean", "latency_p99", "cpu_per_io"] {
            assert_eq!(row(&case, metric).get("verdict").is_some(), fio, "{case}: {metric}");
        }
    }
    assert_eq!(fio, text(&out.stderr).contains("--ioengine=io_uring --fixedbufs=1"));
    for (depth, metric) in [(1, "round_trip_p50"), (128, "iops")] {
        let of = |way| format!("null drive {way}, 4 KB reads without data, QD {depth}");
        let away = row(&of("in another process"), metric);
        assert_eq!(away["reference"]["what"], "on a thread of this process");
        assert!(row(&of("on a thread of this process"), metric)["value"].as_f64().unwrap() > 0.0);
        assert!(away.get("verdict").is_some(), "{away}");
    }
    for size in [4, 8, 16] {
        for looks in ["the application looks", "every 10 us", "dynamic"] {
            let left = row(&format!("{size} KB reads, QD 32, {looks}"), "iops_left");
            assert_eq!(left["reference"]["what"], "what the timer allows");
        }
    }
    // Virtual-time results are the same on every machine.
    let own = row("4 writers of 4 KB, QD 4, a queue each", "first_iops");
    assert_eq!(own["verdict"], "pass", "{own}");
    for way in
        ["the first has a queue, the others share one", "one queue, the first in a better class"]
    {
        let first = row(&format!("4 writers of 4 KB, QD 4, {way}"), "first_iops");
        assert_eq!(first["verdict"], "pass", "{first}");
    }
    let reader =
        |neighbour: &str| row(&format!("a reader of 4 KB, QD 1, {neighbour}"), "latency_p99");
    let beside = reader("beside one at QD 1024");
    assert!(beside["ratio"].as_f64().unwrap() > 10.0, "{beside}");
    let behind = reader("beside one at QD 1024 with 2000 tokens a second");
    assert_eq!(behind["verdict"], "pass", "{behind}");
}

#[test]
fn a_part_is_of_one_group() {
    let out = bench(&["direct", "--part", "service", "--json", "--quick"]);
    let shown = text(&out.stdout);
    assert!(shown.contains("4 writers") && !shown.contains("null, queue"), "{shown}");
    for (group, part, of) in [
        ("direct", "steady", "`lightnvm`"),
        ("lightnvm", "polling", "`direct`"),
        ("ring", "null", "`direct`"),
        ("lightnvm", "openssd", "`thesis`"),
    ] {
        let out = sluice(&["bench", group, "--part", part]);
        assert_eq!(out.status.code(), Some(2), "{group} {part}");
        let said = text(&out.stderr);
        assert!(said.contains(part) && said.contains(of), "{said}");
        assert!(out.stdout.is_empty());
    }
    let unknown = sluice(&["bench", "direct", "--part", "nonsense"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("polling"), "{}", text(&unknown.stderr));
}

#[test]
fn bench_ring_prints_a_table() {
    let out = bench(&["ring", "--quick"]);
    let shown = text(&out.stdout);
    assert!(shown.starts_with("case "), "{shown}");
    assert!(shown.contains("queue pair, one thread, batch 8"), "{shown}");
}

#[test]
fn an_unknown_group_is_a_usage_error() {
    for args in [&["bench"][..], &["bench", "nonsense"], &["bench", "ring", "extra"]] {
        let out = sluice(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(!out.stderr.is_empty() && out.stdout.is_empty());
    }
}

#[test]
fn calibrate_prints_costs_and_a_host_section_for_each_path() {
    let out = sluice(&["calibrate", "--quick"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    assert_eq!(shown.matches("[host]\nsubmit_cost = \"").count(), 2, "{shown}");
    assert!(!shown.contains("keep up"), "without a scenario there is no verdict: {shown}");
}

#[test]
fn calibrate_judges_a_scenario() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = dir.path().join("scenario.toml");
    std::fs::write(&scenario, "[drive]\npreset = \"mqsim-default-small\"\n").unwrap();
    let json = dir.path().join("machine.json");
    let (scenario, json) = (scenario.to_str().unwrap(), json.to_str().unwrap());
    let out = sluice(&["calibrate", scenario, "--json", json, "--quick"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("in real time?"));
    let written: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert!(written["host"]["in_process"]["submit_ns"].is_u64());
    assert!(written["host"]["nbd"]["complete_ns"].is_u64());
    let drive = &written["scenario"]["drives"][0];
    assert!(drive["command_cost"]["read"]["drive_ns"].as_u64().is_some_and(|ns| ns > 1), "{drive}");
    for way in ["in_process", "nbd"] {
        let answer = drive[way]["keeps_up"].as_str().unwrap();
        assert!(["yes", "up_to_depth", "no"].contains(&answer), "{drive}");
    }
}

#[test]
fn calibrate_tells_a_mistake_before_it_measures() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = dir.path().join("scenario.toml");
    std::fs::write(&scenario, "[drive]\npreset = \"pcm\"\nnonsense = 1\n").unwrap();
    let bad = sluice(&["calibrate", scenario.to_str().unwrap(), "--quick"]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(text(&bad.stderr).contains("nonsense") && bad.stdout.is_empty());
    let missing = sluice(&["calibrate", "--json", "/no/such/folder/x.json", "--quick"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("/no/such/folder/x.json"));
}

#[test]
fn bench_scale_bounds_every_curve() {
    let parts = "queue-depth,jobs,pus,drives,lines,capacity";
    let out = bench(&["scale", "--part", parts, "--json", "--quick"]);
    let lines: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["bench"] == "scale"));
    // No miss is expected in this group: a curve above its bound fails the command.
    let failed = lines.iter().any(|line| line["verdict"] == "fail");
    assert_eq!(out.status.code(), Some(if failed { 3 } else { 0 }), "{}", text(&out.stderr));
    let row = |case: &str, metric: &str| {
        let mut found = lines.iter().filter(|l| l["case"] == case && l["metric"] == metric);
        let row = found.next().unwrap_or_else(|| panic!("{case}: {metric}"));
        assert!(found.next().is_none(), "duplicate row {case}: {metric}");
        row
    };
    let (reads, overwrites) = ("4 KB random reads", "4 KB random overwrites");
    let (io, sector) = ("cpu_per_io", "cpu_per_programmed_sector");
    for (axis, [first, last], load, metric) in [
        ("queue depth", [1, 64], reads, io),
        ("queue depth", [1, 64], overwrites, sector),
        ("jobs", [1, 64], reads, io),
        ("parallel units", [16, 64], reads, io),
        ("parallel units", [16, 64], overwrites, sector),
        ("drives", [1, 4], reads, io),
        ("lines", [64, 4096], overwrites, sector),
        ("GiB", [1, 2], reads, io),
        ("GiB", [1, 2], overwrites, sector),
    ] {
        let begin = row(&format!("{axis} {first}, {load}"), metric);
        assert!(begin.get("bound").is_none(), "the first point is the reference: {begin}");
        let end = row(&format!("{axis} {last}, {load}"), metric);
        let [cost, first_cost] =
            [end, begin].map(|row| row["value"].as_f64().filter(|cost| *cost > 0.0).unwrap());
        let growth = row(&format!("{axis} {first} to {last}, {load}"), "growth");
        let ratio = growth["value"].as_f64().unwrap();
        assert!((ratio * first_cost / cost - 1.0).abs() < 1e-4, "{growth} of {begin} and {end}");
        // The bound is logarithmic: 25 % of the first cost per doubling.
        let doublings = (f64::from(last) / f64::from(first)).log2();
        let most = end["bound"]["most"].as_f64().unwrap();
        assert!((most / (first_cost * (1.0 + 0.25 * doublings)) - 1.0).abs() < 1e-4, "{end}");
        assert_eq!(end["verdict"], if cost <= most { "pass" } else { "fail" }, "{end}");
        if load == overwrites {
            let case = format!("{axis} {last}, {load}");
            assert!(row(&case, "write_amplification")["value"].as_f64().unwrap() > 1.0);
        }
    }
}

#[test]
fn bench_thesis_measures_every_part() {
    let out = bench(&["thesis", "--json", "--quick"]);
    let lines: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["bench"] == "thesis"));
    let row = |case: &str, metric: &str| {
        let mut found = lines.iter().filter(|l| l["case"] == case && l["metric"] == metric);
        let row = found.next().unwrap_or_else(|| panic!("{case}: {metric}"));
        assert!(found.next().is_none(), "duplicate row {case}: {metric}");
        row
    };
    let value = |case: &str, metric: &str| row(case, metric)["value"].as_f64().unwrap();
    let paper = |case: &str, metric: &str| {
        let reference = &row(case, metric)["reference"];
        assert_eq!(reference["what"], "paper", "{case}: {metric}");
        reference["value"].as_f64().unwrap()
    };
    for (drive, stalls) in [("consumer drive", true), ("data-center drive", false)] {
        let case = format!("{drive}, 16 MB of 4 KB random writes, QD 1");
        let megabytes = (1..=16).map(|n| value(&format!("{case}, megabyte {n}"), "latency_mean"));
        let mean = megabytes.sum::<f64>() / 16.0;
        assert!((mean / value(&case, "latency_mean") - 1.0).abs() < 1e-4, "{case}: {mean}");
        let [p50, p99, max] =
            ["latency_p50", "latency_p99", "latency_max"].map(|metric| value(&case, metric));
        assert!(0.0 < p50 && p50 <= p99 && p99 <= max, "{case}: {p50} {p99} {max}");
        assert_eq!(max > 10.0 * p50, stalls, "{case}: {p50} {max}");
    }
    for operation in ["random reads", "sequential reads", "random writes", "sequential writes"] {
        for side in ["Greedy", "LightNVM"] {
            let case = format!("OpenSSD {side}, 4 KB {operation}, QD 2");
            // In the paper as here, IOPS times mean latency is the depth.
            let measured = value(&case, "iops") * value(&case, "latency_mean");
            let published = paper(&case, "iops") * paper(&case, "latency_mean");
            for outstanding in [measured / 1e6, published / 1e6] {
                assert!((outstanding - 2.0).abs() < 0.02, "{case}: {outstanding}");
            }
            assert!(value(&case, "latency_stddev") > 0.0 && value(&case, "iops_stddev") > 0.0);
        }
        let case = format!("OpenSSD LightNVM, 4 KB {operation}, QD 2");
        let ratio = row(&case, "times_greedy");
        assert_eq!(ratio.get("verdict").is_some(), operation.ends_with("writes"), "{ratio}");
    }
    for kilobytes in [4, 8, 16, 32, 64, 128, 256, 512] {
        for load in ["random reads", "random writes", "random reads and writes"] {
            let case = format!("null device, {kilobytes} KB {load}");
            let [without, with] = ["without target", "with target"]
                .map(|side| value(&format!("{case}, {side}"), "bandwidth"));
            let overhead = row(&case, "overhead")["value"].as_f64().unwrap();
            assert!((100.0 * (1.0 - with / without) - overhead).abs() < 0.01, "{case}");
            let compared = load == "random reads" && [4, 512].contains(&kilobytes);
            assert_eq!(row(&case, "overhead").get("reference").is_some(), compared, "{case}");
        }
        let mut shares = Vec::new();
        for side in ["without target", "with target"] {
            let case = format!("nvme-null, {kilobytes} KB random writes, {side}");
            assert_eq!(row(&case, "bandwidth")["verdict"], "pass");
            let share = value(&case, "cpu_per_io") * value(&case, "iops") / 1e7;
            assert!((share / value(&case, "cpu_share") - 1.0).abs() < 1e-3, "{case}: {share}");
            shares.push(share);
        }
        let case = format!("nvme-null, {kilobytes} KB random writes, with target");
        assert!((value(&case, "cpu_added") - (shares[1] - shares[0])).abs() < 1e-2, "{case}");
    }
    for (operation, target) in [("read", 133.0), ("write", 308.0)] {
        let component = |name: &str| format!("request, 4 KB {operation}, {name}");
        let paths = ["driver", "block layer and driver", "block layer, target and driver"];
        let totals = paths.map(|path| value(&component(path), "total"));
        for (name, sum, paper_sum) in [
            ("block layer", totals[1] - totals[0], 333.0),
            ("target", totals[2] - totals[1], target),
        ] {
            let adds = row(&component(name), "total_adds")["value"].as_f64().unwrap();
            assert!((adds - sum).abs() < 0.01, "{name}: {adds} is not {sum}");
            assert_eq!(paper(&component(name), "total_adds"), paper_sum);
            for metric in ["submission_adds", "completion_adds"] {
                paper(&component(name), metric);
            }
        }
    }
    let of = |name: &str| value(&format!("host FTL on {name}, 4 KB random writes, QD 32"), "iops");
    let [openssd, nand, null, memory] =
        ["OpenSSD", "simulated NAND", "NVMe null device", "memory"].map(of);
    assert!(openssd < nand && nand < null && null < memory);
}

/// Uses rows in virtual time, which are the same on every machine.
#[test]
fn a_result_outside_of_its_bound_ends_with_3_unless_it_is_expected() {
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("expected.toml");
    let mixed = |more: &[&str]| {
        sluice(&[&["bench", "lightnvm", "--part", "mixed", "--json", "--quick"], more].concat())
    };
    let expecting = |text: &str| {
        std::fs::write(&list, text).unwrap();
        mixed(&["--expected", list.to_str().unwrap()])
    };
    // The committed list has the misses that SPECIFICATION.md names.
    let out = mixed(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let missed = text(&out.stdout);
    let missed: Vec<Value> = missed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|row: &Value| row["verdict"] == "fail")
        .collect();
    assert!(!missed.is_empty());
    let out = expecting("");
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    let said = text(&out.stderr);
    for row in &missed {
        assert!(said.contains(row["case"].as_str().unwrap()), "{row} is not in: {said}");
    }
    let entry = |row: &Value| {
        let (case, metric) = (&row["case"], &row["metric"]);
        format!(
            "[[miss]]\nbench = \"lightnvm\"\ncase = {case}\nmetric = {metric}\nreason = \"the media\"\n"
        )
    };
    let all: String = missed.iter().map(entry).collect();
    let out = expecting(&all);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert!(out.stderr.is_empty(), "{}", text(&out.stderr));
    // An unnecessary entry is reported, but does not change the exit code.
    let kept = "[[miss]]\nbench = \"lightnvm\"\ncase = \"pblk, 128 *\"\nmetric = \"bandwidth\"\nreason = \"x\"\n";
    let out = expecting(&format!("{all}{kept}"));
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("pblk, 128 *") && text(&out.stderr).contains("no longer"));
    let out = expecting("nonsense");
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    assert!(out.stdout.is_empty(), "an invalid list must be reported before any measurement");
}

/// Without the packages of `make repro`, programs are missing, and their rows with them.
#[test]
fn bench_speculate_measures_every_part() {
    let is_there = |name: &str| {
        let path = std::env::var("PATH").unwrap_or_default();
        path.split(':').any(|directory| std::path::Path::new(directory).join(name).is_file())
    };
    if !["qemu-x86_64", "tar", "bzip2"].into_iter().all(is_there) {
        testkit::skip!("no qemu-x86_64, tar or bzip2");
        return;
    }
    let parts = "strategies,profile,clone";
    let out = bench(&["speculate", "--quick", "--json", "--part", parts]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let rows: Vec<serde_json::Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let value = |case: &str, metric: &str| {
        let is_row = |row: &&serde_json::Value| row["case"] == case && row["metric"] == metric;
        let row = rows.iter().find(is_row).unwrap_or_else(|| panic!("{case}, {metric}"));
        row["value"].as_f64().unwrap()
    };
    for program in ["dd", "tar"] {
        let paper = value(&format!("{program}, write, paper's rule"), "instructions");
        let sluice = value(&format!("{program}, write, rule of Sluice"), "instructions");
        assert!((50.0..1000.0).contains(&paper), "{program}: {paper}");
        assert!(sluice > 100.0 * paper, "{program}: {sluice}");
    }
    assert!(value("table 2", "programs_in_order_of_magnitude") >= 2.0);
    for pages in ["4 KiB", "huge"] {
        assert!(value(&format!("clone, 32 MiB, {pages} pages"), "clone") > 0.0);
    }
    assert!(value("checkpoint, 32 MiB, 64 written pages", "incremental") > 0.0);
}
