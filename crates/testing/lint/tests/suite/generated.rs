//! Pages that scripts write from data are as the scripts would write them, and results name commits that exist.

use std::process::{Command, Output};

use sluice_lint::workspace::root;

fn run(script: &str, option: &str) -> Output {
    let mut command = Command::new("python3");
    command.arg(root().join("scripts").join(script)).arg(option);
    command.output().expect("python3 runs: `scripts/apt-install python3` installs it")
}

fn assert_success(script: &str, option: &str, output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/{script} {option}:\n{said}");
}

#[test]
fn pages_are_generated() {
    for script in ["guarantees", "results", "limits", "figures"] {
        assert_success(script, "--check", &run(script, "--check"));
    }
}

/// In a clone without the whole history nothing can be said; `.ci/run` does not accept that.
#[test]
fn no_more_results_are_stale() {
    let output = run("results", "--history");
    if output.status.code() != Some(77) {
        assert_success("results", "--history", &output);
    }
}
