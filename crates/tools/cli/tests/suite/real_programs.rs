//! `sluice serve` with fio, nbdinfo, nbdcopy, qemu-img, mkfs.ext4 and e2fsck, during garbage
//! collection, and with hostile clients at the same time.

use crate::served;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use served::*;
use testkit::nbd_client::{self, NbdClient};

/// Overwrites a drive several times with fio, which verifies every block, and checks that garbage
/// was collected.
fn fio_verifies_while_garbage_is_collected(scenario: &str) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), scenario);
    let verify = ["--verify=crc32c", "--verify_fatal=1", "--iodepth=16"];
    let passes: [&[&str]; 6] = [
        &["--rw=write", "--bs=64k"],
        // Every pass has another order; with equal orders, whole lines would become invalid.
        &["--rw=randwrite", "--bs=4k", "--randseed=1"],
        &["--rw=randwrite", "--bsrange=4k-64k", "--bs_unaligned=0", "--randseed=2"],
        &["--rw=randrw", "--rwmixread=30", "--bs=4k", "--randseed=3"],
        &["--rw=randwrite", "--bs=4k", "--randseed=4", "--fsync=512"],
        &["--rw=rw", "--rwmixread=40", "--bs=32k"],
    ];
    for pass in passes {
        fio_ok(&server, &[pass, &verify].concat());
    }
    // Trims among writes; then reads of trimmed blocks, which must be zeros.
    fio_ok(&server, &["--rw=randtrimwrite", "--bs=4k", "--iodepth=8", "--io_size=16m"]);
    let trims = ["--rw=trim", "--bs=1m", "--size=8m", "--iodepth=4"];
    fio_ok(&server, &trims);
    let zeros = ["-r", "-f", "raw", "-c", "read -P 0 0 8M"];
    let out = succeed(program("qemu-io", "qemu-utils").args(zeros).arg(server.uri("")));
    assert!(!String::from_utf8_lossy(&out.stdout).contains("failed"), "{out:?}");
    fio_ok(&server, &[&["--rw=randwrite", "--bs=4k", "--randseed=5"], &verify[..]].concat());
    let drive = server.stop();
    let capacity = number(&drive, "/capacity/logical_bytes");
    let written = number(&drive, "/ftl/host_sectors_written") * 4096;
    assert!(written >= 3 * capacity, "{written} of {capacity} bytes");
    assert!(number(&drive, "/gc/gc_sectors_relocated") > 1000, "{:#}", drive["gc"]);
    assert!(number(&drive, "/gc/erases") > 100, "{:#}", drive["gc"]);
    assert!(drive["write_amplification"].as_f64().unwrap() > 1.0);
    assert!(number(&drive, "/nbd/trims") > 0 && number(&drive, "/nbd/flushes") > 0);
    assert_eq!(number(&drive, "/nbd/errors_device") + number(&drive, "/nbd/errors_refused"), 0);
    assert!(number(&drive, "/lateness_ns/count") > 10_000);
}

#[test]
fn fio_verifies_a_drive_that_collects_its_garbage() {
    fio_verifies_while_garbage_is_collected(DRIVE);
}

#[test]
fn fio_verifies_pblk_while_it_collects_garbage() {
    fio_verifies_while_garbage_is_collected(&pblk());
}

/// Creates an ext4 image of `bytes` with files in it.
fn file_system(dir: &std::path::Path, bytes: u64) -> std::path::PathBuf {
    let content = dir.join("content");
    std::fs::create_dir(&content).unwrap();
    for i in 0..20u32 {
        let data: Vec<u8> = (0..100_000 + i * 5000).flat_map(|n| (n * i).to_le_bytes()).collect();
        std::fs::write(content.join(format!("file{i}")), data).unwrap();
    }
    let image = dir.join("in.img");
    std::fs::File::create(&image).unwrap().set_len(bytes).unwrap();
    let mut mkfs = program("mkfs.ext4", "e2fsprogs");
    succeed(mkfs.args(["-q", "-F", "-b", "4096", "-d"]).arg(&content).arg(&image));
    image
}

#[test]
fn nbdcopy_and_qemu_img_copy_a_file_system_in_and_out() {
    for scenario in [DRIVE.to_owned(), small_blocks(), pblk()] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), &scenario);
        let info = succeed(program("nbdinfo", "libnbd-bin").args(["--json", &server.uri("")]));
        let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
        let bytes = number(&info, "/exports/0/export-size");
        let image = file_system(dir.path(), bytes);
        let before = std::fs::read(&image).unwrap();
        let uri = server.uri("");
        succeed(program("nbdcopy", "libnbd-bin").arg("--flush").arg(&image).arg(&uri));
        let out = dir.path().join("out.img");
        succeed(program("nbdcopy", "libnbd-bin").arg(&uri).arg(&out));
        assert!(std::fs::read(&out).unwrap() == before, "nbdcopy must return the written bytes");
        succeed(program("e2fsck", "e2fsprogs").args(["-f", "-n"]).arg(&out));
        // Overwrites it in another order, with holes as trims; -n: the export exists.
        let convert = ["convert", "-n", "-W", "-f", "raw", "-O", "raw"];
        succeed(program("qemu-img", "qemu-utils").args(convert).arg(&image).arg(&uri));
        let back = dir.path().join("back.img");
        let convert = ["convert", "-f", "raw", "-O", "raw"];
        succeed(program("qemu-img", "qemu-utils").args(convert).arg(&uri).arg(&back));
        assert!(std::fs::read(&back).unwrap() == before, "qemu-img must return the written bytes");
        server.stop();
    }
}

