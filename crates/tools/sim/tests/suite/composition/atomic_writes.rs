//! Atomic writes, from a scenario to its results.

// guarantee: D-59

use std::path::Path;

use scenario::Scenario;
use serde_json::Value;
use sluice_sim::{SimOptions, simulate, to_json};

fn run(text: &str) -> Value {
    let scenario =
        Scenario::parse(Path::new("test.toml"), text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let outcome =
        simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(outcome.paths[0].run.failures().count(), 0, "{text}");
    to_json(&outcome)["sluice"].clone()
}

/// Atomic writes of 16 KB beside writes of 4 KB, at random on a preconditioned drive.
fn programs(preset: &str, target: bool, atomic: bool) -> (u64, u64, Value) {
    let key = if atomic { "atomic = true\n" } else { "" };
    let (drive, host) = match target {
        false => (key.to_owned(), String::new()),
        true => (
            "personality = \"open-channel\"\n".to_owned(),
            format!("[target]\nkind = \"pblk\"\n{key}"),
        ),
    };
    let text = format!(
        "[drive]\npreset = \"{preset}\"\ngeometry = {{ channels = 2, pus = 2, chunks = 40 }}\n{drive}{host}\
         [precondition]\nfill = \"sequential\"\n\
         [[job]]\nname = \"pages\"\nrw = \"randwrite\"\nbs = \"16k\"\niodepth = 16\nio_size = \"64m\"\n\
         [[job]]\nname = \"rows\"\nrw = \"randwrite\"\nbs = \"4k\"\niodepth = 16\nio_size = \"16m\"\n"
    );
    let json = run(&text);
    let layer = &json["drives"][0]["ftl"];
    let number = |name: &str| layer[name].as_u64().unwrap_or(0);
    (number("programs"), number("atomic_padding_sectors"), json)
}

#[test]
fn padding_before_atomic_writes_is_rare() {
    for preset in ["mqsim-default-small", "tlc-2020s-small"] {
        for target in [false, true] {
            let (plain, none, json) = programs(preset, target, false);
            assert_eq!(none, 0, "{json:#}");
            let (atomic, padding, json) = programs(preset, target, true);
            let more = atomic as f64 / plain as f64 - 1.0;
            println!(
                "{preset}, pblk {target}: {padding} sectors, {:.2} % more programs",
                100.0 * more
            );
            assert!(plain > 1_000 && more <= 0.03, "{preset}, {target}: {more}");
            let of = &json["parameters"]["drives"][0];
            assert!(of.to_string().contains("\"atomic\":true"), "{of:#}");
        }
    }
}
