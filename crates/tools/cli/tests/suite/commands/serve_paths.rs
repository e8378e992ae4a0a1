//! `sluice serve` of whole compositions: every path is an export of one process, sets of drives
//! included; `[[export]]`; statistics by path; images after a kill.

// guarantee: B-29, B-30, B-35

use crate::served;

use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;
use served::numbered::{SECTOR, Writer, exports_end_under_load, sector};
use served::*;
use testkit::nbd_client::{self, NbdClient};

const MEDIA: &str = "preset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 48, pages = 64 }\n\
    timing = { read = \"10us\", program = \"30us\", erase = \"100us\" }\n";

/// A drive with its data in a file.
fn drive(name: &str, rest: &str) -> String {
    format!("[[drive]]\nname = \"{name}\"\n{MEDIA}data = \"file\"\npath = \"{name}.img\"\n{rest}")
}

fn path(name: &str, over: &str, rest: &str) -> String {
    format!("[[path]]\nname = \"{name}\"\nover = \"{over}\"\n{rest}")
}

/// A set of two drives with volatile write buffers, and its path.
fn set(rest: &str) -> String {
    let buffer = "write_buffer = { kind = \"volatile\", size = \"2M\" }\n";
    drive("a", buffer)
        + &drive("b", buffer)
        + "[[set]]\nname = \"both\"\nmembers = [\"a\", \"b\"]\nstripe = \"16K\"\n"
        + &path("s", "both", rest)
}

/// Two block targets and a key-value target of one open-channel drive.
fn targets() -> String {
    let target = |name: &str, kind: &str, pus: &str| {
        format!("[[target]]\nname = \"{name}\"\nkind = \"{kind}\"\npus = \"{pus}\"\n")
    };
    drive("oc", "personality = \"open-channel\"\n")
        + &target("left", "pblk", "0-5")
        + &target("right", "pblk", "6-11")
        + &target("store", "kv", "12-15")
}

/// The paths of [`targets`].
fn target_paths() -> String {
    path("l", "left", "queue_model = \"mq\"\ncores = 2\n")
        + &path("r", "right", "")
        + &path("k", "store", "")
}

/// The targets of [`targets`] and a set of two other drives, with a path to each.
fn targets_and_set() -> String {
    let scenario = targets()
        + &drive("a", "")
        + &drive("b", "")
        + "[[set]]\nname = \"both\"\nmembers = [\"a\", \"b\"]\n"
        + &target_paths()
        + &path("s", "both", "");
    let scenario = scenario.replace("kind = \"pblk\"", "drive = \"oc\"\nkind = \"pblk\"");
    scenario.replace("kind = \"kv\"", "drive = \"oc\"\nkind = \"kv\"")
}

/// Two drives that are a set of targets, as `pblk` of each.
fn set_of_targets() -> String {
    let target = |drive: &str| {
        format!(
            "[[target]]\nname = \"on-{drive}\"\ndrive = \"{drive}\"\nkind = \"pblk\"\npus = \"0-15\"\n"
        )
    };
    let open = "personality = \"open-channel\"\n";
    drive("a", open)
        + &drive("b", open)
        + &target("a")
        + &target("b")
        + "[[set]]\nname = \"both\"\nmembers = [\"on-a\", \"on-b\"]\n"
        + &path("s", "both", "queue_model = \"sq\"\n")
}

fn refused(dir: &Path, scenario: &str, args: &[&str]) -> String {
    let file = dir.join("scenario.toml");
    std::fs::write(&file, scenario).unwrap();
    let Output { status, stderr, .. } = Command::new("timeout")
        .args(["60", env!("CARGO_BIN_EXE_sluice"), "serve"])
        .arg(file)
        .args(args)
        .output()
        .unwrap();
    let told = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{told}");
    told
}

fn errors_of(unit: &Value) -> u64 {
    ["errors_device", "errors_refused", "clients_dropped"]
        .iter()
        .map(|key| number(unit, &format!("/nbd/{key}")))
        .sum()
}

