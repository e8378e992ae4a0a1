//! Scenarios with several namespaces on one drive, from the file to the results.

// guarantee: B-89

use std::path::Path;

use scenario::Scenario;
use serde_json::{Value, json};
use sluice_sim::{SimOptions, simulate, to_json};

fn run(text: &str) -> Value {
    let scenario =
        Scenario::parse(Path::new("test.toml"), text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let outcome =
        simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(outcome.paths[0].run.failures().count(), 0, "{text}");
    to_json(&outcome)["sluice"].clone()
}

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, pus = 2, chunks = 24, pages = 64 }\n";

fn path(name: &str, nsid: u32, keys: &str) -> String {
    format!("[[path]]\nname = \"{name}\"\nover = \"drive0\"\nnamespace = {nsid}\n{keys}")
}

fn job(path: &str, keys: &str) -> String {
    format!("[[job]]\nname = \"{path}\"\npath = \"{path}\"\n{keys}")
}

/// Two jobs that write and verify whole namespaces of one drive at a time, each over its own path.
#[test]
fn jobs_on_two_namespaces_of_a_drive_verify_their_data() {
    let write = "rw = \"randwrite\"\nbs = \"8k\"\niodepth = 16\nverify = \"crc32c\"\n";
    let text = format!(
        "{DRIVE}data = \"memory\"\nnamespaces = [\"3M\", \"rest\", \"1M\"]\n{}{}{}{}",
        path("a", 1, ""),
        path("b", 3, "queue_model = \"mq\"\ncores = 2\n"),
        job("a", write),
        job("b", write),
    );
    let json = run(&text);
    let parameters = &json["parameters"];
    assert_eq!(parameters["drives"][0]["namespaces"], json!([3 << 20, "rest", 1 << 20]));
    assert_eq!(parameters["paths"][1]["namespace"], 3);
    assert_eq!(run(&text), json, "a run repeats itself");
    // Each job covers its namespace once, and reads it back.
    assert_eq!(json["drives"][0]["commands"]["bytes_written"], 4 << 20, "{:#}", json["drives"][0]);
}

/// The time of a job does not depend on which namespace it is on, and a drive whose one namespace is
/// named has the results of one without the key.
#[test]
fn namespaces_cost_no_virtual_time() {
    let read = "[[job]]\nname = \"j\"\nrw = \"randrw\"\nbs = \"4k\"\nsize = \"2M\"\niodepth = 8\n";
    let on = |drive: &str, path: &str| {
        let text = format!("{DRIVE}{drive}[path]\n{path}[precondition]\nfill = \"none\"\n{read}");
        run(&text)
    };
    let plain = on("", "");
    let named = on("namespaces = [\"rest\"]\n", "namespace = 1\n");
    for key in ["drives", "jobs"] {
        assert_eq!(named[key], plain[key], "{key}");
    }
    let first = on("namespaces = [\"4M\", \"4M\", \"rest\"]\n", "namespace = 1\n");
    let second = on("namespaces = [\"4M\", \"4M\", \"rest\"]\n", "namespace = 2\n");
    assert_eq!(first["drives"], second["drives"]);
    assert_eq!(first["jobs"], second["jobs"]);
}

/// Preconditioning fills the namespaces that paths lead to.
#[test]
fn every_namespace_with_a_path_is_preconditioned() {
    let unmapped = |fill: &str| {
        let text = format!(
            "{DRIVE}namespaces = [\"4M\", \"4M\", \"rest\"]\n[precondition]\nfill = \"{fill}\"\n\
             {}{}{}{}",
            path("a", 1, ""),
            path("b", 2, ""),
            job("a", "rw = \"randread\"\nbs = \"4k\"\n"),
            job("b", "rw = \"randread\"\nbs = \"4k\"\n"),
        );
        run(&text)["drives"][0]["ftl"]["unmapped_reads"].as_u64()
    };
    assert_eq!(unmapped("none"), Some(2048), "both namespaces are read");
    assert_eq!(unmapped("sequential"), Some(0));
}

#[test]
fn states_that_several_namespaces_cannot_have_are_refused() {
    let text = format!(
        "{DRIVE}namespaces = [\"8M\", \"rest\"]\n[path]\nnamespace = 2\n\
         [precondition]\nsteady = \"sampled\"\noverwrite = [{{ rw = \"randwrite\" }}]\n\
         [[job]]\nrw = \"read\"\nsize = \"1M\"\n"
    );
    let scenario = Scenario::parse(Path::new("test.toml"), &text);
    let scenario = scenario.unwrap_or_else(|e| panic!("{e}"));
    let error = simulate(&scenario, SimOptions::default()).unwrap_err().to_string();
    assert!(error.contains("a drive with one namespace"), "{error}");
    let text = format!(
        "{DRIVE}namespaces = [\"1k\", \"rest\"]\n[path]\nnamespace = 1\n\
         [[job]]\nrw = \"read\"\nsize = \"1M\"\n"
    );
    let scenario = Scenario::parse(Path::new("test.toml"), &text).unwrap();
    let error = simulate(&scenario, SimOptions::default()).unwrap_err().to_string();
    assert!(!error.is_empty(), "a job that is larger than its namespace");
}
