//! `sluice sweep`: its store, its outputs, failures, interruptions and verification.

// guarantee: B-57

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{SCENARIO, folder, sweep};
use crate::sim_folder::Folder;

const SWEEP: &str = "scenario = \"small.toml\"\nseeds = 2\nstore = \"runs\"\n[set]\n\
    job.mixed.iodepth = [1, 4]\ndrive.ftl.over_provisioning = [0.2, 0.4]\n\
    [plot]\nx = \"job.mixed.iodepth\"\ny = [\"iops\", \"clat_p99_ns\"]\n";

/// Returns the runs of a store.
fn stored(folder: &Folder, store: &str) -> Vec<String> {
    let entries = fs::read_dir(folder.path(store)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".json")).collect()
}

#[test]
fn all_outputs_are_equal_whatever_was_stored_and_however_many_run_at_a_time() {
    let outputs = ["--csv", "o.csv", "--json", "o.json", "--report", "o.html", "--plot", "plots"];
    let written = |folder: &Folder, args: &[&str]| {
        let (printed, told) = sweep(folder, &[&["s.toml"], &outputs[..], args].concat(), 0);
        let last = told.lines().last().unwrap().to_owned();
        assert!(last.starts_with("8/8 · 0 failed · 00:"), "{told}");
        let mut plots: Vec<_> = fs::read_dir(folder.path("plots"))
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name(), fs::read_to_string(entry.path()).unwrap()))
            .collect();
        plots.sort();
        let files = ["o.csv", "o.json", "o.html"].map(|name| folder.read(name));
        (printed, files, plots)
    };
    let first = folder(SWEEP);
    let computed = written(&first, &["--jobs", "1"]);
    assert_eq!(stored(&first, "runs").len(), 8);
    assert_eq!(written(&first, &[]), computed, "all of them stored");
    assert_eq!(written(&folder(SWEEP), &["--jobs", "4", "--store", "other"]), computed);
    let (table, [csv, json, html], plots) = computed;
    assert_eq!(csv.lines().count(), 1 + 16);
    assert_eq!(serde_json::from_str::<Vec<Value>>(&json).unwrap().len(), 16);
    assert_eq!(table.lines().count(), 1 + 16);
    let names: Vec<String> =
        plots.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    assert_eq!(
        names,
        [
            "clat_p99_ns-01-read.svg",
            "clat_p99_ns-02-write.svg",
            "iops-01-read.svg",
            "iops-02-write.svg"
        ]
    );
    assert_eq!(plots[0].1.matches("<polyline").count(), 2, "a line for each over-provisioning");
    assert_eq!((html.matches("<img").count(), html.matches("<tr>").count()), (4, 17));
}

#[test]
fn the_command_of_a_row_repeats_its_run() {
    let folder = folder(SWEEP);
    sweep(&folder, &["s.toml", "--json", "o.json"], 0);
    let rows: Vec<Value> = serde_json::from_str(&folder.read("o.json")).unwrap();
    let row = &rows[5];
    let words: Vec<&str> = row["replay"].as_str().unwrap().split(' ').collect();
    assert_eq!(words[..2], ["sluice", "sim"]);
    folder.run_to_end(&[&words[2..], &["--json", "r.json"]].concat(), 0);
    let runs: Value = serde_json::from_str(&folder.read("r.json")).unwrap();
    let direction = row["direction"].as_str().unwrap();
    let result = &runs[0]["jobs"][0][direction];
    assert_eq!(result["iops"], row["iops"]);
    assert_eq!(result["clat_ns"]["percentile"]["99.000000"], row["clat_p99_ns"]);
    assert_eq!(runs[0]["sluice"]["seed"], row["seed"]);
    // The stored run is what `sluice sim --json` prints, but for the title's seed.
    let runs_stored = stored(&folder, "runs").into_iter().map(|name| {
        let file: Value = serde_json::from_str(&folder.read(&format!("runs/{name}"))).unwrap();
        file["run"]["jobs"].clone()
    });
    assert!(runs_stored.into_iter().any(|jobs| jobs == runs[0]["jobs"]));
}

#[test]
fn failed_runs_are_rows_and_the_exit_code_says_it() {
    let sizes = "job.mixed.size = [\"1m\", \"1t\"]";
    let folder = folder(&SWEEP.replace("drive.ftl.over_provisioning = [0.2, 0.4]", sizes));
    let (table, told) = sweep(&folder, &["s.toml", "--csv", "o.csv"], 1);
    assert!(told.contains("8/8 · 4 failed · ") && told.contains("4 of 8 runs failed"), "{told}");
    assert!(told.contains("to repeat it: sluice sim small.toml --set job.mixed.iodepth=1 --set"));
    assert_eq!(table.matches("failed").count(), 4, "{table}");
    let csv = folder.read("o.csv");
    let failed = csv.lines().filter(|line| line.contains(",failed,"));
    assert!(failed.clone().all(|line| line.contains("--set job.mixed.size=1t --seed")), "{csv}");
    assert_eq!(failed.count(), 4);
    assert_eq!(stored(&folder, "runs").len(), 4);
}