#[test]
fn a_set_is_served_and_keeps_what_was_written() {
    for (scenario, threads) in [
        (set(""), "1"),
        (set("queue_model = \"mq\"\ncores = 4\n"), "2"),
        (set("queue_model = \"mq\"\ncores = 2\n"), "1"),
        (set_of_targets(), "2"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let job = ["--rw=randwrite", "--bs=32k", "--verify=crc32c", "--size=48m", "--randseed=5"];
        let write = [&job[..], &["--do_verify=0", "--fsync=64", "--iodepth=8"]].concat();
        let threads = ["--threads", threads];
        let server = Server::launch(dir.path(), &scenario, &threads).wait_ready();
        fio_ok(&server, &write);
        let all = server.stop_all();
        let (path, drives) = (&all["paths"][0], &all["drives"]);
        assert_eq!((&path["name"], &path["drives"]), (&"s".into(), &serde_json::json!(["a", "b"])));
        assert_eq!(errors_of(path), 0, "{path:#}");
        assert_eq!(number(path, "/nbd/bytes_written"), 48 << 20);
        for drive in drives.as_array().unwrap() {
            let written = number(drive, "/commands/bytes_written");
            assert!(written >= 24 << 20, "every member has half: {written}");
        }
        let server = Server::launch(dir.path(), &scenario, &threads).wait_ready();
        fio_ok(&server, &[&job[..], &["--verify_only"]].concat());
        server.stop_all();
    }
}

/// A set may have several targets of one drive, which is then one drive in the statistics.
#[test]
fn a_set_of_targets_on_one_drive_counts_it_once() {
    let scenario = targets()
        + "[[set]]\nname = \"both\"\nmembers = [\"left\", \"right\"]\n"
        + &path("s", "both", "queue_model = \"mq\"\n");
    for threads in ["1", "2"] {
        let dir = tempfile::tempdir().unwrap();
        let threads = ["--threads", threads];
        let job = ["--rw=randwrite", "--bs=64k", "--verify=crc32c", "--size=24m", "--randseed=3"];
        let server = Server::launch(dir.path(), &scenario, &threads).wait_ready();
        fio_ok(&server, &[&job[..], &["--do_verify=0"]].concat());
        let all = server.stop_all();
        assert_eq!(all["paths"][0]["drives"], serde_json::json!(["oc"]));
        assert_eq!(all["drives"].as_array().unwrap().len(), 1);
        let written = number(&all["paths"][0], "/ftl/host_sectors_written");
        assert_eq!(written, (24 << 20) / SECTOR as u64, "both targets together");
        let server = Server::launch(dir.path(), &scenario, &threads).wait_ready();
        fio_ok(&server, &[&job[..], &["--verify_only"]].concat());
        server.stop_all();
    }
}

/// The drives at one AHCI controller have rows of their own, and each path names its drives only.
#[test]
fn sata_drives_at_one_controller_are_rows_by_their_names() {
    let sata =
        |name: &str| format!("[[drive]]\nname = \"{name}\"\nkind = \"ahci\"\ncapacity = \"64M\"\n");
    let drives = sata("a") + &sata("b") + &sata("c") + &sata("d");
    let scenario = drives
        + "[[set]]\nname = \"both\"\nmembers = [\"c\", \"b\"]\nstripe = \"16K\"\n"
        + &path("one", "a", "")
        + &path("s", "both", "")
        + &path("idle", "d", "");
    for threads in ["1", "2"] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::launch(dir.path(), &scenario, &["--threads", threads]).wait_ready();
        for (name, mib) in [("one", 3), ("s", 8)] {
            let size = format!("--size={mib}m");
            fio_ok_at(&server, name, &["--rw=write", "--bs=64k", "--iodepth=4", &size]);
        }
        let all = server.stop_all();
        let rows = all["drives"].as_array().unwrap().iter();
        let bytes = |row| number(row, "/commands/bytes_written");
        let written = rows.map(|row| (row["name"].as_str().unwrap(), bytes(row)));
        let expected = [("a", 3u64 << 20), ("b", 4 << 20), ("c", 4 << 20), ("d", 0)];
        assert!(written.eq(expected), "{all:#}");
        let of = |path: usize| &all["paths"][path]["drives"];
        for (path, drives) in [&["a"][..], &["b", "c"], &["d"]].iter().enumerate() {
            assert_eq!(*of(path), serde_json::json!(drives), "{all:#}");
        }
    }
}

