//! Named targets, sets and paths: what jobs write is there, counters add up, and neighbours keep to
//! their share.

// guarantee: B-21, B-41

mod atomic_writes;
mod namespaces;
mod set_polls;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use report::explain::{Wait, WaitKind};
use scenario::Scenario;
use serde_json::Value;
use sluice_sim::{
    NoteCode, PathOutcome, SimError, SimOptions, SimOutcome, TraceOutput, simulate, to_json,
};
use time::Nanos;
use tracepoint::RequestOp;
use workload::{Direction, JobResult, RunError};

/// An open-channel drive with eight parallel units on four channels, and its two targets.
const TARGETS: &str = "[[drive]]\nname = \"oc\"\npreset = \"femu-default\"\n\
    personality = \"open-channel\"\ndata = \"memory\"\n\
    geometry = { channels = 4, pus = 2, chunks = 64, pages = 64 }\n\
    [[target]]\nname = \"left\"\ndrive = \"oc\"\nkind = \"pblk\"\npus = \"0-3\"\n\
    [[target]]\nname = \"right\"\ndrive = \"oc\"\nkind = \"pblk\"\npus = \"4-7\"\n";

/// Two drives with an FTL of their own, and a set of them.
const SET: &str = "[[drive]]\nname = \"a\"\npreset = \"femu-default\"\ndata = \"memory\"\n\
    geometry = { channels = 2, pus = 2, chunks = 64, pages = 64 }\n\
    [[drive]]\nname = \"b\"\npreset = \"femu-default\"\ndata = \"memory\"\n\
    geometry = { channels = 2, pus = 2, chunks = 64, pages = 64 }\n\
    [[set]]\nname = \"ab\"\nmembers = [\"a\", \"b\"]\n";

