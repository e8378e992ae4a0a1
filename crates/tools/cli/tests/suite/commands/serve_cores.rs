//! `sluice serve` with a server per core: clients on all cores verify their data, statistics are sums, and
//! what one core flushed of all others survives a kill.

// guarantee: B-19, B-20, B-26, B-81

use crate::served;

use rustix::process::Signal;
use serde_json::Value;
use served::numbered::{Writer, ends_under_load, sector, volatile};
use served::*;
use testkit::nbd_client;

/// Four clients, each on an area of its own.
const FOUR_JOBS: &str = "--rw=randrw --rwmixread=30 --bs=4k --iodepth=8 --numjobs=4 --size=12m \
    --offset_increment=12m --verify=crc32c --verify_fatal=1 --fsync=256 --randseed=";

fn verify(server: &Server, seed: u32) {
    let job = format!("{FOUR_JOBS}{seed}");
    fio_ok(server, &job.split_whitespace().collect::<Vec<_>>());
}

/// Returns the numbers at `path` of each entry of an array.
fn numbers_of(array: &Value, path: &str) -> Vec<u64> {
    array.as_array().unwrap().iter().map(|one| number(one, path)).collect()
}

fn connections(drive: &Value) -> Vec<u64> {
    numbers_of(&drive["nbd"]["connections_by_core"], "")
}

/// Returns the writes of each core of a block layer: the fifth number of its statistics, and the sixth
/// for those that were merged into others.
fn writes_by_core(drive: &Value) -> Vec<u64> {
    let writes = |core: &Value| {
        let stat = core["stat"].as_str().unwrap().split_whitespace();
        stat.skip(4).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
    };
    drive["block_layer"]["cores"].as_array().unwrap().iter().map(writes).collect()
}

#[test]
fn fio_verifies_on_four_cores() {
    for (scenario, queue_model) in
        [(volatile(), "mq"), (pblk(), "mq"), (DRIVE.to_owned(), "sq"), (shards(), "mq")]
    {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), &on_cores(&scenario, queue_model, 4));
        for seed in 1..3 {
            verify(&server, seed);
        }
        let drive = server.stop();
        let by_core = connections(&drive);
        assert_eq!(by_core.len(), 4, "{by_core:?}");
        assert!(by_core.iter().all(|n| *n > 0), "{by_core:?}");
        assert_eq!(by_core.iter().sum::<u64>(), number(&drive, "/nbd/connections"));
        let writes = writes_by_core(&drive);
        assert!(writes.len() == 4 && writes.iter().all(|n| *n > 500), "{writes:?}");
        assert_eq!(writes.iter().sum::<u64>(), number(&drive, "/nbd/writes"));
        assert!(number(&drive, "/nbd/flushes") > 0);
        // The server is the drive's host. The first doorbell of each queue has no stamp, and
        // neither have those that a core rings while the drive takes an earlier stamp.
        let waits = &drive["doorbell_to_fetch_ns"];
        assert!(number(waits, "/count") > 100, "{waits}");
        assert!(20 * number(waits, "/unstamped") <= number(waits, "/count"), "{waits}");
        assert!(number(waits, "/max") >= number(waits, "/p99"), "{waits}");
        let errors = ["errors_device", "errors_refused", "clients_dropped"];
        for key in errors.map(|key| format!("/nbd/{key}")) {
            assert_eq!(number(&drive, &key), 0, "{key}");
        }
    }
}

/// Shards have a server each, also without a block layer; their counters are summed.
#[test]
fn every_shard_has_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &shards());
    verify(&server, 1);
    let drive = server.stop();
    let by_core = connections(&drive);
    assert!(by_core.len() == 2 && by_core.iter().all(|n| *n > 0), "{by_core:?}");
    let requests = numbers_of(&drive["shards"], "/core/requests");
    assert!(requests.len() == 2 && requests.iter().all(|n| *n > 500), "{requests:?}");
    let of_clients =
        ["reads", "writes", "flushes"].map(|key| number(&drive, &format!("/nbd/{key}")));
    // Each server flushes at the end.
    assert_eq!(requests.iter().sum::<u64>(), of_clients.iter().sum::<u64>() + 2);
    let written = number(&drive, "/ftl/host_sectors_written");
    assert!(written >= number(&drive, "/nbd/writes"), "{written}");
}

