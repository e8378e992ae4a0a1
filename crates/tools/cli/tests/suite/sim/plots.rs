//! The figures of `docs/lightnvm.md` must match the results beside them, and the text must name
//! existing files and numbers of the results. The results are in virtual time; `make plots`
//! reproduces them.

use std::path::{Path, PathBuf};
use std::process::Command;

use report::figures;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn the_figures_are_those_of_the_results() {
    let folder = docs().join("lightnvm");
    let figures = figures::draw(&read(&folder.join("results.jsonl"))).unwrap();
    let mut names: Vec<String> = figures.iter().map(|f| format!("{}.svg", f.name)).collect();
    for figure in &figures {
        let file = folder.join(format!("{}.svg", figure.name));
        assert!(read(&file) == figure.svg, "{} is not drawn from results.jsonl", file.display());
        for none in ["NaN", "inf\"", "\"inf"] {
            assert!(!figure.svg.contains(none), "{}: {none}", figure.name);
        }
    }
    let entries = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name());
    let mut there: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    there.retain(|name| name.ends_with(".svg"));
    there.sort();
    names.sort();
    assert_eq!(there, names, "the folder must have exactly the expected figures");
    let text = read(&docs().join("lightnvm.md"));
    for name in &names {
        assert!(text.contains(&format!("(lightnvm/{name})")), "{name} is not shown");
    }
}

#[test]
fn the_figure_of_scaling_is_that_of_its_results() {
    let results = read(&docs().join("../spec/results/scale.jsonl"));
    let figures = figures::draw(&results).unwrap();
    let [figure] = &figures[..] else { panic!("{} figures", figures.len()) };
    let file = docs().join(format!("figures/{}.svg", figure.name));
    assert!(
        read(&file) == figure.svg,
        "run `sluice plot spec/results/scale.jsonl --dir docs/figures`"
    );
}

#[test]
fn no_verdict_of_the_results_fails_that_the_text_does_not_name() {
    let results = read(&docs().join("lightnvm/results.jsonl"));
    let text = read(&docs().join("lightnvm.md"));
    let mut failed = 0;
    for line in results.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        if row["verdict"] == "fail" {
            failed += 1;
            let case = row["case"].as_str().unwrap();
            assert!(
                text.contains(&format!("`{case}`")),
                "{case} fails, and the text does not mention it"
            );
        }
    }
    assert_eq!(failed, text.matches("\n| `").count(), "the text names a case that does not fail");
}

#[test]
fn plot_draws_into_a_folder_and_tells_what_is_wrong_with_its_input() {
    let sluice = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().expect("sluice runs")
    };
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("new");
    let results = docs().join("lightnvm/results.jsonl");
    let out = sluice(&["plot", results.to_str().unwrap(), "--dir", into.to_str().unwrap()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let listed = String::from_utf8(out.stdout).unwrap();
    assert!(listed.lines().count() >= 8 && listed.lines().all(|l| Path::new(l).exists()));
    let bad = folder.path().join("bad.jsonl");
    for (content, what) in [("{\"case\":1}\n", "line 1"), ("", "nothing to draw")] {
        std::fs::write(&bad, content).unwrap();
        let out = sluice(&["plot", bad.to_str().unwrap(), "--dir", into.to_str().unwrap()]);
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{told}");
        assert!(told.contains(what), "{told}");
    }
    let out = sluice(&["bench", "ring", "--part", "drive"]);
    assert_eq!(out.status.code(), Some(2));
}