// guarantee: B-79

/// A client that does not ask for block sizes may use a drive with blocks of 512 bytes: it writes a
/// file system with requests of odd numbers of blocks, and finds it whole.
#[test]
fn a_client_without_block_sizes_copies_a_file_system_to_small_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), DRIVE);
    let mut refused = NbdClient::greeted(&server.socket);
    let go = refused.option(7, &nbd_client::info_data("", &[]));
    assert_eq!(go.last().unwrap().0, nbd_client::ERR_BLOCK_SIZE_REQD, "sectors of 4 KiB");
    server.stop();
    let server = Server::start(dir.path(), &small_blocks());
    let mut client = NbdClient::greeted(&server.socket);
    let go = client.option(7, &nbd_client::info_data("", &[]));
    assert_eq!(go.last(), Some(&(nbd_client::ACK, vec![])), "blocks of 512 bytes");
    let image = file_system(dir.path(), 24 << 20);
    let before = std::fs::read(&image).unwrap();
    let mut at = 0;
    for blocks in [1, 3, 8, 13, 64, 127].into_iter().cycle() {
        let len = (blocks * 512).min(before.len() - at);
        let part = &before[at..at + len];
        if part.iter().all(|byte| *byte == 0) {
            let zeroes = (nbd_client::WRITE_ZEROES, at as u64, len as u32);
            client.command(zeroes.0, 0, zeroes.1, zeroes.2).unwrap();
        } else {
            client.write(at as u64, part).unwrap();
        }
        at += len;
        if at == before.len() {
            break;
        }
    }
    client.flush().unwrap();
    let mut after = Vec::new();
    while after.len() < before.len() {
        let len = (7 * 512 * 33).min(before.len() - after.len()) as u32;
        after.extend(client.read(after.len() as u64, len).unwrap());
    }
    assert!(after == before, "the drive must return the written bytes");
    let out = dir.path().join("out.img");
    std::fs::write(&out, &after).unwrap();
    succeed(program("e2fsck", "e2fsprogs").args(["-f", "-n"]).arg(&out));
    client.disconnect();
    let drive = server.stop();
    assert!(
        number(&drive, "/interface/read_modify_write/units") > 1000,
        "{:#}",
        drive["interface"]
    );
    assert_eq!(number(&drive, "/nbd/errors_device") + number(&drive, "/nbd/errors_refused"), 0);
}

/// A FUSE mount, unmounted when dropped.
struct Mount {
    child: Child,
    dir: std::path::PathBuf,
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.dir).stderr(Stdio::null()).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loop device on a file, detached when dropped.
struct Loop {
    device: String,
}