/// With one thread, one server polls all cores' queues and submits on the first.
#[test]
fn one_thread_serves_every_core() {
    for scenario in [on_cores(DRIVE, "mq", 4), on_cores(&shards(), "mq", 4), shards()] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::launch(dir.path(), &scenario, &["--threads", "1"]).wait_ready();
        verify(&server, 1);
        let drive = server.stop();
        assert_eq!(connections(&drive), [number(&drive, "/nbd/connections")]);
        if !drive["block_layer"].is_null() {
            let writes = writes_by_core(&drive);
            assert!(writes[0] > 500 && writes[1..] == [0; 3], "{writes:?}");
        }
    }
}

/// Each core's counters are in the statistics while the server runs.
#[test]
fn clients_of_all_cores_are_counted_while_they_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let admin = dir.path().join("admin.sock");
    let extra = ["--admin-socket", admin.to_str().unwrap(), "--stats", "1"];
    let server = Server::launch(dir.path(), &shards(), &extra).wait_ready();
    let mut writers: Vec<Writer> =
        (0..4).map(|_| Writer::connect(&server.socket).unwrap()).collect();
    for (client, writer) in (0..).zip(&mut writers) {
        for lba in (client..400).step_by(4) {
            let offset = lba * numbered::SECTOR as u64;
            writer.ask(nbd_client::WRITE, nbd_client::FUA, offset, &sector(lba, 1)).unwrap();
        }
    }
    let ask = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.args(["admin", "--socket"]).arg(&admin).args(["stats", "--json"]);
        serde_json::from_slice::<Value>(&succeed(&mut command).stdout).unwrap()
    };
    let seen = ask();
    assert_eq!((&seen["writes"], &seen["nbd_clients"]), (&400.into(), &4.into()), "{seen}");
    assert_eq!(seen["queue_depth"], 0, "{seen}");
    // Both shards' lines and amplification.
    let free = seen["free_lines"].as_f64().unwrap();
    assert!(seen["write_amplification"].as_f64().unwrap() >= 1.0, "{seen}");
    drop(writers);
    let drive = server.stop();
    let of_shards: f64 = drive["shards"]
        .as_array()
        .unwrap()
        .iter()
        .map(|shard| shard["free_lines"].as_f64().unwrap())
        .sum();
    assert!((of_shards - free).abs() <= 4.0, "{of_shards} {free}");
    assert_eq!(connections(&drive), [2, 2]);
}

#[test]
fn killed_under_load_four_cores_of_a_drive_have_everything_that_was_flushed() {
    ends_under_load(&on_cores(&volatile(), "mq", 4), 4, Signal::KILL);
}

#[test]
fn killed_under_load_four_cores_over_pblk_have_everything_that_was_flushed() {
    ends_under_load(&on_cores(&pblk(), "mq", 4), 4, Signal::KILL);
}

#[test]
fn killed_under_load_four_cores_over_shards_have_everything_that_was_flushed() {
    ends_under_load(&on_cores(&shards(), "mq", 4), 4, Signal::KILL);
}

#[test]
fn killed_under_load_a_server_per_shard_has_everything_that_was_flushed() {
    ends_under_load(&shards(), 4, Signal::KILL);
}

#[test]
fn interrupted_under_load_four_cores_have_everything_that_was_answered() {
    ends_under_load(&on_cores(&shards(), "mq", 4), 4, Signal::INT);
}

/// A SATA drive of 64 MiB.
const SATA: &str = "[drive]\nkind = \"ahci\"\ncapacity = \"64M\"\n";

#[test]
fn a_sata_drive_is_served_with_every_queue_model() {
    for (text, cores) in
        [(SATA.to_owned(), 1), (on_cores(SATA, "sq", 4), 4), (on_cores(SATA, "mq", 4), 4)]
    {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), &text);
        verify(&server, 1);
        let drive = server.stop();
        assert_eq!(connections(&drive).len(), cores);
        assert!(number(&drive, "/nbd/flushes") > 0 && number(&drive, "/commands/writes") > 500);
        assert_eq!(number(&drive, "/commands/errors"), 0);
        assert!(number(&drive, "/lateness_ns/count") > 1_000);
        assert_eq!(drive["doorbell_to_fetch_ns"]["unknown"], "ahci");
    }
}