/// A flush of one core's queue reaches every member of a set.
#[test]
fn killed_under_load_a_set_has_everything_that_was_flushed() {
    exports_end_under_load(&set(""), &[""], 1, Signal::KILL);
    let many = "queue_model = \"mq\"\ncores = 4\n";
    exports_end_under_load(&set(many), &[""], 4, Signal::KILL);
}

#[test]
fn killed_under_load_a_set_of_targets_has_everything_that_was_flushed() {
    exports_end_under_load(&set_of_targets(), &["s"], 2, Signal::KILL);
}

#[test]
fn killed_under_load_every_path_has_everything_that_was_flushed() {
    let scenario = targets() + &target_paths();
    exports_end_under_load(&scenario, &["l", "r"], 2, Signal::KILL);
    exports_end_under_load(&scenario, &["l", "r"], 1, Signal::INT);
}

/// Two targets of one drive and a set, at one endpoint: fio verifies on all at the same time.
#[test]
fn every_path_is_an_export_by_its_name() {
    let scenario = targets_and_set();
    for threads in ["1", "2"] {
        let dir = tempfile::tempdir().unwrap();
        let admin = dir.path().join("admin.sock");
        let extra = ["--threads", threads, "--admin-socket", admin.to_str().unwrap()];
        let server = Server::launch(dir.path(), &scenario, &extra).wait_ready();
        let names = ["l", "r", "s"];
        std::thread::scope(|scope| {
            for (seed, name) in (1..).zip(names) {
                let server = &server;
                scope.spawn(move || {
                    let seed = format!("--randseed={seed}");
                    let job = "--rw=randrw --bs=4k --iodepth=8 --size=12m --verify=crc32c \
                               --verify_fatal=1 --fsync=256";
                    let job: Vec<&str> = job.split_whitespace().chain([seed.as_str()]).collect();
                    fio_ok_at(server, name, &job);
                });
            }
        });
        // Equal offsets of the exports have different data.
        let mut clients = names.map(|name| NbdClient::named(&server.socket, name));
        for (number, client) in (1..).zip(&mut clients) {
            client.write(0, &sector(0, number)).unwrap();
        }
        for (number, client) in (1..).zip(&mut clients) {
            client.flush().unwrap();
            assert_eq!(client.read(0, SECTOR as u32).unwrap(), sector(0, number));
        }
        // The default export is the first, and keys are no export.
        let mut default = NbdClient::simple(&server.socket);
        assert_eq!(default.read(0, SECTOR as u32).unwrap(), sector(0, 1));
        let mut keys = NbdClient::greeted(&server.socket);
        let go = keys.option(7, &nbd_client::info_data("k", &[3]));
        assert_ne!(go.last(), Some(&(nbd_client::ACK, vec![])));
        let told = server.stderr();
        assert!(told.contains("path k is not served over NBD: target store is a kv"), "{told}");
        let listed = server.stdout();
        assert!(listed.contains("serving r: ") && listed.contains(", export r"), "{listed}");
        // `sluice admin stats` names each path.
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.args(["admin", "--socket"]).arg(&admin).args(["stats", "--json"]);
        let stats = String::from_utf8(succeed(&mut command).stdout).unwrap();
        let stats: Vec<Value> =
            stats.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of: Vec<_> = stats.iter().map(|one| one["drive"].as_str().unwrap()).collect();
        assert_eq!(of, names);
        assert!(stats.iter().all(|one| one["writes"].as_u64() > Some(1000)), "{stats:?}");
        drop((clients, default, keys));
        let all = server.stop_all();
        let paths = all["paths"].as_array().unwrap();
        assert_eq!(paths.len(), 3);
        for (path, drives) in paths.iter().zip([&["oc"][..], &["oc"], &["a", "b"]]) {
            assert_eq!(path["drives"], serde_json::json!(drives));
            assert!(
                number(path, "/nbd/writes") > 1000
                    && number(path, "/ftl/host_sectors_written") > 1000
            );
            assert_eq!(errors_of(path), 0, "{path:#}");
        }
        let drives: Vec<_> = all["drives"].as_array().unwrap().iter().map(|d| &d["name"]).collect();
        assert_eq!(drives, ["oc", "a", "b"]);
    }
}

