//! Scenarios with the same initial drive are preconditioned once, and each must give exactly the
//! results that it gives alone.

use std::path::Path;

use scenario::Scenario;
use sim::{PreconditionCache, SimOptions, simulate, to_json};

/// Jobs, path and host, in which scenarios of one drive may differ.
const RUNS: [&str; 3] = [
    "[[job]]\nname = \"mixed\"\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 16\nio_size = \"6m\"\nnorandommap = 1\n",
    "[path]\nqueue_model = \"mq\"\n[host]\nsubmit_cost = \"2us\"\ncomplete_cost = \"3us\"\n\
     [[job]]\nname = \"writer\"\nrw = \"randwrite\"\nbs = \"16k\"\niodepth = 4\nio_size = \"8m\"\nnorandommap = 1\n",
    "[[job]]\nname = \"reader\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = 2\nio_size = \"2m\"\n\
     [[job]]\nname = \"trimmer\"\nrw = \"randtrim\"\nbs = \"64k\"\nio_size = \"2m\"\n",
];

const PRECONDITION: &str = "[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n";

const NAND: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 24, pages = 32 }\n";

/// Runs each scenario alone, and then all of them with shared states. Returns the number of
/// scenarios that started from a shared state.
fn compare(what: &str, drives: [&str; 3]) -> u64 {
    let scenarios: Vec<Scenario> = (0..)
        .zip(drives.iter().zip(RUNS))
        .map(|(i, (drive, run))| {
            let name = format!("{i}.toml");
            // A target on the host has no block layer.
            let run = match drive.contains("[target]") {
                true => run.replace("[path]\nqueue_model = \"mq\"\n", ""),
                false => run.to_owned(),
            };
            Scenario::parse(Path::new(&name), &format!("{drive}{PRECONDITION}{run}"))
                .unwrap_or_else(|e| panic!("{what}: {e}"))
        })
        .collect();
    let alone: Vec<String> = scenarios
        .iter()
        .map(|s| to_json(&simulate(s, SimOptions::default()).unwrap()).to_string())
        .collect();
    let states = PreconditionCache::new(&scenarios);
    for (scenario, alone) in scenarios.iter().zip(&alone) {
        let options = SimOptions { precondition_cache: Some(&states), ..SimOptions::default() };
        let shared = to_json(&simulate(scenario, options).unwrap()).to_string();
        assert!(shared == *alone, "{what}, {}:\n{shared}\n{alone}", scenario.file.display());
    }
    states.copies()
}

#[test]
fn results_are_those_of_each_drive_alone_with_either_ftl() {
    let open = |target: &str| format!("{NAND}personality = \"open-channel\"\n{target}\n");
    let pblk = "[target]\nkind = \"pblk\"\nover_provisioning = 0.3";
    for (what, drive, copies) in [
        ("drive", NAND.to_owned(), 2),
        ("drive with data", format!("{NAND}data = \"memory\"\n"), 2),
        (
            "drive with a write buffer",
            format!(
                "{NAND}data = \"memory\"\nwrite_buffer = {{ kind = \"volatile\", size = \"2M\" }}\n"
            ),
            2,
        ),
        ("pblk", open(pblk), 2),
        ("pblk with data", open(&format!("data = \"memory\"\n{pblk}")), 2),
        ("shards", open(&format!("{pblk}\nshards = 2")), 0),
        ("rrpc", open("device_l2p = true\n[target]\nkind = \"rrpc\"\nover_provisioning = 0.3"), 2),
        ("pcm", "[drive]\npreset = \"pcm\"\ncapacity = \"64M\"\n".to_owned(), 2),
        ("null", "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\n".to_owned(), 2),
    ] {
        let found = compare(what, [&drive, &drive, &drive]);
        assert_eq!(found, copies, "{what}");
    }
}

#[test]
fn other_drives_and_seeds_have_states_of_their_own() {
    let other = NAND.replace("pages = 32", "pages = 64");
    assert_eq!(compare("two alike", [NAND, &other, NAND]), 1);
    let seeded = format!("seed = 9\n{NAND}");
    assert_eq!(compare("another seed", [NAND, &seeded, NAND]), 1);
    assert_eq!(compare("none alike", [NAND, &other, &seeded]), 0);
}

#[test]
fn media_that_fail_are_preconditioned_alone_or_alike() {
    let worn = format!(
        "{NAND}errors = {{ factory_bad_ratio = 0.02, program_failure_rate = 1e-4, erase_failure_rate = 1e-4 }}\n"
    );
    compare("drive", [&worn, &worn, &worn]);
    let open = format!(
        "{worn}personality = \"open-channel\"\n[target]\nkind = \"pblk\"\nover_provisioning = 0.3\n"
    );
    compare("pblk", [&open, &open, &open]);
}

/// Returns the results of `sluice sim`, in order.
fn command(dir: &Path, files: &[&str]) -> Vec<serde_json::Value> {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sluice"));
    let output = command.arg("sim").args(files).args(["--json", "out.json"]).current_dir(dir);
    let output = output.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(dir.join("out.json")).unwrap();
    match serde_json::from_str(&text).unwrap() {
        serde_json::Value::Array(ways) => ways,
        one => vec![one],
    }
}

#[test]
fn the_command_gives_each_scenario_what_it_gives_it_alone() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["a.toml", "b.toml", "c.toml"];
    for (file, run) in files.iter().zip(RUNS) {
        let text = format!("title = \"{file}\"\n{NAND}data = \"memory\"\n{PRECONDITION}{run}");
        std::fs::write(dir.path().join(file), text).unwrap();
    }
    let together = command(dir.path(), &files);
    assert_eq!(together.len(), 3);
    for (file, together) in files.iter().zip(&together) {
        let alone = command(dir.path(), &[file]);
        assert_eq!(alone.len(), 1);
        assert!(alone[0] == *together, "{file}:\n{alone:#?}\n{together:#}");
    }
}