impl Loop {
    /// Returns `None` where loop devices are unavailable.
    fn attach(file: &std::path::Path) -> Option<Loop> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let device = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        output.status.success().then_some(Loop { device })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

#[test]
fn mkfs_and_e2fsck_work_through_nbdfuse() {
    if !std::path::Path::new("/dev/fuse").exists() {
        testkit::skip!("this kernel has no FUSE (/dev/fuse is missing)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // nbdfuse passes requests on unchanged, and mkfs writes a superblock of 1024 bytes, so the
    // drive needs blocks of 512 bytes.
    let server = Server::start(dir.path(), &small_blocks());
    let mounted = dir.path().join("mnt");
    std::fs::create_dir(&mounted).unwrap();
    let file = mounted.join("disk");
    program("nbdfuse", "libnbd-bin");
    let child = Command::new("nbdfuse").arg(&file).arg(server.uri("")).spawn().unwrap();
    let mut mount = Mount { child, dir: mounted };
    let start = Instant::now();
    while !file.exists() {
        if let Some(status) = mount.child.try_wait().unwrap() {
            // Without the permission to mount, the test is skipped.
            testkit::skip!("nbdfuse may not mount here ({status})");
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nbdfuse does not mount");
        std::thread::sleep(Duration::from_millis(10));
    }
    let image = file_system(dir.path(), 32 << 20);
    // A kernel block device on the file. On the file itself, e2fsck's last write fails as invalid
    // every other time; presumably it writes single bytes of the superblock, which nbdfuse passes
    // on and a drive with sectors refuses.
    let Some(device) = Loop::attach(&file) else {
        testkit::skip!("no loop device on the served drive is to be had here");
        return;
    };
    succeed(program("mkfs.ext4", "e2fsprogs").args(["-q", "-F", &device.device]));
    succeed(program("e2fsck", "e2fsprogs").args(["-f", "-y", &device.device]));
    // Writes a file system with files through the kernel's page cache.
    let mut to = std::fs::OpenOptions::new().write(true).open(&device.device).unwrap();
    to.write_all(&std::fs::read(&image).unwrap()).unwrap();
    to.sync_all().unwrap();
    drop(to);
    succeed(program("e2fsck", "e2fsprogs").args(["-f", "-y", &device.device]));
    drop(device);
    drop(mount);
    let drive = server.stop();
    assert!(number(&drive, "/nbd/writes") > 0 && number(&drive, "/nbd/flushes") > 0);
    assert_eq!(number(&drive, "/nbd/errors_device"), 0);
}

#[test]
fn nbdinfo_shows_what_the_drive_is() {
    for (scenario, sector) in [
        (DRIVE.to_owned(), 4096),
        (pblk(), 4096),
        (DRIVE.replace("channels = 2", "sector_bytes = 512, channels = 2"), 512),
        (small_blocks(), 512),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path(), &scenario);
        let list = ["--json", "--list", &server.uri("")];
        let info = succeed(program("nbdinfo", "libnbd-bin").args(list));
        let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
        let export = &info["exports"][0];
        assert_eq!(export["export-name"], "drive0");
        assert!(export["description"].as_str().unwrap().contains("femu-default"));
        assert_eq!(export["block_size_minimum"], sector);
        for key in ["can_multi_conn", "can_trim", "can_zero", "can_flush", "can_fua", "can_df"] {
            assert_eq!(export[key], true, "{key}: {info:#}");
        }
        for key in ["is_read_only", "is_rotational"] {
            assert_eq!(export[key], false, "{key}: {info:#}");
        }
        let bytes = number(export, "/export-size");
        assert!(
            server
                .stdout()
                .contains(&format!("({} bytes) at unix:", scenario::format::count(bytes)))
        );
        // The server also reports whether a drive that was never written is a hole.
        let map = succeed(program("nbdinfo", "libnbd-bin").args(["--map", &server.uri("")]));
        assert!(String::from_utf8_lossy(&map.stdout).contains("hole"));
        let drive = server.stop();
        assert_eq!(
            number(&drive, "/capacity/logical_bytes"),
            bytes,
            "the capacity must equal the advertised size"
        );
    }
}

/// Performs hostile actions in turn; returns their number.
fn harass(server: &Server, until: &AtomicBool) -> u64 {
    let mut acts = 0u64;
    while !until.load(Ordering::Relaxed) {
        let path = &server.socket;
        match acts % 6 {
            0 => {
                let mut s = UnixStream::connect(path).unwrap();
                // The server may drop the connection before the client has sent all bytes.
                let _ = s.write_all(&[0xa5; 4096]);
            }
            1 => {
                let mut c = NbdClient::transmission(path);
                // Sends the header of a write and half of its data, then disconnects.
                c.request(nbd_client::WRITE, 0, (60 << 20) - (8 << 20), 65_536);
                c.give(&[0xee; 30_000]);
            }
            2 => {
                let mut c = NbdClient::transmission(path);
                assert_eq!(c.command(nbd_client::TRIM, 0, 1 << 60, 4096), Err(nbd_client::EINVAL));
                assert!(c.read(1 << 50, 4096).is_err(), "a read out of range must fail");
                assert!(c.read(0, 4096).is_ok(), "the connection must continue after errors");
            }
            3 => {
                let mut c = NbdClient::transmission(path);
                c.give(&nbd_client::request(nbd_client::WRITE, 0, 1, 0, u32::MAX));
                assert!(c.is_dropped(), "the server must drop a client that announces 4 GiB");
            }
            4 => {
                let mut c = NbdClient::greeted(path);
                c.give(&[0x5a; 64]);
                assert!(c.is_dropped(), "the server must drop a client that sends no valid option");
            }
            _ => {
                // Requests data and does not read it.
                let mut c = NbdClient::transmission(path);
                for _ in 0..8 {
                    c.request(nbd_client::READ, 0, 0, 1 << 20);
                }
            }
        }
        acts += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    acts
}

#[test]
fn hostile_clients_do_not_disturb_those_who_verify() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), DRIVE);
    let done = AtomicBool::new(false);
    let acts = std::thread::scope(|scope| {
        let rude = scope.spawn(|| harass(&server, &done));
        for seed in ["--randseed=1", "--randseed=2"] {
            // The verified range excludes the half-written requests, whose data is undefined.
            let size = "--size=48m";
            let job = ["--rw=randwrite", "--bs=4k", "--iodepth=16", "--verify=crc32c", size, seed];
            fio_ok(&server, &job);
        }
        done.store(true, Ordering::Relaxed);
        rude.join().unwrap()
    });
    assert!(acts >= 12, "{acts} hostile actions");
    let drive = server.stop();
    assert!(number(&drive, "/nbd/clients_dropped") >= acts / 6);
    assert!(number(&drive, "/nbd/errors_refused") > 0);
    assert_eq!(number(&drive, "/nbd/errors_device"), 0);
}
