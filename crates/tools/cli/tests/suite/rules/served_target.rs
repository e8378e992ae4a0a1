//! `sluice rules install|list|stats|table|miss`: the rules of a target that is served.

// guarantee: B-130

use serde_json::{Value, json};

use super::served_drive::{APP, LOAD, STORE, Served};
use crate::served::*;

/// A target whose rules have none for writes.
fn scenario(keys: &str) -> String {
    format!(
        "{DRIVE}data = \"memory\"\npersonality = \"open-channel\"\n\
         [target]\nover_provisioning = 0.3\n{keys}"
    )
}

const RULES: &str = "kind = \"rules\"\nprogram = \"load.rules\"\nops = 200\n";

#[test]
fn the_program_of_a_target_is_replaced_while_it_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::with(folder.path(), &scenario(RULES));
    let listed = served.json("list", &[]);
    assert_eq!((&listed["rules"], &listed["installations"]), (&json!(["load"]), &json!(0)));
    assert_eq!((&listed["units"], &listed["command_ops"]), (&json!(16), &json!(200)));
    let write = ["--rw=write", "--bs=4k", "--size=4k"];
    assert!(!fio(&served.server, &write).output().unwrap().status.success());
    let missed = served.json("miss", &[])["missed"][0].clone();
    assert_eq!((&missed["op"], &missed["parked"]), (&json!("write"), &json!(0)));
    let misses = missed["misses"].as_u64().expect("a number");
    assert!(misses >= 1, "{missed}");
    // There is nothing that could be rejected or released: a request without a rule has ended.
    for op in ["all", "write"] {
        let refused = served.rules("miss", &["drive0", "--reject", op]);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{text}");
        assert!(text.contains("a target parks no request"), "{text}");
    }
    // A program that is refused changes nothing.
    let posts = format!("{APP}{LOAD}rule tell when idle(db) do post migrated, 1, 2, 3\n");
    let durable = format!("{APP}{LOAD}table counts: u64[4] durable\n");
    let long = format!(
        "{APP}table sums: u64[1] volatile\nrule long when channel.app == db and header.read\n  \
         do for i in 0..header.sectors up to 100 {{ sums[0] = sums[0] + i }} complete ok\n"
    );
    for (source, message) in [
        (posts.as_str(), "tell"),
        (&durable, "counts"),
        (&long, "long"),
        ("rule x", "expected `when`"),
        ("app db { units = 0-7, spare = 0.05 }\n", "parallel units"),
        ("app db { units = 0-15, spare = 0.9 }\n", "over-provisioning"),
    ] {
        let file = served.program("bad.rules", source);
        let refused = served.rules("install", &["drive0", &file]);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{source}: {text}");
        assert!(text.contains(message), "{source}: {text}");
    }
    let listed = served.json("list", &[]);
    assert_eq!((&listed["rules"], &listed["installations"]), (&json!(["load"]), &json!(0)));
    assert_eq!(served.json("miss", &[])["missed"][0]["misses"], misses);

    let table = "table seen: set<u16>[8] volatile\n";
    let whole = served.program("whole.rules", &format!("{APP}{table}{LOAD}{STORE}"));
    let installed = served.json("install", &[&whole]);
    assert_eq!((&installed["rules"], &installed["parked"]), (&json!(2), &json!(0)));
    let job = ["--rw=randwrite", "--bs=4k", "--iodepth=8", "--size=1m", "--verify=crc32c"];
    fio_ok(&served.server, &job);
    let stats = served.json("stats", &[])["stats"].clone();
    let matches = |name: &str| {
        let rules = stats["rules"].as_array().expect("rules");
        let rule = rules.iter().find(|rule| rule["name"] == name).expect("a rule");
        rule["matches"].as_u64().expect("a number")
    };
    assert!(matches("store") >= 256 && matches("load") >= 256, "{stats:#}");
    let app = &stats["apps"][0];
    assert_eq!((&app["name"], &app["inputs"]), (&json!("db"), &stats["inputs"]), "{stats:#}");
    assert_eq!((&stats["installations"], &stats["misses"]), (&json!(1), &json!(0)), "{stats:#}");
    assert_eq!((&stats["missed"], &stats["engine_busy"]), (&json!([]), &json!(0)), "{stats:#}");
    assert_eq!(served.json("table", &["seen", "add", "3"])["changed"], 1);
    let values = served.json("table", &["seen", "get", "2", "--count", "3"])["values"].clone();
    assert_eq!(values, json!([0, 1, 0]));
    for command in ["list", "stats", "miss"] {
        let output = served.rules(command, &["drive0"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && !text.is_empty(), "{command}: {text}");
    }
}

#[test]
fn a_program_is_replaced_between_two_requests() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::with(folder.path(), &scenario(RULES));
    let whole = format!("{APP}{LOAD}{STORE}");
    let first = served.program("first.rules", &whole);
    let second = served.program("second.rules", &whole.replace("rule store", "rule stored"));
    served.json("install", &[&first]);
    let server = &served.server;
    std::thread::scope(|scope| {
        let job = ["--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=16m", "--verify=crc32c"];
        let writer = scope.spawn(move || fio_ok(server, &job));
        let mut installed: Vec<Value> = Vec::new();
        while !writer.is_finished() || installed.len() < 4 {
            let file = if installed.len().is_multiple_of(2) { &second } else { &first };
            installed.push(served.json("install", &[file])["parked"].take());
        }
        writer.join().expect("fio finds what it wrote");
        assert!(installed.iter().all(|parked| *parked == 0), "{installed:?}");
        let listed = served.json("list", &[]);
        assert_eq!(listed["installations"], installed.len() + 1, "{listed}");
    });
    assert_eq!(served.json("miss", &[])["missed"], json!([]));
}

#[test]
fn a_target_without_rules_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::with(folder.path(), &scenario("kind = \"pblk\"\n"));
    let program = served.program("any.rules", &format!("{APP}{LOAD}"));
    for args in [&["list", "drive0"][..], &["stats", "drive0"], &["install", "drive0", &program]] {
        let output = served.rules(args[0], &args[1..]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("has no rules"), "{text}");
    }
}
