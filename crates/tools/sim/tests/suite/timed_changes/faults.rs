//! Faults of drives at instants of a run (`[[fault]]`).

// guarantee: B-64, B-90, B-91, B-97

use std::path::Path;

use controller::FaultRecord;
use nvme::Status;
use scenario::{Scenario, ScenarioError};
use serde_json::{Value, json};
use sluice_sim::{SimError, SimOptions, SimOutcome, simulate, to_json, to_variant};
use workload::ErrorCause;

/// A drive with an FTL of its own that stores data, full of it.
const DRIVE: &str = "[drive]\npreset = \"femu-default\"\ndata = \"memory\"\n\
    geometry = { channels = 4, pus = 2, chunks = 24, pages = 32 }\n\
    [precondition]\nfill = \"sequential\"\n";

/// Reads that go on for 20 ms whatever fails.
const READS: &str = "[[job]]\nrw = \"randread\"\nbs = \"4k\"\niodepth = 8\ntime_based = true\n\
    runtime = \"20ms\"\ncontinue_on_error = \"all\"\n";

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(Path::new("s.toml"), text)
}

fn try_run(text: &str) -> Result<SimOutcome, SimError> {
    simulate(&parse(text)?, SimOptions::default())
}

fn run(text: &str) -> SimOutcome {
    try_run(text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn fault(at: &str, kind: &str, keys: &str) -> String {
    format!("[[fault]]\nat = \"{at}\"\nkind = \"{kind}\"\n{keys}\n")
}

/// Returns the number of failed requests, after a check that all of them have one status.
fn failed(outcome: &SimOutcome, expected: Status) -> u64 {
    let job = &outcome.paths[0].run.jobs[0];
    for failure in &job.failures {
        assert_eq!(failure.cause, ErrorCause::Status(expected), "{failure}");
    }
    assert_eq!(job.requests.mismatches, 0);
    job.requests.failed
}

fn ios(outcome: &SimOutcome) -> u64 {
    outcome.paths[0].run.jobs[0].directions.iter().map(|direction| direction.ios).sum()
}

fn only(outcome: &SimOutcome) -> FaultRecord {
    let [record] = outcome.drives[0].faults[..] else { panic!("{:?}", outcome.drives[0].faults) };
    record
}

#[test]
fn a_die_fails_in_the_middle_of_a_run() {
    let outcome = run(&format!("{DRIVE}{READS}{}", fault("10ms", "die-failure", "pu = 3")));
    let (failed, all) = (failed(&outcome, Status::UNRECOVERED_READ), ios(&outcome));
    // One of eight dies, for half of the time.
    let share = failed as f64 / all as f64;
    assert!((0.04..0.09).contains(&share), "{failed} of {all}");
    let first = outcome.paths[0].run.jobs[0].failures[0].at;
    let job = &outcome.paths[0].run.jobs[0];
    let after = first.since(job.started).0;
    assert!((10_000_000..11_000_000).contains(&after), "{after}");
    assert_eq!((only(&outcome).at.0, only(&outcome).count), (10_000_000, Some(24)));
}

#[test]
fn dies_fail_at_a_rate() {
    let writes = "[[job]]\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 8\ntime_based = true\n\
        runtime = \"60ms\"\ncontinue_on_error = \"all\"\n";
    let errors = "errors = { die_failure_rate = 0.0005 }\n[precondition]";
    let text = format!("{}{writes}", DRIVE.replace("[precondition]", errors));
    let outcome = run(&text);
    let offline = outcome.drives[0].drive.media.unwrap().offline_chunks;
    assert!(offline >= 24 && offline.is_multiple_of(24), "whole dies: {offline} chunks");
    assert!(outcome.paths[0].run.jobs[0].requests.failed > 0, "their data is lost");
    let json = to_json(&outcome);
    let found = &json["sluice"]["parameters"]["drives"][0]["media"]["errors"]["die_failure_rate"];
    assert_eq!(found, &json!(0.0005));
    assert_eq!(json, to_json(&run(&text)));
    let wrong = text.replace("0.0005", "1.5");
    let error = parse(&wrong).unwrap_err().to_string();
    assert!(error.contains("die_failure_rate") && error.contains("s.toml:5"), "{error}");
}

#[test]
fn faults_are_repeated_exactly_and_are_in_the_results() {
    let text = format!(
        "{DRIVE}[[job]]\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 8\ntime_based = true\n\
         runtime = \"60ms\"\ncontinue_on_error = \"all\"\n{}{}{}{}{}",
        fault("9ms", "read-failure", "rate = 0.01\nduration = \"5ms\""),
        fault("1ms", "slow-die", "pu = 1\nfactor = 8\nduration = \"2ms\""),
        fault("15ms", "power-cut", "after_ops = 7"),
        fault("20ms", "program-failure", "rate = 0.001\nduration = \"30ms\""),
        fault("30ms", "stalled-queue", "queue = 1\nduration = \"1ms\""),
    );
    let [a, b] = [(); 2].map(|()| to_json(&run(&text)).to_string());
    assert!(a == b, "two runs of one scenario differ");
    let outcome = run(&text);
    let result = to_json(&outcome);
    let faults = result["sluice"]["faults"].as_array().expect("the faults");
    let kinds: Vec<&Value> = faults.iter().map(|fault| &fault["kind"]).collect();
    let expected = ["slow-die", "read-failure", "power-cut", "program-failure", "stalled-queue"];
    assert_eq!(kinds, expected);
    let slow = json!({
        "time_ns": 1_000_000, "drive": "drive0", "kind": "slow-die", "pu": 1, "factor": 8.0,
        "duration_ns": 2_000_000, "open": false,
    });
    assert_eq!(faults[0], slow);
    let reads = faults[1]["count"].as_u64().expect("a count");
    let aborted = faults[2]["count"].as_u64().expect("a count");
    assert!(reads > 0 && aborted > 0, "{faults:?}");
    // Writes in flight are retried nowhere in this path.
    let failed = outcome.paths[0].run.jobs[0].requests.failed;
    assert_eq!(failed, outcome.drives[0].drive.errors);
    assert!((aborted..=aborted + reads).contains(&failed), "{failed}: {aborted} and {reads}");
    assert_eq!(result["sluice"]["parameters"]["faults"][1]["rate"], 0.01);
    let remarks = to_variant(&outcome).remarks;
    let slow = "slow-die of drive0 after 1 ms for 2 ms, times 8";
    let power = format!("power-cut of drive0 after 15 ms, {aborted} commands ended");
    for expected in [slow, &power] {
        assert!(remarks.iter().any(|remark| remark == expected), "{expected} in {remarks:?}");
    }
}

#[test]
fn a_run_without_effect_of_its_faults_equals_one_without_faults() {
    let plain = run(&format!("{DRIVE}{READS}"));
    let nothing = fault("5ms", "erase-failure", "rate = 0.5\nduration = \"1ms\"")
        + &fault("5ms", "erase-failure", "pu = 0\nchunk = 3");
    let with = run(&format!("{DRIVE}{READS}{nothing}"));
    assert_eq!(with.drives[0].faults.len(), 2);
    assert_eq!(with.drives[0].faults[0].count, Some(0));
    assert!(with.drives[0].faults[1].is_open, "nothing was erased");
    let results = |outcome: &SimOutcome| {
        let mut result = to_json(outcome);
        let section = result["sluice"].as_object_mut().expect("the section");
        for key in ["faults", "scenario"] {
            section.remove(key);
        }
        section["parameters"].as_object_mut().expect("parameters").remove("faults");
        result
    };
    assert_eq!(results(&with), results(&plain));
    assert!(to_json(&plain)["sluice"].get("faults").is_none());
}

// guarantee: B-84

#[test]
fn a_format_refuses_requests_and_clears_the_drive() {
    // Refused requests and reads of formatted sectors take the time of the completion.
    let timed = format!("{DRIVE}[drive.controller]\ncompletion_latency = \"5us\"\n{READS}");
    let quick = run(&format!("{timed}{}", fault("5ms", "format", "")));
    let refused = failed(&quick, Status::FORMAT_IN_PROGRESS);
    assert!(refused > 0 && refused < ios(&quick) / 2, "{refused} of {}", ios(&quick));
    let record = only(&quick);
    assert!(!record.is_open && record.count.is_some_and(|blocks| blocks > 1_000), "{record:?}");
    let drive = &quick.drives[0].drive;
    assert_eq!((drive.formats, drive.ftl.unwrap().erases), (1, 0));
    assert!(drive.ftl.unwrap().unmapped_reads > 0, "reads after the format");
    assert_eq!(to_json(&quick)["sluice"]["drives"][0]["interface"]["formats"], 1);
    // The erases take longer than the jobs.
    let slow = run(&format!("{timed}{}", fault("5ms", "format", "erase = true")));
    assert!(only(&slow).is_open && failed(&slow, Status::FORMAT_IN_PROGRESS) > refused);
    let remarks = to_variant(&slow).remarks;
    let expected = "format of drive0 after 5 ms, which did not end";
    assert!(remarks.iter().any(|remark| remark == expected), "{remarks:?}");
    assert_eq!(to_json(&slow)["sluice"]["faults"][0]["erase"], true);
    for (drive, keys, expected) in [
        ("[drive]\npreset = \"nvme-null\"\n", "", "no flash"),
        ("[drive]\npreset = \"ocssd-mlc-128pu-small\"\n", "", "no FTL of its own"),
        (DRIVE, "erase = 1", "erase"),
        (DRIVE, "lba = 1", "lba"),
    ] {
        let text = format!("{drive}{READS}{}", fault("5ms", "format", keys));
        let error = parse(&text).expect_err("the drive cannot be formatted").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

// guarantee: B-47

/// Without a completion latency a refused command takes a microsecond, so that time passes. Commands
/// that are refused do not keep the operation from starting.
#[test]
fn a_format_and_sanitize_end_whatever_the_latency_of_the_controller() {
    let timing = "timing = { read = \"10us\", program = \"30us\", erase = \"100us\" }\n";
    let drive = DRIVE.replacen("data = ", &format!("{timing}data = "), 1);
    for (depth, latency) in [(1, 0), (2, 0), (8, 0), (1, 5), (2, 5), (8, 5)] {
        let writes = READS
            .replace("randread", "randwrite")
            .replace("iodepth = 8", &format!("iodepth = {depth}"));
        let controller = format!("[drive.controller]\ncompletion_latency = \"{latency}us\"\n");
        for (kind, keys, status) in [
            ("format", "", Status::FORMAT_IN_PROGRESS),
            ("format", "erase = true", Status::FORMAT_IN_PROGRESS),
            ("sanitize", "action = \"block-erase\"", Status::SANITIZE_IN_PROGRESS),
        ] {
            let what = format!("{kind} {keys}, depth {depth}, {latency} us");
            let outcome = run(&format!("{drive}{controller}{writes}{}", fault("5ms", kind, keys)));
            let refused = failed(&outcome, status);
            assert!(refused > 0 && refused < 20_000 * depth, "{what}: {refused} refused");
            assert!(!only(&outcome).is_open, "{what} ends");
            let drive = &outcome.drives[0].drive;
            assert_eq!(drive.formats + drive.sanitizes, 1, "{what}");
        }
    }
}

// guarantee: B-46

#[test]
fn a_fault_names_a_block_of_a_namespace() {
    let two = DRIVE
        .replace("data = \"memory\"\n", "data = \"memory\"\nnamespaces = [\"1M\", \"rest\"]\n");
    let path = "[path]\nnamespace = 2\n";
    let reads = "[[job]]\nrw = \"read\"\nbs = \"4k\"\nsize = \"1m\"\nloops = 3\n\
                 continue_on_error = \"all\"\n";
    let text = |keys: &str| format!("{two}{path}{reads}{}", fault("0s", "uncorrectable", keys));
    let outcome = run(&text("lba = 100\nnamespace = 2"));
    assert_eq!(failed(&outcome, Status::UNRECOVERED_READ), 3);
    assert_eq!(to_json(&outcome)["sluice"]["faults"][0]["namespace"], 2);
    for (keys, expected) in [
        ("lba = 100\nnamespace = 3", "the drive has no namespace 3"),
        ("lba = 100\nnamespace = 0", "the drive has no namespace 0"),
        ("lba = 100\nnamespace = 33", "the drive has no namespace 33"),
        ("lba = 300\nnamespace = 1", "`lba` 300 does not exist: there are 256"),
        ("lba = 100\nnamespace = \"two\"", "namespace"),
        ("pu = 1\nchunk = 0\nsector = 0\nnamespace = 2", "has no key `namespace`"),
    ] {
        let text = text(keys);
        let error = match parse(&text) {
            Ok(_) => try_run(&text).expect_err("the drive cannot have the fault").to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(expected) && error.contains("s.toml:"), "{keys}: {error}");
    }
    // Results of namespace 1 do not name it.
    let outcome = run(&format!("{DRIVE}{reads}{}", fault("0s", "uncorrectable", "lba = 1")));
    assert!(to_json(&outcome)["sluice"]["faults"][0].get("namespace").is_none());
}

// guarantee: B-85

#[test]
fn sanitize_refuses_requests_and_clears_the_drive_also_over_a_power_cut() {
    let timed = format!("{DRIVE}[drive.controller]\ncompletion_latency = \"5us\"\n{READS}");
    let erase = fault("5ms", "sanitize", "action = \"block-erase\"");
    let [a, b] = [(); 2].map(|()| to_json(&run(&format!("{timed}{erase}"))).to_string());
    assert!(a == b, "two runs of one scenario differ");
    let long = timed.replace("runtime = \"20ms\"", "runtime = \"400ms\"");
    assert_ne!(long, timed, "the runtime of the jobs");
    let outcome = run(&format!("{long}{erase}"));
    let refused = failed(&outcome, Status::SANITIZE_IN_PROGRESS);
    assert!(refused > 0 && refused < ios(&outcome), "{refused} of {}", ios(&outcome));
    let record = only(&outcome);
    assert!(!record.is_open && record.count.is_some_and(|blocks| blocks > 1_000), "{record:?}");
    let drive = &outcome.drives[0].drive;
    assert_eq!((drive.sanitizes, drive.formats), (1, 0));
    let result = to_json(&outcome);
    assert_eq!(result["sluice"]["drives"][0]["interface"]["sanitizes"], 1);
    assert_eq!(result["sluice"]["faults"][0]["action"], "block-erase");
    assert!(drive.ftl.unwrap().unmapped_reads > 0, "reads afterwards");
    // It continues after a power cut, so that it takes longer.
    let cut = fault("15ms", "power-cut", "");
    let cut = run(&format!("{long}{erase}{cut}"));
    let job = &cut.paths[0].run.jobs[0];
    let is_expected = |cause: &ErrorCause| {
        let status = [Status::SANITIZE_IN_PROGRESS, Status::POWER_LOSS];
        status.into_iter().any(|status| *cause == ErrorCause::Status(status))
    };
    assert!(job.failures.iter().all(|failure| is_expected(&failure.cause)), "{:?}", job.failures);
    assert!(job.requests.failed >= refused, "{} and {refused}", job.requests.failed);
    assert_eq!(cut.drives[0].drive.sanitizes, 1);
    assert!(!cut.drives[0].faults[0].is_open);
    // The overwrite takes longer than the jobs.
    let overwrite = fault("5ms", "sanitize", "action = \"overwrite\"");
    let slow = run(&format!("{timed}{overwrite}"));
    assert!(only(&slow).is_open);
    let remarks = to_variant(&slow).remarks;
    let expected = "sanitize of drive0 after 5 ms, which did not end";
    assert!(remarks.iter().any(|remark| remark == expected), "{remarks:?}");
    let erase = "action = \"block-erase\"";
    for (drive, keys, expected) in [
        ("[drive]\npreset = \"nvme-null\"\n", erase, "no flash"),
        ("[drive]\npreset = \"ocssd-mlc-128pu-small\"\n", erase, "no FTL of its own to sanitize"),
        (DRIVE, "", "`action`"),
        (DRIVE, "action = \"blok-erase\"", "did you mean \"block-erase\"?"),
        (DRIVE, "action = \"crypto-erase\"", "overwrite"),
        (DRIVE, "action = 2", "action"),
        (DRIVE, "action = \"overwrite\"\nlba = 1", "lba"),
    ] {
        let text = format!("{drive}{READS}{}", fault("5ms", "sanitize", keys));
        let error = parse(&text).expect_err("the drive cannot be sanitized so").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn one_sector_fails_once_or_always() {
    let reads = "[[job]]\nrw = \"read\"\nbs = \"4k\"\nsize = \"1m\"\nloops = 3\n\
                 continue_on_error = \"all\"\n";
    for (kind, keys, expected) in [
        ("uncorrectable", "lba = 100", 3),
        ("read-failure", "lba = 100", 1),
        ("read-failure", "rate = 1\nduration = \"1s\"", 768),
    ] {
        let outcome = run(&format!("{DRIVE}{reads}{}", fault("0s", kind, keys)));
        assert_eq!(failed(&outcome, Status::UNRECOVERED_READ), expected, "{kind} {keys}");
    }
}

#[test]
fn corrupted_data_is_found_by_verification_only() {
    let verify = "[[job]]\nname = \"w\"\nrw = \"write\"\nbs = \"4k\"\nsize = \"1m\"\nend_fsync = true\n\
                  verify = \"crc32c\"\ncontinue_on_error = \"verify\"\n";
    let text = |at: &str| format!("{DRIVE}{verify}{}", fault(at, "corrupted-data", "lba = 5"));
    let plain = run(&format!("{DRIVE}{verify}"));
    let written = plain.paths[0].run.jobs[0].directions[1].runtime;
    let at = |nanos: u64| format!("{nanos}ns");
    // The job has written and flushed all, and has not yet read it back.
    let outcome = run(&text(&at(written.0 + 1_000)));
    let job = &outcome.paths[0].run.jobs[0];
    assert_eq!((job.requests.mismatches, job.requests.failed), (1, 0));
    assert_eq!(job.failures[0].lba, 5);
    assert_eq!(only(&outcome).count, Some(1));
    // Before, the job writes the sector again.
    let outcome = run(&text("0s"));
    assert_eq!(outcome.paths[0].run.jobs[0].errors(), 0);
}

/// The run of `corrupted_data_is_found_by_verification_only`, with protection information: on every
/// path the read fails, instead of returning wrong data.
#[test]
fn protection_information_finds_corrupted_data() {
    let layers = "[path]\nqueue_model = \"mq\"\ncores = 2\nscheduler = \"deadline\"\n";
    for (path, lba_bytes) in [("", 4096), (layers, 4096), ("", 512)] {
        let bytes = 16 + 8 * (4096 / lba_bytes);
        let drive = DRIVE.replacen(
            "geometry = {",
            &format!(
                "protection = \"type1\"\nlba_bytes = {lba_bytes}\n\
                 geometry = {{ oob_bytes = {bytes}, "
            ),
            1,
        );
        let job = "[[job]]\nname = \"w\"\nrw = \"write\"\nbs = \"4k\"\nsize = \"1m\"\n\
                   end_fsync = true\nverify = \"crc32c\"\ncontinue_on_error = \"all\"\n";
        let plain = run(&format!("{drive}{path}{job}"));
        assert_eq!(plain.paths[0].run.jobs[0].errors(), 0);
        let at = format!("{}ns", plain.paths[0].run.jobs[0].directions[1].runtime.0 + 1_000);
        let lba = 5 * 4096 / lba_bytes;
        for (what, status, kind) in [
            ("", Status::GUARD_CHECK, "guard"),
            ("what = \"guard\"", Status::GUARD_CHECK, "guard"),
            ("what = \"reference-tag\"", Status::REFERENCE_TAG_CHECK, "reference_tag"),
        ] {
            let keys = format!("lba = {lba}\n{what}");
            let text = format!("{drive}{path}{job}{}", fault(&at, "corrupted-data", &keys));
            let outcome = run(&text);
            assert_eq!(failed(&outcome, status), 1, "{text}");
            assert_eq!(outcome.paths[0].run.jobs[0].failures[0].lba, lba);
            let json = &to_json(&outcome)["sluice"];
            let errors = &json["drives"][0]["interface"]["protection_errors"];
            assert!(errors[kind].as_u64() >= Some(1), "{errors}");
            assert_eq!(json["parameters"]["drives"][0]["protection"], "type1");
            let recorded = &json["faults"][0]["what"];
            assert_eq!(recorded.is_null(), what.is_empty(), "{recorded}");
            assert_eq!(&to_json(&run(&text))["sluice"]["drives"], &json["drives"], "repeatable");
        }
    }
}

/// Protection information costs no time, apart from the bytes that hosts transfer.
#[test]
fn protection_information_takes_no_time() {
    let drive = DRIVE.replacen("geometry = {", "geometry = { oob_bytes = 24, ", 1);
    let protected = drive.replacen("[drive]", "[drive]\nprotection = \"type1\"", 1);
    let job = "[[job]]\nrw = \"randrw\"\nbs = \"8k\"\niodepth = 8\nsize = \"8m\"\n";
    let times = |drive: &str| {
        let outcome = run(&format!("{drive}{job}"));
        let directions = &outcome.paths[0].run.jobs[0].directions;
        directions.iter().map(|d| (d.ios, d.runtime, d.lat.mean())).collect::<Vec<_>>()
    };
    assert_eq!(times(&drive), times(&protected));
}

#[test]
fn a_slow_die_and_a_stalled_queue_cost_requests() {
    let plain = ios(&run(&format!("{DRIVE}{READS}"))) as f64;
    let stalled = fault("5ms", "stalled-queue", "queue = 1\nduration = \"10ms\"");
    let outcome = run(&format!("{DRIVE}{READS}{stalled}"));
    assert_eq!(failed(&outcome, Status::SUCCESS), 0);
    let share = ios(&outcome) as f64 / plain;
    assert!((0.45..0.55).contains(&share), "{share} with a stall for half of the time");
    let slow = fault("0s", "slow-die", "pu = 3\nfactor = 20");
    let share = ios(&run(&format!("{DRIVE}{READS}{slow}"))) as f64 / plain;
    assert!(share < 0.6, "{share} with a die that takes 20 times as long");
}

#[test]
fn the_block_layer_recovers_from_a_lost_completion() {
    let layer = "[path]\nqueue_model = \"mq\"\ntimeout = \"2ms\"\nabort_timeout = \"1ms\"\n";
    let lost = fault("5ms", "lost-completion", "queue = 1");
    let outcome = run(&format!("{DRIVE}{layer}{READS}{lost}"));
    assert_eq!(outcome.failures(), [""; 0]);
    assert_eq!((only(&outcome).is_open, only(&outcome).count), (false, Some(1)));
    let counts = to_json(&outcome)["sluice"]["drives"][0]["block_layer"].clone();
    assert_eq!(counts["dispatch_queues"][0]["timeouts"], 1, "{counts}");
    let raw = try_run(&format!("{DRIVE}{READS}{lost}")).map(|_| ()).unwrap_err().to_string();
    assert!(raw.contains("s.toml:16") && raw.contains("forever"), "{raw}");
}

/// The controller fails, and is reset by its registers: by a queue that waits for a late command,
/// or by one that looks at the status every half second.
#[test]
fn the_block_layer_recovers_from_a_controller_that_fails() {
    let registers = "controller = { registers = { ready_time = \"3ms\" } }\n";
    let drive = DRIVE.replace("[precondition]", &format!("{registers}[precondition]"));
    let fatal = fault("5ms", "controller-fatal", "");
    for (layer, least_ms, most_ms) in [
        ("[path]\nqueue_model = \"mq\"\ntimeout = \"2ms\"\nabort_timeout = \"1ms\"\n", 20, 100),
        ("[path]\nqueue_model = \"sq\"\n", 450, 600),
    ] {
        let outcome = run(&format!("{drive}{layer}{READS}{fatal}"));
        assert_eq!(outcome.failures(), [""; 0]);
        assert_eq!((only(&outcome).is_open, only(&outcome).count), (false, Some(8)));
        assert_eq!(failed(&outcome, Status::SUCCESS), 0);
        let all = to_json(&outcome);
        let registers = &all["sluice"]["drives"][0]["interface"]["registers"];
        let expected = json!({
            "starts": 2, "resets": 1, "shutdowns": 0, "failures": 1, "unknown_doorbells": 0
        });
        assert_eq!(registers, &expected);
        let runtime_ms = outcome.paths[0].run.jobs[0].directions[0].runtime.0 / 1_000_000;
        assert!((least_ms..=most_ms).contains(&runtime_ms), "{runtime_ms} ms");
    }
    let refused = |text: &str, part: &str| {
        let error = try_run(text).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{error} without {part}");
    };
    refused(&format!("{drive}{READS}{fatal}"), "forever");
    refused(&format!("{DRIVE}{READS}{fatal}"), "controller.registers = true");
}

/// The registers take no time of a run that does not reset the controller.
#[test]
fn results_do_not_depend_on_registers() {
    let registers = "controller = { registers = true }\n";
    let drive = DRIVE.replace("[precondition]", &format!("{registers}[precondition]"));
    for layer in ["", "[path]\nqueue_model = \"mq\"\n"] {
        let [plain, with] = [DRIVE, &drive].map(|drive| {
            let job = &run(&format!("{drive}{layer}{READS}")).paths[0].run.jobs[0];
            (job.directions[0].ios, job.directions[0].runtime)
        });
        assert_eq!(plain, with);
    }
}

#[test]
fn a_power_cut_ends_requests_and_the_run_goes_on() {
    let verify = "[[job]]\nname = \"w\"\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"4m\"\niodepth = 8\n\
                  fsync = 8\nverify = \"crc32c\"\ncontinue_on_error = \"all\"\n";
    for after in ["", "after_ops = 1", "after_ops = 30"] {
        let outcome = run(&format!("{DRIVE}{READS}{}", fault("5ms", "power-cut", after)));
        let lost = failed(&outcome, Status::POWER_LOSS);
        assert_eq!(only(&outcome).count, Some(lost));
        assert!((1..=8).contains(&lost), "{lost}");
        let all = ios(&outcome) as f64 / ios(&run(&format!("{DRIVE}{READS}"))) as f64;
        assert!(all > 0.98, "{all} of the requests of a run without a cut");
        run(&format!("{DRIVE}{verify}{}", fault("1ms", "power-cut", after)));
    }
}

#[test]
fn a_pblk_survives_a_power_cut_of_its_drive() {
    let drive = "[[drive]]\nname = \"oc\"\npreset = \"femu-default\"\ndata = \"memory\"\n\
        personality = \"open-channel\"\n\
        geometry = { channels = 4, pus = 2, chunks = 48, pages = 32 }\n\
        [[target]]\nname = \"t\"\nkind = \"pblk\"\npus = \"0-7\"\n";
    let verify = "[[job]]\nname = \"w\"\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"4m\"\niodepth = 8\n\
                  verify = \"crc32c\"\n";
    let outcome = run(&format!("{drive}{verify}{}", fault("3ms", "power-cut", "")));
    assert_eq!(outcome.failures(), [""; 0]);
    assert!(only(&outcome).count.unwrap_or(0) > 0, "commands were in flight");
    assert_eq!(outcome.paths[0].run.jobs[0].requests.verified, 1024);
}

#[test]
fn faults_that_cannot_be_are_refused_in_their_line() {
    let refused = |text: &str, says: &[&str]| {
        let error = try_run(text).map(|_| ()).unwrap_err().to_string();
        for part in says {
            assert!(error.contains(part), "{error} without {part}");
        }
    };
    // The section begins in line 14: `at` is in line 15, `kind` in 16, the keys follow.
    let with = |kind: &str, keys: &str| format!("{DRIVE}{READS}{}", fault("1ms", kind, keys));
    refused(&with("die-failure", "pu = 8"), &["s.toml:17", "`pu` 8 does not exist: there are 8"]);
    refused(&with("die-failure", ""), &["s.toml:14", "needs `pu`"]);
    refused(&with("die-failure", "pu = 1\nchunk = 2"), &["s.toml:18", "chunk"]);
    refused(&with("dye-failure", "pu = 1"), &["s.toml:16", "die-failure"]);
    refused(&with("chunk-offline", "pu = 1\nchunk = 24"), &["s.toml:18", "`chunk` 24"]);
    refused(&with("read-failure", "rate = 1.5\nduration = \"1s\""), &["s.toml:17", "from 0 to 1"]);
    refused(&with("read-failure", "rate = 0\nduration = \"1s\""), &["s.toml:17", "above 0"]);
    refused(&with("read-failure", "rate = 0.5"), &["s.toml:14", "needs `duration`"]);
    refused(&with("read-failure", "rate = 0.5\nlba = 3\nduration = \"1s\""), &["s.toml:18", "lba"]);
    refused(&with("read-failure", ""), &["s.toml:14", "needs `lba`"]);
    refused(&with("program-failure", "lba = 3"), &["s.toml:16", "has no `lba`"]);
    refused(&with("erase-failure", "lba = 3"), &["s.toml:14", "needs `pu`"]);
    refused(&with("slow-die", "pu = 1\nfactor = 1"), &["s.toml:18", "above 1"]);
    refused(&with("slow-die", "pu = 1"), &["s.toml:14", "needs `factor`"]);
    refused(&with("stalled-queue", "queue = 1"), &["needs `duration`"]);
    refused(&with("stalled-queue", "queue = 0\nduration = \"1s\""), &["s.toml:17", "from 1"]);
    refused(&with("stalled-queue", "queue = 99\nduration = \"1s\""), &["s.toml:15", "queue 99"]);
    refused(&with("uncorrectable", "lba = 999999999"), &["s.toml:15", "`lba` 999999999"]);
    refused(&with("power-cut", "pu = 1"), &["s.toml:17", "pu"]);
    let early = format!("{DRIVE}{READS}[[fault]]\nat = \"-1s\"\nkind = \"power-cut\"\n");
    refused(&early, &["s.toml:15"]);
    refused(&format!("{DRIVE}{READS}[[fault]]\nkind = \"power-cut\"\n"), &["needs `at`"]);
    refused(&format!("{DRIVE}{READS}[[fault]]\nat = \"1ms\"\n"), &["needs `kind`"]);
    let late = format!("{DRIVE}{READS}{}", fault("1s", "power-cut", ""));
    refused(&late, &["s.toml:15", "before this fault"]);
    let twice = fault("1ms", "die-failure", "pu = 1") + &fault("2ms", "die-failure", "pu = 1");
    refused(&format!("{DRIVE}{READS}{twice}"), &["s.toml:19", "line 15", "already"]);
    // The drive refuses a fault that depends on its data when the fault is due.
    let unwritten = DRIVE.replace("[precondition]\nfill = \"sequential\"\n", "");
    let text = format!("{unwritten}{READS}{}", fault("0s", "uncorrectable", "lba = 5"));
    refused(&text, &["s.toml:13", "is not written"]);
    let without_data = with("power-cut", "").replace("\"memory\"", "\"none\"");
    refused(&without_data, &["s.toml:16", "data = \"memory\""]);
    let named = with("power-cut", "drive = \"x\"");
    refused(&named, &["s.toml:17", "\"x\"", "drive0"]);
    let sata = "[drive]\nkind = \"ahci\"\ncapacity = \"64M\"\n";
    refused(&format!("{sata}{READS}{}", fault("1ms", "power-cut", "")), &["no drive"]);
    let sata = format!("{sata}{READS}{}", fault("1ms", "power-cut", "drive = \"drive0\""));
    refused(&sata, &["not an emulated NVMe drive"]);
    let null = format!(
        "[drive]\nkind = \"null\"\ncapacity = \"64M\"\n{READS}{}",
        fault("1ms", "die-failure", "pu = 0")
    );
    refused(&null, &["no flash for die-failure"]);
}

// guarantee: B-101

#[test]
fn a_drive_with_a_persistent_memory_region_has_power_cuts() {
    let cut = fault("10ms", "power-cut", "");
    let text = format!("{DRIVE}{READS}{cut}");
    let pmr = "pmr = { size = \"64k\", store = \"8ns\", persist = \"300ns\" }\n";
    let outcome = run(&text.replacen("[drive]\n", &format!("[drive]\n{pmr}"), 1));
    let plain = run(&text);
    assert_eq!(only(&outcome), only(&plain));
    assert_eq!(ios(&outcome), ios(&plain), "a region takes no time of commands");
    let result = to_json(&outcome);
    let counters = &result["sluice"]["drives"][0]["interface"]["pmr"];
    assert_eq!(*counters, json!({ "lines_stored": 0, "persists": 0, "words_lost": 0 }));
    assert!(to_json(&plain)["sluice"]["drives"][0]["interface"]["pmr"].is_null());
    // A DAX file is memory of this machine.
    let dax = DRIVE.replacen("[drive]\n", "[drive]\npmr.dax = \"pmem\"\n", 1);
    let error = try_run(&format!("{dax}{READS}")).unwrap_err().to_string();
    assert!(error.contains("persistent memory region of drive drive0"), "{error}");
}