/// Two paths over one drive are two hosts of it: both see its sectors, and its FTL is counted once.
#[test]
fn two_paths_over_a_drive_share_its_sectors() {
    let buffer = "write_buffer = { kind = \"volatile\", size = \"2M\" }\n";
    let scenario = drive("d", buffer)
        + &path("one", "d", "")
        + &path("two", "d", "queue_model = \"mq\"\ncores = 2\n");
    for threads in ["1", "2"] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::launch(dir.path(), &scenario, &["--threads", threads]).wait_ready();
        let mut one = NbdClient::named(&server.socket, "one");
        let mut two = NbdClient::named(&server.socket, "two");
        for lba in 0..200u64 {
            let (writer, reader) =
                if lba % 2 == 0 { (&mut one, &mut two) } else { (&mut two, &mut one) };
            writer.write(lba * SECTOR as u64, &sector(lba, lba + 1)).unwrap();
            let read = reader.read(lba * SECTOR as u64, SECTOR as u32).unwrap();
            assert_eq!(read, sector(lba, lba + 1));
        }
        // A flush by either covers what was answered to both.
        two.flush().unwrap();
        drop((one, two));
        if threads == "1" {
            server.kill();
        } else {
            let all = server.stop_all();
            assert!(all["paths"][0]["ftl"].is_null(), "{}", all["paths"][0]);
            let written = number(&all["drives"][0], "/ftl/host_sectors_written");
            assert!(written >= 200, "{written}");
        }
        let server = Server::launch(dir.path(), &scenario, &[]).wait_ready();
        let mut reader = NbdClient::named(&server.socket, "one");
        for lba in 0..200u64 {
            let read = reader.read(lba * SECTOR as u64, SECTOR as u32).unwrap();
            assert_eq!(read, sector(lba, lba + 1), "after {threads}");
        }
        drop(reader);
        server.stop_all();
    }
}

/// `[[export]]` names and addresses: two on one socket, one of them also elsewhere, one read-only;
/// a path without a section is not served.
#[test]
fn exports_of_a_scenario_have_their_addresses() {
    let exports = "[[export]]\npath = \"l\"\nnbd = \"unix:nbd.sock\"\nname = \"fast\"\n\
        [[export]]\npath = \"s\"\nnbd = \"unix:nbd.sock\"\nread_only = true\n\
        [[export]]\npath = \"l\"\nnbd = \"unix:other.sock\"\nname = \"fast\"\n";
    let scenario = targets_and_set() + exports;
    let dir = tempfile::tempdir().unwrap();
    let server = Server::launch_exports(dir.path(), &scenario, "", &[]).wait_ready();
    let other = dir.path().join("other.sock");
    let mut fast = NbdClient::named(&server.socket, "fast");
    fast.write(0, &sector(0, 7)).unwrap();
    assert_eq!(NbdClient::named(&other, "fast").read(0, 4096).unwrap(), sector(0, 7));
    let mut set = NbdClient::named(&server.socket, "s");
    assert_eq!(set.write(0, &sector(0, 1)), Err(nbd_client::EPERM));
    assert_eq!(set.read(0, 4096).unwrap(), vec![0; 4096]);
    for (socket, name) in [(&server.socket, "r"), (&server.socket, "l"), (&other, "s")] {
        let mut client = NbdClient::greeted(socket);
        let go = client.option(7, &nbd_client::info_data(name, &[3]));
        assert_ne!(go.last(), Some(&(nbd_client::ACK, vec![])), "{name}");
    }
    assert!(server.stdout().contains(", export s, read-only\n"), "{}", server.stdout());
    drop((fast, set));
    let all = server.stop_all();
    let names: Vec<_> = all["paths"].as_array().unwrap().iter().map(|path| &path["name"]).collect();
    assert_eq!(names, ["l", "s"]);
    assert!(!other.exists());
    // One path alone, with its sections only.
    let server = Server::launch_exports(dir.path(), &scenario, "#l", &[]).wait_ready();
    assert_eq!(NbdClient::named(&other, "fast").read(0, 4096).unwrap(), sector(0, 7));
    server.stop();
}

