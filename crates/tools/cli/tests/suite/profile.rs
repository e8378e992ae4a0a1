//! `sluice profile`: results, output files, exit codes and mistakes.

use std::process::{Command, Output};

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().expect("the command runs")
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns whether the emulator is installed; skips the test without.
fn has_emulator() -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let is_there =
        path.split(':').any(|dir| std::path::Path::new(dir).join("qemu-x86_64").is_file());
    if !is_there {
        testkit::skip!("no qemu-x86_64 (`scripts/apt-install qemu-user`)");
    }
    is_there
}

/// guarantee: V-22
#[test]
fn outputs_and_the_exit_code_are_the_programs() {
    if !has_emulator() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("profile.json");
    let file = file.to_str().unwrap();
    let script = "echo out; echo err >&2; exit 7";
    let out = sluice(&["profile", "--json", "--output", file, "--", "sh", "-c", script]);
    assert_eq!((out.status.code(), said(&out.stdout).as_str()), (Some(7), "out\n"));
    assert_eq!(said(&out.stderr), "err\n");
    let profile: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(profile["programs"][0]["program"], "sh");
    assert!(profile["instructions"].as_u64().unwrap() > 10_000);
    let table = sluice(&["profile", "--", "sh", "-c", "echo out"]);
    assert!(table.status.success() && said(&table.stdout) == "out\n");
    assert!(said(&table.stderr).contains("under the emulator"));
}

#[test]
fn a_signal_that_ends_the_program_ends_the_profiler() {
    use std::os::unix::process::ExitStatusExt as _;
    if !has_emulator() {
        return;
    }
    let out = sluice(&["profile", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(out.status.signal(), Some(15), "{}", said(&out.stderr));
}

#[test]
fn mistakes_are_named_before_the_program_runs() {
    for (args, words) in [
        (&["profile", "--", "no-such-program"][..], "there is no program"),
        (&["profile", "--at", "/nonexistent", "--", "true"], "/nonexistent"),
        (&["profile", "--output", "/nonexistent/file", "--", "true"], "/nonexistent/file"),
        (&["profile", "--", "/etc/passwd"], "there is no program"),
        (&["profile"], "PROGRAM"),
    ] {
        if args.contains(&"--at") && !has_emulator() {
            return;
        }
        let out = sluice(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", said(&out.stderr));
        assert!(said(&out.stderr).contains(words), "{args:?}: {}", said(&out.stderr));
    }
    // A file keeps its contents until there are new ones.
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept.json");
    std::fs::write(&kept, "old").unwrap();
    let out = sluice(&["profile", "--output", kept.to_str().unwrap(), "--", "no-such-program"]);
    assert_eq!(out.status.code(), Some(2), "{}", said(&out.stderr));
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "old");
    let path = std::env::temp_dir();
    let out = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["profile", "--", "/bin/true"])
        .env("PATH", path)
        .output()
        .expect("the command runs");
    assert_eq!(out.status.code(), Some(1));
    assert!(said(&out.stderr).contains("scripts/apt-install qemu-user"), "{}", said(&out.stderr));
}

// guarantee: V-15

#[test]
fn a_profiled_program_goes_on_in_virtual_time() {
    if !has_emulator() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let out = sluice(&[
        "profile",
        "--json",
        "--output",
        &path("dd.json"),
        "--",
        "dd",
        "if=/dev/zero",
        &format!("of={}", path("file")),
        "bs=4k",
        "count=200",
    ]);
    assert!(out.status.success(), "{}", said(&out.stderr));
    let profile: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path("dd.json")).unwrap()).unwrap();
    let write = &profile["io"][1];
    assert_eq!(write["kind"], "write");
    let [instructions, calls] = [&profile["instructions"], &write["calls"]].map(|n| n.as_u64());
    let compute = instructions.unwrap() / calls.unwrap();
    let window = write["paper"]["mean"].as_f64().unwrap().round() as u64;
    assert!(window < compute / 2, "a copy stops at its next write, of {compute}: {window}");
    let simulate = |work: &str| {
        let scenario = format!(
            "[drive]\npreset = \"femu-default\"\n[host]\nmachine = \"i7-4770\"\n\
             [[process]]\nrw = \"write\"\nbs = \"4k\"\nnumber_ios = 500\nsize = \"4m\"\n\
             strategy = \"speculate\"\n{work}\n"
        );
        std::fs::write(path("s.toml"), scenario).unwrap();
        let out = sluice(&["sim", "--json", "-", &path("s.toml")]);
        assert!(out.status.success(), "{}", said(&out.stderr));
        let text = said(&out.stdout);
        let result: serde_json::Value = serde_json::from_str(&text).unwrap();
        result["sluice"]["drives"][0]["jobs"][0]["process"].clone()
    };
    let profiled = simulate("profile = \"dd.json\"");
    assert_eq!(profiled, simulate(&format!("compute = {compute}\nwindow = {window}")));
    assert!(profiled["compute_ns"].as_u64().unwrap_or(1) > 0, "{profiled}");
}