#[test]
fn a_file_of_this_machine_is_served_with_every_queue_model() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::File::create(dir.path().join("disk")).unwrap().set_len(64 << 20).unwrap();
    let file = "[drive]\nkind = \"file\"\npath = \"disk\"\ndirect = false\nsector_bytes = 4096\n";
    for (text, cores) in
        [(file.to_owned(), 1), (on_cores(file, "sq", 4), 4), (on_cores(file, "mq", 4), 4)]
    {
        let server = Server::start(dir.path(), &text);
        verify(&server, 1);
        let drive = server.stop();
        assert_eq!(connections(&drive).len(), cores);
        assert!(number(&drive, "/nbd/flushes") > 0 && number(&drive, "/nbd/writes") > 500);
        assert_eq!((drive.get("commands"), drive.get("lateness_ns")), (None, None));
        assert_eq!(drive["doorbell_to_fetch_ns"]["unknown"], "real-device");
    }
    let written = std::fs::read(dir.path().join("disk")).unwrap();
    assert!(written.iter().any(|byte| *byte != 0), "the data is in the file");
}

#[test]
fn what_needs_nvme_queues_refuses_a_sata_drive() {
    let dir = tempfile::tempdir().unwrap();
    let (file, socket) = (dir.path().join("sata.toml"), dir.path().join("share.sock"));
    std::fs::write(&file, SATA).unwrap();
    let sluice = |arguments: &[&std::ffi::OsStr]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_sluice")).args(arguments).output().unwrap()
    };
    let serve = ["serve".as_ref(), file.as_os_str(), "--socket".as_ref(), socket.as_os_str()];
    let bench = ["kv".as_ref(), "bench".as_ref(), "--quick".as_ref(), file.as_os_str()];
    for (arguments, says) in [
        (&serve, "sharing a drive between processes (`--socket`) needs the NVMe queues"),
        (&bench, "kv bench needs the NVMe queues"),
    ] {
        let out = sluice(arguments);
        let text = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{text}");
        assert!(text.contains(says) && text.contains("kind = \"nvme\""), "{text}");
    }
    let shown = sluice(&["drive".as_ref(), "show".as_ref(), file.as_os_str()]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.status.success() && text.contains("32 commands (NCQ)"), "{text}");
}

/// Two targets of one drive.
fn two_targets() -> String {
    let target = |name: &str, pus: &str| {
        format!("[[target]]\nname = \"{name}\"\nkind = \"pblk\"\npus = \"{pus}\"\n")
    };
    let drive = in_file(DRIVE) + "personality = \"open-channel\"\n";
    drive + &target("left", "0-3") + &target("right", "4-7")
}

#[test]
fn a_named_path_is_served_alone() {
    let path = |name: &str, over: &str, rest: &str| {
        format!("[[path]]\nname = \"{name}\"\nover = \"{over}\"\n{rest}")
    };
    let text = two_targets()
        + &path("l", "left", "queue_model = \"mq\"\ncores = 2\n")
        + &path("r", "right", "");
    let dir = tempfile::tempdir().unwrap();
    let job = |seed: &'static str, extra: &'static str| {
        ["--rw=randwrite", "--bs=4k", "--verify=crc32c", "--size=4m", seed, extra]
    };
    let (left, right) = ("--randseed=7", "--randseed=8");
    for (name, seed) in [("#l", left), ("#r", right)] {
        let server = Server::launch_path(dir.path(), &text, name, &[]).wait_ready();
        fio_ok(&server, &job(seed, "--do_verify=0"));
        let drive = server.stop();
        let cores = drive["block_layer"]["cores"].as_array().map_or(0, Vec::len);
        assert_eq!(cores, if name == "#l" { 2 } else { 0 });
    }
    // Neither has touched the sectors of the other.
    for (name, seed) in [("#l", left), ("#r", right)] {
        let server = Server::launch_path(dir.path(), &text, name, &[]).wait_ready();
        fio_ok(&server, &job(seed, "--verify_only"));
        server.stop();
    }
    let refused = |text: &str, name: &str| {
        let file = dir.path().join("scenario.toml");
        std::fs::write(&file, text).unwrap();
        let file = format!("{}{name}", file.display());
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(["serve", &file, "--nbd", "tcp:localhost:0"])
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(2));
        String::from_utf8(out.stderr).unwrap()
    };
    assert!(refused(&text, "#x").contains("it has no path \"x\""));
}