/// Without named paths, an export names a drive; the first section's is the default.
#[test]
fn drives_without_paths_have_exports() {
    let scenario = drive("d", "") + &drive("e", "") + &drive("unserved", "");
    let scenario = scenario
        + "[[export]]\npath = \"e\"\nname = \"second drive\"\nnbd = \"unix:nbd.sock\"\n\
           [[export]]\npath = \"d\"\nnbd = \"unix:nbd.sock\"\n";
    let dir = tempfile::tempdir().unwrap();
    let server = Server::launch_exports(dir.path(), &scenario, "", &[]).wait_ready();
    let names = ["second drive", "d"];
    for (number, name) in (1..).zip(names) {
        let mut client = NbdClient::named(&server.socket, name);
        client.write_with(nbd_client::FUA, 0, &sector(0, number)).unwrap();
        client.disconnect();
    }
    let mut default = NbdClient::simple(&server.socket);
    assert_eq!(default.read(0, SECTOR as u32).unwrap(), sector(0, 1));
    drop(default);
    let all = server.stop_all();
    assert!(all["paths"].is_null(), "{all:#}");
    for (drive, (name, writes)) in
        all["drives"].as_array().unwrap().iter().zip([("d", 1), ("e", 1)])
    {
        assert_eq!((&drive["name"], number(drive, "/nbd/writes")), (&name.into(), writes));
    }
    assert!(!dir.path().join("unserved.img").exists(), "it is not powered on");
    // The data are those of the drives.
    let alone = drive("d", "").replace("[[drive]]", "[drive]");
    let server = Server::start(dir.path(), &alone);
    let mut client = NbdClient::simple(&server.socket);
    assert_eq!(client.read(0, SECTOR as u32).unwrap(), sector(0, 2));
    drop(client);
    server.stop();
}

