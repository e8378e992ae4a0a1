//! `sluice sim` as a process: its output, its files, and its exit codes.

// guarantee: M-10

use crate::sim_folder;

use std::path::Path;

use serde_json::Value;

use sim_folder::Folder;

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 16, pages = 32 }\n";

const JOBS: &str = "[readers]\nrw=randread\nbs=4k\niodepth=4\nsize=1m\n\
    [writers]\nrw=randwrite\nbs=16k\nsize=4m\niodepth=2\n";

/// Returns standard output of a run that must succeed and print nothing on standard error.
fn ran(folder: &Folder, args: &[&str]) -> String {
    let (said, told) = folder.run_to_end(args, 0);
    assert_eq!(told, "", "no progress bar without a terminal");
    said
}

/// Returns standard error of a run that must fail with this code.
fn failed(folder: &Folder, args: &[&str], code: i32) -> String {
    folder.run_to_end(args, code).1
}

/// Returns the only entry of a list of results.
fn variant(text: &str) -> Value {
    let mut value: Value = serde_json::from_str(text).unwrap();
    assert_eq!(value.as_array().map(Vec::len), Some(1), "the result is a list with one entry");
    value[0].take()
}

#[test]
fn a_table_on_standard_output_and_nothing_else() {
    let folder = Folder::new(&[("a.toml", DRIVE), ("jobs.fio", JOBS)]);
    let table = ran(&folder, &["a.toml", "jobs.fio"]);
    for part in ["readers", "writers", "p99.9", "IOPS"] {
        assert!(table.contains(part), "`{part}` is not in\n{table}");
    }
    assert!(!table.contains("NaN") && !table.contains("inf"), "{table}");
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_gives_others() {
    let random = format!("{DRIVE}[precondition]\nfill = \"sequential\"\n");
    let folder = Folder::new(&[("a.toml", &random), ("jobs.fio", JOBS)]);
    for (name, seed) in [("1.json", "7"), ("2.json", "7"), ("3.json", "8")] {
        ran(&folder, &["a.toml", "jobs.fio", "--json", name, "--seed", seed]);
    }
    let first = folder.read("1.json");
    assert_eq!(first, folder.read("2.json"), "equal seeds must give identical results");
    assert_ne!(first, folder.read("3.json"), "another seed must give other results");
    let value = variant(&first);
    assert_eq!(value["sluice"]["seed"], 7);
    assert_eq!(value["jobs"][0]["jobname"], "readers");
    // The names are fio's, which scripts read.
    let read = &value["jobs"][0]["read"];
    assert_eq!(read["total_ios"], 256);
    assert!(read["clat_ns"]["percentile"]["99.000000"].as_u64().unwrap() >= 40_000);
    let drive = &value["sluice"]["drives"][0];
    assert!(drive["write_amplification"].as_f64().unwrap() >= 1.0);
    assert_eq!(drive["lateness_ns"]["late_max"], 0, "nothing is late in virtual time");
    assert_eq!(drive["doorbell_to_fetch_ns"]["unknown"], "virtual-time");
}

#[test]
fn the_report_is_one_file_that_needs_no_other() {
    let folder = Folder::new(&[("a.toml", DRIVE), ("b.toml", DRIVE), ("jobs.fio", JOBS)]);
    ran(&folder, &["a.toml", "b.toml", "jobs.fio", "--report", "r.html"]);
    let page = folder.read("r.html");
    assert!(page.starts_with("<!") && page.trim_end().ends_with("</html>"));
    for fetched in ["src=\"http", "href=\"http", "@import", "src=\"//", "<link "] {
        assert!(!page.contains(fetched), "{fetched}");
    }
    assert!(page.contains("readers") && page.contains("<svg"), "the report must have plots");
}

#[test]
fn the_trace_is_json_in_the_order_of_perfetto() {
    let folder = Folder::new(&[("a.toml", DRIVE), ("jobs.fio", JOBS)]);
    ran(&folder, &["a.toml", "jobs.fio", "--trace", "t.json"]);
    let trace: Value = serde_json::from_str(&folder.read("t.json")).unwrap();
    let events = trace["traceEvents"].as_array().or(trace.as_array()).unwrap();
    assert!(events.len() > 500, "{} events", events.len());
    assert!(events.iter().all(|e| e["ph"].is_string()), "each event must have a phase");
    let spans = events.iter().filter(|e| e["ph"] == "X");
    assert!(spans.clone().count() > 200 && spans.clone().all(|e| e["dur"].is_number()));
    let told = failed(&folder, &["a.toml", "a.toml", "jobs.fio", "--trace", "t.json"], 2);
    assert!(told.contains("one scenario"), "{told}");
}

#[test]
fn the_block_layer_is_traced_into_a_folder() {
    let mq = format!("{DRIVE}[path]\nqueue_model = \"mq\"\ncores = 2\n");
    let folder = Folder::new(&[("a.toml", DRIVE), ("mq.toml", mq.as_str()), ("jobs.fio", JOBS)]);
    let table = ran(&folder, &["mq.toml", "jobs.fio", "--blktrace", "new/traces"]);
    assert!(
        table.contains("block layer mq: 2 cores, 2 staging queues, 2 hardware queues"),
        "{table}"
    );
    for core in 0..2 {
        let file = folder.path(&format!("new/traces/drive0.blktrace.{core}"));
        assert!(std::fs::metadata(&file).unwrap().len() > 48, "{}", file.display());
    }
    let told = failed(&folder, &["a.toml", "jobs.fio", "--blktrace", "t"], 2);
    assert!(told.contains("a.toml: `raw` has no block layer to trace"), "{told}");
    let told = failed(&folder, &["a.toml", "mq.toml", "jobs.fio", "--blktrace", "t"], 2);
    assert!(told.contains("--blktrace takes one scenario"), "{told}");
    let told = failed(&folder, &["mq.toml", "jobs.fio", "--blktrace", "mq.toml/x"], 1);
    assert!(told.contains("mq.toml/x"), "{told}");
}

#[test]
fn what_is_asked_wrongly_is_told_with_its_place_and_exit_code_2() {
    let folder = Folder::new(&[
        ("a.toml", DRIVE),
        ("odd.fio", "[a]\nrw=read\nbs=4k\nno_such_option=1\n"),
        ("value.fio", "[a]\nrw=sideways\n"),
        ("large.fio", "[a]\nrw=read\nbs=4k\nsize=1t\n"),
        ("key.toml", "[drive]\npreset = \"femu-default\"\ncolour = 3\n"),
        ("files.toml", &format!("job_files = [\"gone.fio\"]\n{DRIVE}")),
        ("jobs.fio", JOBS),
    ]);
    for (args, says) in [
        (&["a.toml", "odd.fio"][..], "odd.fio:4"),
        (&["a.toml", "odd.fio"], "no_such_option"),
        (&["a.toml", "value.fio"], "value.fio:2"),
        (&["key.toml", "jobs.fio"], "key.toml:3:1"),
        (&["a.toml", "gone.fio"], "gone.fio"),
        (&["gone.toml", "jobs.fio"], "gone.toml"),
        (&["files.toml"], "gone.fio"),
        (&["a.toml"], "no jobs"),
        (&["jobs.fio"], "no scenario"),
        (&[], "Usage"),
        (&["a.toml", "large.fio"], "past the end of the device"),
    ] {
        let told = failed(&folder, args, 2);
        assert!(told.contains(says), "{args:?}: `{says}` is not in {told}");
    }
}

#[test]
fn several_drives_run_their_own_jobs() {
    let two = "[[drive]]\nname = \"left\"\npreset = \"femu-default\"\n\
         geometry = { channels = 1, chunks = 16, pages = 32 }\n\
         [[drive]]\nname = \"right\"\npreset = \"femu-default\"\n\
         geometry = { channels = 1, chunks = 16, pages = 32 }\n\
         [[job]]\nname = \"one\"\nrw = \"write\"\nsize = \"1m\"\nbs = \"4k\"\n\
         [[job]]\nname = \"two\"\ndrive = \"right\"\nrw = \"write\"\nsize = \"2m\"\nbs = \"4k\"\n";
    let folder = Folder::new(&[("two.toml", two)]);
    let table = ran(&folder, &["two.toml", "--json", "o.json"]);
    assert!(table.contains("one") && table.contains("two"), "{table}");
    let value = variant(&folder.read("o.json"));
    let written = |i: usize| value["sluice"]["drives"][i]["ftl"]["host_sectors_written"].as_u64();
    assert_eq!((written(0), written(1)), (Some(256), Some(512)));
}

#[test]
fn requests_that_fail_are_told_with_their_lba_and_exit_code_1() {
    // Every program operation fails, until no chunk can be written.
    let failing = format!("{DRIVE}errors = {{ program_failure_rate = 1.0 }}\n");
    let folder =
        Folder::new(&[("failing.toml", &failing), ("jobs.fio", "[w]\nrw=write\nbs=4k\nsize=1m\n")]);
    let told = failed(&folder, &["failing.toml", "jobs.fio", "--json", "o.json"], 1);
    assert!(told.contains("write of sectors 0..+1") && told.contains("failed"), "{told}");
    let value = variant(&folder.read("o.json"));
    assert!(
        !value["sluice"]["failures"].as_array().unwrap().is_empty(),
        "the result must be written in spite of the errors"
    );
}

#[test]
fn options_without_meaning_are_listed_once() {
    let jobs = "[global]\nioengine=libaio\ndirect=1\n[a]\nrw=read\nsize=64k\nbs=4k\n\
        [b]\nioengine=io_uring\nrw=read\nsize=64k\nbs=4k\nthread\n";
    let folder = Folder::new(&[("a.toml", DRIVE), ("jobs.fio", jobs)]);
    ran(&folder, &["a.toml", "jobs.fio", "--json", "o.json"]);
    let value = variant(&folder.read("o.json"));
    let ignored = value["sluice"]["ignored_options"].as_array().unwrap();
    let names: Vec<&str> = ignored.iter().map(|n| n.as_str().unwrap()).collect();
    assert_eq!(names, ["direct", "ioengine", "thread"]);
}

#[test]
fn what_cannot_be_written_is_told() {
    let folder = Folder::new(&[("a.toml", DRIVE), ("jobs.fio", JOBS)]);
    assert!(!Path::new("/no/such/folder").exists());
    for option in ["--json", "--report", "--trace"] {
        let told = failed(&folder, &["a.toml", "jobs.fio", option, "/no/such/folder/x"], 1);
        assert!(told.contains("/no/such/folder/x"), "{told}");
    }
}
