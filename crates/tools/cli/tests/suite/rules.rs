//! `sluice rules`.

mod named;
mod served_drive;
mod served_target;

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
fn the_programs_of_a_scenario_are_checked_for_their_drives() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("drives.toml");
    let drive = |name: &str, rules: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\npreset = \"femu-default\"\n\
             geometry = {{ channels = 2, pus = 2, chunks = 64, pages = 64 }}\n{rules}"
        )
    };
    let with = |rules: &str| format!("personality = \"rules\"\nrules = {{ {rules} }}\n");
    let page = std::fs::read_to_string(demo("page.rules")).unwrap();
    std::fs::write(folder.path().join("page.rules"), page.replace("0-63", "0-3")).unwrap();
    let own = "program = \"page.rules\"";
    let drives = [
        drive("plain", ""),
        drive("own", &with(own)),
        drive("shipped", &with("template = \"throughput\"")),
    ];
    std::fs::write(&scenario, drives.concat()).unwrap();
    let checked = json(&sluice(&["check", "--json"], &scenario));
    let programs = checked["programs"].as_array().unwrap();
    let name = |drive: &str| format!("{}, {drive}", scenario.display());
    let files: Vec<&Value> = programs.iter().map(|program| &program["file"]).collect();
    assert_eq!(files, [&Value::from(name("own")), &Value::from(name("shipped"))]);
    let alone = json(&sluice(&["check", "--json"], &demo("page.rules")));
    assert_eq!(programs[0]["rules"], alone["programs"][0]["rules"]);
    let explained = json(&sluice(&["explain", "--json"], &scenario));
    assert_eq!(explained["programs"][1]["file"], name("shipped"));
    let text = sluice(&["explain"], &scenario);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with(&name("own")) && text.contains(&name("shipped")), "{text}");
    // Options say what a drive grants, and the scenario does.
    let refused = sluice(&["check", "--ops", "4"], &scenario);
    assert_eq!(refused.status.code(), Some(2));
    std::fs::write(&scenario, drive("plain", "")).unwrap();
    let refused = sluice(&["check"], &scenario);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no drive with personality"));
    // A program that the drive does not grant.
    let few = drive("own", &with(&format!("{own}, ops = 4")));
    std::fs::write(&scenario, few).unwrap();
    assert_eq!(sluice(&["check"], &scenario).status.code(), Some(2));
}

#[test]
fn the_program_of_a_target_is_checked_for_its_drive() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("target.toml");
    let target = |keys: &str| {
        let drive = "[drive]\nname = \"d\"\npreset = \"femu-default\"\npersonality = \"open-channel\"\n\
            geometry = { channels = 2, pus = 2, chunks = 64, pages = 64 }\n";
        std::fs::write(&scenario, format!("{drive}[target]\nkind = \"rules\"\n{keys}")).unwrap();
    };
    target("template = \"predictable\"\n");
    let checked = json(&sluice(&["check", "--json"], &scenario));
    assert_eq!(checked["programs"][0]["rules"], 3, "{checked}");
    let text = sluice(&["explain"], &scenario);
    let text = String::from_utf8(text.stdout).unwrap();
    for part in ["write of app_0", "read of app_0", "background of app_0", "reclaim"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A target does not execute all of the language, and has fewer operations if it says so.
    let posts = "app db { units = 0-3, spare = 0.11 }\nrule tell when idle(db) do post 1\n";
    std::fs::write(folder.path().join("posts.rules"), posts).unwrap();
    for (keys, part) in [
        ("program = \"posts.rules\"\n", "tell"),
        ("template = \"predictable\"\nops = 4\n", "store"),
    ] {
        target(keys);
        let refused = sluice(&["check"], &scenario);
        assert_eq!(refused.status.code(), Some(2), "{keys}");
        let message = String::from_utf8(refused.stderr).unwrap();
        assert!(message.contains(part), "{message}");
    }
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