/// Drives of a socket export give queue pairs, beside NBD for another path.
#[test]
fn a_socket_export_gives_queue_pairs() {
    let scenario = drive("d", "") + &drive("e", "") + &path("p", "d", "") + &path("q", "e", "");
    let scenario = scenario
        + "[[export]]\npath = \"p\"\nnbd = \"unix:nbd.sock\"\n\
           [[export]]\npath = \"q\"\nsocket = \"queues.sock\"\n";
    let dir = tempfile::tempdir().unwrap();
    let server = Server::launch_exports(dir.path(), &scenario, "", &[]).wait_ready();
    let socket = dir.path().join("queues.sock");
    let start = std::time::Instant::now();
    while !server.stdout().contains("sharing e/rest") {
        assert!(start.elapsed().as_secs() < 20, "{}", server.stderr());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let device = user_io::IoDevice::connect(&socket, None).unwrap();
    let queue = device.create_queue(user_io::QueueConfig::default()).unwrap();
    let mut handle = user_io::Handle::new(&device, queue).unwrap();
    let buffer = device.buffer(SECTOR).unwrap();
    buffer.write(0, &sector(3, 9));
    handle.write(3, &buffer, false).unwrap();
    handle.flush().unwrap();
    // The other drive is a drive of its own.
    let mut client = NbdClient::named(&server.socket, "p");
    assert_eq!(client.read(3 * SECTOR as u64, SECTOR as u32).unwrap(), vec![0; SECTOR]);
    drop((handle, buffer, device, client));
    let all = server.stop_all();
    let drives: Vec<_> = all["drives"].as_array().unwrap().iter().map(|d| &d["name"]).collect();
    assert_eq!(drives, ["d", "e"]);
}

#[test]
fn a_composition_that_cannot_be_served_is_told_with_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let unix = format!("unix:{}", dir.path().join("s").display());
    let at = ["--nbd", unix.as_str()];
    let two = targets() + &target_paths();
    let exported = two.clone() + "[[export]]\npath = \"l\"\nnbd = \"unix:nbd.sock\"\n";
    let remote = two.clone() + "[[export]]\npath = \"l\"\nnbd = \"tcp:0.0.0.0:0\"\n";
    let kv = targets() + &path("k", "store", "");
    let pair = drive("d", "") + &drive("e", "") + &path("p", "d", "") + &path("q", "e", "");
    let both = pair.clone()
        + "[[export]]\npath = \"p\"\nnbd = \"unix:n\"\n[[export]]\npath = \"p\"\nsocket = \"q\"\n";
    let socket = dir.path().join("q").display().to_string();
    let many: String = (0..257).map(|i| path(&format!("p{i}"), "d", "")).collect();
    let many = drive("d", "controller.max_io_queues = 1000\n") + &many;
    let taken = dir.path().join("taken");
    std::fs::write(&taken, "no socket").unwrap();
    let bound = two.clone() + "[[export]]\npath = \"l\"\nnbd = \"unix:taken\"\n";
    for (scenario, args, says) in [
        (&two, &[][..], "nothing to serve at"),
        (&exported, &at, "[[export]]), and so does --nbd"),
        (&exported, &["--socket", &socket], "and so does --socket"),
        (&kv, &at, "target store is a kv, which has no logical blocks"),
        (&remote, &[], "loopback"),
        (&both, &[], "drive d cannot be shared at a socket: path p has all of it"),
        (&pair, &[&at[..], &["--socket", &socket]].concat(), "path p has all of it"),
        (&two, &["--socket", &socket], "target left has all of it"),
        (&pair, &["--socket", &socket, "--allow-remote"], "nothing is served over NBD"),
        (&many, &at, "257 paths would be served over NBD, and one process serves at most 256"),
        (&two, &[&at[..], &at].concat(), "is given twice"),
        (
            &(exported.clone() + "[[export]]\npath = \"l\"\nnbd = \"unix:nbd.sock\"\n"),
            &[],
            "two exports at unix:",
        ),
    ] {
        let told = refused(dir.path(), scenario, args);
        assert!(told.contains(says), "{says}: {told}");
    }
    // A file that is no socket is a failure of the machine, not of the request.
    let file = dir.path().join("scenario.toml");
    std::fs::write(&file, bound).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    let output = command.arg("serve").arg(&file).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("exists and is not a socket"), "{told}");
    assert_eq!(std::fs::read_to_string(&taken).unwrap(), "no socket");
}

/// A client that ends a connection to one export leaves the others of the endpoint alone.
#[test]
fn exports_at_one_endpoint_end_together_and_cleanly() {
    let scenario = targets() + &target_paths();
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &scenario);
    let mut writers = ["l", "r"].map(|name| Writer::connect_to(&server.socket, name).unwrap());
    for lba in 0..100u64 {
        for (number, writer) in (1..).zip(&mut writers) {
            let data = sector(lba, number);
            writer.ask(nbd_client::WRITE, 0, lba * SECTOR as u64, &data).unwrap();
        }
    }
    // No flush: a clean end keeps everything that was answered.
    server.stop_all();
    drop(writers);
    let server = Server::start(dir.path(), &scenario);
    for (number, name) in (1..).zip(["l", "r"]) {
        let mut client = NbdClient::named(&server.socket, name);
        for lba in 0..100u64 {
            let read = client.read(lba * SECTOR as u64, SECTOR as u32).unwrap();
            assert_eq!(read, sector(lba, number), "{name}");
        }
    }
    server.stop_all();
}
