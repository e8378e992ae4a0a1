//! `sluice repro`: figures of papers.

// guarantee: B-61
// guarantee: B-62

use std::process::Command;

use crate::sim_folder::{Folder, output_text};

/// A figure of virtual time, whose command takes a second.
const FIGURE: &str = r#"
title = "One queue"
source = "[P20 §1]"
claim = "One queue stays below a million."
class = "virtual"
minutes = 0.1
group = "machine"

[[run]]
command = "bench block --machine 1x2"

[[chart]]
title = "One queue"
y_label = "million I/Os per second"
x = ["1", "2"]
at = ["1 core", "2 cores"]

[[chart.line]]
name = "sq"
case = "1x2 modelled: sq, {x}"
metric = "iops"
times = 1e-6

[[check]]
claim = "below a million"
value = "sq@max"
at_most = 1.0
"#;

fn folder(figure: &str) -> Folder {
    Folder::new(&[("repro/P20/figure-1.toml", figure)])
}

/// Runs `sluice repro` to its end; returns standard output and standard error.
fn repro(folder: &Folder, args: &[&str], code: i32) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.arg("repro").args(args).current_dir(folder.path("")).env("NO_COLOR", "1");
    output_text(command.output().unwrap(), code)
}

#[test]
fn a_figure_is_measured_recorded_checked_and_reported() {
    let folder = folder(FIGURE);
    let (listed, _) = repro(&folder, &["list"], 0);
    assert!(
        listed.starts_with("P20:figure-1  virtual    0.1 min  One queue  (not measured)"),
        "{listed}"
    );
    let (_, told) = repro(&folder, &["run", "P20", "--check"], 1);
    assert!(told.contains("P20:figure-1 has no recorded results"), "{told}");
    let (printed, told) = repro(&folder, &["run", "P20:figure-1"], 0);
    assert!(
        printed.starts_with("P20:figure-1: reproduced\n  holds: below a million (sq@max = 0.9"),
        "{printed}"
    );
    assert!(told.contains("P20:figure-1: sluice bench block --machine 1x2"), "{told}");
    let rows = folder.read("repro/P20/results/figure-1.jsonl");
    assert_eq!(rows.lines().count(), 3, "{rows}");
    assert!(
        rows.starts_with("{\"figure\":\"P20:figure-1\",\"class\":\"virtual\",\"commit\":\""),
        "{rows}"
    );
    assert!(folder.read("repro/P20/results/figure-1.svg").contains("<polyline"));
    // The results are equal, to the byte.
    repro(&folder, &["run", "all", "--class", "virtual", "--max-minutes", "1", "--check"], 0);
    repro(&folder, &["report"], 0);
    assert!(folder.read("REPRODUCED.md").contains("1 figures: 1 reproduced"));
    repro(&folder, &["report", "--check"], 0);

    folder.write("REPRODUCED.md", "other");
    let (_, told) = repro(&folder, &["report", "--check"], 1);
    assert!(told.contains("REPRODUCED.md is not the one of the recorded results"), "{told}");
    folder
        .write("repro/P20/results/figure-1.jsonl", &rows.replacen("\"value\":9", "\"value\":8", 1));
    let (_, told) = repro(&folder, &["run", "P20", "--check"], 1);
    assert!(told.contains("1 of the recorded rows differ"), "{told}");
    folder.write("repro/P20/results/figure-1.jsonl", "{}\n");
    let (_, told) = repro(&folder, &["report"], 1);
    assert!(told.contains("line 1: no `commit`"), "{told}");
}

#[test]
fn a_check_that_does_not_hold_ends_with_3_unless_it_has_a_reason() {
    let failing = folder(&FIGURE.replace("at_most = 1.0", "at_most = 0.1"));
    let (printed, told) = repro(&failing, &["run", "all"], 3);
    assert!(printed.starts_with("P20:figure-1: failed"), "{printed}");
    assert!(
        told.contains("P20:figure-1: below a million: sq@max = 0.9")
            && told.contains("at most 0.1"),
        "{told}"
    );
    // The results are kept: the page says that the check does not hold.
    repro(&failing, &["report"], 3);
    assert!(failing.read("REPRODUCED.md").contains("| **no** |"));
    let known = folder(&FIGURE.replace("at_most = 1.0", "at_most = 0.1\nnot_here = \"a reason\""));
    let (printed, _) = repro(&known, &["run", "all", "--json"], 0);
    let verdict: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert_eq!(verdict["verdict"], "partly");
    assert_eq!(verdict["checks"][0]["not_here"], "a reason");
    assert_eq!(printed.lines().count(), 4);
}

