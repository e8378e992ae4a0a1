//! `sluice serve` as a process: the contents of the drive after a clean shutdown and after a kill;
//! images of other drives; messages and exit codes.

// guarantee: B-44, D-47, D-52, D-53

use crate::served;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use served::numbered::{SECTOR, Writer, ends_under_load, numbers, sector, volatile};
use served::*;
use testkit::nbd_client;

#[test]
fn killed_under_load_a_drive_has_everything_that_was_flushed() {
    ends_under_load(&volatile(), 1, Signal::KILL);
}

#[test]
fn killed_under_load_pblk_has_everything_that_was_flushed() {
    ends_under_load(&pblk(), 1, Signal::KILL);
}

#[test]
fn killed_under_load_shards_have_everything_that_was_flushed() {
    ends_under_load(&shards(), 1, Signal::KILL);
}

#[test]
fn killed_under_load_shards_beneath_a_block_layer_have_everything_that_was_flushed() {
    ends_under_load(&format!("{}[path]\nqueue_model = \"mq\"\n", shards()), 1, Signal::KILL);
}

#[test]
fn interrupted_under_load_a_drive_has_everything_that_was_answered() {
    ends_under_load(&volatile(), 1, Signal::INT);
}

#[test]
fn interrupted_under_load_pblk_has_everything_that_was_answered() {
    ends_under_load(&pblk(), 1, Signal::INT);
}

#[test]
fn a_restart_finds_the_data() {
    for scenario in [DRIVE.to_owned(), pblk(), shards()] {
        let scenario = in_file(&scenario);
        let dir = tempfile::tempdir().unwrap();
        let job = ["--rw=randwrite", "--bs=4k", "--verify=crc32c", "--randseed=7", "--size=32m"];
        let server = Server::start(dir.path(), &scenario);
        fio_ok(&server, &[&job[..], &["--do_verify=0"]].concat());
        server.stop();
        let server = Server::start(dir.path(), &scenario);
        fio_ok(&server, &[&job[..], &["--verify_only"]].concat());
        server.stop();
    }
}

/// Requests pass through the block layer of the scenario, whose statistics the server reports.
#[test]
fn the_block_layer_stands_behind_the_server() {
    for path in [
        "queue_model = \"mq\"\n",
        "queue_model = \"sq\"\nscheduler = \"deadline\"\n",
        "queue_model = \"mq\"\nscheduler = \"fair\"\nqueue_depth = 8\n",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let scenario = format!("{}[path]\n{path}", in_file(DRIVE));
        for threads in ["1", "2"] {
            let server = Server::launch(dir.path(), &scenario, &["--threads", threads]);
            let server = server.wait_ready();
            let mut writer = Writer::connect(&server.socket).unwrap();
            for lba in 0..200 {
                let fua = if lba % 3 == 0 { nbd_client::FUA } else { 0 };
                let offset = lba * SECTOR as u64;
                writer.ask(nbd_client::WRITE, fua, offset, &sector(lba, lba + 1)).unwrap();
            }
            writer.ask(nbd_client::FLUSH, 0, 0, &[]).unwrap();
            let found = numbers(&server);
            assert!((0..200).all(|lba| found[lba as usize] == lba + 1), "{path} {threads}");
            drop(writer);
            let drive = server.stop();
            let layer = &drive["block_layer"];
            assert!(path.contains(layer["kind"].as_str().unwrap()), "{layer}");
            assert!(number(layer, "/dispatch_queues/0/issued") >= 200, "{layer}");
            assert_eq!(number(layer, "/dispatch_queues/0/timeouts"), 0);
        }
        // The image is that of the drive, and opens without a block layer.
        let server = Server::start(dir.path(), &in_file(DRIVE));
        assert_eq!(numbers(&server)[199], 200);
        assert!(server.stop()["block_layer"].is_null());
    }
}

