//! Unusable volumes are refused with the reason: volumes of later versions, volumes in use, names
//! that are too long.

// guarantee: D-14

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use super::fixture::{Fixture, SLUICE, text};

/// CRC32C, computed bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// Changes all copies of the superblock, and corrects their checksums (`docs/format/volume.md`).
fn change(device: &str, change: impl Fn(&mut [u8])) {
    let mut bytes = std::fs::read(device).unwrap();
    let mut copies = 0;
    for block in bytes.chunks_exact_mut(4096).filter(|block| block.starts_with(b"SLUICVOL")) {
        let copy = &mut block[..512];
        assert_eq!(copy[508..], crc32c(&copy[..508]).to_le_bytes());
        change(&mut copy[..508]);
        let check = crc32c(&copy[..508]);
        copy[508..].copy_from_slice(&check.to_le_bytes());
        copies += 1;
    }
    assert_eq!(copies, 2);
    std::fs::write(device, bytes).unwrap();
}

#[test]
fn volumes_of_later_versions_are_refused() {
    let stage = Fixture::new(8 << 20);
    let device = stage.path("disk.img");
    let refused = |said: &str| {
        let before = std::fs::read(&device).unwrap();
        let out = stage.exec(&["true"]);
        assert_eq!(out.status.code(), Some(1));
        assert!(text(&out.stderr).contains(said), "{}", text(&out.stderr));
        assert!(std::fs::read(&device).unwrap() == before, "a refused volume must not change");
    };
    change(&device, |copy| copy[8..12].copy_from_slice(&2u32.to_le_bytes()));
    refused("version 2");
    change(&device, |copy| copy[8..12].copy_from_slice(&1u32.to_le_bytes()));
    change(&device, |copy| copy[12] |= 0x10);
    refused("feature");
    change(&device, |copy| copy[12] = 0);
    assert!(stage.exec(&["true"]).status.success());
}

#[test]
fn names_that_are_too_long_are_refused() {
    let stage = Fixture::new(8 << 20);
    let at = stage.path("at");
    let (longest, longer) = ("n".repeat(255), "n".repeat(256));
    let deep = "d/".repeat(2100);
    let script = format!(
        "touch {at}/{longest} && ls {at} | wc -c; touch {at}/{longer}; mv {at}/{longest} {at}/{longer}; \
         mkdir {at}/{longer}; cat {at}/{deep}f; ls {at} | wc -c"
    );
    let out = stage.exec(&["sh", "-c", &script]);
    assert_eq!(text(&out.stdout), "256\n256\n");
    let said = text(&out.stderr);
    assert_eq!(said.matches("File name too long").count(), 4, "{said}");
    stage.is_clean();
}