#[test]
fn quick_runs_record_nothing_and_rows_of_a_file_are_taken_as_measured() {
    let folder = folder(FIGURE);
    repro(&folder, &["run", "all", "--quick"], 0);
    assert!(!folder.path("repro/P20/results").exists());
    let mut bench = Command::new(env!("CARGO_BIN_EXE_sluice"));
    let rows = bench.args(["bench", "block", "--machine", "1x2", "--json"]).output().unwrap();
    folder.write("rows.jsonl", &String::from_utf8(rows.stdout).unwrap());
    let (_, told) = repro(&folder, &["run", "all", "--from", "rows.jsonl"], 0);
    assert_eq!(told, "", "no command runs");
    repro(&folder, &["run", "all", "--check"], 0);
    // Of several runs, the median is recorded; of rows with the same case and metric, the first.
    let row = |cores: &str, value: f64| {
        format!(
            "{{\"bench\":\"block\",\"case\":\"1x2 modelled: sq, {cores}\",\"metric\":\"iops\",\"value\":{value:?}}}\n"
        )
    };
    for (name, value) in [("a", 3e5), ("b", 1e5), ("c", 2e5)] {
        let rows = [row("1 core", value), row("2 cores", value + 1.0), row("2 cores", 9e9)];
        folder.write(name, &rows.concat());
    }
    repro(&folder, &["run", "all", "--from", "a", "--from", "b", "--from", "c"], 0);
    let rows = folder.read("repro/P20/results/figure-1.jsonl");
    assert!(rows.contains(":200000.0") && rows.contains(":200001.0"), "{rows}");
    // An empty file is no request to run the commands.
    folder.write("empty.jsonl", "");
    let (_, told) = repro(&folder, &["run", "all", "--from", "empty.jsonl"], 1);
    assert!(told.contains("the results lack") && !told.contains("P20:figure-1: sluice"), "{told}");
    folder
        .write("rows.jsonl", "{\"bench\":\"block\",\"case\":\"a\",\"metric\":\"b\",\"value\":1}\n");
    let (_, told) = repro(&folder, &["run", "all", "--from", "rows.jsonl"], 1);
    assert!(told.contains("the results lack \"1x2 modelled: sq, 1 core\", iops"), "{told}");
}

#[test]
fn what_cannot_be_measured_says_why() {
    for (from, to, args, code, why) in [
        ("minutes = 0.1", "minute = 0.1", &["list"][..], 2, "unknown field `minute`"),
        ("virtual", "real", &["run", "all", "--check"][..], 2, "is in real time"),
        ("virtual", "virtual", &["run", "P21"][..], 2, "did you mean `P20`?"),
        (
            "virtual",
            "virtual",
            &["run", "all", "--class", "guest"][..],
            2,
            "no figure is of this class",
        ),
        ("virtual", "virtual", &["list", "--dir", "."][..], 2, "has no figures"),
        ("virtual", "virtual", &["run"][..], 2, "required"),
        (
            "1x2\"",
            "1x2 --part drive\"",
            &["run", "all"][..],
            1,
            "`bench block --machine 1x2 --part drive` failed",
        ),
    ] {
        let folder = folder(&FIGURE.replacen(from, to, 1));
        let (_, told) = repro(&folder, args, code);
        assert!(told.contains(why), "{args:?}: {told}");
    }
}

#[test]
fn numbers_of_a_machine_are_varied_and_fragile_checks_are_on_the_page() {
    let figure = FIGURE.replacen("at_most = 1.0", "at_least = 0.7", 1).replacen(
        "group =",
        "vary = [\"application\", \"hit\"]\ngroup =",
        1,
    );
    let folder = folder(&figure);
    let (_, told) = repro(&self::folder(FIGURE), &["vary", "P20"], 2);
    assert!(told.contains("no such figure has numbers of a machine"), "{told}");
    repro(&folder, &["run", "P20"], 0);
    let (changed, _) = repro(&folder, &["vary", "P20"], 0);
    assert!(changed.starts_with("P20:figure-1: 1 checks change\n"), "{changed}");
    assert!(changed.contains("application*2: no longer holds: below a million"), "{changed}");
    repro(&folder, &["report"], 0);
    let page = std::fs::read_to_string(folder.path("REPRODUCED.md")).unwrap();
    assert!(page.contains("Each of the 2 numbers of the machine halved and doubled"), "{page}");
    assert!(page.contains("| application × 2 | below a million |"), "{page}");
    repro(&folder, &["report", "--check"], 0);
}