fn refused(dir: &Path, scenario: &str, nbd: &str) -> (i32, String) {
    let path = dir.join("scenario.toml");
    std::fs::write(&path, scenario).unwrap();
    let Output { status, stderr, .. } = Command::new("timeout")
        .args(["60", env!("CARGO_BIN_EXE_sluice"), "serve"])
        .arg(path)
        .args(["--nbd", nbd])
        .output()
        .unwrap();
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn an_image_that_is_not_this_drives_is_refused_unharmed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &in_file(DRIVE));
    fio_ok(&server, &["--rw=write", "--bs=64k", "--size=4m"]);
    server.stop();
    let image = dir.path().join("drive.img");
    let before = std::fs::read(&image).unwrap();
    let nbd = format!("unix:{}", dir.path().join("s").display());
    let other = in_file(DRIVE).replace("chunks = 24", "chunks = 32");
    let (code, told) = refused(dir.path(), &other, &nbd);
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("drive.img"), "{told}");
    assert!(std::fs::read(&image).unwrap() == before, "a refused image must not change");
    // An image of another version, and a file that is not an image.
    for (offset, byte) in [(8, 0x7f), (0, b'?')] {
        let mut damaged = before.clone();
        damaged[offset] = byte;
        std::fs::write(&image, &damaged).unwrap();
        let (code, told) = refused(dir.path(), &in_file(DRIVE), &nbd);
        assert_eq!(code, 1, "{told}");
        assert!(std::fs::read(&image).unwrap() == damaged, "a refused image must not change");
    }
    std::fs::write(&image, &before).unwrap();
    Server::start(dir.path(), &in_file(DRIVE)).stop();
}

#[test]
fn an_image_with_other_shards_is_refused_unharmed() {
    for (made, other, says) in [
        (shards(), pblk(), "has 2 shards, not 1: set target.shards = 2"),
        (pblk(), shards(), "has 1 shard, not 2: set target.shards = 1"),
        (
            shards(),
            shards().replace("shards = 2", "shards = 4"),
            "has 2 shards, not 4: set target.shards = 2",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), &in_file(&made));
        fio_ok(&server, &["--rw=write", "--bs=64k", "--size=4m"]);
        server.stop();
        let image = dir.path().join("drive.img");
        let before = std::fs::read(&image).unwrap();
        let nbd = format!("unix:{}", dir.path().join("s").display());
        let (code, told) = refused(dir.path(), &in_file(&other), &nbd);
        let words = told.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>();
        assert_eq!(code, 2, "{told}");
        assert!(words.join(" ").contains(&format!("the image of drive drive0 {says}")), "{told}");
        assert!(std::fs::read(&image).unwrap() == before, "a refused image must not change");
        Server::start(dir.path(), &in_file(&made)).stop();
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let slow = DRIVE.replace("program = \"30us\"", "program = \"100s\"");
    let mut server = Server::start(dir.path(), &slow);
    std::thread::scope(|scope| {
        let mut writer = Writer::connect(&server.socket).unwrap();
        scope.spawn(move || writer.ask(nbd_client::WRITE, 0, 0, &sector(0, 1)));
        std::thread::sleep(Duration::from_millis(300));
        server.signal(Signal::INT);
        let start = std::time::Instant::now();
        while !server.stderr().contains("finishing what is under way") {
            assert!(start.elapsed() < Duration::from_secs(20), "{}", server.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(200));
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(1));
    });
    assert_eq!(server.stdout().lines().count(), 1, "an aborted shutdown must not print a summary");
}

#[test]
fn an_image_and_a_socket_have_one_server() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &in_file(DRIVE));
    let nbd = format!("unix:{}", dir.path().join("other.sock").display());
    let (code, told) = refused(dir.path(), &in_file(DRIVE), &nbd);
    assert_eq!(code, 1, "{told}");
    let (code, told) = refused(dir.path(), DRIVE, &format!("unix:{}", server.socket.display()));
    assert_eq!(code, 1);
    assert!(told.contains("already serves"), "{told}");
    fio_ok(&server, &["--rw=randwrite", "--bs=4k", "--size=4m", "--verify=crc32c"]);
    server.stop();
}

