//! `[target] shards`: a pblk with a write context per core, in virtual time.

// guarantee: B-44, D-47

use std::path::Path;

use open::OpenOptions;
use scenario::Scenario;
use serde_json::Value;
use sluice_sim::{SimError, SimOptions, simulate, to_json};

/// Eight parallel units, 96 MiB.
const DRIVE: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, pus = 4, chunks = 24, pages = 128 }\n\
    timing = { read = \"10us\", program = \"30us\", erase = \"100us\" }\n\
    personality = \"open-channel\"\n";

fn scenario(dir: &Path, drive: &str, target: &str, jobs: &str) -> Scenario {
    let text =
        format!("{DRIVE}{drive}[target]\nkind = \"pblk\"\nover_provisioning = 0.3\n{target}{jobs}");
    Scenario::parse(&dir.join("shards.toml"), &text).unwrap()
}

fn run(scenario: &Scenario) -> Result<Value, SimError> {
    simulate(scenario, SimOptions::default()).map(|outcome| to_json(&outcome))
}

/// Runs on the drive's image itself.
fn run_on_image(scenario: &Scenario) -> Result<Value, SimError> {
    let options = SimOptions { write_image: true, ..SimOptions::default() };
    simulate(scenario, options).map(|outcome| to_json(&outcome))
}

const WRITERS: &str = "[precondition]\nfill = \"sequential\"\n[[job]]\nname = \"writers\"\n\
    rw = \"randwrite\"\nbs = \"16k\"\nio_size = \"16m\"\niodepth = 4\nnumjobs = 5\n\
    [[job]]\nname = \"reader\"\nrw = \"randread\"\nbs = \"4k\"\nio_size = \"4m\"\n";

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn the_same_run_has_the_same_bytes_and_shards_add_up() {
    let here = Path::new(".");
    for shards in [2, 3, 8] {
        let scenario = scenario(here, "", &format!("shards = {shards}\n"), WRITERS);
        let capacity = scenario.drives[0].capacity.unwrap();
        assert_eq!(capacity.shards, shards);
        let (first, second) = (run(&scenario).unwrap(), run(&scenario).unwrap());
        assert_eq!(first.to_string(), second.to_string(), "{shards} shards");
        let drive = &first["sluice"]["drives"][0];
        assert_eq!(first["sluice"]["failures"].as_array().map(Vec::len), Some(0));
        let each = drive["shards"].as_array().unwrap();
        assert_eq!(each.len(), shards as usize);
        let labels: Vec<bool> = each.iter().map(|shard| shard["superblock"].is_object()).collect();
        let first_alone: Vec<bool> = (0..shards).map(|shard| shard == 0).collect();
        assert_eq!(labels, first_alone, "exactly one of {shards} shards maintains the label");
        let sum = |key: &str| each.iter().map(|s| number(&s[key])).sum::<u64>();
        for key in ["host_sectors_written", "host_sectors_read", "padding_sectors", "flushes"] {
            assert_eq!(sum(key), number(&drive["ftl"][key]), "{shards} shards, {key}");
        }
        for key in ["gc_sectors_relocated", "lines_reclaimed", "erases"] {
            assert_eq!(sum(key), number(&drive["gc"][key]), "{shards} shards, {key}");
        }
        // Stripes are assigned in turn, so that every shard gets its share of the writes. Every
        // fragment sent by one core is served by another.
        let core = |key: &str| each.iter().map(|s| number(&s["core"][key])).collect::<Vec<_>>();
        let all = number(&drive["ftl"]["host_sectors_written"]);
        assert_eq!(all, 5 * (16 << 20) / 4096);
        for s in each {
            let share = number(&s["host_sectors_written"]) as f64 / all as f64;
            assert!((share * f64::from(shards) - 1.0).abs() < 0.15, "{share} of {shards}");
        }
        let total = |key: &str| core(key).iter().sum::<u64>();
        assert_eq!((total("sent"), total("aborted")), (total("served"), 0));
        // Six jobs of 1,024 requests each, assigned to cores in turn.
        let mut dealt = vec![0; shards as usize];
        (0..6).for_each(|job| dealt[job % shards as usize] += 1024);
        assert_eq!(core("requests"), dealt, "{shards} shards");
    }
}

#[test]
fn one_shard_is_a_pblk_as_ever() {
    let here = Path::new(".");
    let of = |target: &str| {
        let mut value = run(&scenario(here, "", target, WRITERS)).unwrap();
        // The parameters differ; the results must not.
        for key in ["title", "scenario", "parameters"] {
            value["sluice"][key] = Value::Null;
        }
        value.to_string()
    };
    assert_eq!(of(""), of("shards = 1\n"));
}

#[test]
fn shards_hold_as_much_as_is_said_and_more_of_them_do_not_write_less() {
    let here = Path::new(".");
    let jobs = |jobs: u32| {
        format!(
            "[[job]]\nname = \"w\"\nrw = \"randwrite\"\nbs = \"64k\"\nio_size = \"8m\"\niodepth = 8\n\
             numjobs = {jobs}\n"
        )
    };
    let mut rates = Vec::new();
    for shards in [1, 2, 4] {
        let scenario = scenario(here, "", &format!("shards = {shards}\n"), &jobs(4));
        let promised = scenario.drives[0].capacity.unwrap();
        let opened = open::open_scenario(&scenario, None, &OpenOptions::default());
        let (device, _) = opened.unwrap();
        assert_eq!(device.limits().sectors, promised.logical_sectors, "{shards} shards");
        drop(device);
        let value = run(&scenario).unwrap();
        rates.push(
            value["jobs"]
                .as_array()
                .unwrap()
                .iter()
                .fold(0.0, |sum, job| sum + job["write"]["bw_bytes"].as_f64().unwrap()),
        );
    }
    // The flash limits all of them; the rates differ by rounding to lines and by the order of
    // waits.
    let (most, least) =
        (rates.iter().copied().fold(0.0, f64::max), rates.iter().copied().fold(f64::MAX, f64::min));
    assert!(least > 0.8 * most, "{rates:?}");
}

#[test]
fn an_image_remembers_its_shards() {
    let dir = tempfile::tempdir().unwrap();
    let image = "data = \"file\"\npath = \"oc.img\"\n";
    let of = |shards: &str| scenario(dir.path(), image, shards, WRITERS);
    run_on_image(&of("shards = 2\n")).unwrap();
    // A second run finds the data: no written sector is unmapped.
    run_on_image(&of("shards = 2\n")).unwrap();
    // The drive decides the result of operations in flight at the end of the run at its next
    // power-on.
    assert!(run_on_image(&of("shards = 4\n")).is_err());
    let before = std::fs::read(dir.path().join("oc.img")).unwrap();
    let refused = run_on_image(&of("shards = 4\n")).unwrap_err().to_string();
    assert!(refused.contains("2 shards") && refused.contains("not 4"), "{refused}");
    let refused = run_on_image(&of("")).unwrap_err().to_string();
    let other = |has, wanted, shards| {
        format!(
            "the image of drive drive0 has {has}, not {wanted}: set target.shards = {shards}, or \
             remove the image"
        )
    };
    assert_eq!(refused, other("2 shards", 1, 2));
    // Both are refused before anything is written.
    let after = std::fs::read(dir.path().join("oc.img")).unwrap();
    assert!(before == after, "the image has changed");
    let three = OpenOptions { queues: Some(3), ..OpenOptions::default() };
    let refused = open::open_scenario(&of("shards = 2\n"), None, &three).unwrap_err();
    assert!(refused.to_string().contains("shards = 2"), "{refused}");
    let plain = OpenOptions::default();
    let (device, _) = open::open_scenario(&of("shards = 2\n"), None, &plain).unwrap();
    drop(device);
    // And an image without shards is refused with some.
    std::fs::remove_file(dir.path().join("oc.img")).unwrap();
    run_on_image(&of("")).unwrap();
    assert!(run_on_image(&of("shards = 2\n")).is_err());
    let before = std::fs::read(dir.path().join("oc.img")).unwrap();
    for shards in [2, 3] {
        let refused = run_on_image(&of(&format!("shards = {shards}\n"))).unwrap_err();
        assert_eq!(refused.to_string(), other("1 shard", shards, 1));
    }
    let after = std::fs::read(dir.path().join("oc.img")).unwrap();
    assert!(before == after, "the image has changed");
    run_on_image(&of("")).unwrap();
}
