//! `--jobs`: everything that several scenarios print and write is the same however many of them run
//! at a time.

// guarantee: B-38

use crate::sim_folder;

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use sim_folder::{Folder, output_text};

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 24, pages = 32 }\n";
const FILL: &str = "[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n";
const ENDLESS: &str = "[[job]]\nname = \"endless\"\nrw = \"randrw\"\nbs = \"4k\"\nsize = \"2m\"\n\
    time_based = true\nruntime = \"100h\"\n";
/// Does not fit the drive, which is found when the drive has been built.
const MISFIT: &str = "[[job]]\nname = \"misfit\"\nrw = \"read\"\nsize = \"1t\"\n";

const FILES: [&str; 4] = ["a.toml", "b.toml", "c.toml", "d.toml"];

fn job(rw: &str, depth: u32) -> String {
    format!(
        "[[job]]\nname = \"{rw}\"\nrw = \"{rw}\"\nbs = \"4k\"\nsize = \"4m\"\nio_size = \"8m\"\n\
         norandommap = 1\niodepth = {depth}\n"
    )
}

/// Returns a scenario whose drive is preconditioned for minutes.
fn long_preconditioning() -> String {
    let large = DRIVE.replace("chunks = 24", "chunks = 128");
    format!("{large}[precondition]\noverwrite = \"random 1000x\"\n{}", job("read", 1))
}

/// Returns four scenarios: two with equal drives, one with an FTL in the host, and one with two
/// drives.
fn scenarios() -> [String; 4] {
    let open =
        "personality = \"open-channel\"\n[target]\nkind = \"pblk\"\nover_provisioning = 0.3\n";
    let small = "preset = \"femu-default\"\ngeometry = { channels = 1, chunks = 16, pages = 32 }\n";
    let two = format!(
        "[[drive]]\nname = \"left\"\n{small}[[drive]]\nname = \"right\"\n{small}\
         [[job]]\nname = \"one\"\nrw = \"write\"\nsize = \"1m\"\nbs = \"4k\"\n\
         [[job]]\nname = \"two\"\ndrive = \"right\"\nrw = \"randwrite\"\nsize = \"2m\"\nbs = \"4k\"\n"
    );
    [
        format!("title = \"equal\"\n{DRIVE}{FILL}{}", job("randrw", 8)),
        format!("title = \"equal\"\n{DRIVE}{FILL}{}", job("randwrite", 4)),
        format!("{DRIVE}{open}{FILL}{}", job("randrw", 16)),
        two,
    ]
}

/// Returns a folder with these scenarios, named as [`FILES`].
fn folder(texts: &[&str]) -> Folder {
    let files: Vec<(&str, &str)> = FILES.into_iter().zip(texts.iter().copied()).collect();
    Folder::new(&files)
}

/// Standard output, standard error and the contents of the files.
type Written = (String, String, BTreeMap<String, Vec<u8>>);

/// Runs `sluice sim` in a new folder and returns everything that it printed and wrote.
fn written(texts: &[&str], args: &[&str], jobs: &str, code: i32) -> Written {
    let folder = folder(texts);
    let files = &FILES[..texts.len()];
    let (said, told) = folder.run_to_end(&[files, args, &["--jobs", jobs]].concat(), code);
    let entries = std::fs::read_dir(folder.path("")).unwrap().map(Result::unwrap);
    let named = entries.map(|e| e.file_name().into_string().unwrap());
    let contents = named.map(|name| {
        let bytes = std::fs::read(folder.path(&name)).unwrap();
        (name, bytes)
    });
    (said, told, contents.collect())
}

/// Asserts that everything is the same with one and with four runs at a time, and returns it.
fn assert_equal(texts: &[&str], args: &[&str], code: i32) -> Written {
    let one = written(texts, args, "1", code);
    let four = written(texts, args, "4", code);
    assert_eq!(one.0, four.0, "standard output, {args:?}");
    assert_eq!(one.1, four.1, "standard error, {args:?}");
    let names = |written: &Written| written.2.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&one), names(&four), "files, {args:?}");
    for (name, bytes) in &one.2 {
        assert!(four.2[name] == *bytes, "{name}, {args:?}");
    }
    one
}

#[test]
fn table_json_report_and_explanations_do_not_depend_on_the_number_of_runs_at_a_time() {
    let texts = scenarios();
    let texts = texts.each_ref().map(String::as_str);
    let outputs = ["--json", "o.json", "--report", "o.html"];
    for args in [&outputs[..], &[&outputs[..], &["--slowest", "3", "--seed", "9"]].concat()] {
        let (said, _, files) = assert_equal(&texts, args, 0);
        let ways: Vec<Value> = serde_json::from_slice(&files["o.json"]).unwrap();
        assert_eq!(ways.len(), 4);
        assert!(said.contains("equal (a.toml)") && said.contains("equal (b.toml)"), "{said}");
        // Tracepoints of several threads were recorded at the same time.
        let explained = said.matches("the slowest requests").count();
        assert_eq!(explained, if args.len() > 4 { 5 } else { 0 }, "{said}");
    }
    let (said, ..) = assert_equal(&texts, &["--json", "-"], 0);
    assert_eq!(serde_json::from_str::<Vec<Value>>(&said).unwrap().len(), 4);
}