#[test]
fn an_interrupted_sweep_keeps_what_is_done_and_the_next_one_resumes() {
    let expected = folder(&long());
    sweep(&expected, &["s.toml", "--csv", "o.csv"], 0);
    let folder = folder(&long());
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["sweep", "s.toml", "--jobs", "1", "--csv", "o.csv"]).stdout(Stdio::null());
    let child = command.current_dir(folder.path("")).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !folder.path("runs").exists() || stored(&folder, "runs").is_empty() {
        assert!(Instant::now() < deadline, "no run is stored");
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{told}");
    assert!(told.contains("the same command continues"), "{told}");
    let kept = stored(&folder, "runs");
    assert!(!kept.is_empty() && kept.len() < 60, "{}", kept.len());
    sweep(&folder, &["s.toml", "--csv", "o.csv"], 0);
    assert_eq!(folder.read("o.csv"), expected.read("o.csv"));
    assert_eq!(stored(&folder, "runs").len(), 60);
}

/// Returns a sweep that takes long enough to be interrupted.
fn long() -> String {
    SWEEP.replace("seeds = 2", "seeds = 15")
}

#[test]
fn verification_finds_a_run_that_differs() {
    let folder = folder(SWEEP);
    let (_, told) = sweep(&folder, &["s.toml", "--verify", "3"], 0);
    assert!(told.contains("3 stored runs are equal"), "{told}");
    // A file that is damaged is computed again before the verification.
    let name = stored(&folder, "runs").swap_remove(0);
    let path = format!("runs/{name}");
    let whole = folder.read(&path);
    fs::write(folder.path(&path), &whole[..100]).unwrap();
    let (_, told) = sweep(&folder, &["s.toml", "--verify", "8"], 0);
    assert!(told.contains(&format!("warning: runs/{name}: ")), "{told}");
    assert!(told.contains("8 stored runs are equal"), "{told}");
    assert_eq!(folder.read(&path), whole);
}

#[test]
fn an_invalid_sweep_is_refused_with_its_line() {
    for (old, new, part) in [
        ("[0.2, 0.4]", "[]", "s.toml:6: it has no value"),
        ("[0.2, 0.4]", "[0.2, 0.2]", "s.toml:6: the value 0.2 occurs twice"),
        ("[0.2, 0.4]", "[0.2, \"many\"]", "s.toml:6: drive.ftl.over_provisioning=many: "),
        ("over_provisioning", "over_provisionin", "did you mean `over_provisioning`?"),
        ("seeds", "sedes", "s.toml:2: no key `sedes`; did you mean `seeds`?"),
        ("small.toml", "missing.toml", "missing.toml"),
    ] {
        let folder = folder(&SWEEP.replacen(old, new, 1));
        let (_, told) = sweep(&folder, &["s.toml"], 2);
        assert!(told.contains(part), "{told}");
        assert!(!folder.path("runs").exists(), "{told}");
    }
    let empty = folder("scenario = \"small.toml\"\n");
    assert!(sweep(&empty, &["s.toml"], 2).1.contains("the sweep is empty"));
}

// guarantee: B-73
#[test]
fn a_setting_of_all_points_is_an_input_of_each_run_and_no_key_of_the_sweep() {
    let folder = folder(SWEEP);
    let rows = |args: &[&str]| -> Vec<Value> {
        sweep(&folder, &[&["s.toml", "--json", "o.json"], args].concat(), 0);
        serde_json::from_str(&folder.read("o.json")).unwrap()
    };
    let usual = rows(&[]);
    let larger = rows(&["--set", "job.mixed.bs=16k"]);
    assert_eq!(
        stored(&folder, "runs").len(),
        16,
        "no kept run is taken for one of another setting"
    );
    assert_eq!(rows(&[]), usual);
    let again = rows(&["--set", "job.mixed.bs=16k", "--verify", "8"]);
    assert_eq!((again == larger, stored(&folder, "runs").len()), (true, 16));
    for (row, other) in larger.iter().zip(&usual) {
        assert_eq!(row["parameters"], other["parameters"]);
        let bytes = row["requests"].as_u64().unwrap() * (16 << 10);
        assert_eq!(row["bytes"].as_u64(), Some(bytes), "{row}");
    }
    // It is what the scenario with this value has, and the command of a row has it.
    let edited = SCENARIO.replace("\"4k\"", "\"16k\"");
    folder.write("small.toml", &edited);
    let of_edited = rows(&[]);
    assert_eq!(stored(&folder, "runs").len(), 16);
    for (row, other) in larger.iter().zip(&of_edited) {
        let replay = row["replay"].as_str().unwrap();
        assert!(replay.contains(" small.toml --set job.mixed.bs=16k --set job.mixed.iodepth="));
        let set = " --set job.mixed.bs=16k";
        assert_eq!(replay.replace(set, ""), other["replay"].as_str().unwrap());
        assert_eq!(row["iops"], other["iops"]);
    }
    sweep(&folder, &["s.toml", "--set", "title=five", "--report", "o.html"], 0);
    assert!(folder.read("o.html").contains("0 of them failed. With title=five."));
}

