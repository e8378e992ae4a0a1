//! `sluice drive precondition`, and runs and servers that start from the states that it keeps.

// guarantee: B-48

use std::path::Path;
use std::process::{Command, Output};

const SCENARIO: &str = "[drive]\npreset = \"femu-default\"\ndata = \"memory\"\n\
    geometry = { channels = 2, chunks = 24, pages = 32 }\n\
    [precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n\
    [[job]]\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 16\nio_size = \"6m\"\nnorandommap = 1\n";

fn sluice(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    // The folder of the user is a folder of this test.
    command.env("XDG_CACHE_HOME", dir.join("cache")).current_dir(dir);
    command.args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the scenario; returns its results and standard error.
fn simulate(dir: &Path, args: &[&str]) -> (String, String) {
    let args = [&["sim", "s.toml", "--json", "out.json"], args].concat();
    let out = sluice(dir, &args);
    let errors = text(&out.stderr);
    assert!(out.status.success(), "{errors}");
    (std::fs::read_to_string(dir.join("out.json")).unwrap(), errors)
}

/// Returns the only state in a folder.
fn state_in(folder: &Path) -> std::path::PathBuf {
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

#[test]
fn a_run_from_a_kept_state_gives_the_same_results() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("s.toml"), SCENARIO).unwrap();
    let (without, _) = simulate(dir, &["--no-state-cache"]);
    assert!(!dir.join("cache").exists());
    let kept = sluice(dir, &["drive", "precondition", "s.toml"]);
    assert!(kept.status.success(), "{}", text(&kept.stderr));
    let file = state_in(&dir.join("cache/sluice/states"));
    let said = text(&kept.stdout);
    assert!(said.starts_with(&format!("drive0: {} (", file.display())), "{said}");
    // The second time it is there.
    let again = sluice(dir, &["drive", "precondition", "s.toml"]);
    assert_eq!(text(&again.stdout), format!("drive0: {}\n", file.display()));
    let (from_file, errors) = simulate(dir, &[]);
    assert!(from_file == without, "{from_file}\n{without}");
    assert_eq!(errors, "");
    // Another folder has no state yet, and the run keeps one, which is the same.
    let (other, errors) = simulate(dir, &["--state-cache", "other"]);
    assert!(other == without);
    assert!(errors.contains("drive0: the state is kept in other/"), "{errors}");
    let other = state_in(&dir.join("other"));
    assert!(std::fs::read(&other).unwrap() == std::fs::read(&file).unwrap());
    // The scenario may name the folder, relative to itself.
    let named = SCENARIO.replace("[precondition]", "[precondition]\nstates = \"other\"");
    std::fs::write(dir.join("s.toml"), named).unwrap();
    std::fs::remove_file(&file).unwrap();
    let out = sluice(dir, &["drive", "precondition", "s.toml"]);
    assert_eq!(
        text(&out.stdout),
        format!("drive0: {}\n", "other/".to_owned() + other.file_name().unwrap().to_str().unwrap())
    );
}

#[test]
fn a_damaged_state_is_refused_by_runs_and_servers() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("s.toml"), SCENARIO).unwrap();
    assert!(sluice(dir, &["drive", "precondition", "s.toml"]).status.success());
    let file = state_in(&dir.join("cache/sluice/states"));
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let nbd = format!("unix:{}", dir.join("nbd").display());
    for args in [
        &["sim", "s.toml"][..],
        &["drive", "precondition", "s.toml"],
        &["serve", "s.toml", "--nbd", &nbd],
    ] {
        let out = sluice(dir, args);
        let errors = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {errors}");
        let named = format!("{} is damaged", file.display());
        assert!(errors.contains("drive0") && errors.contains(&named), "{args:?}: {errors}");
        assert!(std::fs::read(&file).unwrap() == bytes);
    }
    let (_, errors) = simulate(dir, &["--no-state-cache"]);
    assert_eq!(errors, "");
}

#[test]
fn scenarios_and_options_that_keep_no_state_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let sharded = "[drive]\npreset = \"femu-default\"\npersonality = \"open-channel\"\n\
        geometry = { channels = 2, chunks = 24, pages = 32 }\n\
        [target]\nkind = \"pblk\"\nshards = 2\n[precondition]\nfill = \"sequential\"\n";
    let steady = SCENARIO.replace("overwrite", "until = \"steady\"\noverwrite");
    let none = SCENARIO.split("[precondition]").next().unwrap();
    for (scenario, code, says) in [
        (none, 2, "no state can be kept"),
        (&steady, 2, "no state can be kept"),
        (sharded, 1, "drive0: the state is not kept: it is not complete without its host"),
    ] {
        std::fs::write(dir.join("s.toml"), scenario).unwrap();
        let out = sluice(dir, &["drive", "precondition", "s.toml"]);
        let said = text(&out.stderr) + &text(&out.stdout);
        assert_eq!(out.status.code(), Some(code), "{said}");
        assert!(said.contains(says), "{said}");
    }
    std::fs::write(dir.join("s.toml"), SCENARIO).unwrap();
    for args in [
        &["sim", "s.toml", "--no-state-cache", "--state-cache", "d"][..],
        &["sim", "s.toml", "--state-cache-size", "0"],
        &["drive", "precondition", "s.toml", "--no-state-cache"],
    ] {
        assert_eq!(sluice(dir, args).status.code(), Some(2), "{args:?}");
    }
    // A folder that cannot be made: the run succeeds, and says so.
    std::fs::write(dir.join("file"), "").unwrap();
    let (_, errors) = simulate(dir, &["--state-cache", "file/states"]);
    assert!(errors.contains("warning: drive0: the state is not kept: creating"), "{errors}");
}
