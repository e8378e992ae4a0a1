//! Outputs of `sluice sim`: they are opened before the run and complete in spite of errors, `-` is
//! standard output, and an interrupted run leaves partial results.

// guarantee: B-41

use crate::sim_folder;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use scenario::Scenario;
use serde_json::Value;
use sim::{SimOptions, SimStage, simulate};

use sim_folder::{Folder, output_text};

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 16, pages = 32 }\n";
const FILL: &str = "[precondition]\nfill = \"sequential\"\n";
const JOB: &str =
    "[[job]]\nname = \"r\"\nrw = \"randrw\"\nbs = \"4k\"\nsize = \"2m\"\niodepth = 4\n";

/// Interrupts `sluice sim` after 1.5 seconds; it must exit with 130. Returns standard output and
/// standard error.
fn interrupted(folder: &Folder, args: &[&str]) -> (String, String) {
    let mut command = folder.command(args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    output_text(child.wait_with_output().unwrap(), 130)
}

fn scenario() -> String {
    format!("title = \"one\"\nquestion = \"Is it fast?\"\n{DRIVE}{FILL}{JOB}")
}

#[test]
fn a_dash_is_standard_output_which_then_has_nothing_else() {
    let folder = Folder::new(&[("a.toml", &scenario())]);
    let (said, told) = folder.run_to_end(&["a.toml", "--json", "-"], 0);
    let ways: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(ways.as_array().map(Vec::len), Some(1));
    assert!(
        told.contains("p99.9") && told.contains("one"),
        "the table is on standard error: {told}"
    );
    let (said, told) = folder.run_to_end(&["a.toml", "--report", "-"], 0);
    assert!(said.starts_with("<!doctype html>") && said.ends_with("</html>\n"));
    assert!(said.contains("The slowest requests") && !told.contains("slowest"), "{told}");
    let (said, _) = folder.run_to_end(&["a.toml", "--report", "-", "--slowest", "0"], 0);
    assert!(!said.contains("The slowest requests"));
    let (said, told) = folder.run_to_end(&["a.toml", "--report", "-", "--slowest", "2"], 0);
    assert!(
        said.contains("The slowest requests") && told.contains("  2. ") && !told.contains("  3. ")
    );
    // A report does not change the JSON.
    folder.run_to_end(&["a.toml", "--json", "plain.json"], 0);
    folder.run_to_end(&["a.toml", "--json", "beside.json", "--report", "r.html"], 0);
    assert_eq!(folder.read("plain.json"), folder.read("beside.json"));
    assert!(told.contains("p99.9"), "{told}");
    let (said, told) = folder.run_to_end(&["a.toml", "--trace", "-"], 0);
    assert!(serde_json::from_str::<Value>(&said).unwrap().as_array().unwrap().len() > 100);
    assert!(told.contains("p99.9"), "{told}");
    let (said, _) = folder.run_to_end(&["a.toml"], 0);
    assert!(said.contains("p99.9"), "{said}");
    assert!(!folder.path("-").exists());
    // A redirected file is appended to, and not truncated.
    std::fs::write(folder.path("log"), "before\n").unwrap();
    let log = std::fs::OpenOptions::new().append(true).open(folder.path("log")).unwrap();
    let status = folder.command(&["a.toml", "--json", "-"]).stdout(log).status().unwrap();
    assert!(status.success());
    assert!(folder.read("log").starts_with("before\n[\n"));
}

#[test]
fn two_outputs_to_one_place_are_refused() {
    let folder = Folder::new(&[("a.toml", &scenario())]);
    for args in [["--json", "-", "--report", "-"], ["--json", "x", "--trace", "x"]] {
        let (said, told) = folder.run_to_end(&[&["a.toml"][..], &args].concat(), 2);
        assert!(told.contains("both write to") && said.is_empty(), "{told}");
    }
    let (_, told) = folder.run_to_end(&["a.toml", "--blktrace", "-"], 2);
    assert!(told.contains("takes a folder"), "{told}");
    assert!(!folder.path("x").exists());
}

#[test]
fn what_is_refused_leaves_old_results_and_makes_no_files() {
    let good = scenario();
    let bad = good.replace("4k", "4q");
    let folder = Folder::new(&[("a.toml", &good), ("bad.toml", &bad), ("old.json", "old")]);
    let outputs = ["--json", "old.json", "--report", "new.html", "--trace", "new.trace"];
    folder.run_to_end(&[&["bad.toml"][..], &outputs].concat(), 2);
    assert_eq!(folder.read("old.json"), "old");
    assert!(!folder.path("new.html").exists() && !folder.path("new.trace").exists());
    // An output that cannot be opened is reported before the run, which takes ten hours.
    let long = good.replace("size = \"2m\"", "size = \"2m\"\ntime_based = true\nruntime = \"10h\"");
    std::fs::write(folder.path("long.toml"), long).unwrap();
    for option in ["--json", "--report", "--trace"] {
        let (said, told) = folder.run_to_end(&["long.toml", option, "/no/such/folder/x"], 1);
        assert!(told.contains("/no/such/folder/x") && said.is_empty(), "{told}");
    }
    folder.run_to_end(&[&["a.toml"][..], &outputs].concat(), 0);
    assert!(folder.read("old.json").starts_with('['));
    assert!(folder.read("new.html").starts_with("<!doctype"));
}

#[test]
fn a_full_disk_is_named_and_the_other_outputs_are_written() {
    let folder = Folder::new(&[("a.toml", &scenario())]);
    let (said, told) =
        folder.run_to_end(&["a.toml", "--json", "/dev/full", "--report", "r.html"], 1);
    assert!(told.contains("/dev/full") && told.contains("disk is full"), "{told}");
    assert!(said.contains("p99.9"), "the table must be printed");
    assert!(folder.read("r.html").ends_with("</html>\n"), "the report must be written");
}

#[test]
fn an_interruption_ends_the_jobs_and_keeps_what_there_is() {
    let endless = "[[job]]\nname = \"r\"\nrw = \"randrw\"\nbs = \"4k\"\nsize = \"2m\"\niodepth = 4\n\
                   time_based = true\nruntime = \"100h\"\n";
    let text = format!("{DRIVE}{endless}");
    let folder = Folder::new(&[("a.toml", &scenario()), ("endless.toml", &text)]);
    for traced in [false, true] {
        let mut args = vec!["a.toml", "endless.toml", "--json", "o.json", "--report", "o.html"];
        if traced {
            args.remove(0);
            args.extend(["--trace", "t.json"]);
        }
        let (said, told) = interrupted(&folder, &args);
        assert!(told.contains("interrupted"), "{told}");
        assert!(said.contains("endless") && said.contains("[partial]"), "{said}");
        let ways: Value = serde_json::from_str(&folder.read("o.json")).unwrap();
        let last = ways.as_array().unwrap().last().unwrap();
        assert_eq!(last["sluice"]["partial"], true);
        assert_eq!(last["sluice"]["notes"][0]["code"], "partial");
        assert!(last["jobs"][0]["read"]["total_ios"].as_u64().unwrap() > 0);
        if !traced {
            assert_eq!(
                ways[0]["sluice"]["partial"], false,
                "the result of the earlier scenario must be complete"
            );
        } else {
            serde_json::from_str::<Value>(&folder.read("t.json")).unwrap();
        }
        assert!(folder.read("o.html").contains("<code>partial</code>"));
    }
}

#[test]
fn an_interruption_of_preconditioning_keeps_the_ways_before_it() {
    let long = "[precondition]\noverwrite = \"random 1000x\"\n";
    let large = DRIVE.replace("chunks = 16", "chunks = 128");
    let text = format!("{large}{long}{JOB}");
    let folder = Folder::new(&[("a.toml", &scenario()), ("long.toml", &text), ("o.json", "old")]);
    for (scenarios, says) in
        [(&["long.toml"][..], "before there was a result"), (&["a.toml", "long.toml"], "partial")]
    {
        let args = [scenarios, &["--json", "o.json", "--report", "o.html"]].concat();
        let (said, told) = interrupted(&folder, &args);
        assert!(told.contains(says), "{told}");
        if scenarios.len() == 1 {
            assert_eq!(folder.read("o.json"), "old", "without a result, the old file must remain");
            assert!(!folder.path("o.html").exists() && said.is_empty());
        } else {
            let ways: Value = serde_json::from_str(&folder.read("o.json")).unwrap();
            assert_eq!(ways.as_array().map(Vec::len), Some(1));
            assert!(said.contains("p99.9"));
        }
    }
}

#[test]
fn one_scenario_twice_is_refused_and_two_of_one_title_are_told_apart() {
    let folder = Folder::new(&[("a.toml", &scenario()), ("b.toml", &scenario())]);
    let (said, told) = folder.run_to_end(&["a.toml", "b.toml", "./a.toml"], 2);
    assert!(told.contains("./a.toml is given twice") && said.is_empty(), "{told}");
    let (said, _) = folder.run_to_end(&["a.toml", "b.toml"], 0);
    assert!(said.contains("one (a.toml)") && said.contains("one (b.toml)"), "{said}");
}

#[test]
fn control_characters_of_titles_and_names_do_not_reach_the_terminal() {
    let text = scenario()
        .replace("\"one\"", "\"a\\nb\\u001b[31m\"")
        .replace("\"r\"", "\"job\\u001b]0;x\\u0007\"");
    let odd = format!("# \u{1b}[31m\nseed = \"\u{202f}\\u001b\"\n{DRIVE}");
    // Titles: the file's name unless the scenario has a title; jobs may come from a job file.
    let file = "a\u{1b}[31m.toml";
    let jobs = "[job\u{1b}]0;x\u{7}]\nrw=read\nsize=1m\n";
    let plain = scenario().replace("title = \"one\"\n", "");
    let folder =
        Folder::new(&[("a.toml", &text), ("odd.toml", &odd), (file, &plain), ("j.fio", jobs)]);
    let (_, titled) = folder.run_to_end(&["a.toml"], 2);
    assert!(titled.contains("title"), "{titled}");
    let (said, told) = folder.run_to_end(&[file], 0);
    assert!(said.contains("a\\u{1b}[31m"), "{said}");
    let with_job = folder.sim(&[file, "j.fio"]);
    let [said_of_job, told_of_job] =
        [with_job.stdout, with_job.stderr].map(|text| String::from_utf8(text).unwrap());
    let (_, refused) = folder.run_to_end(&["odd.toml", "a.toml"], 2);
    for text in [titled, said, told, said_of_job, told_of_job, refused] {
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
}

#[test]
fn the_former_schema_of_the_results_is_written_with_a_warning() {
    let folder = Folder::new(&[("a.toml", &scenario())]);
    let (present, told) = folder.run_to_end(&["a.toml", "--json", "-"], 0);
    assert!(!told.contains("schema"), "{told}");
    let (former, told) = folder.run_to_end(&["a.toml", "--json", "-", "--json-schema", "2"], 0);
    assert!(told.contains("warning: schema 2 of the results is now 3"), "{told}");
    let [present, former]: [Value; 2] =
        [present, former].map(|text| serde_json::from_str(&text).unwrap());
    assert_eq!(
        (&present[0]["sluice"]["schema"], &former[0]["sluice"]["schema"]),
        (&3.into(), &2.into())
    );
    let written = |result: &Value, key: &str| {
        result[0]["sluice"]["drives"][0]["ftl"].get(key).and_then(Value::as_u64)
    };
    let count = written(&present, "host_sectors_written");
    assert!(count.is_some_and(|count| count > 0));
    assert_eq!(written(&former, "user_sectors_written"), count);
    assert_eq!(written(&former, "host_sectors_written"), None);
    let (_, told) = folder.run_to_end(&["a.toml", "--json", "-", "--json-schema", "1"], 2);
    assert!(told.contains("expected 2 or 3"), "{told}");
}

#[test]
fn the_results_have_the_scenario_its_parameters_and_counters_of_the_run_alone() {
    let folder = Folder::new(&[("a.toml", &scenario())]);
    let (said, _) = folder.run_to_end(&["a.toml", "--json", "-", "--seed", "9"], 0);
    let ways: Value = serde_json::from_str(&said).unwrap();
    let section = &ways[0]["sluice"];
    assert_eq!(section["schema"], 3);
    assert_eq!(section["scenario"], scenario().as_str());
    assert_eq!((&section["title"], &section["question"]), (&"one".into(), &"Is it fast?".into()));
    assert_eq!(section["partial"], false);
    let parameters = &section["parameters"];
    assert_eq!(parameters["seed"], 9);
    let drive = &parameters["drives"][0];
    // The parameters include those of the preset.
    assert_eq!(drive["media"]["timing"]["read_ns"][0], 40_000);
    assert_eq!(drive["media"]["geometry"]["chunks"], 16);
    assert_eq!(parameters["precondition"]["fill"], "sequential");
    assert_eq!(parameters["path"]["queue_model"], "raw");
    assert!(drive["ftl"]["over_provisioning"].is_number() && drive["lines"].is_number());

    let found = &section["drives"][0];
    let number = |path: &str| found.pointer(path).and_then(Value::as_u64).unwrap();
    let sectors = number("/ftl_before/host_sectors_written");
    assert!(sectors > number("/ftl/host_sectors_written"), "preconditioning is counted separately");
    assert!(number("/media_before/programs") > number("/media/programs"));
    // The media counts operations of the FTL and of its journal, over the same periods.
    for when in ["", "_before"] {
        let of_media = number(&format!("/media{when}/programs"));
        let of_layer = number(&format!("/ftl{when}/programs"));
        let journal = of_media - of_layer;
        assert!(journal <= of_layer / 20 + 4, "{when}: {of_media} and {of_layer} programs");
        assert!(number(&format!("/media{when}/erases")) >= number(&format!("/gc{when}/erases")));
    }
}

/// Tracing advances a run in other steps, and must not change its results.
#[test]
fn results_over_time_are_the_same_whether_or_not_the_run_is_traced() {
    let jobs = "[[job]]\nname = \"w\"\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"3m\"\niodepth = 8\n\
                io_size = \"24m\"\n[[job]]\nname = \"r\"\nrw = \"randread\"\nbs = \"4k\"\nsize = \"3m\"\n\
                io_size = \"2m\"\n";
    let open = "personality = \"open-channel\"\n[target]\nkind = \"pblk\"\n";
    let mq = "[path]\nqueue_model = \"mq\"\ncores = 2\n";
    let host = "[host]\nsubmit_cost = \"1us\"\ncomplete_cost = \"2us\"\n";
    for (name, text) in [
        ("managed", format!("{DRIVE}{FILL}{jobs}")),
        ("host", format!("{DRIVE}{FILL}{host}{jobs}")),
        ("pblk", format!("{DRIVE}{open}{FILL}{jobs}")),
        ("mq", format!("{DRIVE}{mq}{FILL}{jobs}")),
    ] {
        let folder = Folder::new(&[("a.toml", &text)]);
        let (plain, _) = folder.run_to_end(&["a.toml", "--json", "-"], 0);
        folder.run_to_end(&["a.toml", "--json", "traced.json", "--trace", "t"], 0);
        let [mut a, mut b]: [Value; 2] =
            [plain, folder.read("traced.json")].map(|text| serde_json::from_str(&text).unwrap());
        // The block layer counts attempts at a full queue, which depend on the number of polls.
        for value in [&mut a, &mut b] {
            value[0]["sluice"]["drives"][0]["block_layer"].take();
        }
        assert_eq!(a, b, "{name}");

        let section = &a[0]["sluice"]["drives"][0];
        let layer = &section["over_time"];
        let list = |v: &Value| -> Vec<f64> {
            v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap_or(0.0)).collect()
        };
        let [written, moved, free] = ["host_sectors_written", "gc_sectors_relocated", "free_lines"]
            .map(|key| list(&layer[key]));
        assert!(written.len() > 4 && written.len() <= 128, "{name}: {layer}");
        assert_eq!(free.len(), written.len());
        assert_eq!(
            Some(written.iter().sum::<f64>()),
            section["ftl"]["host_sectors_written"].as_f64()
        );
        assert_eq!(Some(moved.iter().sum::<f64>()), section["gc"]["gc_sectors_relocated"].as_f64());
        assert_eq!(free.last().copied(), section["ftl"]["free_lines"].as_f64());

        let job = &section["jobs_over_time"][0];
        assert_eq!(job["name"], "w");
        let (width, last) =
            (job["interval_ns"].as_f64().unwrap(), job["last_interval_ns"].as_f64().unwrap());
        let depth = list(&job["queue_depth"]);
        assert!(depth.iter().all(|d| *d <= 8.0 + 1e-9), "{name}: {depth:?}");
        let lengths = |i: usize| if i + 1 == depth.len() { last } else { width };
        let iops = list(&job["write"]["iops"]);
        let all: f64 = iops.iter().enumerate().map(|(i, n)| n * lengths(i) / 1e9).sum();
        assert!((all - 6144.0).abs() < 1e-6, "{name}: {all} requests");
        let most = list(&job["write"]["lat_max_ns"]).into_iter().fold(0.0, f64::max);
        assert_eq!(Some(most), a[0]["jobs"][0]["write"]["lat_ns"]["max"].as_f64());
        let (p50, p99) = (list(&job["write"]["lat_p50_ns"]), list(&job["write"]["lat_p99_ns"]));
        assert!(p50.iter().zip(&p99).all(|(p50, p99)| p50 <= p99), "{name}");
    }
}

#[test]
fn strict_makes_notes_errors_after_everything_is_written() {
    let folder = Folder::new(&[("a.toml", &format!("{DRIVE}{JOB}")), ("b.toml", &scenario())]);
    let (said, _) = folder.run_to_end(&["a.toml"], 0);
    assert!(said.contains("[unwritten-reads]"), "{said}");
    let (said, told) = folder.run_to_end(&["a.toml", "--strict", "--json", "o.json"], 1);
    assert!(said.contains("[unwritten-reads]") && told.contains("--strict"), "{told}");
    assert!(Path::new(&folder.path("o.json")).metadata().unwrap().len() > 1000);
    let read = scenario().replace("randrw", "randread");
    std::fs::write(folder.path("c.toml"), read).unwrap();
    folder.run_to_end(&["c.toml", "--strict"], 0);
}

#[test]
fn preconditioning_says_how_far_it_is_and_never_goes_back() {
    let text =
        format!("{DRIVE}[precondition]\nfill = \"sequential\"\noverwrite = \"random 150x\"\n{JOB}");
    let scenario = Scenario::parse(Path::new("s.toml"), &text).unwrap();
    let mut parts = Vec::new();
    let mut progress = |stage| {
        if let SimStage::Preconditioning(part) = stage {
            parts.push(part);
        }
    };
    let options = SimOptions { progress: Some(&mut progress), ..SimOptions::default() };
    simulate(&scenario, options).unwrap();
    assert!(parts.iter().filter(|part| (0.01..0.99).contains(*part)).count() >= 2, "{parts:?}");
    assert!(parts.is_sorted() && parts.last() == Some(&1.0), "{parts:?}");
}

#[test]
fn two_paths_to_one_drive_are_traced_and_explained_under_their_names() {
    let mut text =
        format!("title = \"two\"\n{}{FILL}", DRIVE.replace("[drive]", "[[drive]]\nname = \"d\""));
    for (path, count) in [("x", 300), ("y", 200)] {
        text += &format!(
            "[[path]]\nname = \"{path}\"\nover = \"d\"\n[[job]]\npath = \"{path}\"\n\
             name = \"reads\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = 4\n\
             number_ios = {count}\n"
        );
    }
    let folder = Folder::new(&[("a.toml", &text)]);
    let args = ["a.toml", "--trace", "t.json", "--slowest", "2", "--json", "out.json"];
    let (said, _) = folder.run_to_end(&args, 0);
    let [results, events]: [Value; 2] =
        ["out.json", "t.json"].map(|name| serde_json::from_str(&folder.read(name)).unwrap());
    let events = events.as_array().unwrap();
    for (index, (path, count)) in [("x", 300), ("y", 200)].into_iter().enumerate() {
        assert!(said.contains(&format!("two, {path}: the slowest requests")), "{said}");
        let of = &results[0]["sluice"]["paths"][index];
        assert_eq!(of["name"], path);
        assert_eq!(of["slowest"].as_array().map(Vec::len), Some(2), "{of}");
        for request in of["slowest"].as_array().unwrap() {
            assert_eq!(request["job"], "reads");
            let waits = request["waits"].as_array().unwrap().iter();
            let sum: u64 = waits.map(|wait| wait["time_ns"].as_u64().unwrap()).sum();
            assert_eq!(Some(sum), request["latency_ns"].as_u64(), "{request}");
        }
        let name = format!("{path}: jobs");
        let process = events.iter().find(|e| e["args"]["name"] == *name).expect("the process");
        let requests = events.iter().filter(|e| {
            e["ph"] == "X" && e["pid"] == process["pid"] && e["args"]["request"].is_u64()
        });
        assert_eq!(requests.count(), count, "{path}");
    }
}
