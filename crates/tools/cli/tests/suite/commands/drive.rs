//! `sluice drive`: output and exit codes.

use std::path::PathBuf;
use std::process::{Command, Output};

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().expect("the command runs")
}

fn scenario(dir: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("scenario.toml");
    std::fs::write(&path, text).expect("written");
    path
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

#[test]
fn drive_show_prints_a_summary_for_every_drive() {
    let dir = tempfile::tempdir().unwrap();
    let path = scenario(
        &dir,
        "[[drive]]\nname = \"left\"\npreset = \"femu-default\"\n\
         [[drive]]\nname = \"right\"\npreset = \"pcm\"\n",
    );
    let out = sluice(&["drive", "show", path.to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    for part in ["drive \"left\"", "drive \"right\"", "1,600,000 IOPS", "bound by parallel units"] {
        assert!(shown.contains(part), "`{part}` is missing in\n{shown}");
    }
    assert!(out.stderr.is_empty());
}

#[test]
fn drive_presets_lists_them() {
    let out = sluice(&["drive", "presets"]);
    assert!(out.status.success());
    assert!(text(&out.stdout).contains("ocssd-mlc-128pu-small"));
    let show = sluice(&["drive", "show", "--preset", "ocssd-mlc-128pu"]);
    assert!(text(&show.stdout).contains("group 4 | pu 3 | chunk 11 | sector 12"));
}

#[test]
fn a_bad_scenario_is_told_with_file_line_and_caret_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    for (bad, says) in [
        ("geometry.chanels = 4", "did you mean `channels`?"),
        ("geometry.channels = 0", "channels is 0"),
        ("geometry.channels = true", "expected a whole number"),
        ("geometry.chunks = 4000000000", "impossible geometry"),
        ("geometry.chunks = 7", "held back"),
        ("ftl.over_provisioning = 90", "less than one line"),
    ] {
        let path = scenario(&dir, &format!("[drive]\npreset = \"mqsim-default-small\"\n{bad}\n"));
        let out = sluice(&["drive", "show", path.to_str().unwrap()]);
        let told = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{told}");
        assert!(out.stdout.is_empty());
        for part in [says, &format!("{}:3:", path.display()), bad, "here"] {
            let flat = told.replace("\n", " ").replace("│", " ");
            let flat = flat.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains(part), "`{part}` is missing in\n{told}");
        }
    }
}

#[test]
fn what_is_asked_wrongly_exits_with_2_and_help_with_0() {
    for args in [
        &["drive", "show"][..],
        &["drive", "show", "no-such-file.toml"],
        &["drive", "show", "--preset", "no-such-preset"],
        &["fly"],
    ] {
        let out = sluice(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(!out.stderr.is_empty() && out.stdout.is_empty());
    }
    assert!(sluice(&["--help"]).status.success());
    assert!(sluice(&["--version"]).status.success());
}

#[test]
fn nothing_of_a_file_reaches_the_terminal_raw() {
    let dir = tempfile::tempdir().unwrap();
    for bad in [
        "# \u{1b}[31m\n[drive]\n",
        "title = \"\\u001b[31m\"\n[drive]\npreset = \"pcm\"\n",
        "[drive]\npreset = \"\\u0007\"\n",
        "[drive]\n\"\\u009b2J\" = 1\n",
    ] {
        let path = scenario(&dir, bad);
        let out = sluice(&["drive", "show", path.to_str().unwrap()]);
        let told = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{told}");
        assert!(told.chars().all(|c| c == '\n' || !c.is_control()), "{told:?}");
    }
}

#[test]
fn a_preset_that_was_meant_is_named() {
    let out = sluice(&["drive", "show", "--preset", "femu-defualt"]);
    assert_eq!(out.status.code(), Some(2));
    let told = text(&out.stderr);
    assert!(told.contains("a similar value exists: 'femu-default'"), "{told}");
    let shown = text(&sluice(&["drive", "show", "--preset", "femu-default"]).stdout);
    assert_eq!(
        text(&sluice(&["drive", "show", "femu-default"]).stdout),
        shown,
        "a preset's name must give the same output as a scenario"
    );
    for part in [
        "\nerrors\n",
        "\ntranslation layer\n",
        "effective spare space",
        "bit errors              none",
    ] {
        assert!(shown.contains(part), "`{part}` is missing in\n{shown}");
    }
}
