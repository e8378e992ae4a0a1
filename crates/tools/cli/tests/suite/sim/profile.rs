//! `sluice sim --profile`: the shares of the layers.

// guarantee: B-49

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const DRIVE: &str = "[drive]\npreset = \"mqsim-default-small\"\ndata = \"none\"\n\
    geometry = { channels = 2, pus = 2, chunks = 48, pages = 32 }\nwrite_buffer.size = \"1M\"\n\
    ftl.over_provisioning = 0.2\n[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n\
    [[job]]\nbs = \"4k\"\niodepth = 64\nnorandommap = 1\n";

/// Runs scenarios, and returns standard output and the `sluice` sections of the results.
fn simulate(dir: &Path, files: &[&str], options: &[&str]) -> (String, Vec<Value>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.current_dir(dir).arg("sim").args(files).args(["--json", "out.json"]).args(options);
    let out = command.args(["--no-state-cache"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let json = std::fs::read_to_string(dir.join("out.json")).unwrap();
    let runs: Value = serde_json::from_str(&json).unwrap();
    let sections = match runs {
        Value::Array(runs) => runs.into_iter().map(|run| run["sluice"].clone()).collect(),
        one => vec![one["sluice"].clone()],
    };
    (String::from_utf8(out.stdout).unwrap(), sections)
}

#[test]
fn shares_are_those_of_the_layers_and_the_results_do_not_change() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // Enough processor time for some hundred samples at the kernel's tick.
    for (file, rw, amount) in
        [("reads.toml", "randread", "4000M"), ("writes.toml", "randwrite", "600M")]
    {
        let job = format!("rw = \"{rw}\"\nio_size = \"{amount}\"\n");
        std::fs::write(dir.join(file), format!("title = \"{file}\"\n{DRIVE}{job}")).unwrap();
    }
    let files = ["reads.toml", "writes.toml"];
    let (text, mut profiled) = simulate(dir, &files, &["--profile", "--jobs", "2"]);
    let (plain_text, plain) = simulate(dir, &files, &[]);
    assert!(text.starts_with(&plain_text));
    let tables = &text[plain_text.len()..];
    for title in ["\nreads.toml\n", "\nwrites.toml\n", "flash array", "queue pair", "samples"] {
        assert!(tables.contains(title), "{tables}");
    }
    let mut shares = Vec::new();
    for (run, plain) in profiled.iter_mut().zip(&plain) {
        let profile = run.as_object_mut().unwrap().remove("profile").unwrap();
        assert!(run == plain, "the results differ");
        for part in ["preparation", "run"] {
            let percent = profile[part]["percent"].as_object().unwrap();
            let sum: f64 = percent.values().map(|share| share.as_f64().unwrap()).sum();
            // Preparation may end before the first sample.
            let whole = if profile[part]["samples"] == 0 { 0.0 } else { 100.0 };
            assert!((sum - whole).abs() < 1e-6, "{profile}");
        }
        assert!(profile["run"]["samples"].as_u64().unwrap() >= 10, "{profile}");
        let share = |layer: &str| profile["run"]["percent"][layer].as_f64().unwrap();
        // The time is spread over layers, and little is not attributed.
        let layers = profile["run"]["percent"].as_object().unwrap();
        let seen = layers.values().filter(|share| share.as_f64().unwrap() > 0.0).count();
        assert!(seen >= 3, "{profile}");
        assert!(share("rest") < 40.0, "{profile}");
        shares.push(share("ftl"));
    }
    // Garbage collection is work of the FTL.
    assert!(shares[1] > shares[0] + 5.0, "{shares:?}");
}
