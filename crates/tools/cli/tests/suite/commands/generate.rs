//! `sluice generate`: every command that `--help` shows has a man page and is in the completions.

use std::path::Path;
use std::process::{Command, Output};

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().expect("the command runs")
}

/// Commands that the help of `sluice COMMAND…` lists.
fn commands(path: &[&str]) -> Vec<String> {
    let out = sluice(&[path, &["--help"]].concat());
    let text = String::from_utf8(out.stdout).expect("UTF-8");
    let Some((_, list)) = text.split_once("Commands:\n") else { return Vec::new() };
    let names = list.lines().take_while(|line| line.starts_with("  "));
    let names = names.filter(|line| !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn every_command_has_a_page_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    let (man, completions) = (folder.path().join("a/man"), folder.path().join("b"));
    assert!(sluice(&["generate", "man", man.to_str().unwrap()]).status.success());
    let shells = ["sluice.bash", "_sluice", "sluice.fish", "sluice.elv", "_sluice.ps1"];
    assert!(sluice(&["generate", "completions", completions.to_str().unwrap()]).status.success());
    let shells = shells.map(|name| text(&completions.join(name)));
    let all = commands(&[]);
    assert!(all.len() >= 12, "{all:?}");
    for command in all.iter().filter(|name| *name != "help") {
        let page = text(&man.join(format!("sluice-{command}.1")));
        assert!(page.contains(".SH SYNOPSIS") && page.contains(command), "{command}");
        assert!(shells.iter().all(|shell| shell.contains(command.as_str())), "{command}");
        for inner in commands(&[command]).iter().filter(|name| *name != "help") {
            text(&man.join(format!("sluice-{command}-{inner}.1")));
        }
    }
    // The scenario's options are in the pages as `--help` has them.
    let sim = text(&man.join("sluice-sim.1"));
    for option in ["json", "report", "seed", "blktrace"] {
        assert!(sim.contains(option), "--{option}");
    }
}
