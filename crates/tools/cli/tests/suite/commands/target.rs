//! `sluice target` as a process: targets persist between commands. Error messages name the target
//! and the drive, and a refused command leaves every byte of the image unchanged.

// guarantee: B-45, D-32

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use media::MediaConfig;
use scenario::Scenario;
use serde_json::Value;

/// A drive of 8 parallel units, with paired pages.
const DRIVE: &str = "[drive]\nname = \"oc0\"\npreset = \"femu-default\"\npersonality = \"open-channel\"\n\
    cell = \"mlc\"\npaired_page_distance = 2\ngeometry = { channels = 2, pus = 4, chunks = 40, pages = 64 }\n\
    data = \"file\"\npath = \"oc0.img\"\n";

struct TestDir {
    dir: tempfile::TempDir,
}

impl TestDir {
    fn new(scenario: &str) -> TestDir {
        let place = TestDir { dir: tempfile::tempdir().expect("a folder") };
        std::fs::write(place.scenario(), scenario).expect("written");
        place
    }

    fn scenario(&self) -> PathBuf {
        self.dir.path().join("drive.toml")
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("oc0.img")
    }

    /// Runs `sluice target WHAT drive.toml …`.
    fn target(&self, what: &str, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.arg("target").arg(what).arg(self.scenario()).args(args);
        command.output().expect("the command runs")
    }

    /// Runs the command, which must succeed. Returns its output.
    fn run_ok(&self, what: &str, args: &[&str]) -> String {
        let out = self.target(what, args);
        assert!(out.status.success(), "{what} {args:?}: {}", text(&out.stderr));
        assert!(out.stderr.is_empty());
        text(&out.stdout)
    }

    fn json(&self, what: &str, args: &[&str]) -> Value {
        let all: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.run_ok(what, &all)).expect("JSON")
    }

    /// Runs a command that must fail with `code` and a message that contains every part.
    fn run_refused(&self, code: i32, what: &str, args: &[&str], parts: &[&str]) {
        let out = self.target(what, args);
        let told = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{what} {args:?}: {told}");
        assert!(out.stdout.is_empty());
        for part in parts {
            assert!(told.contains(part), "`{part}` is missing in: {told}");
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("the image can be read")
}

#[test]
fn targets_live_from_one_command_to_the_next() {
    let place = TestDir::new(DRIVE);
    let made = place.run_ok(
        "create",
        &["--name", "db", "--type", "pblk", "--pus", "0-3", "--op", "0.2", "--active-pus", "2"],
    );
    for part in ["db of drive oc0", "pblk", "over-provisioning 0.2; 2 active PUs", "0-3 (4 of 8)"] {
        assert!(made.contains(part), "`{part}` is missing in\n{made}");
    }
    let rationed = ["--shared", "--max-chunks", "9", "--chunks-per-second", "0.5", "--burst", "3"];
    let kv: Vec<&str> =
        ["--name", "kv", "--type", "ppa", "--pus", "4-6"].into_iter().chain(rationed).collect();
    let kv = place.json("create", &kv);
    assert_eq!(kv["limits"]["chunks_per_second"], 0.5);
    assert_eq!((&kv["limits"]["max_chunks"], &kv["chunks"]), (&9.into(), &0.into()));
    place.run_ok("create", &["--name", "app", "--type", "ppa", "--pus", "6,7", "--shared"]);

    let list = place.run_ok("list", &[]);
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), 4, "{list}");
    for (line, name) in lines[1..].iter().zip(["db", "kv", "app"]) {
        assert!(line.starts_with(name), "{list}");
    }
    // Columns are aligned with their headings.
    let at = lines[0].find("type").unwrap();
    assert!(lines[1][at..].starts_with("pblk") && lines[3][at..].starts_with("ppa"), "{list}");

    let list = place.json("list", &[]);
    assert_eq!((&list["drive"], &list["registered"]), (&"oc0".into(), &true.into()));
    let names: Vec<&str> =
        list["targets"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["db", "kv", "app"]);
    let db = place.json("info", &["--name", "db"]);
    assert_eq!(db, list["targets"][0]);
    let info = place.json("info", &["--warranty-years", "3", "--write-amplification", "2"]);
    let chunks = &info["chunks"];
    assert_eq!(chunks["total"], 320);
    let parts = ["owned", "free", "dirty", "reserved", "factory_bad", "grown_bad"];
    let sum: u64 = parts.iter().map(|p| chunks[p].as_u64().unwrap()).sum();
    assert_eq!(sum, 320);
    assert_eq!(chunks["owned"], db["chunks"]);
    // A new drive rated for 3,000 cycles, over three years with a write amplification of 2.
    let per_day = info["endurance"]["drive_writes_per_day_left"].as_f64().unwrap();
    assert!((per_day - 3000.0 / (3.0 * 365.25) / 2.0).abs() < 0.01, "{per_day}");
    let sheet = place.run_ok("info", &[]);
    for part in ["bad from the factory", "rated cycles", "drive writes per day", "partition table"]
    {
        assert!(sheet.contains(part), "`{part}` is missing in\n{sheet}");
    }

    let gone = place.run_ok("remove", &["--name", "db"]);
    assert!(gone.contains("removed target db of drive oc0"), "{gone}");
    let gone = place.run_ok("remove", &["--name", "kv", "--factory"]);
    assert!(gone.contains("are erased"), "{gone}");
    let again = place.json("create", &["--name", "db", "--type", "rrpc", "--pus", "0-5"]);
    assert_eq!((&again["id"], &again["type"]), (&4.into(), &"rrpc".into()));
    assert_ne!(again["uid"], db["uid"], "a new target of the same name must have another uid");
}