// guarantee: B-73
#[test]
fn settings_that_no_point_can_have_are_refused_before_any_run() {
    let folder = folder(SWEEP);
    for (sets, part) in [
        (
            &["job.mixed.iodepth=2"][..],
            "is set by the sweep: job.mixed.iodepth (s.toml:5); remove it",
        ),
        (&["job.*.iodepth=2"], "`job.*.iodepth` is set by the sweep: job.mixed.iodepth (s.toml:5)"),
        (&["job.iodepth=2"], "`job.iodepth` is set by the sweep: job.mixed.iodepth"),
        (&["drive.ftl={ over_provisioning = 0.1 }"], "is set by the sweep: drive.ftl.over_"),
        (&["seed=7"], "the seeds are given, and `seed` is set as well"),
        (&["job.mixed.bs=4k,8k"], "`job.mixed.bs` has several values; give one of them"),
        (&["job.mixed.bs=4k", "job.mixed.bs=8k"], "`job.mixed.bs` is set twice"),
        (&["job.mixed.bss=4k"], "--set job.mixed.bss=4k: "),
        (&["job.mixed.bs=many"], "--set job.mixed.bs=many: job.mixed.bs=many: "),
        (&["host.vary=lines.hit*2"], "there is no machine whose number could vary"),
        (&["job.mixed.bs"], "it has no value"),
        (&["job..bs=1"], "is no name of a key"),
    ] {
        let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let (_, told) = sweep(&folder, &[&["s.toml"], &args[..]].concat(), 2);
        assert!(told.contains(part), "{sets:?}: {told}");
        assert!(!folder.path("runs").exists(), "{told}");
    }
}

#[test]
fn a_store_of_another_version_and_another_folder_are_refused_by_name() {
    let folder = folder(SWEEP);
    fs::create_dir(folder.path("old")).unwrap();
    fs::write(folder.path("old/SLUICE_STORE"), "sluice sweep store 0\n").unwrap();
    let (_, told) = sweep(&folder, &["s.toml", "--store", "old"], 1);
    assert!(told.contains("old: the store has the format \"sluice sweep store 0\""), "{told}");
    let (_, told) = sweep(&folder, &["s.toml", "--store", "."], 1);
    assert!(told.contains(".: the folder has files and is no store"), "{told}");
    let (_, told) = sweep(&folder, &["s.toml", "--csv", "/dev/full"], 1);
    assert!(told.contains("/dev/full: its disk is full"), "{told}");
    assert_eq!(stored(&folder, "runs").len(), 8, "the runs are kept");
}

#[test]
fn a_full_disk_ends_a_sweep_with_the_rows_so_far_and_more_space_continues_it() {
    if !rustix::process::geteuid().is_root() {
        testkit::skip!("not root: no file system can be mounted");
        return;
    }
    let folder = folder(SWEEP);
    fs::create_dir(folder.path("runs")).unwrap();
    // One run needs some pages; eight do not fit.
    let script = "mount -t tmpfs -o size=64k tmpfs runs || exit 99; \
                  \"$0\" sweep s.toml --csv o.csv; echo $? >code; \
                  mount -o remount,size=8m tmpfs runs; \
                  \"$0\" sweep s.toml --csv again.csv; echo $? >again; ls runs >listed";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_sluice")]);
    let out = command.current_dir(folder.path("")).env("NO_COLOR", "1").output().unwrap();
    if out.status.code() == Some(99)
        || String::from_utf8_lossy(&out.stderr).contains("unshare failed")
    {
        testkit::skip!("this system does not let a file system be mounted");
        return;
    }
    let told = String::from_utf8_lossy(&out.stderr);
    assert_eq!(folder.read("code"), "1\n", "{told}");
    assert!(told.contains("disk is full") || told.contains("No space left"), "{told}");
    let (rows, all) = (folder.read("o.csv"), folder.read("again.csv"));
    assert!((1..1 + 16).contains(&rows.lines().count()), "{rows}");
    assert!(rows.lines().all(|row| all.contains(row)), "the rows so far are those of the sweep");
    assert_eq!((folder.read("again"), all.lines().count()), ("0\n".into(), 1 + 16));
    let listed = folder.read("listed");
    assert_eq!(listed.lines().filter(|name| name.ends_with(".json")).count(), 8, "{listed}");
    assert!(listed.lines().all(|name| !name.contains("part")), "no partial file is left: {listed}");
}
