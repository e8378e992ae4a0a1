//! `sluice sim --set`, `--seeds` and `--csv`.

use serde_json::Value;

use super::{SCENARIO, folder};
use crate::sim_folder::Folder;

fn titles(folder: &Folder, name: &str) -> Vec<String> {
    let runs: Vec<Value> = serde_json::from_str(&folder.read(name)).unwrap();
    runs.iter().map(|run| run["sluice"]["title"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn values_run_in_all_combinations_and_titles_say_them() {
    let folder = folder("");
    let args = [
        "small.toml",
        "--set",
        "job.mixed.bs=4k,8k",
        "--set",
        "drive.ftl.over_provisioning=0.2,0.4",
        "--json",
        "o.json",
        "--report",
        "o.html",
        "--csv",
        "o.csv",
    ];
    let (table, _) = folder.run_to_end(&args, 0);
    let names = titles(&folder, "o.json");
    assert_eq!(names.len(), 4);
    assert_eq!(names[1], "small (job.mixed.bs=4k, drive.ftl.over_provisioning=0.4)");
    for name in &names {
        assert!(table.contains(name) && folder.read("o.html").contains(name), "{name}");
    }
    let csv = folder.read("o.csv");
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 9, "a head, and a row for each run and direction");
    assert!(lines[0].starts_with("scenario,job.mixed.bs,drive.ftl.over_provisioning,seed,job,"));
    assert!(lines[3].starts_with("small.toml,4k,0.4,1,mixed,read,ok,,sluice sim small.toml --set"));
    assert!(lines[0].contains(",bandwidth_bytes_per_s,") && lines[0].contains(",clat_p99_ns,"));
}

#[test]
fn one_value_is_as_if_the_scenario_had_it() {
    let edited = SCENARIO.replace("\"4k\"", "\"16k\"");
    let folder = Folder::new(&[("small.toml", SCENARIO), ("edited.toml", &edited)]);
    let set = ["small.toml", "--set", "job.mixed.bs=16k", "--seed", "9", "--json", "a.json"];
    folder.run_to_end(&set, 0);
    folder.run_to_end(&["edited.toml", "--seed", "9", "--json", "b.json"], 0);
    let text = |name: &str| folder.read(name).replace(" (job.mixed.bs=16k)", "");
    assert_eq!(text("a.json"), text("b.json"));
}

#[test]
fn every_scenario_given_has_the_values_and_the_seeds() {
    let other = SCENARIO.replace("\"small\"", "\"other\"");
    let folder = Folder::new(&[("small.toml", SCENARIO), ("other.toml", &other)]);
    let sets = ["--set", "job.bs=4k,8k", "--seeds", "3..5", "--json", "o.json"];
    folder.run_to_end(&[&["small.toml", "other.toml"], &sets[..]].concat(), 0);
    let names = titles(&folder, "o.json");
    assert_eq!(names.len(), 8);
    assert_eq!(names[0], "small (job.bs=4k, seed 3)");
    assert_eq!(names[7], "other (job.bs=8k, seed 4)");
    let runs: Vec<Value> = serde_json::from_str(&folder.read("o.json")).unwrap();
    let seeds: Vec<_> = runs.iter().map(|run| run["sluice"]["seed"].as_u64().unwrap()).collect();
    assert_eq!(seeds, [3, 4, 3, 4, 3, 4, 3, 4]);
}

#[test]
fn outputs_do_not_depend_on_the_number_of_runs_at_a_time() {
    let outputs = |jobs: &str| {
        let folder = folder("");
        let sets = ["--set", "job.bs=4k,8k", "--seeds", "3", "--csv", "o.csv", "--json", "o.json"];
        let printed = folder.run_to_end(&[&["small.toml", "--jobs", jobs], &sets[..]].concat(), 0);
        (printed, folder.read("o.csv"), folder.read("o.json"))
    };
    assert_eq!(outputs("1"), outputs("4"));
}

#[test]
fn errors_name_the_setting_and_not_a_line() {
    let folder = folder("");
    let refused = |args: &[&str]| {
        let (_, told) = folder.run_to_end(&[&["small.toml"], args].concat(), 2);
        assert!(!told.contains("small.toml:"), "{told}");
        told
    };
    let told = refused(&["--set", "drive.ftl.over_provisionin=0.1"]);
    assert!(told.contains("--set drive.ftl.over_provisionin=0.1: "), "{told}");
    assert!(told.contains("did you mean `over_provisioning`?"), "{told}");
    let told = refused(&["--set", "drive.ftl.over_provisioning=0.1,many"]);
    assert!(told.contains("drive.ftl.over_provisioning=many: ") && told.contains("expected"));
    assert!(refused(&["--set", "job.mixed.bs=4k,4k"]).contains("4k occurs twice"));
    assert!(refused(&["--set", "job.mixed.bs="]).contains("no value"));
    assert!(refused(&["--set", "job.mixed.bs=1", "--set", "job.mixed.bs=2"]).contains("twice"));
    assert!(refused(&["--seeds", "0..0"]).contains("0..0"));
    assert!(refused(&["--set", "job.bs=4k,8k", "--trace", "t"]).contains("--trace takes one"));
    let (_, told) = folder.run_to_end(&["small.toml", "--seeds", "2", "--seed", "1"], 2);
    assert!(told.contains("cannot be used with"), "{told}");
    let (_, told) = folder.run_to_end(&["small.toml", "--csv", "o", "--json", "o"], 2);
    assert!(told.contains("both write to o"), "{told}");
}

#[test]
fn drives_of_a_list_have_names() {
    let small = "preset = \"femu-default\"\ngeometry = { channels = 1, chunks = 16, pages = 32 }\n";
    let two = format!(
        "[[drive]]\nname = \"left\"\n{small}[[drive]]\n{small}\
         [[job]]\ndrive = \"left\"\nrw = \"write\"\nsize = \"1m\"\n\
         [[job]]\ndrive = \"drive1\"\nrw = \"write\"\nsize = \"1m\"\n"
    );
    let folder = Folder::new(&[("two.toml", &two)]);
    let run = |key: &str, code: i32| {
        let set = format!("{key}=0.5");
        folder.run_to_end(&["two.toml", "--set", &set, "--json", "o.json"], code).1
    };
    for (key, expected) in [
        ("drive.left.ftl.over_provisioning", [true, false]),
        ("drive.drive1.ftl.over_provisioning", [false, true]),
        ("drive.*.ftl.over_provisioning", [true, true]),
    ] {
        run(key, 0);
        let runs: Value = serde_json::from_str(&folder.read("o.json")).unwrap();
        let changed = [0, 1].map(|index| {
            let drive = &runs[0]["sluice"]["parameters"]["drives"][index];
            drive["ftl"]["over_provisioning"].as_f64() == Some(0.5)
        });
        assert_eq!(changed, expected, "{key}");
    }
    let told = run("drive.lefd.ftl.over_provisioning", 2);
    assert!(told.contains("did you mean `left`?") && told.contains("left, drive1"), "{told}");
}
