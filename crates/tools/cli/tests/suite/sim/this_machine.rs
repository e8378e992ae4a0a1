//! `[host] machine = "this"` with numbers that were measured before.

// guarantee: B-74

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use bench::calibrate::KeptMachine;
use serde_json::Value;

use crate::sim_folder::{Folder, output_text};

const SCENARIO: &str = "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\n\
    [[job]]\nname = \"one\"\nrw = \"randread\"\nbs = \"4k\"\nsize = \"1m\"\n[host]\n";
const SWEEP: &str = "scenario = \"s.toml\"\n[set]\nhost.machine = [\"this\", \"i7-4770\"]\n";

/// Returns the text of a measured machine with this clock rate in GHz.
fn measured(about: &str, ghz: f64) -> String {
    let i7 = include_str!("../../../../../base/machine/models/i7-4770.toml");
    let lines = i7.lines().map(|line| match line {
        line if line.starts_with("about = ") => format!("about = \"{about}\"\n"),
        line if line.starts_with("name = ") => "name = \"this\"\n".to_owned(),
        line => format!("{}\n", line.replace("value = 3.4", &format!("value = {ghz}"))),
    });
    lines.collect()
}

/// Returns a folder whose user has numbers of this machine with this clock rate, and their file.
fn folder(host: &str, ghz: f64) -> (Folder, PathBuf) {
    let folder = Folder::new(&[("s.toml", &format!("{SCENARIO}{host}")), ("w.toml", SWEEP)]);
    let path = KeptMachine::path_in(&folder.path("cache/sluice/machines"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, measured(&KeptMachine::description(), ghz)).unwrap();
    (folder, path)
}

/// Runs `sluice`; returns standard output and standard error.
fn sluice(folder: &Folder, args: &[&str], code: i32) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(args).current_dir(folder.path("")).env("NO_COLOR", "1");
    command.env("XDG_CACHE_HOME", folder.path("cache"));
    output_text(command.output().unwrap(), code)
}

#[test]
fn the_results_are_those_of_the_kept_numbers_and_name_them() {
    let (folder, path) = folder("machine = \"this\"\n", 2.0);
    let results = |args: &[&str]| -> Value {
        let args = [&["sim", "s.toml", "--json", "o.json"], args].concat();
        let (_, told) = sluice(&folder, &args, 0);
        assert_eq!(told, "", "nothing is measured");
        let runs: Value = serde_json::from_str(&folder.read("o.json")).unwrap();
        runs[0].clone()
    };
    let this = results(&[]);
    let machine = &this["sluice"]["machine"];
    assert_eq!(machine["name"], "this");
    assert_eq!(machine["about"], KeptMachine::description().as_str());
    let numbers = machine["numbers"].as_array().unwrap();
    let ghz = numbers.iter().find(|number| number["key"] == "processor.ghz").unwrap();
    assert_eq!(ghz["value"], 2.0);
    // The results are the same if the scenario names the kept file, and if `--set` asks for this
    // machine.
    let set = format!("host.machine=\"{}\"", path.display());
    let named = results(&["--set", &set]);
    assert_eq!((&this["jobs"], machine), (&named["jobs"], &named["sluice"]["machine"]));
    let set = results(&["--set", "host.machine=this"]);
    assert_eq!(set["jobs"], this["jobs"]);
    let twice = results(&["--set", "host.vary=processor.ghz*2"]);
    let mean = |run: &Value| run["jobs"][0]["read"]["clat_ns"]["mean"].as_f64().unwrap();
    assert!(mean(&twice) < mean(&this), "{} {}", mean(&twice), mean(&this));
    let (_, told) = sluice(&folder, &["sim", "s.toml", "--set", "host.vary=lines.miss*2"], 2);
    assert!(
        told.contains("--set host.vary=lines.miss*2: ") && told.contains("no number"),
        "{told}"
    );
}

#[test]
fn a_sweep_runs_on_it_and_other_numbers_are_other_runs() {
    let (folder, path) = folder("", 2.0);
    let rows = || -> Vec<Value> {
        sluice(&folder, &["sweep", "w.toml", "--json", "o.json"], 0);
        serde_json::from_str(&folder.read("o.json")).unwrap()
    };
    let mean = |rows: &[Value], row: usize| rows[row]["clat_mean_ns"].as_f64().unwrap();
    let first = rows();
    assert!(mean(&first, 0) > mean(&first, 1), "2 GHz and 3.4: {first:?}");
    assert_eq!(rows(), first);
    fs::write(&path, measured(&KeptMachine::description(), 4.0)).unwrap();
    let faster = rows();
    assert!(mean(&faster, 0) < mean(&first, 0), "{first:?} {faster:?}");
    assert_eq!(mean(&faster, 1), mean(&first, 1));
    let files = fs::read_dir(folder.path("w.runs")).unwrap().map(|file| file.unwrap().path());
    assert_eq!(files.filter(|path| path.extension().is_some_and(|e| e == "json")).count(), 3);
}

#[test]
fn numbers_of_another_machine_and_a_user_without_a_folder_are_refused() {
    let (folder, path) = folder("machine = \"this\"\n", 2.0);
    fs::write(&path, measured("another machine", 2.0)).unwrap();
    let (_, told) = sluice(&folder, &["sim", "s.toml"], 1);
    assert!(told.contains("is of another machine, and this is "), "{told}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["sim", "s.toml"]).current_dir(folder.path("")).env("NO_COLOR", "1");
    command.env_remove("XDG_CACHE_HOME").env_remove("HOME");
    let (_, told) = output_text(command.output().unwrap(), 2);
    assert!(told.contains("set XDG_CACHE_HOME or HOME"), "{told}");
    // Without jobs there is nothing to measure for.
    sluice(&folder, &["drive", "show", "s.toml"], 0);
}