#[test]
fn a_number_of_the_machine_of_a_sweep_is_varied_and_runs_without_it_stay() {
    let scenario = "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\n[host]\nmachine = \"i7-4770\"\n\
        [[job]]\nname = \"one\"\nrw = \"randread\"\nbs = \"4k\"\nsize = \"1m\"\n";
    let sweep = "scenario = \"figure-1.scenario.toml\"\n[set]\njob.one.iodepth = [1, 2]\n";
    let command = "sweep repro/P20/figure-1.sweep.toml";
    let figure = FIGURE
        .replace("bench block --machine 1x2", command)
        .replace("group =", "vary = [\"processor.ghz\", \"registers.read\"]\ngroup =")
        .replace("at = [\"1 core\", \"2 cores\"]\n", "")
        .replace("1x2 modelled: sq, {x}", "job.one.iodepth={x}, one, read")
        .replace("times = 1e-6\n", "")
        .replace("metric = \"iops\"", "metric = \"clat_mean_ns\"")
        .replace("value = \"sq@max\"\nat_most = 1.0", "value = \"sq@1\"\nat_most = LIMIT");
    let folder = |limit: f64| {
        let figure = figure.replace("LIMIT", &limit.to_string());
        let files = ["figure-1.toml", "figure-1.sweep.toml", "figure-1.scenario.toml"];
        let texts = [figure.as_str(), sweep, scenario];
        let paths = files.map(|file| format!("repro/P20/{file}"));
        let all: Vec<(&str, &str)> = paths.iter().map(String::as_str).zip(texts).collect();
        Folder::new(&all)
    };
    let latency = |folder: &Folder| -> f64 {
        repro(folder, &["run", "P20"], 0);
        let rows = folder.read("repro/P20/results/figure-1.jsonl");
        let row: serde_json::Value = serde_json::from_str(rows.lines().nth(1).unwrap()).unwrap();
        row["value"].as_f64().unwrap()
    };
    // A limit between the latency at the usual clock and that at half of it.
    let usual = latency(&folder(1e9));
    let folder = folder(usual * 1.2);
    // Nothing is recorded before.
    let (changed, told) = repro(&folder, &["vary", "P20"], 0);
    assert!(changed.starts_with("P20:figure-1: 1 checks change\n"), "{changed}");
    assert!(changed.contains("processor.ghz*0.5: no longer holds: below a million"), "{changed}");
    assert!(told.contains(&format!("{command} --set host.vary=registers.read*2")), "{told}");
    let kept = || std::fs::read_dir(folder.path("repro/P20/figure-1.sweep.runs")).unwrap().count();
    let count = kept();
    assert_eq!(latency(&folder), usual, "the kept runs of other numbers are others");
    repro(&folder, &["vary", "P20"], 0);
    assert_eq!(kept(), count);
    // A scenario without a machine has no such numbers.
    folder.write(
        "repro/P20/figure-1.scenario.toml",
        &scenario.replace("[host]\nmachine = \"i7-4770\"\n", ""),
    );
    let (_, told) = repro(&folder, &["vary", "P20"], 1);
    assert!(told.contains("there is no machine whose number could vary"), "{told}");
}

/// Returns the keys that a bench tells if it is asked for one that it does not have.
fn variable_keys(bench: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.arg("bench").args(bench).args(["--vary", "none*2"]).env("NO_COLOR", "1");
    let (_, told) = output_text(command.output().unwrap(), 2);
    let (_, keys) = told.trim_end().rsplit_once("there is ").unwrap_or_else(|| panic!("{told}"));
    keys.split(", ").map(str::to_owned).collect()
}

#[test]
fn figures_on_machines_vary_all_of_their_numbers() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../repro");
    let catalog = repro::Catalog::load(folder.as_ref()).unwrap();
    for (begin, bench) in [
        ("bench hiops --part machine", &["hiops", "--part", "machine"][..]),
        ("bench block --machine", &["block", "--machine", "1x2"]),
    ] {
        let keys = variable_keys(bench);
        assert!(keys.len() > 10, "{keys:?}");
        let figures = catalog.figures().iter();
        let of_bench = figures.filter(|figure| figure.commands()[0].starts_with(begin));
        let all: Vec<_> =
            of_bench.inspect(|f| assert_eq!(f.vary(), keys, "{}", f.name())).collect();
        assert!(all.len() >= 4, "{begin}");
    }
    let mut count = 0;
    for figure in catalog.figures() {
        let sweeps = figure.commands().iter().filter_map(|command| command.strip_prefix("sweep "));
        for file in sweeps {
            let file = std::path::Path::new(folder).parent().unwrap().join(file);
            let planned = sweep::SweepFile::load(&file).unwrap().sweep.points().unwrap();
            for scenario in planned.into_iter().map(|run| run.scenario.unwrap()) {
                let Some(machine) = scenario.host.machine else { continue };
                let keys: Vec<&str> = machine.model.variable_keys().collect();
                assert_eq!(figure.vary(), keys, "{}", figure.name());
                count += 1;
            }
        }
    }
    assert!(count >= 5 * 2, "{count}");
    for wrong in [&["sim", "--vary", "lines.hit*2"][..], &["hiops", "--vary", "lines.hit*2"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        let (_, told) = output_text(command.arg("bench").args(wrong).output().unwrap(), 2);
        assert!(told.contains("--vary is for modelled machines"), "{told}");
    }
}