#[test]
fn what_is_refused_names_both_parties_and_changes_no_byte() {
    let place = TestDir::new(DRIVE);
    // An invalid target does not create an image.
    let wrong = ["--name", "x", "--type", "pblk", "--pus", "0-8"];
    place.run_refused(2, "create", &wrong, &["target x", "0-8", "drive oc0 has 0-7"]);
    assert!(!place.image().exists());
    for what in ["list", "info"] {
        place.run_refused(2, what, &[], &["oc0", "does not exist yet", "sluice target create"]);
    }
    place.run_ok("create", &["--name", "alone", "--type", "pblk", "--pus", "0-3"]);
    place.run_ok("create", &["--name", "some", "--type", "kv", "--pus", "4-7", "--shared"]);
    let before = read(&place.image());
    let new = |name: &'static str, kind: &'static str, pus: &'static str| {
        ["--name", name, "--type", kind, "--pus", pus]
    };
    let with = |args: [&'static str; 6], more: &[&'static str]| {
        args.into_iter().chain(more.iter().copied()).collect::<Vec<&str>>()
    };
    for (args, parts) in [
        (with(new("new", "pblk", "2-5"), &[]), &["new", "2-3", "alone", "does not share"][..]),
        (with(new("new", "kv", "3"), &["--shared"]), &["new", "alone", "does not share"]),
        (
            with(new("new", "ppa", "6-7"), &[]),
            &["new", "6-7", "some", "only with targets that share"],
        ),
        (with(new("alone", "kv", "4"), &["--shared"]), &["alone", "already", "pblk", "0-3"]),
        (
            with(new("new", "kv", "4"), &["--shared", "--op", "0.1"]),
            &["new", "kv", "over-provisioning"],
        ),
        (with(new("new", "kv", "9"), &["--shared"]), &["new", "0-7"]),
        (with(new("new", "kv", "4"), &["--shared", "--max-chunks", "0"]), &["new", "0 chunks"]),
        (with(new("new", "ppa", "4"), &["--shared", "--chunks-per-second", "0"]), &["0.001"]),
        (
            with(
                new("new", "pblk", "4"),
                &["--shared", "--max-chunks", "9", "--chunks-per-second", "1"],
            ),
            &["target new of drive oc0", "pblk", "only a ppa takes --chunks-per-second"],
        ),
        (
            with(new("new", "kv", "4"), &["--shared", "--chunks-per-second", "1"]),
            &["kv", "only a ppa takes --chunks-per-second"],
        ),
        (with(new("new", "kv", "4"), &["--max-chunks", "7"]), &["--shared"]),
        (with(new("no name", "kv", "4"), &["--shared"]), &["`no name`"]),
        (with(new("new", "ftl", "4"), &[]), &["pblk, rrpc, kv and ppa"]),
        (with(new("new", "kv", "5-4"), &[]), &["5-4 ends before it begins"]),
    ] {
        place.run_refused(2, "create", &args, parts);
    }
    place.run_refused(2, "remove", &["--name", "nobody"], &["nobody", "oc0", "alone, some"]);
    place.run_refused(2, "info", &["--name", "nobody"], &["nobody", "oc0", "alone, some"]);
    place.run_refused(2, "info", &["--write-amplification", "0.5"], &["0.5", "1 or more"]);
    place.run_ok("list", &[]);
    place.run_ok("info", &["--name", "some"]);
    assert!(read(&place.image()) == before, "the image has changed");
}