/// Starts a program that holds the volume until its standard input closes.
fn start_holder(volume: &str, at: &str) -> Child {
    let mut command = Command::new(SLUICE);
    command.args([
        "exec",
        "--volume",
        volume,
        "--at",
        at,
        "--",
        "sh",
        "-c",
        "echo up; read line; true",
    ]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Starts six services for one volume at a time: one gets it, and the others are refused.
fn only_one(volume: &str, at: &str) {
    for _ in 0..3 {
        let mut holders: Vec<Child> = (0..6).map(|_| start_holder(volume, at)).collect();
        let mut refused = 0;
        // A refused service ends; the owner waits for its input.
        while refused < 5 {
            let before = holders.len();
            holders.retain_mut(|holder| match holder.try_wait().unwrap() {
                None => true,
                Some(status) => {
                    assert_eq!(status.code(), Some(1));
                    false
                }
            });
            refused += before - holders.len();
            assert!(!holders.is_empty(), "no service got the volume");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let winner = holders.pop().unwrap();
        let out = winner.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        assert_eq!(text(&out.stdout), "up\n");
    }
}

#[test]
fn a_volume_is_used_once_at_a_time() {
    let stage = Fixture::new(8 << 20);
    only_one(&stage.path("disk.img"), &stage.path("at"));
    stage.is_clean();
    // With a drive in the process of the service.
    let scenario = stage.path("drive.toml");
    let text = "[drive]\npreset = \"femu-default\"\ndata = \"file\"\npath = \"drive.img\"\n\
        geometry = { channels = 2, pus = 4, chunks = 24, pages = 64 }\n";
    std::fs::write(&scenario, text).unwrap();
    assert!(stage.sluice(&["volume", "format", &scenario]).status.success());
    only_one(&scenario, &stage.path("at"));
}

/// A `sluice serve` with partitions for two volumes.
struct Server(Child);

impl Server {
    fn start(stage: &Fixture) -> Server {
        let scenario = stage.path("served.toml");
        let drive = "[drive]\npreset = \"femu-default\"\ndata = \"memory\"\n\
            geometry = { channels = 2, pus = 4, chunks = 24, pages = 64 }\n\
            [[partition]]\nname = \"db\"\nfirst = 0\nsectors = 3500\n\
            [[partition]]\nname = \"other\"\nfirst = 3500\nsectors = 3500\n";
        std::fs::write(&scenario, drive).unwrap();
        let mut command = Command::new(SLUICE);
        command.args(["serve", &scenario, "--socket", &stage.path("share.sock")]);
        let server = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut server = Server(server);
        let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("sharing ")), "the server does not start");
        // Drains the server's output, so that the server does not block on it.
        std::thread::spawn(move || lines.count());
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_partition_of_a_served_drive_is_used_once_at_a_time() {
    let stage = Fixture::new(8 << 20);
    let _server = Server::start(&stage);
    let volume = |name: &str| format!("sluice://{}#{name}", stage.path("share.sock"));
    let (db, other, at) = (volume("db"), volume("other"), stage.path("at"));
    for device in [&db, &other] {
        let out = stage.sluice(&["volume", "format", device]);
        assert!(out.status.success(), "{}", text(&out.stderr));
    }
    only_one(&db, &at);
    // A volume in use on one partition does not block the other partition.
    let holder = start_holder_ready(&db, &at);
    let touched = format!("{at}/x");
    let out = stage.sluice(&["exec", "--volume", &other, "--at", &at, "--", "touch", &touched]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_exclusive(&stage, &db);
    assert!(holder.wait_with_output().unwrap().status.success());
    for device in [&db, &other] {
        let out = stage.sluice(&["volume", "fsck", device]);
        assert_eq!(text(&out.stdout), "clean\n", "{}", text(&out.stderr));
    }
}

/// Starts a program that holds the volume, and waits until it reports this.
fn start_holder_ready(volume: &str, at: &str) -> Child {
    let mut holder = start_holder(volume, at);
    let mut said = [0; 3];
    holder.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"up\n");
    holder
}

/// Commands that read or change the whole volume must be refused while a program holds it.
fn assert_exclusive(stage: &Fixture, volume: &str) {
    let file = stage.path("file");
    std::fs::write(&file, "x").unwrap();
    let calls: [&[&str]; 6] = [
        &["fsck", volume],
        &["fsck", "--repair", "--clear-owner", volume],
        &["format", "--force", volume],
        &["ls", volume],
        &["get", volume, "/file", &file],
        &["put", volume, &file, "/file"],
    ];
    for call in calls {
        let out = stage.sluice(&[&["volume"], call].concat());
        assert_eq!(out.status.code(), Some(1), "{call:?}");
        let said = text(&out.stderr);
        assert!(said.contains("in use by another process"), "{call:?}: {said}");
        assert!(out.stdout.is_empty(), "{call:?}: {}", text(&out.stdout));
    }
}

#[test]
fn a_volume_in_use_is_neither_checked_nor_read() {
    let stage = Fixture::new(8 << 20);
    let volume = stage.path("disk.img");
    let holder = start_holder_ready(&volume, &stage.path("at"));
    assert_exclusive(&stage, &volume);
    assert!(holder.wait_with_output().unwrap().status.success());
    stage.is_clean();
}

/// The owner mark of a killed service does not block the next service, even if another process has
/// the same process number.
#[test]
fn a_mark_that_was_left_over_is_taken_over() {
    let stage = Fixture::new(8 << 20);
    let volume = stage.path("disk.img");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let boot = u128::from_str_radix(boot.trim().replace('-', "").as_str(), 16).unwrap();
    change(&volume, |copy| {
        copy[52] |= 1;
        copy[112..128].copy_from_slice(&boot.to_le_bytes());
        copy[128..136].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
    });
    let info = text(&stage.sluice(&["volume", "info", &volume]).stdout);
    assert!(info.contains(&format!("in use by    process {}", std::process::id())), "{info}");
    assert!(stage.exec(&["true"]).status.success());
    stage.is_clean();
}