#[test]
fn traces_do_not_depend_on_the_number_of_runs_at_a_time() {
    let [first, ..] = scenarios();
    let (_, _, files) = assert_equal(&[&first], &["--trace", "t.json"], 0);
    assert!(files["t.json"].len() > 10_000);
    let (_, told, _) = assert_equal(&[&first, &first], &["--trace", "t.json"], 2);
    assert!(told.contains("--trace takes one scenario"), "{told}");
}

#[test]
fn logs_of_jobs_have_the_numbers_and_lines_of_one_run_after_the_other() {
    let logged = |rw: &str, clones: u32| {
        format!("{DRIVE}{}numjobs = {clones}\nwrite_lat_log = \"l\"\n", job(rw, 2))
    };
    let texts = [logged("read", 2), format!("{DRIVE}{}", job("randread", 2)), logged("write", 3)];
    let (_, _, files) = assert_equal(&texts.each_ref().map(String::as_str), &[], 0);
    for name in ["l_lat.1.log", "l_lat.2.log", "l_lat.4.log", "l_lat.6.log"] {
        assert!(!files[name].is_empty(), "{name}");
    }
    assert!(!files.contains_key("l_lat.3.log") && !files.contains_key("l_lat.7.log"));
    // Logs of a scenario after one that fails are not made.
    let misfit = format!("{DRIVE}{MISFIT}");
    let (_, _, files) = assert_equal(&[&misfit, &texts[0]], &[], 2);
    assert!(files.keys().all(|name| !name.ends_with(".log")), "{:?}", files.keys());
}

#[test]
fn an_image_that_scenarios_modify_is_that_of_one_run_after_the_other() {
    let with_image = |rw: &str| {
        let text = format!("{DRIVE}data = \"file\"\npath = \"drive.img\"\n{FILL}{}", job(rw, 4));
        text.replace("rw = \"write\"", "rw = \"write\"\nverify = \"crc32c\"")
    };
    let texts = [with_image("randwrite"), with_image("write"), with_image("randread")];
    let texts = texts.each_ref().map(String::as_str);
    let (_, _, files) = assert_equal(&texts, &["--write-image", "--json", "o.json"], 0);
    assert!(files["drive.img"].len() > 1 << 20);
    let (_, _, files) = assert_equal(&texts, &["--json", "o.json"], 0);
    assert!(!files.contains_key("drive.img"), "without --write-image there is no image");
}

#[test]
fn the_first_scenario_that_fails_is_reported_with_the_results_before_it() {
    let [first, second, ..] = scenarios();
    let misfit = format!("{DRIVE}{MISFIT}");
    let endless = format!("{DRIVE}{ENDLESS}");
    let long = long_preconditioning();
    let outputs = ["--json", "o.json", "--report", "o.html"];
    for last in [&endless, &long, &misfit] {
        let texts = [&first, &second, &misfit, last].map(String::as_str);
        let (said, told, files) = assert_equal(&texts, &outputs, 2);
        assert!(told.contains("misfit") && told.contains("past the end"), "{told}");
        assert!(said.contains("equal (b.toml)") && !said.contains("endless"), "{said}");
        let ways: Vec<Value> = serde_json::from_slice(&files["o.json"]).unwrap();
        assert_eq!(ways.len(), 2, "the results before the failure");
    }
    let invalid = format!("{DRIVE}[[job]]\nname = \"a\"\nrw = \"sideways\"\n");
    for texts in [[&first, &misfit, &invalid, &endless], [&first, &invalid, &endless, &misfit]] {
        assert_equal(&texts.map(String::as_str), &outputs, 2);
    }
    let (said, _, files) = assert_equal(&[&misfit, &endless], &outputs, 2);
    assert!(said.is_empty() && !files.contains_key("o.json"), "there was no result");
}

#[test]
fn a_signal_stops_all_runs_and_the_results_so_far_are_written() {
    let [first, ..] = scenarios();
    let endless = format!("{DRIVE}{ENDLESS}");
    let long = long_preconditioning();
    let folder = folder(&[&first, &endless, &long, &endless]);
    let args = [&FILES[..], &["--jobs", "4", "--json", "o.json"]].concat();
    let mut command = folder.command(&args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    let sent = Instant::now();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let (said, told) = output_text(child.wait_with_output().unwrap(), 130);
    assert!(sent.elapsed() < Duration::from_secs(20), "{:?}", sent.elapsed());
    assert!(told.contains("interrupted: the results are partial"), "{told}");
    assert!(said.contains("[partial]"), "{said}");
    let ways: Vec<Value> = serde_json::from_str(&folder.read("o.json")).unwrap();
    let partial: Vec<bool> =
        ways.iter().map(|way| way["sluice"]["partial"].as_bool().unwrap()).collect();
    assert_eq!(partial, [false, true, true], "the run that was being preconditioned has none");
}

#[test]
fn a_number_of_runs_is_at_least_one() {
    let [first, ..] = scenarios();
    let folder = folder(&[&first]);
    for number in ["0", "many"] {
        let (said, told) = folder.run_to_end(&["a.toml", "--jobs", number], 2);
        assert!(told.contains("--jobs") && said.is_empty(), "{told}");
    }
    folder.run_to_end(&["a.toml", "-j2"], 0);
}

#[test]
fn with_a_log_the_default_is_one_run_at_a_time() {
    let [first, second, ..] = scenarios();
    let folder = folder(&[&first, &second]);
    let (_, told) = folder.run_to_end(&["a.toml", "b.toml", "--log", "info"], 0);
    // The second run starts from the state of the first.
    assert_eq!(told.matches("preconditioning begins").count(), 1, "{told}");
}