#[test]
fn limits_change_and_stay() {
    let place = TestDir::new(DRIVE);
    let shared = ["--type", "ppa", "--pus", "4-7", "--shared", "--max-chunks", "20", "--name"];
    place.run_ok("create", &[&shared[..], &["app"]].concat());
    place.run_ok("create", &[&shared[..], &["two"]].concat());
    place.run_ok("create", &["--name", "alone", "--type", "pblk", "--pus", "0-3"]);
    let limits = || place.json("info", &["--name", "app"])["limits"].clone();
    let app = |args: &[&'static str]| [&["--name", "app"], args].concat();
    let more = place.json("limit", &app(&["--max-chunks", "50"]));
    assert_eq!((&more["limits"]["max_chunks"], &limits()), (&50.into(), &more["limits"]));
    // A limit that is not given stays.
    let text = place.run_ok("limit", &app(&["--chunks-per-second", "2.5", "--burst", "3"]));
    assert!(text.contains("50 chunks; 2.5 chunks/s, 3 at once"), "{text}");
    place.run_ok("limit", &app(&["--max-chunks", "none"]));
    let list = place.run_ok("list", &[]);
    assert!(list.contains("2.5 chunks/s, 3 at once") && !list.contains("50 chunks"), "{list}");
    place.run_ok("limit", &app(&["--max-chunks", "3", "--chunks-per-second", "none"]));
    assert_eq!(limits()["max_chunks"], 3);
    let before = read(&place.image());
    for (args, parts) in [
        (app(&[]), &["--max-chunks", "--chunks-per-second"][..]),
        (app(&["--burst", "3"]), &["--chunks-per-second"]),
        (app(&["--chunks-per-second", "none", "--burst", "3"]), &["--burst is of a rate"]),
        (app(&["--chunks-per-second", "0"]), &["0.001"]),
        (app(&["--max-chunks", "0"]), &["app", "0 chunks"]),
        (app(&["--max-chunks", "few"]), &["few"]),
        (app(&["--max-chunks", "500"]), &["app", "500 chunks", "4-7", "good chunks"]),
        (app(&["--max-chunks", "150"]), &["app", "150 chunks", "add up to 20"]),
        (vec!["--name", "alone", "--max-chunks", "9"], &["alone", "only targets that share"]),
        (vec!["--name", "nobody", "--max-chunks", "9"], &["nobody", "app, two, alone"]),
    ] {
        place.run_refused(2, "limit", &args, parts);
    }
    assert!(read(&place.image()) == before, "the image has changed");
}

#[test]
fn drives_that_cannot_keep_targets_are_refused() {
    for (change, parts) in [
        (
            ("data = \"file\"\npath = \"oc0.img\"\n", ""),
            &["oc0", "keeps nothing", "data = \"file\""][..],
        ),
        (("\"open-channel\"", "\"block\""), &["oc0", "not open-channel"]),
    ] {
        let place = TestDir::new(&DRIVE.replace(change.0, change.1));
        place.run_refused(2, "list", &[], parts);
        let new = ["--name", "x", "--type", "ppa", "--pus", "0"];
        place.run_refused(2, "create", &new, parts);
        assert!(!place.image().exists());
    }
    let second = DRIVE.replace("[drive]", "[[drive]]");
    let both = format!("{second}{}", second.replace("oc0", "oc1"));
    let place = TestDir::new(&both);
    let new = ["--name", "x", "--type", "ppa", "--pus", "0"];
    place.run_refused(2, "create", &new, &["oc0, oc1", "--drive NAME"]);
    place.run_refused(2, "list", &["--drive", "oc7"], &["oc7", "oc0, oc1"]);
    place.run_ok("create", &["--name", "x", "--type", "ppa", "--pus", "0", "--drive", "oc1"]);
    assert_eq!(place.json("list", &["--drive", "oc1"])["targets"][0]["name"], "x");
    assert!(!place.image().exists());
}

#[test]
fn an_image_in_use_is_left_alone() {
    let place = TestDir::new(DRIVE);
    place.run_ok("create", &["--name", "db", "--type", "pblk", "--pus", "0-3"]);
    let before = read(&place.image());
    let scenario = Scenario::load(&place.scenario()).unwrap();
    let MediaConfig::Nand(nand) = scenario.drives[0].config.media.clone() else { panic!() };
    let opened = media::Nand::open(nand).unwrap();
    for factory in [&["--name", "db"][..], &["--name", "db", "--factory"]] {
        let parts = ["remove target db of drive oc0", "oc0.img is in use by another process"];
        place.run_refused(1, "remove", factory, &parts);
    }
    place.run_refused(1, "list", &[], &["list the targets of drive oc0", "in use"]);
    let limit = ["--name", "db", "--max-chunks", "9"];
    place.run_refused(1, "limit", &limit, &["limits of target db of drive oc0", "in use"]);
    drop(opened);
    assert!(read(&place.image()) == before, "the image has changed");
    place.run_ok("remove", &["--name", "db"]);
}

#[test]
fn a_partition_table_with_a_bad_crc_is_refused_and_stays_as_it_is() {
    let place = TestDir::new(&DRIVE.replace("cell = \"mlc\"\npaired_page_distance = 2\n", ""));
    place.run_ok("create", &["--name", "db", "--type", "pblk", "--pus", "0-3"]);
    let good = read(&place.image());
    let starts = |bytes: &[u8], magic: &[u8; 8]| -> Vec<usize> {
        bytes.windows(8).enumerate().filter(|(_, w)| w == magic).map(|(i, _)| i).collect()
    };
    let snapshots = starts(&good, b"SLUICPTB");
    assert_eq!(snapshots.len(), 2, "the image must have two copies of the table");
    // With one damaged copy, the other is used.
    let mut bytes = good.clone();
    bytes[snapshots[0] + 40] ^= 1;
    std::fs::write(place.image(), &bytes).unwrap();
    assert_eq!(place.json("list", &[])["targets"][0]["name"], "db");
    // With both damaged, the error names the drive and the location of its table.
    bytes[snapshots[1] + 40] ^= 1;
    std::fs::write(place.image(), &bytes).unwrap();
    for (what, args) in [
        ("list", &[][..]),
        ("info", &["--name", "db"]),
        ("remove", &["--name", "db", "--factory"]),
        ("create", &["--name", "new", "--type", "kv", "--pus", "4"]),
    ] {
        place.run_refused(1, what, args, &["partition table of drive oc0", "chunks 0-"]);
        assert!(read(&place.image()) == bytes, "{what} has changed the image");
    }
}
