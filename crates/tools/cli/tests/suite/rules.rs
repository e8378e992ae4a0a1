//! `sluice rules`.

mod served_drive;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn demo(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../demo/rules").join(name)
}

fn sluice(args: &[&str], file: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.arg("rules").args(args).arg(file).output().expect("the command runs")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn programs_of_the_demo_are_checked_and_explained() {
    for name in ["page", "temperature", "join", "btree", "nameless"] {
        let file = demo(&format!("{name}.rules"));
        let checked = json(&sluice(&["check", "--json", "--ops", "32M"], &file));
        let rules = checked["programs"][0]["rules"].as_u64().expect("a number");
        let explained = json(&sluice(&["explain", "--json", "--ops", "32M"], &file));
        assert_eq!(explained["rules"].as_array().map(Vec::len), Some(rules as usize), "{name}");
    }
    let explained = json(&sluice(&["explain", "--json"], &demo("temperature.rules")));
    let inputs = explained["inputs"].as_array().expect("inputs");
    let write = inputs.iter().find(|input| input["input"] == "write").expect("writes");
    assert_eq!(write["rules"], serde_json::json!(["warm", "hot", "store"]));
    assert!(write["ops"].as_u64().is_some_and(|ops| (10..40).contains(&ops)), "{write}");
    let text = sluice(&["explain"], &demo("temperature.rules"));
    let text = String::from_utf8(text.stdout).expect("UTF-8");
    assert!(text.contains("warm, hot, store") && text.contains("every 10000000000 ns"), "{text}");
    let text = sluice(&["check"], &demo("page.rules"));
    let text = String::from_utf8(text.stdout).expect("UTF-8");
    assert!(text.contains("3 rules, 5 operations per command"), "{text}");
}

#[test]
fn errors_have_a_location_and_the_exit_code_of_invalid_requests() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bad.rules");
    let source = "app a { units = 0-3 }\nrule r\n  when header.read\n  do complete fine\n";
    std::fs::write(&file, source).expect("written");
    let output = sluice(&["check"], &file);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("there is no status `fine`") && text.contains("4:15"), "{text}");
    // More than the grant.
    let output = sluice(&["check", "--ops", "4"], &demo("page.rules"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("a write of db may need 5 operations, more than 4"), "{text}");
    let output = sluice(&["check"], &folder.path().join("none.rules"));
    assert_eq!(output.status.code(), Some(2));
    let output = sluice(&["check", "--ops", "many"], &demo("page.rules"));
    assert_eq!(output.status.code(), Some(2));
}