#[test]
fn what_cannot_be_served_is_told_with_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let s = format!("unix:{}", dir.path().join("s").display());
    let open = DRIVE.to_owned() + "personality = \"open-channel\"\n";
    let ppa = open.clone()
        + "[[target]]\nname = \"t\"\nkind = \"ppa\"\npus = \"0\"\n\
        [[path]]\nname = \"p\"\nover = \"t\"\n";
    let at = DRIVE.to_owned() + "[[at]]\ntime = \"1s\"\nvictim_policy = \"fifo\"\n";
    for (scenario, nbd, says) in [
        (open.as_str(), s.as_str(), "no logical blocks for block requests"),
        (&ppa, &s, "target t is a ppa, which has no logical blocks"),
        (&at, &s, "is for an instant of virtual time"),
        ("[drive]\npreset = \"no-such\"\n", &s, "scenario.toml:2:10"),
        (DRIVE, "tcp:localhost", "HOST:PORT"),
        (DRIVE, "tcp:0.0.0.0:0", "loopback"),
        (DRIVE, &format!("unix:/{}", "a".repeat(120)), "1 to 107 bytes"),
    ] {
        let (code, told) = refused(dir.path(), scenario, nbd);
        assert_eq!(code, 2, "{told}");
        assert!(told.contains(says), "`{says}` is not in {told}");
    }
    let missing = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["serve", "nowhere.toml", "--nbd", &s])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("nowhere.toml"));
}

#[test]
fn several_drives_are_served_side_by_side_on_either_number_of_threads() {
    for threads in ["1", "2"] {
        let dir = tempfile::tempdir().unwrap();
        let two = "[[drive]]\nname = \"managed\"\npreset = \"femu-default\"\n\
             geometry = { channels = 1, chunks = 16, pages = 32 }\n\
             [[drive]]\nname = \"hosted\"\npreset = \"femu-default\"\n\
             personality = \"open-channel\"\ntarget.kind = \"pblk\"\n\
             geometry = { channels = 1, chunks = 16, pages = 32 }\n\
             [precondition]\nfill = \"sequential\"\n";
        let mut server = Server::launch(
            dir.path(),
            two,
            &["--threads", threads, "--stats", "1", "--nbd", "tcp:127.0.0.1:0"],
        );
        let start = std::time::Instant::now();
        while server.stdout().lines().count() < 4 {
            assert!(start.elapsed() < Duration::from_secs(60), "{}", server.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        let base = server.socket.clone();
        for name in ["managed", "hosted"] {
            server.socket = format!("{}.{name}", base.display()).into();
            let job = ["--rw=randwrite", "--bs=4k", "--verify=crc32c", "--iodepth=8"];
            fio_ok(&server, &[&job[..], &["--size=4m"]].concat());
        }
        let wait = std::time::Instant::now();
        while !server.stderr().contains("IOPS") {
            assert!(
                wait.elapsed() < Duration::from_secs(20),
                "the server must print a status line every second"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        let line = server.stderr();
        assert!(line.contains("late") && line.contains("free lines"), "{line}");
        assert!(line.contains("preconditioning managed"), "{line}");
        let first = server.stop();
        // Preconditioning does not count as host writes.
        assert_eq!(number(&first, "/ftl/host_sectors_written"), 1024);
        let stdout = std::fs::read_to_string(dir.path().join("stdout")).unwrap();
        assert!(stdout.contains("managed: served for") && stdout.contains("hosted: served for"));
    }
}

#[test]
fn an_emulator_that_cannot_keep_up_says_so() {
    let dir = tempfile::tempdir().unwrap();
    // A process on a general-purpose system cannot keep up with a latency of 1 ns.
    let server = Server::start(
        dir.path(),
        "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\nnull.latency = \"1ns\"\n",
    );
    assert!(server.stderr().contains("keeps no data"), "{}", server.stderr());
    fio_ok(&server, &["--rw=randread", "--bs=4k", "--iodepth=4", "--size=16m"]);
    let drive = server.stop();
    assert_eq!(drive["lateness_ns"]["kept_up"], false);
    assert_eq!(
        (&drive["lateness_ns"]["media_time_min"], &drive["lateness_ns"]["limit"]),
        (&1.into(), &0.into())
    );
    let stdout = std::fs::read_to_string(dir.path().join("stdout")).unwrap();
    assert!(stdout.contains("could not keep up"), "{stdout}");
    assert!(stdout.contains("from doorbell to fetch, of"), "{stdout}");
}