fn parse(text: &str) -> Scenario {
    Scenario::parse(Path::new("s.toml"), text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn run(text: &str) -> SimOutcome {
    let outcome = simulate(&parse(text), SimOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(outcome.failures(), [""; 0]);
    outcome
}

fn path<'a>(outcome: &'a SimOutcome, name: &str) -> &'a PathOutcome {
    outcome.paths.iter().find(|path| path.name == name).expect("the path")
}

fn way(name: &str, over: &str, rest: &str) -> String {
    format!("[[path]]\nname = \"{name}\"\nover = \"{over}\"\n{rest}")
}

fn job(path: &str, rest: &str) -> String {
    format!("[[job]]\npath = \"{path}\"\n{rest}")
}

/// Bytes that the jobs of a path transferred in a direction.
fn bytes(path: &PathOutcome, direction: Direction) -> u64 {
    path.run.jobs.iter().map(|job| job.directions[direction as usize].bytes).sum()
}

/// A key-value target on a drive of its own.
const KEYS: &str = "[[drive]]\nname = \"kv\"\npreset = \"femu-default\"\n\
    personality = \"open-channel\"\ndata = \"memory\"\n\
    geometry = { channels = 2, pus = 2, chunks = 64, pages = 64 }\n\
    [[target]]\nname = \"keys\"\ndrive = \"kv\"\nkind = \"kv\"\npus = \"0-3\"\n\
    [[path]]\nname = \"k\"\nover = \"keys\"\n";

/// Two tenants of the key-value target: one loads records and runs YCSB on them, another puts and
/// gets values of its own size.
const TENANTS_OF_KEYS: &str = "[[job]]\npath = \"k\"\nname = \"load\"\nycsb = \"load\"\n\
    recordcount = 500\nbs = 1000\nverify = \"crc32c\"\n\
    [[job]]\npath = \"k\"\nname = \"a\"\nstonewall = true\nycsb = \"a\"\nrecordcount = 500\n\
    operationcount = 3000\nbs = 1000\niodepth = 8\nverify = \"crc32c\"\n\
    [[job]]\npath = \"k\"\nname = \"f\"\nycsb = \"f\"\nrecordcount = 500\noperationcount = 1000\n\
    bs = 1000\niodepth = 4\nverify = \"crc32c\"\n";

const MIX: &str = "rw = \"randrw\"\nbs = \"4k\"\niodepth = 8\nsize = \"8m\"\nio_size = \"12m\"\n\
    verify = \"crc32c\"\n";

/// Six SATA drives at an AHCI controller, and a stripe of them [HIOPS14 §4].
fn stripe_of_sata() -> String {
    let mut text = String::new();
    for i in 0..6 {
        text += &format!("[[drive]]\nname = \"disk{i}\"\nkind = \"ahci\"\ncapacity = \"64M\"\n");
    }
    text + "[[set]]\nname = \"disks\"\nmembers = [\"disk0\", \"disk1\", \"disk2\", \"disk3\", \"disk4\", \
            \"disk5\"]\nstripe = \"64k\"\n"
}

/// Two targets, a set, an AHCI stripe and a key-value target, two tenants on each.
fn everything() -> String {
    let tenants = "queue_model = \"mq\"\ncores = 2\n";
    let mut text = format!("{TARGETS}{SET}{}", stripe_of_sata());
    for (name, over) in [("l", "left"), ("r", "right"), ("s", "ab"), ("h", "disks")] {
        text += &way(name, over, tenants);
        text += &job(name, MIX);
        text += &job(name, &format!("offset = \"8m\"\n{MIX}"));
    }
    text + KEYS + TENANTS_OF_KEYS
}

#[test]
fn jobs_on_every_path_verify_and_counters_add_up() {
    let outcome = run(&everything());
    for name in ["l", "r"] {
        let path = path(&outcome, name);
        let ftl = path.ftl.expect("an FTL on the host");
        let layer = path.block_layer.as_ref().expect("a block layer");
        assert_eq!(ftl.host_writes * 4096, bytes(path, Direction::Write));
        assert_eq!(ftl.host_reads * 4096, bytes(path, Direction::Read));
        assert_eq!(layer.dispatch.len(), 1, "a pblk is one hardware queue");
        assert_eq!(path.drives, [0]);
    }
    // A drive that only the set uses counts what reaches it.
    let set = path(&outcome, "s");
    assert_eq!(set.drives, [1, 2]);
    let written: u64 = [1, 2].map(|i| outcome.drives[i].drive.bytes_written).iter().sum();
    let read: u64 = [1, 2].map(|i| outcome.drives[i].drive.bytes_read).iter().sum();
    assert_eq!(written, bytes(set, Direction::Write));
    assert_eq!(read, bytes(set, Direction::Read));
    for drive in &outcome.drives[1..3] {
        let (ftl, free_lines) = drive.shared_ftl.expect("no path has the drive alone");
        assert_eq!(ftl.host_writes * 4096, drive.drive.bytes_written);
        assert!(free_lines > 0.0);
        let share = drive.drive.bytes_written as f64 / written as f64;
        assert!((0.4..0.6).contains(&share), "{share}");
    }
    // Each SATA drive has its share of the stripe, and all of them share the uplink.
    let stripe = path(&outcome, "h");
    assert_eq!(stripe.drives, (3..9).collect::<Vec<_>>());
    let disks = &outcome.drives[3..9];
    let written: u64 = disks.iter().map(|disk| disk.drive.bytes_written).sum();
    let read: u64 = disks.iter().map(|disk| disk.drive.bytes_read).sum();
    assert_eq!((written, read), (bytes(stripe, Direction::Write), bytes(stripe, Direction::Read)));
    let layer = stripe.block_layer.as_ref().expect("a block layer");
    assert_eq!(layer.dispatch.len(), 1, "an AHCI port has one command list");
    for (port, disk) in disks.iter().enumerate() {
        let sata = disk.sata.as_ref().expect("a SATA drive");
        assert_eq!((sata.port, disk.drive.errors), (port, 0));
        assert!(sata.drive.link_busy > Nanos::ZERO && sata.uplink_busy > sata.drive.link_busy);
        let share = disk.drive.bytes_written as f64 / written as f64;
        assert!((0.1..0.25).contains(&share), "{share}");
    }
    // The open-channel drive programs what both targets do.
    let programs = |name| path(&outcome, name).ftl.map_or(0, |f| f.programs);
    let media = outcome.drives[0].drive.media.as_ref().expect("NAND");
    let (all, of_ftls) = (media.programs, programs("l") + programs("r"));
    assert!((of_ftls..of_ftls + of_ftls / 50).contains(&all), "{all}, {of_ftls} without journals");
    // Each get was checked against what had been put.
    let keys = path(&outcome, "k");
    let counts = keys.keys.expect("the counters of a key-value target");
    let [load, a, f] = &keys.run.jobs[..] else { panic!("{} jobs", keys.run.jobs.len()) };
    let ios = |job: &JobResult, direction: Direction| job.directions[direction as usize].ios;
    assert_eq!((ios(load, Direction::Write), counts.keys), (500, 500));
    // Without the reads that verify what a job wrote.
    let operations = |job: &JobResult| job.requests.operations.iter().sum::<u64>();
    assert_eq!((operations(load), operations(a), operations(f)), (500, 3_000, 1_000));
    assert!((1_300..1_700).contains(&ios(a, Direction::Write)), "{}", ios(a, Direction::Write));
    let puts: u64 = keys.run.jobs.iter().map(|job| ios(job, Direction::Write)).sum();
    assert_eq!((counts.puts, counts.errors), (puts, 0));
    assert!(a.requests.verified > 1_000, "{}", a.requests.verified);
    assert_eq!((keys.drives.clone(), keys.ftl), (vec![9], None));
    // The results name paths, and a second run gives the same bytes.
    let json = to_json(&outcome);
    assert_eq!(json, to_json(&run(&everything())));
    let names = |list: &str| -> Vec<String> {
        let list = json["sluice"][list].as_array().expect("a list");
        list.iter().map(|entry| entry["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(
        (names("paths"), names("drives")),
        (
            owned(&["l", "r", "s", "h", "k"]),
            owned(&["oc", "a", "b", "disk0", "disk1", "disk2", "disk3", "disk4", "disk5", "kv"])
        )
    );
    let disk = &json["sluice"]["drives"][4];
    assert_eq!(
        (&disk["ahci"]["port"], disk["commands"].get("page_register_hits")),
        (&1.into(), None)
    );
    assert_eq!(json["sluice"]["parameters"]["drives"][4]["sata"]["queue_depth"], 32);
    assert_eq!(json["sluice"]["paths"][2]["drives"], serde_json::json!(["a", "b"]));
    assert_eq!(json["sluice"]["drives"][0].get("ftl"), None, "its FTLs are those of the paths");
    assert_eq!(json["sluice"]["parameters"]["targets"][1]["pus"], "4-7");
    assert_eq!(json["sluice"]["parameters"]["sets"][0]["stripe_bytes"], 128 << 10);
    assert_eq!(json["jobs"].as_array().map(Vec::len), Some(11));
    assert_eq!(json["sluice"]["paths"][4]["key_value"]["keys"], 500);
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Latency percentile in nanoseconds of the first job of a path.
fn read_p99(outcome: &SimOutcome, name: &str) -> f64 {
    path(outcome, name).run.jobs[0].directions[0].lat.percentile(99.0).0 as f64
}

#[test]
fn a_tenant_on_channels_of_its_own_does_not_feel_its_neighbour() {
    let fill = "[precondition]\nfill = \"sequential\"\n";
    let reads =
        "rw = \"randread\"\nbs = \"4k\"\niodepth = 4\nruntime = \"200ms\"\ntime_based = true\n";
    let writes =
        "rw = \"randwrite\"\nbs = \"16k\"\niodepth = 32\nruntime = \"200ms\"\ntime_based = true\n";
    let paths = way("l", "left", "") + &way("r", "right", "");
    let alone = run(&format!("{TARGETS}{fill}{paths}{}", job("l", reads)));
    let beside = run(&format!("{TARGETS}{fill}{paths}{}{}", job("l", reads), job("r", writes)));
    let ftl = path(&beside, "r").ftl.expect("an FTL");
    assert!(ftl.gc_relocations > 1_000, "the neighbour collects: {}", ftl.gc_relocations);
    let ratio = read_p99(&beside, "l") / read_p99(&alone, "l");
    assert!((0.98..1.02).contains(&ratio), "p99 × {ratio}");
    // On the same channels, the units alternate: the reader feels the writer, and keeps half of its
    // rate.
    let shared = TARGETS.replace("\"0-3\"", "\"0,2,4,6\"").replace("\"4-7\"", "\"1,3,5,7\"");
    let alone = run(&format!("{shared}{fill}{paths}{}", job("l", reads)));
    let beside = run(&format!("{shared}{fill}{paths}{}{}", job("l", reads), job("r", writes)));
    let rate = |outcome: &SimOutcome| path(outcome, "l").run.jobs[0].directions[0].iops();
    let kept = rate(&beside) / rate(&alone);
    assert!((0.5..=1.0).contains(&kept), "rate × {kept}");
}

#[test]
fn rates_of_tenants_hold_on_each_path() {
    let limit = |group: u32, iops: u32| {
        format!("[[path.limit]]\ngroup = {group}\nread_iops = {iops}\nburst = \"1ms\"\n")
    };
    let layer = format!(
        "queue_model = \"mq\"\nstaging = \"global\"\ncores = 2\n{}{}",
        limit(1, 2_000),
        limit(2, 500)
    );
    let reads =
        "rw = \"randread\"\nbs = \"4k\"\niodepth = 8\nruntime = \"500ms\"\ntime_based = true\n";
    let mut text = format!("{TARGETS}{SET}");
    for (name, over) in [("l", "left"), ("s", "ab")] {
        text += &way(name, over, &layer);
        for group in [1, 2] {
            text += &job(name, &format!("group = {group}\n{reads}"));
        }
    }
    let outcome = run(&format!("{text}[precondition]\nfill = \"sequential\"\n"));
    for name in ["l", "s"] {
        for (job, allowed) in path(&outcome, name).run.jobs.iter().zip([2_000.0, 500.0]) {
            let found = job.directions[0].iops() / allowed;
            assert!((0.98..1.02).contains(&found), "{name}: {} of {allowed}", found * allowed);
        }
    }
}

#[test]
fn a_set_is_as_fast_as_its_members_together() {
    let reads = "rw = \"randread\"\nbs = \"4k\"\niodepth = 64\nnumber_ios = 20000\n";
    let fill = "[precondition]\nfill = \"sequential\"\n";
    let set = run(&format!("{SET}{fill}{}{}", way("s", "ab", ""), job("s", reads)));
    let single = run(&format!("{SET}{fill}{}{}", way("s", "ab", ""), job("s", reads))
        .replace("[\"a\", \"b\"]", "[\"a\"]"));
    let rate = |outcome: &SimOutcome| path(outcome, "s").run.jobs[0].directions[0].iops();
    let ratio = rate(&set) / rate(&single);
    assert!(ratio > 1.8, "{ratio} times one member");
    // The drive without a path is idle.
    assert_eq!(single.drives[1].drive.reads, 0);
}

#[test]
fn hosts_of_one_drive_see_the_same_blocks() {
    let text = format!("{SET}{}{}", way("w", "a", ""), way("r", "a", "queue_model = \"sq\"\n"))
        .replace("[[set]]\nname = \"ab\"\nmembers = [\"a\", \"b\"]\n", "");
    let writes = "rw = \"write\"\nbs = \"64k\"\nsize = \"8m\"\n";
    let reads = "rw = \"read\"\nbs = \"64k\"\nsize = \"8m\"\nstartdelay = \"1s\"\n";
    let outcome = run(&format!("{text}{}{}", job("w", writes), job("r", reads)));
    let drive = &outcome.drives[0];
    assert_eq!((drive.drive.bytes_written, drive.drive.bytes_read), (8 << 20, 8 << 20));
    let (ftl, _) = drive.shared_ftl.expect("two paths share it");
    assert_eq!(
        (ftl.host_writes, ftl.unmapped_reads),
        (2048, 0),
        "the reader finds the writer's data"
    );
    assert!(outcome.paths.iter().all(|path| path.ftl.is_none()));
}

#[test]
fn jobs_are_refused_where_they_have_no_addresses() {
    let blocks = "rw = \"read\"\nbs = \"4k\"\n";
    let text = format!("{KEYS}{}", job("k", blocks));
    let refused = simulate(&parse(&text), SimOptions::default()).unwrap_err();
    assert!(matches!(&refused, SimError::Host(RunError::WrongAddressing { .. })), "{refused}");
    assert!(refused.is_usage() && refused.to_string().contains("ycsb"), "{refused}");
    let keys = "ycsb = \"c\"\nrecordcount = 10\noperationcount = 10\n";
    let text = format!("{TARGETS}{}{}", way("l", "left", ""), job("l", keys));
    let refused = simulate(&parse(&text), SimOptions::default()).unwrap_err();
    assert!(matches!(&refused, SimError::Host(RunError::WrongAddressing { .. })), "{refused}");
    // Neither a program nor a server addresses by keys.
    let scenario = parse(&format!("{KEYS}{}", job("k", keys)));
    let refused = open::open_scenario(&scenario, Some("k"), &Default::default()).unwrap_err();
    let text = refused.to_string();
    assert!(refused.is_usage() && text.contains("target keys is a kv"), "{text}");
}

#[test]
fn declared_targets_stay_on_an_image() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("oc.img");
    let drive = TARGETS.replace("data = \"memory\"", &format!("data = \"file\"\npath = {image:?}"));
    let paths = way("l", "left", "") + &way("r", "right", "");
    let writes = "rw = \"write\"\nbs = \"64k\"\nsize = \"4m\"\n";
    let reads = "rw = \"read\"\nbs = \"64k\"\nsize = \"4m\"\n";
    let write = |text: &str| {
        simulate(&parse(text), SimOptions { write_image: true, ..SimOptions::default() })
    };
    let first = write(&format!("{drive}{paths}{}{}", job("l", writes), job("r", writes))).unwrap();
    assert_eq!(first.failures(), [""; 0]);
    // Undeclared, the targets are those of the partition table.
    let known = drive.replace("pus = \"0-3\"\n", "").replace("pus = \"4-7\"\n", "");
    let second = write(&format!("{known}{paths}{}{}", job("l", reads), job("r", reads))).unwrap();
    for path in &second.paths {
        let ftl = path.ftl.expect("an FTL");
        assert_eq!((ftl.host_reads, ftl.unmapped_reads), (1024, 0), "{}", path.name);
    }
    // A declaration that differs from the table is refused.
    let moved = drive.replace("\"4-7\"", "\"5-7\"");
    let error = write(&format!("{moved}{paths}{}", job("l", reads))).unwrap_err().to_string();
    assert!(error.contains("s.toml:17:7") && error.contains("partition table"), "{error}");
}

#[test]
fn requests_to_sets_keys_and_sata_drives_are_not_followed() {
    let text = everything();
    let scenario = parse(&text);
    let (file, dir) = (tempfile::tempfile().unwrap(), tempfile::tempdir().unwrap());
    let trace = TraceOutput { name: "t".into(), file, truncate: false };
    let options = SimOptions { trace: Some(trace), ..SimOptions::default() };
    let refused = simulate(&scenario, options).unwrap_err();
    assert!(matches!(refused, SimError::NotFollowed { .. }) && refused.is_usage(), "{refused}");
    let outcome = simulate(
        &scenario,
        SimOptions {
            slowest: 3,
            blktrace: Some(dir.path().to_path_buf()),
            ..SimOptions::default()
        },
    )
    .unwrap();
    assert!(outcome.paths.iter().all(|path| path.explanation.is_none()));
    assert!(outcome.notes.iter().any(|note| note.code == NoteCode::NotFollowed));
    // The block layers are traced nevertheless, by the names of the paths.
    for name in ["l", "r", "s"] {
        let core = dir.path().join(format!("{name}.blktrace.0"));
        assert!(core.metadata().unwrap().len() > 1_000, "{name}");
    }
    // With a path for each drive, requests are followed under the names of the paths.
    let paired = format!("{SET}{}{}", way("x", "b", ""), way("y", "a", ""))
        .replace("[[set]]\nname = \"ab\"\nmembers = [\"a\", \"b\"]\n", "")
        + &job("x", "rw = \"write\"\nbs = \"4k\"\nnumber_ios = 50\n")
        + &job("y", "rw = \"write\"\nbs = \"4k\"\nnumber_ios = 70\n");
    let options = SimOptions { slowest: 100, ..SimOptions::default() };
    let outcome = simulate(&parse(&paired), options).unwrap();
    for (name, count) in [("x", 50), ("y", 70)] {
        let explanation = path(&outcome, name).explanation.as_ref().expect("an explanation");
        assert_eq!(explanation.slowest.len(), count, "{name}");
    }
    let json: Value = to_json(&outcome);
    assert_eq!(json["sluice"]["paths"][0]["slowest"].as_array().map(Vec::len), Some(50));
}

/// Requests of a path by job and operation: their number and the sum of their latencies.
type Totals = BTreeMap<(String, RequestOp), (u64, f64)>;

/// Returns what the jobs of a path measured.
fn measured(path: &PathOutcome) -> Totals {
    let ops = [RequestOp::Read, RequestOp::Write, RequestOp::Trim];
    let of_job = |job: &JobResult| {
        let directions = job.directions.iter().zip(ops).map(|(of, op)| (op, of.lat.clone()));
        let all = directions.chain([(RequestOp::Flush, job.sync.clone())]);
        let name = job.spec.name.clone();
        all.map(move |(op, lat)| {
            ((name.clone(), op), (lat.count(), lat.mean() * lat.count() as f64))
        })
        .filter(|(_, (count, _))| *count > 0)
        .collect::<Vec<_>>()
    };
    path.run.jobs.iter().flat_map(of_job).collect()
}

/// Traces and explains a scenario whose paths share the first drive. Each request of each path must
/// be there once, complete and under its own name. Returns the outcome and the events of the trace.
fn followed(text: &str) -> (SimOutcome, Vec<Value>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.json");
    let trace = Some(TraceOutput::create(&file).unwrap());
    let options = SimOptions { slowest: 1 << 20, trace, ..SimOptions::default() };
    let outcome = simulate(&parse(text), options).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(outcome.failures(), [""; 0]);
    assert!(outcome.notes.iter().all(|note| note.code != NoteCode::NotFollowed));
    let events: Vec<Value> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let mut serials = BTreeSet::new();
    for path in &outcome.paths {
        let explanation = path.explanation.as_ref().expect("an explanation");
        let mut explained = Totals::new();
        for request in &explanation.slowest {
            let sum: u64 = request.waits.iter().map(|wait| wait.time.0).sum();
            assert_eq!(sum, request.latency.0, "{}: {request:?}", path.name);
            let is_explained = |wait: &Wait| wait.kind != WaitKind::Unexplained;
            assert!(request.waits.iter().all(is_explained), "{}: {request:#?}", path.name);
            assert!(serials.insert(request.serial), "{}: twice: {request:?}", path.name);
            let job = explanation.jobs[request.job as usize].clone();
            let total = explained.entry((job, request.op)).or_default();
            *total = (total.0 + 1, total.1 + request.latency.0 as f64);
        }
        let measured = measured(path);
        assert!(measured.values().map(|(count, _)| count).sum::<u64>() > 500, "{}", path.name);
        let keys = |totals: &Totals| totals.keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&explained), keys(&measured), "{}", path.name);
        for (key, (count, sum)) in &measured {
            let (of, latencies) = explained[key];
            assert_eq!(of, *count, "{}: {key:?}", path.name);
            assert!((latencies - sum).abs() <= of as f64, "{}: {latencies} {sum}", path.name);
        }
        // The trace has the same requests in the process of the path.
        let name = format!("{}: jobs", path.name);
        let is_named = |e: &&Value| e["name"] == "process_name" && e["args"]["name"] == *name;
        let [process] = events.iter().filter(is_named).collect::<Vec<_>>()[..] else {
            panic!("one process {name}")
        };
        let drawn = events.iter().filter(|e| e["ph"] == "X" && e["pid"] == process["pid"]);
        let mut drawn: Vec<u64> = drawn.filter_map(|e| e["args"]["request"].as_u64()).collect();
        drawn.sort_unstable();
        let mut of_path: Vec<u64> = explanation.slowest.iter().map(|r| r.serial).collect();
        of_path.sort_unstable();
        assert_eq!(drawn, of_path, "{}", path.name);
    }
    // Each array operation of a request has an arrow from it.
    let phase =
        |phase: &str| events.iter().filter(|e| e["ph"] == phase && e["cat"] == "flow").count();
    let of_requests = events.iter().filter(|e| {
        let is_array = ["read", "program", "erase"].iter().any(|op| e["name"] == *op);
        let request = e["args"]["request"].as_u64();
        is_array && e["pid"] == 1 && request.is_some_and(|serial| serials.contains(&serial))
    });
    assert_eq!((phase("s"), phase("f")), (of_requests.count(), phase("s")));
    assert!(phase("s") > 500, "{}", phase("s"));
    (outcome, events)
}

/// Returns the last value of a counter of the first drive.
fn last_count(events: &[Value], name: &str) -> f64 {
    let last = events.iter().rfind(|e| e["ph"] == "C" && e["pid"] == 1 && e["name"] == name);
    last.and_then(|e| e["args"]["value"].as_f64()).unwrap_or_else(|| panic!("no counter {name}"))
}

/// Jobs with the same tags on every path.
fn same_jobs(path: &str, offset: &str) -> String {
    job(
        path,
        &format!(
            "name = \"mix\"\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 8\nfsync = 40\n\
                  offset = \"{offset}\"\nsize = \"4m\"\nio_size = \"8m\"\n"
        ),
    ) + &job(
        path,
        &format!(
            "name = \"stream\"\nrw = \"read\"\nbs = \"64k\"\niodepth = 2\n\
                  offset = \"{offset}\"\nsize = \"4m\"\n"
        ),
    )
}

const FILLED: &str = "[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n";

#[test]
fn requests_of_two_paths_to_one_drive_are_told_apart() {
    let drive = SET.split("[[drive]]").nth(1).expect("the first drive");
    let layers = [
        ("", ""),
        ("", "queue_model = \"mq\"\ncores = 2\nqueues = 2\n"),
        ("queue_model = \"sq\"\n", "queue_model = \"sq\"\ncores = 2\n"),
    ];
    for (x, y) in layers {
        let text = format!(
            "[[drive]]{drive}{FILLED}{}{}{}{}",
            way("x", "a", x),
            way("y", "a", y),
            same_jobs("x", "0"),
            same_jobs("y", "4m")
        );
        let (outcome, events) = followed(&text);
        let (ftl, free) = outcome.drives[0].shared_ftl.expect("the drive's FTL");
        let wa = ftl.write_amplification().expect("writes");
        assert!((last_count(&events, "write amplification") - wa).abs() < 1e-9);
        assert_eq!(last_count(&events, "free lines"), free);
        // A request of one path waits behind those of the other, by name.
        let json: Value = to_json(&outcome);
        for (path, other) in [("x", "y: "), ("y", "x: ")] {
            let paths = json["sluice"]["paths"].as_array().expect("paths");
            let of = paths.iter().find(|of| of["name"] == path).expect("the path");
            let waits = of["slowest"].as_array().into_iter().flatten();
            let waits = waits.flat_map(|request| request["waits"].as_array().into_iter().flatten());
            let names: BTreeSet<&str> = waits.filter_map(|w| w["behind_job"].as_str()).collect();
            let mix = format!("{other}mix");
            assert!(names.contains("mix") && names.contains(&*mix), "{path}: {names:?}");
        }
        if x.is_empty() && y.is_empty() {
            let plain = to_json(&run(&text));
            assert_eq!(to_json(&outcome.without_explanations()), plain, "the same results");
        }
    }
}

#[test]
fn requests_of_two_targets_on_one_drive_are_told_apart() {
    let tenants = "queue_model = \"mq\"\ncores = 2\n";
    let one_queue = "queue_model = \"sq\"\ncores = 2\n";
    for (l, r) in [("", ""), (tenants, ""), (one_queue, tenants)] {
        let text = format!(
            "{TARGETS}{FILLED}{}{}{}{}",
            way("l", "left", l),
            way("r", "right", r),
            same_jobs("l", "0"),
            same_jobs("r", "0")
        );
        let (outcome, events) = followed(&text);
        for (name, pus) in [("l", 0..4), ("r", 4..8)] {
            let path = path(&outcome, name);
            let explanation = path.explanation.as_ref().expect("an explanation");
            let waits = explanation.slowest.iter().flat_map(|request| &request.waits);
            let used: BTreeSet<u32> = waits.filter_map(|wait| wait.pu).collect();
            assert_eq!(used, pus.collect(), "{name}: the parallel units of its target");
            let ftl = path.ftl.expect("the target's FTL");
            let wa = ftl.write_amplification().expect("writes");
            let drawn = last_count(&events, &format!("{name}: write amplification"));
            assert!((drawn - wa).abs() < 1e-9, "{name}: {drawn} {wa}");
            // Its background work has tracks of its own.
            let track = format!("{name}: flushes");
            let [named] =
                events.iter().filter(|e| e["args"]["name"] == *track).collect::<Vec<_>>()[..]
            else {
                panic!("one track {track}")
            };
            let is_flush = |e: &&Value| e["ph"] == "b" && e["tid"] == named["tid"];
            let flushes: u64 = path.run.jobs.iter().map(|job| job.sync.count()).sum();
            let drawn = events.iter().filter(is_flush).count() as u64;
            assert!(drawn > 0 && drawn >= flushes, "{name}: {drawn} of {flushes}");
        }
    }
}
